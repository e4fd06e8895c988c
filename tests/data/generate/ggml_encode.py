"""Golden blocks: values encoded by ggml's C quantizers, with and without the importance of the columns.

    pip install numpy==2.4.6
    GGML_ENCODE=<shared library> python ggml_encode.py [TYPE...]

GGML_ENCODE has the quantizers of ggml 0.26.0, without FMA and fast math and with NDEBUG as in its release builds, behind these functions:

    int64_t encode_row_size(int type, int64_t cols);                          ggml_row_size
    int64_t encode_rows(int type, const float * src, void * dst, int64_t rows, int64_t cols, const float * importance);
                                 ggml_quantize_chunk; of types of activations quantize_row_*_ref. Returns the bytes written

It writes to ../ggml_encode:

    values.f32              16 rows of 512 values. The last 4 have extremes (`EXTREMES`).
    importance.f32          of the 512 columns
    <type>.bin              the rows encoded without importance
    <type>.importance.bin   with it, where that makes a difference

Seeds are the CRC-32 of a name. With types as arguments it writes the blocks of these alone.
"""

import ctypes
import os
import sys
import zlib
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "ggml_encode"
ROWS, COLS = 16, 512

# name: (number of the type, importance: "none" (ignored), "both" or "only" (C refuses to go without it), rows)
# Rows is 12 for a type whose quantizer cannot take the extremes, 15 for one that takes all but those of `ABORTS`.
ABORTS = 12
TYPES = {
    "Q4_0": (2, "both", 16),
    "Q4_1": (3, "both", 16),
    "Q5_0": (6, "both", 16),
    "Q5_1": (7, "both", 16),
    "Q8_0": (8, "none", 16),
    "Q8_1": (9, "none", 16),
    "Q2_K": (10, "both", 16),
    "Q3_K": (11, "both", 16),
    "Q4_K": (12, "both", 16),
    "Q5_K": (13, "both", 16),
    "Q6_K": (14, "both", 16),
    "Q8_K": (15, "none", 16),
    "IQ2_XXS": (16, "only", 15),
    "IQ2_XS": (17, "only", 15),
    "IQ3_XXS": (18, "both", 15),
    "IQ1_S": (19, "only", 16),
    "IQ4_NL": (20, "both", 16),
    "IQ3_S": (21, "both", 15),
    "IQ2_S": (22, "both", 15),
    "IQ4_XS": (23, "both", 16),
    "IQ1_M": (29, "both", 16),
    "TQ1_0": (34, "none", 16),
    "TQ2_0": (35, "none", 16),
    "MXFP4": (39, "none", 16),
    "NVFP4": (40, "none", 16),
    "Q1_0": (41, "none", 16),
    "Q2_0": (42, "none", 16),
}


def open_ggml():
    ggml = ctypes.CDLL(os.environ["GGML_ENCODE"])
    ggml.encode_row_size.restype = ggml.encode_rows.restype = ctypes.c_int64
    ggml.encode_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    ggml.encode_rows.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                                 ctypes.c_void_p]
    return ggml


def encode(ggml, number, values, importance=None):
    """uint8 [rows, bytes of a row]. Zero where C writes nothing: the sums of a Q8_K block of zeros."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    rows, cols = values.shape
    out = np.zeros((rows, ggml.encode_row_size(number, cols)), dtype=np.uint8)
    if importance is not None:
        importance = np.ascontiguousarray(importance, dtype=np.float32)
        assert importance.shape == (cols,)
    pointer = None if importance is None else importance.ctypes.data
    assert ggml.encode_rows(number, values.ctypes.data, out.ctypes.data, rows, cols, pointer) == out.size
    return out


def rng(name):
    return np.random.RandomState(zlib.crc32(f"ggml_encode/{name}".encode()))


def ordinary():
    """12 rows of what models have, with quiet blocks and blocks of few distinct values among them."""
    r = rng("ordinary")
    rows = r.standard_normal((12, COLS)) * 0.02
    rows[1] *= 2.0 ** r.uniform(-8, 8, COLS // 16).repeat(16)  # every 16 values another scale
    rows[2] = r.standard_t(3, COLS) * 0.05
    rows[3] = r.uniform(-1, 1, COLS)
    rows[4] = np.abs(r.standard_normal(COLS)) + 0.25  # one side
    rows[5] = -np.abs(r.standard_normal(COLS))
    rows[6] = r.randint(-1, 2, COLS) * 0.75  # ternary
    rows[7] = r.randint(-127, 128, COLS) / 8  # ties
    rows[8, :256] = 0
    rows[8, 256:] *= r.rand(256) < 0.05  # sparse
    rows[9, ::32] = 3.0 * r.choice([-1, 1], COLS // 32)  # outliers
    rows[10] = 0.5 + r.standard_normal(COLS) * 1e-3  # nearly constant
    rows[11] = r.randint(-8, 9, COLS) / 16
    return rows


# What fills runs of 32 values of the last rows, in turn.
EXTREMES = [
    lambda r, n: np.zeros(n),
    lambda r, n: np.full(n, -0.0),
    lambda r, n: np.full(n, 1.0),
    lambda r, n: np.full(n, -0.3),
    lambda r, n: np.eye(1, n, 5)[0] * 1e4,
    lambda r, n: np.eye(1, n, 31)[0] * -1e-4,
    lambda r, n: r.standard_normal(n) * 1e4,
    lambda r, n: r.standard_normal(n) * 1e6,  # scales beyond f16
    lambda r, n: r.standard_normal(n) * 1e30,  # squares beyond f32
    lambda r, n: r.standard_normal(n) * 1e-6,  # scales subnormal in f16
    lambda r, n: r.standard_normal(n) * 1e-9,  # scales zero in f16
    lambda r, n: r.standard_normal(n) * 1e-16,
    lambda r, n: r.standard_normal(n) * 1e-30,  # squares zero
    lambda r, n: r.standard_normal(n) * 1e-37,
    lambda r, n: r.randint(-40, 41, n) * 2.0**-149,
    lambda r, n: np.where(r.rand(n) < 0.5, 65504.0, -65504.0),
]


def extreme():
    """Each in its turn in runs of 32, with ordinary ones between; then whole blocks of 256 of some."""
    r = rng("extreme")
    rows = np.empty((4, COLS))
    for i, fill in enumerate(EXTREMES):
        rows[0, 32 * i:32 * i + 32] = fill(r, 32)
        rows[1, 32 * i:32 * i + 32] = fill(r, 32) if i % 2 and i != 8 else r.standard_normal(32)
    rows[2] = np.concatenate([r.standard_normal(256) * 1e-16, r.standard_normal(256) * 1e-6])
    rows[3] = np.concatenate([r.standard_normal(256) * 1e6, np.full(256, -2.0)])
    return rows


def importance():
    """Mean squares of activations, a few of them 0 and a few large."""
    r = rng("importance")
    weights = r.standard_gamma(0.5, COLS)
    weights[r.rand(COLS) < 0.02] = 0
    weights[r.rand(COLS) < 0.02] *= 100
    return weights.astype(np.float32)


def main():
    ggml = open_ggml()
    OUT.mkdir(exist_ok=True)
    values = np.concatenate([ordinary(), extreme()]).astype(np.float32)
    weights = importance()
    values.astype("<f4").tofile(OUT / "values.f32")
    weights.astype("<f4").tofile(OUT / "importance.f32")
    for name in sys.argv[1:] or TYPES:
        number, kind, rows = TYPES[name]
        taken = np.delete(values, ABORTS, 0) if rows == 15 else values[:rows]
        with_it = encode(ggml, number, taken, weights)
        if kind != "only":
            without = encode(ggml, number, taken)
            without.tofile(OUT / f"{name.lower()}.bin")
            assert (with_it == without).all() == (kind == "none"), name
        if kind != "none":
            with_it.tofile(OUT / f"{name.lower()}.importance.bin")
    print(f"{sum(p.stat().st_size for p in OUT.iterdir())} bytes")


if __name__ == "__main__":
    main()

"""Golden GGUF files of the types that ik_llama.cpp adds to ggml's, decoded by its own C++.

    pip install torch==2.15.0 safetensors==0.8.0 numpy==2.4.6
    IK_SRC=<ik_llama.cpp at commit 8337e4cd> IK_ORACLE=<shared library> python ik_llama.py

IK_ORACLE has ik_llama.cpp's own C++ of that commit, without contraction of products and sums, behind these functions, of which
ik_interleaved.py needs the last three:

    int oracle_number(const char * name);                                     number of a type; -1 for none
    void oracle_type(int type, int64_t sizes[3]);                             values and bytes of a block, bytes before a row
    int oracle_dequantize(int type, const char * x, float * y, int64_t k);    one row; 0 for no such type. Rows of IQ1_BN and IQ2_BN
                                                                              are multiplied by their scale in F32
    int oracle_quantize(int type, const float * x, void * y, int64_t rows, int64_t k);
    int oracle_repacked(const char * name, int numbers[3]);                   numbers of the type and of that of its rows, and how many
    void oracle_repack(int type, int rows, int k, const char * x, char * y);  interleaves rows
    int oracle_dequantize_repacked(int type, const char * x, float * y, int64_t k);

It rewrites ../ik_llama/*: <type>/model.gguf, and what it decodes to in F32. Seeds are the CRC-32 of the type's name.

    random      [3, 3 blocks]: blocks of random bytes, of which every bit is both set and clear in some block
    hostile     [5, 1 block]: the same blocks of other random bytes in rows whose scales are zero, subnormal, the largest,
                infinite and NaN
    encoded     [2, 1, 1 block]: normally distributed values, encoded by ik_llama.cpp itself
"""

import ctypes
import os
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "ik_llama"
SRC = Path(os.environ["IK_SRC"]) / "ggml"

NAMES = ("Q6_0 IQ1_BN IQ2_BN IQ2_K IQ3_K IQ4_K IQ5_K IQ6_K IQ4_KS IQ2_KS IQ4_KSS Q8_KV IQ5_KS IQ2_KT IQ3_KT IQ4_KT "
         "IQ3_KS IQ2_KL IQ1_KT").split()
HOSTILE_F16 = [0x8000, 0x0001, 0x7BFF, 0xFC00, 0x7E00]
HOSTILE_F32 = [0x80000000, 0x00000003, 0x7F7FFFFF, 0xFF800000, 0x7FC00000]


def open_ik():
    ik = ctypes.CDLL(os.environ["IK_ORACLE"])
    ik.oracle_dequantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    ik.oracle_quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    return ik


IK = open_ik()


def sizes(name):
    """The type's number, the values and bytes of a block, and the bytes before each row."""
    number, out = IK.oracle_number(name.encode()), (ctypes.c_int64 * 3)()
    IK.oracle_type(number, out)
    # The library has the header from its maker; ggml.c must say the same.
    traits = re.search(rf"\[GGML_TYPE_{name}\] = {{(.*?)\n    }}", (SRC / "src/ggml.c").read_text(), re.S)[1]
    assert int(re.search(r"row_meta_size\s*= (\d+)", traits)[1]) == out[2], name
    return number, *out


def dequantize(name, rows, cols):
    """f32 [rows, cols]"""
    number, values, size, header = sizes(name)
    rows = np.ascontiguousarray(rows)
    assert rows.shape[1] == header + cols // values * size
    out = np.empty((len(rows), cols), dtype=np.float32)
    for row, values in zip(rows, out):
        row = np.frombuffer(row.tobytes(), dtype=np.uint8).copy()  # aligned
        assert IK.oracle_dequantize(number, row.ctypes.data, values.ctypes.data, cols)
    return out


def put_scales(rows, name, scales):
    """Writes `scales` where the type has them: in the header of each row, or at the start of each block."""
    _, _, size, header = sizes(name)
    width = header or 2
    scales = np.asarray(scales, dtype="<u4" if width >= 4 else "<u2").view(np.uint8).reshape(len(rows), -1)
    for at in [0] if header else range(0, rows.shape[1], size):
        rows[:, at:at + scales.shape[1]] = scales


def random_scales(rng, name, n):
    sign, mantissa = rng.choice([-1, 1], n), rng.uniform(0.002, 0.02, n)
    is_f32 = sizes(name)[3] >= 4
    return (sign * mantissa).astype("<f4" if is_f32 else "<f2").view("<u4" if is_f32 else "<u2")


def encoded(rng, name, rows, cols):
    number, values, size, header = sizes(name)
    x = rng.standard_normal((rows, cols)).astype(np.float32) * 0.02
    if name in ("IQ1_BN", "IQ2_BN"):
        x = np.sign(np.round(x / 0.02)).astype(np.float32) * 0.03
    out = np.zeros((rows, header + cols // values * size), dtype=np.uint8)
    assert IK.oracle_quantize(number, x.ctypes.data, out.ctypes.data, rows, cols)
    error = np.abs(dequantize(name, out, cols) - x).mean() / np.abs(x).mean()
    assert error < 0.5, (name, error)
    print(f"{name}: relative error {error:.4f}")
    return out


def case(name):
    number, values, size, header = sizes(name)
    for attempt in range(100):
        rng = np.random.RandomState(zlib.crc32(name.encode()) + attempt)
        random = rng.randint(0, 256, (3, header + 3 * size)).astype(np.uint8)
        hostile = rng.randint(0, 256, (5, header + size)).astype(np.uint8)
        blocks = np.concatenate([random[:, header:].reshape(-1, size), hostile[:, header:]])
        if (np.bitwise_or.reduce(blocks) == 255).all() and (np.bitwise_and.reduce(blocks) == 0).all():
            break
    else:
        raise AssertionError(f"{name}: a bit is the same everywhere")
    put_scales(random, name, random_scales(rng, name, 3))
    put_scales(hostile, name, HOSTILE_F32 if header >= 4 else HOSTILE_F16)
    return number, {
        "random": ((3, 3 * values), random),
        "hostile": ((5, values), hostile),
        "encoded": ((2, 1, values), encoded(rng, name, 2, values)),
    }


def gguf(number, tensors):
    """A GGUF file without metadata."""
    out, data = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), 0), b""
    for name, (shape, rows) in tensors.items():
        out += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        out += struct.pack(f"<{len(shape)}QIQ", *reversed(shape), number, len(data))
        data += rows.tobytes()
        data += bytes(-len(data) % 32)
    return out + bytes(-len(out) % 32) + data


def main():
    for name in NAMES:
        number, tensors = case(name)
        directory = DATA / name.lower()
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "model.gguf").write_bytes(gguf(number, tensors))
        decoded = {
            key: torch.from_numpy(dequantize(name, rows, shape[-1]).reshape(shape))
            for key, (shape, rows) in tensors.items()
        }
        save_file(decoded, directory / "expected-f32.safetensors")


if __name__ == "__main__":
    main()

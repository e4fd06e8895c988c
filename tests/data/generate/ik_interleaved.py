"""Golden GGUF files of ik_llama.cpp's types whose rows are interleaved, by its own C++.

    pip install torch==2.15.0 safetensors==0.8.0 numpy==2.4.6
    IK_SRC=<ik_llama.cpp at commit 8337e4cd> IK_ORACLE=<shared library> python ik_interleaved.py

IK_ORACLE is described in ik_llama.py. It rewrites ../ik_interleaved/*: <type>/model.gguf, and what it decodes to in F32.
Rows of random blocks are interleaved by `repack_*`, and decoded before that. ik_llama.cpp decodes the interleaved rows to the same
values. Seeds are the CRC-32 of the type's name.

    random      [2, rows, 5 blocks] of 32 values, [rows, 2 blocks] of others: random scales
    hostile     [rows, 1 block], or 33: scales that are zero, subnormal, the largest, infinite and NaN
"""

import zlib
from ctypes import c_char_p, c_int, c_int64, c_void_p

import numpy as np
import torch
from ik_llama import DATA, HOSTILE_F16, HOSTILE_F32, IK, gguf
from safetensors.torch import save_file

NAMES = ("Q4_0_R8 Q5_0_R4 Q8_0_R8 Q2_K_R4 Q3_K_R4 Q4_K_R4 Q5_K_R4 Q6_K_R4 IQ2_XXS_R4 IQ2_XS_R4 IQ3_XXS_R4 IQ4_NL_R4 IQ3_S_R4 "
         "IQ2_S_R4 IQ4_XS_R8 Q6_0_R4 IQ2_BN_R4 IQ2_K_R4 IQ3_K_R4 IQ4_K_R4 IQ5_K_R4 IQ4_KS_R4 IQ5_KS_R4 MXFP4_R8 Q8_K_R8").split()
# Where a block of rows has its scales in F16; MXFP4's is a byte, and other types have them in the header of a row.
SCALES = {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": [], "IQ2_BN": [], "IQ4_KS": [], "IQ5_KS": []}

# Types that `repack_*` does not make of others, or with another header: number, rows, bytes a row has of 32 values, type of the scales.
STORED = {"IQ1_S_R4": (219, 4, 6, "<f2"), "IQ1_M_R4": (229, 4, 7, "<f2"), "Q8_KV_R8": (398, 8, 32, "<f4")}

IK.oracle_repack.argtypes = [c_int, c_int, c_int, c_void_p, c_void_p]
IK.oracle_dequantize_repacked.argtypes = [c_int, c_void_p, c_void_p, c_int64]


def sizes(number):
    out = (c_int64 * 3)()
    IK.oracle_type(number, out)
    return list(out)


def with_scales(rng, name, rows, header, size, bits):
    """Writes scales to `rows`: random ones, or `bits` in turn."""
    base = name.rsplit("_R", 1)[0]
    if header:
        values = rng.uniform(0.002, 0.02, len(rows)).astype("<f4").view("<u4")
        rows[:, :4] = np.asarray(values if bits is None else np.resize(bits, len(rows)), dtype="<u4").view(np.uint8).reshape(-1, 4)
        return
    for n, at in enumerate(SCALES.get(base, [0])):
        for col in range(at, rows.shape[1], size):
            values = (rng.choice([-1, 1], len(rows)) * rng.uniform(0.002, 0.02, len(rows))).astype("<f2").view("<u2")
            values = values if bits is None else np.roll(np.resize(bits, len(rows)), n)
            rows[:, col:col + 2] = np.asarray(values, dtype="<u2").view(np.uint8).reshape(-1, 2)


def dequantize(base, rows, k):
    out = np.empty((len(rows), k), dtype=np.float32)
    for row, values in zip(rows, out):
        row = row.copy()
        assert IK.oracle_dequantize(base, row.ctypes.data, values.ctypes.data, k)
    return out


def same(a, b):
    return ((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all()


def decode_stored(number, stored, rows, k):
    out, stored = np.empty((rows, k), dtype=np.float32), stored.copy()
    assert IK.oracle_dequantize_repacked(number, stored.ctypes.data, out.ctypes.data, k)
    return out


def group(rng, name, numbers, blocks, bits):
    """Rows that are interleaved: their bytes and values."""
    number, base, rows = numbers
    values, size, header = sizes(base)
    k = blocks * values
    if name == "Q8_K_R8":
        # Its scales are F16, and those of the rows that it is made of F32: there are no such rows of the same values.
        stored = rng.randint(0, 256, blocks * rows * 258).astype(np.uint8)
        for block in stored.reshape(blocks, -1):
            scales = rng.uniform(0.002, 0.02, rows).astype("<f2").view("<u2") if bits is None else np.resize(bits, rows).astype("<u2")
            block[:2 * rows] = scales.view(np.uint8)
        return stored, decode_stored(number, stored, rows, k)
    plain = rng.randint(0, 256, (rows, header + blocks * size)).astype(np.uint8)
    with_scales(rng, name, plain, header, size, bits)
    if name == "MXFP4_R8" and bits is None:
        plain[:, ::size] = rng.randint(118, 130, plain[:, ::size].shape)
    stored = np.zeros(plain.size, dtype=np.uint8)
    IK.oracle_repack(base, rows, k, plain.ctypes.data, stored.ctypes.data)
    expected = dequantize(base, plain, k)
    # ik_llama.cpp's own decoder of MXFP4_R8 takes eight times as many blocks as there are. Values of Q5_0_R4 and Q6_0_R4 are
    # `d * q + m` there, with m = -16 d and -32 d: the same but for the sign of zero and scales that are not finite.
    if name != "MXFP4_R8":
        theirs = decode_stored(number, stored, rows, k)
        is_fused = name in ("Q5_0_R4", "Q6_0_R4")
        assert same(theirs, expected) or is_fused and (bits or (theirs == expected).all()), name
    return stored, expected


def stored_group(rng, name, blocks, is_hostile):
    """Random blocks behind the scales of all rows."""
    number, rows, size, dtype = STORED[name]
    scales = rng.uniform(0.002, 0.02, rows).astype(dtype)
    if is_hostile:
        bits = np.resize(HOSTILE_F16 if dtype == "<f2" else HOSTILE_F32, rows + 1)
        scales = bits[-rows:].astype(dtype.replace("f", "u")).view(dtype)
    stored = np.concatenate([scales.view(np.uint8), rng.randint(0, 256, rows * blocks * size).astype(np.uint8)])
    return stored, decode_stored(number, stored, rows, blocks * 32)


def bf16(rng, rows, cols):
    words = rng.randint(0, 1 << 16, (rows, cols)).astype(np.uint16)
    # `repack_bf16` of iqk_quantize.cpp: pairs of values of each row in turn.
    stored = words.reshape(rows, -1, 2).transpose(1, 0, 2)
    return stored.tobytes(), (words.astype(np.uint32) << 16).view(np.float32)


def write(name, number, tensors):
    directory = DATA.parent / "ik_interleaved" / name.lower()
    directory.mkdir(parents=True, exist_ok=True)
    stored = {key: (list(values.shape), np.frombuffer(bytes, dtype=np.uint8)) for key, (bytes, values) in tensors.items()}
    (directory / "model.gguf").write_bytes(gguf(number, stored))
    save_file({key: torch.from_numpy(values.copy()) for key, (_, values) in tensors.items()}, directory / "expected-f32.safetensors")


def main():
    for name in NAMES:
        numbers = (c_int * 3)()
        assert IK.oracle_repacked(c_char_p(name.encode()), numbers)
        rng = np.random.RandomState(zlib.crc32(name.encode()))
        is_short = sizes(numbers[1])[0] < 256
        groups = [group(rng, name, numbers, 5 if is_short else 2, None) for _ in range(1 + is_short)]
        header = sizes(numbers[1])[2]
        stored, values = group(rng, name, numbers, 1, HOSTILE_F32 if header else HOSTILE_F16)
        random = (b"".join(bytes.tobytes() for bytes, _ in groups), np.stack([values for _, values in groups]) if is_short else groups[0][1])
        write(name, numbers[0], {"random": random, "hostile": (stored.tobytes(), values)})
    for name, (number, *_) in STORED.items():
        rng = np.random.RandomState(zlib.crc32(name.encode()))
        groups = [stored_group(rng, name, 5, False) for _ in range(2)]
        hostile, values = stored_group(rng, name, 33, True)
        random = (b"".join(bytes.tobytes() for bytes, _ in groups), np.stack([values for _, values in groups]))
        write(name, number, {"random": random, "hostile": (hostile.tobytes(), values)})
    rng = np.random.RandomState(zlib.crc32(b"BF16_R16"))
    write("BF16_R16", 230, {"random": bf16(rng, 16, 10), "wide": bf16(rng, 16, 64)})


main()

"""Golden GGUF files of PrismML's llama.cpp: its block types, and weights that it has rotated.

    pip install torch==2.15.0 safetensors==0.8.0 numpy==2.4.6 gguf==0.19.0
    PRISM_ORACLE=<shared library> python prism.py

PRISM_ORACLE has two functions of `ggml/src/ggml-quants.c` of branch `prism` of PrismML's llama.cpp, without contraction of products and
sums: `dequantize_row_pq2_0` and `dequantize_row_ptq1_0`, called `oracle_pq2_0` and `oracle_ptq1_0`.

It rewrites ../prism/*: <case>/model.gguf, and what it decodes to in F32. Seeds are the CRC-32 of the case's name.

    pq2_0, ptq1_0    random blocks of which every bit of a code is both set and clear in some block; scales that are zero, subnormal, the
                     largest, infinite and NaN
    group_128        blocks of PQ2_0 under the number of ggml's Q2_0, as the first files of two bits have them
    rotated          weights of a Qwen 3.5 with `prism.hadamard.*`. A weight is what its layer computes of unit vectors, in F64:
                     `build_lora_mm` permutes heads of `ssm_out`, multiplies by signs and by the rotation, and then by the stored
                     weight. Blocks of 64 columns, the root of which is 8, have sums that are exact
    rotated_q4_0     weights of a file with `onebit.hadamard_q4_0`, which 1bit-MONSTER's `tools/hadamard_q4_0.py` writes: `rotate_rows` of
                     the decoded weights of Q4_0, in F64. It is its own inverse. The table of embeddings is not rotated
"""

import ctypes
import os
import struct
import zlib
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

DATA = Path(__file__).resolve().parent.parent / "prism"
ORACLE = ctypes.CDLL(os.environ["PRISM_ORACLE"])
# Number, bytes of a block, offset of its scale.
TYPES = {"PQ2_0": (142, 34, 0), "PTQ1_0": (143, 28, 26)}
HOSTILE = [0x8000, 0x0001, 0x7BFF, 0xFC00, 0x7E00]
Q4_0 = gguf.GGMLQuantizationType.Q4_0
KEYS, VALUES = 2, 6  # heads of linear attention


def dequantize(name, blocks):
    out = np.empty(len(blocks) * 128, dtype=np.float32)
    blocks = np.ascontiguousarray(blocks)
    function = getattr(ORACLE, f"oracle_{name.lower()}")
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    function(blocks.ctypes.data, out.ctypes.data, len(out))
    return out


def random_blocks(name, n, rng, scales=None):
    _, size, at = TYPES[name]
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    if scales is None:
        scales = rng.uniform(2**-10, 2, n).astype(np.float16).view(np.uint16)
    blocks[:, at : at + 2] = np.asarray(scales, dtype="<u2").view(np.uint8).reshape(n, 2)
    return blocks


def text(x):
    x = x.encode()
    return struct.pack("<Q", len(x)) + x


def value(x):
    """A value with its type."""
    if isinstance(x, bool):
        return struct.pack("<IB", 7, x)
    if isinstance(x, int):
        return struct.pack("<II", 4, x)
    if isinstance(x, str):
        return struct.pack("<I", 8) + text(x)
    items = b"".join(text(i) if isinstance(i, str) else struct.pack("<i", i) for i in x)
    return struct.pack("<IIQ", 9, 8 if isinstance(x[0], str) else 5, len(x)) + items


def write(case, keys, tensors, expected):
    """Writes `tensors`: (name, number of the type, shape, bytes)."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    out += b"".join(text(k) + value(v) for k, v in keys.items())
    data = b""
    for name, number, shape, stored in tensors:
        dims = b"".join(struct.pack("<Q", n) for n in reversed(shape))
        out += text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", number, len(data))
        data += stored + bytes(-len(stored) % 32)
    (DATA / case).mkdir(parents=True, exist_ok=True)
    (DATA / case / "model.gguf").write_bytes(out + bytes(-len(out) % 32) + data)
    expected = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in expected.items()}
    save_file(expected, DATA / case / "expected-f32.safetensors")


def block_case(case, name, number):
    rng = np.random.default_rng(zlib.crc32(case.encode()))
    random, hostile = random_blocks(name, 18, rng), random_blocks(name, 5, rng, HOSTILE)
    codes = np.delete(random, [TYPES[name][2], TYPES[name][2] + 1], axis=1)
    assert (np.bitwise_or.reduce(codes) == 255).all() and (np.bitwise_and.reduce(codes) == 0).all()
    tensors = [("random", number, [6, 384], random.tobytes()), ("hostile", number, [5, 128], hostile.tobytes())]
    if case == "group_128":
        tensors = tensors[:1]
    write(case, {"general.architecture": "qwen3"}, tensors,
          {n: dequantize(name, b).reshape(shape) for (n, _, shape, _), b in zip(tensors, (random, hostile))})


def sylvester(n):
    return np.array([[(-1) ** bin(i & j).count("1") for j in range(n)] for i in range(n)], dtype=np.float64)


def layer(weight, signs, is_grouped):
    """The matrix of the layer that has the stored `weight`: its outputs of unit vectors."""
    cols = weight.shape[1]
    x = np.eye(cols)  # a unit vector in each row
    if is_grouped:  # ggml_permute of [width, keys, values / keys], as llama-graph.cpp has it
        x = x.reshape(cols, VALUES // KEYS, KEYS, cols // VALUES).transpose(0, 2, 1, 3).reshape(cols, cols)
    x = (x * signs).reshape(cols, -1, 64) @ sylvester(64) / 8
    return (x.reshape(cols, cols) @ weight.T.astype(np.float64)).T.astype(np.float32) + np.float32(0)


def rotated():
    rng = np.random.default_rng(zlib.crc32(b"rotated"))
    signs = {256: rng.choice([-1, 1], 256), 384: rng.choice([-1, 1], 384)}
    cases = [("blk.0.ssm_out.weight", "PTQ1_0", 3, 384), ("blk.0.ffn_down.weight", "PQ2_0", 2, 384),
             ("blk.0.ffn_up.weight", "PTQ1_0", 3, 256), ("token_embd.weight", "PQ2_0", 4, 384), ("blk.0.ssm_alpha.weight", "PQ2_0", 1, 384)]
    tensors, expected = [], {}
    for name, kind, rows, cols in cases:
        stored = random_blocks(kind, rows * cols // 128, rng)
        weight = dequantize(kind, stored).reshape(rows, cols)
        tensors.append((name, TYPES[kind][0], [rows, cols], stored.tobytes()))
        is_rotated = "ssm_alpha" not in name
        expected[name] = layer(weight, signs[cols], "ssm_out" in name) if is_rotated else weight
    keys = {"general.architecture": "qwen35", "qwen35.ssm.group_count": KEYS, "qwen35.ssm.time_step_rank": VALUES}
    rotation = {"version": 1, "block_size": 64, "transform": "normalized-sylvester-walsh-hadamard", "axis": "input-last-dimension",
                "sign_mode": "explicit", "sign_widths": list(signs), "sign_values": [int(s) for v in signs.values() for s in v],
                "weight_names": [n for n, *_ in cases[:3]], "inverse_weight_names": ["token_embd.weight"], "gdn_v_grouped": True}
    write("rotated", keys | {f"prism.hadamard.{k}": v for k, v in rotation.items()}, tensors, expected)


def rotated_q4_0():
    rng = np.random.default_rng(zlib.crc32(b"rotated_q4_0"))
    cases = [("token_embd.weight", [4, 64]), ("blk.0.attn_q.weight", [3, 96]), ("blk.0.ffn_up_exps.weight", [2, 3, 64])]
    tensors, expected = [], {}
    for name, shape in cases:
        stored = gguf.quantize(rng.standard_normal(shape).astype(np.float32), Q4_0)
        weight = gguf.dequantize(stored, Q4_0)
        tensors.append((name, 2, shape, stored.tobytes()))
        rows = (weight.astype(np.float64).reshape(-1, 32) @ sylvester(32) / np.sqrt(32)).reshape(shape).astype(np.float32)
        expected[name] = weight if name == "token_embd.weight" else rows
    for name in ("output.weight", "blk.0.ssm_out.weight"):
        plain = rng.standard_normal((2, 32)).astype(np.float16)
        tensors.append((name, 1, [2, 32], plain.tobytes()))
        expected[name] = plain
    write("rotated_q4_0", {"general.architecture": "qwen35", "onebit.hadamard_q4_0": 32}, tensors, expected)


if __name__ == "__main__":
    block_case("pq2_0", "PQ2_0", 142)
    block_case("ptq1_0", "PTQ1_0", 143)
    block_case("group_128", "PQ2_0", 42)
    rotated()
    rotated_q4_0()

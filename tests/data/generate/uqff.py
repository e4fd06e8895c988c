"""UQFF models of mistral.rs: layers of every kind with random bytes, and what mistral.rs makes of them.

    pip install numpy==2.4.6
    python uqff.py ORACLE        # a program made of uqff_oracle.rs

It rewrites ../uqff/*. `random/` is a model in two files and one of other tensors; ORACLE loads its layers with mistral.rs's own
reader, and decodes them with mistral.rs, those of ggml's types with candle. `random.expected.safetensors` has the values in the
type in which these libraries give them. `isq/` and its expected values are what mistral.rs's quantizers write.
"""

import json
import os
import shutil
import struct
import subprocess
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "uqff")
RNG = np.random.default_rng(20)

GGML = {"q4_0": (2, 18, 32), "q4_1": (3, 20, 32), "q5_0": (6, 22, 32), "q5_1": (7, 24, 32), "q8_0": (8, 34, 32),
        "q2k": (10, 84, 256), "q3k": (11, 110, 256), "q4k": (12, 144, 256), "q5k": (13, 176, 256),
        "q6k": (14, 210, 256), "f32": (0, 4, 1), "f16": (1, 2, 1), "bf16": (30, 2, 1)}


def u8(n):
    return RNG.integers(0, 256, n, dtype=np.uint8)


def scalar(value, dtype):
    return np.array(value, dtype=dtype)


def halves(*shape):
    """F16 of moderate size, and some extreme ones."""
    x = RNG.normal(size=shape).astype(np.float16)
    flat = x.reshape(-1)
    extreme = np.array([0.0, -0.0, 6e-8, 65504.0, -65504.0, np.inf, np.nan], dtype=np.float16)
    flat[: min(len(extreme), len(flat) // 3)] = extreme[: len(flat) // 3]
    return x


class File:
    """Tensors of a safetensors file. numpy has no BF16 and no F8: these are bytes with another name of the dtype."""

    def __init__(self):
        self.tensors = []

    def add(self, name, array, dtype=None):
        array = np.ascontiguousarray(array) if array.ndim else array
        names = {"uint8": "U8", "uint32": "U32", "float16": "F16", "float32": "F32", "uint16": "U16"}
        self.tensors.append((name, dtype or names[str(array.dtype)], list(array.shape), array.tobytes()))

    def layer(self, key, tag, weight, dtype=None, **more):
        self.add(f"{key}.weight.format", scalar(tag, np.uint8))
        self.add(f"{key}.weight", weight, dtype)
        for name, value in more.items():
            self.add(f"{key}.weight.{name}", *value) if isinstance(value, tuple) else self.add(f"{key}.weight.{name}", value)

    def ggml(self, key, data, number, dims):
        self.layer(key, 0, data, shape=shape(*dims))
        self.add(f"{key}.weight.dtype", scalar(number, np.uint32))

    def write(self, path):
        header, at = {}, 0
        for name, dtype, shape, data in self.tensors:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + b"".join(data for *_, data in self.tensors))


def shape(*dims):
    return np.array(dims, dtype=np.uint32)


def version(file, *numbers):
    for name, number in zip(("major", "minor", "patch"), numbers):
        file.add(f"uqff.version.{name}", scalar(number, np.uint32))


def bf16(*dims):
    """Bits of BF16, moderate."""
    return (RNG.normal(size=dims).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(os.path.join(OUT, "random"))
    first, second, residual = File(), File(), File()
    version(first, 1, 2, 0)
    for name, (number, size, block) in GGML.items():
        dims = (3, 2 * block) if block > 1 else (3, 5)
        data = u8(int(np.prod(dims)) // block * size)
        first.ggml(f"ggml.{name}", data, number, dims)
    first.ggml("model.layers.0.mlp.experts.gate_proj", u8(2 * 3 * 64 // 32 * 34), 8, (2, 3, 64))
    first.add("model.layers.0.mlp.experts.gate_proj.bias", halves(2, 3))
    second.layer("plain.bf16", 1, bf16(2, 3), "BF16")
    second.layer("plain.f32", 1, RNG.normal(size=(2, 3)).astype(np.float32))
    for bits in (4, 8):
        for name, numbers, dtype in (("f32", lambda *s: RNG.normal(size=s).astype(np.float32), None), ("f16", halves, None),
                                     ("bf16", bf16, "BF16")):
            rows, cols = 16, 6
            second.layer(f"hqq{bits}.{name}", 2, u8(rows * bits // 8 * cols).reshape(-1, cols),
                         scales=(numbers(1, cols), dtype), zeros=(numbers(1, cols), dtype), shape=shape(12, 8),
                         bits=scalar(bits, np.uint8), group_size=scalar(rows, np.uint32), axis=scalar(0, np.uint8),
                         optimization_steps=scalar(20, np.uint32), round_zeros=scalar(1, np.uint8),
                         channel_wise=scalar(1, np.uint8))
    for name, scale in (("one", 0.0123), ("huge", 1e38)):
        second.layer(f"fp8.{name}", 3, np.arange(256, dtype=np.uint8).reshape(8, 32), "F8_E4M3",
                     dequant_w_scale=scalar(scale, np.float32), dequant_x_scale=scalar(scale, np.float32),
                     quant_scale=scalar(1 / scale, np.float32))
        second.add(f"fp8.{name}.weight.dtype", scalar(9, np.uint32))
    for bits in (2, 3, 4, 6, 8):
        for group in (32, 64, 128):
            words, groups = 128 * bits // 32, 128 // group
            numbers, dtype = ((lambda *s: RNG.normal(size=s).astype(np.float32), None) if group == 32 else
                              (halves, None) if group == 64 else (bf16, "BF16"))
            second.layer(f"afq{bits}.{group}", 4, RNG.integers(0, 1 << 32, (3, words), dtype=np.uint32),
                         scales=(numbers(3, groups), dtype), biases=(numbers(3, groups), dtype),
                         bits=scalar(bits, np.uint8), group_size=scalar(group, np.uint8))
    second.layer("afq.experts", 4, RNG.integers(0, 1 << 32, (2, 3, 8), dtype=np.uint32), scales=halves(2, 3, 2),
                 biases=halves(2, 3, 2), bits=scalar(4, np.uint8), group_size=scalar(32, np.uint8))
    blocks = u8(8 * 33 * 33)  # every scale, and each code
    blocks.reshape(-1, 33)[:256, 0] = np.arange(256)
    second.layer("f8q8", 5, blocks, num_blocks=scalar(264, np.uint32), shape=shape(33, 256))
    second.layer("mxfp4", 6, u8(16 * 64 * 4).reshape(16, 256), scales=np.arange(256, dtype=np.uint8).reshape(16, 16))
    second.layer("mxfp4.experts", 6, u8(2 * 3 * 32).reshape(2, 3, 32), scales=u8(12).reshape(2, 3, 2))
    second.add("f8q8.bias", halves(33))
    residual.add("model.norm.weight", halves(8))
    first.write(os.path.join(OUT, "random", "m-0.uqff"))
    second.write(os.path.join(OUT, "random", "m-1.uqff"))
    residual.write(os.path.join(OUT, "random", "residual.safetensors"))
    with open(os.path.join(OUT, "random", "config.json"), "w") as file:
        file.write('{"model_type": "llama"}\n')
    # In one file, for tests/hostile/edits.rs; without what no value depends on.
    edits = File()
    for tensor in first.tensors + second.tensors:
        name = tensor[0]
        if not name.startswith(("plain.", "uqff.version.patch")) and (name.startswith("ggml.q4k.") or "ggml." not in name):
            edits.tensors.append(tensor)
    os.makedirs(os.path.join(OUT, "edits"))
    edits.write(os.path.join(OUT, "edits", "model.safetensors"))
    subprocess.run([sys.argv[1], "decode", os.path.join(OUT, "random.expected.safetensors"),
                    *(os.path.join(OUT, "random", f"m-{i}.uqff") for i in (0, 1))], check=True)
    os.makedirs(os.path.join(OUT, "isq"))
    residual.write(os.path.join(OUT, "isq", "residual.safetensors"))
    subprocess.run([sys.argv[1], "quantize", os.path.join(OUT, "isq", "m-0.uqff")], check=True)
    subprocess.run([sys.argv[1], "decode", os.path.join(OUT, "isq.expected.safetensors"),
                    os.path.join(OUT, "isq", "m-0.uqff")], check=True)


if __name__ == "__main__":
    main()

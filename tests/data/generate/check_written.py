"""Outputs of `amn convert --to pth`, `npy`, `npz`, `msgpack`, `gguf` and `safetensors` beside what torch, NumPy, Flax, gguf-py and the
library of safetensors read from them.

    pip install torch==2.15.0 numpy==2.4.6 safetensors==0.8.0 flax==0.12.8 gguf==0.19.0
    JAX_PLATFORMS=cpu python check_written.py target/release/amn

Burnpack and MessagePack are compared with the libraries' own bytes in tests/convert/written.rs.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from flax import serialization
from safetensors.torch import load_file, save_file

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
GGML = ["float64", "float32", "float16", "bfloat16", "int8", "int16", "int32", "int64"]
INTEGERS = ["int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64"]


def model():
    torch.manual_seed(0)
    tensors = {f"floats.{name}": torch.rand(3, 5).add(0.1).to(getattr(torch, name)) for name in FLOATS}
    tensors |= {f"integers.{name}": (torch.arange(300) % 100).to(getattr(torch, name)) for name in INTEGERS}
    tensors |= {"bool": torch.tensor([True, False]), "complex": torch.randn(2, 2).to(torch.complex64), "scalar": torch.tensor(2.5)}
    return tensors | {"empty": torch.zeros(0, 3), "deep.0.a.b": torch.randn(1, 2, 3, 4), "large": torch.randn(300, 301)}


def octets(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def main():
    amn, place = sys.argv[1], Path(tempfile.mkdtemp())
    tensors = model()
    foreign = ("floats.bf", "floats.float8")
    plain = {name: tensor for name, tensor in tensors.items() if not name.startswith(foreign)}
    save_file(tensors, place / "all.safetensors")
    save_file(plain, place / "plain.safetensors")

    def convert(source, to, output):
        subprocess.run([amn, "convert", place / source, "--to", to, "-o", place / output, "-q"], check=True)
        return place / output

    checkpoint = convert("all.safetensors", "pth", "all.pth")
    for mapped in (False, True):
        read = torch.load(checkpoint, weights_only=True, mmap=mapped)
        assert set(read) == set(tensors)
        for name, tensor in tensors.items():
            assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape and octets(read[name]) == octets(tensor), name
            assert read[name].stride() == tensor.stride() and (not mapped or read[name].data_ptr() % 64 == 0), name
    arrays = convert("plain.safetensors", "npy", "arrays")
    for name, tensor in plain.items():
        array = np.load(arrays / f"{name}.npy")
        assert array.dtype == tensor.numpy().dtype and array.shape == tuple(tensor.shape) and array.tobytes() == octets(tensor), name
    content = convert("all.safetensors", "msgpack", "all.msgpack").read_bytes()
    tree = serialization.msgpack_restore(content)
    assert serialization.msgpack_serialize(tree) == content
    for name, tensor in tensors.items():
        leaf = tree
        for key in name.split("."):
            leaf = leaf[key]
        assert leaf.shape == tuple(tensor.shape) and leaf.tobytes() == octets(tensor), name
    again = load_file(convert("all.pth", "safetensors", "again.safetensors"))
    assert set(again) == set(tensors)
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype and again[name].shape == tensor.shape and octets(again[name]) == octets(tensor), name
    archive = np.load(convert("plain.safetensors", "npz", "plain.npz"))
    assert set(archive) == set(plain)
    for name, tensor in plain.items():
        assert archive[name].dtype == tensor.numpy().dtype and archive[name].tobytes() == octets(tensor), name
    # ggml has no types for the others, and no tensors without values or dimensions.
    held = {name: tensor for name, tensor in tensors.items() if name.split(".")[-1] in GGML or name in ["deep.0.a.b", "large"]}
    save_file(held, place / "held.safetensors")
    reader = gguf.GGUFReader(convert("held.safetensors", "gguf", "held.gguf"))
    assert {t.name for t in reader.tensors} == set(held)
    for t in reader.tensors:
        assert tuple(t.shape[::-1]) == tuple(held[t.name].shape) and t.data.tobytes() == octets(held[t.name]), t.name
    count = 4 * len(tensors) + 2 * len(plain) + len(held)
    print(f"6 outputs, one of them twice: {count} tensors are read as they were")


main()

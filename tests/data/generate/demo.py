"""Puts the Ministral slice (slices/fp8/ministral_per_tensor.bin) into a model file: tests/data/demo.

python3 tests/data/generate/demo.py        Needs nothing but Python. The layout of slices is in slices/README.md.
"""
import json, struct
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent


def write(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, dtype, shape, content in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


slice_ = (DATA / "slices/fp8/ministral_per_tensor.bin").read_bytes()
_, scheme, scale_dtype, rows, cols, *lengths = struct.unpack_from("<9I", slice_, 4)
assert scheme == 1
at, blobs = 40, []
for length in lengths:
    blobs.append(slice_[at : at + length])
    at += length
weight, scale, bf16, f32 = blobs
name = "layers.0.attention.wq."
(DATA / "demo").mkdir(exist_ok=True)
write(DATA / "demo/model-fp8.safetensors", [
    (name + "weight_scale", ["F32", "BF16", "F16"][scale_dtype], [], scale),
    (name + "weight", "F8_E4M3", [rows, cols], weight),
])
write(DATA / "demo/expected-bf16.safetensors", [(name + "weight", "BF16", [rows, cols], bf16)])
write(DATA / "demo/expected-f32.safetensors", [(name + "weight", "F32", [rows, cols], f32)])

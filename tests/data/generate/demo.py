"""Puts slices of real models into model files, tests/data/demo: slices/fp8/ministral_per_tensor.bin as safetensors and
slices/gguf/smollm2_q4_k.bin as GGUF.

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


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


slice_ = (DATA / "slices/gguf/smollm2_q4_k.bin").read_bytes()
_, kind, elements, length, _, _ = struct.unpack_from("<6I", slice_, 4)
gguf = b"GGUF" + struct.pack("<IQQ", 3, 1, 2)
gguf += text("general.architecture") + struct.pack("<I", 8) + text("llama")
gguf += text("general.name") + struct.pack("<I", 8) + text("SmolLM2, a slice")
gguf += text("blk.0.ffn_up.weight") + struct.pack("<IQQIQ", 2, 256, elements // 256, kind, 0)
gguf += b"\0" * (-len(gguf) % 32)
(DATA / "demo/model-q4_k.gguf").write_bytes(gguf + slice_[28 : 28 + length])

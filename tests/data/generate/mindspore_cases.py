"""Checkpoints of MindSpore: `mindspore/` (files, and the tensors that `load_checkpoint` reads).

    pip install mindspore==2.10.0 numpy==2.4.6
    cd tests/data/generate && python -P mindspore_cases.py
"""

import json
import os
import shutil
from pathlib import Path

import mindspore as ms
import mindspore.train.serialization as serialization
import numpy as np
from mindspore import Tensor
from mindspore.train.checkpoint_pb2 import Checkpoint

HERE = Path(__file__).parent.parent / "mindspore"
TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bool", "bfloat16"]
TEXT = {"int8": "I8", "uint8": "U8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32", "int64": "I64", "uint64": "U64",
        "float16": "F16", "float32": "F32", "float64": "F64", "bool": "BOOL", "bfloat16": "BF16"}  # fmt: skip


def parameters():
    rng = np.random.default_rng(1)
    for kind in TYPES:
        yield f"layer.{kind}", Tensor(rng.integers(0, 2 if kind == "bool" else 100, (2, 3)), getattr(ms, kind if kind != "bool" else "bool_"))
    yield "scalar", Tensor(1.5, ms.float32)
    yield "one", Tensor([2.5], ms.float16)


def save_as(name, tensors, **options):
    path = HERE / name
    ms.save_checkpoint([{"name": n, "data": t} for n, t in tensors], str(path), **options)
    os.chmod(path, 0o644)
    return path


def read(path):
    """Shape, dtype and bytes of each tensor, by MindSpore."""
    for name, t in ms.load_checkpoint(str(path)).items():
        if isinstance(t, str):
            continue
        kind = str(t.dtype).lower().removesuffix("_")
        wide = t.astype(ms.float32).asnumpy() if kind == "bfloat16" else t.asnumpy()
        raw = (wide.view(np.uint32) >> 16).astype(np.uint16) if kind == "bfloat16" else wide
        yield name, TEXT[kind], list(t.shape), raw.tobytes()


def changed(name, change):
    checkpoint = Checkpoint()
    checkpoint.ParseFromString((HERE / "types.ckpt").read_bytes())
    change(checkpoint)
    (HERE / name).write_bytes(checkpoint.SerializeToString())


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    index = []
    save_as("types.ckpt", parameters())
    save_as("crc.ckpt", list(parameters())[:3], crc_check=True)
    save_as("appended.ckpt", list(parameters())[:1], append_dict={"epoch": 3, "lr": 0.5, "text": "x", "flag": True})
    # 1 KiB instead of 512 MiB.
    serialization.SLICE_SIZE = 1
    rng = np.random.default_rng(2)
    pieces = [("first", Tensor(rng.random((3, 7)), ms.float32)), ("large", Tensor(rng.random((30, 20)), ms.float32))]
    assert len(save_as("pieces.ckpt", pieces).read_bytes()) > 2400
    header, at, data = {}, 0, b""
    for path in sorted(HERE.iterdir()):
        index.append({"file": path.name, "expect": "ok", "detail": ""})
        for name, kind, shape, raw in read(path):
            header[f"{path.stem}/{name}"] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(raw)]}
            at, data = at + len(raw), data + raw
    header["__metadata__"] = {"files": json.dumps([case["file"].split(".")[0] for case in index])}
    save_as("encrypted.ckpt", list(parameters())[:1], enc_key=b"0123456789abcdef", enc_mode="AES-GCM")
    broken = bytearray((HERE / "crc.ckpt").read_bytes())
    broken[60] ^= 1
    (HERE / "broken.ckpt").write_bytes(broken)
    try:
        ms.load_checkpoint(str(HERE / "broken.ckpt"), crc_check=True)
        raise SystemExit("MindSpore reads it")
    except ValueError:
        pass
    changed("map.ckpt", lambda c: c.value[0].maptensor.tensor.add(tensor_type="Int8", tensor_content=b""))
    for name, detail in [("encrypted", "a key"), ("broken", "its checksum"), ("map", "MapParameter")]:
        index.append({"file": f"{name}.ckpt", "expect": "error", "detail": detail})
    (HERE / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (HERE / "expected.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    shutil.rmtree("rank_0", ignore_errors=True)


main()

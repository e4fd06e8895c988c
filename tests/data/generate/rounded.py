"""Removes goldens that say nothing more than others: `expected-bf16` and `expected-f16` that are `expected-f32` rounded once to
nearest even. Tests round `expected-f32` where a case has no such file.

Run last, after check.py: `python rounded.py`. numpy.
"""

import json
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parent.parent
FAMILIES = ["fp8", "nvfp4", "bnb", "gptq", "awq", "gguf"]
# Read by name, in docs/cli.md.
KEPT = [DATA / "gptq/b4_v1_act_order/expected-bf16.safetensors"]


def load(path):
    file = path.read_bytes()
    length = int.from_bytes(file[:8], "little")
    header, data = json.loads(file[8 : 8 + length]), file[8 + length :]
    header.pop("__metadata__", None)
    return {n: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for n, t in header.items()}


def rounded(data, dtype):
    """The bits of F32 values in `dtype`, and which of them are NaN."""
    bits = np.frombuffer(data, "<u4")
    values = bits.view("<f4")
    if dtype == "BF16":
        out = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    else:
        with np.errstate(all="ignore"):
            out = values.astype("<f2").view("<u2")
    return out, np.isnan(values)


def is_same(f32, got, dtype, stored):
    """Whether tensor `got` is `f32` rounded. What is no F32, or is stored in it, stays."""
    if f32[0] != "F32" or stored == f32 or got[0] == "F32":
        return f32 == got
    if got[:2] != (dtype, f32[1]):
        return False
    want, is_nan = rounded(f32[2], dtype)
    bits = np.frombuffer(got[2], "<u2")
    got_nan = (bits & 0x7FFF) > (0x7F80 if dtype == "BF16" else 0x7C00)
    return bool(np.all(np.where(is_nan, got_nan, want == bits)))


for f32_path in sorted(p for family in FAMILIES for p in (DATA / family).glob("*/expected-f32.safetensors")):
    model = f32_path.with_name("model.safetensors")
    f32, stored = load(f32_path), load(model) if model.exists() else {}
    for dtype in ["BF16", "F16"]:
        path = f32_path.with_name(f"expected-{dtype.lower()}.safetensors")
        if not path.exists() or path in KEPT:
            continue
        got = load(path)
        if set(got) == set(f32) and all(is_same(f32[n], got[n], dtype, stored.get(n)) for n in f32):
            path.unlink()

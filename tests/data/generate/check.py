"""Loads every golden case with the safetensors library and checks that its files agree with each other.

Run: `python check.py [family ...]` (default: fp8 nvfp4 bnb).
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

DATA = Path(__file__).resolve().parent.parent
TARGETS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def raw(t):
    return t.contiguous().reshape(-1).view(torch.uint8)


def equal(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    nan = a.isnan()
    return torch.equal(nan, b.isnan()) and torch.equal(raw(a[~nan]), raw(b[~nan]))


def check(case):
    source = load_file(case / "model.safetensors")
    out = {d: load_file(case / f"expected-{d}.safetensors") for d in TARGETS}
    f32 = out["f32"]
    files = {"model.safetensors", *(f"expected-{d}.safetensors" for d in TARGETS)}
    if (case / "config.json").exists():
        json.loads((case / "config.json").read_text())
        files.add("config.json")
    assert {f.name for f in case.iterdir()} == files, "stray files"
    kept = {k for k in f32 if k in source and source[k].dtype == f32[k].dtype == out["f16"][k].dtype == out["bf16"][k].dtype}
    assert set(f32) - kept, "nothing is dequantized"
    for d, dtype in TARGETS.items():
        assert set(out[d]) == set(f32), "different tensors"
        for name, t in out[d].items():
            if name in kept:
                assert torch.equal(raw(t), raw(source[name])) and t.shape == source[name].shape, name
            else:
                assert t.dtype == dtype and equal(t, f32[name].to(dtype)), name
    dropped = sorted(set(source) - set(f32))
    return len(f32) - len(kept), len(kept), len(dropped), sum(f.stat().st_size for f in case.iterdir())


def main():
    total = 0
    for family in sys.argv[1:] or ["fp8", "nvfp4", "bnb"]:
        for case in sorted(p for p in (DATA / family).iterdir() if p.is_dir()):
            dequantized, kept, dropped, size = check(case)
            total += size
            print(f"{family}/{case.name}: {dequantized} dequantized, {kept} kept, {dropped} companions, {size} bytes")
    print(f"ok, {total} bytes")


if __name__ == "__main__":
    main()

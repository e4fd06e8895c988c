"""Golden encodings by hqq 0.2.8 on CPU (`HQQLinear`, with its optimiser); transformers 5.24.0 says what the config has.

Usage: see ../README.md. Writes ../hqq_encode/<case>.safetensors: `original`, and what hqq stores of it as module `m`.
"""

import os
import sys
from pathlib import Path

os.environ["ATEN_CPU_CAPABILITY"] = "avx2"

import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from transformers import HqqConfig

from int_encode import BF16, F16, F32, LABEL, rng_for, save, weights

OUT = Path(__file__).resolve().parent.parent / "hqq_encode"


def encode(w, bits, group):
    linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    linear.weight.data = w.clone()
    layer = HQQLinear(linear, BaseQuantizeConfig(nbits=bits, group_size=group, axis=1), compute_dtype=w.dtype, device="cpu")
    return {f"m.{k}": v.detach() for k, v in layer.state_dict().items()}


def case(name, shape, dtype, bits, group, spread=None):
    w = weights(rng_for(name), *shape, dtype)
    if spread is not None:  # ordinary weights
        w = (torch.randn(shape, generator=rng_for(name)) * spread).to(dtype)
    config = HqqConfig(nbits=bits, group_size=group).to_dict()
    save(OUT, name, w, encode(w, bits, group), dict(method="hqq", bits=bits, group=group), config, "hqq 0.2.8")


def main():
    torch.set_num_threads(1)
    assert torch.backends.cpu.get_cpu_capability() == "AVX2"
    OUT.mkdir(exist_ok=True)
    for path in OUT.iterdir():
        path.unlink()
    order = [BF16, F16, F32]
    for i, bits in enumerate((2, 3, 4, 8)):
        for j, group in enumerate((32, 64, 128)):
            dtype = order[(i + j) % 3]
            case(f"b{bits}_g{group}_{LABEL[dtype]}", (24, 128), dtype, bits, group)
        case(f"b{bits}_g64_plain", (32, 128), BF16, bits, 64, 0.02)
        case(f"b{bits}_g64_f32_wide", (32, 128), F32, bits, 64, 2.0)
        # Groups that no row ends with, and sums of some vectors and of a rest.
        case(f"b{bits}_g64_across", (24, 96), F32, bits, 64, 0.1)
        case(f"b{bits}_g8", (10, 32), BF16, bits, 8)
        case(f"b{bits}_g1000", (8, 1000), F16, bits, 1000, 0.3)
    print(sum(f.stat().st_size for f in OUT.iterdir()), "bytes in", len(list(OUT.iterdir())), "files")


if __name__ == "__main__":
    sys.exit(main())

"""Golden encodings by mlx 0.32.4 on CPU: `mx.quantize` of every width and group of the affine mode, and of the
floating-point modes. mlx-lm 0.32.2 says what the config has.

Usage: see ../README.md. Writes ../mlx_encode/<case>.safetensors: `original`, and what mlx stores of it as module `m`.
"""

import sys
from pathlib import Path

import ml_dtypes  # noqa: F401
import mlx.core as mx
import numpy as np
import torch

from int_encode import BF16, F16, F32, LABEL, rng_for, save, weights

OUT = Path(__file__).resolve().parent.parent / "mlx_encode"
MODES = {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}


def to_torch(a):
    if a.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(a.view(mx.uint16)).view(np.int16)).view(BF16)
    return torch.from_numpy(np.array(a))


def to_mx(t):
    if t.dtype == BF16:
        return mx.array(t.contiguous().view(torch.int16).numpy().view(np.uint16)).view(mx.bfloat16)
    return mx.array(t.contiguous().numpy())


def encode(w, group, bits, mode):
    names = ("weight", "scales", "biases") if mode == "affine" else ("weight", "scales")
    return {f"m.{n}": to_torch(a) for n, a in zip(names, mx.quantize(to_mx(w), group, bits, mode=mode))}


def quantization(group, bits, mode):
    """What mlx-lm adds to a config when it quantizes a model."""
    import mlx.nn as nn
    from mlx_lm.utils import quantize_model

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.m, self.small = nn.Linear(128, 32), nn.Linear(8, 32)

    return quantize_model(Model(), {}, group, bits, mode)[1]["quantization"]


def case(out, name, shape, dtype, group, bits, mode="affine"):
    w = weights(rng_for(name), int(np.prod(shape[:-1])), shape[-1], dtype).reshape(shape)
    encoder = dict(method="mlx", bits=bits, group=group, mode=mode)
    save(out, name, w, encode(w, group, bits, mode), encoder, quantization(group, bits, mode), "mlx 0.32.4")


def main():
    assert mx.__version__ == "0.32.4", mx.__version__
    OUT.mkdir(exist_ok=True)
    for path in OUT.iterdir():
        path.unlink()
    order = [BF16, F16, F32]
    for i, bits in enumerate((2, 3, 4, 5, 6, 8)):
        for j, group in enumerate((32, 64, 128)):
            dtype = order[(i + j) % 3]
            case(OUT, f"b{bits}_g{group}_{LABEL[dtype]}", (20, 128), dtype, group, bits)
    for dtype in order:
        case(OUT, f"b4_g64_stack_{LABEL[dtype]}", (2, 10, 64), dtype, 64, 4)
        for mode, (group, bits) in MODES.items():
            case(OUT, f"{mode}_{LABEL[dtype]}", (20, 64), dtype, group, bits, mode)
    print(sum(f.stat().st_size for f in OUT.iterdir()), "bytes in", len(list(OUT.iterdir())), "files")


if __name__ == "__main__":
    sys.exit(main())

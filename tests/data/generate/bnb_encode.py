"""Weights and what bitsandbytes quantizes them to on a CPU, on one thread.

Run: `python bnb_encode.py` (see ../README.md). It rewrites `../bnb_encode/*`: `input.safetensors` holds weights whose
names say the case, `expected.safetensors` what `Linear4bit` and `Linear8bitLt` save of them.
"""

import sys

sys.dont_write_bytecode = True

from fp8 import BF16, DATA, F16, F32, U8, bits

import bitsandbytes
import numpy as np
import torch
from bitsandbytes import functional as F
from bitsandbytes.backends.default.ops import _get_4bit_quantize_bounds
from safetensors.torch import save_file

torch.set_num_threads(1)  # a mean of more than 32768 scales depends on the number
RNG = torch.Generator().manual_seed(64)
INPUT, EXPECTED = {}, {}


def randn(*shape, scale=0.05):
    return torch.randn(*shape, generator=RNG) * scale


def four(kind, block, nested, what, weight):
    name = f"{kind}-{block}-{'double' if nested else 'plain'}-{what}.weight"
    assert name not in INPUT
    INPUT[name] = weight.clone()
    packed, state = F.quantize_4bit(weight.clone(), blocksize=block, compress_statistics=nested, quant_type=kind)
    EXPECTED[name] = packed
    EXPECTED.update({f"{name}.{k}": v.clone() for k, v in state.as_dict(packed=True).items()})
    # Values that are widened first give the same.
    wide, state = F.quantize_4bit(weight.float(), blocksize=block, compress_statistics=nested, quant_type=kind)
    assert torch.equal(packed, wide) and torch.equal(bits(state.absmax), bits(EXPECTED[name + ".absmax"]))
    if weight.dim() == 2 and block == 64:
        n, k = weight.shape
        layer = bitsandbytes.nn.Linear4bit(k, n, bias=False, quant_type=kind, compress_statistics=nested)
        layer.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, quant_type=kind, blocksize=block,
                                                  compress_statistics=nested, module=layer)
        layer = layer.to("cpu")
        layer.weight._quantize("cpu") if not layer.weight.bnb_quantized else None
        prefix = name.removesuffix("weight")
        for k, v in layer.state_dict().items():
            assert torch.equal(bits(v.data.as_subclass(torch.Tensor)), bits(EXPECTED[prefix + k])), prefix + k


def eight(what, weight):
    name = f"int8-{what}"
    INPUT[name + ".weight"] = weight.clone()
    n, k = weight.shape
    layer = bitsandbytes.nn.Linear8bitLt(k, n, bias=False, has_fp16_weights=False)
    layer.weight = bitsandbytes.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    layer = layer.to("cpu")
    state = {k: v.data.as_subclass(torch.Tensor) for k, v in layer.state_dict().items()}
    assert set(state) == {"weight", "SCB", "weight_format"} and state["weight"].dtype == torch.int8
    EXPECTED.update({f"{name}.{k}": v for k, v in state.items()})


def near_bounds(kind):
    """Values around every bound, in blocks whose largest magnitude is an odd number, tiny, huge or denormal."""
    bounds = _get_4bit_quantize_bounds(kind, torch.device("cpu"))[0].numpy()
    rows = []
    for scale in (1.0, 0.7531, 3e-5, 1e30, 3.4028235e38, 1.2e-38, 1e-38, 9e-39, 1e-40, 1.4e-45):
        for ulps in (-2, -1, 0, 1, 2):
            x = bounds.astype(np.float32) * np.float32(scale)
            for _ in range(abs(ulps)):
                x = np.nextafter(x, np.float32(np.inf if ulps > 0 else -np.inf))
            row = np.zeros(32, np.float32)
            row[0], row[1:16], row[16], row[17] = scale, x, -scale, -0.0
            rows.append(row)
    return torch.from_numpy(np.stack(rows))


def zeros_at_end(*shape, n):
    w = randn(*shape)
    w.view(-1)[-n:] = 0
    return w


for kind in ("nf4", "fp4"):
    w = randn(48, 64).to(BF16)
    w[2], w[5, 7] = 0, 3.0
    for nested in (False, True):
        four(kind, 64, nested, "bf16", w)
        four(kind, 64, nested, "across_rows", randn(40, 72))
        four(kind, 64, nested, "odd", randn(7, 33).to(F16))
        four(kind, 64, nested, "zero_tail", zeros_at_end(3, 30, n=26))
        four(kind, 64, nested, "few", randn(1, 5))
        four(kind, 64, nested, "one", torch.tensor([[-0.25]]))
        four(kind, 64, nested, "zeros", torch.zeros(2, 64))
        four(kind, 64, nested, "constant", torch.full((2, 64), 0.3))
    for block in (32, 128, 256, 512, 1024, 2048, 4096):
        rows = 41 if block > 1024 else 9 if block > 256 else 5
        four(kind, block, False, "f16", randn(rows, 121, scale=0.02).to(F16))
    four(kind, 32, False, "bounds", near_bounds(kind))
    four(kind, 32, True, "nested_blocks", (randn(80, 120) * torch.rand(80, 1, generator=RNG)).to(BF16))
    four(kind, 32, True, "whole_nested_blocks", randn(16, 1024).to(BF16))
    four(kind, 128, True, "heavy", (randn(40, 96) / torch.rand(40, 96, generator=RNG)).to(BF16))
    four(kind, 32, True, "tiny_offset", randn(8, 64, scale=1e-20).to(BF16))
    four(kind, 32, True, "large_offset", randn(8, 64, scale=1e20).to(BF16))

w = randn(24, 40).to(BF16)
w[3], w[4], w[5, 1] = 0, w[4] * 1e-5, 7.0
eight("bf16", w)
eight("f16", randn(9, 33).to(F16))
eight("f32", randn(17, 300, scale=3.0))
ties = (torch.arange(-127, 128) / 2).repeat(3, 1)  # half-way codes for a scale of 127, exact and not
ties[:, 0] = 127.0
ties[1] /= 1024.0
ties[2, 0] = 126.0
eight("ties", ties)
eight("extremes", torch.tensor([[65504.0, -65504.0, 1e-7, 6e-8], [3e-8, 2.9e-8, 1e-30, -0.0], [6e-8, -6e-8, 0.0, 1e-7]]))

(DATA / "bnb_encode").mkdir(exist_ok=True)
save_file(INPUT, DATA / "bnb_encode/input.safetensors")
save_file({k: v.contiguous() for k, v in EXPECTED.items()}, DATA / "bnb_encode/expected.safetensors")
print(len(INPUT), "weights")

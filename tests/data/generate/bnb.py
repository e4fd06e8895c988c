"""Golden bitsandbytes files, made and decoded by bitsandbytes itself (CPU).

Run: `python bnb.py` (see ../README.md). It rewrites `../bnb/*`.
"""

import math
import sys

sys.dont_write_bytecode = True

from fp8 import BF16, F16, F32, TARGETS, U8, Case, bits, same

import bitsandbytes
import torch
from bitsandbytes import functional as F
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from safetensors.torch import load_file

L = "model.layers.0."
DOWN = L + "mlp.down_proj"


def parts4(base, packed, state):
    """The names `Linear4bit._save_to_state_dict` writes."""
    return {base + ".weight": packed} | {f"{base}.weight.{k}": v for k, v in state.as_dict(packed=True).items()}


def state_of(tensors, name):
    prefix = name + "."
    own = {k.removeprefix(prefix): v.clone() for k, v in tensors.items() if k.startswith(prefix)}
    return F.QuantState.from_dict(own, torch.device("cpu"))


def decode4(tensors, name, dtype=F32):
    """`dequantize_4bit` on what the file holds, in the requested dtype, shaped as quant_state says."""
    state = state_of(tensors, name)
    state.dtype = dtype
    packed = tensors[name]
    out = F.dequantize_4bit(packed, state)
    n = math.prod(state.shape)
    if packed.shape[0] == 1:  # a lone byte comes back transposed
        out = out.t()
    return out.reshape(-1)[:n].reshape(state.shape).contiguous()


def decode4_generic(tensors, name):
    """The formula in torch (bitsandbytes' backend for devices without a kernel), and the codes it read."""
    state = state_of(tensors, name)
    absmax = state.absmax
    if state.nested:
        s2 = state.state2
        code, n = s2.code[absmax.long()], absmax.numel()
        absmax = code * s2.absmax.repeat_interleave(s2.blocksize)[:n] + state.offset
    packed = tensors[name].contiguous().view(U8).reshape(-1)
    n = math.prod(state.shape)
    codes = torch.stack([packed >> 4, packed & 15], 1).reshape(-1)[:n].reshape(state.shape)
    out = _dequantize_4bit_compute(packed, absmax, state.code, state.blocksize, state.shape, F32)
    return out.reshape(state.shape), codes


def add4(c, base, parts):
    name = base + ".weight"
    c.add(parts)
    c.expect(name, decode4(parts, name))
    c.direct(name, lambda d: decode4(parts, name, d), "bitsandbytes dequantize_4bit")
    generic, codes = decode4_generic(parts, name)
    got, negative_zero = c.expected[name], codes == 8
    if state_of(parts, name).quant_type == "fp4" and got.shape[-1] % 2 == 0:
        # Its C++ kernel decodes FP4 code 8 to -0.0; quant_map and the torch fallback say +0.0.
        generic = torch.where(negative_zero & (generic == 0), -generic, generic)
        count = int(negative_zero.sum())
        if count:
            c.notes.append(f"{name}: {count} FP4 codes 8, decoded with the sign of -0.0")
    elif state_of(parts, name).quant_type == "fp4":
        assert not negative_zero.any(), "the fallback for odd rows and the kernels differ here"
    assert same(got, generic), (c.dir.name, int((bits(got) != bits(generic)).sum()))


def linear4(c, base, weight, quant_type, nested, blocksize=64, storage=U8, bias=None):
    """Through `Linear4bit`'s own parameter and state_dict."""
    n, k = weight.shape
    layer = bitsandbytes.nn.Linear4bit(k, n, bias=bias is not None, quant_type=quant_type, compress_statistics=nested,
                                       quant_storage=storage)
    layer.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, quant_type=quant_type, blocksize=blocksize,
                                              compress_statistics=nested, quant_storage=storage, module=layer)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias, requires_grad=False)
    layer = layer.to("cpu")
    layer.weight._quantize("cpu") if not layer.weight.bnb_quantized else None
    saved = {f"{base}.{k}": v.data if isinstance(v, torch.nn.Parameter) else v for k, v in layer.state_dict().items()}
    if bias is not None:
        c.keep(base + ".bias", saved.pop(base + ".bias"))
    saved = {k: v.as_subclass(torch.Tensor) for k, v in saved.items()}
    plain, state = F.quantize_4bit(weight, blocksize=blocksize, compress_statistics=nested, quant_type=quant_type,
                                   quant_storage=storage)
    expect = parts4(base, plain, state)
    assert set(expect) == set(saved) and all(same_bytes(expect[k], saved[k]) for k in expect)
    add4(c, base, saved)


def same_bytes(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.contiguous().reshape(-1).view(U8), b.contiguous().reshape(-1).view(U8)
    )


def weight(c, *shape, dtype=BF16, zeros=True):
    w = c.randn(*shape, scale=0.05)
    if zeros:
        w.view(-1)[128:192] = 0  # a block whose absmax is 0
    return w.to(dtype)


def linear_cases():
    for name, shape, kw in [
        ("nf4", (48, 64), dict(quant_type="nf4", nested=False)),
        ("fp4", (48, 64), dict(quant_type="fp4", nested=False)),
        ("nf4_double_quant", (48, 64), dict(quant_type="nf4", nested=True)),
        ("fp4_double_quant", (48, 64), dict(quant_type="fp4", nested=True)),
        ("nf4_double_quant_two_blocks", (80, 120), dict(quant_type="nf4", nested=True, blocksize=32)),
        ("nf4_blocksize_128", (40, 64), dict(quant_type="nf4", nested=False, blocksize=128)),
        ("fp4_blocksize_256", (40, 64), dict(quant_type="fp4", nested=False, blocksize=256)),
        ("nf4_partial", (33, 50), dict(quant_type="nf4", nested=False)),
        ("fp4_partial", (33, 50), dict(quant_type="fp4", nested=False)),
        ("nf4_partial_double_quant", (33, 50), dict(quant_type="nf4", nested=True)),
        ("nf4_storage_bf16", (48, 64), dict(quant_type="nf4", nested=False, storage=BF16)),
        ("nf4_storage_f16", (36, 50), dict(quant_type="nf4", nested=False, storage=F16)),
        ("nf4_storage_f32", (48, 64), dict(quant_type="nf4", nested=True, storage=F32)),
    ]:
        c = Case("bnb", name)
        dtype = {"nf4": BF16, "fp4": F16, "nf4_double_quant": F16, "fp4_double_quant": F32}.get(name, BF16)
        bias = c.randn(shape[0], scale=0.02).to(BF16) if name in ("nf4", "fp4_double_quant") else None
        linear4(c, DOWN, weight(c, *shape, dtype=dtype), bias=bias, **kw)
        c.norm(shape[1])
        if name == "nf4":
            c.bias(9)
        c.write()


def shape_cases():
    for name, shape, quant_type, nested in [
        ("nf4_odd", (7, 9), "nf4", False),
        ("nf4_odd_double_quant", (13, 15), "nf4", True),
        ("fp4_odd", (7, 9), "fp4", False),
        ("nf4_odd_columns", (34, 9), "nf4", False),
        ("nf4_1d", (130,), "nf4", False),
        ("nf4_3d", (4, 6, 10), "nf4", False),
        ("fp4_3d_double_quant", (4, 6, 14), "fp4", True),
    ]:
        c = Case("bnb", name)
        w = weight(c, *shape, zeros=False)
        if name == "fp4_odd":  # away from zero: no code 8, on which the fallback and the kernels disagree
            w = torch.where(w.abs() < 0.01, torch.full_like(w, 0.03), w)
        packed, state = F.quantize_4bit(w, compress_statistics=nested, quant_type=quant_type)
        base = L + "mlp.experts.down_proj" if len(shape) == 3 else DOWN
        add4(c, base, parts4(base, packed, state))
        c.norm(8)
        c.write()


def hostile_cases():
    odd = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45, -1e-40, 3.4e38, -3e38, 1.17549435e-38, 65520.0,
           131040.0, 6e-8, 2.0**-133, -0.37, 1e-38]
    for quant_type in ("nf4", "fp4"):
        c = Case("bnb", quant_type + "_hostile")
        packed, state = F.quantize_4bit(weight(c, 16, 64), quant_type=quant_type)
        # Each block of 64 holds each code four times.
        codes = torch.stack([torch.randperm(64, generator=c.rng) % 16 for _ in range(16)]).to(U8).view(-1, 2)
        packed = (codes[:, 0] << 4 | codes[:, 1]).view(packed.shape)
        state.absmax = torch.tensor(odd)
        add4(c, DOWN, parts4(DOWN, packed, state))
        # A double-quantized one with every absmax byte and a huge, a zero and a negative second-level absmax.
        base = L + "mlp.up_proj"
        packed, state = F.quantize_4bit(weight(c, 90, 90), blocksize=32, compress_statistics=True, quant_type=quant_type)
        packed = c.bytes(*packed.shape)
        assert state.absmax.numel() == 254 and state.state2.absmax.numel() == 1
        state.absmax = torch.randperm(256, generator=c.rng)[:254].to(U8)
        state.state2.absmax = torch.tensor([-2.7e5])
        add4(c, base, parts4(base, packed, state))
        c.norm(64)
        c.write()

    c = Case("bnb", "nf4_zeros")  # nothing but zeros: full blocks keep absmax 0, the partial one gets 1e-38
    for proj, nested in [("up_proj", False), ("gate_proj", True)]:
        base = f"{L}mlp.{proj}"
        packed, state = F.quantize_4bit(torch.zeros(5, 42), compress_statistics=nested, quant_type="nf4")
        add4(c, base, parts4(base, packed, state))
    c.norm(42)
    c.write()


def int8_cases():
    def add8(c, base, parts):
        c.add({f"{base}.{k}": v for k, v in parts.items()})
        c.expect(base + ".weight", F.int8_vectorwise_dequant(parts["weight"], parts["SCB"]))

    c = Case("bnb", "int8")
    w = weight(c, 37, 50, dtype=F16)
    w[3] = 0  # SCB 0
    layer = bitsandbytes.nn.Linear8bitLt(50, 37, bias=True, has_fp16_weights=False)
    layer.weight = bitsandbytes.nn.Int8Params(w, requires_grad=False, has_fp16_weights=False)
    layer.bias = torch.nn.Parameter(c.randn(37, scale=0.02).to(F16), requires_grad=False)
    layer.weight._quantize("cpu")
    parts = {k: v.detach().as_subclass(torch.Tensor) for k, v in layer.state_dict().items()}
    codes, scb, _ = F.int8_vectorwise_quant(w)
    assert set(parts) == {"weight", "SCB", "weight_format", "bias"} and parts["weight_format"].shape == ()
    assert torch.equal(codes, parts["weight"]) and torch.equal(scb, parts["SCB"])
    c.keep(DOWN + ".bias", parts.pop("bias"))
    add8(c, DOWN, parts)
    c.norm(50)
    c.bias(9)
    c.write()

    c = Case("bnb", "int8_hostile")
    scb = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45, -1e-40, 3.4e38, 2.7e36, 2.68e36, 65504.0, 65536.0,
           1.17549435e-38, 2.0**-24, 1.7e-38, 0.1, 3.0, 0.0123456789]
    codes = c.all_bytes(len(scb), 256).view(torch.int8)
    add8(c, DOWN, {"weight": codes, "SCB": torch.tensor(scb), "weight_format": torch.tensor(0, dtype=U8)})
    c.norm(256)
    c.write()


def reread():
    """Decodes every 4-bit tensor again from the files on disk."""
    from fp8 import DATA

    for directory in sorted((DATA / "bnb").iterdir()):
        tensors = load_file(directory / "model.safetensors")
        for name in [k.removesuffix(".absmax") for k in tensors if k.endswith(".weight.absmax")]:
            for d, dtype in TARGETS.items():
                want = load_file(directory / f"expected-{d}.safetensors")[name]
                assert same(decode4(tensors, name, dtype), want), (directory.name, name, d)


if __name__ == "__main__":
    linear_cases()
    shape_cases()
    hostile_cases()
    int8_cases()
    reread()

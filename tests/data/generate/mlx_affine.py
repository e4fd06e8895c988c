"""Golden MLX files, one weight each: every width and group of the affine mode, the floating-point modes, odd configs.

Usage: see ../README.md. Packed and decoded by mlx on CPU; mlx_models.py adds whole models made by mlx-lm.
"""

import shutil
import sys
import types

import mlx.core as mx
import ml_dtypes
import numpy as np
import torch
from mlx_lm.utils import infer_quant_config

from fp8 import BF16, DATA, F16, F32, same
from gptq import HOSTILE
from layout import LABEL, Layout, differs

MX = {F32: mx.float32, BF16: mx.bfloat16, F16: mx.float16}
NUMPY = {F32: np.float32, BF16: ml_dtypes.bfloat16, F16: np.float16}
MODES = {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
Q_PROJ = "model.layers.0.self_attn.q_proj"


def to_torch(a):
    if a.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(a.view(mx.uint16)).view(np.int16)).view(BF16)
    return torch.from_numpy(np.array(a))


def to_mx(t):
    if t.dtype == BF16:
        return mx.array(t.contiguous().view(torch.int16).numpy().view(np.uint16)).view(mx.bfloat16)
    return mx.array(t.contiguous().numpy())


def parts(weight, group, bits, mode="affine", global_scale=None):
    """The tensors that mlx stores of one weight, by the end of their names."""
    out = mx.quantize(to_mx(weight), group, bits, mode=mode, global_scale=global_scale)
    names = ("weight", "scales", "biases") if mode == "affine" else ("weight", "scales")
    return dict(zip(names, map(to_torch, out)))


def decode(p, group, bits, mode="affine", dtype=None):
    """mlx's own decoder. Affine: in the dtype of the scales, which are cast to `dtype` before."""
    s, b = p["scales"], p.get("biases")
    if mode == "affine":
        dtype = dtype or s.dtype
        out = mx.dequantize(to_mx(p["weight"]), to_mx(s.to(dtype)), to_mx(b.to(dtype)), group, bits)
        out = to_torch(out)
        assert out.dtype == dtype and same(out, formula(p, group, bits, dtype))
        return out
    if "global_scale" in p and p["global_scale"].dim() == 1:  # mlx takes a scalar only: expert by expert
        return torch.stack([decode({k: v[e] for k, v in p.items()}, group, bits, mode, dtype)
                            for e in range(len(p["weight"]))])
    g = to_mx(p["global_scale"]) if "global_scale" in p else None
    return to_torch(mx.dequantize(to_mx(p["weight"]), to_mx(s), None, group, bits, mode, g, MX[dtype or BF16]))


def formula(p, group, bits, dtype):
    """A second opinion by numpy: codes are a little-endian bit stream of each row; T(T(q * scale) + bias)."""
    words = p["weight"].numpy()
    stream = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
    q = (stream.reshape(*words.shape[:-1], -1, bits) << np.arange(bits)).sum(-1)
    s, b = (to_numpy(p[n].to(dtype)).repeat(group, -1) for n in ("scales", "biases"))
    with np.errstate(all="ignore"):
        out = (q.astype(NUMPY[dtype]) * s).astype(NUMPY[dtype]) + b
    return torch.from_numpy(out.view(np.int16)).view(BF16) if dtype == BF16 else torch.from_numpy(out)


def to_numpy(t):
    return t.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16) if t.dtype == BF16 else t.numpy()


def llama(quantization, double=True):
    """A config as mlx-lm saves it: sorted, the settings twice. Old ones have them once."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization": quantization}
    if double:
        config["quantization_config"] = quantization
    return config


def settings(group, bits, mode="affine"):
    return {"group_size": group, "bits": bits, "mode": mode}


def case(name, quantization, double=True):
    return Layout("mlx", name, quantization and llama(quantization, double), "mlx")


def put(c, module, p, group, bits, mode="affine"):
    """One quantized module and what it decodes to."""
    c.add({f"{module}.{k}": v for k, v in p.items()})
    if mode == "affine":
        c.decoded(f"{module}.weight", decode(p, group, bits, dtype=F32), decode(p, group, bits))
    else:
        f32, own = (decode(p, group, bits, mode, d) for d in (F32, BF16))
        c.decoded(f"{module}.weight", f32, own)


def weight(c, n, k, dtype, *stack):
    return (c.randn(*stack, n, k, scale=0.2) + 0.05 * c.randn(*stack, n, 1)).to(dtype)


def affine(bits, group, dtype):
    c = case(f"b{bits}_g{group}_{LABEL[dtype]}", settings(group, bits))
    put(c, Q_PROJ, parts(weight(c, 4, 256, dtype), group, bits), group, bits)
    c.keep(f"{Q_PROJ}.bias", c.randn(4, scale=0.1).to(dtype))  # the layer's own bias, beside `biases`
    c.write()


def hostile(bits, group, dtype):
    """Random codes under scales and biases that break naive arithmetic."""
    c = case(f"hostile_b{bits}_{LABEL[dtype]}", settings(group, bits))
    values = HOSTILE[dtype]
    n, groups = len(values), 2
    p = parts(torch.rand(n, groups * group, generator=c.rng).to(dtype), group, bits)
    view = {4: torch.int32, 2: torch.int16}[dtype.itemsize]
    unsigned = {4: np.uint32, 2: np.uint16}[dtype.itemsize]
    table = torch.from_numpy(np.array(values, unsigned).view({4: np.int32, 2: np.int16}[dtype.itemsize]).copy())
    ones = torch.full((n,), 1.0, dtype=dtype).view(view)
    # the patterns as scales with a plain bias; as scales with another pattern as bias
    p["scales"] = torch.stack([table, table], 1).view(dtype)
    p["biases"] = torch.stack([ones, table.roll(3)], 1).view(dtype)
    put(c, Q_PROJ, p, group, bits)
    c.write()


def floating(name, mode, dtype=BF16, double=True):
    group, bits = MODES[mode]
    c = case(name, settings(group, bits, mode), double)
    put(c, Q_PROJ, parts(weight(c, 16, 128, dtype), group, bits, mode), group, bits, mode)
    c.norm(128)
    c.write()


def all_scales(mode):
    """Every byte as scale, of random codes; each row begins with codes that matter."""
    group, bits = MODES[mode]
    c = case(f"{mode}_all_scales", settings(group, bits, mode))
    rows = 32
    codes = c.bytes(rows, 256 // rows * group * bits // 8)
    start = [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] if bits == 4 else [0, 1, 7, 8, 0x7E, 0x7F, 0xFF, 0x80]
    codes[:, :8] = torch.tensor(start, dtype=torch.uint8)
    scales = torch.arange(256, dtype=torch.uint8).reshape(-1, rows).t().contiguous()
    p = {"weight": torch.from_numpy(codes.numpy().view(np.uint32)), "scales": scales}
    put(c, Q_PROJ, p, group, bits, mode)
    f16 = decode(p, group, bits, mode, F16)
    want = c.expected[f"{Q_PROJ}.weight"].to(F16)
    if not same(f16, want):
        c.notes.append(f"mlx in F16 (casts the scale first): {differs(f16, want)}")
    c.write()


def global_scale():
    """nvfp4 under a scale of the whole weight, as mlx has it, of each expert, as mlx-lm has it; mlx answers in F32."""
    group, bits = MODES["nvfp4"]
    quantization = settings(group, bits, "nvfp4")
    experts = "model.layers.0.mlp.switch_mlp.gate_proj"
    quantization[experts] = settings(group, bits, "nvfp4") | {"global_scale": True}
    c = case("nvfp4_global_scale", quantization)
    c.config |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 3}
    w = weight(c, 8, 64, BF16)
    g = w.abs().max().float()
    p = parts(w, group, bits, "nvfp4", to_mx(g)) | {"global_scale": g}
    c.add({f"{Q_PROJ}.{k}": v for k, v in p.items()})
    c.decoded(f"{Q_PROJ}.weight", nvfp4(p))
    stack = [weight(c, 8, 64, BF16) * 4**e for e in range(3)]
    peaks = [s.abs().max().float() for s in stack]
    each = [parts(s, group, bits, "nvfp4", to_mx(m)) | {"global_scale": m} for s, m in zip(stack, peaks)]
    c.add({f"{experts}.{k}": torch.stack([p[k] for p in each]) for k in each[0]})
    for e, p in enumerate(each):
        c.decoded(f"model.layers.0.mlp.experts.{e}.gate_proj.weight", nvfp4(p))
    c.write()


def nvfp4(p):
    """mlx's decoder, whatever dtype is asked for, and the formula: LUT * (e4m3 * (g / (448 * 6))), all F32."""
    f32 = decode(p, 16, 4, "nvfp4", F32)
    assert all(same(f32, decode(p, 16, 4, "nvfp4", d)) for d in (BF16, F16))
    lut = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
    codes = torch.from_numpy(p["weight"].numpy().view(np.uint8)).long()
    codes = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
    scale = p["scales"].view(torch.float8_e4m3fn).float() * (p["global_scale"] / 2688.0)
    assert same(f32, lut[codes] * scale.repeat_interleave(16, -1))
    return f32


def overrides():
    """Settings of single modules; `false` for one that is not quantized; a mode is not inherited: none is affine."""
    down, up = "model.layers.0.mlp.down_proj", "model.layers.0.mlp.up_proj"
    gate, embed = "model.layers.0.mlp.gate_proj", "model.embed_tokens"
    quantization = {"group_size": 64, "bits": 4, down: settings(64, 8), up: {"group_size": 32, "bits": 3},
                    gate: settings(32, 4, "mxfp4"), embed: settings(128, 6), "lm_head": False}
    c = case("overrides", quantization)
    for module, n, group, bits, mode in [(Q_PROJ, 8, 64, 4, "affine"), (down, 8, 64, 8, "affine"), (up, 8, 32, 3, "affine"),
                                         (gate, 8, 32, 4, "mxfp4"), (embed, 12, 128, 6, "affine")]:
        put(c, module, parts(weight(c, n, 128, BF16), group, bits, mode), group, bits, mode)
    c.keep("lm_head.weight", weight(c, 12, 128, BF16))
    c.norm(128)
    c.write(shards=2)

    c = case("mode_not_inherited", settings(16, 4, "nvfp4") | {down: {"group_size": 64, "bits": 8}})
    put(c, Q_PROJ, parts(weight(c, 8, 128, BF16), 16, 4, "nvfp4"), 16, 4, "nvfp4")
    put(c, down, parts(weight(c, 8, 128, BF16), 64, 8), 64, 8)
    c.write()


def inferred():
    """Modules that the config does not name, and whose sizes are not its default: mlx-lm goes by the tensors."""
    c = case("inferred", settings(64, 4))
    c.config["hidden_size"] = 128
    for module, group, bits, mode in [("self_attn.k_proj", 32, 8, "affine"), ("self_attn.v_proj", 32, 4, "mxfp4"),
                                      ("self_attn.o_proj", 16, 4, "nvfp4"), ("self_attn.q_proj", 64, 4, "affine")]:
        name = f"model.layers.0.{module}"
        put(c, name, parts(weight(c, 8, 128, BF16), group, bits, mode), group, bits, mode)
        layer = types.SimpleNamespace(weight=np.zeros((8, 128)))  # the layer before it is quantized
        stored = {n: to_mx(t) for n, t in c.tensors.items()}
        assert infer_quant_config(name, layer, stored) == settings(group, bits, mode)
    c.write()


def metal():
    """transformers' `quant_method: metal`: the same words, `qbiases`; computed in F32 and rounded once."""
    from transformers.integrations import metal_quantization as hf
    from transformers.utils.quantization_config import MetalConfig

    for bits, group, dtype in [(2, 64, BF16), (4, 64, F16), (8, 32, F32)]:
        q = MetalConfig(bits=bits, group_size=group, modules_to_not_convert=["lm_head"]).to_dict()
        q["quant_method"] = q["quant_method"].value
        c = Layout("mlx", f"metal_b{bits}_{LABEL[dtype]}",
                   {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": q})
        quantizer = type("Quantizer", (), {"quantization_config": MetalConfig(bits=bits, group_size=group)})()
        p = hf.MetalQuantize(quantizer).convert({f"{Q_PROJ}.weight": weight(c, 8, 128, dtype)})
        c.add(p)
        words, s, b = (p[f"{Q_PROJ}.{n}"] for n in ("weight", "scales", "qbiases"))
        f32 = hf._affine_dequantize_tensor(words, s.float(), b.float(), group, bits)
        own = hf.MetalDequantize(quantizer).convert(
            {"weight": [words], "scales": [s], "qbiases": [b]}, full_layer_name="weight")["weight"]
        assert own.dtype == dtype and same(f32, decode({"weight": words, "scales": s, "biases": b}, group, bits, dtype=F32))
        c.decoded(f"{Q_PROJ}.weight", f32, own)
        c.keep("lm_head.weight", weight(c, 12, 128, dtype))
        c.write()


def main():
    shutil.rmtree(DATA / "mlx", ignore_errors=True)
    order = [BF16, F16, F32]
    for i, bits in enumerate((1, 2, 3, 4, 5, 6, 8)):
        for j, group in enumerate((32, 64, 128)):
            affine(bits, group, order[(i + j) % 3])
    affine(4, 64, BF16)
    for bits, dtype in [(4, BF16), (4, F16), (8, F16), (3, BF16), (5, F32)]:
        hostile(bits, 32, dtype)
    for mode in MODES:
        floating(mode, mode)
        all_scales(mode)
    floating("mxfp4_f32_input_single_key", "mxfp4", F32, double=False)
    global_scale()
    overrides()
    inferred()
    c = case("no_mode", {"group_size": 64, "bits": 4}, double=False)
    put(c, Q_PROJ, parts(weight(c, 8, 128, F16), 64, 4), 64, 4)
    c.write()
    metal()


if __name__ == "__main__":
    sys.exit(main())

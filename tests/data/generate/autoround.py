"""Golden AutoRound checkpoints, by auto-round 0.16.1: GPTQ and AWQ words under its names, its MX and NV formats.

Usage: see ../README.md; run gptq_more.py first, it empties the directory. Packed by the `QuantLinear.pack` that auto-round's
`pack_layer` takes for each `packing_format`, decoded by the same classes or, for MX and NV, by `experimental.qmodules`.
"""

import os
import sys
import zlib

os.environ["CUDA_VISIBLE_DEVICES"] = ""

from fp8 import BF16, F16, F32, rounded, same
from layout import Layout, differs, tiny

import torch
from auto_round.data_type.nvfp import cast_to_ue5m3
from auto_round.export.export_to_autoround.export import dynamic_import_quant_linear_for_packing
from auto_round.export.export_to_autoround.qlinear_fp import QuantLinear as FpLinear
from auto_round.export.export_to_autoround.qlinear_int import QuantLinear as IntLinear
from auto_round.export.export_to_awq.utils import dequantize_gemm
from auto_round.experimental import qmodules
from auto_round.inference.convert_model import get_layer_config
from auto_round.schemes import QuantizationScheme

BLOCK = "model.layers.0."


def config(fmt, bits, group, sym, **more):
    """What auto-round saves, cut down to what says how to read it."""
    return {"autoround_version": "0.16.1", "bits": bits, "block_name_to_quantize": "model.layers", "data_type": "int",
            "group_size": group, "quant_method": "auto-round", "packing_format": fmt, "sym": sym} | more


def llama(quantization):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": quantization}


def pack(fmt, bits, group, sym, q, z, s):
    """q [out, in], z and s [out, groups]. AWQ wants scales and zero points the other way round (`pack_layer` there)."""
    n, k = q.shape
    step = k if group == -1 else group
    layer = torch.nn.Linear(k, n, bias=False)
    layer.weight.data = ((q - z.repeat_interleave(step, 1)) * s.float().repeat_interleave(step, 1)).float()
    cls = dynamic_import_quant_linear_for_packing(fmt, bits, group, sym)
    zero = int(z.flatten()[0]) if sym else z.float()
    if "awq" in fmt:
        module = cls.from_linear(layer, bits, group, scales=s.float().t().contiguous(),
                                 zeros=zero if sym else zero.t().contiguous(), device="cpu")
    else:
        module = cls(bits, group, k, n, bias=False, weight_dtype=F32)
        module.device = "cpu"
        module.pack(layer, s.float(), zero, None, device="cpu")
    return {b: getattr(module, b).clone() for b in ("qweight", "qzeros", "scales", "g_idx") if hasattr(module, b)}


def decode(fmt, parts, bits, group, sym, dtype):
    """[out, in]. The layers of GPTQ words are applied to the identity: `scales * (q - z)`, one rounding."""
    k, n = (parts["qweight"].shape[0], parts["scales"].shape[1]) if "awq" in fmt else (
        parts["qweight"].shape[0] * 32 // bits, parts["scales"].shape[1])
    step = k if group == -1 else group
    scales = parts["scales"].to(dtype)
    if "awq" in fmt:
        return dequantize_gemm(parts["qweight"], parts["qzeros"], scales, bits, step).t().contiguous()
    module = dynamic_import_quant_linear_for_packing(fmt, bits, group, sym)(bits, group, k, n, bias=False)
    module.qweight, module.qzeros, module.scales = parts["qweight"], parts["qzeros"], scales
    if "g_idx" in parts:
        module.g_idx = parts["g_idx"]
    return module(torch.eye(k, dtype=dtype)).t().contiguous()


def put(c, name, fmt, bits, group, sym, q, z, s):
    parts = pack(fmt, bits, group, sym, q, z, s)
    c.add({f"{name}.{p}": t for p, t in parts.items()})
    f32, own = (decode(fmt, parts, bits, group, sym, d) for d in (F32, F16))
    step = q.shape[1] if group == -1 else group
    want = (q - z.repeat_interleave(step, 1)).float() * s.float().repeat_interleave(step, 1)
    assert torch.equal(f32, want) and same(own, f32.half()), (c.label, name)
    c.decoded(f"{name}.weight", f32, own)


def unit(name, fmt, bits, group=32, sym=False, label=None, k=64, n=32):
    """Zero points from 1 up: auto-round stores clamp(z - 1, 0) in version 1, and 0 comes back as 1."""
    c = Layout("gptq_more", name, llama(config(label or fmt, bits, group, sym)))
    step = k if group == -1 else group
    maxq = 2**bits - 1
    q = torch.randint(0, maxq + 1, (n, k), generator=c.rng)
    z = torch.randint(1, maxq + 1, (n, k // step), generator=c.rng)
    z[0, 0], z[-1, -1] = 1, maxq
    if sym:
        z = torch.full_like(z, 2**(bits - 1))
    put(c, BLOCK + "self_attn.q_proj", fmt, bits, group, sym, q, z, c.scales(n, k // step, lo=-10, hi=-6).half())
    c.write()


def model(name, fmt, extra, shards=2):
    """A tiny Llama with settings of single modules, by name and by pattern; auto-round says what they come to."""
    from transformers import AutoRoundConfig, LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                        num_key_value_heads=1, vocab_size=32, tie_word_embeddings=False)
    tensors, hf = tiny(LlamaForCausalLM, shape, zlib.crc32(name.encode()), F16)
    base = config(fmt, 4, 32, True, extra_config=extra)
    c = Layout("gptq_more", name, hf | {"quantization_config": base})
    layers = get_layer_config(LlamaForCausalLM(shape), AutoRoundConfig.from_dict(dict(base)))
    for n, w in sorted(tensors.items()):
        module = n.removesuffix(".weight")
        scheme = layers.get(module)
        if scheme is None or scheme.bits > 8:
            c.keep(n, w)
            continue
        bits, group, sym = scheme.bits, scheme.group_size, scheme.sym
        blocks = w.float().reshape(w.shape[0], -1, group)
        if sym:
            s = (blocks.abs().amax(-1) * 2 / (2**bits - 1)).half()
            z = torch.full(s.shape, 2**(bits - 1))
        else:
            low, high = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
            s = ((high - low) / (2**bits - 1)).half()
            z = (-low / s.float()).round().clamp(1, 2**bits - 1).long()
        q = (blocks / s.float().unsqueeze(-1) + z.unsqueeze(-1)).round().clamp(0, 2**bits - 1).reshape(w.shape).long()
        put(c, module, fmt, bits, group, sym, q, z, s)
        c.notes.append(f"{module}: {bits} bits, group {group}, {'sym' if sym else 'asym'}")
    c.write(shards=shards)


def floating(name, fmt, data_type, bits, group, cls, module_cls, global_scale=None, **more):
    """MXFP4, MXFP8, NVFP4 and MXINT4, made by auto-round's packer from values on the grid."""
    n, k = 16, 128
    act = {"act_bits": bits, "act_data_type": data_type, "act_group_size": group, "act_sym": True, "act_dynamic": True}
    quantization = config(fmt, bits, group, True) | {"data_type": data_type} | act
    c = Layout("gptq_more", name, llama(quantization))
    layer = torch.nn.Linear(k, n, bias=False)
    layer.weight.data = c.randn(n, k, scale=0.2)
    blocks = layer.weight.data.reshape(n, -1, group)
    peak = blocks.abs().amax(-1)
    if data_type == "nvfp4_v2":
        scale = cast_to_ue5m3(peak / 6)
    elif global_scale:
        scale = (peak * global_scale / 6).to(torch.float8_e4m3fn).float()
    else:
        scale = torch.floor(torch.log2(peak)) - {"mx_fp4": 2, "mx_fp8": 8, "mx_int4": 0}[data_type.removesuffix("e4m3")]
        if data_type == "mx_int4":
            layer.weight.data = (blocks / 2**scale[..., None]).clamp(-1.75, 1.75).mul(2**scale[..., None]).reshape(n, k)
        if data_type == "mx_fp8e4m3":
            layer.weight.data = (blocks / 2**scale[..., None]).clamp(-448, 448).mul(2**scale[..., None]).reshape(n, k)
    gs = global_scale and torch.tensor([global_scale], dtype=F32)
    packed = cls(bits, group, k, n, False, data_type=data_type, act_bits=bits)
    packed.pack(layer, scale, global_scale=gs, input_global_scale=gs and torch.tensor([3.25]), device="cpu")
    parts = {p: getattr(packed, p).clone() for p in ("weight", "weight_packed", "weight_scale", "weight_global_scale",
                                                     "input_global_scale") if hasattr(packed, p)}
    name_of = BLOCK + "mlp.up_proj"
    c.add({f"{name_of}.{p}": t for p, t in parts.items()})

    scheme = QuantizationScheme(bits=bits, group_size=group, sym=True, data_type=data_type, **act)
    module = module_cls(k, n, scheme)
    module.load_state_dict({p: t for p, t in parts.items()}, strict=False)
    if hasattr(module, "weight_packed"):
        module.weight_packed = parts["weight_packed"]
    module.weight_scale = parts["weight_scale"]
    f32 = module.dequant_weight_online()
    assert f32.dtype == F32 and f32.shape == (n, k)
    c.decoded(f"{name_of}.weight", f32)
    if global_scale:  # compressed-tensors divides the scales first: LUT * (e4m3 / global)
        lut = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
        p = parts["weight_packed"].long()
        value = lut[torch.stack([p & 15, p >> 4], -1).flatten(-2)].reshape(n, -1, group)
        ct = (value * (parts["weight_scale"].float() / gs)[..., None]).reshape(n, k)
        for d in ("f32", "bf16", "f16"):
            c.notes.append(f"compressed-tensors' formula in {d}: {differs(rounded(ct)[d], rounded(f32)[d])}")
    elif data_type != "nvfp4_v2":
        assert same(f32, f32.to(BF16).float()), "exact in BF16"
    c.write()


def main():
    gptq, gptqmodel, plain, awq = ("auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round", "auto_round:auto_awq")
    for bits in (2, 3, 4, 5, 6, 7, 8):
        unit(f"ar_auto_gptq_b{bits}", gptq, bits)
    for bits in (3, 4, 6):
        unit(f"ar_auto_gptq_b{bits}_sym", gptq, bits, sym=True)
    unit("ar_auto_gptq_b4_one_group", gptq, 4, group=-1)
    unit("ar_gptq_b4", gptq, 4, label="auto_round:gptq")
    for bits in (4, 5):
        unit(f"ar_gptqmodel_b{bits}", gptqmodel, bits)
    for bits in (2, 3, 6, 8):
        unit(f"ar_plain_b{bits}", plain, bits)
    for bits in (4, 5, 6, 7):
        unit(f"ar_auto_awq_b{bits}", awq, bits)
    unit("ar_auto_awq_b4_sym", awq, 4, sym=True)
    model("ar_tiny_llama", gptq, {
        "lm_head": {"bits": 8, "group_size": 64, "data_type": "int", "sym": True},
        BLOCK + "mlp.down_proj": {"bits": 8}, BLOCK + "mlp.up_proj": {"bits": 16, "data_type": "float"},
        ".*v_proj.*": {"bits": 2, "group_size": 16, "sym": False}})
    ct = "auto_round:llm_compressor"
    floating("ar_nvfp4", ct, "nv_fp4", 4, 16, FpLinear, qmodules.NVFP4QuantLinear, global_scale=2731.5)
    floating("ar_nvfp4_e5m3", "auto_round:llm_compressor_nvfp4_e5m3", "nvfp4_v2", 4, 16, FpLinear, qmodules.NVFP4E5M3QuantLinear)
    floating("ar_nvfp4_power_of_two", ct, "nv_fp4", 4, 16, FpLinear, qmodules.NVFP4QuantLinear, global_scale=2048.0)
    floating("ar_mxfp4", ct, "mx_fp4", 4, 32, FpLinear, qmodules.MXFP4QuantLinear)
    floating("ar_mxfp8", ct, "mx_fp8e4m3", 8, 32, FpLinear, qmodules.MXFP8QuantLinear)
    floating("ar_mxint4", plain, "mx_int4", 4, 32, IntLinear, qmodules.MXINT4QuantLinear)


if __name__ == "__main__":
    sys.exit(main())

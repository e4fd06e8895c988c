"""Golden GPTQ checkpoints of gptqmodel 7.7.0 that gptq.py does not cover: bit planes, overrides of single modules, other
word sizes, shards.

Usage: see ../README.md. Packed by `TorchLinear.pack_original`, decoded by `TorchLinear.dequantize_weight` in the dtype of
the scales and with the scales widened to F32; gptqmodel's exporter decodes the single files again.
"""

import math
import shutil
import sys
import zlib

import fp8  # first: it imports from this directory, which gptq.import_libraries takes off the path
import gptq
import torch
from layout import Layout, tiny

F16, F32 = torch.float16, torch.float32
BLOCK = "model.layers.0."
WORDS = {torch.int8: 8, torch.int16: 16, torch.int32: 32}


def linear(bits, k, n, group, sym, act, fmt, words=torch.int32, bias=False):
    return gptq.TorchLinear(bits=bits, group_size=group, sym=sym, desc_act=act, in_features=k, out_features=n, bias=bias,
                            format=gptq.FORMAT(fmt), pack_dtype=words)


def settings(bits, group, sym, act, fmt, words=torch.int32, dynamic=None, lm_head=False):
    return gptq.QuantizeConfig(bits=bits, group_size=group, sym=sym, desc_act=act, act_group_aware=False, format=fmt,
                               dynamic=dynamic, pack_dtype=words, lm_head=lm_head, offload_to_disk=False)


def saved(config):
    """What gptqmodel saves, with `meta` cut down to what says who wrote it."""
    return config.to_dict() | {"meta": {"quantizer": ["gptqmodel:7.7.0"]}}


def v1(fmt, bits):
    """gptqmodel takes one off the zero points under `gptq` only; 5, 6 and 7 bits are never version 1."""
    return fmt == "gptq" and bits not in (5, 6, 7)


def pack(q, z, s, g_idx, bits, group, sym, act, fmt, words=torch.int32, bias=None):
    k, n = q.shape
    module = linear(bits, k, n, group, sym, act, fmt, words, bias is not None)
    layer = gptq.linear_of(q, z, s, g_idx, bias)
    module.pack_original(layer, s.float().t().contiguous(), z.float().t().contiguous(), g_idx)
    if v1(fmt, bits):
        gptq.model_utils.convert_gptq_v2_to_v1_format_module(module, settings(bits, group, sym, act, fmt, words))
    parts = gptq.buffers(module)
    assert parts["qweight"].dtype == words
    assert parts["qweight"].shape == (math.ceil(k * bits / WORDS[words]), n)
    return parts


def decode(parts, bits, k, n, group, sym, fmt, scales, words=torch.int32):
    """[out, in], loaded as gptqmodel loads a checkpoint."""
    module = linear(bits, k, n, group, sym, False, fmt, words)
    for name in ("qweight", "qzeros", "g_idx"):
        if name in parts:
            setattr(module, name, parts[name].clone())
    module.scales = scales.clone()
    if v1(fmt, bits):
        gptq.model_utils.convert_gptq_v1_to_v2_format_module(module, bits=bits, pack_dtype=words)
    return module.eval().dequantize_weight().t().contiguous()


def codes(c, bits, k, n, group, sym=False, act=False, low=1):
    """Random codes and zero points; all-ones fields of version 1, on which libraries disagree, do not occur."""
    group = group if group > 0 else k
    groups, maxq = math.ceil(k / group), 2**bits - 1
    q = torch.randint(0, maxq + 1, (k, n), generator=c.rng)
    z = torch.randint(low, maxq + 1, (groups, n), generator=c.rng)
    z[0, 0], z[-1, -1] = low, maxq
    if sym:
        z = torch.full((groups, n), 2**(bits - 1))
    s = c.scales(groups, n, lo=-10, hi=-6).half()
    order = torch.randperm(k, generator=c.rng) if act else torch.arange(k)
    return q, z, s, torch.argsort(order).div(group, rounding_mode="floor").to(torch.int32)


def put(c, name, parts, bits, group, sym, fmt, words=torch.int32, drop=()):
    """One module, whose own tensors are `parts`; `drop`: not written."""
    k, n = parts["g_idx"].numel(), parts["scales"].shape[1]
    c.add({f"{name}.{p}": t for p, t in parts.items() if p not in drop and p != "bias"})
    if "bias" in parts:
        c.keep(f"{name}.bias", parts["bias"])
    own = decode(parts, bits, k, n, group, sym, fmt, parts["scales"], words)
    f32 = decode(parts, bits, k, n, group, sym, fmt, parts["scales"].float(), words)
    assert own.dtype == F16 and f32.dtype == F32 and fp8.same(f32.half(), own)
    c.decoded(f"{name}.weight", f32, own)


def exporter(c, name, bits, fmt):
    """gptqmodel's exporter reads the file that was written."""
    label = {} if fmt is None else {"checkpoint_format": fmt}
    for dtype in (F32, torch.bfloat16, F16):
        out = gptq.dequant.convert_gptq_file(c.dir / "model" / "model.safetensors", dtype, {"bits": bits} | label, "cpu")
        assert fp8.same(out[f"{name}.weight"], c.expected[f"{name}.weight"].to(dtype)), (c.label, dtype)


def unit(name, bits, k=96, n=32, group=32, sym=False, act=False, fmt="gptq_p", words=torch.int32, label=True, bias=False):
    c = Layout("gptq_more", name)
    config = settings(bits, group, sym, act, fmt, words)
    q, z, s, g_idx = codes(c, bits, k, n, group, sym, act, low=1 if v1(fmt, bits) else 0)
    b = c.randn(n).half() if bias else None
    module = BLOCK + "self_attn.q_proj"
    put(c, module, pack(q, z, s, g_idx, bits, group, sym, act, fmt, words, b), bits, group, sym, fmt, words)
    quantization = saved(config)
    assert quantization["checkpoint_format"] == fmt, "gptqmodel names 5, 6 and 7 bits gptq_p by itself"
    if label is not True:
        for key in ("checkpoint_format", "format"):
            quantization.pop(key, None)
            if label:
                quantization[key] = label
    c.config = gptq.llama_config(quantization)
    c.write()
    if words == torch.int32:
        exporter(c, module, bits, label or None if label is not True else fmt)
    want = ((q - z[g_idx.long()]).float() * s.float()[g_idx.long()]).t().contiguous()
    assert fp8.same(want, c.expected[f"{module}.weight"])


# name in the block -> [out, in]
SHAPES = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
          "self_attn.o_proj": (64, 64), "mlp.gate_proj": (64, 64), "mlp.up_proj": (64, 64), "mlp.down_proj": (64, 64)}


def quantize(c, name, weight, config):
    """Round to nearest into what the config says of this module, which gptqmodel works out; False: not quantized."""
    override = config.dynamic_get(name)
    if override is False:
        c.keep(f"{name}.weight", weight)
        return False
    bits, group, sym, act = (config.dynamic_get(name, key, getattr(config, key)) for key in
                             ("bits", "group_size", "sym", "desc_act"))
    fmt = config.format.value if hasattr(config.format, "value") else config.format
    n, k = weight.shape
    step = k if group == -1 else group
    w = weight.float().t().reshape(k // step, step, n)
    low, high = w.amin(1).clamp(max=0), w.amax(1).clamp(min=0)
    maxq = 2**bits - 1
    if sym:
        s = (torch.maximum(high, -low) * 2 / maxq).half()
        z = torch.full_like(low, 2**(bits - 1))
    else:
        s = ((high - low) / maxq).half()
        z = (-low / s.float()).round().clamp(1, maxq)
    order = torch.randperm(k, generator=c.rng) if act else torch.arange(k)
    g_idx = torch.argsort(order).div(step, rounding_mode="floor").to(torch.int32)
    q = (weight.float().t() / s.float()[g_idx.long()] + z[g_idx.long()]).round().clamp(0, maxq)
    parts = pack(q.long(), z.long(), s, g_idx, bits, step, sym, act, fmt)
    put(c, name, parts, bits, step, sym, fmt)
    return bits, step, sym, act


def model(name, config, shards, lm_head=False, skip=()):
    """A tiny Llama, its linear layers quantized; a module's tensors are dealt out to all shards."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                        num_key_value_heads=1, vocab_size=32, tie_word_embeddings=False)
    tensors, hf = tiny(LlamaForCausalLM, shape, zlib.crc32(name.encode()), F16)
    c = Layout("gptq_more", name, hf | {"quantization_config": saved(config)})
    seen = {}
    for n, t in sorted(tensors.items()):
        module = n.removesuffix(".weight")
        inner = module.removeprefix(BLOCK)
        if inner in SHAPES or lm_head and module == "lm_head":
            assert inner not in SHAPES or tuple(t.shape) == SHAPES[inner]
            seen[inner] = quantize(c, module, t, config)
        else:
            c.keep(n, t)
    c.notes = [f"{k}: {v}" for k, v in seen.items()]
    c.sidecars["quantize_config.json"] = saved(config)
    c.write(shards=shards)
    return seen


def main():
    gptq.import_libraries()
    shutil.rmtree(gptq.DATA / "gptq_more", ignore_errors=True)
    # Bit planes. 2, 4 and 8 bits have one plane, the words of version 2; 3 bits are planes under this name only.
    for bits in range(2, 9):
        unit(f"planar_b{bits}", bits, bias=bits == 5)
    for bits in (3, 5, 6, 7):
        unit(f"planar_b{bits}_act_order", bits, k=128, act=True)
        unit(f"planar_b{bits}_one_group", bits, k=64, group=-1)
    unit("planar_b6_sym", 6, k=64, sym=True)
    # The widths that are planes and version 2 whatever the label says
    assert gptq.FORMAT(settings(5, 32, False, False, "gptq").format) == gptq.FORMAT.GPTQ_P
    unit("planar_b5_labelled_gptq", 5, k=64, label="gptq")
    unit("planar_b7_no_label", 7, k=64, label=False)
    # Words of 8 and 16 bits. gptqmodel takes int64 into its config, and has no layer that packs it.
    for words, name in [(torch.int8, "int8"), (torch.int16, "int16")]:
        for bits in (2, 4, 8):
            for fmt in ("gptq", "gptq_v2"):
                unit(f"pack_{name}_b{bits}_{'v1' if fmt == 'gptq' else 'v2'}", bits, k=64, words=words, fmt=fmt)
    unit("pack_int16_b4_ragged", 4, k=72, n=40, words=torch.int16, fmt="gptq_v2")

    model("tiny_llama", settings(4, 32, True, False, "gptq"), 3)
    model("tiny_llama_asym_act_order", settings(4, 32, False, True, "gptq_v2"), 2)
    # The first rule that matches counts (gptqmodel writes those with `-:` first); a name without sign is `+:`; keys that a
    # rule does not have are the model's. Rules are matched from the beginning of the name, not to its end.
    dynamic = {r"+:.*\.(k|o)_proj$": {"bits": 8, "group_size": 64}, r".*\.up_proj": {"bits": 2, "sym": False},
               r"+:.*o_proj": {"bits": 2}, r"+:model\.layers\.0\.mlp\.gate": {"group_size": -1},
               r"+:lm_head": {"bits": 8, "group_size": 16}, r"-:.*\.v_proj": {}, r"+:.*\.v_proj": {"bits": 8},
               r"+:.*\.down_proj": {"desc_act": True}}
    seen = model("tiny_llama_dynamic", settings(4, 32, True, False, "gptq", dynamic=dynamic, lm_head=True), 2, lm_head=True)
    assert seen["self_attn.v_proj"] is False and seen["self_attn.o_proj"][0] == 8 and seen["lm_head"][0] == 8
    # One rule with 6 bits makes all of the checkpoint `gptq_p`: 3 bits are planes, zero points are themselves.
    dynamic = {r"+:.*\.down_proj$": {"bits": 6}, r"+:.*\.q_proj$": {"bits": 3}, r"+:.*\.k_proj$": {"bits": 7}}
    config = settings(4, 32, False, False, "gptq", dynamic=dynamic)
    assert gptq.FORMAT(config.format) == gptq.FORMAT.GPTQ_P
    model("tiny_llama_dynamic_planar", config, 2)


if __name__ == "__main__":
    sys.exit(main())

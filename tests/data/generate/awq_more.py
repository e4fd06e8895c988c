"""Golden AWQ checkpoints in the layouts beside `gemm`: `gemv`, `gemv_fast` and `llm-awq`.

Usage: see ../README.md. Packed on CPU by autoawq 0.2.9 (`WQLinear_GEMV.from_linear`, `WQLinear_GEMVFast.from_linear`) and
gptqmodel 7.7.0 (`LLMAwqLinear.pack`). Neither has a decoder for the CPU: the unpackers below are written from the packers
and from the CUDA kernels that gptqmodel brings along, and must give back the codes that were packed, and those that
gptqmodel's transfer to MLX reads (`utils/mlx_packing.py`).
"""

import shutil
import sys
import zlib

import gptq
import numpy as np
import torch
from layout import Layout, tiny

F16, F32 = torch.float16, torch.float32
BLOCK = "model.layers.0."


def import_libraries():
    global GEMV, GEMVFast, LLMAwq, mlx_packing, AwqConfig, QuantizeConfig
    gptq.hide_generators()
    from awq.models._config import AwqConfig
    from awq.modules.linear.gemv import WQLinear_GEMV as GEMV
    from awq.modules.linear.gemv_fast import WQLinear_GEMVFast as GEMVFast
    from gptqmodel.nn_modules.qlinear.gemv_fast_awq import LLMAwqLinear as LLMAwq
    from gptqmodel.quantization import QuantizeConfig
    from gptqmodel.utils import mlx_packing


def saved(version, group, skip=None):
    return AwqConfig(version=version, q_group_size=group, modules_to_not_convert=skip).to_transformers_dict()


def saved_gptqmodel(version, group):
    config = QuantizeConfig(bits=4, group_size=group, sym=False, desc_act=False, format=version, method="awq",
                            offload_to_disk=False)
    return config.to_dict() | {"meta": {"quantizer": ["gptqmodel:7.7.0"]}}


def unpack_gemv(p, k, group):
    """Codes [out, in], zero points and scales [out, groups]: words along the row, eight nibbles, the first lowest; rows of
    zero points and scales are filled up with zeros."""
    groups = k // group
    nibbles = lambda t, n: (t[:, torch.arange(n) // 8] >> (4 * (torch.arange(n) % 8))) & 15
    assert not p["scales"][:, groups:].any()
    return nibbles(p["qweight"], k), nibbles(p["qzeros"], groups), p["scales"][:, :groups]


def unpack_fast(p, k, group, zeros="qzeros"):
    """`pack_intweight` (autoawq, gemv_fast.py), one weight after the other: where does (n, k) lie?"""
    qweight = p["qweight"].numpy().view(np.uint16)
    n_out = qweight.shape[0] * 4
    q = np.zeros((n_out, k), dtype=np.int64)
    for i in range(k):
        a, b, c = i % 32 // 8, i % 8 // 2, i % 2  # [4, 4, 2] -> [4 (b), 4 (a), 2 (c)]
        at = b * 8 + a * 2 + c
        at = at // 8 * 8 + at % 2 * 4 + at % 8 // 2  # each 8: 0 2 4 6 1 3 5 7
        at += i // 32 * 32
        for row in range(n_out):
            run = row % 4 * 64 + at % 64  # 64 columns of four rows are one run of nibbles, four in a word
            q[row, i] = qweight[row // 4, at // 64 * 64 + run // 4] >> (run % 4 * 4) & 15
    groups = k // group
    assert not p["scales"][groups:].any() and not p[zeros][groups:].any()
    return torch.from_numpy(q), p[zeros][:groups].t(), p["scales"][:groups].t()


def codes_of_mlx(words):
    return torch.from_numpy(np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little").reshape(
        *words.shape[:-1], -1, 4) @ np.array([1, 2, 4, 8])).long()


def pack(version, q, z, s, group, bias=None):
    n, k = q.shape
    layer = torch.nn.Linear(k, n, bias=bias is not None)
    layer.weight.data = ((q - z.repeat_interleave(group, 1)) * s.float().repeat_interleave(group, 1)).float()
    if bias is not None:
        layer.bias.data = bias.float()
    if version == "llm-awq":
        module = LLMAwq(bits=4, group_size=group, sym=False, desc_act=False, in_features=k, out_features=n,
                        bias=bias is not None)
        module.pack(layer, s.clone(), z.float())
        names = ("qweight", "scaled_zeros", "scales")
    else:
        cls = GEMV if version == "gemv" else GEMVFast
        module = cls.from_linear(layer, 4, group, scales=s.clone(), zeros=z.float())
        names = ("qweight", "qzeros", "scales")
    return {b: getattr(module, b).detach().clone() for b in names}


def decode(version, p, k, group):
    """([out, in] in F32, the kernels' own value in F16).

    gemv (`gemv_cuda.cu`): `scale * (q - zero)` in F32. gemv_fast (`quantization_new`, both kernels): one `__hfma2(q, scale,
    zero)`, the zero being `-(scale * zero)` in F16; the sum is exact in F32, so a fused rounding is the rounding of that.
    """
    if version == "gemv":
        q, z, s = unpack_gemv(p, k, group)
        f32 = s.float().repeat_interleave(group, 1) * (q - z.repeat_interleave(group, 1)).float()
        return f32, f32.half()
    q, z, s = unpack_fast(p, k, group, "scaled_zeros" if version == "llm-awq" else "qzeros")
    wide = [t.repeat_interleave(group, 1) for t in (s, z)]
    f32 = q.float() * wide[0].float() + wide[1].float()
    exact = q.double() * wide[0].double() + wide[1].double()
    assert torch.equal(exact, f32.double())
    fused = torch.from_numpy(exact.numpy().astype(np.float16))
    return f32, fused


def put(c, name, version, q, z, s, group, scales=None, bias=None):
    """`scales`: bit patterns that replace the packed ones, [out, groups]."""
    n, k = q.shape
    p = pack(version, q, z, s, group)
    got = unpack_gemv(p, k, group) if version == "gemv" else unpack_fast(
        p, k, group, "scaled_zeros" if version == "llm-awq" else "qzeros")
    assert torch.equal(got[0].long(), q) and torch.equal(got[2], s)
    zeros = p["scaled_zeros" if version == "llm-awq" else "qzeros"].numpy()
    if version == "gemv":
        assert torch.equal(got[1].long(), z)
        other = mlx_packing.repack_awq_gemv(p["qweight"].numpy(), zeros, p["scales"].numpy(), k, n, group)
    else:
        assert torch.equal(got[1], -(s * z.float()).half())
        other = mlx_packing.repack_awq_gemv_fast(p["qweight"].numpy(), zeros, p["scales"].numpy(), k, n, group)
    assert torch.equal(codes_of_mlx(other[0]), q)
    if scales is not None:
        if version == "gemv":
            p["scales"][:, :k // group] = scales
        else:
            p["scales"][:k // group] = scales.t()
    c.add({f"{name}.{b}": t for b, t in p.items()})
    if bias is not None:
        c.keep(f"{name}.bias", bias)
    f32, own = decode(version, p, k, group)
    c.decoded(f"{name}.weight", f32, own)


def unit(name, version, k, n, group, config=None, hostile=False, bias=False):
    c = Layout("awq_more", name)
    groups = k // group
    q = torch.randint(0, 16, (n, k), generator=c.rng)
    z = torch.randint(0, 16, (n, groups), generator=c.rng)
    s = c.scales(n, groups, lo=-10, hi=-6).half()
    patterns = gptq.hostile_scales(groups, n, F16).t() if hostile else None
    put(c, BLOCK + "self_attn.q_proj", version, q, z, s, group, patterns, c.randn(n).half() if bias else None)
    c.config = gptq.llama_config(config or saved(version, group))
    c.write()


def model(name, version, group, shards, skip):
    """A tiny Llama, rounded to nearest; modules whose names contain one of `skip` are left alone, as lm_head always is."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
                        num_key_value_heads=1, vocab_size=32, tie_word_embeddings=False)
    tensors, hf = tiny(LlamaForCausalLM, shape, zlib.crc32(name.encode()), F16)
    c = Layout("awq_more", name, hf | {"quantization_config": saved(version, group, skip)})
    for key, w in sorted(tensors.items()):
        if "_proj" not in key or any(s in key for s in skip):
            c.keep(key, w)
            continue
        blocks = w.float().reshape(w.shape[0], -1, group)
        low, high = blocks.amin(-1), blocks.amax(-1)  # `pseudo_quantize_tensor`
        s = ((high - low) / 15).half()
        z = (-(low / s.float()).round()).clamp(0, 15).long()
        q = ((blocks / s.float()[..., None]).round() + z[..., None]).clamp(0, 15).reshape(w.shape).long()
        put(c, key.removesuffix(".weight"), version, q, z, s, group)
    c.write(shards=shards)


def main():
    import_libraries()
    shutil.rmtree(gptq.DATA / "awq_more", ignore_errors=True)
    for version, label in [("gemv", "gemv"), ("gemv_fast", "gemv_fast"), ("llm-awq", "llm_awq")]:
        made = saved_gptqmodel if version == "llm-awq" else saved
        unit(f"{label}_g128", version, 256, 32, 128, made(version, 128), bias=True)
        unit(f"{label}_g64", version, 192, 32, 64, made(version, 64))
        unit(f"{label}_g32", version, 64, 32, 32, made(version, 32))
        # More groups than a word has nibbles: two words of zero points
        unit(f"{label}_g128_nine_groups", version, 1152, 8, 128, made(version, 128))
    # gptqmodel's config: `checkpoint_format` (and `format`) says what autoawq calls `version`
    unit("gemv_gptqmodel", "gemv", 128, 64, 64, saved_gptqmodel("gemv", 64))
    unit("gemv_fast_gptqmodel", "gemv_fast", 128, 32, 64, saved_gptqmodel("gemv_fast", 64))
    unit("gemv_hostile", "gemv", 128, 64, 64, hostile=True)
    model("tiny_llama_gemv", "gemv", 32, 2, ["v_proj"])
    model("tiny_llama_gemv_fast", "gemv_fast", 64, 3, ["o_proj"])


if __name__ == "__main__":
    sys.exit(main())

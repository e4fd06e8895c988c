"""Golden MXFP4 models: gpt-oss and DeepSeek-V4's FP4 experts, decoded by transformers (CPU).

Run: `python mxfp4.py` (see ../README.md). It rewrites `../mxfp4/*`.
"""

import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True

from dirs import DirCase, load_all, rounded

import numpy as np
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams
from gptqmodel.utils.model_dequant import dequantize_deepseek_v4_fp4_expert
from transformers import AutoModelForCausalLM, DeepseekV4Config, FineGrainedFP8Config, GptOssConfig, Mxfp4Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from fp8 import BF16, E4M3, E8M0, F32, U8, hf, hf_padded, same

transformers.logging.set_verbosity_error()
L = "model.layers.0."
SCHEME = preset_name_to_scheme("MXFP4A16", ["Linear"])
GPT_OSS = {
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    "quant_method": "mxfp4",
}
LUT = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def encode(w):
    """[N, K] to packed codes [N, K/2] and exponents [N, K/32], by compressed-tensors' MXFP4."""
    g = w.unflatten(-1, (-1, 32))
    scale, _ = calculate_qparams(g.amin(-1), g.amax(-1), SCHEME.weights)
    out = BaseCompressor.get_value_from_registry("mxfp4-pack-quantized").compress({"weight": w, "weight_scale": scale}, SCHEME)
    return out["weight_packed"], out["weight_scale"]


def product(packed, exponents):
    """A second opinion in double precision, rounded once: exact but where F32 overflows."""
    b = packed.contiguous().view(U8).numpy()
    codes = np.stack([b & 15, b >> 4], -1).reshape(*b.shape[:-1], -1)
    scale = np.exp2(exponents.contiguous().view(U8).numpy().astype(float) - 127).repeat(32, -1)
    with np.errstate(over="ignore"):
        return torch.from_numpy((LUT[codes] * scale).astype(np.float32))


def saved(c, config):
    """A model of transformers with random weights: its tensors under the names of the hub, and its config."""
    model = AutoModelForCausalLM.from_config(config, dtype=BF16)
    for name, p in sorted(model.named_parameters()):
        p.data = (c.randn(*p.shape, scale=0.05) + (1 if "norm" in name else 0)).to(p.dtype)
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        return load_all(Path(d)), config.to_dict()


def add_experts(c, name, blocks, scales):
    """[E, R, K/32, 16] and [E, R, K/32] become `name` [E, K, R]."""
    c.add({name + "_blocks": blocks, name + "_scales": scales})
    c.expect(name, convert_moe_packed_tensors(blocks, scales, dtype=F32))
    assert same(c.expected[name], product(blocks.flatten(2), scales).transpose(1, 2).contiguous())
    for dtype in (BF16, torch.float16):
        c.library(name, convert_moe_packed_tensors(blocks, scales, dtype=dtype), "convert_moe_packed_tensors", dtype == BF16)


def gpt_oss_cases():
    c = DirCase("mxfp4", "tiny_gpt_oss")
    config = GptOssConfig(
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=1,
        num_local_experts=2,
        num_experts_per_tok=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=40,
        sliding_window=16,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        rope_scaling={"rope_type": "default", "rope_theta": 10000.0},
    )
    tensors, c.config = saved(c, config)
    c.config["quantization_config"] = GPT_OSS
    c.config["architectures"], c.config["dtype"] = ["GptOssForCausalLM"], "bfloat16"
    for name, t in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            packed, scales = zip(*[encode(e.T.contiguous()) for e in t])
            blocks, scales = torch.stack(packed).unflatten(-1, (-1, 16)), torch.stack(scales)
            add_experts(c, name, blocks, scales)
        else:
            c.keep(name, t)
    c.write(shards=3)
    model = AutoModelForCausalLM.from_pretrained(c.model, quantization_config=Mxfp4Config(dequantize=True), dtype=BF16)
    for name, got in model.state_dict().items():
        want = c.expected[name]
        assert same(got, rounded(want)["bf16"] if want.dtype == F32 else want), name

    # every code under every exponent: 0 is 2^-127, 255 is 2^128, so that 0.5 is finite there and 0 stays 0
    c = DirCase(
        "mxfp4",
        "gpt_oss_exponents",
        {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "quantization_config": GPT_OSS},
    )
    for proj, shape, first in [
        ("gate_up_proj", (2, 64, 64), [0, 1, 2, 126, 127, 128, 253, 254, 255]),
        ("down_proj", (2, 32, 32), [255, 0]),
    ]:
        e, r, k = shape
        codes = (
            torch.stack([torch.randperm(16, generator=c.rng) for _ in range(e * r * k // 16)]).reshape(e, r, k // 32, 32).to(U8)
        )
        scales = torch.randperm(256, generator=c.rng).to(U8)[: e * r * k // 32].view(e, r, k // 32)
        scales.view(-1)[: len(first)] = torch.tensor(first, dtype=U8)
        add_experts(c, f"{L}mlp.experts.{proj}", codes[..., 1::2] << 4 | codes[..., 0::2], scales)
        c.keep(f"{L}mlp.experts.{proj}_bias", c.randn(e, r, scale=0.1).to(BF16))
    c.norm(64)
    c.write()


V4_FP8 = (
    "attn.wq_a",
    "attn.wq_b",
    "attn.wkv",
    "attn.wo_a",
    "attn.wo_b",
    "indexer.wq_b",
    "shared_experts.w1",
    "shared_experts.w2",
    "shared_experts.w3",
)
V4_CONFIG = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
}


def v4_name(name):
    """transformers saves `model.layers...`; DeepSeek's own files have no prefix."""
    name = name.removeprefix("model.").replace("hc_head.", "").replace("hc_hc_head", "hc_head")
    name = {"hc_base": "hc_head_base", "hc_fn": "hc_head_fn", "hc_scale": "hc_head_scale"}.get(name, name)
    return name.replace("embed_tokens", "embed")


def add_fp4(c, base, packed, exponents):
    weight, scale = packed.view(torch.int8), exponents.view(E8M0)
    c.add({base + ".weight": weight, base + ".scale": scale})
    c.expect(base + ".weight", hf(weight, scale))
    for dtype in (BF16, torch.float16):
        c.library(base + ".weight", hf(weight, scale, dtype), "transformers Fp8Dequantize")
        # gptqmodel's table has +0 for code 8, transformers' -0: adding +0 makes them the same
        again = dequantize_deepseek_v4_fp4_expert(weight, scale, target_dtype=dtype)
        assert same(again + 0.0, rounded(c.expected[base + ".weight"])[{BF16: "bf16"}.get(dtype, "f16")] + 0.0), base


def add_fp8(c, base, w):
    """128 x 128 blocks with power-of-two scales; the exponent is that of amax / 448, rounded up."""
    n, k = w.shape
    grid = -(-n // 128), -(-k // 128)
    exponents = torch.zeros(grid, dtype=U8)
    q = torch.zeros(n, k, dtype=U8).view(E4M3)
    for i in range(grid[0]):
        for j in range(grid[1]):
            rows, cols = slice(i * 128, (i + 1) * 128), slice(j * 128, (j + 1) * 128)
            amax = float(w[rows, cols].float().abs().max())
            e = int(np.ceil(np.log2(amax / 448)))
            exponents[i, j] = e + 127
            q[rows, cols] = (w[rows, cols].float() * 2.0**-e).to(E4M3)
    scale = exponents.view(E8M0)
    c.add({base + ".weight": q, base + ".scale": scale})
    c.expect(base + ".weight", hf_padded(q, scale, (128, 128)))
    c.library(base + ".weight", hf_padded(q, scale, (128, 128), BF16), "transformers Fp8Dequantize")


def deepseek_cases():
    c = DirCase("mxfp4", "tiny_deepseek_v4")
    config = DeepseekV4Config(
        vocab_size=24,
        hidden_size=32,
        moe_intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        head_dim=16,
        q_lora_rank=16,
        num_experts_per_tok=1,
        n_routed_experts=2,
        layer_types=["compressed_sparse_attention"],
        mlp_layer_types=["moe"],
        o_groups=2,
        o_lora_rank=16,
        index_n_heads=2,
        index_head_dim=16,
        index_topk=4,
        hc_mult=2,
        qk_rope_head_dim=4,
        partial_rotary_factor=0.25,
        max_position_embeddings=64,
    )
    tensors, c.config = saved(c, config)
    c.config |= {
        "architectures": ["DeepseekV4ForCausalLM"],
        "dtype": "bfloat16",
        "expert_dtype": "fp4",
        "quantization_config": V4_CONFIG,
    }
    for name, t in sorted(tensors.items()):
        name = v4_name(name)
        base = name.removesuffix(".weight")
        if ".experts." in name:
            add_fp4(c, base, *encode(t))
        elif base.endswith(V4_FP8):
            add_fp8(c, base, t)
        else:  # among them hc_attn_scale, hc_ffn_scale, hc_head_scale, which are no scales of weights
            c.keep(name, t)
    assert {"layers.0.hc_attn_scale", "hc_head_scale"} <= c.expected.keys()
    c.write(shards=3)
    reload_v4(c)

    c = DirCase(
        "mxfp4",
        "deepseek_v4_exponents",
        {
            "architectures": ["DeepseekV4ForCausalLM"],
            "model_type": "deepseek_v4",
            "expert_dtype": "fp4",
            "quantization_config": V4_CONFIG,
        },
    )
    for j, (w, (n, k)) in enumerate([("w1", (32, 256)), ("w2", (12, 96)), ("w3", (7, 32))]):
        codes = torch.stack([torch.randperm(16, generator=c.rng) for _ in range(n * k // 16)]).reshape(n, k).to(U8)
        exponents = torch.randperm(256, generator=c.rng).to(U8)[: n * k // 32].view(n, k // 32)
        if w == "w2":  # 255 is NaN: the scale is a F8_E8M0
            exponents.view(-1)[:6] = torch.tensor([255, 0, 1, 254, 127, 2], dtype=U8)
        add_fp4(c, f"layers.0.ffn.experts.{j}.{w}", codes[:, 1::2] << 4 | codes[:, 0::2], exponents)
    # An I8 tensor and a `.scale` that have nothing to do with each other, and FP8 with partial blocks
    add_fp8(c, "layers.0.ffn.shared_experts.w2", c.randn(130, 18, scale=0.05))
    c.keep("layers.0.hc_attn_scale", c.randn(3))
    c.keep("layers.0.attn.q_l2_clip.scale", c.randn(1))
    c.norm(64, "norm.weight")
    c.write()


def reload_v4(c):
    """transformers, which renames and stacks, finds the same values."""
    model = AutoModelForCausalLM.from_pretrained(c.model, quantization_config=FineGrainedFP8Config(dequantize=True), dtype=BF16)
    state, want = model.state_dict(), {k: rounded(v)["bf16"] for k, v in c.expected.items() if v.dtype == F32}
    for ours, theirs in [
        ("attn.wq_a", "self_attn.q_a_proj"),
        ("attn.wo_b", "self_attn.o_b_proj"),
        ("ffn.shared_experts.w2", "mlp.shared_experts.down_proj"),
    ]:
        assert same(state[f"{L}{theirs}.weight"], want[f"layers.0.{ours}.weight"]), ours
    for e in range(2):
        w1, w2, w3 = (want[f"layers.0.ffn.experts.{e}.w{i}.weight"] for i in (1, 2, 3))
        assert same(state[L + "mlp.experts.gate_up_proj"][e], torch.cat([w1, w3]))
        assert same(state[L + "mlp.experts.down_proj"][e], w2)


if __name__ == "__main__":
    gpt_oss_cases()
    deepseek_cases()

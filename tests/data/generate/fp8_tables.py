"""Golden FP8 models whose tables and fused projections have scales of their own kind, decoded by transformers (CPU).

Run: `python fp8_tables.py` (see ../README.md). It rewrites `../fp8_dirs/{engram,ngram_*,fused_qkv*}`. Each row of an Engram
table (DeepSeek-V4.1) has exponents for 32 values, whatever blocks the config has. The shards of an n-gram embedding (Qwen 4)
share one scale. A fused projection of MiMo-V2.5 has a chunk of rows for each head of keys, and blocks begin anew in each:
`Fp8Dequantize` decodes the chunks one by one.
"""

import sys

sys.dont_write_bytecode = True

from dirs import DirCase

import torch

from fp8 import BF16, E8M0, F32, encode, hf

FAMILY = "fp8_dirs"
FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8"}


def exponents(c, *shape):
    return torch.randint(110, 130, shape, generator=c.rng, dtype=torch.uint8).view(E8M0)


def add(c, name, weight, scale_name, scale, view=None):
    c.add({name: weight, scale_name: scale})
    c.expect(name, hf(weight, scale if view is None else view))


def engram():
    config = {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41"}
    quantization = FP8 | {"scale_fmt": "ue8m0", "weight_block_size": [32, 32]}
    c = DirCase(FAMILY, "engram", config | {"quantization_config": quantization})
    add(c, "layers.0.engram.embed.weight", encode(c, 50, 96), "layers.0.engram.embed.scale", exponents(c, 50, 3))
    add(c, "layers.0.engram.wkv.weight", encode(c, 64, 96), "layers.0.engram.wkv.scale", exponents(c, 2, 3))
    c.norm(96, "layers.0.attn_norm.weight")
    c.write()


def ngram(case, quantization, scale, shards=1):
    """`scale` for all shards; the layer's other weights are those of the method."""
    config = {"architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp"}
    text = {"model_type": "qwen4_exp_text", "split_ngram_parts": 3, "ple_embedding_dtype": "float8_e4m3fn"}
    c = DirCase(FAMILY, case, config | {"text_config": text, "quantization_config": quantization})
    layer = "model.language_model.layers.1."
    embedding = layer + "ple.ple_embedding.ngram_embedding."
    c.add({embedding + "weight_scale": scale})
    for i in range(3):
        codes = encode(c, 16 if i < 2 else 5, 40)
        c.add({f"{embedding}shard_{i}.weight": codes})
        c.expect(f"{embedding}shard_{i}.weight", hf(codes, scale.float().view(1, 1)))
    if quantization["quant_method"] == "fp8":
        name = layer + "self_attn.o_proj.weight"
        scales = torch.rand(2, 1, generator=c.rng) * 0.01
        add(c, name, encode(c, 64, 32), name + "_scale_inv", scales)
    c.norm(40, "model.language_model.norm.weight")
    c.write(shards=shards)


def fused(case, rows, heads, config):
    """A chunk of `rows` rows for each of `heads` heads of keys; blocks of 32."""
    config = {"architectures": ["MiMoV2ForCausalLM"], "model_type": "mimo_v2", "num_key_value_heads": heads} | config
    c = DirCase(FAMILY, case, config | {"quantization_config": FP8 | {"weight_block_size": [32, 32]}})
    name = "model.layers.0.self_attn.qkv_proj.weight"
    codes = encode(c, rows * heads, 64)
    scales = torch.rand(heads * -(-rows // 32), 2, generator=c.rng) * 0.01
    c.add({name: codes, name + "_scale_inv": scales})
    whole = lambda s: s.repeat_interleave(32, 0).repeat_interleave(32, 1)[:rows]
    pairs = zip(codes.chunk(heads), scales.chunk(heads))
    c.expect(name, torch.cat([hf(chunk, whole(scale)) for chunk, scale in pairs]))
    c.norm(64, "model.norm.weight")
    c.write()


if __name__ == "__main__":
    engram()
    blocks = FP8 | {"weight_block_size": [32, 32], "modules_to_convert": ["ple.ple_embedding.ngram_embedding"]}
    ngram("ngram_fp8", blocks, torch.tensor([0.0371], dtype=F32))
    ngram("ngram_scalar", blocks, torch.tensor(0.0371, dtype=BF16))
    nvfp4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.ple.*", "mtp*"]}
    ngram("ngram_modelopt", nvfp4, torch.tensor([0.0371], dtype=F32), shards=2)
    fused("fused_qkv", 72, 2, {})
    # As many blocks as without chunks: only the layout tells.
    fused("fused_qkv_layout", 31, 2, {"model_type": "other", "attention_projection_layout": "fused_qkv"})

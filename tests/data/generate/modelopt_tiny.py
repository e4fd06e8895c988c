"""Golden models, quantized and exported by modelopt (`export_hf_checkpoint`) and decoded by its qtensor classes (CPU).

Run: `python modelopt_tiny.py && python modelopt_units.py` (see ../README.md). Together they rewrite `../modelopt/*`.
"""

import shutil

from modelopt_lib import ModelCase, config, expect_all, export_model, sidecars

import transformers as tf
from fp8 import DATA

BASE = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
            head_dim=16, vocab_size=32, tie_word_embeddings=False, dtype="bfloat16", pad_token_id=0, bos_token_id=1,
            eos_token_id=2)


def build(arch, **more):
    Config = {"Llama": tf.LlamaConfig, "Qwen3Moe": tf.Qwen3MoeConfig, "GptOss": tf.GptOssConfig,
              "Llama4": tf.Llama4TextConfig, "Mixtral": tf.MixtralConfig}[arch]
    name = arch + "ForCausalLM"
    return getattr(tf, name)(Config(**BASE | {"architectures": [name]} | more))


def case(name, model, cfg, shards=3, which=("config.json", "hf_quant_config.json"), keep=None):
    """`keep` cuts the model down to names that contain it, where the rest would only repeat other cases."""
    c = ModelCase("modelopt", name, shards=shards)
    tensors, configs, before = export_model(c, model, cfg)
    if keep:
        tensors = {k: v for k, v in tensors.items() if keep in k}
    expect_all(c, tensors, configs, before)
    sidecars(c, configs, which)
    c.write()


def llama_cases():
    case("tiny_llama_fp8", build("Llama"), config("FP8_DEFAULT_CFG", kv="FP8_KV_CFG"))
    # Older exporters wrote hf_quant_config.json only.
    case("tiny_llama_nvfp4", build("Llama"), config("NVFP4_DEFAULT_CFG", kv="NVFP4_KV_CFG"), which=("hf_quant_config.json",))
    case("tiny_llama_mxfp8", build("Llama"), config("MXFP8_DEFAULT_CFG"), which=("config.json",))
    # A whole layer excluded: the exporter writes `model.layers.0*`. Key and value biases of an affine FP8 cache.
    case("tiny_llama_w4a16_nvfp4", build("Llama", num_hidden_layers=2),
         config("W4A16_NVFP4_CFG", ("*layers.0.*", False), ("*layers.1.mlp.down_proj*", False), kv="FP8_AFFINE_KV_CFG"))
    group = {"num_bits": 4, "block_sizes": {-1: 32, "type": "static"}}
    case("tiny_llama_w4a16_awq", build("Llama", hidden_size=64, head_dim=32, vocab_size=16),
         config("INT4_AWQ_CFG", ("*weight_quantizer", group), ("*lm_head*", False)))
    case("tiny_llama_nvfp4_awq", build("Llama"), config("NVFP4_AWQ_LITE_CFG"))
    case("tiny_llama_nvfp4_svd", build("Llama"), config("NVFP4_SVDQUANT_DEFAULT_CFG", lowrank=6), shards=4)
    case("tiny_llama_w8a8_sq", build("Llama"), config("INT8_SMOOTHQUANT_CFG"))


def mixed_case():
    nvfp4 = {"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}}
    mxfp8 = {"num_bits": (4, 3), "block_sizes": {-1: 32, "type": "dynamic", "scale_bits": (8, 0)}}
    int4 = {"num_bits": 4, "block_sizes": {-1: 16, "type": "static"}}
    rules = [(f"*mlp.{p}_proj*{q}_quantizer", nvfp4) for p in ("gate", "up") for q in ("weight", "input")]
    rules += [(f"*mlp.down_proj*{q}_quantizer", mxfp8) for q in ("weight", "input")]
    rules += [("*o_proj*weight_quantizer", int4), ("*o_proj*input_quantizer", False)]
    case("tiny_llama_mixed", build("Llama"), config("FP8_DEFAULT_CFG", *rules), shards=4)


def moe_cases():
    case("tiny_qwen3_moe_nvfp4", build("Qwen3Moe", num_experts=2, num_experts_per_tok=1, moe_intermediate_size=32),
         config("NVFP4_DEFAULT_CFG"))
    small = dict(num_local_experts=2, num_experts_per_tok=1, intermediate_size=16)
    case("tiny_mixtral_fp8", build("Mixtral", **small), config("FP8_DEFAULT_CFG"), shards=2)
    # Stacked experts, `[expert, in, out]`.
    llama4 = small | dict(intermediate_size_mlp=16, moe_layers=[0])
    for algo, name in [("NVFP4_DEFAULT_CFG", "nvfp4"), ("FP8_DEFAULT_CFG", "fp8"), ("FP8_PER_CHANNEL_PER_TOKEN_CFG", "fp8_pc_pt")]:
        case(f"tiny_llama4_{name}", build("Llama4", **llama4), config(algo), shards=3, keep=".feed_forward.experts.")
    case("tiny_gpt_oss_nvfp4", build("GptOss", **small, layer_types=["full_attention"]), config("NVFP4_DEFAULT_CFG"), shards=2,
         keep=".mlp.")
    case("tiny_gpt_oss_fp8", build("GptOss", **small, layer_types=["full_attention"]), config("FP8_DEFAULT_CFG"), shards=2,
         keep=".mlp.")
    case("tiny_gpt_oss_mxfp4", build("GptOss", **small | dict(hidden_size=32), layer_types=["full_attention"]),
         config("MXFP4_MLP_WEIGHT_ONLY_CFG"), shards=3, keep=".mlp.")


if __name__ == "__main__":
    shutil.rmtree(DATA / "modelopt", ignore_errors=True)
    llama_cases()
    mixed_case()
    moe_cases()

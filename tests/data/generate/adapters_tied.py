"""Adapters of PEFT that change embeddings and heads, models in which both are one or two tensors, and what `merge_and_unload` makes of them.

    python -P adapters_tied.py OUT

peft 0.21.2, transformers 5.24.0, torch 2.15.0. OUT gets `base-tied/` and `base-untied/`, a directory for each adapter, and `expected-BASE-ADAPTER.safetensors`: the
tensors that change or that the base lacks, which peft computes in F64 and which are rounded once to F32. Its metadata has what the config of the merged model says.
"""

import copy
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Qwen2Config, Qwen2ForCausalLM

OUT = Path(sys.argv[1])
Q, E, H = "q_proj", "embed_tokens", "lm_head"
BOTH, TOKENS = ("tied", "untied"), {E: [3, 7], H: [1, 5]}

# Name: the bases, the tokens of the vocabulary (20 in the base), whether PEFT is asked to save embeddings, and its settings.
ADAPTERS = {
    "grown": (BOTH, 24, True, dict(target_modules=[Q])),
    "grown-dora": (BOTH, 24, True, dict(target_modules=[Q], use_dora=True)),
    "shrunk": (BOTH, 16, True, dict(target_modules=[Q], use_rslora=True)),
    "saved-as-they-are": (BOTH, None, True, dict(target_modules=[Q])),
    "copy-head": (BOTH, None, "auto", dict(target_modules=[Q], modules_to_save=[H])),
    "copy-both": (BOTH, None, "auto", dict(target_modules=[Q], modules_to_save=[E, H])),
    "copy-both-grown": (BOTH, 24, "auto", dict(target_modules=[Q], modules_to_save=[E, H])),
    "copy-tied": (BOTH, None, "auto", dict(target_modules=[Q], modules_to_save=[E], ensure_weight_tying=True)),
    "copy-tied-grown": (BOTH, 24, True, dict(target_modules=[Q], modules_to_save=[E], ensure_weight_tying=True)),
    "lora-head": (BOTH, None, False, dict(target_modules=[Q, H])),
    "lora-head-saved": (BOTH, None, "auto", dict(target_modules=[Q, H], use_rslora=True)),
    "lora-head-dora": (BOTH, None, False, dict(target_modules=[Q, H], use_dora=True)),
    "lora-both": (BOTH, None, False, dict(target_modules=[Q, H, E])),
    "lora-both-tied": (BOTH, None, False, dict(target_modules=[Q, E], ensure_weight_tying=True)),
    "lora-embedding-grown": (("tied",), 24, True, dict(target_modules=[Q, E])),
    "lora-head-copy-embedding": (BOTH, None, "auto", dict(target_modules=[Q, H], modules_to_save=[E])),
    "lora-embedding-copy-head": (BOTH, None, "auto", dict(target_modules=[Q, E], modules_to_save=[H])),
    "tokens": (BOTH, None, False, dict(target_modules=[Q], trainable_token_indices=[7, 3])),
    "tokens-tied": (BOTH, None, False, dict(target_modules=[Q], trainable_token_indices=[3, 7], ensure_weight_tying=True)),
    "tokens-of-both": (BOTH, None, False, dict(target_modules=[Q], trainable_token_indices=TOKENS)),
    "tokens-of-both-alike": (BOTH, None, False, dict(target_modules=[Q], trainable_token_indices={E: [3, 7], H: [3, 7]})),
    "tokens-of-head": (BOTH, None, False, dict(target_modules=[Q], trainable_token_indices={H: [1, 3]})),
    "tokens-grown": (BOTH, 24, True, dict(target_modules=[Q], trainable_token_indices=[3, 22])),
    "tokens-lora-head": (("untied",), None, False, dict(target_modules=[Q, H], trainable_token_indices=[3, 7])),
    "score": (("untied",), None, False, dict(target_modules=[Q], task_type="SEQ_CLS")),
}


def randomize(model, seed):
    """Trains the adapter: every tensor of it gets values of the size that training gives."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                noise = torch.randn(p.shape, generator=generator)
                if "lora_magnitude" in name:
                    p.mul_(1 + 0.1 * noise)
                else:
                    p.copy_(0.1 * noise)


def model(base, tokens, task):
    kind, options = AutoModelForCausalLM, {}
    if task:
        kind, options = AutoModelForSequenceClassification, dict(num_labels=3, pad_token_id=0)
    made = kind.from_pretrained(OUT / f"base-{base}", dtype=torch.float32, **options).eval()
    if tokens:
        made.resize_token_embeddings(tokens)
    return made


OUT.mkdir(parents=True, exist_ok=True)
for tied in (True, False):
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(
        hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, vocab_size=20,
        max_position_embeddings=32, tie_word_embeddings=tied, initializer_range=0.1)).save_pretrained(OUT / f"base-{'tied' if tied else 'untied'}")
for seed, (name, (bases, tokens, saves, options)) in enumerate(ADAPTERS.items()):
    for base in bases:
        out = OUT / (name if len(bases) == 1 else f"{name}-{base}")
        task = options.get("task_type")
        torch.manual_seed(seed)
        adapted = get_peft_model(model(base, tokens, task), LoraConfig(r=2, lora_alpha=3, **options))
        randomize(adapted, seed)
        adapted.save_pretrained(out, save_embedding_layers=saves)
        (out / "README.md").unlink(missing_ok=True)
        before = model(base, None, None).state_dict()
        merged = PeftModel.from_pretrained(model(base, tokens, task).double(), out).double().merge_and_unload()
        state = {k: v.detach().float().contiguous().clone() for k, v in merged.state_dict().items()}
        has_head = H + ".weight" in state and merged.lm_head.weight.data_ptr() != merged.model.embed_tokens.weight.data_ptr()
        if not has_head:
            state.pop(H + ".weight", None)
        if base == "tied":
            before.pop(H + ".weight")
        changed = {k: v for k, v in state.items() if k not in before or not torch.equal(v, before[k])}
        config = {"vocab_size": str(merged.config.vocab_size), "tie_word_embeddings": str(merged.config.tie_word_embeddings).lower()}
        save_file(changed, OUT / f"expected-{base}-{name}.safetensors", config)
        print(base, name, sorted(k for k in changed if "q_proj" not in k), config)

"""Adapters of PEFT for experts that transformers holds as one stack and stores apart, a model that has them, and what
`merge_and_unload` makes of both.

    python -P adapters_experts.py OUT

peft 0.21.2, transformers 5.24.0, torch 2.15.0. OUT gets `base-experts/`, ADAPTER/ for each adapter, and
`expected-base-experts-ADAPTER.safetensors`: the tensors that change, which peft computes in F64, as transformers stores them, rounded
once to F32.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

OUT = Path(sys.argv[1])
ADAPTERS = {
    "experts-apart": dict(r=3, lora_alpha=5, target_modules=["q_proj"], rank_pattern={"experts.down_proj": 2},
                          target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
    "experts-apart-up": dict(r=2, lora_alpha=8, target_modules=[], use_rslora=True, target_parameters=["experts.gate_up_proj"]),
}


def load(dtype):
    return AutoModelForCausalLM.from_pretrained(OUT / "base-experts", dtype=dtype)


def stored(model):
    """The tensors as `save_pretrained` stores them."""
    with tempfile.TemporaryDirectory() as place:
        model.save_pretrained(place)
        return {k: v for file in Path(place).glob("*.safetensors") for k, v in load_file(file).items()}


torch.manual_seed(0)
config = Qwen3MoeConfig(vocab_size=16, hidden_size=16, intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=2,
                        num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_experts=3, num_experts_per_tok=2,
                        max_position_embeddings=64, tie_word_embeddings=False)
shutil.rmtree(OUT / "base-experts", ignore_errors=True)
Qwen3MoeForCausalLM(config).float().save_pretrained(OUT / "base-experts")
(OUT / "base-experts/generation_config.json").unlink(missing_ok=True)
before = stored(load(torch.float32))
assert "model.layers.0.mlp.experts.2.gate_proj.weight" in before
for seed, (name, options) in enumerate(ADAPTERS.items()):
    model = get_peft_model(load(torch.float32), LoraConfig(**options))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.copy_(0.1 * torch.randn(p.shape, generator=generator))
    model.save_pretrained(OUT / name)
    (OUT / name / "README.md").unlink(missing_ok=True)
    merged = PeftModel.from_pretrained(load(torch.float64), OUT / name).to(torch.float64).merge_and_unload()
    after = {k: v.float().contiguous() for k, v in stored(merged).items()}
    assert after.keys() == before.keys()
    changed = {k: v for k, v in after.items() if not torch.equal(v, before[k])}
    save_file(changed, OUT / f"expected-base-experts-{name}.safetensors")
    print(name, len(changed), "tensors")

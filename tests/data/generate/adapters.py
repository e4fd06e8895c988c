"""Adapters of PEFT, the models that they belong to, and what `merge_and_unload` makes of both.

    AMN=amn python adapters.py OUT GUIDE GPT2

peft 0.21.2, transformers 4.57.6, torch 2.15.0. AMN is the program, which makes the quantized models and decodes them: peft merges
into what they decode to. GUIDE is tests/data/guide/TinyLlama, whose tokenizer the model gets, GPT2 tests/data/whole/gpt2/hf.
OUT gets `base*`, ADAPTER/ for each adapter, and `expected-BASE-CASE.safetensors`: the tensors that change, which peft
computes in F64 and which are rounded once to F32. Prints how far peft in F32 is from that, in units of the last place of the larger of
the weight and the result: its products have no order of their own.
"""

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

OUT, GUIDE, GPT2 = map(Path, sys.argv[1:4])
AMN = os.environ["AMN"]
ADAPTERS = {
    "plain": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]),
    "patterns": dict(r=8, lora_alpha=12, use_rslora=True, target_modules=["q_proj", "k_proj", "up_proj"],
                     rank_pattern={"q_proj": 2}, alpha_pattern={"layers.0.mlp.up_proj": 5}),
    "embedding": dict(r=3, lora_alpha=7, target_modules=["embed_tokens", "lm_head"]),
    "saved": dict(r=5, lora_alpha=5, target_modules=["k_proj"], modules_to_save=["lm_head", "norm"]),
    "dora": dict(r=4, lora_alpha=6, use_dora=True, target_modules=["q_proj", "o_proj", "down_proj"]),
}
# Case: adapters with their weights.
CASES = {name: [(name, 1.0)] for name in ADAPTERS}
CASES["two"] = [("plain", 0.5), ("patterns", -1.25)]


def amn(*args):
    subprocess.run([AMN, *map(str, args), "-q", "-f"], check=True)


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
                    p.copy_((0.02 if "lora_B" in name or "embedding_B" in name else 0.1) * noise)


def make_adapter(base, name, options, seed, dtype=None):
    model = get_peft_model(copy.deepcopy(base), LoraConfig(**options))
    randomize(model, seed)
    model.save_pretrained(OUT / name, save_embedding_layers=False)
    (OUT / name / "README.md").unlink(missing_ok=True)
    if dtype:
        path = OUT / name / "adapter_model.safetensors"
        save_file({k: v.to(dtype) for k, v in load_file(path).items()}, path, {"format": "pt"})


def merged(base, adapters, dtype):
    model = copy.deepcopy(base).to(dtype)
    (first, weight), *more = adapters
    model = PeftModel.from_pretrained(model, OUT / first, adapter_name=first)
    for name, _ in more:
        model.load_adapter(OUT / name, adapter_name=name)
    # Before it computes: weights of adapters come as F32.
    model = model.to(dtype)
    names = [name for name, _ in adapters]
    if more:
        # The combination `cat` is the sum of the scaled products.
        model.add_weighted_adapter(names, [w for _, w in adapters], "sum", combination_type="cat")
        model.set_adapter("sum")
    model = model.to(dtype).merge_and_unload()
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def ulps(a, b, weight):
    scale = torch.maximum(b.abs(), weight.abs())
    ulp = (torch.nextafter(scale, torch.tensor(float("inf"))) - scale).double()
    return ((a.double() - b.double()).abs() / ulp).max().item()


def expect(base, base_name, case, adapters):
    before = base.state_dict()
    f32, f64 = (merged(base, adapters, dtype) for dtype in (torch.float32, torch.float64))
    f64 = {k: v.float().contiguous() for k, v in f64.items()}
    changed = {k: v for k, v in f64.items() if not torch.equal(v, before[k])}
    assert changed, case
    save_file(changed, OUT / f"expected-{base_name}-{case}.safetensors")
    print(base_name, case, len(changed), f"{max(ulps(f32[k], v, before[k]) for k, v in changed.items()):.2f} ulp")


def f32(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


OUT.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
llama = LlamaForCausalLM(LlamaConfig(
    hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, vocab_size=288,
    max_position_embeddings=512, bos_token_id=0, eos_token_id=1, initializer_range=0.05)).eval()
llama.save_pretrained(OUT / "base")
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(GUIDE / name, OUT / "base")
for seed, (name, options) in enumerate(ADAPTERS.items()):
    make_adapter(llama, name, options, seed, torch.bfloat16 if name == "patterns" else None)
for case, adapters in CASES.items():
    expect(llama, "base", case, adapters)
for scheme, to in (("fp8", "fp8-channel"), ("nf4", "nf4"), ("q8_0", "gguf:q8_0")):
    stored = OUT / f"base-{scheme}{'.gguf' if scheme == 'q8_0' else ''}"
    amn("forget", OUT / "base", "--to", to, "-o", stored)
    decoded = OUT / "decoded"
    shutil.rmtree(decoded, ignore_errors=True)
    amn("remember", stored, "--to", "f32", "-o", decoded)
    for case in ("plain", "dora", "two"):
        expect(f32(decoded), f"base-{scheme}", case, CASES[case])
    shutil.rmtree(decoded)
gpt2 = f32(GPT2)
make_adapter(gpt2, "gpt2", dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True), 9)
expect(gpt2, "gpt2", "gpt2", [("gpt2", 1.0)])

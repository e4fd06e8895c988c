"""Golden models of GPT-2, whose `Conv1D` has weights `[in, out]` (transformers 5.24.0, CPU).

Run: `python conv1d_cases.py` (see ../README.md). It rewrites `../conv1d/*`. bitsandbytes 0.50.2 and auto-round 0.16.1 store them
`[out, in]`; expected are those that the library decodes, transposed.
"""

import json
import os
import tempfile
from pathlib import Path

os.environ["AR_DISABLE_DATASET_SUBPROCESS"] = "1"

from autoround_free import exact
from fp8 import F32
from modelcase import ModelCase, total

import bitsandbytes as bnb
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

BNB = {"bnb4": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"), "bnb8": BitsAndBytesConfig(load_in_8bit=True)}


def source(case, path, width):
    sizes = dict(n_embd=width, n_inner=2 * width, n_layer=1, n_head=2, vocab_size=24, n_positions=16)
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=1))
    for name, p in sorted(model.named_parameters()):
        p.data = case.randn(*p.shape) * 0.1 + (1 if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")) else 0)
    model.save_pretrained(path)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(24)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w0", eos_token="w1").save_pretrained(path)


def by_bitsandbytes(name, path, out):
    model = AutoModelForCausalLM.from_pretrained(path, quantization_config=BNB[name], device_map="cpu", dtype=F32)
    model.save_pretrained(out)
    expected = {}
    for module_name, module in model.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            values = bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
        elif isinstance(module, bnb.nn.Linear8bitLt):
            values = bnb.functional.int8_vectorwise_dequant(module.weight.CB, module.weight.SCB)
        else:
            continue
        expected[module_name] = values
    return out, expected


def by_auto_round(path, out):
    from auto_round import AutoRound

    data = [{"input_ids": torch.arange(16)[None], "attention_mask": torch.ones(1, 16, dtype=torch.long)}] * 2
    more = dict(iters=0, nsamples=2, seqlen=16, device_map="cpu", dataset=data, disable_opt_rtn=True, disable_model_free=True)
    made = AutoRound(str(path), scheme="W4A16", group_size=32, **more)
    out = Path(made.quantize_and_save(str(out), format="auto_round")[1])
    tensors, expected = load_file(out / "model.safetensors"), {}
    for name in tensors:
        if name.endswith(".qweight"):
            base = name.removesuffix(".qweight")
            parts = {part: tensors[f"{base}.{part}"] for part in ("qweight", "qzeros", "scales")}
            expected[base] = exact(parts, 4, True)
    return out, expected


def case(name):
    c = ModelCase("conv1d", name)
    with tempfile.TemporaryDirectory() as work:
        path, out = Path(work) / "source", Path(work) / "out"
        # bitsandbytes' kernel for the CPU takes no rows shorter than blocks.
        source(c, path, 64 if name == "bnb4" else 32)
        out, expected = by_bitsandbytes(name, path, out) if name in BNB else by_auto_round(path, out)
        stored, plain = load_file(out / "model.safetensors"), load_file(path / "model.safetensors")
        c.sidecar("config.json", json.loads((out / "config.json").read_text()))
    for key, t in stored.items():
        c.tensors[key] = t
    for key, t in plain.items():
        module = key.removesuffix(".weight")
        if module not in expected:
            c.expected[key] = stored[key]
            continue
        values = expected[module].to(F32).t().contiguous()
        assert values.shape == t.shape and (values - t).norm() < 0.25 * t.norm(), key
        c.expected[key] = values
    assert expected
    c.write()


if __name__ == "__main__":
    for name in ("gptq", "bnb4", "bnb8"):
        case(name)
    total("conv1d")

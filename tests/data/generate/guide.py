"""Writes tests/data/guide/TinyLlama: the model of the guides, a random Llama of one layer whose rows every scheme can encode.

    python guide.py OUT        (torch 2.6.0, transformers 4.57.6)
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

source = Path(__file__).resolve().parent.parent / "whole" / "llama" / "hf"
out = Path(sys.argv[1]) / "TinyLlama"
config = LlamaConfig.from_pretrained(source)
# Rows of 256 values are blocks of llama.cpp's K-quants; everything is a multiple of 128 for FP8 in blocks.
config.update({
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-5,
})
torch.manual_seed(0)
model = LlamaForCausalLM(config).to(torch.bfloat16)
model.save_pretrained(out)
for name in ["tokenizer.json", "tokenizer_config.json"]:
    shutil.copy(source / name, out / name)

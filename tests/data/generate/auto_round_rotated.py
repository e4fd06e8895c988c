"""Golden models with a rotation_config, made by auto-round 0.16.1 (CPU).

Run: `python auto_round_rotated.py` (see ../README.md). It rewrites `../transforms/auto_round_*`.

Expected are the stored values times the matrix of the inputs' hooks, in F64: sums are exact, for a block has one scale that is a power
of two, and the matrix is one number with signs.
"""

import json
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.pop(0)  # Scripts beside this one have the names of libraries.
os.environ["AR_DISABLE_DATASET_SUBPROCESS"] = "1"

import torch
from auto_round import AutoRound
from auto_round.algorithms.transforms.hadamard.utils.math import deterministic_hadamard_matrix
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

OUT = Path(__file__).parent.parent / "transforms"
LEVELS = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
SIZES = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16)


def make(kind, source, out):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, vocab_size=24, tie_word_embeddings=False)).to(torch.bfloat16)
    model.save_pretrained(source)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(24)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w0", eos_token="w1").save_pretrained(source)
    data = [{"input_ids": torch.arange(16)[None], "attention_mask": torch.ones(1, 16, dtype=torch.long)}] * 2
    more = dict(iters=0, nsamples=2, seqlen=16, device_map="cpu", dataset=data, disable_opt_rtn=True, disable_model_free=True)
    made = AutoRound(str(source), scheme="MXFP4", rotation_config=kind, **more)
    return Path(made.quantize_and_save(str(out), format="auto_round")[1])


def case(name, kind):
    with tempfile.TemporaryDirectory() as work:
        made = make(kind, Path(work) / "source", Path(work) / "out")
        directory = OUT / name
        shutil.rmtree(directory, ignore_errors=True)
        (directory / "model").mkdir(parents=True)
        config = json.loads((made / "config.json").read_text())
        (directory / "model/config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        tensors = load_file(made / "model.safetensors")
    save_file(tensors, directory / "model/model.safetensors", {"format": "pt"})
    stored = [n for n in tensors if n.endswith(".hadamard_matrix")]
    assert len(stored) == (kind == "random_hadamard")
    # A matrix that is not stored is divided in F64, as those of compressed-tensors.
    matrix = tensors[stored[0]] if stored else deterministic_hadamard_matrix(32)
    root = 1 if stored else math.sqrt(32)
    expected = {}
    for n, t in tensors.items():
        if n.endswith(".weight_packed"):
            weight = n.removesuffix("_packed")
            codes = torch.stack([t & 15, t >> 4], -1).flatten(1).long()
            scale = 2.0 ** (tensors[f"{weight}_scale"].double() - 127)
            values = torch.tensor(LEVELS, dtype=torch.float64)[codes] * scale.repeat_interleave(32, 1)
            values = (values.unflatten(1, (-1, 32)) @ matrix.double()).flatten(1) / root
            expected[weight] = (values + 0.0).float()
        elif not n.endswith((".weight_scale", ".hadamard_matrix")):
            expected[n] = t
    save_file(expected, directory / "expected-f32.safetensors", {"format": "pt"})


case("auto_round_hadamard", "hadamard")
case("auto_round_random", "random_hadamard")

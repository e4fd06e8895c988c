"""Compares the scores of classifiers in llama.cpp with those of transformers.

    python check_classifiers.py AMN WHOLE SCRATCH [NAME...]

transformers 5.24.0, torch 2.15.0; llama.cpp's C API of the wheel xllamacpp 2026.10.11549. AMN is the program, WHOLE is
tests/data/whole. Of each model, the relative error ||a - b|| / ||b|| of the scores of a text, in F32: b is what transformers
computes, and then, where llama.cpp computes something else on purpose, what transformers computes with the same change.
"""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from check_graphs import library
from transformers import AutoModelForSequenceClassification, logging

logging.set_verbosity_error()
IDS = [5, 17, 100, 33, 260, 7, 9, 200]
RANK = 4


class Batch(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int32), ("pointers", ctypes.c_void_p * 6)]


def in_llama(gguf, labels):
    api = library()
    model = api.llama_model_load_from_file(str(gguf).encode(), api.llama_model_default_params())
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 64
    params.pooling_type, params.n_threads, params.flash_attn_type = RANK, 1, 0
    context = ctypes.c_void_p(api.llama_init_from_model(ctypes.c_void_p(model), params))
    api.llama_set_embeddings(context, True)
    ids = (ctypes.c_int32 * len(IDS))(*IDS)
    api.llama_batch_get_one.restype = Batch
    assert api.llama_encode(context, api.llama_batch_get_one(ids, len(IDS))) == 0
    api.llama_get_embeddings_seq.restype = ctypes.POINTER(ctypes.c_float)
    found = api.llama_get_embeddings_seq(context, 0)
    return np.array(found[:labels])


def scores(model):
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


def as_llama(model):
    """The scores with what llama.cpp does otherwise: no pooler of BERT, tanh in place of DistilBERT's ReLU."""
    with torch.no_grad():
        if "DistilBert" in type(model).__name__:
            state = torch.tanh(model.pre_classifier(model.distilbert(torch.tensor([IDS]))[0][:, 0]))
        elif hasattr(model, "bert"):
            state = model.bert(torch.tensor([IDS]))[0][:, 0]
        else:
            return None
        return model.classifier(state)[0].numpy()


if __name__ == "__main__":
    amn, whole, scratch = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    for name in sys.argv[4:] or sorted(path.name for path in whole.glob("*_rank")):
        gguf = scratch / f"{name}.gguf"
        subprocess.run([amn, "convert", whole / name / "hf", "--to", "gguf", "--out-dtype", "f32", "-o", gguf, "-f"], check=True, capture_output=True)
        found = in_llama(gguf, len(json.loads((whole / name / "hf/config.json").read_text())["id2label"]))
        model = AutoModelForSequenceClassification.from_pretrained(whole / name / "hf", dtype=torch.float32).eval()
        error = lambda expected: np.linalg.norm(found - expected) / np.linalg.norm(expected)
        changed = as_llama(model)
        print(f"{name}: {found} off by {error(scores(model)):.1e}", "" if changed is None else f"with the change by {error(changed):.1e}")

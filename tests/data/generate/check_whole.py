"""Checks the models of tests/data/whole in both programs that are to run them.

    python check_whole.py AMN WHOLE [NAME...]

AMN is the program, WHOLE is tests/data/whole. Needs torch, transformers 4.57.6 (5.23.0 for Qwen 3.5,
GLM 4.7 Flash, MiniMax, Gemma 4, LFM 2 with experts and Mamba; 5.24.0 for Apertus, Falcon Mamba, OLMo 1, GPTBigCode and MPT) and llama-cpp-python 0.3.36.

To GGUF: llama.cpp loads what `amn convert` writes, its logits (of encoders: hidden states, or the score of a text) are those of transformers
(everything in F32), and a page of mixed text
has the same token ids. Back: transformers loads what `amn remember` makes of the file of llama.cpp's converter without a missing or an
unexpected key, with the same weights, logits and token ids.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import ctypes

import llama_cpp
import numpy as np
import sums
import torch
import transformers
from llama_cpp import Llama
from transformers import AutoTokenizer, logging
from whole_models import AUTO, WRITTEN

logging.set_verbosity_error()
# Of gpt-oss, llama.cpp rounds YaRN's bounds, which the model does not. Of the others, ggml has a table of GELU in F16.
NOISE = {"gpt_oss": 1e-4}
# Models whose tokenizer is a table of tiktoken's ranks, and a class beside it.
RANKED = {"kimi_k2", "hunyuan_moe"}
IDS = [5, 17, 100, 33, 260, 7, 9, 200]
PAGE = """Hello world! I'm here, you're there; we've 12345 things \u2014 na\u00efve caf\u00e9, \u6771\u4eac and \u0417\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439\u0442\u0435.
\u0645\u0631\u062d\u0628\u0627  \U0001f642\U0001f44d\U0001f3fd
    def f(x):\treturn x**2 + 1  # code


the model reads tensors
"""


def logits(model):
    with torch.no_grad():
        is_pair = model.config.is_encoder_decoder
        out = model(torch.tensor([IDS]), decoder_input_ids=torch.tensor([IDS[::-1]])) if is_pair else model(torch.tensor([IDS]))
    return (out.logits if "logits" in out else out.last_hidden_state)[0].numpy()


def encoded(gguf, has_score):
    """The hidden states of an encoder, or its score of the text."""
    llama = Llama(str(gguf), n_ctx=64, n_batch=64, n_ubatch=64, embedding=True, verbose=False, n_threads=1,
                  pooling_type=llama_cpp.LLAMA_POOLING_TYPE_RANK if has_score else llama_cpp.LLAMA_POOLING_TYPE_NONE)
    llama._batch.add_sequence(IDS, 0, True)
    assert llama_cpp.llama_encode(llama._ctx.ctx, llama._batch.batch) == 0
    if has_score:
        return llama, np.array(llama_cpp.llama_get_embeddings_seq(llama._ctx.ctx, 0)[:1])
    width = llama.n_embd()
    states = ctypes.cast(llama_cpp.llama_get_embeddings(llama._ctx.ctx), ctypes.POINTER(ctypes.c_float))
    return llama, np.array(states[: len(IDS) * width]).reshape(len(IDS), width)


def decoded(gguf):
    """The logits of a decoder behind an encoder of another text."""
    llama = Llama(str(gguf), n_ctx=64, logits_all=True, verbose=False, n_threads=1, type_k=0, type_v=0)
    llama._batch.set_batch(IDS, 0, True)
    assert llama_cpp.llama_encode(llama._ctx.ctx, llama._batch.batch) == 0
    llama.eval(IDS[::-1])
    return llama, np.array(llama.scores[: len(IDS)])


def check(amn, whole, name, scratch):
    hf, gguf, back, canonical = whole / name / "hf", scratch / f"{name}.gguf", scratch / name, scratch / "canonical.gguf"
    canonical.write_bytes(sums.restored(amn, whole / name / "canonical.sums"))
    subprocess.run([amn, "convert", hf, "--to", "gguf", "--out-dtype", "f32", "-o", gguf], check=True, capture_output=True)
    subprocess.run([amn, "remember", canonical, "-o", back], check=True, capture_output=True)
    if name == "gemma3n":  # llama.cpp has the published sizes alone, and their logits differ by a variance over n - 1
        model, again = (transformers.AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.float32) for path in (hf, back))
        assert np.array_equal(logits(model), logits(again)), name
        print(f"{name}: back without a difference")
        return
    if name in WRITTEN:  # of classes that transformers does not have, llama.cpp loads the tensors
        Llama(str(gguf), n_ctx=64, embedding=name.endswith("bert"), verbose=False, n_threads=1)
        print(f"{name}: llama.cpp loads it")
        return
    # transformers knows Kimi K2 by the class that it is, and tokenizers of ranks by their source alone.
    auto = getattr(transformers, "DeepseekV3ForCausalLM" if name == "kimi_k2" else AUTO.get(name, "AutoModelForCausalLM"))
    model = auto.from_pretrained(hf, torch_dtype=torch.float32)
    expected = logits(model)

    if model.config.is_encoder_decoder:
        llama, found = decoded(gguf)
    elif name in AUTO:
        llama, found = encoded(gguf, "Classification" in AUTO[name])
    else:
        llama = Llama(str(gguf), n_ctx=64, logits_all=True, verbose=False, n_threads=1, type_k=0, type_v=0)
        llama.eval(IDS)
        found = np.array(llama.scores[: len(IDS)])
    if name == "t5_ungated":  # llama.cpp does not scale what goes into a tied output
        found = found * model.config.d_model**-0.5
    error = ((found - expected) ** 2).sum() / (expected**2).sum()
    assert error < NOISE.get(name, 1e-6), (name, error)
    if name in RANKED:
        tokens = AutoTokenizer.from_pretrained(hf, trust_remote_code=True)._tokenize(PAGE)
    else:
        tokens = AutoTokenizer.from_pretrained(hf)(PAGE, add_special_tokens=False).input_ids
    assert tokens == llama.tokenize(PAGE.encode(), add_bos=False, special=True), name
    if name in RANKED:
        assert tokens == AutoTokenizer.from_pretrained(back)(PAGE, add_special_tokens=False).input_ids, name

    # Of Jamba, transformers asks for kernels that need a GPU unless it is told.
    plain = {"use_mamba_kernels": False} if name == "jamba" else {}
    again, info = auto.from_pretrained(back, torch_dtype=torch.float32, output_loading_info=True, **plain)
    # transformers does not load the layers that predict further tokens.
    extra = {"glm4_moe_mtp": {"model.layers.2."}, "deepseek_v32": {"model.layers.3."}}.get(name, set())
    # GGUF has no pooler, which makes no vector of sentence-transformers.
    info["missing_keys"] = {key for key in info["missing_keys"] if not key.startswith("pooler.")}
    info["unexpected_keys"] = [key for key in info["unexpected_keys"] if not any(map(key.startswith, extra))]
    assert not any(info.values()), (name, info)
    weights = again.state_dict()
    expected_weights = {key: weight for key, weight in model.state_dict().items() if not key.startswith("pooler.")}
    assert all(torch.equal(weight, weights[key]) for key, weight in expected_weights.items()), name
    assert np.array_equal(logits(again), expected), name
    print(f"{name}: logits differ by {error:.1e} of their power in llama.cpp, {len(tokens)} tokens, back without a difference")


if __name__ == "__main__":
    amn, whole = sys.argv[1], Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as scratch:
        for name in sys.argv[3:] or sorted(path.name for path in whole.iterdir()):
            check(amn, whole, name, Path(scratch))

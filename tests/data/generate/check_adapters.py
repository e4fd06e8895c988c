"""Checks in llama.cpp that a model with an adapter beside it computes what the model with the adapter merged does.

    python -P check_adapters.py AMN WHOLE NAME...

WHOLE is tests/data/whole, NAME a language model there. xllamacpp 2026.10, whose library is called as check_graphs.py calls it. Everything is
in F32. Prints the largest difference of the last token's logits, and what the adapter changes, in parts of the largest logit.
"""

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from adapters_gguf import make
from check_graphs import library
from safetensors.numpy import load_file, save_file
from whole_class_checks import IDS, Batch

HANDLE = ctypes.c_void_p


def logits(api, path, adapter=None):
    model = HANDLE(api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params()))
    assert model.value, "llama.cpp does not load the model"
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 64
    params.flash_attn_type, params.type_k, params.type_v, params.n_threads, params.n_threads_batch = 0, 0, 0, 1, 1
    loaded = HANDLE(api.llama_adapter_lora_init(model, str(adapter).encode())) if adapter else None
    assert adapter is None or loaded.value, "llama.cpp does not load the adapter"
    context = HANDLE(api.llama_init_from_model(model, params))
    if adapter:
        assert api.llama_set_adapters_lora(context, (HANDLE * 1)(loaded), 1, (ctypes.c_float * 1)(1.0)) == 0
    ids = (ctypes.c_int32 * len(IDS))(*(i % 256 for i in IDS))
    assert api.llama_decode(context, api.llama_batch_get_one(ctypes.cast(ids, HANDLE), len(IDS))) == 0
    tokens = api.llama_vocab_n_tokens(HANDLE(api.llama_model_get_vocab(model)))
    return np.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), (tokens,)).copy()


def declared():
    api = library()
    api.llama_adapter_lora_init.restype, api.llama_adapter_lora_init.argtypes = HANDLE, [HANDLE, ctypes.c_char_p]
    api.llama_set_adapters_lora.argtypes = [HANDLE, ctypes.POINTER(HANDLE), ctypes.c_size_t, ctypes.POINTER(ctypes.c_float)]
    api.llama_batch_get_one.restype, api.llama_batch_get_one.argtypes = Batch, [HANDLE, ctypes.c_int32]
    api.llama_decode.argtypes = [HANDLE, Batch]
    api.llama_model_get_vocab.restype = HANDLE
    api.llama_get_logits_ith.restype, api.llama_get_logits_ith.argtypes = ctypes.POINTER(ctypes.c_float), [HANDLE, ctypes.c_int32]
    return api


def main(amn, whole, *names):
    api = declared()
    for name in names:
        with tempfile.TemporaryDirectory() as work:
            work = Path(work)

            def run(*args):
                subprocess.run([amn, *map(str, args), "-q"], check=True)

            make(Path(whole) / name / "hf", work / "adapter")
            weights = work / "adapter/adapter_model.safetensors"
            save_file({key: value / 50 for key, value in load_file(weights).items()}, weights)
            run("remember", Path(whole) / name / "hf", "--to", "f32", "--cast", "-o", work / "base")
            run("merge", work / "base", work / "adapter", "-o", work / "merged")
            for model in ("base", "merged"):
                run("convert", work / model, "--to", "gguf", "-o", work / f"{model}.gguf")
            run("convert", work / "adapter", "--to", "gguf", "--base", work / "base", "-o", work / "adapter.gguf")
            plain, merged = (logits(api, work / f"{model}.gguf") for model in ("base", "merged"))
            beside = logits(api, work / "base.gguf", work / "adapter.gguf")
            largest = abs(merged).max()
            print(name, f"{abs(beside - merged).max() / largest:.1e} of {abs(merged - plain).max() / largest:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])

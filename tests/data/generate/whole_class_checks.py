"""What whole_classes.py checks of what `amn` writes."""

import ctypes
import json
import subprocess
import tempfile
import traceback
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from whole_class_references import REFERENCES

IDS = [5, 17, 100, 33, 260, 7, 9, 200]
# Classes of models that are no causal language models.
AUTO = dict.fromkeys(["modern_bert_mlm", "eurobert", "jina_bert_v2", "llama_bidirectional", "lfm2_model", "lfm2_bidirectional", "lfm2_masked_lm", "jina_v5", "neobert", "neobert_lm", "neobert_rank"], "AutoModel")


class Batch(ctypes.Structure):
    """`llama_batch`."""
    _fields_ = [("n_tokens", ctypes.c_int32)] + [(name, ctypes.c_void_p) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")]


def in_llama_cpp(path, ids, is_encoder):
    """Logits of each token in llama.cpp, or the hidden states of an encoder."""
    from check_graphs import library

    api = library()
    model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
    assert model, "llama.cpp does not load it"
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 64
    params.flash_attn_type, params.type_k, params.type_v, params.n_threads, params.n_threads_batch = 0, 0, 0, 1, 1
    if is_encoder:
        params.embeddings, params.pooling_type = True, 0
    context = ctypes.c_void_p(api.llama_init_from_model(ctypes.c_void_p(model), params))
    assert context.value, "llama.cpp makes no context"
    if is_encoder:
        api.llama_set_embeddings.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        api.llama_set_embeddings(context, True)
    n = len(ids)
    one = (ctypes.c_int32 * 1)(0)
    arrays = [(ctypes.c_int32 * n)(*ids), (ctypes.c_int32 * n)(*range(n)), (ctypes.c_int32 * n)(*[1] * n),
              (ctypes.POINTER(ctypes.c_int32) * n)(*[ctypes.cast(one, ctypes.POINTER(ctypes.c_int32))] * n), (ctypes.c_int8 * n)(*[1] * n)]
    token, pos, count, seq, logits = (ctypes.cast(array, ctypes.c_void_p) for array in arrays)
    batch = Batch(n, token, None, pos, count, seq, logits)
    has_encoder = "bert" in str(path)
    call = api.llama_encode if has_encoder else api.llama_decode
    call.argtypes = [ctypes.c_void_p, Batch]
    assert call(context, batch) == 0, "llama.cpp computes nothing"
    get = api.llama_get_embeddings_ith if is_encoder else api.llama_get_logits_ith
    get.restype, get.argtypes = ctypes.POINTER(ctypes.c_float), [ctypes.c_void_p, ctypes.c_int32]
    api.llama_model_get_vocab.restype = ctypes.c_void_p
    width = api.llama_model_n_embd(ctypes.c_void_p(model)) if is_encoder else api.llama_vocab_n_tokens(ctypes.c_void_p(api.llama_model_get_vocab(ctypes.c_void_p(model))))
    if has_encoder:
        api.llama_get_embeddings.restype, api.llama_get_embeddings.argtypes = ctypes.POINTER(ctypes.c_float), [ctypes.c_void_p]
        return np.ctypeslib.as_array(api.llama_get_embeddings(context), (n, width)).copy()
    return np.array([np.ctypeslib.as_array(get(context, at), (width,)).copy() for at in range(n)])


# What computes the same in transformers as classes that it does not have: fields of the config.
LIKE = {
    "pangu": dict(model_type="llama", architectures=["LlamaForCausalLM"], attention_bias=True),
    "minicpm": dict(model_type="granite", architectures=["GraniteForCausalLM"], embedding_multiplier=12.0, residual_multiplier=1.4, logits_scaling=2.0, attention_multiplier=8**-0.5),
    "llama_bidirectional": dict(model_type="llama", architectures=["LlamaModel"]),
    "llada_moe": dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], norm_topk_prob=False, moe_intermediate_size=12, head_dim=8),
    "dream": dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"]),
    "rnd1": dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"]),
    "xverse": dict(model_type="llama", architectures=["LlamaForCausalLM"]),
    "mimo_v2_flash": dict(model_type="mimo_v2_flash", rms_norm_eps=1e-5, sliding_window=33, rope_theta=None, rope_parameters={kind: dict(rope_type="default", rope_theta=base, partial_rotary_factor=0.5) for kind, base in (("full_attention", 5e6), ("sliding_attention", 1e4))}),
    "bailing_moe3": dict(model_type="bailing_hybrid", architectures=["BailingHybridForCausalLM"]),
    "sarvam_moe": dict(model_type="sarvam_moe", architectures=["SarvamMoEForCausalLM"]),
}
# Models whose tokens see those behind them.
BIDIRECTIONAL = {"llada_moe", "lfm2_masked_lm", "llama_bidirectional", "lfm2_bidirectional", "dream", "rnd1"}


def states(model, is_bidirectional=False):
    mask = {"attention_mask": torch.zeros(1, 1, len(IDS), len(IDS))} if is_bidirectional else {}
    with torch.no_grad():
        out = model(torch.tensor([IDS]), **mask)
    return (out.logits if "logits" in out else out.last_hidden_state)[0].float().numpy()


def compare(model, whole, directory, amn):
    """Converts the model; returns what differs from what is recorded."""
    from whole_classes import keys_of, write_hf
    from gguf import GGUFReader
    import zlib

    source, out = directory / "hf", directory / "model.gguf"
    write_hf(model, source, whole)
    base = ["--base", directory / "target"] if "target" in model else []
    done = subprocess.run([amn, "convert", source, "--to", "gguf", *base, "-o", out], capture_output=True, text=True)
    if done.returncode:
        return [done.stderr.strip()[-400:]]
    reader = GGUFReader(out)
    found, wrong = keys_of(reader), []
    for key, value in model["keys"].items():
        value = model.get("here", {}).get(key, value)
        if value is not None and found.get(key) != value:
            wrong.append(f"{key}: {found.get(key)} for {value}")
        if value is None and key in found and key not in model.get("here", {}):
            wrong.append(f"{key} more")
    known = model["keys"] | model.get("here", {})
    wrong += [f"{key} more" for key in found if not key.startswith("tokenizer.") and key not in known]
    tensors = {t.name: f"{t.tensor_type.name} {'x'.join(str(n) for n in reversed(t.shape))} {zlib.crc32(t.data.tobytes()):08x}" for t in reader.tensors}
    wrong += [f"{name}: {tensors.get(name)} for {value}" for name, value in model["tensors"].items() if tensors.get(name) != value and name not in model.get("other_values", [])]
    wrong += [f"{name} more" for name in tensors if name not in model["tensors"]]
    return wrong


def check_logits(model, directory, amn):
    """Logits in llama.cpp of the model in F32, and of what comes back."""
    back, single = directory / "back", directory / f"{model['name']}.gguf"
    done = subprocess.run([amn, "remember", directory / "model.gguf", "-o", back], capture_output=True, text=True)
    if done.returncode:
        return "back: " + done.stderr.strip()[-300:]
    done = subprocess.run([amn, "convert", directory / "hf", "--to", "gguf", "--out-dtype", "f32", "-o", single], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    auto = AUTO.get(model["name"], "AutoModelForCausalLM")
    config = json.loads((back / "config.json").read_text())
    report = config["architectures"][0]
    if model["name"] in LIKE:
        (back / "config.json").write_text(json.dumps(config | LIKE[model["name"]]))
    reference = REFERENCES.get(model["name"])
    try:
        again, info = (None, {}) if reference else getattr(transformers, auto).from_pretrained(back, dtype=torch.float32, output_loading_info=True)
    except Exception as e:
        again, report = None, f"{report}: transformers does not load it: {str(e)[:80]}"
    bad = {} if again is None else {key: value for key, value in info.items() if value and key != "error_msgs"}
    bad = {key: [k for k in value if not str(k).startswith("pooler.")] for key, value in bad.items()}
    if any(bad.values()):
        report += f" {bad}"
    if reference:
        with torch.no_grad():
            expected = reference({name: tensor.float() for name, tensor in load_file(back / "model.safetensors").items()}, IDS).numpy()
    else:
        expected = np.zeros(1) if again is None else states(again, model["name"] in BIDIRECTIONAL)
    code = f"""
import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]
import numpy as np
from whole_class_checks import IDS, in_llama_cpp
np.save({str(directory / 'found.npy')!r}, in_llama_cpp({str(single)!r}, IDS, {auto == 'AutoModel'}))
"""
    import sys
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    if done.returncode:
        return report + " llama.cpp: " + (done.stderr.strip()[-300:] or str(done.returncode))
    found = np.load(directory / "found.npy")
    if again is None and not reference:
        return report + " llama.cpp computes it"
    error = ((found - expected) ** 2).sum() / (expected**2).sum()
    return f"{report} logits differ by {error:.1e}"


def check(whole, amn, names):
    models = [json.loads(line) for line in (whole.parent / "whole_classes.jsonl").read_text().splitlines()]
    for model in models:
        if names and model["name"] not in names:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            wrong = compare(model, whole, directory, amn)
            said = ""
            if (directory / "model.gguf").exists():
                try:
                    said = check_logits(model, directory, amn)
                except Exception:
                    said = traceback.format_exc()[-400:]
        print(f"{model['name']}: {'equal' if not wrong else wrong} {said}", flush=True)


def check_graphs(whole, amn, names, record):
    """Compares what `amn check` says of files that differ in one thing from those of the models with what llama.cpp loads (see check_graphs.py)."""
    from check_graphs import library, loads, variants, write
    from gguf import GGUFReader

    api, found = library(), {}
    for model in (json.loads(line) for line in (whole.parent / "whole_classes.jsonl").read_text().splitlines()):
        if names and model["name"] not in names:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            directory, files = Path(scratch), {}
            if compare(model, whole, directory, amn):
                print(f"{model['name']}: not as recorded")
                continue
            reader = GGUFReader(directory / "model.gguf")
            for number, (what, keys, tensors) in enumerate(variants(reader)):
                path = directory / f"{number}.gguf"
                write(reader, path, keys, tensors)
                files[str(path)] = what
            done = subprocess.run([amn, "check", "--json", *files], capture_output=True, text=True)
            for checked in json.loads(done.stdout)["models"]:
                what, is_loaded = files[checked["path"]], loads(api, checked["path"])
                if is_loaded:
                    found.setdefault(model["name"], []).append(what)
                if is_loaded == bool(checked["findings"]):
                    print(f"{model['name']}: {what}: {'loads' if is_loaded else 'does not load'}", *(finding["message"][:150] for finding in checked["findings"]), flush=True)
        print(f"{model['name']}: {len(files)} files", flush=True)
    if record:
        lines = [f"{json.dumps(name)}: {json.dumps(all_of_them)}" for name, all_of_them in found.items()]
        Path(record).write_text("{\n" + ",\n".join(lines) + "\n}\n")

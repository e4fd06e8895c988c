"""Compares what `amn check` says of GGUF files with what llama.cpp loads.

    python check_graphs.py AMN WHOLE SCRATCH [NAME...]

llama.cpp's C API of the wheel xllamacpp 2026.10.11549, gguf 0.18 or later. AMN is the program, WHOLE is tests/data/whole. Of each
GGUF file of llama.cpp's converter, files are made that differ in one thing: a tensor or a key is missing, a weight has a bias, there is a tensor more,
a tensor has a row or a column more. llama.cpp loads each in a process of its own, for it aborts on some, and makes a context, which
builds the graph. Prints each file on which both differ, and counts. With RECORD=FILE, the names of the files that llama.cpp loads
are written to FILE, which is tests/data/graphs.json.

WHOLE may be tests/data/towers: llama.cpp's `clip_init` loads them, and RECORD is tests/data/tower_graphs.json.

    python check_graphs.py --hf AMN WHOLE SCRATCH [NAME...]

The other way round: of each directory `hf`, copies are made that differ in one field of the config (another number, a flag turned,
none) or have biases of one kind of projection or no `lm_head`. What `amn convert` writes of them, llama.cpp must load. Prints what it
does not load, and counts.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import sums
import xllamacpp
from gguf import GGUFReader, GGUFValueType, GGUFWriter

LOGGER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
keep = LOGGER(lambda level, text, _: None)


class ContextParams(ctypes.Structure):
    _fields_ = [(key, kind) for kind, keys in [
        (ctypes.c_uint32, "n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max n_outputs_max_per_seq"),
        (ctypes.c_int32, "n_threads n_threads_batch"), (ctypes.c_int, "ctx_type rope_scaling_type pooling_type attention_type flash_attn_type"),
        (ctypes.c_float, "base scale ext attn fast slow"), (ctypes.c_uint32, "orig"), (ctypes.c_float, "defrag"),
        (ctypes.c_void_p, "cb_eval cb_data"), (ctypes.c_int, "type_k type_v"), (ctypes.c_void_p, "abort abort_data unnamed"), (ctypes.c_bool, "embeddings offload_kqv no_perf op_offload swa_full kv_unified"),
        (ctypes.c_void_p, "samplers"), (ctypes.c_size_t, "n_samplers"), (ctypes.c_void_p, "ctx_other")] for key in keys.split()]


class ModelParams(ctypes.Structure):
    _fields_ = [("head", ctypes.c_void_p * 2), ("ints", ctypes.c_int32 * 5), ("pointers", ctypes.c_void_p * 4), ("flags", ctypes.c_bool * 6)]


def library():
    api = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))))
    api.llama_log_set(keep, None)
    api.llama_model_default_params.restype, api.llama_context_default_params.restype = ModelParams, ContextParams
    api.llama_model_load_from_file.restype = api.llama_init_from_model.restype = ctypes.c_void_p
    api.llama_backend_init()
    return api


class TowerParams(ctypes.Structure):
    """`clip_context_params`."""
    _fields_ = [("use_gpu", ctypes.c_bool), ("device", ctypes.c_void_p), ("flash_attn_type", ctypes.c_int), ("image_min_tokens", ctypes.c_int),
                ("image_max_tokens", ctypes.c_int), ("warmup", ctypes.c_bool), ("cb_eval", ctypes.c_void_p), ("cb_data", ctypes.c_void_p),
                ("no_alloc", ctypes.c_bool), ("progress", ctypes.c_void_p), ("progress_data", ctypes.c_void_p)]


class Towers(ctypes.Structure):
    """`clip_init_result`."""
    _fields_ = [(name, ctypes.c_void_p) for name in ("vision", "audio", "generated_audio")]


def loads_tower(api, path):
    """Whether llama.cpp loads the tower, and, with WARMUP=1, computes an image or a sound."""
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        init = api._Z9clip_initPKc19clip_context_params
        init.restype, init.argtypes = Towers, [ctypes.c_char_p, TowerParams]
        params = TowerParams(image_min_tokens=-1, image_max_tokens=-1, warmup="WARMUP" in os.environ)
        found = init(str(path).encode(), params)
        os._exit(0 if found.vision or found.audio else 2)
    return os.waitpid(child, 0)[1] == 0


# Drafts have no context without that of their target.
DRAFTS = (b"eagle3", b"dflash", b"gemma4-assistant")


def loads(api, path, is_tower=False):
    """Whether llama.cpp loads the file and makes a context, if it is no draft."""
    if is_tower:
        return loads_tower(api, path)
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
        if not model:
            os._exit(1)
        name = ctypes.create_string_buffer(64)
        api.llama_model_meta_val_str(ctypes.c_void_p(model), b"general.architecture", name, ctypes.c_size_t(64))
        if name.value in DRAFTS:
            os._exit(0)
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 64
        params.flash_attn_type, params.type_k, params.type_v, params.n_threads, params.n_threads_batch = 0, 0, 0, 1, 1
        os._exit(0 if api.llama_init_from_model(ctypes.c_void_p(model), params) else 2)
    return os.waitpid(child, 0)[1] == 0


def write(reader, path, keys, tensors):
    """The fields of `reader` that `keys` has, and `tensors`, name to array."""
    arch = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    writer = GGUFWriter(path, arch)
    for key in keys:
        field = reader.fields[key]
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[0]
        sub = field.types[1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, sub)
    for name, array in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def variants(reader):
    """Name, keys and tensors of each file that differs in one thing."""
    keys = list(reader.fields)
    tensors = {}
    for tensor in reader.tensors:  # numpy has no BF16: F32 has all values of it
        data = tensor.data
        if tensor.tensor_type.name == "BF16":
            data = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        tensors[tensor.name] = data.reshape([int(n) for n in reversed(tensor.shape)])
    yield "as it is", keys, tensors
    arch = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    for key in keys:
        if key.startswith((arch + ".", "xielu.")):
            yield f"without key {key}", [other for other in keys if other != key], tensors
    seen = set()
    for name, data in reversed(tensors.items()):
        kind = re.sub(r"\d+", "#", name)
        if kind in seen:
            continue
        seen.add(kind)
        yield f"without {name}", keys, {other: value for other, value in tensors.items() if other != name}
        if data.dtype != np.float32:
            continue
        for axis in range(data.ndim):
            pad = [(0, 1 if axis == other else 0) for other in range(data.ndim)]
            yield f"longer axis {axis} of {name}", keys, tensors | {name: np.pad(data, pad)}
        base, _, suffix = name.rpartition(".")
        if suffix == "weight" and f"{base}.bias" not in tensors:
            shape = data.shape[:1] if data.ndim < 3 else data.shape[:2]
            yield f"with {base}.bias", keys, tensors | {f"{base}.bias": np.zeros(shape, np.float32)}
    yield "with blk.0.other.weight", keys, tensors | {"blk.0.other.weight": np.zeros(8, np.float32)}
    if "output.weight" not in tensors and "token_embd.weight" in tensors:
        yield "with output.weight", keys, tensors | {"output.weight": tensors["token_embd.weight"]}


def edits(config, tensors):
    """Name, config and tensors of each copy that differs in one thing."""
    for key, value in config.items():
        if key == "architectures":
            continue
        if isinstance(value, bool):
            yield f"{key} {not value}", config | {key: not value}, tensors
        elif isinstance(value, int):
            for number in (value + 1, 2 * value, max(value - 1, 0)):
                yield f"{key} {number}", config | {key: number}, tensors
        yield f"without {key}", {other: found for other, found in config.items() if other != key}, tensors
    for key in ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_bias", "use_qk_norm", "head_dim", "sliding_window"):
        if key not in config:
            yield f"{key}", config | {key: 16 if key in ("head_dim", "sliding_window") else True}, tensors
    heads = {name for name in tensors if name.startswith("lm_head")}
    if heads:
        rest = {name: tensor for name, tensor in tensors.items() if name not in heads}
        yield "tied", config | {"tie_word_embeddings": True}, rest
    flags = {key: True for key in ("attention_bias", "mlp_bias", "use_bias", "qkv_bias")}
    kinds = {re.sub(r"\d+", "#", name): tensor for name, tensor in tensors.items() if name.endswith(".weight")}
    for kind, tensor in kinds.items():
        base = kind.removesuffix("weight")
        added = {name.removesuffix("weight") + "bias": tensor.new_zeros(tensor.shape[0])
                 for name, tensor in tensors.items() if re.sub(r"\d+", "#", name) == kind}
        if f"{base}bias" not in {re.sub(r"\d+", "#", name) for name in tensors}:
            yield f"with {base}bias", config, tensors | added
            yield f"with {base}bias and flags", config | flags, tensors | added


def check_directories(amn, whole, scratch, names):
    import shutil

    from safetensors.torch import load_file, save_file

    api = library()
    counts = dict.fromkeys(["written, and loads", "refused", "written, and does not load"], 0)
    for name in names or sorted(path.name for path in whole.iterdir()):
        directory, gguf = scratch / name, scratch / f"{name}.gguf"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(whole / name / "hf", directory)
        weights = directory / "model.safetensors"
        if not weights.exists():
            continue
        config, tensors = json.loads((directory / "config.json").read_text()), load_file(weights)
        for what, edited, changed in edits(config, tensors):
            (directory / "config.json").write_text(json.dumps(edited))
            if changed is not tensors or what.startswith(("tied", "with ")):
                save_file(changed, weights, metadata={"format": "pt"})
            else:
                shutil.copy(whole / name / "hf/model.safetensors", weights)
            gguf.unlink(missing_ok=True)
            done = subprocess.run([amn, "convert", directory, "--to", "gguf", "--out-dtype", "f32", "-o", gguf], capture_output=True, text=True)
            verdict = "refused" if done.returncode else "written, and loads" if loads(api, gguf) else "written, and does not load"
            counts[verdict] += 1
            if verdict == "written, and does not load":
                print(f"{name}: {what}", flush=True)
        shutil.rmtree(directory)
    print(counts)


if __name__ == "__main__" and sys.argv[1] == "--hf":
    check_directories(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
elif __name__ == "__main__":
    amn, whole, scratch = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    api = library()
    counts = dict.fromkeys(["both load", "both refuse", "only amn refuses", "only llama.cpp refuses"], 0)
    record = {}
    for name in sys.argv[4:] or sorted(path.name for path in whole.iterdir()):
        canonical = scratch / "canonical.gguf"
        canonical.write_bytes(sums.restored(amn, whole / name / "canonical.sums"))
        reader = GGUFReader(canonical)
        files = {}
        for number, (what, keys, tensors) in enumerate(variants(reader)):
            path = scratch / f"{number}.gguf"
            write(reader, path, keys, tensors)
            files[str(path)] = what
        done = subprocess.run([amn, "check", "--json", *files], capture_output=True, text=True)
        for model in json.loads(done.stdout)["models"]:
            found = model["findings"]
            in_llama = loads(api, model["path"], any(key.startswith("clip.has_") for key in reader.fields))
            if in_llama:
                record.setdefault(name, []).append(files[model["path"]])
            verdict = {(True, True): "both load", (False, False): "both refuse", (True, False): "only amn refuses",
                       (False, True): "only llama.cpp refuses"}[in_llama, not found]
            counts[verdict] += 1
            if verdict.startswith("only"):
                print(f"{name}: {files[model['path']]}: {verdict}", *(finding["message"] for finding in found), flush=True)
        for path in files:
            os.unlink(path)
    print(counts)
    if "RECORD" in os.environ:
        lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in record.items()]
        Path(os.environ["RECORD"]).write_text("{\n" + ",\n".join(lines) + "\n}\n")

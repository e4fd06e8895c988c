"""Checks that a language model and its tower come back as one directory: whole small models of check_towers.py, as two GGUF files, and back.

    python check_towers_back.py AMN WHOLE OUT [NAME...]

As check_towers.py, whose packages it needs. Each model is loaded by its class of transformers from the directory that was converted and from
the one that came back. Neither may miss a tensor or have one that the class does not know, all tensors are equal, and so is each field of
the configs, but for those of IGNORED and numbers of tokens, which a random vocabulary does not have. InternVL's class is none of
transformers: its tensors are compared as they are stored.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import torch
import transformers
from check_towers import APART, CASES, MODELS, save
from safetensors.torch import load_file

# What neither side's forward reads, or what stands elsewhere.
IGNORED = {"architectures", "_name_or_path", "transformers_version", "dtype", "torch_dtype", "initializer_range", "initializer_factor", "use_cache",
           "_attn_implementation_autoset", "max_window_layers", "chunk_size_feed_forward", "image_seq_length", "id2label", "label2id"}
TOKENS = ("_token_id", "_token_index", "_pad_token_id", "eos_token_id", "bos_token_id", "pad_token_id")


def convert(amn, *arguments):
    done = subprocess.run([amn, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"amn {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def stored(directory):
    tensors = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def contents(path):
    reader = gguf.GGUFReader(path)
    fields = {key: str(field.contents()) for key, field in reader.fields.items() if not key.startswith(("general.", "GGUF."))}
    return fields | {tensor.name: (tensor.tensor_type, tensor.data.tobytes()) for tensor in reader.tensors}


def loaded(name, directory):
    loader = getattr(transformers, name)
    model, found = loader.from_pretrained(directory, dtype=torch.bfloat16, output_loading_info=True)
    wrong = {key: list(value)[:4] for key, value in found.items() if value}
    assert not wrong, (directory, wrong)
    return model


def differences(a, b, path=""):
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            if key not in IGNORED and not key.endswith(TOKENS):
                yield from differences(a.get(key), b.get(key), f"{path}/{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for number, pair in enumerate(zip(a, b)):
            yield from differences(*pair, f"{path}/{number}")
    elif a != b and not (isinstance(a, float) and isinstance(b, float) and abs(a - b) <= 1e-7 * abs(a)):
        yield f"{path}: {a} -> {b}"


def check(amn, whole, out, name):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    save(name, whole, out)
    language, tower, back = out / "lm.gguf", out / "mmproj.gguf", out / "back"
    convert(amn, "convert", out / ("text" if name in APART else "hf"), "--to", "gguf", "-o", language)
    convert(amn, "convert", out / "hf", "--mmproj", "--to", "gguf", "-o", tower)
    printed = convert(amn, "remember", language, "--mmproj", tower, "-o", back)
    notes = [line for line in printed.splitlines() if "token" not in line and line.lower().startswith("note")]
    class_name = json.loads((back / "config.json").read_text())["architectures"][0]
    if name == "internvl":
        a, b = stored(out / "hf"), stored(back)
        a = {key: value for key, value in a.items() if not key.startswith(("language_model.", "lm_head"))}
        b = {key: value for key, value in b.items() if not key.startswith(("language_model.", "lm_head"))}
        configs = [json.loads((path / "config.json").read_text()) for path in (out / "hf", back)]
        configs = [dict(config, llm_config=None) for config in configs]
    else:
        first, second = loaded(MODELS[name][0], out / "hf"), loaded(class_name, back)
        a, b = first.state_dict(), second.state_dict()
        configs = [first.config.to_dict(), second.config.to_dict()]
    assert a.keys() == b.keys(), (name, sorted(a.keys() ^ b.keys())[:6])
    # GGUF has norms of Gemma with 1 added, and decays by their exponential: of some values the last bits are lost.
    is_near = lambda key: name.startswith("gemma3") and "norm" in key or key.endswith("A_log")
    is_same = lambda key: torch.equal(a[key], b[key]) or is_near(key) and torch.allclose(a[key].float(), b[key].float(), atol=1e-7)
    other = [key for key in a if a[key].shape != b[key].shape or not is_same(key)]
    assert not other, (name, other[:6])
    processors = [json.loads(next(path.glob("*processor_config.json")).read_text()) for path in (out / "hf", back)]
    processors[0] = processors[0].get("image_processor", processors[0])
    other = [key for key in processors[1] if key in processors[0] and list(differences(processors[0][key], processors[1][key]))]
    print(f"{name}: {class_name}, {len(a)} tensors equal; fields that differ: {list(differences(*configs)) or 'none'}; of the processor {other or 'none'}")
    for note in notes:
        print("   ", note)
    if "vision_config" in configs[1] and name != "internvl":
        try:
            transformers.AutoImageProcessor.from_pretrained(back)
        except (ImportError, ValueError) as missing:  # torchvision, which some need
            print("    not loaded:", str(missing).strip().splitlines()[0])
    convert(amn, "convert", back, "--mmproj", "--to", "gguf", "-o", out / "again.gguf")
    one, two = contents(tower), contents(out / "again.gguf")
    assert one == two, (name, [key for key in one.keys() | two.keys() if one.get(key) != two.get(key)])


if __name__ == "__main__":
    amn, whole, root = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    for name in sys.argv[4:] or [name for name in CASES if name not in ("janus", "minimax_m3")]:
        check(amn, whole, root / name, name)

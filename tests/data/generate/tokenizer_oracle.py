"""The `tokenizer.*` keys that llama.cpp's converter writes for a model directory: its classes' `set_vocab`, without weights.

Run: `python tokenizer_oracle.py LLAMA_CPP DIRECTORY…` with the path of llama.cpp's sources. Each directory has tokenizer files
and a config.json with `architectures` and `vocab_size`; `expected.json` is written into it. Needs transformers 4.57.6,
sentencepiece, torch and protobuf, and for tekken.json mistral-common. A directory's `pre.txt` is taken for the name of the pre-tokenizer instead of the hash of
its test text: a vocabulary that was cut down has another hash.
"""

import json
import logging
import math
import sys
from pathlib import Path

LLAMA_CPP = Path(sys.argv[1])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]
logging.disable(logging.WARNING)

import gguf  # noqa: E402
import numpy as np  # noqa: E402
from conversion import get_model_class  # noqa: E402

NAMES = {
    gguf.GGUFValueType.UINT32: "u32",
    gguf.GGUFValueType.INT32: "i32",
    gguf.GGUFValueType.UINT8: "u8",
    gguf.GGUFValueType.FLOAT32: "f32",
    gguf.GGUFValueType.BOOL: "bool",
    gguf.GGUFValueType.STRING: "string",
}


def keys(directory):
    """`vocab_size`, the GGUF architecture and the keys of `directory`."""
    config = json.loads((directory / "config.json").read_text())
    cls = get_model_class(config["architectures"][0])
    model = cls.__new__(cls)
    model.dir_model = directory
    model.hparams = {**config, **config.get("text_config", {})}
    model.hf_arch = model.origin_hf_arch = config["architectures"][0]
    model.is_mistral_format = False
    model.target_model_dir = None
    arch = gguf.MODEL_ARCH_NAMES[model.model_arch]
    model.gguf_writer = gguf.GGUFWriter(None, arch)
    if hasattr(model, "_xlmroberta_tokenizer_init"):
        model._tokenizer_is_xlmroberta = config.get("model_type") == "xlm-roberta"
    if (pre := directory / "pre.txt").is_file():
        model.get_vocab_base_pre = lambda tokenizer: pre.read_text().strip()
    model.set_vocab()
    out = []
    for key, value in model.gguf_writer.kv_data[0].items():
        if not key.startswith("tokenizer."):
            continue
        if value.type == gguf.GGUFValueType.ARRAY:
            items = value.value
            kind = gguf.GGUFValueType.UINT8 if isinstance(items, bytes) else gguf.GGUFValueType.get_type(items[0])
            items = [plain(item) for item in items]
            if key == "tokenizer.chat_templates":
                items.sort()  # they come from a set, whose order changes from run to run
            out.append([key, f"[{NAMES[kind]}]", items])
        else:
            out.append([key, NAMES[value.type], plain(value.value)])
    vocab_size = (config | config.get("text_config", {}))["vocab_size"]
    return {"vocab_size": vocab_size, "architecture": arch, "keys": out}


def plain(value):
    """A value as JSON has it; F32 as the shortest number that is it."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float):
        assert math.isfinite(value)
        return float(str(np.float32(value)))
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


if __name__ == "__main__":
    for directory in map(Path, sys.argv[2:]):
        result = keys(directory)
        (directory / "expected.json").write_text(json.dumps(result, ensure_ascii=False, separators=(",", ":")) + "\n")
        print(directory.name, len(result["keys"]), "keys")

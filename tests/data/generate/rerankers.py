"""Rerankers of Qwen 3 as llama.cpp's converter writes them to GGUF.

    LLAMA_CPP=DIRECTORY TOKENIZERS=DIRECTORY python rerankers.py DATA

DATA has whole/qwen3 and whole_nested/qwen3_vl.json (see whole_models.py, whose packages this needs). DATA/whole_rerankers gets a file for
each way in which the converter knows a reranker; the test makes the same directories.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file
from whole_models import convert

# Name: directory, the output is stored, the tensors have the names of the base class.
CASES = {"tied": ("Qwen3-Reranker-tiny", False, False), "untied": ("other", True, False), "base": ("qwen3-reranker-base", False, True), "vl": ("Qwen3-VL-Reranker-tiny", False, False)}


def make(data, name, at):
    directory, is_stored, is_base = CASES[name]
    hf = at / directory
    shutil.copytree(data / "whole/qwen3/hf", hf)
    tokenizer = json.loads((hf / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {"yes": 284, "no": 285}
    (hf / "tokenizer.json").write_text(json.dumps(tokenizer))
    config, tensors = json.loads((hf / "config.json").read_text()), load_file(hf / "model.safetensors")
    if is_stored:  # its card says what it is
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()
        config["tie_word_embeddings"] = False
        (hf / "README.md").write_text("text\n# Qwen3-Reranker-4B\n")
    if is_base:
        tensors = {k.removeprefix("model."): v for k, v in tensors.items()}
        config["architectures"] = ["Qwen3Model"]
    if name == "vl":
        config = json.loads((data / "whole_nested/qwen3_vl.json").read_text())
        tensors = {k.replace("model.", "model.language_model.", 1): v for k, v in tensors.items()}
    (hf / "config.json").write_text(json.dumps(config))
    save_file(tensors, hf / "model.safetensors", metadata={"format": "pt"})
    return hf


if __name__ == "__main__":
    data = Path(sys.argv[1])
    (data / "whole_rerankers").mkdir(exist_ok=True)
    for name in CASES:
        with tempfile.TemporaryDirectory() as at:
            # The converter goes by the name of the directory.
            hf = make(data, name, Path(at))
            convert(hf, "qwen2", data / f"whole_rerankers/{name}.gguf", source=hf)

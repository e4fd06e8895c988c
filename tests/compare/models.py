"""The models of tests/data of which mutants are made."""

import json
import os
import re
import struct
import zipfile
from collections import defaultdict
from dataclasses import dataclass

from containers import Gguf, Safetensors
from inputs import DATA, GOLDEN

# These have the same header as the file beside them.
SAME = re.compile(r"towers/.*/f(16|32)\.gguf$")


@dataclass
class Model:
    """A model of tests/data: its files by the name that they have in the mutant, and what it is called in commands."""

    path: str
    files: dict
    name: str
    base: str = ""

    def json(self, file):
        """The object of a JSON file, or none if it is no such file."""
        if not file.endswith(".json"):
            return None
        try:
            value = json.loads((DATA / self.files[file]).read_bytes())
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def gguf(self, file):
        """A GGUF file, of which the data may be missing, or none if it has other numbers or another byte order."""
        path = DATA / self.files[file]
        try:
            return Gguf(path.read_bytes() if path.exists() else path.with_suffix(".sums").read_bytes().split(b"\n", 1)[1])
        except (struct.error, KeyError):
            return None

    def safetensors(self, file):
        """The tensors of a file, or none if it is a hostile one."""
        try:
            return Safetensors((DATA / self.files[file]).read_bytes()).tensors
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}


def models(inputs):
    """Every model of which mutants are made."""
    for directory in sorted({os.path.dirname(f) for f in inputs.files if "/" in f} | set(inputs.directories)):
        inside = sorted(p for p in (DATA / directory).iterdir() if p.is_file() and not GOLDEN.search(str(p.relative_to(DATA))))
        names = {p.name for p in inside}
        weights = [n for n in names if n.endswith(".safetensors")]
        if weights and (names & {"config.json", "model.safetensors", "adapter_config.json"} or len(weights) > 1 and "index.json" in " ".join(names)):
            yield Model(directory, {f"model/{p.name}": f"{directory}/{p.name}" for p in inside}, "model", base_of(directory))
        else:
            for name in sorted(n for n in weights if n != "expected.safetensors"):
                yield Model(f"{directory}/{name}", {name: f"{directory}/{name}"}, name)
    for path in sorted(f for f in inputs.files if zipfile.is_zipfile(DATA / f)):
        yield Model(path, {os.path.basename(path): path}, os.path.basename(path))
    for path in sorted(f for f in inputs.files if f.endswith(".gguf") and not SAME.search(f)):
        name = os.path.basename(path)
        yield Model(path, {name: path}, name, base_of(path))


def base_of(path):
    """What an adapter is merged with."""
    return "../data/adapters_tied/base" if path.startswith("adapters_tied/") else "../data/adapters/base"


def by_role(tensors, role):
    """The names of tensors, those together that have the same part `role` but for numbers."""
    roles = defaultdict(list)
    for name in tensors:
        common = re.fullmatch(role, name, re.DOTALL)
        roles[re.sub(r"\d+", "N", common[common.lastindex])].append(name)
    return roles.values()

"""Cases that are whole model directories: `<family>/<case>/model/` and what it must become beside it.

Shared by ct_*.py, mxfp4.py and fp8_dirs.py. The expected files are named as transformers names the unquantized model.
"""

import json
import shutil
import sys

sys.dont_write_bytecode = True

from fp8 import TARGETS, Case, differing, rounded, same

from safetensors import safe_open
from safetensors.torch import load_file, save_file

META = {"format": "pt"}


class DirCase(Case):
    def __init__(self, family, name, config=None):
        super().__init__(family, name, config)
        self.model, self.sidecars = self.dir / "model", {}
        self.kept = set()  # names of tensors that change and keep their dtype

    def sidecar(self, name, content):
        self.sidecars[name] = content

    def library(self, name, result, label, must=True):
        """What the library returns, in the dtype it chooses, must be the F32 value rounded once."""
        d = {v: k for k, v in TARGETS.items()}[result.dtype]
        want = rounded(self.expected[name])[d]
        if not same(result, want):
            text = f"{name}: {label} {d}: {differing(result, want)}"
            assert not must, (self.dir.name, text)
            self.notes.append(text)

    def write(self, shards=1, split=None, stem="model"):
        """`split(name)` gives the shard of a tensor; without it, companions lie one shard after their weight."""
        shutil.rmtree(self.dir, ignore_errors=True)
        self.model.mkdir(parents=True)
        tensors = {k: v.contiguous().clone() for k, v in sorted(self.tensors.items())}
        if shards == 1:
            save_file(tensors, self.model / f"{stem}.safetensors", META)
        else:
            write_shards(self.model, tensors, shards, split or apart(tensors, shards), stem)
        quantized = {k for k, v in self.expected.items() if self.tensors.get(k) is not v and k not in self.kept}
        out = {k: v.contiguous().clone() for k, v in self.expected.items()}
        assert all(out[k].dtype == TARGETS["f32"] for k in quantized)
        save_file(out, self.dir / "expected-f32.safetensors", META)
        for k in quantized:
            rounded(out[k])  # torch, numpy and ml_dtypes must agree
        for name, content in {"config.json": self.config, **self.sidecars}.items():
            if content is not None:
                (self.model / name).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        check(self.dir)
        size = sum(f.stat().st_size for f in self.dir.rglob("*") if f.is_file())
        print(f"{self.dir.parent.name}/{self.dir.name}: {len(quantized)} dequantized of {len(out)}, {size} bytes")
        for note in self.notes:
            print(f"    {note}")


SUFFIXES = (
    "_packed",
    "_scale",
    "qscale_weight",
    "_zero_point",
    "_shape",
    "_global_scale",
    "_scale_inv",
    "_g_idx",
    "_scales",
    ".scale",
    "bitmask",
    "row_offsets",
    ".shape",
)


def apart(tensors, shards):
    """A shard for each tensor: round robin over the names, and scales one further than the rest of their module."""
    modules = {}
    for name in tensors:
        modules.setdefault(name.rsplit(".", 1)[0], len(modules))

    def split(name):
        companion = name.endswith(SUFFIXES) and not name.endswith("_packed")
        return (modules[name.rsplit(".", 1)[0]] + companion) % shards

    return split


def write_shards(folder, tensors, shards, split, stem):
    index = {}
    for i in range(shards):
        part = {k: v for k, v in tensors.items() if split(k) == i}
        assert part, f"shard {i} is empty"
        name = f"{stem}-{i + 1:05}-of-{shards:05}.safetensors"
        save_file(part, folder / name, META)
        index |= {k: name for k in part}
    total = sum(v.numel() * v.element_size() for v in tensors.values())
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(content, indent=2) + "\n")


def check(folder):
    """Every file loads, and the index says where each tensor is."""
    for f in folder.rglob("*.safetensors"):
        load_file(f)
    for index in folder.glob("model/*.safetensors.index.json"):
        where = json.loads(index.read_text())["weight_map"]
        for f in sorted((folder / "model").glob("*.safetensors")):
            with safe_open(f, "pt") as s:
                assert set(s.keys()) == {k for k, v in where.items() if v == f.name}


def load_all(folder):
    """All tensors of a model directory."""
    out = {}
    for f in sorted(folder.glob("*.safetensors")):
        out |= load_file(f)
    return out

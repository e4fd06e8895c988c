"""A case with a model directory: shards, index, sidecars, and what they decode to. Shared by modelopt*.py, comfy.py and quark.py.

    <family>/<case>/model/                    the quantized model, as its library writes it
    <family>/<case>/expected-f32.safetensors  every tensor of the dequantized model
    <family>/<case>/unsupported.json          instead of that, where a tensor must be refused: {tensor, reason}
"""

import json
import shutil

from fp8 import BF16, DATA, F16, F32, TARGETS, Case, differing, rounded, same
from safetensors import safe_open
from safetensors.torch import load_file, save_file


class ModelCase(Case):
    def __init__(self, family, name, config=None, shards=1, stem="model"):
        super().__init__(family, name, config)
        self.sidecars, self.shards, self.stem = {}, shards, stem
        self.metadata, self.unsupported = {"format": "pt"}, None

    def sidecar(self, name, value):
        """A file beside the weights; `value` is written as JSON."""
        self.sidecars[name] = value

    def refuse(self, tensor, reason):
        self.unsupported = {"tensor": tensor, "reason": reason}

    def own(self, name, got, dtype, label):
        """Compares what the library itself returns in `dtype` with the F32 value rounded once; notes the difference."""
        want = rounded(self.expected[name])[dtype]
        assert got.dtype == want.dtype, (name, got.dtype)
        if not same(got, want):
            self.notes.append(f"{name}: {label} {dtype}: {differing(got, want)}")

    def write(self):
        shutil.rmtree(self.dir, ignore_errors=True)
        model = self.dir / "model"
        model.mkdir(parents=True)
        if self.config is not None:
            self.sidecars["config.json"] = self.config
        for name, value in self.sidecars.items():
            (model / name).write_text(json.dumps(value, indent=2) + "\n")
        tensors = {k: v.contiguous().clone() for k, v in self.tensors.items()}
        if self.shards == 1:
            save_file(tensors, model / f"{self.stem}.safetensors", self.metadata)
        else:  # dealt out in the order of the names, so that a weight and its scale lie in different shards
            index = {"metadata": {"total_size": sum(t.numel() * t.element_size() for t in tensors.values())}, "weight_map": {}}
            for i in range(self.shards):
                file = f"{self.stem}-{i + 1:05}-of-{self.shards:05}.safetensors"
                names = sorted(tensors)[i :: self.shards]
                save_file({k: tensors[k] for k in names}, model / file, self.metadata)
                index["weight_map"].update(dict.fromkeys(names, file))
            index["weight_map"] = dict(sorted(index["weight_map"].items()))
            (model / f"{self.stem}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
        if self.unsupported:
            (self.dir / "unsupported.json").write_text(json.dumps(self.unsupported, indent=2) + "\n")
        else:
            expected = {k: v.contiguous().clone() for k, v in self.expected.items()}
            save_file(expected, self.dir / "expected-f32.safetensors", {"format": "pt"})
        self.verify()
        size = sum(f.stat().st_size for f in self.dir.rglob("*") if f.is_file())
        print(f"{self.dir.parent.name}/{self.dir.name}: {len(self.tensors)} tensors, {size} bytes")
        for note in self.notes:
            print(f"    {note}")

    def verify(self):
        """Every file loads, and the index names what is there."""
        found = {}
        for file in sorted((self.dir / "model").glob("*.safetensors")):
            with safe_open(file, "pt") as f:
                found |= {k: file.name for k in f.keys()}
                assert all(same(f.get_tensor(k), self.tensors[k]) for k in f.keys() if self.tensors[k].dtype in TARGETS.values())
        assert set(found) == set(self.tensors)
        index = self.dir / "model" / f"{self.stem}.safetensors.index.json"
        if index.exists():
            assert json.loads(index.read_text())["weight_map"] == found
            scales = {k: k + s for k in found for s in ("_scale", "_weight_scale", "_scale_inv") if k + s in found}
            assert not scales or any(found[k] != found[s] for k, s in scales.items())
        if not self.unsupported:
            assert set(load_file(self.dir / "expected-f32.safetensors")) == set(self.expected)


def total(family):
    size = sum(f.stat().st_size for f in (DATA / family).rglob("*") if f.is_file())
    print(f"{family}: {size} bytes")


__all__ = ["BF16", "F16", "F32", "ModelCase", "total"]

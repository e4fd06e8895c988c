"""Cases in directories: `model/` as users have it (one file, or shards and their index), the expected files beside it.

Shared by mlx_affine.py, mlx_models.py, gptq_more.py, autoround.py, awq_more.py and marlin.py.
"""

import json
import shutil

import torch
from safetensors.torch import load_file

from fp8 import BF16, F16, F32, TARGETS, Case, differing, rounded, same
from gptq import canonical_nan, save

LABEL = {dtype: label for label, dtype in TARGETS.items()}


class Layout(Case):
    """A case whose input is a model directory."""

    def __init__(self, family, name, config=None, metadata="pt"):
        super().__init__(family, name, config)
        self.label = f"{family}/{name}"
        self.metadata = {"format": metadata}
        self.sidecars, self.native = {}, {}

    def decoded(self, name, f32, native=None):
        """A weight that was quantized: the formula in F32 and, where it has one, the library's result in its own dtype."""
        assert name not in self.expected, name
        self.expect(name, f32)
        if native is not None:
            assert native.shape == f32.shape and native.dtype in (F32, BF16, F16)
            self.native[name] = native.contiguous().clone()

    def write(self, shards=1, spread=None, own=True):
        """`spread`: name -> number of the shard; dealt out in order of names otherwise, so that a weight and its scales
        lie in different files. `own`: the library's results in its own dtype must be kept where they differ."""
        shutil.rmtree(self.dir, ignore_errors=True)
        (self.dir / "model").mkdir(parents=True)
        names = sorted(self.tensors)
        where = {n: (spread(n) if spread else i % shards) for i, n in enumerate(names)}
        files = ["model.safetensors"] if shards == 1 else [
            f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        for i, file in enumerate(files):
            part = {n: self.tensors[n].contiguous().clone() for n in names if where[n] == i}
            assert part, "an empty shard"
            save(self.dir / "model" / file, part, self.metadata)
        if shards > 1:
            modules = {}
            for n in names:
                modules.setdefault(n.rpartition(".")[0], set()).add(where[n])
            assert any(len(s) > 1 for s in modules.values()), "no module lies in two shards"
            total = sum(t.nbytes for t in self.tensors.values())
            index = {"metadata": {"total_size": total}, "weight_map": {n: files[where[n]] for n in names}}
            self.json("model.safetensors.index.json", index)
        if self.config is not None:
            self.json("config.json", self.config)
        for file, value in self.sidecars.items():
            self.json(file, value)

        kept = {n: t for n, t in self.expected.items() if n in self.tensors and self.tensors[n] is t}
        weights = {n: canonical_nan(t) for n, t in self.expected.items() if n not in kept}
        self.save("f32", weights | kept)
        off = {n: t for n, t in self.native.items() if not same(t, rounded(self.expected[n])[LABEL[t.dtype]])}
        dtypes = {t.dtype for t in self.native.values()}
        text = "none" if not off else ""
        if off:
            count = sum(int((canonical_nan(t).view(torch.int16) != canonical_nan(
                self.expected[n].to(t.dtype)).view(torch.int16)).sum()) for n, t in off.items())
            total = sum(t.numel() for t in self.native.values() if t.dtype != F32)
            text = f"{count}/{total} ({100 * count / total:.1f}%)"
        if off and own:
            assert len(dtypes - {F32}) == 1, (self.label, dtypes)
            dtype = (dtypes - {F32}).pop()
            own_dtype = {n: canonical_nan(self.native[n] if n in self.native and self.native[n].dtype == dtype
                                          else self.expected[n].to(dtype)) for n in weights}
            self.save(LABEL[dtype], own_dtype | kept)
        size = sum(f.stat().st_size for f in self.dir.rglob("*") if f.is_file())
        print(f"{self.label}: {len(weights)} dequantized, {len(kept)} kept, {len(files)} file(s), {size} bytes; "
              f"own dtype {sorted(LABEL[d] for d in dtypes)} differs: {text}{'' if own or not off else ' (not written)'}")
        for note in self.notes:
            print(f"    {note}")
        self.check()

    def json(self, file, value):
        (self.dir / "model" / file).write_text(json.dumps(value, indent=2) + "\n")

    def save(self, label, tensors):
        save(self.dir / f"expected-{label}.safetensors", {n: t.clone() for n, t in tensors.items()}, {"format": "pt"})

    def check(self):
        """Every file loads, and the index names what is there."""
        found = {}
        for file in sorted((self.dir / "model").glob("*.safetensors")):
            for name in load_file(file):
                assert name not in found
                found[name] = file.name
        index = self.dir / "model" / "model.safetensors.index.json"
        assert not index.exists() or json.loads(index.read_text())["weight_map"] == found
        for file in self.dir.glob("expected-*.safetensors"):
            assert set(load_file(file)) == set(self.expected)


def tiny(cls, config, seed, dtype=BF16):
    """A random model of transformers, as `save_pretrained` names its tensors; norms are not all ones."""
    import tempfile
    from pathlib import Path

    torch.manual_seed(seed)
    model = cls(config).to(dtype)
    for name, p in model.named_parameters():
        if p.dim() == 1:
            p.data = (1 + 0.1 * torch.randn(p.shape)).to(dtype)
        else:
            p.data = (0.05 * torch.randn(p.shape)).to(dtype)
    with tempfile.TemporaryDirectory() as path:
        model.save_pretrained(path)
        return load_file(Path(path) / "model.safetensors"), json.loads((Path(path) / "config.json").read_text())


def differs(a, b):
    return differing(a.contiguous(), b.contiguous())

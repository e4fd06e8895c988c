"""Cases that are directories of a model, as they lie on the Hugging Face Hub: shared by torchao.py, quanto.py, hqq.py,
bitnet.py and gemma_qat.py.

A case is `<family>/<case>/model/` (what a user has), and next to it `expected-f32.safetensors`: every tensor of the
unquantized model, dequantized ones in F32, the others with their own dtype and bytes. There is an
`expected-bf16.safetensors` or `expected-f16.safetensors` only where the library's own result in that dtype is not the
F32 value rounded once; it holds the library's result.
"""

import json
import shutil
import struct
import zlib

from fp8 import BF16, DATA, F16, F32, U8, differing, rounded, same

import torch
from safetensors.torch import load_file, save_file

SHORT = {F32: "f32", BF16: "bf16", F16: "f16"}


def one_nan(t):
    """The payload of a NaN that is computed depends on the CPU."""
    return torch.where(t.isnan(), torch.full_like(t, float("nan")), t) if t.dtype in SHORT else t


def settle(path):
    """Writes a safetensors file anew with its metadata sorted: the library's order changes from run to run."""
    raw = path.read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + n])
    meta = header.pop("__metadata__", None)
    tensors = dict(sorted(header.items(), key=lambda kv: (kv[1]["data_offsets"], kv[0])))
    top = {"__metadata__": dict(sorted(meta.items()))} if meta else {}
    text = json.dumps(top | tensors, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + n :])


class Dir:
    """One case. `tensors` and `metadata` are put in here, or `model` is filled by a library's own saver."""

    def __init__(self, family, name):
        self.family, self.name = family, name
        self.dir = DATA / family / name
        self.model = self.dir / "model"
        self.seed = zlib.crc32(f"{family}/{name}".encode())
        self.rng = torch.Generator().manual_seed(self.seed)
        torch.manual_seed(self.seed)
        shutil.rmtree(self.dir, ignore_errors=True)
        self.model.mkdir(parents=True)
        self.tensors, self.f32, self.own, self.kept, self.notes = {}, {}, {}, {}, []

    # -------------------------------------------------- values

    def randn(self, *shape, scale=1.0):
        return torch.randn(*shape, generator=self.rng) * scale

    def randint(self, lo, hi, *shape):
        return torch.randint(lo, hi, shape, generator=self.rng)

    def scales(self, *shape, lo=-9, hi=-3):
        """Positive, spread over octaves, with full mantissas."""
        return torch.exp2(torch.rand(*shape, generator=self.rng) * (hi - lo) + lo)

    def all_bytes(self, rows, cols):
        n = -(-rows * cols // 256)
        runs = [torch.randperm(256, generator=self.rng) for _ in range(n)]
        return torch.cat(runs)[: rows * cols].to(U8).reshape(rows, cols)

    # -------------------------------------------------- what it must become

    def keep(self, name, tensor):
        """A tensor that is not quantized; it stays as it is."""
        self.kept[name] = tensor
        return tensor

    def expect(self, name, f32, own=None, rule="equal"):
        """`own` is the library's result in its own dtype. `rule` says what may differ from F32 rounded once: "equal":
        nothing; "note": it is printed; "file": it goes to `expected-<dtype>`."""
        assert f32.dtype == F32, f32.dtype
        f32 = one_nan(f32.detach().contiguous().clone())
        self.f32[name] = f32
        if own is None or own.dtype == F32:
            assert own is None or same(own, f32), (self.name, name, differing(own, f32))
            return
        own = one_nan(own.detach().contiguous().clone())
        want = rounded(f32)[SHORT[own.dtype]]
        assert own.shape == f32.shape, (own.shape, f32.shape)
        if not same(own, want):
            assert rule != "equal", (self.name, name, differing(own, want))
            self.notes.append(f"{name}: {SHORT[own.dtype]}: {differing(own, want)}")
            if rule == "file":
                self.own[name] = own

    # -------------------------------------------------- files

    def save(self, tensors, config=None, metadata=None, shards=1, sidecars=None):
        """Writes `model/`. Shards are filled in turn, so that the companions of a weight are elsewhere."""
        tensors = {k: v.detach().contiguous().clone() for k, v in tensors.items()}
        metadata = {"format": "pt"} | (metadata or {})
        if shards == 1:
            save_file(tensors, self.model / "model.safetensors", metadata)
        else:
            index = {}
            names = sorted(tensors)
            for i in range(shards):
                file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
                save_file({n: tensors[n] for n in names[i::shards]}, self.model / file, metadata)
                index |= dict.fromkeys(names[i::shards], file)
            total = sum(t.numel() * t.element_size() for t in tensors.values())
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}
            (self.model / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
        for name, what in ({"config.json": config} | (sidecars or {})).items():
            if what is not None:
                (self.model / name).write_text(json.dumps(what, indent=2) + "\n")

    def write(self, apart=None, stored=None):
        """Writes the expected files and reads everything back. `apart(name)` gives the tensors of the file that a
        dequantized tensor is made of: some of them must lie in different shards. `stored` is what is in other containers."""
        for path in sorted(self.model.glob("*.safetensors")):
            settle(path)
        stored, where = stored or {}, {}
        for path in sorted(self.model.glob("*.safetensors")):
            for name, tensor in load_file(path).items():
                assert name not in stored
                stored[name], where[name] = tensor, path.name
        index = self.model / "model.safetensors.index.json"
        if index.exists():
            assert json.loads(index.read_text())["weight_map"] == where
        if apart is not None:
            assert any(len({where[n] for n in apart(name)}) > 1 for name in self.f32), "nothing is split"
        for name, tensor in self.kept.items():
            assert same(stored[name], tensor.detach()), name
        kept = {k: v.detach().contiguous().clone() for k, v in self.kept.items()}
        meta = {"format": "pt"}
        save_file(self.f32 | kept, self.dir / "expected-f32.safetensors", meta)
        for dtype in {t.dtype for t in self.own.values()}:
            short = SHORT[dtype]
            assert all(t.dtype == dtype for t in self.own.values()), "one dtype a case"
            out = {k: self.own.get(k, rounded(v)[short]) for k, v in self.f32.items()}
            save_file(out | kept, self.dir / f"expected-{short}.safetensors", meta)
        files = [p for p in self.dir.rglob("*") if p.is_file()]
        size = sum(p.stat().st_size for p in files)
        print(f"{self.family}/{self.name}: {len(self.f32)} dequantized, {len(kept)} kept, {size} bytes")
        for note in self.notes:
            print(f"    {note}")


def tiny_llama(directory, dtype=BF16, **more):
    """A small LlamaForCausalLM of random weights, norms included, saved unquantized where a quantizer can load it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
             "num_key_value_heads": 1, "vocab_size": 72, "max_position_embeddings": 64, "tie_word_embeddings": False}
    model = LlamaForCausalLM(LlamaConfig(**(sizes | more))).to(dtype)
    return randomize(model, directory)


def randomize(model, directory=None):
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_(1 + torch.randn(p.shape) * 0.1)
            elif p.dim() > 1:
                p.copy_(torch.randn(p.shape) * 0.1)
    if directory is not None:
        model.save_pretrained(directory)
    return model.eval()

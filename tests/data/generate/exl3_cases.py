"""Golden EXL3 layers: states, values and order of tiles by gptqmodel 7.7.0, scales and Hadamard matrices by exllamav3 1.4.1.

Run: `python exl3_cases.py GPTQMODEL EXLLAMAV3`, with the unpacked sdist of gptqmodel 7.7.0 and a checkout of exllamav3 (see
../README.md). Both packages import kernels of GPUs, so that classes and functions are compiled alone. gptqmodel leaves the
values of the codebook in F32; exllamav3's kernels have them in halves, which its own `get_inner_weight_tensor(torch.float16)`
gives. Expected weights are the exact product of these values, rounded once to F32.
"""

import ast
import contextlib
import math
import struct
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Optional

import numpy as np
import torch
from safetensors.torch import save_file

from modelcase import BF16, DATA, F16, F32, ModelCase, total

I16, I32 = torch.int16, torch.int32
CODEBOOKS = {"3inst": None, "mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}


def compiled(file, names, found):
    """Definitions of a module that are called `names`, compiled with the names `found`, without the module."""
    tree = ast.parse(Path(file).read_text())
    name_of = lambda n: getattr(n, "name", None) or isinstance(n, ast.Assign) and getattr(n.targets[0], "id", None)
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module(future + [n for n in tree.body if name_of(n) in names], []), str(file), "exec"), found)
    return found


def libraries(gptqmodel, exllamav3):
    names = {"torch": torch, "nn": torch.nn, "math": math, "struct": struct, "lru_cache": lru_cache, "Any": Any, "Dict": Dict,
             "Optional": Optional, "contextmanager": contextlib.contextmanager, "_EXL3_BUFFER_NAMES":
             ("trellis", "suh", "svh", "su", "sv", "bias", "mcg", "mul1")}
    file = Path(gptqmodel) / "gptqmodel/nn_modules/exllamav3_torch.py"
    tree = ast.parse(file.read_text()).body
    defined = [n.name for n in tree if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    constants = [n.targets[0].id for n in tree if isinstance(n, ast.Assign)]
    linear = compiled(file, [*defined, *(name for name in constants if name.startswith("_EXL3"))], names)

    # The base matrix of Sylvester's construction, as `load_constants` reads it, for which it looks beside its own file.
    util = Path(exllamav3) / "exllamav3/util"
    lib = {"torch": torch, "math": math, "lru_cache": lru_cache, "had_dict": {}, "primes": set()}
    for text in (util / "hadamard_data").glob("hadamard_*.txt"):
        rows = [line.strip() for line in text.read_text().splitlines() if line.strip()]
        lib["had_dict"][len(rows)] = torch.tensor([[1 if c == "+" else -1 for c in row] for row in rows], dtype=F16)
    compiled(util / "hadamard.py", ["sylvester", "get_hadamard", "get_hadamard_dt"], lib)
    quant = Path(exllamav3) / "exllamav3/modules/quant"
    compiled(quant / "exl3_lib/quantize.py", ["tensor_core_perm", "preapply_had_l", "preapply_had_r"], lib)
    cls = next(n for n in ast.parse((quant / "exl3.py").read_text()).body if isinstance(n, ast.ClassDef))
    unpack = next(n for n in cls.body if getattr(n, "name", None) == "unpack_bf")
    exec(compile(ast.Module([unpack], []), "exl3.py", "exec"), lib)
    assert lib["tensor_core_perm"]("cpu").tolist() == linear["_tensor_core_perm_values"]()
    return linear["ExllamaV3TorchLinear"], lib


class Self:
    """What `unpack_bf` asks of its object."""

    transformers_fix = False


def inner_of(trellis, codebook):
    """C, as the library has it in halves."""
    tensors = {"trellis": trellis}
    if CODEBOOKS[codebook]:
        tensors[codebook] = torch.tensor(CODEBOOKS[codebook], dtype=torch.uint32).view(I32)
    rows, cols = trellis.shape[0] * 16, trellis.shape[1] * 16
    layer = linear.from_tensors(in_features=rows, out_features=cols, name="P", tensors=tensors)
    return layer.get_inner_weight_tensor(F16)


def exact(inner, suh, svh):
    """`(diag(u) H C H diag(v))^T`, [N, K]: sums of integers, and one rounding to F32."""
    k, n = inner.shape
    unit = 2.0**-20
    codes = inner.double().numpy() / unit
    assert (codes == np.rint(codes)).all()
    h = np.array([[1]], dtype=np.int64)
    while len(h) < 128:
        h = np.block([[h, h], [h, -h]])
    blocks = codes.astype(np.int64).reshape(k // 128, 128, n // 128, 128)
    sums = np.einsum("ij,ajbl,lm->aibm", h, blocks, h, optimize=True).reshape(k, n)
    assert (abs(sums) < 2**52).all()
    u, v = suh.double().numpy()[:, None], svh.double().numpy()[None]
    with np.errstate(all="ignore"):
        u = np.where(np.isinf(u), np.nan, u)
        # Sums of 31 bits and factors of 11 fit F64 together.
        return torch.from_numpy((sums * (unit / 128) * u * v).astype(np.float32).T.copy())


class Case(ModelCase):
    def __init__(self, name, config, **more):
        super().__init__("exl3", name, config, **more)
        self.library = {}

    def layer(self, name, n, k, bits, codebook="mcg", signs=False, outputs=None, inputs=None, compare=False, hostile=False):
        """A layer that is stored as `[k, n]` and has `outputs` and `inputs` of it."""
        trellis = self.bytes(k // 16, n // 16, 32 * bits).view(I16)
        self.add({f"{name}.trellis": trellis})
        if CODEBOOKS[codebook]:
            self.add({f"{name}.{codebook}": torch.tensor(CODEBOOKS[codebook], dtype=torch.uint32).view(I32)})
        if signs:
            su, sv = self.bytes(k // 8).view(I16), self.bytes(n // 8).view(I16)
            self.add({f"{name}.su": su, f"{name}.sv": sv})
            suh, svh = lib["unpack_bf"](Self, su), lib["unpack_bf"](Self, sv)
        else:
            sign = lambda n: torch.randint(0, 2, (n,), generator=self.rng) * 2 - 1
            suh = (sign(k) * self.scales(k)).to(F16)
            svh = (sign(n) * (1 + self.randn(n, scale=0.2))).to(F16)
            if hostile:
                inf, nan = float("inf"), float("nan")
                suh[:8] = torch.tensor([0.0, -0.0, 6e-8, 65504.0, -inf, nan, 1e-5, -6e-5])
                svh[:8] = torch.tensor([1.0, 0.0, -0.0, inf, nan, 6e-8, 65504.0, -3e-5])
            self.add({f"{name}.suh": suh, f"{name}.svh": svh})
        inner = inner_of(trellis, codebook)
        w = exact(inner, suh, svh)
        cut = lambda w: w[:outputs, :inputs].contiguous()
        self.expect(f"{name}.weight", cut(w))
        if hostile:
            return
        # The library's order: a Hadamard product, a scale, the other product, the other scale, here all in F32.
        near = lib["preapply_had_r"](lib["preapply_had_l"](inner.float(), 128) * suh.float()[:, None], 128) * svh.float()
        bound = 1e-5 * w.abs().amax(1, keepdim=True)
        assert ((near.T - w).abs() <= bound).all(), name
        if compare:
            self.library[f"{name}.weight"] = cut(near.T)

    def bias(self, name, n, stored=None):
        """A bias of `n` values, padded with zeros to `stored`."""
        bias = self.randn(n, scale=0.1).to(F16)
        padded = torch.nn.functional.pad(bias, (0, (stored or n) - n))
        self.add({f"{name}.bias": padded})
        self.expected[f"{name}.bias"] = bias if stored else padded

    def write(self):
        super().write()
        if self.library:
            save_file(self.library, self.dir / "library-f32.safetensors", {"format": "pt"})


def config(bits=4, **sizes):
    quantization = {"quant_method": "exl3", "version": "1.4.1", "bits": float(bits), "head_bits": 6,
                    "calibration": {"rows": 250, "cols": 2048}, "out_scales": "auto", "codebook": "mcg"}
    return {"model_type": "llama", **sizes, "quantization_config": quantization}


def tiles():
    """A tile of each width and codebook: `<codebook>.<bits>.trellis`, and its values as `<codebook>.<bits>.inner`."""
    rng, out = torch.Generator().manual_seed(3), {}
    for codebook in CODEBOOKS:
        for bits in range(1, 9):
            trellis = torch.randint(0, 256, (1, 1, 32 * bits), generator=rng, dtype=torch.uint8).view(I16)
            out[f"{codebook}.{bits}.trellis"] = trellis.contiguous()
            out[f"{codebook}.{bits}.inner"] = inner_of(trellis, codebook).contiguous()
    (DATA / "exl3").mkdir(exist_ok=True)
    save_file(out, DATA / "exl3/tiles.safetensors", {"format": "pt"})


def main(gptqmodel, exllamav3):
    global linear, lib
    linear, lib = libraries(gptqmodel, exllamav3)
    tiles()

    case = Case("mcg", config(), shards=2)
    name = "model.layers.0.self_attn.q_proj"
    case.layer(name, 128, 128, 4)
    case.bias(name, 128)
    case.norm(128)
    storage = {name: {"stored_tensors": {}, "quant_format": "exl3", "bits_per_weight": 4, "mcg_multiplier": CODEBOOKS["mcg"]}}
    case.sidecar("quantization_config.json", {**config()["quantization_config"], "tensor_storage": storage})
    case.write()

    # A bias of six values says that there are six outputs.
    case = Case("widths", config())
    for bits in range(1, 9):
        case.layer(f"l.{bits}", 128, 128, bits, list(CODEBOOKS)[bits % 3], outputs=6, compare=True)
        case.bias(f"l.{bits}", 6)
    case.write()

    sizes = {"hidden_size": 136, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 20,
             "kv_lora_rank": 8, "qk_rope_head_dim": 4, "vocab_size": 30}
    case = Case("padded", config(2, **sizes), shards=3)
    case.layer("model.layers.0.self_attn.q_proj", 128, 256, 2, outputs=40, inputs=136)
    case.bias("model.layers.0.self_attn.q_proj", 40, stored=128)
    case.layer("model.layers.0.self_attn.kv_a_proj_with_mqa", 128, 256, 1, outputs=12, inputs=136)
    case.layer("model.layers.0.mlp.down_proj", 256, 128, 1, outputs=136, inputs=24)
    case.layer("lm_head", 128, 256, 3, "mul1", outputs=30, inputs=136)
    case.keep("model.embed_tokens.weight", case.randn(30, 136).to(F16))
    case.write()

    case = Case("signs", None)
    case.layer("l.up_proj", 128, 256, 2, "3inst", signs=True, outputs=6)
    case.bias("l.up_proj", 6)
    case.write()

    case = Case("hostile", None)
    for codebook in CODEBOOKS:
        case.layer(f"l.{codebook}", 128, 128, 1, codebook, outputs=16, hostile=True)
        case.bias(f"l.{codebook}", 16)
    case.write()
    total("exl3")


if __name__ == "__main__":
    main(*sys.argv[1:])

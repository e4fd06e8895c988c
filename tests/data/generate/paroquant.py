"""Golden ParoQuant layers: packed by gptqmodel 7.7.0's AWQ packer, rotated in F64, and compared with gptqmodel's own rotation.

Run: `python paroquant.py PATH PAROQUANT`, with PATH the unpacked sdist of gptqmodel 7.7.0 and PAROQUANT a checkout of paroquant at
f74a96ce (see ../README.md). The packages import kernels, so `apply_paroquant_rotation_reference` and the functions of paroquant's
`cli/convert.py` that name and pack experts are compiled alone; gptqmodel's packer is a module of its own.
"""

import ast
import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from modelcase import BF16, F16, F32, ModelCase, total


def functions(file, names):
    """Functions of a module, without the module."""
    tree = ast.parse(Path(file).read_text())
    nodes = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    found = {"torch": torch, "_AWQ_REORDER": (0, 2, 4, 6, 1, 3, 5, 7)}
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module(future + nodes, []), str(file), "exec"), found)
    return [found[name] for name in names]


def module(file):
    spec = importlib.util.spec_from_file_location("packing_utils", file)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def exact(codes, zeros, scales, theta, pairs, factors, size):
    """`A · R · diag(c)` in F64, in the order that docs/schemes.md has: [out, in] of F32."""
    a = (codes - np.repeat(zeros, size, 0)) * np.repeat(scales, size, 0)
    a = a.T.copy()
    cos, sin = (f(theta).astype(np.float32).astype(np.float64) for f in (np.cos, np.sin))
    for r in reversed(range(len(theta))):
        groups = np.arange(a.shape[1]) // size * size
        places = pairs[r].astype(np.int64) + groups
        i, j = places[0::2], places[1::2]
        left, right = a[:, i], a[:, j]
        a[:, i], a[:, j] = left * cos[r] - right * sin[r], left * sin[r] + right * cos[r]
    return (a * factors).astype(np.float32)


class Case(ModelCase):
    def __init__(self, name, config, **more):
        super().__init__("paroquant", name, config, **more)
        self.library = {}

    def codes(self, n, k, size, dtype):
        codes = torch.randint(0, 16, (k, n), generator=self.rng)
        zeros = torch.randint(0, 16, (k // size, n), generator=self.rng)
        return codes, zeros, self.scales(k // size, n).to(dtype)

    def pairs(self, k, size, rotations):
        orders = [torch.randperm(size, generator=self.rng) for _ in range(rotations * (k // size))]
        return torch.cat(orders).reshape(rotations, k).to(torch.int16)

    def layer(self, name, n, k, size, rotations=8, dtype=F16, hostile=False):
        codes, zeros, scales = self.codes(n, k, size, dtype)
        theta = self.randn(rotations, k // 2).to(dtype)
        factors = (1 + self.randn(1, k, scale=0.3)).to(dtype)
        if hostile:
            theta[0, :6] = torch.tensor([0.0, -0.0, 6e4, -6e4, 6e-8, 3.14159])
            theta[-1, -2:] = torch.tensor([float("inf"), float("nan")])
            scales[0, :5] = torch.tensor([0.0, 6e-8, 65504.0, float("inf"), float("nan")])
            factors[0, :4] = torch.tensor([0.0, -65504.0, float("inf"), 6e-8])
        pairs = self.pairs(k, size, rotations)
        qweight, qzeros = packing.pack_awq(codes, zeros, 4)
        self.add({f"{name}.qweight": qweight, f"{name}.qzeros": qzeros, f"{name}.scales": scales, f"{name}.theta": theta,
                  f"{name}.pairs": pairs, f"{name}.channel_scales": factors})
        self.rotated(name, (codes, zeros, scales), (theta, pairs, factors), size, hostile)

    def rotated(self, name, layer, turn, size, hostile=False):
        """What the codes, zero points and scales of `layer` stand for, with the angles, pairs and factors of `turn`."""
        (codes, zeros, scales), (theta, pairs, factors), k = layer, turn, len(layer[0])
        with np.errstate(all="ignore"):
            numbers = [t.double().numpy() for t in (codes, zeros, scales, theta)]
            w = exact(*numbers, pairs.numpy(), factors.double().numpy(), size)
        self.expect(f"{name}.weight", torch.from_numpy(w))
        if hostile:
            return
        # What the layer computes of each input alone.
        rotated = rotation(torch.eye(k), pairs, theta, factors.float(), size)
        groups = torch.arange(k) // size
        dense = (codes - zeros[groups]).float() * scales.float()[groups]
        self.library[f"{name}.weight"] = (rotated @ dense).T.contiguous()

    def experts(self, name, experts, hidden, inner, size, rotations=8):
        """Experts of a layer, named and packed by paroquant: gate and up share a rotation, and all that lead down another."""
        turn = lambda k: (self.randn(rotations, k // 2).to(F16), self.pairs(k, size, rotations), (1 + self.randn(1, k, scale=0.3)).to(F16))
        turns = {"gate_up": turn(hidden), "down": turn(inner)}
        buffers = {}
        for proj, (n, k), kind in [("gate_proj", (inner, hidden), "gate_up"), ("up_proj", (inner, hidden), "gate_up"),
                                   ("down_proj", (hidden, inner), "down")]:
            layers = [self.codes(n, k, size, F16) for _ in range(experts)]
            packed = [to_buffers(codes.T.contiguous(), scales.float().T.contiguous(), zeros.T.int().contiguous()) for codes, zeros, scales in layers]
            buffers[proj] = {part: torch.stack([p[part] for p in packed]) for part in packed[0]}
            for i, layer in enumerate(layers):
                assert torch.equal(packed[i]["qweight"], packing.pack_awq(*layer[:2], 4)[0])
                assert torch.equal(packed[i]["scales"], layer[2])
                self.rotated(f"{name}.{i}.{proj}", layer, turns[kind], size)
        parts = ("theta", "pairs", "channel_scales")
        rotations = {f"{kind}_weight_{part}": t for kind, turn in turns.items() for part, t in zip(parts, turn)}
        layer, module = name.split("layers.")[1].split(".", 1)
        stored = {f"{name}.gate_up_proj": torch.zeros(1), f"{name}.down_proj": torch.zeros(1)}
        self.add(inject(stored, [(int(layer), module, buffers, rotations)]))

    def write(self):
        super().write()
        if self.library:
            save_file(self.library, self.dir / "library-f32.safetensors", {"format": "pt"})


def config(size, rotations=8):
    settings = {"bits": 4, "group_size": size, "krot": rotations, "quant_method": "paroquant"}
    return {"model_type": "qwen3", "quantization_config": settings}


def main(path, paroquant):
    global packing, rotation, to_buffers, inject
    names = ["_pack_awq", "_to_awq_buffers", "_inject_quantized_moe_state_dict"]
    _, to_buffers, inject = functions(Path(paroquant) / "paroquant/cli/convert.py", names)
    path = Path(path) / "gptqmodel"
    packing = module(path / "quantization/awq/utils/packing_utils.py")
    _, rotation = functions(path / "utils/paroquant.py", ["_normalize_group_size", "apply_paroquant_rotation_reference"])

    case = Case("g128", config(128), shards=2)
    case.layer("model.layers.0.self_attn.q_proj", 64, 256, 128)
    case.layer("model.layers.0.mlp.down_proj", 40, 384, 128)
    case.keep("model.layers.0.self_attn.q_proj.bias", case.randn(64, scale=0.02).to(F16))
    case.norm(256)
    case.write()

    case = Case("g64_bf16", config(64, 3))
    case.layer("l.up_proj", 24, 192, 64, 3, BF16)
    case.write()

    case = Case("g32_f32_no_config", None)
    case.layer("l.up_proj", 16, 96, 32, 1, F32)
    case.write()

    case = Case("g256", config(256, 2))
    case.layer("l.up_proj", 8, 512, 256, 2)
    case.write()

    case = Case("experts", config(32, 3), shards=2)
    case.experts("model.layers.0.mlp.experts", 2, 64, 32, 32, 3)
    case.layer("model.layers.0.self_attn.q_proj", 32, 64, 32, 3)
    case.write()

    case = Case("experts_no_config", None)
    case.experts("model.layers.1.experts", 2, 32, 32, 32, 1)
    case.write()

    case = Case("hostile", config(32, 4))
    case.layer("l.up_proj", 16, 64, 32, 4, F16, hostile=True)
    case.write()
    total("paroquant")


if __name__ == "__main__":
    main(*sys.argv[1:3])

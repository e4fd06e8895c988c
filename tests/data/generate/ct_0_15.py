"""Golden pack-quantized models as compressed-tensors up to 0.15 wrote them (CPU).

Until then a word held floor(32 / bits) codes (3 bits: 10, 5 bits: 6, 6 bits: 5, 7 bits: 4) and the rest of its bits was
unused, and `actorder: group` stored `weight_g_idx`, the group of each column.
Run: `PYTHONPATH=<compressed-tensors 0.15.0> python ct_0_15.py` (see ../README.md). It rewrites `pack_old_*`, `pack_g_idx*`.
"""

import json
import tempfile
from pathlib import Path

from dirs import DirCase

import compressed_tensors
import torch
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams

from fp8 import BF16, F16, F32, same

assert compressed_tensors.__version__ == "0.15.0"
PACKED = BaseCompressor.get_value_from_registry("pack-quantized")
L = "model.layers.0."
Q, K, UP, DOWN = L + "self_attn.q_proj", L + "self_attn.k_proj", L + "mlp.up_proj", L + "mlp.down_proj"


def scheme(targets, **weights):
    return QuantizationScheme(targets=list(targets), weights=QuantizationArgs(type="int", **weights), format="pack-quantized")


def config_of(groups):
    q = QuantizationConfig(config_groups=groups, ignore=["lm_head"], quantization_status="compressed", format="pack-quantized")
    with tempfile.TemporaryDirectory() as d:
        (Path(d) / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
        ModelCompressor(quantization_config=q).update_config(d)
        return json.loads((Path(d) / "config.json").read_text())


def compress(w, s, g_idx=None):
    a = s.weights
    ordered = w if g_idx is None else w[:, torch.argsort(g_idx, stable=True)]
    g = ordered if a.group_size is None else ordered.unflatten(-1, (-1, a.group_size))
    lo, hi = g.amin(-1, keepdim=a.group_size is None), g.amax(-1, keepdim=a.group_size is None)
    scale, zero = calculate_qparams(lo, hi, a)
    state = {"weight": w, "weight_scale": scale}
    if not a.symmetric:
        state["weight_zero_point"] = zero
    if g_idx is not None:
        state["weight_g_idx"] = g_idx
    return PACKED.compress(state, s)


def decode(parts, s):
    """The body of `PackedQuantizationCompressor.decompress` with the scale widened to F32."""
    b, scale, zero = s.weights.num_bits, parts["weight_scale"], parts.get("weight_zero_point")
    if zero is not None:
        zero = unpack_from_int32(zero, b, (*parts["weight_shape"][:-1], scale.shape[-1]), packed_dim=0)
    q = unpack_from_int32(parts["weight_packed"], b, parts["weight_shape"])
    return dequantize(x_q=q, scale=scale.to(F32), zero_point=zero, g_idx=parts.get("weight_g_idx"))


def add(c, base, parts, s):
    c.add({f"{base}.{k}": v for k, v in parts.items()})
    c.expect(base + ".weight", decode(parts, s))
    c.library(base + ".weight", PACKED.decompress(parts, s)["weight"], "decompress 0.15")


def old_packing():
    for b in (3, 5, 6, 7):
        c = DirCase("compressed_tensors", f"pack_old_b{b}")
        groups = {}
        for i, (base, shape, dtype, args) in enumerate(
            [
                (Q, (13, 96), F16, dict(group_size=32, strategy="group")),
                (K, (37, 64), BF16, dict(group_size=32, strategy="group", symmetric=False)),
                (UP, (9, 75), F32, dict(strategy="channel")),
                (DOWN, (19, 77), BF16, dict(strategy="channel", symmetric=False)),
            ]
        ):
            groups[f"group_{i}"] = s = scheme([base], num_bits=b, **args)
            parts = compress(c.randn(*shape, scale=0.05).to(dtype), s)
            assert parts["weight_packed"].shape == (shape[0], -(-shape[1] // (32 // b)))
            add(c, base, parts, s)
        c.config = config_of(groups)
        c.norm(64)
        c.keep("lm_head.weight", c.randn(6, 64, scale=0.02).to(BF16))
        c.write()


def act_order():
    for case, b in [("pack_g_idx", 4), ("pack_g_idx_b8", 8), ("pack_g_idx_old_b3", 3)]:
        c = DirCase("compressed_tensors", case)
        groups = {}
        for i, (base, shape, symmetric, dtype) in enumerate([(Q, (14, 128), True, BF16), (UP, (21, 96), False, F16)]):
            s = scheme([base], num_bits=b, strategy="group", group_size=32, symmetric=symmetric, actorder="group")
            groups[f"group_{i}"] = s
            g_idx = (torch.randperm(shape[1], generator=c.rng) // 32).to(torch.int32)
            parts = compress(c.randn(*shape, scale=0.05).to(dtype), s, g_idx)
            add(c, base, parts, s)
            # what it comes to: column k takes scale and zero point of group g_idx[k]
            zero = parts.get("weight_zero_point")
            q = unpack_from_int32(parts["weight_packed"], b, shape).to(F32)
            if zero is not None:
                q = q - unpack_from_int32(zero, b, (shape[0], shape[1] // 32), packed_dim=0).to(F32)[:, g_idx.long()]
            assert same(c.expected[base + ".weight"], q * parts["weight_scale"].to(F32)[:, g_idx.long()])
        # a g_idx that was never set is -1 throughout: the columns are in order
        base, s = DOWN, scheme([DOWN], num_bits=b, strategy="group", group_size=32, actorder="group")
        groups["group_2"] = s
        add(c, base, compress(c.randn(6, 64, scale=0.05).to(BF16), s), s)
        unset = torch.full((64,), -1, dtype=torch.int32)
        parts = {k: c.tensors[f"{base}.{k}"] for k in ("weight_packed", "weight_scale", "weight_shape")} | {"weight_g_idx": unset}
        assert same(decode(parts, s), c.expected[base + ".weight"])
        c.add({base + ".weight_g_idx": unset})
        c.config = config_of(groups)
        c.norm(64)
        c.write()


if __name__ == "__main__":
    old_packing()
    act_order()

"""Golden MLX directories of mlx-vlm, of PrismML's rotated models and of mflux, and configs that another model has left in them.

Usage: see ../README.md. It rewrites `../mlx_more`. mlx packs and decodes; mlx-lm's layers and mlx-vlm's functions, the second
of which is read from its wheel (`python mlx_more.py WHEEL`), check what the rotations and the second scales do.
"""

import ast
import math
import sys
import zipfile

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import torch
from mlx_lm.models import bitlinear_layers
from mlx_lm.models.prism_hadamard_qwen35 import HadamardQuantizedLinear, hadamard_rotate

from fp8 import BF16, F16, F32, same
from layout import Layout
from mlx_affine import decode, parts, to_mx, to_torch

MLP = "model.layers.0.mlp"


def config(quantization, **more):
    return {"model_type": "llama", "quantization": quantization, "quantization_config": quantization} | more


def affine(bits, group):
    return {"group_size": group, "bits": bits, "mode": "affine"}


def weight(c, n, k, dtype=BF16):
    return torch.randn(n, k, generator=c.rng).to(dtype)


def add(c, name, p):
    c.add({f"{name}.{end}": t for end, t in p.items()})


# Rotated inputs.

PACK = {"schema_version": 1, "tensor_namespace": "mlx-lm-text", "gdn_activation_layout": "grouped"}


def rotated(c, prefix, record):
    """A module of `modules`. Its weight must be what the layer makes of the identity."""
    name, block, k = prefix + record["path"], record["block"], 1024
    p = parts(weight(c, 3, k, F16), 128, 2)
    add(c, name, p)
    value = decode(p, 128, 2, dtype=F32)
    layer = HadamardQuantizedLinear(k, 3, block)
    layer.weight, layer.scales, layer.biases = (to_mx(p[end]) for end in ("weight", "scales", "biases"))
    if block:
        signs = torch.randint(0, 2, (k,), generator=c.rng).float() * 2 - 1
        c.add({f"{name}.signs": signs})
        layer.signs = to_mx(signs)
        matrix = to_torch(mx.hadamard_transform(mx.eye(block), scale=1.0)).double()
        assert set(matrix.unique().tolist()) == {1.0, -1.0}
        value = (value.double().unflatten(1, (-1, block)) @ matrix).flatten(1) / math.sqrt(block)
        value = value.float() * signs + 0.0
        if record["embedding"]:  # rows are rotated back instead
            row = hadamard_rotate(to_mx(decode(p, 128, 2, dtype=F32)), block, layer.signs, inverse=True)
            assert torch.allclose(to_torch(row), value, atol=1e-4)
    library = to_torch(layer(mx.eye(k))).T
    assert torch.allclose(library, value, atol=1e-3 * value.abs().max().item()), name
    c.decoded(f"{name}.weight", value, None if block else decode(p, 128, 2))


def hadamard(name, prefix, **pack):
    records = [("model.embed_tokens", 512, True), (f"{MLP}.up_proj", 1024, False), (f"{MLP}.down_proj", 512, False),
               ("lm_head", 0, False)]
    records = [{"path": path, "embedding": e, "dtype": "float16", "block": b} for path, b, e in records]
    quantization = {"bits": 2, "group_size": 128, "mode": "affine"}
    c = Layout("mlx_more", name, {"model_type": "prism_hadamard_qwen35", "quantization": quantization, "modules": records}
               | PACK | pack, "mlx")
    for record in records:
        rotated(c, prefix, record)
    c.keep(f"{prefix}model.norm.weight", weight(c, 1, 8)[0])
    c.write()


# NVFP4 with the scale that the converted model had for a whole matrix.

def vlm_dequantize(wheel):
    """`apply_scale` of mlx-vlm's `ScaledQuantizedLinear`, and nothing else of the package."""
    source = zipfile.ZipFile(wheel).read("mlx_vlm/quantization/nvfp4.py")
    found = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == "apply_scale"]
    scope = {}
    exec(compile(ast.Module(found, []), "nvfp4.py", "exec"), scope)
    return scope["apply_scale"]


def nvfp4_of_vlm(apply_scale, end):
    class Layer:
        _scale_name = end

    c = Layout("mlx_more", f"vlm_{end}", config({"group_size": 16, "bits": 4, "mode": "nvfp4"}), "mlx")
    for name, shape in [("up_proj", (6, 64)), ("experts.switch_mlp.down_proj", (3, 4, 32))]:
        p = parts(torch.randn(shape, generator=c.rng), 16, 4, "nvfp4")
        scale = torch.rand(shape[:-2], generator=c.rng) + 0.1
        name = f"language_model.{MLP}.{name}"
        add(c, name, p | {end: scale})
        value = to_mx(decode(p, 16, 4, "nvfp4", F32))
        value = apply_scale(Layer, value, to_mx(scale).reshape(scale.shape + (1,) * (value.ndim - scale.ndim)))
        c.decoded(f"{name}.weight", to_torch(value))
    c.write()


# Sizes.

def plain(c, name, bits, group, shape=(6, 128), dtype=BF16):
    p = parts(weight(c, *shape, dtype), group, bits)
    add(c, name, p)
    c.decoded(f"{name}.weight", decode(p, group, bits, dtype=F32), decode(p, group, bits))


def mflux():
    """Qwen-Image at 4 bits, where `img_mod_linear` has 8; Boogu, whose groups are of 32."""
    c = Layout("mlx_more", "mflux", None)
    c.metadata = {"quantization_level": "4", "mflux_version": "0.24.0"}
    plain(c, "transformer_blocks.0.attn.to_q", 4, 64)
    plain(c, "transformer_blocks.0.img_mod_linear", 8, 64)
    c.keep("transformer_blocks.0.attn.norm_q.weight", weight(c, 1, 8)[0])
    c.write()
    c = Layout("mlx_more", "mflux_groups_of_32", None)
    c.metadata = {"quantization_level": "8", "mflux_version": "0.24.0"}
    plain(c, "layers.0.attn.to_q", 8, 32, (6, 96))
    c.write()


def mflux_fp8():
    """Ideogram 4 that is saved without quantizing it: `Fp8Linear`."""
    c = Layout("mlx_more", "mflux_fp8", None)
    c.metadata = {"quantization_level": "None", "mflux_version": "0.24.0"}
    codes = torch.arange(256, dtype=torch.uint8).repeat(2).reshape(8, 64)
    scale = torch.rand(8, generator=c.rng) * 0.01
    name = "layers.0.attention.qkv"
    c.add({f"{name}.weight": codes, f"{name}.weight_scale": scale})
    value = mx.from_fp8(mx.array(codes.numpy()), dtype=mx.float32) * mx.array(scale.numpy())[:, None]
    c.decoded(f"{name}.weight", torch.from_numpy(np.array(value)))
    c.keep("layers.0.norm.weight", weight(c, 1, 8)[0])
    c.write()


LEFT = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head", "re:.*self_attn.*"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": True, "type": "int"}}}}


def left_over():
    """What the source of the model had: in the nested config (mlx-lm), and in a file that mlx-vlm copies."""
    c = Layout("mlx_more", "left_over", config(affine(4, 64), text_config={"quantization_config": LEFT}), "mlx")
    c.sidecars["hf_quant_config.json"] = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}
    plain(c, f"language_model.{MLP}.up_proj", 4, 64)
    plain(c, "language_model.model.layers.0.self_attn.q_proj", 4, 64)
    c.write()


def alias():
    """A key without the first module: 8 bits in groups of 32 fill the words that the default's 4 in groups of 64 do."""
    c = Layout("mlx_more", "alias", config(affine(4, 64) | {f"{MLP}.up_proj": affine(8, 32)}), "mlx")
    plain(c, f"language_model.{MLP}.up_proj", 8, 32)
    plain(c, f"language_model.{MLP}.down_proj", 4, 64)
    c.write()


def top_modules():
    """Modules without a dot in their paths: `output` is mlx-lm's head of Llama 4, `score` a classifier."""
    entries = {"output": affine(8, 32), "score": {"group_size": 32}, "classifier": False}
    c = Layout("mlx_more", "top_modules", config(affine(4, 64) | entries), "mlx")
    plain(c, "output", 8, 32)
    plain(c, "score", 4, 32)
    plain(c, f"{MLP}.up_proj", 4, 64)
    c.keep("classifier.weight", weight(c, 2, 64))
    c.write()


def partial_entries():
    """An entry inherits nothing, and lacks what is MLX's default: mlx-lm's RWKV-7 gives its embedding `bits` alone."""
    entries = {"model.embeddings": {"bits": 8}, f"{MLP}.down_proj": {"group_size": 128}}
    c = Layout("mlx_more", "partial_entries", config(affine(8, 32) | entries), "mlx")
    plain(c, "model.embeddings", 8, 64)
    plain(c, f"{MLP}.up_proj", 8, 32)
    plain(c, f"{MLP}.down_proj", 4, 128)
    for module, entry in entries.items():
        made = nn.QuantizedLinear(128, 6, **entry)
        assert to_torch(made.scales).shape == c.tensors[f"{module}.scales"].shape
    c.write()


def bitnet():
    """BitNet of mlx-lm whose embedding it has quantized: its config takes the place of BitNet's, and `BitLinear` multiplies."""
    c = Layout("mlx_more", "bitnet", config(affine(4, 64)) | {"model_type": "bitnet"}, "mlx")
    plain(c, "model.embed_tokens", 4, 64)
    for name, scale in [("up_proj", 1.75), ("down_proj", 0.3)]:
        codes = torch.randint(0, 3, (4, 2, 64), generator=c.rng, dtype=torch.uint8)
        scale = torch.tensor([scale]).to(BF16)
        packed = codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6
        add(c, f"{MLP}.{name}", {"weight": packed, "weight_scale": scale})
        layer = bitlinear_layers.BitLinear(64, 8, bias=False)
        assert not layer.invert_weight_scales and tuple(layer.weight.shape) == tuple(packed.shape)
        c.decoded(f"{MLP}.{name}.weight", (codes.flatten(0, 1).float() - 1) * scale.float())
    c.write()


def linear_attention():
    """Kimi Linear: layers of another attention with other heads than `config.json` gives; `o_proj` has the default's columns."""
    sizes = {"model_type": "kimi_linear", "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32,
             "linear_attn_config": {"head_dim": 32, "num_heads": 4}}
    c = Layout("mlx_more", "linear_attention", config(affine(4, 64)) | sizes, "mlx")
    attention = "model.layers.0.self_attn"
    plain(c, f"{attention}.k_proj", 4, 64, (128, 64))
    plain(c, f"{attention}.o_proj", 4, 64, (6, 128))
    c.write()


def main():
    hadamard("hadamard", "")
    hadamard("hadamard_vlm", "language_model.", schema_version=2, tensor_namespace="mlx-vlm-qwen3_5")
    apply_scale = vlm_dequantize(sys.argv[1])
    nvfp4_of_vlm(apply_scale, "weight_scale_2")
    nvfp4_of_vlm(apply_scale, "weight_global_scale")
    mflux()
    mflux_fp8()
    left_over()
    alias()
    top_modules()
    partial_entries()
    bitnet()
    linear_attention()


if __name__ == "__main__":
    sys.exit(main())

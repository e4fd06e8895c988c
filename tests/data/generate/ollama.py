"""A golden model in Ollama's layers of tensors: a store with one manifest, and what its weights decode to.

Usage: see ../README.md. Packed and decoded by mlx on CPU; names, metadata and layers as Ollama's `x/create` writes them
(`quantizeBlobLocked`, `matchPrequant`). The global scale of NVFP4 multiplies as `Dequantize` in `x/mlxrunner/mlx/ops_extra.go` has it.
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np

HERE = Path(__file__).resolve().parent.parent / "ollama"
MODES = {"int4": (64, 4, "affine"), "int8": (64, 8, "affine"), "mxfp4": (32, 4, "mxfp4"), "mxfp8": (32, 8, "mxfp8"),
         "nvfp4": (16, 4, "nvfp4")}
TARGETS = {"f32": mx.float32, "bf16": mx.bfloat16, "f16": mx.float16}
TENSOR = "application/vnd.ollama.image.tensor"
rng = np.random.default_rng(20)
layers, expected = [], {label: {} for label in TARGETS}
whole, described = {}, {}


def blob(kind, name, data):
    digest = hashlib.sha256(data).hexdigest()
    path = HERE / "models" / "blobs" / f"sha256-{digest}"
    path.write_bytes(data)
    layers.append({"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data), "name": name})


def tensors(name, arrays, metadata=None):
    whole.update(arrays)
    for key, value in (metadata or {}).items():
        of_each = [f"{w}.{key}" for w, a in arrays.items() if a.dtype == mx.uint32] if "." not in key else [key]
        described.update(dict.fromkeys(of_each, value))
    path = HERE / "tmp.safetensors"
    mx.save_safetensors(str(path), arrays, metadata)
    blob(TENSOR, name, path.read_bytes())
    path.unlink()


def random(*shape, dtype=mx.bfloat16):
    values = 0.2 * rng.standard_normal(shape) + 0.05 * rng.standard_normal((*shape[:-1], 1))
    return mx.array(values.astype(np.float32)).astype(dtype)


def quantized(name, w, kind, group=None, global_scale=None):
    """The tensors that Ollama stores of one weight. Enters what they decode to."""
    default, bits, mode = MODES[kind]
    group = group or default
    parts = mx.quantize(w, group, bits, mode=mode)
    stored = {name: parts[0], f"{name}.scale": parts[1]}
    if mode == "affine":
        stored[f"{name}.bias"] = parts[2]
        f32 = mx.dequantize(parts[0], *(p.astype(mx.float32) for p in parts[1:]), group, bits)
        native = mx.dequantize(*parts, group, bits)
    else:
        f32 = mx.dequantize(parts[0], parts[1], None, group, bits, mode, dtype=mx.float32)
        native = mx.dequantize(parts[0], parts[1], None, group, bits, mode)
    if global_scale is not None:
        stored[f"{name}.global_scale"] = mx.array(global_scale, mx.float32)
        # bfloat16 times float32 is float32 in MLX; `Dequantize` casts back to the type before.
        dtype, native = native.dtype, (native * stored[f"{name}.global_scale"])
        assert native.dtype == mx.float32
        f32, native = f32 * stored[f"{name}.global_scale"], native.astype(dtype)
    for label, dtype in TARGETS.items():
        value = f32.astype(dtype)
        if native.dtype == dtype:
            # Only the affine mode rounds in between.
            assert mode == "affine" or mx.array_equal(value, native).item(), name
            value = native
        expected[label][name] = value
    return stored


def kept(name, value):
    for of_label in expected.values():
        of_label[name] = value
    return {name: value}


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    (HERE / "models" / "blobs").mkdir(parents=True)
    at = "model.layers.0."
    for name, kind, dtype in [("self_attn.q_proj", "int4", mx.bfloat16), ("self_attn.k_proj", "int8", mx.float16),
                              ("self_attn.v_proj", "int4", mx.float32), ("self_attn.o_proj", "mxfp4", mx.bfloat16),
                              ("mlp.gate_proj", "mxfp8", mx.bfloat16), ("mlp.up_proj", "nvfp4", mx.bfloat16)]:
        name = f"{at}{name}.weight"
        metadata = {"quant_type": kind, "group_size": str(MODES[kind][0])}
        tensors(name, quantized(name, random(6, 256, dtype=dtype), kind), metadata)
    # Sources that are quantized already: other groups, aliases in capitals, no group; a global scale.
    name = f"{at}mlp.down_proj.weight"
    tensors(name, quantized(name, random(5, 192), "int8", 32), {"quant_type": "INT8", "group_size": "32"})
    tensors("lm_head.weight", quantized("lm_head.weight", random(12, 128), "int4"), {"quant_type": "Q4"})
    name = f"{at}mlp.shared.weight"
    tensors(name, quantized(name, random(8, 64), "nvfp4", global_scale=0.0123), {"quant_type": "nvfp4", "group_size": "16"})
    # Several weights in a blob, of one kind and of two.
    name = f"{at}experts"
    stored = quantized(f"{name}.gate_up_proj", random(3, 4, 128), "mxfp4") | quantized(f"{name}.down_proj", random(3, 8, 64), "mxfp4")
    tensors(name, stored, {"quant_type": "mxfp4", "group_size": "32"})
    name = "model.layers.1.mlp.experts"
    stored = (quantized(f"{name}.gate_proj.weight", random(2, 4, 128), "int4") |
              quantized(f"{name}.down_proj.weight", random(2, 4, 128), "int8") | kept(f"{name}.scaling", random(4)))
    metadata = {f"{name}.{w}.weight.{key}": value for w, kind in [("gate_proj", "int4"), ("down_proj", "int8")]
                for key, value in [("quant_type", kind), ("group_size", "64")]}
    tensors(name, stored, metadata)
    for name, shape in [(f"{at}self_attn.q_proj.bias", (6,)), ("model.norm.weight", (256,)), ("model.embed_tokens.weight", (12, 8))]:
        tensors(name, kept(name, random(*shape)))
    blob("application/vnd.ollama.image.json", "config.json", json.dumps({"architectures": ["TestForCausalLM"]}).encode())
    config = {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": f"sha256:{'0' * 64}", "size": 2}
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json", "config": config,
                "layers": layers}
    path = HERE / "models" / "manifests" / "registry.ollama.ai" / "library" / "layers" / "latest"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(manifest))
    # The same weights in one file, as a blob of several kinds has them.
    mixed = HERE / "mixed"
    mixed.mkdir()
    mx.save_safetensors(str(mixed / "model.safetensors"), whole, described)
    for label, of_label in expected.items():
        mx.save_safetensors(str(mixed / f"expected-{label}.safetensors"), of_label)


if __name__ == "__main__":
    sys.exit(main())

"""What the compressed-tensors generators share: configs as the library writes them, and its per-module coding."""

import json
import tempfile
from pathlib import Path

import dirs

import torch
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.entrypoints.convert import CompressedTensorsDequantizer
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.mxfp6.helpers import unpack_fp6_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

from fp8 import F32, BF16, same

FAMILY = "compressed_tensors"
L = "model.layers.0."
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
DOWN, UP, GATE = L + "mlp.down_proj", L + "mlp.up_proj", L + "mlp.gate_proj"
Q, K, V, O = (L + f"self_attn.{p}_proj" for p in "qkvo")


def scheme(targets=("Linear",), inputs=None, format=None, **weights):
    weights = {"num_bits": 4, "type": "int", "symmetric": True} | weights
    return QuantizationScheme(targets=list(targets), weights=QuantizationArgs(**weights), input_activations=inputs, format=format)


def config_of(groups, ignore=("lm_head",), format=None, base=LLAMA, **edit):
    """config.json as `ModelCompressor.update_config` writes it."""
    for s in groups.values():
        if isinstance(s, QuantizationScheme) and s.format is None and s.weights is not None:
            s.format = infer_module_format(torch.nn.Linear, s)
    q = QuantizationConfig(config_groups=dict(groups), ignore=list(ignore), quantization_status="compressed")
    formats = {str(getattr(s.format, "value", s.format)) for s in q.config_groups.values() if s.format}
    q.format = format or (formats.pop() if len(formats) == 1 else "mixed-precision")
    with tempfile.TemporaryDirectory() as d:
        (Path(d) / "config.json").write_text(json.dumps(base))
        ModelCompressor(quantization_config=q).update_config(d)
        out = json.loads((Path(d) / "config.json").read_text())
    out["quantization_config"].update(edit)
    return out


def compressor_of(s):
    return BaseCompressor.get_value_from_registry(getattr(s.format, "value", s.format))


def qparams(w, s):
    """Scale and zero point, as the library's min-max observers find them; the dtype is that of the weight."""
    a = s.weights
    strategy = str(getattr(a.strategy, "value", a.strategy))
    more = {}
    if strategy == "tensor":
        lo, hi = w.amin().view(1), w.amax().view(1)
    elif strategy == "channel":
        lo, hi = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
    elif strategy in ("group", "tensor_group"):
        g = w.unflatten(-1, (-1, a.group_size))
        lo, hi = g.amin(-1), g.amax(-1)
    else:
        rows, cols = a.block_structure
        tiles = [[t for t in r.split(cols, 1)] for r in w.split(rows, 0)]
        lo = torch.stack([torch.stack([t.amin() for t in r]) for r in tiles])
        hi = torch.stack([torch.stack([t.amax() for t in r]) for r in tiles])
    if strategy == "tensor_group":
        more["weight_global_scale"] = generate_gparam(w.amin().float(), w.amax().float())
    scale, zero = calculate_qparams(lo, hi, a, *more.values())
    out = {"weight_scale": scale, **more}
    return out if a.symmetric else out | {"weight_zero_point": zero}


def compress(w, s, **replace):
    return compressor_of(s).compress({"weight": w, **qparams(w, s), **replace}, s)


def decode(parts, s, dtype=F32):
    """The bodies of the library's `decompress` methods with the scale widened to F32 first (they compute in its dtype)."""
    a, scale = s.weights, parts["weight_scale"]
    name = getattr(s.format, "value", s.format)
    zero, more = parts.get("weight_zero_point"), {}
    if name == "pack-quantized":  # PackedQuantizationCompressor.decompress
        shape = parts["weight_shape"]
        if zero is not None and zero.dtype == torch.int32:  # with the tensor strategy it stays as it is, I8
            zero = unpack_from_int32(zero, a.num_bits, (*shape[:-1], scale.shape[-1]), packed_dim=0)
        q = unpack_from_int32(parts["weight_packed"], a.num_bits, shape)
    elif name in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):  # NVFP4PackedCompressor.decompress
        m, n = parts["weight_packed"].shape
        q = unpack_fp4_from_uint8(parts["weight_packed"], m, n * 2, dtype)
    elif name == "mxfp6-pack-quantized":
        m, n = parts["weight_packed"].shape
        q = unpack_fp6_from_uint8(parts["weight_packed"], m, n * 4 // 3, dtype)
    else:  # NaiveQuantizationCompressor.decompress
        q = parts["weight"]
    if name.startswith("mxfp"):  # decompress_mx_scale, float32 for bfloat16
        scale = 2.0 ** (scale.to(torch.int32) - 127).to(dtype)
    if "weight_global_scale" in parts:
        more["global_scale"] = parts["weight_global_scale"]
    return dequantize(x_q=q, scale=scale.to(dtype), zero_point=zero, args=a, dtype=dtype, **more)


def add(c, base, parts, s, must=True):
    """A compressed module: its tensors, the F32 result, and the library's own result in its own dtype."""
    c.add({f"{base}.{k}": v for k, v in parts.items()})
    c.expect(base + ".weight", decode(parts, s))
    c.library(base + ".weight", compressor_of(s).decompress(parts, s)["weight"], f"{s.format} decompress", must)


def whole(c):
    """The library's whole-model decoder on the files just written; its result is in the scales' dtype, then cast.

    It goes by names, so that "Linear" is everything with a tensor `weight`: embeddings are to be ignored by hand.
    """
    ignore = ["re:.*embed_tokens"] if "model.embed_tokens.weight" in c.tensors else []
    own = {n.rsplit(".", 1)[0]: t.dtype for n, t in c.tensors.items() if n.endswith("weight_scale")}
    for d, dtype in dirs.TARGETS.items():
        got = CompressedTensorsDequantizer(str(c.model), ignore, dtype).process(dirs.load_all(c.model))
        for name, f32 in c.expected.items():
            base = name.rsplit(".", 1)[0]
            if c.tensors.get(name) is f32:
                continue
            scale = own[base] if own[base].is_floating_point and own[base].itemsize > 1 else BF16
            if scale == dtype:
                assert same(got[name], dirs.rounded(f32)[d]), (
                    c.dir.name,
                    name,
                    d,
                    dirs.differing(got[name], dirs.rounded(f32)[d]),
                )

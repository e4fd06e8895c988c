"""Golden checkpoints of `torch.save` with torchao's subclasses of Tensor, and what torchao decodes them to (CPU).

    pip install torch==2.15.0 safetensors==0.8.0 numpy==2.4.6
    pip install --no-deps torchao==0.18.0 && python torchao_checkpoints.py
    pip install --no-deps torchao==0.13.0 && python torchao_checkpoints.py

It rewrites the cases of ../torchao_checkpoints that the version makes: 0.13 those of AffineQuantizedTensor.
"""

import json
import warnings

warnings.filterwarnings("ignore")

from directories import BF16, F16, F32, U8, Dir

import torch
import torchao
from torchao.quantization import quantize_
from torchao.quantization.quant_primitives import dequantize_affine

FAMILY = "torchao_checkpoints"
CURRENT = torchao.__version__ >= "0.16"


def case(name, weights, in_f32, legacy=False, nested=False):
    """`weights`: the tensors of the checkpoint, plain ones among them."""
    d = Dir(FAMILY, name)
    for key, t in weights.items():
        if type(t) is torch.Tensor:
            d.keep(key, t)
        else:
            d.expect(key, in_f32(t), getattr(t, "original_weight_tensor", t).dequantize(), "file")
    state = {"model": weights, "epoch": 3} if nested else weights
    torch.save(state, d.model / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    loaded = torch.load(d.model / "pytorch_model.bin", weights_only=False)
    loaded = loaded["model"] if nested else loaded
    for key, t in loaded.items():
        if key in d.f32:
            assert torch.equal(in_f32(t), d.f32[key]), key
    if nested:
        d.f32 = {f"model.{key}": t for key, t in d.f32.items()}
        d.kept = {f"model.{key}": t for key, t in d.kept.items()}
        d.own = {f"model.{key}": t for key, t in d.own.items()}
    d.write(stored=d.kept)


def layers(name, configs, n=64, m=8):
    """A linear layer for each config, without bias, and a norm."""
    torch.manual_seed(len(name))
    weights = {}
    for key, (config, dtype) in configs.items():
        layer = torch.nn.Sequential(torch.nn.Linear(n, m, bias=False, dtype=dtype))
        quantize_(layer, config)
        weights[f"{key}.weight"] = layer[0].weight.detach()
    weights["norm.weight"] = torch.randn(n).to(BF16)
    return weights


def current():
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.quantization import Float8Tensor, IntxUnpackedToInt8Tensor, Int8Tensor, PerGroup, PerRow, PerTensor
    from torchao.quantization.quant_api import (Float8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig,
                                                IntxWeightOnlyConfig)

    def in_f32(t):
        if isinstance(t, IntxUnpackedToInt8Tensor | Int8Tensor):
            return dequantize_affine(t.qdata, t.block_size, t.scale.to(F32), t.zero_point, torch.int8, output_dtype=F32)
        return t.dequantize(F32)

    configs = {
        "int8": (Int8WeightOnlyConfig(), BF16), "int8_f16": (Int8WeightOnlyConfig(), F16),
        "int8_groups": (Int8WeightOnlyConfig(granularity=PerGroup(32)), F32),
        "int8_dynamic": (Int8DynamicActivationInt8WeightConfig(), BF16),
        "intx4": (IntxWeightOnlyConfig(torch.int4, PerGroup(32)), BF16),
        "intx3": (IntxWeightOnlyConfig(torch.int3, PerGroup(16)), F32),
    }
    case("integers", layers("integers", configs), in_f32)
    configs = {"rows": (Float8WeightOnlyConfig(granularity=PerRow()), BF16), "whole": (Float8WeightOnlyConfig(granularity=PerTensor()), F32)}
    case("float8", layers("float8", configs), in_f32, nested=True)
    case("legacy", layers("legacy", {"int8": (Int8WeightOnlyConfig(), BF16)}), in_f32, legacy=True)
    d = torch.Generator().manual_seed(3)
    w = {f"{name}.weight": MXTensor.to_mx(torch.randn(34, 64, generator=d).to(dtype), code, 32, is_swizzled_scales=swizzled)
         for name, dtype, code, swizzled in [("mxfp8", BF16, torch.float8_e4m3fn, False), ("mxfp8_tiles", F32, torch.float8_e5m2, True),
                                             ("mxfp4", BF16, torch.float4_e2m1fn_x2, False)]}
    w["nvfp4.weight"] = NVFP4Tensor.to_nvfp4(torch.randn(4, 32, generator=d).to(BF16))
    case("blocks", w, in_f32)


def affine():
    import torchao.quantization.quant_api as qa
    from torchao.dtypes import Int4CPULayout, PlainLayout, to_affine_quantized_intx
    from torchao.quantization.quant_primitives import MappingType

    def in_f32(t):
        t = getattr(t, "original_weight_tensor", t)
        data, scale, zero = t.tensor_impl.get_plain()
        if data.dtype.is_floating_point:
            return data.to(F32) * scale.to(F32).reshape(-1, 1)
        return dequantize_affine(data, t.block_size, scale.to(F32), zero, data.dtype, t.quant_min, t.quant_max, output_dtype=F32)

    configs = {
        "int8": (qa.Int8WeightOnlyConfig(), BF16), "int8_groups": (qa.Int8WeightOnlyConfig(group_size=32), F32),
        "int8_dynamic": (qa.Int8DynamicActivationInt8WeightConfig(), BF16),
        "int8_int4": (qa.Int8DynamicActivationInt4WeightConfig(group_size=32), BF16),
        "float8": (qa.Float8WeightOnlyConfig(version=1), BF16),
        "intx4": (qa.IntxWeightOnlyConfig(weight_dtype=torch.int4, version=1), F32),
    }
    weights = layers("affine", configs)
    # Asymmetric, with U8 codes and zero points of other types.
    for key, code, zero, low, high in [("u8", U8, torch.int64, 0, 255), ("u4", U8, torch.int32, 0, 15), ("u8_zero_u8", U8, U8, 0, 255)]:
        weights[f"{key}.weight"] = to_affine_quantized_intx(torch.randn(6, 64).to(BF16) + 0.5, MappingType.ASYMMETRIC, (1, 32), code,
                                                            low, high, zero_point_dtype=zero, _layout=PlainLayout())
    case("affine", weights, in_f32)
    d = Dir(FAMILY, "affine_int4_cpu")
    config = qa.Int4WeightOnlyConfig(group_size=32, layout=Int4CPULayout(), version=1)
    torch.save(layers("cpu", {"a": (config, BF16)}, 64, 32), d.model / "pytorch_model.bin")
    refused = {"tensor": "a.weight", "why": "Int4CPULayout packs in an order that depends on the processor"}
    (d.dir / "unsupported.json").write_text(json.dumps(refused) + "\n")


if __name__ == "__main__":
    current() if CURRENT else affine()

"""Golden NVFP4 files, made and decoded by nvidia-modelopt and compressed-tensors (CPU).

Run: `python nvfp4.py` (see ../README.md). It rewrites `../nvfp4/*`.
"""

import json
import sys

sys.dont_write_bytecode = True

from fp8 import BF16, E4M3, F32, TARGETS, U8, Case, differing, same

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.entrypoints.convert import CompressedTensorsDequantizer
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from safetensors.torch import load_file

L = "model.layers.0."
GLOBALS = {  # one projection each
    "q_proj": 0.0,
    "k_proj": float("nan"),
    "v_proj": float("inf"),
    "o_proj": -0.0061,
    "gate_proj": 1e-40,
    "up_proj": 3e38,
    "down_proj": 2.0**-149,
}


def module(proj):
    return L + ("self_attn." if proj in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp.") + proj


def nibbles(case, rows, cols):
    """Packed codes: every block of 16 values holds each code once, in its own order."""
    codes = torch.stack([torch.randperm(16, generator=case.rng) for _ in range(rows * cols // 16)])
    codes = codes.reshape(rows, cols).to(U8)
    return codes[:, 1::2] << 4 | codes[:, 0::2]


def block_scales(case, rows, cols):
    """E4M3 bytes with all 256 codes (NaN, zeros, negatives, subnormals) as far as there is room."""
    return case.all_bytes(rows, cols // 16).view(E4M3)


# ---------------------------------------------------------------- ModelOpt


def modelopt_decode(packed, scale, scale_2, dtype=F32):
    shape = torch.Size((*packed.shape[:-1], packed.shape[-1] * 2))
    if scale_2.ndim:  # one factor an expert, reshaped as modelopt's `to_quantized_weight` does
        scale_2 = scale_2.view(-1, 1, 1)
    tensor = NVFP4QTensor(shape, dtype, packed)
    return tensor.dequantize(dtype, scale=scale, double_scale=scale_2, block_sizes={-1: 16})


def modelopt_config():
    """config.json's entry, converted from hf_quant_config.json by modelopt's exporter."""
    quantization = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": ["lm_head"]}
    producer = {"name": "modelopt", "version": "0.47.0"}
    q = convert_hf_quant_config_format({"producer": producer, "quantization": quantization})
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": q}


def modelopt_add(c, weight_name, prefix, packed, scale, scale_2):
    c.add({weight_name: packed, prefix + "weight_scale": scale, prefix + "weight_scale_2": scale_2})
    c.add({prefix + "input_scale": torch.tensor(0.00231)})
    c.expect(weight_name, modelopt_decode(packed, scale, scale_2))
    c.direct(weight_name, lambda d: modelopt_decode(packed, scale, scale_2, d), "modelopt NVFP4QTensor.dequantize")


def modelopt_cases():
    for case, config in [("modelopt", modelopt_config()), ("modelopt_noconfig", None)]:
        c = Case("nvfp4", case, config)
        for proj, shape in [("up_proj", (50, 64)), ("down_proj", (33, 48))]:
            w = c.randn(*shape, scale=0.05)
            w[0, :16] = 0  # a block of zeros
            tensor, scale, scale_2 = NVFP4QTensor.quantize(w.to(BF16), 16)
            modelopt_add(c, module(proj) + ".weight", module(proj) + ".", tensor._quantized_data, scale, scale_2)
        c.norm(64)
        c.keep("lm_head.weight", c.randn(6, 64, scale=0.02).to(BF16))
        c.bias(6)
        c.write()

    c = Case("nvfp4", "modelopt_hostile")
    name = "model.layers.1.mlp.down_proj"
    scale_2 = torch.tensor(0.00071)
    modelopt_add(c, name + ".weight", name + ".", nibbles(c, 16, 256), block_scales(c, 16, 256), scale_2)
    for proj, value in GLOBALS.items():
        packed, scale = nibbles(c, 4, 128), block_scales(c, 4, 128)
        modelopt_add(c, module(proj) + ".weight", module(proj) + ".", packed, scale, torch.tensor(value))
    c.norm(128)
    c.write()

    # Stacked experts: suffixes without a dot; weight_scale_2 is a scalar or one value an expert.
    c = Case("nvfp4", "modelopt_experts")
    for proj, shape, per_expert in [("gate_up_proj", (3, 20, 32), False), ("down_proj", (3, 14, 48), True)]:
        name = L + "mlp.experts." + proj
        w = c.randn(*shape, scale=0.05).to(BF16)
        scale_2 = (w.abs().amax((1, 2)) if per_expert else w.abs().amax()).float() / (6 * 448)
        tensor, scale, _ = NVFP4QTensor.quantize(
            w, 16, NVFP4QTensor.get_weights_scaling_factor(w, 16, scale_2.view(-1, 1, 1))[0], scale_2.view(-1, 1, 1)
        )
        modelopt_add(c, name, name + "_", tensor._quantized_data, scale, scale_2)
    c.norm(32)
    c.write()


# ---------------------------------------------------------------- compressed-tensors

SCHEME = preset_name_to_scheme("NVFP4", ["Linear"])
SCHEME.format = "nvfp4-pack-quantized"
COMPRESSOR = BaseCompressor.get_value_from_registry(SCHEME.format)


def ct_config():
    q = QuantizationConfig(config_groups={"group_0": SCHEME}, ignore=["lm_head"], format=SCHEME.format,
                           quantization_status="compressed")
    q = json.loads(json.dumps(q.to_dict(), default=str))
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": q}


def ct_decode(packed, scale, global_scale):
    """`NVFP4PackedCompressor.decompress` with float32 where it says bfloat16; the global scale keeps rank 1."""
    values = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, F32)
    return dequantize(values, scale.to(F32), args=SCHEME.weights, global_scale=global_scale.view(1), dtype=F32)


def ct_add(c, base, packed, scale, global_scale, must=True):
    parts = {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": global_scale}
    c.add({f"{base}.{k}": v for k, v in parts.items()})
    c.add({base + ".input_global_scale": torch.tensor([432.0])})
    c.expect(base + ".weight", ct_decode(packed, scale, global_scale))
    decode = lambda _: COMPRESSOR.decompress(parts, SCHEME)["weight"]
    c.direct(base + ".weight", decode, "NVFP4PackedCompressor.decompress", ("bf16",), must)


def ct_quantize(w):
    global_scale = generate_gparam(w.amin().float(), w.amax().float())
    groups = w.unflatten(-1, (-1, 16))
    scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), SCHEME.weights, global_scale)
    out = COMPRESSOR.compress({"weight": w, "weight_scale": scale, "weight_global_scale": global_scale}, SCHEME)
    assert out["weight_scale"].dtype == E4M3 and out["weight_global_scale"].shape == (1,)
    return out["weight_packed"], out["weight_scale"], out["weight_global_scale"]


def ct_cases():
    for case, config in [("compressed_tensors", ct_config()), ("compressed_tensors_noconfig", None)]:
        c = Case("nvfp4", case, config)
        for proj, shape in [("up_proj", (50, 64)), ("down_proj", (33, 48))]:
            w = c.randn(*shape, scale=0.05)
            w[0, :16] = 0
            ct_add(c, module(proj), *ct_quantize(w.to(BF16)))
        c.norm(64)
        c.keep("lm_head.weight", c.randn(6, 64, scale=0.02).to(BF16))
        c.bias(6)
        c.write()
        if config:  # the whole-file decoder works in bf16 and casts afterwards
            for d, dtype in TARGETS.items():
                stored = load_file(c.dir / "model.safetensors")
                got = CompressedTensorsDequantizer(str(c.dir), dtype=dtype).process(stored)
                want = load_file(c.dir / f"expected-{d}.safetensors")
                for name in (module("up_proj") + ".weight", module("down_proj") + ".weight"):
                    if d == "bf16":
                        assert same(got[name], want[name])
                    elif not same(got[name], want[name]):
                        print(f"    {name}: CompressedTensorsDequantizer {d}: {differing(got[name], want[name])}")

    c = Case("nvfp4", "compressed_tensors_hostile")
    ct_add(c, "model.layers.1.mlp.down_proj", nibbles(c, 16, 256), block_scales(c, 16, 256), torch.tensor([1371.4287]))
    for proj, value in GLOBALS.items():
        ct_add(c, module(proj), nibbles(c, 4, 128), block_scales(c, 4, 128), torch.tensor([value]))
    c.norm(128)
    c.write()

    # A rank-0 global scale makes torch stay in bf16 throughout; the golden keeps the f32 formula.
    c = Case("nvfp4", "compressed_tensors_global_0d")
    packed, scale, global_scale = ct_quantize(c.randn(18, 48, scale=0.05).to(BF16))
    ct_add(c, module("up_proj"), packed, scale, global_scale[0], must=False)
    c.norm(48)
    c.write()


if __name__ == "__main__":
    modelopt_cases()
    ct_cases()

"""Golden torchao models: made by torchao and transformers, decoded by torchao (CPU).

Run: `python torchao_cases.py` (see ../README.md). It rewrites `../torchao/*`. (A script called torchao.py would hide the
library.) Int4 layouts, which torchao can only make or decode on a GPU, are in torchao_int4.py.
"""

import json

from directories import BF16, F16, F32, U8, Dir, tiny_llama

import torch
from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig, NVFP4WeightOnlyConfig
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import (Float8Tensor, Int8Tensor, IntxUnpackedToInt8Tensor, MappingType, PerBlock, PerGroup,
                                  PerRow, PerTensor)
from torchao.quantization.quant_api import (Float8DynamicActivationFloat8WeightConfig, Float8WeightOnlyConfig, FqnToConfig,
                                            Int8WeightOnlyConfig, IntxWeightOnlyConfig)
from torchao.quantization.quant_primitives import dequantize_affine
from transformers import AutoModelForCausalLM, TorchAoConfig

E4M3, E5M2, E8M0, I8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.int8
L = "model.layers.0."


def in_f32(t):
    """What the library gives when F32 is asked for."""
    if isinstance(t, IntxUnpackedToInt8Tensor):  # its own `dequantize` takes no dtype; this is its body
        return dequantize_affine(t.qdata, t.block_size, t.scale.to(F32), t.zero_point, I8, output_dtype=F32)
    if isinstance(t, Int8Tensor):  # dequantize(F32), the scale widened
        return dequantize_affine(t.qdata, t.block_size, t.scale.to(F32), t.zero_point, I8, output_dtype=F32)
    return t.dequantize(F32)


def expect(d, name, t, rule="equal"):
    d.expect(name, in_f32(t), t.dequantize(), rule)


def stored_in(names, name):
    """The tensors of a file that make up `a.b.weight`: `a.b._weight_*`."""
    module, param = name.rsplit(".", 1)
    return [n for n in names if n.startswith(f"{module}._{param}_")]


def save_single(d, weights, config, kept=()):
    """One file with torchao's own flattening, which is what transformers uses."""
    for name in kept:
        weights[name] = d.keep(name, kept[name])
    tensors, metadata = flatten_tensor_state_dict(weights)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
              "quantization_config": TorchAoConfig(config).to_dict() if config is not None else {"quant_method": "torchao"}}
    d.save(tensors, config, metadata)


def norm(d, k):
    return {"model.norm.weight": (1 + d.randn(k, scale=0.1)).to(BF16)}


# ---------------------------------------------------------------- tiny models through transformers


def tiny(name, config, dtype=BF16, **more):
    d = Dir("torchao", name)
    base = d.dir / "base"
    tiny_llama(base, dtype)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, quantization_config=TorchAoConfig(config, **more))
    for file in sorted(base.iterdir()):
        file.unlink()
    base.rmdir()
    for key, t in model.state_dict().items():
        if type(t) is torch.Tensor:
            d.keep(key, t)
        else:
            expect(d, key, t)
    for size in range(9000, 20000, 170):
        for file in d.model.iterdir():
            file.unlink()
        model.save_pretrained(d.model, max_shard_size=size)
        index = json.loads((d.model / "model.safetensors.index.json").read_text())["weight_map"]
        if any(len({index[n] for n in stored_in(index, key)}) > 1 for key in d.f32):
            break
    loaded, info = AutoModelForCausalLM.from_pretrained(d.model, dtype=dtype, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    for key, t in loaded.state_dict().items():
        if key in d.f32:
            assert torch.equal(in_f32(t), d.f32[key]), key
    d.write(lambda key: stored_in(index, key))


def tiny_cases():
    tiny("tiny_float8", Float8WeightOnlyConfig(granularity=PerRow()))
    tiny("tiny_int8", Int8WeightOnlyConfig())
    tiny("tiny_int8_embedding", FqnToConfig({"_default": Int8WeightOnlyConfig(granularity=PerGroup(32)),
                                             "model.embed_tokens": IntxWeightOnlyConfig(torch.int8, PerGroup(32)),
                                             r"re:model\.layers\.\d+\.self_attn\.[qk]_proj": None}),
         include_input_output_embeddings=True)
    tiny("tiny_intx4", IntxWeightOnlyConfig(torch.int4, PerGroup(32)))
    tiny("tiny_nvfp4", NVFP4WeightOnlyConfig())
    tiny("tiny_mxfp8", MXDynamicActivationMXWeightConfig())


# ---------------------------------------------------------------- Float8Tensor


HOSTILE = [0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 3.4028235e38, -3.0, float("inf"), float("-inf"), float("nan"), 1.0, 2.0**-140]


def float8_cases():
    d = Dir("torchao", "float8_granularity")
    w = {}
    for i, (key, g, dtype) in enumerate([("q_proj", PerRow(), E4M3), ("k_proj", PerTensor(), E4M3), ("v_proj", PerRow(0), E4M3),
                                         ("o_proj", PerRow(), E5M2)]):
        w[f"{L}self_attn.{key}.weight"] = Float8Tensor.from_hp(d.randn(20 + i, 34).to(BF16), dtype, granularity=g)
    for key, dtype in [("gate_proj", F16), ("up_proj", F32)]:
        w[f"{L}mlp.{key}.weight"] = Float8Tensor.from_hp(d.randn(10, 34).to(dtype), granularity=PerRow())
    for key, t in w.items():
        expect(d, key, t)
    save_single(d, w, Float8WeightOnlyConfig(), norm(d, 34))
    d.write()

    # A stack of experts, and blocks of 16 x 32, whose scales are one for each block.
    d = Dir("torchao", "float8_experts_blocks")
    w = {f"{L}mlp.experts.gate_up_proj": Float8Tensor.from_hp(d.randn(3, 12, 16).to(BF16), granularity=PerRow()),
         f"{L}mlp.experts.down_proj": Float8Tensor.from_hp(d.randn(3, 16, 6).to(BF16), granularity=PerTensor()),
         f"{L}self_attn.q_proj.weight": Float8Tensor.from_hp(d.randn(32, 96).to(BF16), granularity=PerBlock([16, 32]))}
    for key, t in w.items():
        expect(d, key, t)
    save_single(d, w, Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()))
    d.write()

    # Every code and hostile scales, with scales in F32 and in BF16.
    d = Dir("torchao", "float8_hostile")
    w = {}
    for key, code, dtype in [("q_proj", E4M3, F32), ("k_proj", E5M2, F32), ("v_proj", E4M3, BF16)]:
        scale = torch.tensor(HOSTILE).to(dtype).reshape(-1, 1)
        w[f"{L}self_attn.{key}.weight"] = Float8Tensor(d.all_bytes(len(HOSTILE), 256).view(code), scale, [1, 256], dtype=BF16)
    for key, t in w.items():
        expect(d, key, t)
    save_single(d, w, Float8WeightOnlyConfig())
    d.write()


# ---------------------------------------------------------------- Int8Tensor and IntxUnpackedToInt8Tensor


def int8_cases():
    d = Dir("torchao", "int8_granularity")
    w = {}
    for key, g, mapping in [("q_proj", PerRow(), "SYMMETRIC"), ("k_proj", PerTensor(), "SYMMETRIC"),
                            ("v_proj", PerGroup(16), "SYMMETRIC"), ("o_proj", PerRow(), "ASYMMETRIC")]:
        hp = (d.randn(21, 48) + (0.7 if mapping == "ASYMMETRIC" else 0)).to(BF16)
        w[f"{L}self_attn.{key}.weight"] = Int8Tensor.from_hp(hp, g, MappingType[mapping])
    for key, dtype in [("gate_proj", F16), ("up_proj", F32)]:
        w[f"{L}mlp.{key}.weight"] = Int8Tensor.from_hp(d.randn(9, 48).to(dtype), PerGroup(24), MappingType.ASYMMETRIC)
    w[f"{L}mlp.experts.gate_up_proj"] = Int8Tensor.from_hp(d.randn(3, 8, 16).to(BF16), PerRow())
    for key, t in w.items():
        expect(d, key, t)
    assert w[f"{L}self_attn.o_proj.weight"].zero_point.any()
    save_single(d, w, Int8WeightOnlyConfig(), norm(d, 48))
    d.write()

    # No zero point; static activation scales, which are no part of the weight; scales in BF16 and F16; hostile scales.
    d = Dir("torchao", "int8_parts")
    q = d.all_bytes(len(HOSTILE), 256).view(I8)
    hostile = torch.tensor(HOSTILE).reshape(-1, 1)
    w = {f"{L}self_attn.q_proj.weight": Int8Tensor(q, hostile, [1, 256], BF16),
         f"{L}self_attn.k_proj.weight": Int8Tensor(q.roll(1, 1), d.scales(12, 4).to(BF16), [1, 64], BF16,
                                                   zero_point=d.randint(-128, 128, 12, 4).to(I8)),
         f"{L}self_attn.v_proj.weight": Int8Tensor(q.roll(2, 1)[:4], d.scales(4, 1).to(F16), [1, 256], F16,
                                                   zero_point=d.randint(-128, 128, 4, 1).to(I8)),
         f"{L}self_attn.o_proj.weight": Int8Tensor(q.roll(3, 1)[:4], d.scales(4, 1), [1, 256], BF16,
                                                   zero_point=torch.zeros(4, 1, dtype=I8), act_quant_scale=d.scales(1, 1),
                                                   act_quant_zero_point=torch.zeros(1, 1, dtype=I8))}
    for key, t in w.items():
        expect(d, key, t)
    save_single(d, w, Int8WeightOnlyConfig())
    d.write()

    # AWQ and SmoothQuant: the input is multiplied by act_pre_scale. `dequantize` leaves it out; folded
    # into the weight it is one factor more for each column, F32 product of F32 products.
    d = Dir("torchao", "int8_act_pre_scale")
    t = Int8Tensor.from_hp(d.randn(16, 32).to(BF16), PerRow(), act_pre_scale=d.scales(32, lo=-2, hi=2).to(BF16))
    key = f"{L}self_attn.q_proj.weight"
    d.expect(key, in_f32(t) * t.act_pre_scale.to(F32))
    save_single(d, {key: t}, Int8WeightOnlyConfig())
    d.write()


def intx_cases():
    d = Dir("torchao", "intx_bits")
    w = {}
    for n in range(1, 9):
        mapping = MappingType.ASYMMETRIC if n % 2 else MappingType.SYMMETRIC
        hp = (d.randn(12, 48) + (0.5 if n % 2 else 0)).to([BF16, F16, F32][n % 3])
        block = [(1, 48), (1, 16), (1, 24), (4, 16)][n % 4]
        w[f"{L}mlp.experts.{n}.down_proj.weight"] = IntxUnpackedToInt8Tensor.from_hp(
            hp, list(block), getattr(torch, f"int{n}"), mapping_type=mapping)
    for key, t in w.items():
        expect(d, key, t)
    save_single(d, w, IntxWeightOnlyConfig(torch.int4, PerGroup(16)), norm(d, 48))
    d.write()

    # Zero points in the dtype of the scale: T(q) - T(z) is rounded, then the product.
    for dtype, short in [(BF16, "bf16"), (F16, "f16"), (F32, "f32")]:
        d = Dir("torchao", f"intx_float_zero_{short}")
        key = f"{L}self_attn.q_proj.weight"
        hp = d.randn(16, 64).to(dtype)
        scale, zero = (d.scales(16, 4, lo=-3, hi=-2)).to(dtype), d.randn(16, 4, scale=3).to(dtype)
        t = IntxUnpackedToInt8Tensor.from_hp(hp, [1, 16], torch.int4, intx_choose_qparams_algorithm=None,
                                             custom_scale=scale, custom_zero_point=zero)
        wide = IntxUnpackedToInt8Tensor(t.qdata, scale.to(F32), zero.to(F32), torch.int4, [1, 16], F32, None)
        d.expect(key, wide.dequantize(), t.dequantize(), "file")
        save_single(d, {key: t}, IntxWeightOnlyConfig(torch.int4, PerGroup(16)))
        d.write()


# ---------------------------------------------------------------- NVFP4Tensor and MXTensor


def fp4_cases():
    d = Dir("torchao", "nvfp4_layouts")
    w = {}
    for key, swizzled, glob, shape, dtype in [
            ("q_proj", True, True, (40, 96), BF16), ("k_proj", False, True, (40, 96), BF16),
            ("v_proj", False, False, (24, 80), F32), ("o_proj", True, False, (130, 80), BF16)]:
        hp = d.randn(*shape).to(dtype)
        scale = per_tensor_amax_to_scale(hp.abs().max()) if glob else None
        w[f"{L}self_attn.{key}.weight"] = NVFP4Tensor.to_nvfp4(hp, per_tensor_scale=scale, is_swizzled_scales=swizzled)
    for key, swizzled in [("gate_up_proj", False), ("down_proj", True)]:  # experts, each with its own global scale
        hp = d.randn(2, 128, 16).to(BF16) if swizzled else d.randn(3, 8, 32).to(BF16)
        glob = per_tensor_amax_to_scale(hp.abs().amax(dim=(1, 2), keepdim=True))
        w[f"{L}mlp.experts.{key}"] = NVFP4Tensor.to_nvfp4(hp, per_tensor_scale=glob, is_swizzled_scales=swizzled)
    for key, t in w.items():
        expect(d, key, t)
    save_single(d, w, NVFP4WeightOnlyConfig(), norm(d, 96))
    d.write()

    d = Dir("torchao", "nvfp4_hostile")
    w = {}
    for key, glob, rows in [("q_proj", None, 8), ("k_proj", torch.tensor(0.0123456789), 8), ("v_proj", torch.tensor(3e38), 2),
                            ("o_proj", torch.tensor(1e-38), 2)]:
        scale = d.all_bytes(rows, 32).view(E4M3)  # in eight rows every scale once, NaN and negative ones too
        w[f"{L}self_attn.{key}.weight"] = NVFP4Tensor(d.all_bytes(rows, 256), scale, 16, BF16, glob)
    for key, t in w.items():
        expect(d, key, t)
    save_single(d, w, NVFP4WeightOnlyConfig())
    d.write()

    # "mx_layouts" is in BF16 and F32. In F16 the library casts the scale 2^e to F16 first: noted, not followed.
    for name, dtypes, rule in [("mx_layouts", (BF16, F32), "equal"), ("mx_f16", (F16,), "note")]:
        d = Dir("torchao", name)
        w = {}
        for i, elem in enumerate([E4M3, E5M2, torch.float4_e2m1fn_x2]):
            for swizzled in (False, True):
                dtype = dtypes[i % len(dtypes)]
                hp = (d.randn(14, 96) * torch.exp2(d.randint(-20, 8, 14, 1).float())).to(dtype)
                w[f"{L}mlp.experts.{2 * i + swizzled}.up_proj.weight"] = MXTensor.to_mx(
                    hp.contiguous() if dtype != F16 else hp.to(BF16), elem, 32, is_swizzled_scales=swizzled)
        if rule == "note":
            w = {k: MXTensor(t.qdata, t.scale, t.elem_dtype, 32, F16, t.kernel_preference, None, t.is_swizzled_scales)
                 for k, t in w.items()}
        for key, t in w.items():
            expect(d, key, t, rule)
        save_single(d, w, MXDynamicActivationMXWeightConfig(), norm(d, 96))
        d.write()

    d = Dir("torchao", "mx_hostile")
    w = {}
    edges = torch.tensor([0, 1, 2, 3, 110, 126, 127, 128, 130, 200, 246, 250, 252, 253, 254, 255], dtype=U8)
    for key, elem in [("q_proj", E4M3), ("k_proj", E5M2), ("v_proj", torch.float4_e2m1fn_x2)]:
        fp4 = elem == torch.float4_e2m1fn_x2  # E4M3 meets every scale, the others those at the ends
        scale = d.all_bytes(32, 8) if elem == E4M3 else edges.repeat(2).reshape(4, 8)
        codes = d.all_bytes(scale.shape[0], 128 if fp4 else 256)
        w[f"{L}self_attn.{key}.weight"] = MXTensor(codes if fp4 else codes.view(elem), scale.view(E8M0), elem, 32, BF16,
                                                   None, None, False)
    for key, t in w.items():
        expect(d, key, t)
    save_single(d, w, MXDynamicActivationMXWeightConfig())
    d.write()


if __name__ == "__main__":
    tiny_cases()
    float8_cases()
    int8_cases()
    intx_cases()
    fp4_cases()

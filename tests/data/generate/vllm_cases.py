"""Golden models of layouts that only vLLM, sglang and TensorRT-LLM load.

Run: `python vllm_cases.py` (see ../README.md). It rewrites `../vllm/*`. Decoded by transformers' `Fp8Dequantize`, by
compressed-tensors' NVFP4 compressor, and by gguf-py.
"""

import gguf
import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from modelcase import BF16, F32, ModelCase, total
from sglang_int import pack

E4M3, E8M0, F4, U8 = torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2, torch.uint8
LAYER = "model.layers.1"


def dequantized(codes, scale):
    codes = codes.view(torch.int8) if codes.dtype == U8 else codes
    return Fp8Dequantize._dequantize_one(Fp8Dequantize(None), codes, scale, F32)


class Case(ModelCase):
    def exponents(self, *shape):
        return torch.randint(110, 135, shape, generator=self.rng, dtype=U8)

    def fp8(self, name, n, k, scale, suffix="weight_scale_inv"):
        codes = self.all_bytes(n, k).view(E4M3)
        self.add({f"{name}.weight": codes, f"{name}.{suffix}": scale})
        self.expect(f"{name}.weight", dequantized(codes, scale))

    def fp8_ragged(self, name, n, k, side):
        """As compressed-tensors decodes blocks of which the last are smaller; transformers refuses them."""
        codes = self.all_bytes(n, k).view(E4M3)
        scale = self.scales(-(-n // side), -(-k // side))
        self.add({f"{name}.weight": codes, f"{name}.weight_scale_inv": scale})
        each = scale.repeat_interleave(side, 0)[:n].repeat_interleave(side, 1)[:, :k]
        self.expect(f"{name}.weight", codes.to(F32) * each)

    def mxfp4(self, name, shape, dtype, scale_dtype, suffix):
        """`name` is that of the codes, for a stack has no `.weight`."""
        *lead, k = shape
        codes, scale = self.bytes(*lead, k // 2), self.exponents(*lead, k // 32)
        scale_name = name.removesuffix(".weight") + suffix if suffix[0] == "." else name + suffix
        self.add({name: codes.view(dtype), scale_name: scale.view(scale_dtype)})
        self.expect(name, dequantized(codes, scale).reshape(shape))

    def blocks(self, name, shape, kind):
        *lead, k = shape
        values, size = gguf.GGML_QUANT_SIZES[kind]
        codes = self.bytes(*lead, k // values, size)
        d = self.scales(*lead, k // values).to(torch.float16)
        codes[..., :2] = d.unsqueeze(-1).view(U8)
        self.add({name: codes})
        rows = codes.reshape(-1, k // values * size)
        self.expect(name, torch.from_numpy(gguf.quants.dequantize(rows.numpy(), kind)).reshape(shape))

    def int4(self, name, n, k):
        codes = torch.randint(-8, 8, (n, k), generator=self.rng, dtype=torch.int8)
        scale = self.scales(n, k // 128)
        self.add({f"{name}.weight": pack(codes), f"{name}.weight_scale_inv": scale})
        self.expect(f"{name}.weight", codes.to(F32) * scale.repeat_interleave(128, dim=-1))

    def nvfp4(self, name, n, k, divides=True, signed_zero=True):
        codes = self.bytes(n, k // 2)
        scale = self.scales(n, k // 16, lo=-3, hi=6).to(E4M3)
        scale_of_all = self.scales(1, lo=3, hi=5)
        suffix, suffix_of_all = ("_packed", "global_scale") if divides else ("", "scale_2")
        self.add({f"{name}.weight{suffix}": codes, f"{name}.weight_scale": scale, f"{name}.weight_{suffix_of_all}": scale_of_all})
        each = scale.to(F32) / scale_of_all if divides else scale.to(F32) * scale_of_all
        each = each.repeat_interleave(16, dim=-1)
        values = unpack_fp4_from_uint8(codes, n, k, dtype=F32)
        self.expect(f"{name}.weight", (values if signed_zero else values + 0.0) * each)


def config(method, model_type="deepseek_v3", **more):
    return {"model_type": model_type, "quantization_config": {"quant_method": method, "activation_scheme": "dynamic", **more}}


def w4afp8():
    # TensorRT-LLM `quantize_mixed_precision_moe.py`: its two files, and scales of activations of their own.
    case = Case("vllm", "w4afp8_tensorrt", {"model_type": "deepseek_v3"}, shards=2)
    blocks, experts = {"quant_algo": "FP8_BLOCK_SCALES"}, {"quant_algo": "W4A8_AWQ"}
    mixed = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None}
    layers = {f"{LAYER}.self_attn.o_proj": blocks, f"{LAYER}.mlp.experts": experts}
    case.sidecar("hf_quant_config.json", {"quantization": mixed})
    case.sidecar("quant_cfg.json", {**mixed, "quantized_layers": layers})
    case.fp8(f"{LAYER}.self_attn.o_proj", 8, 256, case.scales(1, 2))
    for i in range(2):
        for name, number, n, k in (("gate_proj", 1, 24, 256), ("down_proj", 2, 7, 128)):
            case.int4(f"{LAYER}.mlp.experts.{i}.{name}", n, k)
            case.add({f"{LAYER}.mlp.experts.{i}.w{number}.input_scale": case.scales(1)})
    case.norm(256)
    case.write()

    case = Case("vllm", "w4afp8_layers", {"model_type": "deepseek_v3"})
    case.sidecar("hf_quant_config.json", {"quantization": {**mixed, "quantized_layers": layers}})
    case.fp8(f"{LAYER}.self_attn.o_proj", 8, 384, case.scales(1, 3))
    case.int4(f"{LAYER}.mlp.experts.0.up_proj", 24, 256)
    case.write()


def block_fp8():
    # Blocks of 48, where the shapes alone allow 64 as well.
    layers = {
        f"{LAYER}.mlp.experts": {"quant_algo": "FP8_BLOCK_SCALES", "group_size": 48},
        f"{LAYER}.self_attn.o_proj": {"quant_algo": "fp8_pb_wo"},
    }
    case = Case("vllm", "block_fp8_mixed", config("modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers))
    case.fp8(f"{LAYER}.mlp.experts.0.up_proj", 96, 48, case.scales(2, 1), "weight_scale")
    case.fp8(f"{LAYER}.mlp.experts.0.down_proj", 48, 96, case.scales(1, 2), "weight_scale")
    case.fp8(f"{LAYER}.self_attn.o_proj", 256, 16, case.scales(2, 1), "weight_scale")
    case.write()


def experts_in_halves():
    case = Case("vllm", "experts_halves", config("fp8", "mistral4", weight_block_size=None, activation_scheme="static"))
    for layer, i, h in ((0, 48, 16), (1, 12, 64), (2, 32, 16)):
        for name, n, k, scales in (("gate_up_proj", 2 * i, h, 2), ("down_proj", h, i, 1)):
            name = f"model.layers.{layer}.mlp.experts.{name}"
            codes = case.all_bytes(3 * n, k).view(E4M3).reshape(3, n, k)
            scale = case.scales(3, scales, 1)
            case.add({name: codes, f"{name}_scale_inv": scale, f"{name}_activation_scale": case.scales(3)})
            case.expect(name, dequantized(codes, scale))
    case.write()


def mxfp4():
    # Ling 3: both kinds of layers have `weight_scale_inv`.
    case = Case("vllm", "mxfp4_ling", config("fp8", "bailing_moe_v3", scale_fmt="ue8m0", weight_block_size=[128, 128], routed_experts_quant_method="mxfp4"))
    case.fp8(f"{LAYER}.attention.dense", 8, 256, case.exponents(1, 2).view(E8M0))
    case.mxfp4(f"{LAYER}.mlp.experts.0.up_proj.weight", (24, 64), U8, U8, "_scale_inv")
    case.mxfp4(f"{LAYER}.mlp.experts.1.up_proj.weight", (24, 64), torch.int8, E8M0, "_scale_inv")
    case.write()

    case = Case("vllm", "mxfp4_mimo", config("fp8", "mimo_v2", weight_block_size=[128, 128], store_dtype="mxfp4"))
    case.fp8(f"{LAYER}.self_attn.o_proj", 8, 256, case.scales(1, 2))
    case.mxfp4(f"{LAYER}.mlp.experts.0.gate_proj.weight", (24, 96), U8, U8, "_scale")
    case.mxfp4(f"{LAYER}.mlp.experts.1.gate_proj.weight", (7, 32), torch.int8, U8, "_scale")
    case.write()

    # vLLM's `Mxfp4Config`, and transformers' own stacks of DeepSeek-V4.
    case = Case("vllm", "mxfp4_experts", config("mxfp4", "glm4_moe"))
    case.mxfp4(f"{LAYER}.mlp.experts.0.w1.weight", (16, 64), U8, U8, "_scale")
    case.write()
    case = Case("vllm", "mxfp4_stack", config("fp8", "deepseek_v4", scale_fmt="ue8m0", weight_block_size=[128, 128]))
    case.mxfp4(f"{LAYER}.mlp.experts.gate_up_proj", (3, 16, 64), torch.int8, E8M0, "_scale_inv")
    case.write()

    # torch's own dtype, F4 in files.
    case = Case("vllm", "float4", config("fp8", "deepseek_v4", scale_fmt="ue8m0", weight_block_size=[128, 128]))
    case.mxfp4(f"{LAYER}.mlp.experts.0.up_proj.weight", (8, 64), F4, E8M0, "_scale_inv")
    case.mxfp4("layers.1.ffn.experts.0.w1.weight", (8, 64), F4, E8M0, ".scale")
    case.nvfp4(f"{LAYER}.mlp.down_proj", 8, 64, divides=False, signed_zero=False)
    case.tensors[f"{LAYER}.mlp.down_proj.weight"] = case.tensors[f"{LAYER}.mlp.down_proj.weight"].view(F4)
    case.write()


def auto_round():
    # vLLM's `INCConfig`: the blocks of FP8 are its `group_size`.
    more = {"bits": 8, "group_size": [128, 128], "data_type": "fp", "sym": True, "packing_format": "auto_round:fp8", "fmt": "e4m3"}
    case = Case("vllm", "inc_fp8_block", config("inc", "llama", **more))
    case.fp8_ragged(f"{LAYER}.mlp.up_proj", 192, 24, 128)
    case.write()


def minimax():
    more = {"weight_block_size": [1, 32], "group_size": 16, "kv_cache_quant_algo": "FP8", "attention_quant_algo": "FP8", "index_k_quant_type": "nvfp4"}
    case = Case("vllm", "minimax_m3_nvfp4", config("minimax_m3_nvfp4", "minimax_m3", **more), shards=2)
    case.fp8(f"{LAYER}.self_attn.q_proj", 24, 64, case.exponents(24, 2))
    for name in ("w1", "w3"):
        case.nvfp4(f"{LAYER}.block_sparse_moe.experts.0.{name}", 16, 64)
    case.norm(64)
    case.write()


def inkling():
    # ModelOpt's NVFP4 under Inkling's names; the shape and the maxima of inputs are no part of the model.
    for name, its in (("inkling_nvfp4", config("modelopt", "inkling", quant_algo="NVFP4", group_size=16)), ("inkling_no_config", None)):
        case = Case("vllm", name, its)
        base = "model.llm.layers.0.mlp.experts.w13_weight"
        codes, scale = case.bytes(3, 8, 32), case.scales(3, 8, 4, lo=-3, hi=6).to(E4M3)
        scale_of_all = case.scales(3)
        case.add({base: codes, f"{base}.scale": scale, f"{base}.scale2": scale_of_all})
        case.add({f"{base}.input_amax": case.scales(1), f"{base}.original_shape": torch.tensor([3, 8, 64])})
        each = (scale.to(F32) * scale_of_all.view(3, 1, 1)).repeat_interleave(16, dim=-1)
        values = unpack_fp4_from_uint8(codes.reshape(24, 32), 24, 64, dtype=F32) + 0.0
        case.expect(base, values.reshape(3, 8, 64) * each)
        case.norm(64)
        case.write()


def quark():
    # vLLM's spellings: NVFP4 in two levels of scales, MXFP4 as a list of one level, MXFP8 in blocks of rows.
    levels = [
        {"dtype": "fp4", "qscheme": "per_group", "group_size": 16, "ch_axis": -1, "is_dynamic": False},
        {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_scale_quant": True, "is_dynamic": False},
    ]
    mxfp4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1, "scale_format": "e8m0"}
    mxfp8 = {"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [32, 32], "scale_type": "float8_e8m0fnu", "symmetric": True}
    layers = {f"{LAYER}.mlp.up_proj": {"weight": [mxfp4]}, "*self_attn*": {"weight": mxfp8}}
    more = {"global_quant_config": {"weight": levels}, "layer_quant_config": layers, "export": {"pack_method": "reorder", "kv_cache_group": []}}
    case = Case("vllm", "quark_spellings", config("quark", "llama", **more))
    case.nvfp4(f"{LAYER}.mlp.down_proj", 16, 64, divides=False)
    case.add({f"{LAYER}.mlp.down_proj.input_scale_2": case.scales(1)})
    case.mxfp4(f"{LAYER}.mlp.up_proj.weight", (8, 64), U8, U8, "_scale")
    case.fp8(f"{LAYER}.self_attn.q_proj", 96, 64, case.exponents(3, 2).view(E8M0), "weight_scale")
    case.write()


def ggml_blocks():
    kinds = gguf.GGMLQuantizationType
    names = {f"{LAYER}.mlp.experts": kinds.IQ2_XS, f"{LAYER}.mlp.shared_experts.up_proj": kinds.IQ2_XXS, "model.embed_tokens": kinds.Q8_0}
    sizes = {kind: gguf.GGML_QUANT_SIZES[kind] for kind in names.values()}
    layers = {
        name: {"quant_algo": kind.name, "group_size": sizes[kind][0], "block_payload_bytes": sizes[kind][1], "packing": "ggml"}
        for name, kind in names.items()
    }
    case = Case("vllm", "ggml_blocks", config("modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers))
    case.blocks(f"{LAYER}.mlp.experts.0.up_proj.weight", (8, 512), kinds.IQ2_XS)
    case.blocks(f"{LAYER}.mlp.experts.w2_weight", (2, 3, 256), kinds.IQ2_XS)
    case.blocks(f"{LAYER}.mlp.shared_experts.up_proj.weight", (8, 256), kinds.IQ2_XXS)
    case.blocks("model.embed_tokens.weight", (5, 96), kinds.Q8_0)
    case.norm(96)
    case.write()


def main():
    w4afp8()
    block_fp8()
    experts_in_halves()
    mxfp4()
    auto_round()
    minimax()
    inkling()
    quark()
    ggml_blocks()
    total("vllm")


if __name__ == "__main__":
    main()

"""Golden layers in each `quant_algo` of modelopt that modelopt_tiny.py has no whole model for, and hostile scales (CPU).

Run after modelopt_tiny.py, which clears the directory.
"""

import torch
from fp8 import BF16, E4M3, F16, F32, U8
from modelcase import total
from modelopt_lib import ModelCase, config, decode, expect_all, export_layers, low_rank, sidecars

L = "model.layers.0."
ODD = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45, -1e-40, 3e38, -3e38, 1.17549435e-38, 0.1, -0.37]


def case(name, shapes, cfg, edit=None, layers=("mlp.up_proj", "self_attn.o_proj")):
    c = ModelCase("modelopt", name)
    tensors, configs, before = export_layers(c, {L + layer: shape for layer, shape in zip(layers, shapes)}, cfg)
    if edit:
        edit(tensors, configs)
    expect_all(c, tensors, configs, before)
    c.norm(shapes[0][1])
    sidecars(c, configs)
    c.write()


def exported():
    case("fp8_per_channel", [(33, 50), (7, 16)], config("FP8_PER_CHANNEL_PER_TOKEN_CFG"))

    def shape_of(tensors, _):
        shapes = [list(t.shape) for k, t in tensors.items() if k.endswith("weight_scale")]
        assert shapes == [[2, 1, 2, 1], []], shapes  # rank 4, and rank 0 where all of the weight is one block

    # The exporter writes `fp8_pb_wo` as it is, and no block size; 128 is its only default.
    case("fp8_pb_wo", [(130, 136), (24, 40)], config("FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG"), shape_of)

    def upper(tensors, configs):  # as other tools spell it, and read it
        configs["hf_quant_config.json"]["quantization"]["quant_algo"] = "FP8_PB_WO"
        configs["config.json"]["quantization_config"]["quant_algo"] = "FP8_PB_WO"

    case("fp8_pb_wo_upper", [(132, 32), (32, 260)], config("FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG"), upper)
    case("w4a8_nvfp4_fp8", [(17, 64), (10, 32)], config("W4A8_NVFP4_FP8_CFG"))
    case("w4a8_mxfp4_fp8", [(17, 64), (10, 32)], config("W4A8_MXFP4_FP8_CFG"))
    case("mxfp4", [(17, 64), (10, 96)], config("MXFP4_DEFAULT_CFG"))
    case("w8a16", [(33, 50), (7, 16)], config("INT8_WEIGHT_ONLY_CFG"))
    case("w4a8_awq", [(18, 256), (6, 128)], config("W4A8_AWQ_BETA_CFG"))
    case("w4a16_awq_128", [(18, 256), (6, 128)], config("INT4_AWQ_CFG"))


def by_hand(name, algo, group=None):
    """A case whose tensors are made here, under the exporter's names; decoded by the library like the others."""
    c = ModelCase("modelopt", name)
    quant = {"quant_algo": algo, "kv_cache_quant_algo": None} | ({"group_size": group} if group else {})
    quant["exclude_modules"] = ["lm_head", "model.embed_tokens", "*.router", "model.layers.0.self_attn*"]
    return c, {"hf_quant_config.json": {"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": quant},
               "config.json": {"quantization_config": {
                   "ignore": quant["exclude_modules"], "quant_algo": algo, "quant_method": "modelopt",
                   "producer": {"name": "modelopt", "version": "0.47.0"}} | ({"group_size": group} if group else {})}}


def finish(c, configs, tensors):
    expect_all(c, tensors, configs)
    c.keep(L + "mlp.router.weight", c.randn(3, 16).to(BF16))  # excluded, like all of self_attn
    c.keep(L + "self_attn.q_proj.weight", c.randn(4, 16).to(BF16))
    sidecars(c, configs)
    c.write()


def hostile():
    name = L + "mlp.down_proj.weight"
    c, configs = by_hand("hostile_fp8_channel", "FP8_PER_CHANNEL_PER_TOKEN")
    finish(c, configs, {name: c.all_bytes(12, 256).view(E4M3), name + "_scale": torch.tensor(ODD)})

    c, configs = by_hand("hostile_fp8_tensor", "FP8")
    for i, scale in enumerate([torch.tensor(-1e-40), torch.tensor([3e38]), torch.tensor([0.37]).to(BF16), torch.tensor(0.37).to(F16)]):
        name_i = f"{L}mlp.experts.{i}.up_proj.weight"  # scales of rank 0 and 1, and in other dtypes than exporters write
        tensors = {name_i: c.all_bytes(1, 256).view(E4M3), name_i + "_scale": scale}
        expect_all(c, tensors, configs)
    finish(c, configs, {})

    c, configs = by_hand("hostile_w8a16", "W8A16")
    finish(c, configs, {name: c.all_bytes(12, 256).view(torch.int8), name + "_scale": torch.tensor(ODD)})

    c, configs = by_hand("hostile_w4a16_awq", "W4A16_AWQ", 32)
    tensors = {name: c.all_bytes(6, 256), name + "_scale": torch.tensor(ODD * 8).reshape(8, 12).T}
    tensors[L + "mlp.down_proj.pre_quant_scale"] = c.scales(256, lo=-3, hi=3).to(BF16)
    tensors[L + "mlp.down_proj.pre_quant_scale"][:6] = torch.tensor([0.0, -0.0, 1e30, 1e-30, float("inf"), float("nan")])
    finish(c, configs, tensors)

    c, configs = by_hand("hostile_mxfp8", "MXFP8", 32)
    finish(c, configs, {name: c.all_bytes(16, 64).view(E4M3), name + "_scale": c.all_bytes(16, 2) | torch.tensor([[0], [255]] * 8, dtype=U8)})

    c, configs = by_hand("hostile_mxfp4", "mxfp4")  # every exponent, with every pair of codes
    finish(c, configs, {name: c.all_bytes(64, 64), name + "_scale": c.all_bytes(64, 4)})

    c, configs = by_hand("hostile_nvfp4", "NVFP4", 16)  # every E4M3 scale, NaN among them
    for i, g in enumerate([0.0123, 1e-40, 3e38, -0.37, float("inf"), 0.0]):
        name_i = f"{L}mlp.experts.{i}.up_proj.weight"
        rows = 64 if i == 0 else 4
        scale = c.all_bytes(rows, 4).view(E4M3)
        expect_all(c, {name_i: c.all_bytes(rows, 32), name_i + "_scale": scale, name_i + "_scale_2": torch.tensor(g)}, configs)
    finish(c, configs, {})


def diffusers():
    """SVDQuant as the exporter names it for diffusers (`_promote_quantizer_tensors_to_module`); config with `lora_rank`."""
    c, configs = by_hand("diffusers_nvfp4_svd", "NVFP4_SVD", 16)
    configs["hf_quant_config.json"]["quantization"]["lora_rank"] = 4
    configs["config.json"]["quantization_config"]["lora_rank"] = 4
    configs["config.json"]["_class_name"] = "FluxTransformer2DModel"
    for stem, dtype in [("to_q", BF16), ("to_out.0", F16), ("to_k", F32)]:
        base = f"transformer_blocks.0.attn.{stem}"
        w = {base + ".weight": c.bytes(24, 24), base + ".weight_scale": c.scales(24, 3, lo=0, hi=8).to(E4M3),
             base + ".weight_scale_2": torch.tensor(1e-4), base + ".input_scale": torch.tensor(0.01),
             base + ".svdquant_lora_a": c.randn(4, 48, scale=0.1).to(dtype), base + ".svdquant_lora_b": c.randn(24, 4, scale=0.1).to(dtype),
             base + ".pre_quant_scale": c.scales(48, lo=-2, hi=2).to(dtype)}
        expect_all(c, w, configs)
        c.keep(base + ".bias", c.randn(24).to(BF16))
    c.keep("proj_out.weight", c.randn(8, 24).to(BF16))
    sidecars(c, configs)
    c.write()


if __name__ == "__main__":
    exported()
    hostile()
    diffusers()
    total("modelopt")

"""Golden FP8 layers of gptqmodel 7.7.0 (CPU), whose `weight_scale_inv` divides.

Run after gptq_more.py: `python gptqmodel_fp8.py` (see ../README.md). It rewrites `../gptq_more/gptqmodel_fp8_*`.

Quantized by `quantize_fp8_weight`, which the layer packs with, and decoded by the layer's `dequantize_weight`.
"""

from dirs import DirCase
from fp8 import F32

from gptqmodel.nn_modules.qlinear.fp8 import TorchFP8Linear, quantize_fp8_weight

NAMES = {"tensor": "q_proj", "row": "k_proj", "block": "o_proj"}


def case(fmt, method, block=None):
    c = DirCase("gptq_more", f"gptqmodel_fp8_{fmt.split('_', 1)[1]}_{method}")
    rows, cols = (32, 64)
    values = c.randn(rows, cols) * 0.05
    codes, scale = quantize_fp8_weight(values, format=fmt, weight_scale_method=method, weight_block_size=block)
    layer = TorchFP8Linear(8, -1, True, False, cols, rows, format=fmt, weight_scale_method=method, weight_block_size=block)
    layer.weight, layer.weight_scale_inv = codes, scale
    expected = layer.dequantize_weight(device="cpu", dtype=F32).t().contiguous()
    assert (expected - values).abs().max() < 0.1 * values.abs().max()
    name = f"model.layers.0.self_attn.{NAMES[method]}.weight"
    c.add({name: codes, name + "_scale_inv": scale})
    c.expect(name, expected)
    quantization = {"bits": 8, "checkpoint_format": fmt, "desc_act": False, "format": fmt, "group_size": -1, "lm_head": False,
                    "method": "fp8", "pack_dtype": "int32", "quant_method": "fp8", "weight_scale_method": method,
                    "weight_scale_semantics": "inverse"}
    quantization |= {"weight_block_size": block} if block else {}
    c.config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": quantization}
    c.sidecar("quantize_config.json", quantization | {"meta": {"quantizer": ["gptqmodel:7.7.0"]}})
    c.write()


def main():
    case("float8_e4m3fn", "tensor")
    case("float8_e4m3fn", "row")
    case("float8_e4m3fn", "block", [16, 32])
    case("float8_e5m2", "row")


if __name__ == "__main__":
    main()

"""Golden layers of gptqmodel 7.7.0 (CPU) in its formats `gguf` (blocks of ggml in U8) and `bitsandbytes`.

Run after gptq_more.py: `python gptqmodel_blocks.py` (see ../README.md). It rewrites `../gptq_more/gptqmodel_{gguf,bnb}_*`.

Packed by the layers' `pack_original`, and decoded by their `dequantize_weight`. Configs are what `GPTQModel.save` writes.
"""

import torch
from dirs import DirCase
from fp8 import BF16, F32

from gptqmodel.nn_modules.qlinear.bitsandbytes import BitsAndBytesLinear
from gptqmodel.nn_modules.qlinear.gguf import GGUFTorchLinear

LAYER = "model.layers.0.self_attn.q_proj"


def finish(c, layer, shape, expected, quantization):
    buffers = {k: v for k, v in layer.state_dict().items() if k != "bias"}
    c.add({f"{LAYER}.{k}": v for k, v in buffers.items()})
    c.expect(LAYER + ".weight", expected)
    c.keep(LAYER + ".bias", c.randn(shape[0]).to(BF16))
    c.config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape[1], "num_attention_heads": 1,
                "head_dim": shape[0], "quantization_config": quantization}
    c.sidecar("quantize_config.json", quantization | {"meta": {"quantizer": ["gptqmodel:7.7.0"]}})
    c.write()


def linear(c, shape):
    layer = torch.nn.Linear(shape[1], shape[0], bias=False)
    layer.weight.data = c.randn(*shape) * 0.05
    return layer


def gguf(bits, fmt, shape, name=None):
    """`shape`: columns that are no whole blocks are filled with zeros."""
    alias = fmt.replace("q_", f"q{bits}_", 1)
    c = DirCase("gptq_more", f"gptqmodel_gguf_{name or alias}")
    layer = GGUFTorchLinear(alias, -1, True, False, shape[1], shape[0], dtype=F32)
    source = linear(c, shape)
    layer.pack_original(source, None, None)
    expected = layer.dequantize_weight(dtype=F32).t()[:, : shape[1]].contiguous()
    assert (expected - source.weight).norm() < source.weight.norm() * (0.8 if bits < 4 else 0.1)
    quantization = {"bits": bits, "checkpoint_format": fmt, "format": fmt, "lm_head": False, "method": "gguf", "quant_method": "gguf"}
    finish(c, layer, shape, expected, quantization)


def bnb(bits, fmt, shape, block, nested):
    c = DirCase("gptq_more", f"gptqmodel_bnb_{fmt}" + "_nested" * nested)
    layer = BitsAndBytesLinear(bits, -1, True, False, shape[1], shape[0], dtype=F32, format=fmt, block_size=block,
                               compress_statistics=nested)
    source = linear(c, shape)
    layer.pack_original(source, None, None)
    expected = layer.dequantize_weight()
    if fmt == "fp4":  # code 8: see docs/schemes.md
        codes = torch.stack([layer.weight.flatten() >> 4, layer.weight.flatten() & 15], 1).view(shape)
        expected = torch.where(codes == 8, -expected.abs(), expected)
    error = float((expected - source.weight).detach().norm() / source.weight.detach().norm())
    assert error < 0.2, error
    quantization = {"bits": bits, "block_size": block, "checkpoint_format": fmt, "compress_statistics": nested, "desc_act": False,
                    "format": fmt, "group_size": -1, "lm_head": False, "method": "bitsandbytes", "pack_dtype": "int32",
                    "quant_method": "bitsandbytes"}
    finish(c, layer, shape, expected, quantization)


def main():
    for bits, fmt in ((1, "q_0"), (2, "q_0"), (4, "q_0"), (8, "q_0")):
        gguf(bits, fmt, (8, 128))
    for bits, fmt in ((4, "q_k_m"), (5, "q_k"), (6, "q_k")):
        gguf(bits, fmt, (4, 256))
    gguf(4, "q_0", (8, 40), "padded")
    gguf(4, "q_k_s", (4, 300), "padded_k")
    bnb(4, "nf4", (8, 128), 64, False)
    bnb(4, "nf4", (32, 128), 64, True)
    bnb(4, "fp4", (8, 128), 128, False)
    bnb(8, "int8", (8, 96), 64, False)


if __name__ == "__main__":
    main()

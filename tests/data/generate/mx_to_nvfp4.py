"""MXFP4 whose codes become NVFP4 without loss, by ModelOpt.

    pip install torch==2.15.0 safetensors==0.8.0 nvidia-modelopt==0.47.0
    python mx_to_nvfp4.py

It rewrites ../mx_to_nvfp4: `model/` is a model in compressed-tensors' MXFP4, and `expected.safetensors` has what
`quantize_mxfp4_to_nvfp4_lossless` makes of each weight. Gate and up projection of a layer have a tensor scale in common, as in
ModelOpt's export of experts (`build_w13_kmax_overrides`). No code is -0, which the library makes 0 of.
"""

import json
from pathlib import Path

import torch
from modelopt.torch.export.shard_cast_utils import mxfp4_kmax, quantize_mxfp4_to_nvfp4_lossless
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parent.parent / "mx_to_nvfp4"
ROWS, COLS = 8, 96

torch.manual_seed(17)


def weight(exponents):
    """Codes without -0, and an exponent for each block, all of `exponents`; blocks of exponent 0 are zeros."""
    codes = torch.randint(0, 15, (ROWS, COLS), dtype=torch.uint8)
    codes += codes >= 8
    scale = torch.tensor(exponents, dtype=torch.uint8)[torch.randint(0, len(exponents), (ROWS, COLS // 32))]
    scale.view(-1)[: len(exponents)] = torch.tensor(exponents, dtype=torch.uint8)
    codes[(scale == 0).repeat_interleave(32, -1)] = 0
    return codes[:, 0::2] | codes[:, 1::2] << 4, scale


# The last has blocks beyond the range of E4M3: ModelOpt rounds those, and so it is no golden.
weights = {
    "model.layers.0.mlp.down_proj": weight([103, 104, 112, 120]),
    "model.layers.0.mlp.gate_proj": weight([118, 121, 0]),
    "model.layers.0.mlp.up_proj": weight([110, 113, 125]),
    "model.layers.0.self_attn.o_proj": weight([127]),
    "model.layers.0.self_attn.q_proj": weight([0]),
    "model.layers.1.mlp.down_proj": weight([90, 120]),
}
kmax = {name: mxfp4_kmax(scale) for name, (_, scale) in weights.items()}
pair = [f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up")]
for name in pair:
    kmax[name] = max(kmax[other] for other in pair)

stored, expected = {}, {}
for name, (packed, scale) in weights.items():
    stored[f"{name}.weight_packed"], stored[f"{name}.weight_scale"] = packed, scale
    codes, scales, of_tensor, blocks, lossless = quantize_mxfp4_to_nvfp4_lossless(packed, scale, kmax[name], "cpu")
    if blocks == lossless and scale.any():
        expected |= {f"{name}.weight": codes, f"{name}.weight_scale": scales, f"{name}.weight_scale_2": of_tensor}

(OUT / "model").mkdir(parents=True, exist_ok=True)
args = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True, "dynamic": False}
config = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": args | {"scale_dtype": "torch.uint8"}}},
    "ignore": [],
}
(OUT / "model/config.json").write_text(json.dumps({"quantization_config": config}) + "\n")
save_file(stored, OUT / "model/model.safetensors")
save_file(expected, OUT / "expected.safetensors")

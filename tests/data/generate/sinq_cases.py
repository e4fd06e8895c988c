"""Golden SINQ models: quantized, stored and dequantized by sinq 0.2.0 on the CPU, as transformers 5.23.0 calls it.

Run: `python sinq_cases.py` with torch 2.15.0, transformers 5.23.0, sinq 0.2.0 and safetensors (see ../README.md).
"""

import json
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

sys.modules["datasets"] = types.ModuleType("datasets")  # sinq loads data sets to calibrate with
sys.modules["datasets"].load_dataset = None

import torch
from fp8 import rounded, same
from gptq import HOSTILE
from safetensors.torch import load_file, save_file
from sinq.patch_model import BaseSINQModel
from sinq.quantizer import dq8
from sinq.sinqlinear_hf import SINQLinear, sinq_base_quant_config

from modelcase import BF16, F16, F32, ModelCase, total


class Case(ModelCase):
    """`compute` is the dtype in which the library computes."""

    def __init__(self, name, nbits, compute=BF16, group=64, method="sinq"):
        config = {
            "quant_method": "sinq", "nbits": nbits, "group_size": group, "tiling_mode": "1D", "method": method,
            "modules_to_not_convert": [],
        }
        super().__init__("sinq", name, {"model_type": "qwen3", "quantization_config": config})
        self.quant = sinq_base_quant_config(nbits=nbits, group_size=group, axis=1, tiling_mode="1D", method=method)
        self.compute, self.weights, self.own_values = compute, {}, {}

    def layer(self, name, n, k, bias=False, dtype=None, change=lambda layer: None):
        layer = SINQLinear(in_features=k, out_features=n, quant_config=self.quant, compute_dtype=self.compute, device="cpu")
        rows, columns = torch.rand(n, 1, generator=self.rng), torch.rand(1, k, generator=self.rng)
        layer.quantize(self.randn(n, k) * (0.05 + rows) * (0.5 + columns), self.randn(n, scale=0.02) if bias else None)
        if dtype is not None:
            layer.meta = {key: cast(value, dtype) for key, value in layer.meta.items()}
        change(layer)
        self.weights[name] = layer.state_dict()
        own, meta = dequantized(layer), layer.meta
        assert own.dtype == self.compute
        # The numbers of groups have the dtype that they are stored in; then all is computed in F32.
        layer.meta = {**meta, "compute_dtype": F32, "method": "sinq", "scale": dq8(meta["scale"]).float(),
                      "zero": dq8(meta["zero"]).float(), "scale2": meta["scale2"].float()}
        values = dequantized(layer)
        self.expect(f"{name}.weight", values)
        if meta["scale2"].dtype == self.compute != F32:
            self.own_values[f"{name}.weight"] = own
        else:
            assert same(values.to(self.compute), own)
        if bias:
            self.expected[f"{name}.bias"] = layer.bias_param

    def write(self):
        with tempfile.TemporaryDirectory() as directory:
            BaseSINQModel.save_weights_safetensors(self.weights, directory)
            index = Path(directory) / "model.safetensors.index.json"
            sidecar = Path(f"{index}.meta.json")
            self.sidecar(sidecar.name, json.loads(sidecar.read_text()))
            for file in sorted(set(json.loads(index.read_text())["weight_map"].values())):
                self.add(load_file(Path(directory) / file))
        super().write()
        if self.own_values:
            name = {F16: "f16", BF16: "bf16"}[self.compute]
            out = {k: rounded(v)[name] if v.dtype == F32 else v for k, v in self.expected.items()} | self.own_values
            save_file(out, self.dir / f"expected-{name}.safetensors", {"format": "pt"})


def dequantized(layer):
    """What the library makes of a layer, without its error for a weight with NaN."""
    with mock.patch("torch.isnan", torch.zeros_like):
        return layer.dequantize()


def cast(value, dtype):
    """`value`, a description or a tensor or a tuple of them, with floats in another dtype."""
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return tuple(cast(v, dtype) for v in value)
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def hostile(layer):
    """Numbers that F16 has, and of which no value is NaN, for which the library has an error."""
    codes, scale, least, _ = layer.meta["scale"]
    scale.view(-1)[:4] = torch.tensor([0.0, 6e-8, -1.0, 100.0])
    least.view(-1)[:4] = torch.tensor([-0.0, 6e-8, 1.0, -40.0])
    layer.meta["scale2"] = layer.meta["scale2"].clone()
    layer.meta["scale2"].view(-1)[:3] = torch.tensor([0.0, -2.0, 6e-8])
    layer.W_q[:] = torch.arange(layer.W_q.numel()).view(layer.W_q.shape).to(torch.uint8)


def with_hostile(numbers, first=0):
    """`numbers` with the hostile ones of their dtype from place `first` on, as many as there is room for."""
    values = torch.tensor(HOSTILE[numbers.dtype])
    values = values.to(torch.int32 if numbers.dtype == F32 else torch.int16).view(numbers.dtype)
    out = numbers.clone()
    places = out.view(-1)[first : first + len(values)]
    places.copy_(values[: len(places)])
    return out


def every_number_hostile(layer):
    layer.meta["scale2"] = with_hostile(layer.meta["scale2"], 3)
    layer.meta["scale"] = with_hostile(layer.meta["scale"])
    layer.meta["zero"] = with_hostile(layer.meta["zero"], 9)


def every_nested_scale_hostile(layer):
    """One of eight lanes each: NaN, infinities, subnormals, and products that overflow."""
    _, scale, least, _ = layer.meta["scale"]
    inf, nan = float("inf"), float("nan")
    scale.view(-1)[:] = torch.tensor([nan, inf, 65504.0, 6e-8, 0.0, 1.0, 1.0, -1.0])
    least.view(-1)[:] = torch.tensor([0.0, 0.0, -40.0, 6e-8, -0.0, -inf, nan, 6e-5])
    layer.meta["scale2"] = with_hostile(layer.meta["scale2"], 3)


def nested_zero_points_overflow(layer):
    """All zero points have one scale: codes above one give infinities."""
    codes, scale, _, _ = layer.meta["zero"]
    codes.view(-1)[:3] = torch.arange(3)
    scale.fill_(65504.0)


def main():
    for nbits in [1, 1.58, 2, 3, 4, 5, 6, 8]:
        case = Case(f"{nbits}bit".replace(".", "_"), nbits)
        case.layer("model.layers.0.self_attn.q_proj", 32, 192 if nbits in [3, 4, 5] else 64, bias=True)
        case.norm(64)
        case.write()

    case = Case("4bit_f16", 4, F16)
    case.layer("l.up_proj", 16, 128)
    case.layer("l.down_proj", 64, 128, change=hostile)
    case.write()

    case = Case("3bit_f16_g128", 3, F16, 128)
    case.layer("l.up_proj", 16, 256)
    case.write()

    case = Case("4bit_f32", 4, F16)
    case.layer("l.up_proj", 32, 64, dtype=F32)
    case.write()

    case = Case("4bit_bf16", 4, BF16)
    case.layer("l.up_proj", 32, 64, dtype=BF16)
    case.write()

    # Groups are halved until they divide a row, and numbers need not be quantized.
    case = Case("4bit_narrow", 4, BF16, 128)
    case.layer("l.up_proj", 32, 96)
    case.write()

    case = Case("qmodel_pt", 5)
    case.layer("l.up_proj", 32, 64)
    case.write()
    for file in (case.dir / "model").glob("model.*"):
        file.unlink()
    BaseSINQModel.save_weights(case.weights, str(case.dir / "model"))

    case = Case("4bit_plain", 4, F16, method="sinq_plain")
    case.layer("l.up_proj", 6, 128)
    case.write()

    case = Case("nested_hostile", 4, F16, 16)
    case.layer("l.up_proj", 32, 128, change=every_nested_scale_hostile)
    case.layer("l.down_proj", 32, 16, change=nested_zero_points_overflow)
    case.write()

    for label, dtype in [("f16", F16), ("bf16", BF16), ("f32", F32)]:
        case = Case(f"{label}_hostile", 4, dtype, 16, method="sinq_plain")
        case.layer("l.up_proj", 12, 96, dtype=dtype, change=every_number_hostile)
        case.write()
    total("sinq")


if __name__ == "__main__":
    main()

"""Golden ModelSlim models: quantized, stored and dequantized by msmodelslim 26.1.0 on the CPU.

Run: `python modelslim.py` with torch 2.15.0 and msmodelslim 26.1.0 (see ../README.md).
"""

import torch
from fp8 import E4M3
from msmodelslim.core.quant_service.modelslim_v1.save.utils.deqscale import deqscale2int64_by_dtype
from msmodelslim.core.quant_service.modelslim_v1.save.utils.pack import pack_fp4_to_uint8, process_scale, w4a8_pack_int4
from msmodelslim.ir.api import calculate_qparam, dequantize, quantize
from msmodelslim.ir.qal import QDType, QParam, QScheme, QScope, QStorage

from modelcase import BF16, F32, ModelCase, total

INTEGERS = {"W8A8_DYNAMIC": QDType.INT8, "W8A8_MIX": QDType.INT8, "W8A16": QDType.INT8, "W4A4_DYNAMIC": QDType.INT4,
            "W4A8_DYNAMIC": QDType.INT4}


class Case(ModelCase):
    def __init__(self, name, **more):
        super().__init__("modelslim", name, stem="quant_model_weights", **more)
        self.description = {"version": "1.0.0", "model_quant_type": "W8A8_DYNAMIC", "metadata": {}, "group_size": 0, "optional": {}}
        self.sidecar("quant_model_description.json", self.description)
        self.sidecar("config.json", {"model_type": "qwen3"})

    def stored(self, kind, tensors):
        self.add(tensors)
        self.description.update(dict.fromkeys(tensors, kind))

    def plain(self, name, tensor, kind="FLOAT"):
        self.keep(name, tensor)
        self.description[name] = kind

    def weight(self, n, k):
        return self.randn(n, k) * (0.05 + torch.rand(n, 1, generator=self.rng))

    def integers(self, name, n, k, kind, symmetric=True, hostile=False):
        """As `on_w8a8_dynamic_per_channel` and its neighbours in `ascendv1.py` store them."""
        dtype, weight = INTEGERS[kind], self.weight(n, k) + (0 if symmetric else 0.1)
        least, most = weight.amin(1), weight.amax(1)
        param = calculate_qparam(least, most, q_dtype=dtype, q_scope=QScope.PER_CHANNEL, symmetric=symmetric)
        codes = quantize(QStorage(QDType.FLOAT, weight).T, param).T.value.to(torch.int8)
        if hostile:
            codes = torch.arange(n * k).view(n, k).to(torch.int8)
            param.ext["scale"][:8] = torch.tensor([0.0, -0.0, 1e-45, 3e38, float("inf"), float("nan"), -2.0, 1e-38])
            param.ext["offset"] = torch.tensor([0.5, -3.0, 0.0, 1e9, float("inf"), -0.0] * n)[:n].clone()
        scale, offset = param.ext["scale"].unsqueeze(-1), param.ext["offset"].unsqueeze(-1).to(F32)
        stored = w4a8_pack_int4(codes) if kind == "W4A8_DYNAMIC" else codes
        self.stored(kind, {f"{name}.weight": stored, f"{name}.weight_scale": scale, f"{name}.weight_offset": offset.clone()})
        if kind == "W4A8_DYNAMIC":
            self.stored(kind, {f"{name}.scale_bias": process_scale(name, (codes.T * param.ext["scale"]).T, 16)})
        if kind == "W8A8_MIX":
            self.stored(kind, {
                f"{name}.quant_bias": torch.arange(n, dtype=torch.int32), f"{name}.input_scale": torch.tensor([0.02]),
                f"{name}.input_offset": torch.tensor([3.0]), f"{name}.deq_scale": torch.arange(n),
            })
        self.decoded(name, dtype, codes.T, QScheme(QScope.PER_CHANNEL, dtype, symmetric), param.ext, transposed=True)

    def static(self, name, n, k, is_bf16, bias=None):
        """As `on_w8a8_static` stores them. Its products of scales are what is left of those of the weight."""
        weight, input_scale, input_offset = self.weight(n, k), torch.tensor([0.0213]), torch.tensor([-7.0])
        param = calculate_qparam(weight.amin(1), weight.amax(1), q_dtype=QDType.INT8, q_scope=QScope.PER_CHANNEL, symmetric=True)
        codes = quantize(QStorage(QDType.FLOAT, weight).T, param).T.value.to(torch.int8)
        deq_scale = input_scale * param.ext["scale"]
        correction = codes.to(F32).sum(dim=1) * input_offset
        quant_bias = torch.round((torch.zeros(n) if bias is None else bias) / deq_scale - correction).to(torch.int32)
        self.stored("W8A8", {
            f"{name}.weight": codes, f"{name}.quant_bias": quant_bias, f"{name}.input_scale": input_scale,
            f"{name}.input_offset": input_offset, f"{name}.deq_scale": deqscale2int64_by_dtype(deq_scale, is_bf16),
        })
        if bias is not None:
            self.plain(f"{name}.bias", bias)
        scheme, ext = QScheme(QScope.PER_CHANNEL, QDType.INT8, True), {"scale": deq_scale / input_scale}
        self.decoded(name, QDType.INT8, codes.T, scheme, ext, transposed=True)

    def decoded(self, name, dtype, values, scheme, ext, transposed=False):
        out = dequantize(QStorage(dtype, values), QParam(scheme, ext=ext)).value
        self.expect(f"{name}.weight", (out.T if transposed else out).float())

    def fp8(self, name, n, k):
        scheme, weight = QScheme(QScope.PER_CHANNEL, QDType.FP8_E4M3, True), self.weight(n, k)
        param = calculate_qparam(weight.amin(1), weight.amax(1), q_dtype=QDType.FP8_E4M3, q_scope=QScope.PER_CHANNEL, symmetric=True)
        codes = quantize(QStorage(QDType.FLOAT, weight).T, param).T.value.to(E4M3)
        codes.view(torch.uint8).view(-1)[:256] = torch.arange(256).to(torch.uint8)
        scale = param.ext["scale"].unsqueeze(-1)
        self.stored("WFP8AFP8_DYNAMIC", {f"{name}.weight": codes, f"{name}.weight_scale": scale,
                                         f"{name}.weight_offset": torch.zeros_like(scale)})
        self.decoded(name, QDType.FP8_E4M3, codes.T, scheme, param.ext, transposed=True)

    def blocks(self, name, n, k, kind, hostile=False):
        """MX formats, as `on_w8a8_mx_dynamic_per_block` and `on_w4a4_mx_dynamic_per_block` store them."""
        dtype = {"W8A8_MXFP8": QDType.MXFP8}.get(kind, QDType.MXFP4)
        scheme, weight = QScheme(QScope.PER_BLOCK, dtype, True), self.weight(n, k).unflatten(1, (-1, 32))
        most = weight.abs().amax(-1, keepdim=True)
        param = calculate_qparam(-most, most, q_dtype=dtype, q_scope=QScope.PER_BLOCK, symmetric=True)
        values = quantize(QStorage(QDType.FLOAT, weight), param).value.flatten(1)
        exponents = param.ext["scale"].squeeze(-1)
        if hostile:
            exponents[0, :3] = torch.tensor([-127.0, 127.0, -126.0])
        stored = values.to(E4M3) if kind == "W8A8_MXFP8" else pack_fp4_to_uint8(values)
        assert kind != "W8A8_MXFP8" or torch.equal(stored.float(), values)
        self.stored(kind, {f"{name}.weight": stored, f"{name}.weight_scale": (exponents + 127).to(torch.uint8)})
        out = dequantize(QStorage(dtype, values.unflatten(1, (-1, 32))), QParam(scheme, ext={"scale": exponents.unsqueeze(-1)})).value
        self.expect(f"{name}.weight", out.flatten(1).float())


def main():
    case = Case("integers", shards=3)
    case.integers("model.layers.0.self_attn.q_proj", 24, 40, "W8A8_DYNAMIC")
    case.integers("model.layers.0.self_attn.k_proj", 8, 40, "W8A8_MIX")
    case.stored("C8", {"model.layers.0.self_attn.k_proj.kv_cache_scale": torch.full((8,), 0.5),
                       "model.layers.0.self_attn.k_proj.kv_cache_offset": torch.zeros(8)})
    case.integers("model.layers.0.self_attn.o_proj", 16, 33, "W8A16", symmetric=False)
    case.integers("model.layers.0.mlp.up_proj", 24, 40, "W4A4_DYNAMIC", symmetric=False)
    case.integers("model.layers.0.mlp.experts.0.up_proj", 24, 48, "W4A8_DYNAMIC")
    case.integers("model.layers.0.mlp.experts.0.down_proj", 6, 160, "W4A8_DYNAMIC")
    case.plain("model.layers.0.self_attn.q_proj.bias", case.randn(24, scale=0.02))
    case.plain("model.layers.0.input_layernorm.weight", case.randn(40).to(BF16), "W8A8_DYNAMIC")
    case.plain("model.layers.0.input_layernorm.bias", case.randn(40).to(BF16))
    case.plain("lm_head.weight", case.randn(8, 16).to(BF16))
    case.write()

    case = Case("static")
    case.static("l.q_proj", 24, 40, True)
    case.static("l.k_proj", 8, 33, False)
    case.static("l.v_proj", 8, 40, True, bias=case.randn(8))
    case.write()

    case = Case("floats")
    case.fp8("l.q_proj", 24, 40)
    case.blocks("l.k_proj", 12, 96, "W8A8_MXFP8")
    case.blocks("l.v_proj", 12, 96, "W4A4_MXFP4")
    case.blocks("l.o_proj", 7, 64, "W4A8_MXFP")
    case.write()

    case = Case("hostile")
    case.integers("l.q_proj", 12, 40, "W8A8_DYNAMIC", hostile=True)
    case.blocks("l.k_proj", 4, 96, "W8A8_MXFP8", hostile=True)
    case.blocks("l.v_proj", 4, 96, "W4A4_MXFP4", hostile=True)
    case.write()
    total("modelslim")


if __name__ == "__main__":
    main()

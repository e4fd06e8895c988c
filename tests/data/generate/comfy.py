"""Golden files of ComfyUI's formats, made and decoded by comfy-kitchen (eager backend, CPU), and of Black Forest Labs'
formats, made and decoded by diffusers.

Run: `python comfy.py` (see ../README.md). It rewrites `../comfy/*`. Where comfy-kitchen casts the scales to its output
dtype first, the notes printed say how many elements differ in BF16; expected is the F32 formula.
"""

import json
import shutil

import torch
from fp8 import BF16, DATA, E4M3, E5M2, F16, F32, U8, numpy_product, same
from modelcase import ModelCase, total

import comfy_kitchen as ck
from comfy_kitchen.tensor import QuantizedTensor, get_layout_class
from diffusers.quantizers.bfl import utils as bfl

torch.set_num_threads(1)
ck.registry.set_priority(["eager"])
P = "model.diffusion_model."
FP8, NVFP4, MXFP8, INT8 = "TensorCoreFP8Layout", "TensorCoreNVFP4Layout", "TensorCoreMXFP8Layout", "TensorWiseINT8Layout"


class Comfy(ModelCase):
    def __init__(self, name):
        super().__init__("comfy", name)
        self.layers = {}

    def layer(self, base, layout, weight, form, padded=None, marker=True, **options):
        """Quantizes one weight; writes it with its scales, and its marker as `comfy_quant` or for the metadata."""
        qt = QuantizedTensor.from_float(weight, layout, **options)
        tensors = qt.state_dict(base + ".weight")
        self.add(tensors)
        self.decoded(base, layout, qt, padded)
        if marker:
            self.mark(base, form)
        return tensors

    def decoded(self, base, layout, qt, padded=None):
        """comfy-kitchen's decoder in F32; `padded`: with the rows and columns of the padding, for the file does not say
        what is padding (ComfyUI asks the model's class for the shape)."""
        cls = get_layout_class(layout)
        one = {}
        for d in (F32, BF16):
            params = type(qt.params)(**{**vars(qt.params), "orig_dtype": d})
            full = cls.dequantize(qt._qdata, params)
            one[d] = full if padded else full[: qt.shape[0], : qt.shape[1]].contiguous()
        self.expect(base + ".weight", one[F32])
        self.own(base + ".weight", one[BF16], "bf16", "comfy-kitchen")

    def mark(self, base, form):
        text = json.dumps(form).encode()
        self.add({base + ".comfy_quant": torch.tensor(list(text), dtype=U8)})

    def rest(self, base, n):
        self.keep(base + ".bias", self.randn(n, scale=0.1).to(BF16))


def legacy():
    """`scaled_fp8`: a marker per model, scales under `scale_weight` and `scale_input`; `convert_old_quants` of ComfyUI's
    comfy/utils.py renames them. The marker's dtype is that of the weights, or F32 for E4M3; two elements mean
    that the layers multiply in full precision."""
    for name, prefix, dtype, marker in [
        ("scaled_fp8", P, E4M3, torch.empty(0).to(E4M3)),
        ("scaled_fp8_e5m2", "", E5M2, torch.zeros(2).to(E5M2)),
        ("scaled_fp8_f32_marker", "text_encoders.t5xxl.transformer.", E4M3, torch.tensor([0.0])),
    ]:
        c = Comfy(name)
        c.add({prefix + "scaled_fp8": marker})
        for stem, (n, k) in [("blocks.0.self_attn.q", (24, 40)), ("blocks.0.ffn.0", (40, 24))]:
            base = prefix + stem
            qt = QuantizedTensor.from_float(c.randn(n, k, scale=0.05), FP8, dtype=dtype)
            assert qt._qdata.dtype == dtype
            c.add({base + ".weight": qt._qdata, base + ".scale_weight": qt.params.scale})
            c.decoded(base, FP8, qt)
            assert same(c.expected[base + ".weight"], numpy_product(qt._qdata, qt.params.scale))
            c.rest(base, n)
        c.add({base + ".scale_input": torch.tensor(1.0 if prefix else 0.37)})
        c.keep(prefix + "blocks.0.norm.weight", c.randn(24).to(F16))
        if prefix == P:  # a whole checkpoint: parts that are not quantized
            c.keep("vae.decoder.conv_in.weight", c.randn(4, 3, 3, 3).to(F16))
            c.keep("text_encoders.clip_l.logit_scale", torch.tensor(4.6052))
        c.write()


def native():
    c = Comfy("float8_e4m3fn")
    for stem, extra in [("blocks.0.attn.qkv", {}), ("blocks.0.mlp.fc1", {"full_precision_matrix_mult": True})]:
        c.layer(P + stem, FP8, c.randn(30, 20, scale=0.05), {"format": "float8_e4m3fn"} | extra)
        c.rest(P + stem, 30)
    c.add({P + "blocks.0.attn.qkv.input_scale": torch.tensor(0.021)})
    c.keep(P + "blocks.0.norm.weight", c.randn(20).to(BF16))
    c.write()

    c = Comfy("float8_e5m2")
    c.layer("blocks.0.attn.qkv", FP8, c.randn(30, 20, scale=0.05), {"format": "float8_e5m2"}, dtype=E5M2)
    c.rest("blocks.0.attn.qkv", 30)
    c.write()

    # Scales of [N, K/16] in tiles of 128 x 4, over more than one tile each way. High nibble first.
    c = Comfy("nvfp4")
    for stem, shape in [("blocks.0.wide", (16, 160)), ("blocks.0.tall", (272, 16)), ("blocks.0.both", (144, 80))]:
        t = c.layer(P + stem, NVFP4, c.randn(*shape, scale=0.05).to(BF16), {"format": "nvfp4"})
        n, k = shape
        assert t[P + stem + ".weight"].shape == (n, k // 2)
        assert t[P + stem + ".weight_scale"].shape == (-(-n // 128) * 128, -(-k // 64) * 4)
    c.add({P + "blocks.0.wide.input_scale": torch.tensor(0.021)})
    c.rest(P + "blocks.0.wide", 16)
    c.write()

    c = Comfy("nvfp4_padded")  # 20 x 40 in 32 x 48: rows and columns of zeros that the file does not tell from the rest
    t = c.layer("blocks.0.proj", NVFP4, c.randn(20, 40, scale=0.05).to(BF16), {"format": "nvfp4"}, padded=True)
    assert t["blocks.0.proj.weight"].shape == (32, 24) and not c.expected["blocks.0.proj.weight"][20:].any()
    c.rest("blocks.0.proj", 20)
    c.write()

    c = Comfy("mxfp8")  # scales of [N, K/32], tiled in the same way
    for stem, shape in [("blocks.0.wide", (32, 160)), ("blocks.0.tall", (160, 32))]:
        t = c.layer(P + stem, MXFP8, c.randn(*shape, scale=0.05).to(BF16), {"format": "mxfp8"})
        assert t[P + stem + ".weight_scale"].dtype == torch.float8_e8m0fnu
    c.rest(P + "blocks.0.wide", 32)
    c.write()

    c = Comfy("mxfp8_padded")  # 20 x 40 in 32 x 64
    t = c.layer("blocks.0.proj", MXFP8, c.randn(20, 40, scale=0.05).to(BF16), {"format": "mxfp8"}, padded=True)
    assert t["blocks.0.proj.weight"].shape == (32, 64)
    c.rest("blocks.0.proj", 20)
    c.write()

    c = Comfy("int8_tensorwise")
    c.layer(P + "blocks.0.scalar", INT8, c.randn(24, 40, scale=0.05), {"format": "int8_tensorwise"})
    t = c.layer(P + "blocks.0.rows", INT8, c.randn(40, 24, scale=0.05), {"format": "int8_tensorwise"}, per_channel=True)
    assert t[P + "blocks.0.rows.weight_scale"].shape == (40, 1)
    c.layer(P + "blocks.0.unrotated", INT8, c.randn(8, 24), {"format": "int8_tensorwise", "convrot": False}, per_channel=True)
    c.rest(P + "blocks.0.rows", 40)
    c.write()

    # The same formats, told by the file's metadata instead of tensors. Layer names are whole, prefix included.
    c = Comfy("metadata")
    layers = {}
    for stem, layout, form, options in [
        ("fp8", FP8, "float8_e4m3fn", {}), ("e5m2", FP8, "float8_e5m2", {"dtype": E5M2}), ("nvfp4", NVFP4, "nvfp4", {}),
        ("mxfp8", MXFP8, "mxfp8", {}), ("int8", INT8, "int8_tensorwise", {"per_channel": True}),
    ]:
        base = f"{P}blocks.0.{stem}"
        c.layer(base, layout, c.randn(32, 64, scale=0.05).to(BF16), None, marker=False, **options)
        layers[base] = {"format": form}
        c.rest(base, 32)
    # One key only: safetensors writes several in no fixed order.
    c.metadata = {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})}
    c.write()


def hostile():
    c = Comfy("hostile_nvfp4")
    for i, g in enumerate([0.0123, 1e-40, -0.37, float("inf"), 3e38]):
        base = f"blocks.{i}.proj"
        n = 64 if i == 0 else 16
        tiles = c.all_bytes(128, 4).view(E4M3)  # every scale, NaN among them; rows beyond n are padding
        qdata, scale = c.all_bytes(n, 32), torch.tensor(g)
        params = get_layout_class(NVFP4).Params(scale=scale, orig_dtype=F32, orig_shape=(n, 64), block_scale=tiles)
        c.add({base + ".weight": qdata, base + ".weight_scale": tiles, base + ".weight_scale_2": scale})
        c.mark(base, {"format": "nvfp4"})
        c.decoded(base, NVFP4, QuantizedTensor(qdata, NVFP4, params))
    c.write()

    c = Comfy("hostile_mxfp8")  # exponents 0, which comfy-kitchen takes as zero, and 255, infinity
    tiles = c.all_bytes(128, 4)
    tiles[0::4, 0] = torch.tensor([0, 1, 254, 255] * 8, dtype=U8)  # the first scale of rows 0 to 31
    qdata, tiles = c.all_bytes(32, 64).view(E4M3), tiles.view(torch.float8_e8m0fnu)
    params = get_layout_class(MXFP8).Params(scale=tiles, orig_dtype=F32, orig_shape=(32, 64))
    c.add({"blocks.0.proj.weight": qdata, "blocks.0.proj.weight_scale": tiles})
    c.mark("blocks.0.proj", {"format": "mxfp8"})
    c.decoded("blocks.0.proj", MXFP8, QuantizedTensor(qdata, MXFP8, params))
    c.write()

    c = Comfy("hostile_fp8_int8")
    odd = [-1e-40, 3e38, float("inf"), -0.0]
    for i, s in enumerate(odd):
        scale = torch.tensor(s)
        for stem, layout, form, dtype in [("fp8", FP8, "float8_e4m3fn", E4M3), ("e5m2", FP8, "float8_e5m2", E5M2),
                                          ("int8", INT8, "int8_tensorwise", torch.int8)]:
            base, qdata = f"blocks.{i}.{stem}", c.all_bytes(4, 64).view(dtype)
            params = get_layout_class(layout).Params(scale=scale, orig_dtype=F32, orig_shape=(4, 64))
            c.add({base + ".weight": qdata, base + ".weight_scale": scale})
            c.mark(base, {"format": form})
            c.decoded(base, layout, QuantizedTensor(qdata, layout, params))
    c.write()


def refused():
    """A format that comfy-kitchen does not have."""
    base = P + "blocks.0.proj"
    c = Comfy("refused_unknown")
    c.add({base + ".weight": c.bytes(8, 16).view(E4M3), base + ".weight_scale": c.scales(8, 1)})
    c.mark(base, {"format": "float8_e4m3fn_of_tomorrow"})
    c.refuse(base + ".weight", "unknown format float8_e4m3fn_of_tomorrow")
    c.write()


def black_forest_labs():
    """`fp8r` and `nvfp4`; neither config nor markers. diffusers tells them by `weight_scale_2`. Low nibble first, scales not
    tiled."""
    for name, prefix in [("bfl_fp8r", ""), ("bfl_fp8r_prefix", P)]:
        c = Comfy(name)
        for stem, shape in [("double_blocks.0.img_attn.qkv", (48, 32)), ("single_blocks.0.linear1", (32, 32))]:
            w, s = bfl.quantize_fp8r(c.randn(*shape, scale=0.05))
            base = prefix + stem
            c.add({base + ".weight": w, base + ".weight_scale": s})
            c.expect(base + ".weight", bfl.dequantize_fp8r(w, s))
            c.rest(base, shape[0])
        c.keep(prefix + "img_in.weight", c.randn(8, 4).to(BF16))
        c.write()

    c = Comfy("bfl_nvfp4")
    for stem, shape in [("double_blocks.0.img_attn.qkv", (48, 32)), ("single_blocks.0.linear1", (20, 80))]:
        w, s, s2 = bfl.quantize_nvfp4(c.randn(*shape, scale=0.05))
        # Code 8 is -0 to diffusers and +0 to modelopt, whose files look the same: there is none here.
        w = torch.where((w & 15) == 8, w & 0xF0, w)
        w = torch.where((w >> 4) == 8, w & 15, w)
        c.add({stem + ".weight": w, stem + ".weight_scale": s, stem + ".weight_scale_2": s2, stem + ".input_scale": torch.tensor(0.02)})
        c.expect(stem + ".weight", bfl.dequantize_nvfp4(w, s, s2))
        c.rest(stem, shape[0])
    c.keep("img_in.weight", c.randn(8, 4).to(BF16))
    c.write()


if __name__ == "__main__":
    shutil.rmtree(DATA / "comfy", ignore_errors=True)
    legacy()
    native()
    hostile()
    refused()
    black_forest_labs()
    total("comfy")

"""Golden banks of experts of ComfyUI, and NVFP4 with factors of its columns, decoded expert by expert by comfy-kitchen (eager, CPU).

Run: `python comfy_banks.py` (see ../README.md). It rewrites `../comfy_banks/*`. ComfyUI's `MoEExperts` (`comfy/ops.py`) takes a
bank as [experts, out, in], each expert with its part of the scales; one of INT8 or `asym_w4a8_int8` with a scale for each row may be
[experts * out, in], too. Its `Linear` multiplies the input by `pre_quant_scale`.
"""

import shutil

import torch
from comfy_more import INT8, P, W4A4, W4A8, Comfy, once, product
from fp8 import BF16, DATA, E4M3, F32, U8
from modelcase import total

import comfy_kitchen as ck
from comfy_kitchen.backends.eager import w4a8_int8
from comfy_kitchen.tensor import QuantizedTensor, get_layout_class

EXPERTS = 3
NVFP4, MXFP8, FP8 = "TensorCoreNVFP4Layout", "TensorCoreMXFP8Layout", "TensorCoreFP8Layout"


class Bank(Comfy):
    def __init__(self, name, n, k):
        super().__init__(name)
        self.n, self.k = n, k
        self.dir = DATA / "comfy_banks" / name

    def stack(self, stem, layout, form, flat=False, **options):
        """A bank whose experts are quantized one by one."""
        experts = [QuantizedTensor.from_float(self.randn(self.n, self.k, scale=0.1 * (i + 1)).to(BF16), layout, **options) for i in range(EXPERTS)]
        tensors = [get_layout_class(layout).state_dict_tensors(e._qdata, e.params) for e in experts]
        join = torch.cat if flat else torch.stack
        for end in tensors[0]:
            parts = [t[end] for t in tensors]
            if parts[0].dtype.itemsize == 1:
                joined = join([p.view(U8) for p in parts]).view(parts[0].dtype)
            elif parts[0].ndim == 0:
                joined = torch.stack(parts)
            else:
                joined = join(parts)
            self.add({P + stem + ".weight" + end: joined})
        self.mark(P + stem, form | {"num_experts": EXPERTS})
        self.keep(P + stem + ".bias", self.randn(EXPERTS, self.n))
        return experts

    def decoded(self, stem, experts):
        """What comfy-kitchen decodes, in F32."""
        decode = lambda e: get_layout_class(e._layout_cls).dequantize(e._qdata, type(e.params)(**{**vars(e.params), "orig_dtype": F32}))
        self.expect(P + stem + ".weight", torch.stack([decode(e) for e in experts]))

    def rotated(self, stem, experts, codes, scale, group):
        want = [once(product(codes(e).long(), group), group, scale(e)) for e in experts]
        self.expect(P + stem + ".weight", torch.stack(want))


def main():
    shutil.rmtree(DATA / "comfy_banks", ignore_errors=True)
    c = Bank("blocks", 128, 32)
    c.decoded("nvfp4", c.stack("nvfp4", NVFP4, {"format": "nvfp4"}))
    c.decoded("mxfp8", c.stack("mxfp8", MXFP8, {"format": "mxfp8"}))
    c.decoded("fp8", c.stack("fp8", FP8, {"format": "float8_e4m3fn"}))
    c.write()

    c = Bank("integers", 16, 64)
    for stem, flat in (("stack", False), ("flat", True)):
        experts = c.stack(stem + "_plain", INT8, {"format": "int8_tensorwise"}, flat, per_channel=True)
        c.decoded(stem + "_plain", experts)
        form = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 64}
        experts = c.stack(stem + "_rotated", INT8, form, flat, per_channel=True, convrot=True, convrot_groupsize=64)
        c.rotated(stem + "_rotated", experts, lambda e: e._qdata, lambda e: e.params.scale, 64)
        form = {"format": "asym_w4a8_int8", "group_size": 16, "convrot_groupsize": 64}
        experts = c.stack(stem + "_levels", W4A8, form, flat, group_size=16, convrot_groupsize=64, codebook=False)
        levels = lambda e: w4a8_int8._dequant_int4_grouped_to_int8(e._qdata, e.params.scale, None, 16)
        c.rotated(stem + "_levels", experts, levels, lambda e: e.params.s_channel, 64)
    experts = c.stack("nibbles", W4A4, {"format": "convrot_w4a4", "convrot_groupsize": 64}, convrot_groupsize=64)
    c.rotated("nibbles", experts, lambda e: ck.backends.eager.svdquant._unpack_int4_row_major(e._qdata), lambda e: e.params.scale, 64)
    c.write()

    # `pre_quant_scale`, and scales as older files have them.
    c = Bank("nvfp4_columns", 32, 48)
    for stem, view in (("a", E4M3), ("b", U8)):
        e = QuantizedTensor.from_float(c.randn(c.n, c.k).to(BF16), NVFP4)
        tensors = get_layout_class(NVFP4).state_dict_tensors(e._qdata, e.params)
        tensors["_scale"] = tensors["_scale"].view(view)
        c.add({P + stem + ".weight" + end: t for end, t in tensors.items()})
        c.mark(P + stem, {"format": "nvfp4"})
        want = get_layout_class(NVFP4).dequantize(e._qdata, type(e.params)(**{**vars(e.params), "orig_dtype": F32}))
        if stem == "a":
            columns = c.scales(c.k).to(BF16)
            c.add({P + stem + ".pre_quant_scale": columns})
            want = want * columns.float()
        c.expect(P + stem + ".weight", want)
    c.write()
    total("comfy_banks")


if __name__ == "__main__":
    main()

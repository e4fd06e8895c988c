"""Golden files of ComfyUI's rotated and four-bit formats, made and decoded by comfy-kitchen (eager backend, CPU).

Run: `python comfy_more.py` (see ../README.md). It rewrites `../comfy_more/*` and `../comfy_encode/*`.

comfy-kitchen sums in F32, in an order of its matrix product. Expected is the exact sum, rounded once: of integers, where
they are rotated; in F64, where a correction or a product of low rank is added. `library-f32.safetensors` of a case is what
comfy-kitchen gives, for a comparison by tolerance; the script makes it, too.
"""

import json
import shutil

import numpy as np
import torch
from fp8 import BF16, DATA, E4M3, F16, F32, U8, rounded, same
from modelcase import ModelCase, total
from safetensors.torch import save_file

import comfy_kitchen as ck
from comfy_kitchen.backends.eager import awq, w4a8_int8
from comfy_kitchen.tensor import QuantizedTensor, get_layout_class
from comfy_kitchen.tensor.int8_utils import _build_hadamard

torch.set_num_threads(1)
ck.registry.set_priority(["eager"])
P = "model.diffusion_model.blocks.0."
INT8, W4A4, W4A8 = "TensorWiseINT8Layout", "TensorCoreConvRotW4A4Layout", "AsymW4A8Int8Layout"
AWQ, SVD = "TensorCoreAWQW4A16Layout", "TensorCoreSVDQuantW4A4Layout"
TOLERANCE = 1e-5  # of the largest value of a row


def hadamard(group):
    """The matrix as integers, from comfy-kitchen's own, whose entries are powers of two."""
    h = (_build_hadamard(group).double() * group**0.5).round().long()
    assert torch.equal(h.abs(), torch.ones_like(h)) and torch.equal(h, h.T)
    return h


def product(values, group):
    """Each group of each row times the matrix."""
    n, k = values.shape
    return (values.reshape(n, k // group, group) @ hadamard(group).to(values.dtype)).reshape(n, k)


def once(sums, group, scale):
    """Sums of integers over √group, times the scale of each row: exact in F64, and rounded to F32 once. Where the scale is
    not finite, all is NaN; zero is +0."""
    scale = scale.float().reshape(-1, 1)
    assert sums.abs().max() < 1 << 24
    out = (sums.double() / group**0.5 * scale.double()).float() + 0.0
    return torch.where(scale.isfinite(), out, torch.nan)


class Comfy(ModelCase):
    def __init__(self, name):
        super().__init__("comfy_more", name)
        self.library = {}

    def mark(self, base, form):
        text = json.dumps(form).encode()
        self.add({base + ".comfy_quant": torch.tensor(list(text), dtype=U8)})

    def layer(self, base, tensors, form, want, library):
        """One weight, `want` by the exact sum and `library` by comfy-kitchen, which has to be near. Rows whose scaled
        codes overflow or are subnormal are not compared."""
        self.add({base + ".weight" + end: t for end, t in tensors.items()})
        if form is not None:
            self.mark(base, form)
        self.expect(base + ".weight", want)
        assert want.dtype == F32 and want.shape == library.shape, (want.shape, library.shape)
        rows = want.isfinite().all(1) & library.isfinite().all(1) & ((want == 0).all(1) | (want.abs().amax(1) > 1e-30))
        far = (want - library).abs() > TOLERANCE * want.abs().amax(1, keepdim=True)
        assert not far[rows].any(), (base, (want - library).abs()[rows].max(), want.abs().max())
        self.library[base + ".weight"] = torch.where(rows[:, None], library, torch.nan)

    def rest(self, base, n):
        self.keep(base + ".bias", self.randn(n, scale=0.1).to(BF16))

    def write(self):
        super().write()
        if self.library:
            tensors = {k: v.contiguous() for k, v in self.library.items()}
            save_file(tensors, self.dir / "library-f32.safetensors", {"format": "pt"})

    def int8(self, base, q, scale, group, form):
        library = ck.backends.eager.quantization.dequantize_int8_convrot_weight(q, scale, group)
        want = once(product(q.long(), group), group, scale)
        self.layer(base, {"": q, "_scale": scale}, form, want, library)

    def w4a4(self, base, q, scale, group, form):
        codes = ck.backends.eager.svdquant._unpack_int4_row_major(q)
        library = ck.backends.eager.convrot_w4a4.dequantize_convrot_w4a4_weight(q, scale, group)
        want = once(product(codes.long(), group), group, scale)
        self.layer(base, {"": q, "_scale": scale}, form, want, library)

    def w4a8(self, base, tensors, group_size, group, form):
        q, s_rel, s_channel = tensors[""], tensors["_s_rel"], tensors["_s_channel"]
        codebook, correction = tensors.get("_codebook"), tensors.get("_correction")
        s_rel = s_rel.view(E4M3) if s_rel.dtype == U8 else s_rel
        levels = w4a8_int8._dequant_int4_grouped_to_int8(q, s_rel, codebook, group_size)
        library = ck.dequantize_w4a8_int8_weight(q, s_rel, s_channel, codebook, correction, group_size, group, F32)
        if correction is None:
            want = once(product(levels.long(), group), group, s_channel)
        else:
            of_columns = correction.t().double().repeat_interleave(group_size, 1)
            values = levels.double() * s_channel.double().reshape(-1, 1) + of_columns
            want = passes(values, group)
        self.layer(base, tensors, form, want, library)
        return levels


def passes(values, group):
    """The same product in F64, summed in the order that docs/schemes.md gives."""
    n, k = values.shape
    near = (product(values, group) / group**0.5).float()
    stride = 1
    while stride < group:
        v = values.reshape(n, k // (4 * stride), 4, stride)
        a, b, c, d = (v[:, :, i] for i in range(4))
        values = torch.stack([(a + b) + (c - d), (a + b) - (c - d), (c + d) + (a - b), (c + d) - (a - b)], 2).reshape(n, k)
        stride *= 4
    out = (values / group**0.5).float()
    assert torch.allclose(out, near, rtol=1e-6, atol=0)
    return out


def rotated_int8():
    c = Comfy("int8_convrot")
    for stem, shape, group in [("qkv", (10, 512), 256), ("mid", (7, 192), 64), ("small", (5, 48), 16), ("least", (3, 12), 4),
                               ("wide", (2, 2048), 1024)]:
        w = c.randn(*shape, scale=0.05).to(BF16)
        qt = QuantizedTensor.from_float(w, INT8, per_channel=True, convrot=True, convrot_groupsize=group)
        form = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": group}
        if stem == "qkv":
            del form["convrot_groupsize"]  # 256 is what ComfyUI takes
        if stem == "mid":
            form = {"format": "int8_tensorwise", "params": {"convrot": True, "convrot_groupsize": group}}
        c.int8(P + stem, qt._qdata, qt.params.scale, group, form)
        near = (c.expected[P + stem + ".weight"] - w.float()).abs().max()
        assert near < 0.02, near
    c.int8(P + "scalar", c.all_bytes(4, 256).view(torch.int8), torch.tensor(0.0123), 256,
           {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 256})
    # 40 columns are no whole groups: such a layer is not rotated.
    w = c.randn(6, 40, scale=0.05)
    qt = QuantizedTensor.from_float(w, INT8, per_channel=True)
    c.add({P + "plain.weight" + end: t for end, t in zip(("", "_scale"), (qt._qdata, qt.params.scale))})
    c.mark(P + "plain", {"format": "int8_tensorwise", "convrot_groupsize": 256})
    c.expect(P + "plain.weight", qt.dequantize().float())
    c.rest(P + "qkv", 10)
    c.write()

    # ComfyUI-INT8-Fast: no format. One layer is not rotated.
    c = Comfy("int8_fast")
    w = c.randn(16, 256, scale=0.05)
    qt = QuantizedTensor.from_float(w, INT8, per_channel=True, convrot=True, convrot_groupsize=256)
    c.int8("blocks.0.q", qt._qdata, qt.params.scale, 256, {"convrot": True, "convrot_groupsize": 256, "per_row": True})
    qt = QuantizedTensor.from_float(w[:, :24].contiguous(), INT8, per_channel=True)
    c.add({"blocks.0.k.weight": qt._qdata, "blocks.0.k.weight_scale": qt.params.scale})
    c.mark("blocks.0.k", {"convrot": False, "per_row": True})
    c.expect("blocks.0.k.weight", qt.dequantize())
    c.rest("blocks.0.q", 16)
    c.write()


ODD = torch.tensor([0.0123, -0.37, 0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-40, 3e38, 6e-8])


def hostile():
    c = Comfy("hostile_rotated")
    n = len(ODD)
    for group in (16, 256):
        form = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": group}
        c.int8(f"int8.{group}", c.all_bytes(n, 512).view(torch.int8), ODD[:, None].clone(), group, form)
        form = {"format": "convrot_w4a4", "convrot_groupsize": group}
        c.w4a4(f"w4a4.{group}", c.all_bytes(n, 256).view(torch.int8), ODD.clone(), group, form)
        s_rel = c.all_bytes(n, 32)
        s_rel[(s_rel & 127) == 127] = 0x7E  # NaN is refused; the largest value instead
        form = {"format": "asym_w4a8_int8", "group_size": 16, "convrot_groupsize": group}
        tensors = {"": c.all_bytes(n, 256).view(torch.int8), "_s_rel": s_rel.view(E4M3), "_s_channel": ODD.clone()}
        c.w4a8(f"w4a8.{group}", tensors, 16, group, form)
    c.write()

    # The largest sums that 256 codes of eight bits can have, with both signs.
    c = Comfy("largest_sums")
    h = hadamard(256)
    q = torch.cat([torch.where(h > 0, 127, -128), torch.where(h > 0, -128, 127)])[::17].to(torch.int8)
    form = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 256}
    c.int8("proj", q.contiguous(), torch.full((q.shape[0], 1), 1.0), 256, form)
    # Without its description, the only weight of a file would be any INT8.
    c.int8("other", q[:1].contiguous(), torch.tensor([[2.0**-7]]), 256, form)
    c.write()


def rotated_nibbles():
    c = Comfy("convrot_w4a4")
    for stem, shape, group in [("qkv", (24, 512), 256), ("mid", (7, 192), 64), ("small", (5, 64), 16)]:
        w = c.randn(*shape, scale=0.05).to(BF16)
        qt = QuantizedTensor.from_float(w, W4A4, convrot_groupsize=group)
        form = {"format": "convrot_w4a4", "convrot_groupsize": group}
        if stem == "mid":
            form |= {"linear_dtype": "int8", "quant_group_size": 64, "convrot": True}
        c.w4a4(P + stem, qt._qdata, qt.params.scale, group, form)
    c.rest(P + "qkv", 24)
    c.write()

    # By the file's metadata, with every byte.
    c = Comfy("convrot_w4a4_metadata")
    c.w4a4(P + "all", c.all_bytes(6, 256).view(torch.int8), c.scales(6), 256, None)
    c.metadata = {"_quantization_metadata": json.dumps(
        {"format_version": "1.0", "layers": {(P + "all"): {"format": "convrot_w4a4", "convrot_groupsize": 256}}})}
    c.write()


def w4a8():
    c = Comfy("asym_w4a8_int8")
    for stem, shape, size, group, options in [
        ("qkv", (24, 512), 16, 256, {}), ("fixed", (9, 256), 16, 256, {"codebook": False}),
        ("f32", (5, 256), 16, 256, {"scale_dtype": F32}), ("fours", (5, 64), 4, 64, {}), ("eights", (4, 96), 8, 16, {}),
        ("odd", (3, 768), 48, 256, {}), ("long", (3, 512), 256, 256, {"codebook": False}),
        ("correction", (11, 512), 16, 256, {"symmetric": False}), ("corrected", (6, 96), 8, 16, {"symmetric": False}),
        ("six", (7, 512), 16, 256, {"bits": 6}), ("six_long", (5, 192), 32, 64, {"bits": 6}),
    ]:
        w = c.randn(*shape, scale=0.05)
        if stem == "eights":
            w = w**3  # heavy tails: a codebook of its own
        qt = QuantizedTensor.from_float(w.to(BF16), W4A8, group_size=size, convrot_groupsize=group, **options)
        tensors = get_layout_class(W4A8).state_dict_tensors(qt._qdata, qt.params)
        form = {"format": "asym_w4a8_int8", "group_size": size, "convrot_groupsize": group}
        if stem == "fixed":  # as other writers store E4M3
            tensors["_s_rel"] = tensors["_s_rel"].view(U8)
        if stem == "qkv":
            form = {"format": "asym_w4a8_int8", "convrot": True}
        levels = c.w4a8(P + stem, tensors, size, group, form)
        assert levels.unique().numel() > 15
        assert ("_codebook" in tensors) == (options.get("codebook", True) and options.get("symmetric", True) and options.get("bits") != 6)
        assert ("_correction" in tensors) == (stem.startswith("correct"))
        c.notes.append(f"{stem}: {dict((k, tuple(v.shape)) for k, v in tensors.items())}")
    c.rest(P + "qkv", 24)
    c.write()


def awq_w4a16():
    """The layout computes in `orig_dtype`; in BF16 and F16 its rounding of the products is part of the bits."""
    for name, dtype, zeros, size in [("awq_bf16", BF16, "_zeros", 64), ("awq_f16", F16, "_zero", 32), ("awq_f32", F32, "_zero", 64)]:
        c = Comfy(name)
        narrow = {}
        for stem, (n, k) in [("img_mod.1", (30, 192)), ("txt_mod.1", (5, 64))]:
            base = "transformer_blocks.0." + stem
            q, s, z = c.all_bytes(n, k // 2).view(torch.int8), c.scales(k // size, n).to(dtype), c.randn(k // size, n).to(dtype)
            if stem == "txt_mod.1":
                s[0] = torch.tensor([0.0, float("nan"), float("inf"), 6e-8, -1.0]).to(dtype)
            cls = get_layout_class(AWQ)
            of = {}
            for d in {F32, dtype}:
                params = cls.Params(scale=s, zeros=z, orig_dtype=d, orig_shape=(n, k), group_size=size)
                of[d] = cls.dequantize(q, params)
                assert of[d].dtype == d
            eye = torch.eye(k, dtype=dtype)
            assert stem != "img_mod.1" or same(awq.gemv_awq_w4a16(eye, q, s, z, group_size=size).T.contiguous(), of[dtype])
            c.add({base + ".weight": q, base + ".weight_scale": s, base + ".weight" + zeros: z})
            c.mark(base, {"format": "awq_w4a16"} | ({} if size == 64 else {"group_size": size}))
            c.expect(base + ".weight", of[F32])
            narrow[base + ".weight"] = of[dtype]
            c.rest(base, n)
            narrow[base + ".bias"] = c.expected[base + ".bias"]
        c.write()
        if dtype != F32:
            save_file({k: v.contiguous() for k, v in narrow.items()}, c.dir / f"expected-{'bf16' if dtype == BF16 else 'f16'}.safetensors", {"format": "pt"})


def svdquant():
    """The layout decodes by multiplying with the identity, whose rows it quantizes: near the formula, not equal to it."""
    for name, tiled, long_names, dtype in [("svdquant", False, False, BF16), ("svdquant_long_names", False, True, F16),
                                           ("svdquant_tiles", True, True, BF16), ("svdquant_tiles_f32", True, False, F32)]:
        c = Comfy(name)
        for stem, (n, k), rank in [("q", (256, 128) if tiled and long_names else (128, 128) if tiled else (30, 192), 5), ("k", (128, 64) if tiled else (8, 64), 1),
                                   ("none", (128, 64) if tiled else (8, 64), 0)]:
            base = "transformer_blocks.0.attn." + stem
            q, s = c.all_bytes(n, k // 2).view(torch.int8), c.scales(k // 64, n).to(dtype)
            smooth = torch.exp2(c.randn(k)).to(dtype)
            down, up = c.randn(k, rank, scale=0.2).to(dtype), c.randn(n, rank, scale=0.2).to(dtype)
            codes = ck.backends.eager.svdquant._unpack_int4_row_major(q).float()
            scaled = (codes.reshape(n, k // 64, 64) * s.float().t()[:, :, None]).reshape(n, k)
            low = (up.double()[:, None, :] * down.double()[None]).sum(-1).float()
            want = scaled / smooth.float() + low
            form = {"format": "svdquant_w4a4"}
            if tiled:
                q = q.reshape(n // 128, 32, 4, k // 64, 32).permute(0, 3, 1, 2, 4).reshape(n // 128, k // 64, 32, 128).contiguous()
                s = s.reshape(k // 64, n // 128, 128).permute(1, 0, 2).contiguous()
                up = up.reshape(n // 128, 128, rank).permute(0, 2, 1).contiguous()
                form |= {"layout": "kitchen_tile_packed_w4a4", "lowrank_branch_input_basis": "raw", "proj_down_smooth_folded": True}
            cls = get_layout_class(SVD)
            params = cls.Params(scale=s.float(), orig_dtype=F32, orig_shape=(n, k), proj_down=down.float(), proj_up=up.float(), smooth_factor=smooth.float())
            library = cls.dequantize(q, params)
            tensors = {"": q, "_scale": s}
            others = {"proj_down": down, "proj_up": up, "smooth_factor": smooth}
            if long_names:
                tensors |= {"_" + end: t for end, t in others.items()}
            else:
                c.add({f"{base}.{end}": t for end, t in others.items()})
            c.layer(base, tensors, form, want, library[:n, :k].contiguous())
            c.rest(base, n)
        c.write()


def act_unsigned():
    """Layers behind a GELU: the library adds a constant to the input of the quantized part. The expected bias is that with which the
    decoded weight gives the library's output; of the input minus the constant that is the product of low rank and the stored bias."""
    shift = ck.backends.eager.svdquant._GELU_UNSIGNED_SHIFT
    for name, tiled, dtype in [("act_unsigned", False, BF16), ("act_unsigned_tiles", True, F16), ("act_unsigned_f32", False, F32)]:
        c = Comfy(name)
        base, (n, k), rank = "transformer_blocks.0.ff.net.2", (128, 128) if tiled else (21, 192), 3
        q, s = c.all_bytes(n, k // 2).view(torch.int8), c.scales(k // 64, n).to(dtype)
        smooth, bias = torch.exp2(c.randn(k)).to(dtype), c.randn(n).to(dtype)
        down, up = c.randn(k, rank, scale=0.2).to(dtype), c.randn(n, rank, scale=0.2).to(dtype)
        codes = ck.backends.eager.svdquant._unpack_int4_row_major(q).float()
        scaled = (codes.reshape(n, k // 64, 64) * s.float().t()[:, :, None]).reshape(n, k)
        low = (up.double()[:, None, :] * down.double()[None]).sum(-1).float()
        want = scaled / smooth.float() + low
        sums = (scaled.double() / smooth.double()).sum(-1)
        form = {"format": "svdquant_w4a4", "act_unsigned": True}
        cls = get_layout_class(SVD)
        # The library's own output of an input whose quantized part sees zeros, and of one whose codes are exact.
        for x in (torch.full((1, k), -shift, dtype=F32), smooth.float()[None] * 2 - shift):
            wide = cls.Params(scale=s.float(), orig_dtype=F32, orig_shape=(n, k), proj_down=down.float(), proj_up=up.float(),
                              smooth_factor=smooth.float(), act_unsigned=True)
            theirs = torch.nn.functional.linear(x, QuantizedTensor(q, SVD, wide), bias.float())
            ours = x.double() @ want.double().t() + bias.double() + shift * sums
            assert (theirs - ours).abs().max() <= 1e-4 * ours.abs().max(), (theirs - ours).abs().max()
        if tiled:
            q = q.reshape(n // 128, 32, 4, k // 64, 32).permute(0, 3, 1, 2, 4).reshape(n // 128, k // 64, 32, 128).contiguous()
            s = s.reshape(k // 64, n // 128, 128).permute(1, 0, 2).contiguous()
            up = up.reshape(n // 128, 128, rank).permute(0, 2, 1).contiguous()
            form |= {"layout": "kitchen_tile_packed_w4a4"}
        others = {"proj_down": down, "proj_up": up, "smooth_factor": smooth, "bias": bias}
        c.add({base + ".weight": q, base + ".weight_scale": s} | {f"{base}.{end}": t for end, t in others.items()})
        c.mark(base, form)
        c.expect(base + ".weight", want)
        corrected = (bias.double() + shift * sums).float().to(dtype)
        c.expected[base + ".bias"] = corrected
        c.write()
        for target, narrow in rounded(want).items():  # the bias keeps its dtype
            if dtype == F32 and target != "f32":
                save_file({base + ".weight": narrow, base + ".bias": corrected}, c.dir / f"expected-{target}.safetensors", {"format": "pt"})


def refused():
    base = P + "proj"

    def case(name, form, reason, **tensors):
        c = Comfy("refused_" + name)
        c.add({base + ".weight": c.bytes(8, 64).view(torch.int8), base + ".weight_scale": c.scales(2, 8).to(BF16),
               base + ".proj_down": c.randn(128, 4).to(BF16), base + ".proj_up": c.randn(8, 4).to(BF16),
               base + ".smooth_factor": c.scales(128).to(BF16)})
        c.mark(base, {"format": "svdquant_w4a4"} | form)
        c.refuse(base + ".weight", reason)
        c.write()

    case("post_smoothing", {"lowrank_branch_input_basis": "post_smoothing"}, "the product of low rank has another input")


def encodings():
    """`../comfy_encode/*.safetensors`: `weights`, and what ComfyUI stores of them. The weights are integers over 1024, whose
    sums F32 holds, so that the order of comfy-kitchen's sums changes nothing."""
    rng = torch.Generator().manual_seed(26)
    shutil.rmtree(DATA / "comfy_encode", ignore_errors=True)
    (DATA / "comfy_encode").mkdir()
    name = "model.layers.0.mlp.up_proj.weight"
    for file, (n, k), layout, group in [("int8", (9, 768), INT8, 256), ("int8-plain", (7, 72), INT8, None),
                                        ("w4a4", (9, 512), W4A4, 256), ("w4a4-64", (5, 192), W4A4, 64)]:
        w = torch.randint(-2000, 2001, (n, k), generator=rng).float() / 1024
        w[1], w[2], w[3] = 0.0, w[2] * 2.0**-100, w[3] * 2.0**100
        w[4] = hadamard(256)[7].repeat(3)[:k].float()  # all of a group goes to one column
        if layout == INT8:
            qt = QuantizedTensor.from_float(w, layout, per_channel=True, convrot=group is not None, convrot_groupsize=group or 256)
            form = {"format": "int8_tensorwise"} | ({"convrot": True, "convrot_groupsize": group} if group else {})
        else:
            qt = QuantizedTensor.from_float(w, layout, convrot_groupsize=group)
            form = {"format": "convrot_w4a4", "convrot_groupsize": group}
        text = torch.tensor(list(json.dumps(form).encode()), dtype=U8)
        stored = qt.state_dict(name) | {name.removesuffix("weight") + "comfy_quant": text}
        method = "comfy " + file.split("-")[0]
        save_file({"weights": w} | stored, DATA / "comfy_encode" / f"{file}.safetensors", {"method": method, "name": name})


if __name__ == "__main__":
    encodings()
    shutil.rmtree(DATA / "comfy_more", ignore_errors=True)
    rotated_int8()
    rotated_nibbles()
    w4a8()
    hostile()
    awq_w4a16()
    svdquant()
    act_unsigned()
    refused()
    total("comfy_more")

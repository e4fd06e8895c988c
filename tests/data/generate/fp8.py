"""Golden FP8 files, decoded by transformers, compressed-tensors, modelopt and comfy-kitchen (CPU).

Run: `python fp8.py` (see ../README.md). It rewrites `../fp8/*`. The first half is shared with nvfp4.py and bnb.py.
"""

import json
import os
import shutil
import warnings
import zlib
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # eager kernels only: no compiler may contract or reorder
warnings.filterwarnings("ignore")

import ml_dtypes
import numpy as np
import torch
from safetensors.torch import load_file, save_file

DATA = Path(__file__).resolve().parent.parent
TARGETS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
F32, BF16, F16, U8 = torch.float32, torch.bfloat16, torch.float16, torch.uint8
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
E4M3Z, E5M2Z, E8M0 = torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu


# ---------------------------------------------------------------- shared with nvfp4.py and bnb.py


def bits(t):
    """Bit patterns, with every NaN made the same."""
    t = t.contiguous()
    view = t.reshape(-1).view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[t.element_size()]).clone()
    if t.dtype.is_floating_point:
        view[t.reshape(-1).isnan()] = -1
    return view


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bool((bits(a) == bits(b)).all())


def differing(a, b):
    """Share of elements whose bits differ, as text."""
    n = int((bits(a) != bits(b)).sum())
    return f"{n}/{a.numel()} ({100 * n / a.numel():.2f}%) differ"


def rounded(f32):
    """The one rounding of this crate's rule; torch is checked against numpy and ml_dtypes."""
    out = {"f32": f32, "bf16": f32.to(BF16), "f16": f32.to(F16)}
    with np.errstate(all="ignore"):
        f16 = torch.from_numpy(f32.numpy().astype(np.float16))
        bf16 = torch.from_numpy(f32.numpy().astype(ml_dtypes.bfloat16).view(np.int16)).view(BF16)
    assert same(out["f16"], f16) and same(out["bf16"], bf16)
    return out


class Case:
    """One directory of tests/data: the quantized file and what it must become."""

    def __init__(self, family, name, config=None):
        self.dir, self.config = DATA / family / name, config
        self.rng = torch.Generator().manual_seed(zlib.crc32(f"{family}/{name}".encode()))
        self.tensors, self.expected, self.notes = {}, {}, []

    def randn(self, *shape, scale=1.0):
        return torch.randn(*shape, generator=self.rng) * scale

    def bytes(self, *shape):
        return torch.randint(0, 256, shape, generator=self.rng, dtype=U8)

    def all_bytes(self, rows, cols):
        """Random bytes; every run of 256 elements holds each byte exactly once, in its own order."""
        n = -(-rows * cols // 256)
        runs = [torch.randperm(256, generator=self.rng) for _ in range(n)]
        return torch.cat(runs)[: rows * cols].to(U8).reshape(rows, cols)

    def scales(self, *shape, lo=-9, hi=-3):
        """Positive, spread over octaves, with full mantissas."""
        return torch.exp2(torch.rand(*shape, generator=self.rng) * (hi - lo) + lo)

    def add(self, tensors):
        """Companions and weights of the quantized file."""
        assert not set(tensors) & set(self.tensors)
        self.tensors.update(tensors)

    def keep(self, name, tensor):
        """A tensor that is not quantized: same name, dtype and bits on both sides."""
        self.add({name: tensor})
        self.expected[name] = tensor

    def norm(self, k, name="model.norm.weight"):
        self.keep(name, (1 + self.randn(k, scale=0.1)).to(BF16))

    def bias(self, n, name="lm_head.bias"):
        self.keep(name, self.randn(n, scale=0.02))

    def expect(self, name, f32):
        assert f32.dtype == F32
        self.expected[name] = f32.contiguous().clone()

    def direct(self, name, oracle, label, dtypes=("bf16", "f16"), must=True):
        """Compares `oracle(dtype)`, what the library itself returns, with the one-rounding rule."""
        want = rounded(self.expected[name])
        for d in dtypes:
            got = oracle(TARGETS[d])
            ok = same(got, want[d])
            if must:
                assert ok, (self.dir.name, name, label, d, differing(got, want[d]))
            elif not ok:
                self.notes.append(f"{name}: {label} {d}: {differing(got, want[d])}")

    def write(self):
        shutil.rmtree(self.dir, ignore_errors=True)
        self.dir.mkdir(parents=True)
        meta = {"format": "pt"}
        save_file({k: v.contiguous().clone() for k, v in self.tensors.items()}, self.dir / "model.safetensors", meta)
        quantized = set(self.expected) - {k for k, v in self.expected.items() if self.tensors.get(k) is v}
        for d in TARGETS:
            out = {k: rounded(v)[d] if k in quantized else v.clone() for k, v in self.expected.items()}
            save_file(out, self.dir / f"expected-{d}.safetensors", meta)
        if self.config is not None:
            (self.dir / "config.json").write_text(json.dumps(self.config, indent=2) + "\n")
        size = sum(f.stat().st_size for f in self.dir.iterdir())
        print(f"{self.dir.parent.name}/{self.dir.name}: {len(quantized)} dequantized, {size} bytes")
        for note in self.notes:
            print(f"    {note}")


# ---------------------------------------------------------------- oracles


class Quantizer:
    """What transformers' operations ask of a quantizer: its config."""

    def __init__(self, **config):
        from transformers.utils.quantization_config import FineGrainedFP8Config

        self.quantization_config = FineGrainedFP8Config(**config)


def hf(weight, scale, dtype=F32):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    return Fp8Dequantize(Quantizer())._dequantize_one(weight, scale, output_dtype=dtype)


def ct_block(weight, scale, block, dtype=F32):
    from compressed_tensors.entrypoints.convert.converters.fp8block_dequantizer import FP8BlockDequantizer

    return FP8BlockDequantizer(weight_block_size=block, dtype=dtype)._create_dequantized_weight(weight, scale)


def hf_padded(weight, scale, block, dtype=F32):
    """transformers refuses partial edge blocks, so it sees the weight padded with zeros."""
    n, k = weight.shape
    full = torch.zeros(scale.shape[0] * block[0], scale.shape[1] * block[1], dtype=U8)
    full[:n, :k] = weight.view(U8)
    return hf(full.view(weight.dtype), scale, dtype)[:n, :k].contiguous()


def modelopt_fp8(weight, scale, dtype=F32):
    from modelopt.torch.quantization.qtensor.fp8_tensor import FP8QTensor

    return FP8QTensor(weight.shape, dtype, weight).dequantize(dtype, scale=scale)


def modelopt_mxfp8(weight, scale, dtype=F32):
    from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor

    return MXFP8QTensor(weight.shape, dtype, weight).dequantize(dtype, scale=scale)


def comfy(weight, scale, dtype=F32):
    import comfy_kitchen

    return comfy_kitchen.dequantize_per_tensor_fp8(weight, scale, dtype)


def numpy_product(weight, scale):
    """A second opinion on hf's torch arithmetic (FP8 tables, subnormals, NaN)."""
    dtype = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2, E4M3Z: ml_dtypes.float8_e4m3fnuz,
             E5M2Z: ml_dtypes.float8_e5m2fnuz}[weight.dtype]
    w = weight.contiguous().view(U8).numpy().view(dtype).astype(np.float32)
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.asarray(w * scale.to(F32).numpy(), dtype=np.float32))


def ct_plain(weight, scale, strategy):
    """compressed-tensors' `dequantize`; the dtype of `scale` is the dtype of the result."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    return dequantize(weight, scale, args=QuantizationArgs(num_bits=8, type="float", strategy=strategy))


# ---------------------------------------------------------------- the cases


def fp8_config(block, **more):
    q = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": block}
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": q | more}


def encode(case, n, k, dtype=E4M3, amp=40.0):
    """A plausible weight: normal values cast to FP8."""
    return case.randn(n, k, scale=amp).to(dtype)


def add_block(c, name, weight, scale, block, suffix):
    c.add({name: weight, suffix(name): scale})
    c.expect(name, ct_block(weight, scale, block))
    assert same(c.expected[name], hf_padded(weight, scale, block))
    c.direct(name, lambda d: ct_block(weight, scale, block, d), "compressed-tensors FP8BlockDequantizer")
    c.direct(name, lambda d: hf_padded(weight, scale, block, d), "transformers Fp8Dequantize, zero-padded")


def companion(suffix):
    """`a.b.weight` -> `a.b.<suffix>`."""
    return lambda name: name.removesuffix("weight") + suffix


def add_rows(c, name, weight, scale, scale_name, scale_view):
    """One scale a tensor, an expert or a row; `scale_view` is the scale shaped to broadcast."""
    c.add({name: weight, scale_name: scale})
    c.expect(name, hf(weight, scale_view))
    assert same(c.expected[name], numpy_product(weight, scale_view))
    c.direct(name, lambda d: hf(weight, scale_view, d), "transformers Fp8Dequantize")


L = "model.layers.0."


def block_cases():
    c = Case("fp8", "block_128", fp8_config([128, 128]))
    name = L + "mlp.down_proj.weight"
    add_block(c, name, encode(c, 300, 260), c.scales(3, 3), (128, 128), companion("weight_scale_inv"))
    c.norm(260), c.bias(7)
    c.write()

    c = Case("fp8", "block_bf16_scale")
    for proj, n, k, grid in [("up_proj", 130, 40, (2, 1)), ("down_proj", 40, 130, (1, 2))]:
        s = c.scales(*grid).to(BF16)
        add_block(c, f"{L}mlp.{proj}.weight", encode(c, n, k), s, (128, 128), companion("weight_scale_inv"))
    c.norm(40)
    c.write()

    c = Case("fp8", "block_64x32", fp8_config([64, 32], modules_to_not_convert=["lm_head"]))
    name = L + "self_attn.q_proj.weight"
    add_block(c, name, encode(c, 100, 72), c.scales(2, 3), (64, 32), companion("weight_scale_inv"))
    c.norm(72)
    c.keep("lm_head.weight", c.randn(10, 72, scale=0.02).to(BF16))
    c.write()

    c = Case("fp8", "block_32x64_noconfig")
    name = L + "self_attn.o_proj.weight"
    add_block(c, name, encode(c, 80, 150), c.scales(3, 3), (32, 64), companion("weight_scale_inv"))
    c.norm(150)
    c.write()


def flat_cases():
    c = Case("fp8", "tensor_0d")
    name = L + "mlp.gate_proj.weight"
    w, s = encode(c, 48, 64), torch.tensor(0.0123456789)
    add_rows(c, name, w, s, companion("weight_scale")(name), s)
    c.add({L + "mlp.gate_proj.input_scale": torch.tensor(0.031)})
    assert same(c.expected[name], modelopt_fp8(w, s))
    c.direct(name, lambda d: modelopt_fp8(w, s, d), "modelopt FP8QTensor (casts the scale first)", must=False)
    c.norm(64), c.bias(5)
    c.write()

    c = Case("fp8", "tensor_1")
    name = L + "self_attn.k_proj.weight"
    w, s = encode(c, 33, 50), torch.tensor([0.0123456789]).to(BF16)
    add_rows(c, name, w, s, companion("weight_scale")(name), s)
    c.direct(name, lambda d: ct_plain(w, s, "tensor"), "compressed-tensors dequantize", ("bf16",))
    c.norm(50)
    c.write()

    c = Case("fp8", "channel_n")
    name = L + "mlp.down_proj.weight"
    w, s = encode(c, 45, 70), c.scales(45)
    add_rows(c, name, w, s, companion("weight_scale")(name), s.view(-1, 1))
    assert same(c.expected[name], modelopt_fp8(w, s.view(-1, 1)))
    c.norm(70)
    c.write()

    c = Case("fp8", "channel_n1")
    for proj, dtype, d in [("q_proj", BF16, "bf16"), ("v_proj", F16, "f16")]:
        name = f"{L}self_attn.{proj}.weight"
        w, s = encode(c, 37, 66), c.scales(37, 1).to(dtype)
        add_rows(c, name, w, s, companion("weight_scale")(name), s)
        c.direct(name, lambda _: ct_plain(w, s, "channel"), "compressed-tensors dequantize", (d,))
    c.norm(66)
    c.write()

    c = Case("fp8", "e5m2")
    name = L + "mlp.gate_proj.weight"
    s = torch.tensor(0.3141592653589793)
    add_rows(c, name, c.all_bytes(16, 48).view(E5M2), s, companion("weight_scale")(name), s)
    name = L + "mlp.up_proj.weight"
    s = c.scales(24, 1, lo=-4, hi=4)
    add_rows(c, name, c.all_bytes(24, 40).view(E5M2), s, companion("weight_scale")(name), s)
    c.norm(48)
    c.write()

    c = Case("fp8", "fnuz")
    for proj, dtype, value in [("gate_proj", E4M3Z, 0.0123456789), ("up_proj", E5M2Z, 1.732050808)]:
        name = f"{L}mlp.{proj}.weight"
        s = torch.tensor([value])
        add_rows(c, name, c.all_bytes(16, 48).view(dtype), s, companion("weight_scale")(name), s)
    c.norm(48)
    c.write()

    c = Case("fp8", "comfy_names")
    for stem, shape in [("img_attn.qkv", (48, 32)), ("img_attn.proj", (32, 31))]:
        base = f"double_blocks.0.{stem}"
        w, s = encode(c, *shape), c.scales(1)[0]
        add_rows(c, base + ".weight", w, s, base + ".scale_weight", s)
        c.add({base + ".scale_input": torch.tensor(0.25)})
        c.keep(base + ".bias", c.randn(shape[0], scale=0.1).to(BF16))
        assert same(c.expected[base + ".weight"], comfy(w, s))
        label = "comfy-kitchen (casts the scale first)"
        c.direct(base + ".weight", lambda d: comfy(w, s, d), label, must=False)
    c.keep("img_in.bias", c.randn(32, scale=0.1))
    c.write()

    c = Case("fp8", "comfy_scaled_fp8")  # the marker tensor of scaled_fp8 files disappears
    base = "model.diffusion_model.blocks.0.ffn.0"
    w, s = encode(c, 40, 24, E5M2), torch.tensor(0.0078431377)
    add_rows(c, base + ".weight", w, s, base + ".scale_weight", s)
    c.add({"model.diffusion_model.scaled_fp8": torch.zeros(2, dtype=U8).view(E5M2)})
    assert same(c.expected[base + ".weight"], comfy(w, s))
    c.direct(base + ".weight", lambda d: comfy(w, s, d), "comfy-kitchen (casts the scale first)", must=False)
    c.keep(base + ".bias", c.randn(40, scale=0.1).to(F16))
    c.write()

    c = Case("fp8", "qscale")
    for proj, s in [("wq", torch.tensor(0.00123456789)), ("wo", torch.tensor(0.0034567891).to(BF16))]:
        base = f"layers.0.attention.{proj}"
        w = encode(c, 34, 48)
        add_rows(c, base + ".weight", w, s, base + ".qscale_weight", s)
        c.add({base + ".qscale_act": torch.tensor(0.02).to(s.dtype)})
    c.norm(48, "norm.weight")
    c.write()

    for case, dtype in [("cast", E4M3), ("cast_e5m2", E5M2)]:
        c = Case("fp8", case)
        for name, w in [
            ("double_blocks.0.img_mlp.0.weight", c.all_bytes(32, 24)),
            ("double_blocks.0.img_mlp.0.bias", c.all_bytes(1, 32)[0]),
            ("img_in.weight", c.all_bytes(5, 7)),
        ]:
            w = w.view(dtype)
            c.add({name: w})
            c.expect(name, w.to(F32))  # what every loader of such files does
            c.direct(name, lambda d: w.to(d), "torch cast")
        c.norm(24, "img_norm.weight")
        c.write()


def expert_cases():
    c = Case("fp8", "experts3d", fp8_config([128, 128]))
    name = L + "mlp.experts.gate_up_proj"
    w = torch.stack([encode(c, 130, 136) for _ in range(2)])
    s = c.scales(2, 2, 2)
    c.add({name: w, name + "_scale_inv": s})

    def each(d):
        return torch.stack([ct_block(a, b, (128, 128), d) for a, b in zip(w, s)])

    c.expect(name, each(F32))
    assert same(c.expected[name], torch.stack([hf_padded(a, b, (128, 128)) for a, b in zip(w, s)]))
    c.direct(name, each, "compressed-tensors FP8BlockDequantizer, expert by expert")
    c.norm(136)
    c.write()

    c = Case("fp8", "experts3d_flat")
    name = L + "mlp.experts.down_proj"
    w, s = torch.stack([encode(c, 24, 40) for _ in range(3)]), c.scales(3)
    add_rows(c, name, w, s, name + "_scale_inv", s.view(3, 1, 1))
    name = L + "mlp.experts.gate_up_proj"
    w, s = torch.stack([encode(c, 22, 24) for _ in range(3)]), c.scales(3, 22, 1)
    add_rows(c, name, w, s, name + "_weight_scale", s)
    c.norm(24)
    c.write()


def exponent_cases():
    c = Case("fp8", "e8m0", fp8_config([128, 128], scale_fmt="ue8m0"))
    for name, shape, grid, exponents in [
        ("layers.0.attn.wq_a.weight", (8, 130), (1, 2), [0, 1]),
        ("layers.0.attn.wq_b.weight", (8, 130), (1, 2), [254, 255]),
        ("layers.0.attn.wo_a.weight", (130, 8), (2, 1), [127, 118]),
        ("layers.0.attn.wo_b.weight", (9, 33), (1, 1), [133]),
    ]:
        s = torch.tensor(exponents, dtype=U8).view(E8M0).reshape(grid)
        add_block(c, name, c.all_bytes(*shape).view(E4M3), s, (128, 128), companion("scale"))
    c.norm(33, "layers.0.attn_norm.weight")
    c.write()

    c = Case("fp8", "mxfp8_u8", fp8_config([1, 32]))
    c.config["quantization_config"]["quant_method"] = "mxfp8"
    name = L + "mlp.down_proj.weight"
    w, s = c.all_bytes(16, 96).view(E4M3), c.bytes(16, 3) % 40 + 100
    s[0] = torch.tensor([0, 1, 2])
    s[1] = torch.tensor([253, 254, 255])
    c.add({name: w, companion("weight_scale")(name): s})
    c.expect(name, hf(w, s))
    assert same(c.expected[name], modelopt_mxfp8(w, s))
    c.direct(name, lambda d: hf(w, s, d), "transformers Fp8Dequantize")
    c.direct(name, lambda d: modelopt_mxfp8(w, s, d), "modelopt MXFP8QTensor")
    c.norm(96)
    c.write()

    c = Case("fp8", "mxfp8_u8_ragged", fp8_config([1, 32]))  # K = 72: three scales a row, the last one for 8 values
    c.config["quantization_config"]["quant_method"] = "mxfp8"
    name = L + "mlp.up_proj.weight"
    w, s = encode(c, 9, 72), c.bytes(9, 3) % 16 + 112
    c.add({name: w, companion("weight_scale")(name): s})
    c.expect(name, modelopt_mxfp8(w, s))
    c.direct(name, lambda d: modelopt_mxfp8(w, s, d), "modelopt MXFP8QTensor")
    c.norm(72)
    c.write()

    # Stacked experts, named as in Inkling's MXFP8 files.
    c = Case("fp8", "mxfp8_u8_experts", fp8_config([1, 32]))
    c.config["quantization_config"]["quant_method"] = "mxfp8"
    for proj, shape in [("w13", (2, 10, 64)), ("w2", (2, 12, 32))]:
        name = f"{L}mlp.experts.{proj}_weight"
        w = torch.stack([encode(c, *shape[1:]) for _ in range(shape[0])])
        s = c.bytes(*shape[:2], shape[2] // 32) % 16 + 112
        c.add({name: w, name + "_scale": s})
        c.expect(name, hf(w, s))
        assert same(c.expected[name], modelopt_mxfp8(w, s))
        c.direct(name, lambda d: hf(w, s, d), "transformers Fp8Dequantize")
    c.norm(64)
    c.write()

    # 128-blocks whose exponents are typed U8: byte 255 is +inf here, NaN when typed F8_E8M0.
    c = Case("fp8", "block_u8_exponents", fp8_config([128, 128], scale_fmt="ue8m0"))
    for proj, exponents in [("q_proj", [0]), ("k_proj", [255]), ("v_proj", [254]), ("o_proj", [119])]:
        name = f"{L}self_attn.{proj}.weight"
        w, s = c.all_bytes(8, 32).view(E4M3), torch.tensor([exponents], dtype=U8)
        c.add({name: w, companion("weight_scale_inv")(name): s})
        c.expect(name, hf(w, s))
        c.direct(name, lambda d: hf(w, s, d), "transformers Fp8Dequantize")
    c.norm(32)
    c.write()


def hostile_case():
    odd = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45, -1e-40, 3e38, -3e38, 1.17549435e-38, 0.1, -0.37]
    c = Case("fp8", "hostile", fp8_config([16, 16]))
    name = L + "mlp.down_proj.weight"
    tiles = torch.stack([c.all_bytes(16, 16) for _ in range(12)])  # every byte in every block
    w = tiles.view(3, 4, 16, 16).transpose(1, 2).reshape(48, 64).contiguous().view(E4M3)
    add_block(c, name, w, torch.tensor(odd).view(3, 4), (16, 16), companion("weight_scale_inv"))
    name = L + "mlp.up_proj.weight"  # partial edge blocks
    add_block(c, name, c.all_bytes(20, 40).view(E4M3), torch.tensor(odd[:6]).view(2, 3), (16, 16), companion("weight_scale_inv"))
    c.norm(64)
    c.write()

    c = Case("fp8", "hostile_channel")
    rows = odd + [65504.0, 145.0, 146.5, 2.0**-24, 2.0**-25 * 1.5, 3.3895314e38, 2.0**-133, 2.0**-130 * 1.7]
    s = torch.tensor(rows)
    name = L + "self_attn.q_proj.weight"
    add_rows(c, name, c.all_bytes(len(rows), 256).view(E4M3), s.view(-1, 1), companion("weight_scale")(name), s.view(-1, 1))
    for proj, dtype in [("k_proj", BF16), ("v_proj", F16)]:
        name = f"{L}self_attn.{proj}.weight"
        s = torch.tensor([0.0, -0.0, float("nan"), float("inf"), 6e-8, -1e-40, 65504.0]).to(dtype)
        add_rows(c, name, c.all_bytes(7, 256).view(E4M3), s, companion("weight_scale")(name), s.view(-1, 1))
    c.norm(256)
    c.write()


def ct_cases():
    """Files as compressed-tensors itself writes them: config, compressor and decoder are all its own."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.entrypoints.convert import CompressedTensorsDequantizer
    from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams

    for case, preset, shape in [
        ("ct_float_quantized", "FP8_DYNAMIC", (48, 66)),
        ("ct_float_tensor", "FP8", (33, 50)),
        ("ct_float_block", "FP8_BLOCK", (130, 40)),
    ]:
        scheme = preset_name_to_scheme(preset, ["Linear"])
        scheme.format = "float-quantized"
        qc = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"], format="float-quantized",
                                quantization_status="compressed")
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                  "quantization_config": json.loads(json.dumps(qc.to_dict(), default=str))}
        c = Case("fp8", case, config)
        base = L + "mlp.down_proj"
        w = c.randn(*shape, scale=0.05).to(BF16)
        args = scheme.weights
        strategy = str(getattr(args.strategy, "value", args.strategy))
        if strategy == "channel":
            lo, hi = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
        elif strategy == "tensor":
            lo, hi = w.amin().view(1), w.amax().view(1)
        else:
            b = args.block_structure
            assert tuple(b) == (128, 128) and shape[1] <= 128
            lo = torch.stack([t.amin().view(1) for t in w.split(128)])
            hi = torch.stack([t.amax().view(1) for t in w.split(128)])
        scale, _ = calculate_qparams(lo, hi, args)
        assert scale.dtype == BF16
        compressor = BaseCompressor.get_value_from_registry("float-quantized")
        out = compressor.compress({"weight": w, "weight_scale": scale}, scheme)
        assert set(out) == {"weight", "weight_scale"} and out["weight"].dtype == E4M3, out.keys()
        c.add({f"{base}.{k}": v for k, v in out.items()})
        if preset == "FP8":
            c.add({base + ".input_scale": torch.tensor([0.0123]).to(BF16)})
        q, s = out["weight"], out["weight_scale"]
        c.expect(base + ".weight", dequantize(q, s.to(F32), args=args))
        c.direct(base + ".weight", lambda _: compressor.decompress(out, scheme)["weight"], "decompress", ("bf16",))
        c.norm(shape[1])
        c.keep("lm_head.weight", c.randn(6, shape[1], scale=0.02).to(BF16))
        c.write()
        # The whole-file decoder on the file just written. Its arithmetic is in the scale's dtype (BF16).
        for d, dtype in TARGETS.items():
            got = CompressedTensorsDequantizer(str(c.dir), dtype=dtype).process(load_file(c.dir / "model.safetensors"))
            want = load_file(c.dir / f"expected-{d}.safetensors")
            ok = same(got[base + ".weight"], want[base + ".weight"])
            if d == "bf16":
                assert ok
            elif not ok:
                print(f"    CompressedTensorsDequantizer {d}: {differing(got[base + '.weight'], want[base + '.weight'])}")


def transformers_case():
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    quantizer = Quantizer(weight_block_size=(128, 128))
    c = Case("fp8", "transformers_made", fp8_config([128, 128]))
    for name, shape in [(L + "mlp.up_proj.weight", (128, 128)), (L + "mlp.router.weight", (6, 20))]:
        out = Fp8Quantize(quantizer).convert({name: c.randn(*shape, scale=0.02).to(BF16)})
        if len(out) == 1:  # shapes that do not divide into blocks pass through
            c.keep(name, out[name])
            continue
        c.add(out)
        w, s = out[name], out[name + "_scale_inv"]
        assert w.dtype == E4M3 and s.dtype == F32 and companion("weight_scale_inv")(name) in out
        c.expect(name, Fp8Dequantize(quantizer).convert({"weight": w, "weight_scale_inv": s})["weight"])
        c.direct(name, lambda d: hf(w, s, d), "transformers Fp8Dequantize")
    c.norm(20)
    c.write()


def main():
    block_cases()
    flat_cases()
    expert_cases()
    exponent_cases()
    hostile_case()
    ct_cases()
    transformers_case()


if __name__ == "__main__":
    main()

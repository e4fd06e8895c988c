"""Golden torchao models with 4-bit weights. Run: `python torchao_int4.py`. It rewrites `../torchao/*int4*`.

torchao makes these with GPU libraries and has no CPU decoder for them. The classes, the configs, the saving and the metadata
are torchao's and transformers' own. What is written out here, from the sources named:
- mslk's row quantizer and its packing (the same as FBGEMM's fbgemm_gpu/experimental/gen_ai/quantize.py);
- the formula w = q * s + z, which is what torchao/prototype/gptq/api.py and that quantizer mean;
- PyTorch's packing for XPU (torch-xpu-ops, src/ATen/native/xpu/sycl/WeightInt4PackKernel.cpp) and for CUDA's tinygemm
  (aten/src/ATen/native/cuda/int4mm.cu, matrix_to_m16n8k16_Bint4_layout).
The codes of the last two are decoded before they are packed, by torchao's own functions.
"""

import importlib
import json

from directories import BF16, F16, F32, U8, Dir, differing, settle, tiny_llama
from torchao_cases import HOSTILE, L, norm, save_single, stored_in

import torch
from torchao.quantization import Int4PlainInt32Tensor, Int4Tensor, Int4TilePackedTo4dTensor, MappingType
from torchao.quantization.quant_api import Int4WeightOnlyConfig
from torchao.quantization.quant_primitives import (_choose_qparams_affine_tinygemm, _dequantize_affine_tinygemm,
                                                   _quantize_affine_tinygemm, choose_qparams_affine, dequantize_affine,
                                                   quantize_affine)
from torchao.quantization.utils import pack_tinygemm_scales_and_zeros
from transformers import AutoModelForCausalLM, TorchAoConfig

I8, I32 = torch.int8, torch.int32
int4_module = importlib.import_module("torchao.quantization.quantize_.workflows.int4.int4_tensor")


# ---------------------------------------------------------------- mslk, written out


def row_quantize_zp(w, group):
    """Codes -8..7, scales and zero points [groups, rows]; the zero point is what code 0 stands for."""
    codes, scales, zeros = [], [], []
    for part in w.to(F32).split(group, dim=-1):
        low, high = part.amin(1, keepdim=True), part.amax(1, keepdim=True)
        s = (high - low).clamp(min=1e-6) / 15
        codes.append((((part - low) / s).round().clamp(0, 15) - 8).to(I8))
        scales.append(s), zeros.append(low + s * 8)
    return torch.cat(codes, 1), torch.cat(scales, 1).t().contiguous(), torch.cat(zeros, 1).t().contiguous()


def row_quantize(w, group):
    """The symmetric one."""
    codes, scales = [], []
    for part in w.to(F32).split(group, dim=-1):
        s = part.abs().amax(1, keepdim=True).clamp(min=1e-6) / 8
        codes.append((part / s).round().clamp(-8, 7).to(I8))
        scales.append(s)
    return torch.cat(codes, 1), torch.cat(scales, 1).t().contiguous()


def pack_bytes(q):
    """The first of two codes is in the low bits; the result has the dtype of the codes, I8."""
    return (q[:, ::2] & 15) | (q[:, 1::2] << 4)


int4_module.int4_row_quantize_zp, int4_module.int4_row_quantize, int4_module.pack_int4 = row_quantize_zp, row_quantize, pack_bytes


# ---------------------------------------------------------------- Int4Tensor


def decode(t, dtype=F32):
    """w = q * s + z in `dtype`, the product rounded before the sum."""
    flat = t.qdata.view(U8).to(torch.int16)
    q = torch.stack([flat & 15, flat >> 4], -1).flatten(-2)
    q = torch.where(q > 7, q - 16, q).to(dtype)
    k, group = q.shape[-1], t.block_size[-1]
    s, z = (x.to(dtype).transpose(-1, -2).repeat_interleave(group, -1)[..., :k] for x in (t.scale, t.zero_point))
    return q * s + z


def expect(d, name, t):
    d.expect(name, decode(t))
    if t.scale.dtype != F32:
        got, want = decode(t, t.scale.dtype), decode(t).to(t.scale.dtype)
        d.notes.append(f"{name}: product and sum in {t.scale.dtype}: {differing(got, want)}")


def int4_cases():
    d = Dir("torchao", "tiny_int4")
    base = d.dir / "base"
    tiny_llama(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=BF16, quantization_config=TorchAoConfig(Int4WeightOnlyConfig(32)))
    for file in sorted(base.iterdir()):
        file.unlink()
    base.rmdir()
    for key, t in model.state_dict().items():
        expect(d, key, t) if isinstance(t, Int4Tensor) else d.keep(key, t)
    for size in range(9000, 20000, 170):
        for file in d.model.iterdir():
            file.unlink()
        model.save_pretrained(d.model, max_shard_size=size)
        index = json.loads((d.model / "model.safetensors.index.json").read_text())["weight_map"]
        if any(len({index[n] for n in stored_in(index, key)}) > 1 for key in d.f32):
            break
    loaded = AutoModelForCausalLM.from_pretrained(d.model, dtype=BF16)
    for key, t in loaded.state_dict().items():
        assert key not in d.f32 or torch.equal(decode(t), d.f32[key])
    d.write(lambda key: stored_in(index, key))

    d = Dir("torchao", "int4_layouts")
    f8 = torch.float8_e4m3fn
    w = {f"{L}self_attn.q_proj.weight": Int4Tensor.from_hp(d.randn(12, 128).to(BF16), [1, 128]),
         f"{L}self_attn.k_proj.weight": Int4Tensor.from_hp((d.randn(10, 96) + 0.5).to(F16), [1, 32]),
         f"{L}self_attn.v_proj.weight": Int4Tensor.from_hp((d.randn(10, 96) - 0.5).to(F32), [1, 32]),
         f"{L}self_attn.o_proj.weight": Int4Tensor.from_hp(d.randn(12, 128).to(BF16), [1, 128], activation_dtype=f8),
         f"{L}mlp.gate_proj.weight": Int4Tensor.from_hp(d.randn(7, 80).to(BF16), [1, 32]),  # the last group has 16 codes
         f"{L}mlp.experts.gate_up_proj": Int4Tensor.from_hp((d.randn(3, 8, 64) + 0.3).to(BF16), [1, 1, 32])}
    t = Int4Tensor.from_hp(d.randn(8, 64).to(BF16), [1, 32])  # the same bytes called U8
    w[f"{L}mlp.up_proj.weight"] = Int4Tensor(t.qdata.view(U8), t.scale, t.zero_point, [1, 32], t.shape)
    for key, t in w.items():
        expect(d, key, t)
    save_single(d, w, Int4WeightOnlyConfig(32), norm(d, 128))
    d.write()

    d = Dir("torchao", "int4_hostile")
    h = torch.tensor(HOSTILE)
    w = {}
    for key, dtype in [("q_proj", BF16), ("k_proj", F32)]:
        q = d.all_bytes(len(HOSTILE), 32).view(I8)
        w[f"{L}self_attn.{key}.weight"] = Int4Tensor(q, torch.stack([h, d.scales(12)]).to(dtype),
                                                     torch.stack([d.scales(12), h]).to(dtype), [1, 32], torch.Size([12, 64]))
    for key, t in w.items():
        expect(d, key, t)
    save_single(d, w, Int4WeightOnlyConfig(32))
    d.write()

    # AWQ: see int8_act_pre_scale.
    d = Dir("torchao", "int4_act_pre_scale")
    t = Int4Tensor.from_hp(d.randn(8, 64).to(BF16), [1, 32])
    t.act_pre_scale = d.scales(64, lo=-2, hi=2).to(BF16)
    key = f"{L}self_attn.q_proj.weight"
    d.expect(key, decode(t) * t.act_pre_scale.to(F32))
    save_single(d, {key: t}, Int4WeightOnlyConfig(32))
    d.write()


# ---------------------------------------------------------------- Int4PlainInt32Tensor


def plain_int32_cases():
    d = Dir("torchao", "int4_plain_int32")
    w = {}
    for key, dtype, n, k, group in [("q_proj", BF16, 10, 96, 32), ("k_proj", F16, 8, 128, 64)]:
        hp, block = (d.randn(n, k) + 0.4).to(dtype), [1, group]
        # The body of `_from_hp_xpu`, up to its packing.
        scale, zero = choose_qparams_affine(hp, MappingType.ASYMMETRIC, block, I32, 0, 15, 1e-6, None, I32)
        codes = quantize_affine(hp, block, scale, zero, I32, 0, 15)
        packed = (codes[:, 1::2] << 4 | codes[:, ::2]).to(U8)
        packed = packed.contiguous().view(I32)  # four bytes to a word, the first one lowest
        name = f"{L}self_attn.{key}.weight"
        w[name] = Int4PlainInt32Tensor(packed, scale.reshape(n, -1).t().contiguous(),
                                       zero.reshape(n, -1).t().contiguous().to(I8), block, hp.shape)
        own = dequantize_affine(codes, block, scale, zero, I32, 0, 15, output_dtype=dtype)
        f32 = dequantize_affine(codes, block, scale.to(F32), zero, I32, 0, 15, output_dtype=F32)
        d.expect(name, f32, own)
    save_single(d, w, Int4WeightOnlyConfig(32, int4_packing_format="plain_int32"), norm(d, 96))
    d.write()

    # For NPU the zero points are floats and the codes signed; how a word is packed is closed source.
    d = Dir("torchao", "int4_plain_int32_npu")
    key = f"{L}self_attn.q_proj.weight"
    t = Int4PlainInt32Tensor(d.all_bytes(8, 48).view(I32), d.scales(3, 8).to(BF16), d.randn(3, 8).to(BF16), [1, 32],
                             torch.Size([8, 96]))
    save_single(d, {key: t}, Int4WeightOnlyConfig(32, int4_packing_format="plain_int32"))
    reason = "Int4PlainInt32Tensor with float zero points is packed by Ascend NPU code whose layout is not published"
    unsupported(d, key, reason)


def unsupported(d, key, reason):
    settle(d.model / "model.safetensors")
    (d.dir / "unsupported.json").write_text(json.dumps({"tensor": key, "reason": reason}, indent=2) + "\n")
    print(f"{d.family}/{d.name}: unsupported")


# ---------------------------------------------------------------- Int4TilePackedTo4dTensor


def tile_pack(q, inner=8):
    """[n/8][k/(16 inner)][32][inner/2] words of eight codes. Lane t holds row t // 4 of a tile of eight; of each pair of
    16 columns it holds 2(t % 4), its neighbour, and both 8 further on."""
    n, k = q.shape
    out = torch.zeros(n // 8, k // (16 * inner), 32, inner // 2, dtype=torch.int64)
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # which of the lane's codes is in bits 0, 4, 8, ...
    for tile in range(n // 8):
        for outer in range(k // (16 * inner)):
            for lane in range(32):
                for pair in range(inner // 2):
                    base = (outer * inner + 2 * pair) * 16 + 2 * (lane % 4)
                    cols = [base + i for i in (0, 1, 8, 9, 16, 17, 24, 25)]
                    codes = [int(q[8 * tile + lane // 4, c]) for c in cols]
                    out[tile, outer, lane, pair] = sum(codes[v] << (4 * i) for i, v in enumerate(order))
    return torch.where(out >= 2**31, out - 2**32, out).to(I32)


def tile_case():
    """Sizes are padded with zeros, inputs to multiples of 1024 and outputs of 8, before anything else."""
    d = Dir("torchao", "int4_tile_packed_to_4d")
    w = {}
    for key, n, k, group in [("q_proj", 8, 128, 32), ("k_proj", 6, 1024, 128)]:
        hp = (d.randn(n, k) + 0.2).to(BF16)
        padded = torch.nn.functional.pad(hp, (0, -k % 1024, 0, -n % 8))
        scale, zero = _choose_qparams_affine_tinygemm(padded, MappingType.ASYMMETRIC, (1, group), I32, 0, 15,
                                                      scale_dtype=BF16, zero_point_dtype=BF16)
        codes = _quantize_affine_tinygemm(padded, [1, group], scale, zero, I32, 0, 15)
        rows = codes.shape[0]
        both = pack_tinygemm_scales_and_zeros(scale.reshape(rows, -1), zero.reshape(rows, -1), BF16)
        name = f"{L}self_attn.{key}.weight"
        w[name] = Int4TilePackedTo4dTensor(tile_pack(codes), both, [1, group], hp.shape)
        own = _dequantize_affine_tinygemm(codes, [1, group], scale, zero, I32, 0, 15, output_dtype=BF16)
        f32 = _dequantize_affine_tinygemm(codes, [1, group], scale.to(F32), zero.to(F32), I32, 0, 15, output_dtype=F32)
        d.expect(name, f32[:n, :k], own[:n, :k], "file")
    save_single(d, w, Int4WeightOnlyConfig(32, int4_packing_format="tile_packed_to_4d"), norm(d, 128))
    d.write()


if __name__ == "__main__":
    int4_cases()
    plain_int32_cases()
    tile_case()

"""Golden Marlin checkpoints: 4 bits in the order of tensor cores, as auto_gptq and autoawq pack them.

Usage: see ../README.md. Packed on CPU by auto_gptq 0.7.1 (`qlinear_marlin.QuantLinear.pack`) and autoawq 0.2.9
(`WQLinear_Marlin.from_linear`). Neither decodes on CPU; `unpack` undoes their `pack` step by step and must give back the
codes and scales that were packed, as must `unpack_scalar`, which says of one weight where it lies. Two more cases have the
label `marlin` and the ordinary words of GPTQ and AWQ: that is what gptqmodel writes and reads under it.
"""

import shutil
import sys

import gptq
import torch
from layout import Layout

F16, F32 = torch.float16, torch.float32
Q_PROJ = "model.layers.0.self_attn.q_proj"


def import_libraries():
    global auto_marlin, WQLinear_Marlin, WQLinear_GEMM, AwqConfig, QuantizeConfig, dequantize_gemm
    gptq.import_libraries()
    from awq.models._config import AwqConfig
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.modules.linear.marlin import WQLinear_Marlin
    from awq.utils.packing_utils import dequantize_gemm
    from gptqmodel.quantization import QuantizeConfig

    torch.cuda.get_device_capability = lambda *a: (8, 0)  # auto_gptq asks; packing needs no GPU
    auto_marlin = gptq.load_auto_gptq("qlinear_marlin")


def unpack(words, scales, k, n, group):
    """Codes [in, out] and scales [groups, out]: `QuantLinear.pack` backwards."""
    codes = torch.stack([words >> (4 * i) & 15 for i in range(8)], -1).reshape(k // 16, n * 16)
    perm = auto_marlin._perm
    back = torch.empty_like(codes).reshape(-1, perm.numel())
    back[:, perm] = codes.reshape(-1, perm.numel())
    q = back.reshape(k // 16, n // 16, 16, 16).permute(0, 2, 1, 3).reshape(k, n)
    # One group is permuted otherwise than several, also where the group size is written out and is `in`
    order = torch.tensor(auto_marlin._scale_perm if group != k else auto_marlin._scale_perm_single)
    s = torch.empty_like(scales).reshape(-1, len(order))
    s[:, order] = scales.reshape(-1, len(order))
    return q, s.reshape(scales.shape)


def unpack_scalar(words, i, j):
    """The code of input i and output j, from `_get_perms`: no tables."""
    row, col, tile = i % 16, j % 16, j // 16  # tiles of 16 x 16; four of them, 64 outputs, are one run of 1024 codes
    lane = col % 8 * 4 + row % 8 // 2  # the thread of the warp
    slot = col // 8 * 4 + row // 8 * 2 + row % 2  # its eight codes of one tile
    slot = [0, 4, 1, 5, 2, 6, 3, 7][slot]  # stored in the order 0 2 4 6 1 3 5 7
    word = tile // 4 * 128 + lane * 4 + tile % 4
    return int(words[i // 16, word]) >> (4 * slot) & 15


def put(c, parts, k, n, group, q, s, names):
    """q [in, out], s [groups, out]: what was packed. The value is `(code - 8) * scale`: exact in F32, one rounding."""
    words, scales = (parts[x] for x in names)
    assert words.dtype == torch.int32 and words.shape == (k // 16, n * 2) and scales.shape == s.shape
    got, got_s = unpack(words, scales, k, n, group)
    assert torch.equal(got.long(), q) and gptq.same(got_s, s)
    for i in range(0, k, 7):
        for j in range(n):
            assert unpack_scalar(words, i, j) == q[i, j], (i, j)
    c.add({f"{Q_PROJ}.{x}": t for x, t in parts.items()})
    f32 = ((got - 8).float() * got_s.float().repeat_interleave(group, 0)).t().contiguous()
    # `__hmul2` of code and scale in F16 (gptqmodel_ext/marlin/marlin_template.h)
    own = ((got - 8).half() * got_s.repeat_interleave(group, 0)).t().contiguous()
    c.decoded(f"{Q_PROJ}.weight", f32, own)


def random(c, k, n, group):
    q = torch.randint(0, 16, (k, n), generator=c.rng)
    s = c.scales(k // group, n, lo=-10, hi=-6).half()
    layer = torch.nn.Linear(k, n, bias=True).half()
    layer.weight.data = ((q - 8).float() * s.float().repeat_interleave(group, 0)).half().t().contiguous()
    layer.bias.data = c.randn(n).half()
    return q, s, layer


def auto_gptq(name, k, n, group, label, shards=1, workspace=False):
    """`label`: `is_marlin_format` as auto_gptq has it, or `checkpoint_format` as its successors. auto_gptq does not save the
    workspace; published files have it: zeros for the kernel's locks, put here by hand."""
    c = Layout("marlin", name)
    q, s, layer = random(c, k, n, k if group == -1 else group)
    module = auto_marlin.QuantLinear(4, k if group == -1 else group, k, n, True)
    module.pack(layer, s.t().contiguous())
    parts = {"B": module.B.clone(), "s": module.s.clone()}
    if workspace:
        parts["workspace"] = module.workspace.clone()
    c.keep(f"{Q_PROJ}.bias", module.bias.clone())
    put(c, parts, k, n, k if group == -1 else group, q, s, ("B", "s"))
    quantization = gptq.auto_gptq_json(4, group, True, False)
    if label == "is_marlin_format":
        quantization["is_marlin_format"] = True
    else:
        del quantization["is_marlin_format"]
        quantization["checkpoint_format"] = "marlin"
    c.config = gptq.llama_config(quantization)
    c.sidecars["quantize_config.json"] = quantization
    c.write(shards=shards)


def autoawq(name, k, n, group, hostile=False):
    """`hostile`: the codes are packed with scales that give them, and the scales that are stored are packed beside them."""
    c = Layout("marlin", name)
    q, s, layer = random(c, k, n, group)
    module = WQLinear_Marlin.from_linear(layer, 4, group, scales=s.t().contiguous(), zeros=None)
    parts = {"qweight": module.qweight.clone(), "scales": module.scales.clone()}
    if hostile:
        s = gptq.hostile_scales(k // group, n, F16)
        parts["scales"] = WQLinear_Marlin.from_linear(layer, 4, group, scales=s.t().contiguous(), zeros=None).scales.clone()
    c.keep(f"{Q_PROJ}.bias", module.bias.clone())
    put(c, parts, k, n, group, q, s, ("qweight", "scales"))
    config = AwqConfig(version="marlin", q_group_size=group, zero_point=False)
    c.config = gptq.llama_config(config.to_transformers_dict())
    c.write()


def labelled_gptq():
    """gptqmodel: `checkpoint_format: marlin` over GPTQ's own words, zero points of version 1 (nn_modules/qlinear/mlx.py,
    `GPTQMarlinMlxQuantLinear`; marlin.py repacks when it loads). `qweight` in the file, not `B`, says so."""
    c = Layout("marlin", "gptqmodel_gptq_words")
    k, n, group = 64, 64, 32
    q, s, layer = random(c, k, n, group)
    g_idx = (torch.arange(k) // group).int()
    z = torch.full((k // group, n), 8)
    module = gptq.pack_gptqmodel(4, group, True, False, "gptq", q, z, s, g_idx, None)
    parts = gptq.buffers(module)
    c.add({f"{Q_PROJ}.{x}": t for x, t in parts.items()})
    f32, own = (gptq.decode(parts, 4, k, n, group, True, True, d).t().contiguous() for d in (s.float(), s))
    c.decoded(f"{Q_PROJ}.weight", f32, own)
    c.config = gptq.llama_config(gptq.gptqmodel_json(4, group, True, False, "marlin"))
    c.write()


def labelled_awq():
    """The same of AWQ: words of `gemm`, with zero points (nn_modules/qlinear/marlin_awq.py). autoawq's have no `qzeros`."""
    c = Layout("marlin", "gptqmodel_awq_words")
    k, n, group = 64, 64, 32
    q, s, layer = random(c, k, n, group)
    z = torch.randint(0, 16, s.shape, generator=c.rng)
    layer = torch.nn.Linear(k, n, bias=False)
    step = lambda t: t.repeat_interleave(group, 0)
    layer.weight.data = ((q - step(z)).float() * step(s.float())).t().contiguous()
    module = WQLinear_GEMM.from_linear(layer, 4, group, scales=s, zeros=z.float())
    parts = {x: getattr(module, x).detach().clone() for x in ("qweight", "qzeros", "scales")}
    c.add({f"{Q_PROJ}.{x}": t for x, t in parts.items()})
    f32, own = (dequantize_gemm(parts["qweight"], parts["qzeros"], d, 4, group).t().contiguous() for d in (s.float(), s))
    assert torch.equal(f32.t(), (q - step(z)).float() * step(s.float()))
    c.decoded(f"{Q_PROJ}.weight", f32, own)
    config = QuantizeConfig(bits=4, group_size=group, sym=False, desc_act=False, format="marlin", method="awq",
                            offload_to_disk=False)
    c.config = gptq.llama_config(config.to_dict() | {"meta": {"quantizer": ["gptqmodel:7.7.0"]}})
    c.write()


def main():
    import_libraries()
    shutil.rmtree(gptq.DATA / "marlin", ignore_errors=True)
    auto_gptq("gptq_g128", 256, 256, 128, "is_marlin_format", shards=2)
    auto_gptq("gptq_per_channel", 128, 256, -1, "checkpoint_format", workspace=True)
    autoawq("awq_g128", 256, 64, 128)
    autoawq("awq_g128_one_group", 128, 128, 128)
    autoawq("awq_g32", 64, 64, 32)
    autoawq("awq_hostile", 64, 64, 32, hostile=True)
    autoawq("awq_hostile_one_group", 32, 64, 32, hostile=True)
    labelled_gptq()
    labelled_awq()


if __name__ == "__main__":
    sys.exit(main())

"""What modelopt.py and modelopt_units.py share: modelopt's quantizers, exporter and decoders, on CPU."""

import copy
import json
import os
import tempfile
from pathlib import Path

import fp8  # first: sets torch to eager
import torch
from fp8 import BF16, F32, U8
from modelcase import ModelCase
from safetensors.torch import load_file

import modelopt.torch.quantization as mtq
from modelopt.torch.export import export_hf_checkpoint, quant_utils
from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format
from modelopt.torch.export.unified_export_hf import _export_quantized_weight
from modelopt.torch.quantization import tensor_quant
from modelopt.torch.quantization.qtensor import FP8QTensor, INT8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor

torch.set_num_threads(1)
DROPPED = ("input_scale", "k_scale", "v_scale", "k_bias", "v_bias", "pre_quant_scale", "weight_scale", "weight_scale_2", "lora_a", "lora_b")


def _fake_nvfp4(inputs, block_size, amax, *_bits):
    """AWQ's search quantizes activations and weights on the fly, which modelopt does in CUDA. This is what it computes."""
    q, s, s2 = NVFP4QTensor.quantize(inputs, block_size, None, amax.float() / (6 * 448))
    return q.dequantize(inputs.dtype, scale=s, double_scale=s2, block_sizes={-1: block_size})


tensor_quant.dynamic_block_quantize_op = _fake_nvfp4


def config(name, *edits, kv=None, **algorithm):
    """One of modelopt's own configs; `edits` are (pattern, cfg) pairs put behind its rules, the last match winning."""
    c = copy.deepcopy(getattr(mtq, name))
    if kv:
        c = mtq.update_quant_cfg_with_kv_cache_quant(c, copy.deepcopy(getattr(mtq, kv)["quant_cfg"]))
    for pattern, cfg in edits:
        rule = {"enable": cfg} if isinstance(cfg, bool) else {"cfg": cfg}
        c["quant_cfg"].append({"quantizer_name": pattern} | rule)
    if algorithm:
        c["algorithm"] = {"method": c["algorithm"]} if isinstance(c["algorithm"], str) else c["algorithm"]
        c["algorithm"].update(algorithm)
    return c


def fill(case, model):
    """Weights of our own; norms that differ by channel give AWQ something to smooth."""
    for name, p in sorted(model.named_parameters()):
        t = case.randn(*p.shape)
        p.data = (torch.exp2(t) if "norm" in name else t * 0.05).to(BF16)
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def export_model(case, model, cfg):
    """Quantizes and exports a transformers model; returns what lies on disk: tensors, config.json, hf_quant_config.json."""
    fill(case, model)
    ids = torch.randint(0, model.config.vocab_size, (4, 16), generator=case.rng)
    before = {k: v.detach().clone() for k, v in model.state_dict().items()}
    with torch.inference_mode():
        model = mtq.quantize(model.to(BF16).eval(), cfg, lambda m: [m(ids)])
        with tempfile.TemporaryDirectory() as tmp:
            export_hf_checkpoint(model, export_dir=tmp)
            tensors = load_file(Path(tmp) / "model.safetensors")
            configs = {f: json.loads((Path(tmp) / f).read_text()) for f in ("config.json", "hf_quant_config.json")}
            assert sorted(os.listdir(tmp)) == ["config.json", "generation_config.json", "hf_quant_config.json", "model.safetensors"]
    return tensors, configs, before


class Tree(torch.nn.Module):
    """Linear layers under given names, all called by forward."""

    def __init__(self, shapes):
        super().__init__()
        for name, (n, k) in shapes.items():
            *path, last = name.split(".")
            node = self
            for part in path:
                if part not in node._modules:
                    node.add_module(part, torch.nn.Module())
                node = node._modules[part]
            node.add_module(last, torch.nn.Linear(k, n, bias=False, dtype=BF16))
        self.names = list(shapes)

    def forward(self, seed):
        g = torch.Generator().manual_seed(seed)
        for name in self.names:
            layer = self.get_submodule(name)
            layer(torch.randn(8, layer.in_features, generator=g).to(BF16))


def export_layers(case, shapes, cfg):
    """The same for single layers, through the exporter's own functions."""
    tree = Tree(shapes)
    before = fill(case, tree)
    with torch.inference_mode():
        tree = mtq.quantize(tree, cfg, lambda m: m(1))
        quant = quant_utils.get_quant_config(tree)
        for name in shapes:
            _export_quantized_weight(tree.get_submodule(name), BF16)
        tensors = quant_utils.postprocess_state_dict(tree.state_dict(), 448, None)
    quant = json.loads(json.dumps(quant))
    configs = {"config.json": {"quantization_config": convert_hf_quant_config_format(quant)}, "hf_quant_config.json": quant}
    return {k: v.clone() for k, v in tensors.items()}, configs, before


def int4(w, scale, dtype):
    """modelopt has no decoder for what `pack_int4_in_uint8` (export/quant_utils.py) packs: a byte holds two rows of one
    column, the even row in its low nibble, both in two's complement. `weight / scale[:, k // group]` was rounded to it."""
    n, k = w.shape[-2] * 2, w.shape[-1]
    q = torch.stack([w & 15, w >> 4], dim=-2).reshape(*w.shape[:-2], n, k).to(torch.int8)
    q = torch.where(q > 7, q - 16, q)
    group = k // scale.shape[-1]
    out = q.to(dtype) * scale.to(dtype).repeat_interleave(group, dim=-1)
    if dtype == F32 and scale.isfinite().all() and (scale > 0).all():  # the library's packer gives the same bytes again
        assert torch.equal(quant_utils.pack_int4_in_uint8(out, scale, group), w)
    return out


def decode(algo, w, scale, scale_2, dtype=F32):
    """One weight by modelopt's decoder of its class. Stacks of experts by `bmm` (below)."""
    algo = algo.upper()
    if algo in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"):
        if scale.dim() == 1 and scale.numel() > 1:
            scale = scale.view(-1, *[1] * (w.dim() - 1))
        return FP8QTensor(w.shape, dtype, w).dequantize(dtype, scale=scale)
    if algo == "FP8_PB_WO":
        grid = [-(-n // 128) for n in w.shape]
        return FP8QTensor(w.shape, dtype, w).dequantize(dtype, scale=scale.reshape(grid), block_sizes={-1: 128, -2: 128})
    if algo == "MXFP8":
        return MXFP8QTensor(w.shape, dtype, w).dequantize(dtype, scale=scale)
    if algo in ("W8A16", "W8A8_SQ_PER_CHANNEL"):
        return INT8QTensor(w.shape, dtype, w).dequantize(dtype, scale=scale.view(-1, 1))
    if algo in ("W4A16_AWQ", "W4A8_AWQ"):  # weight_scale_2 of W4A8_AWQ belongs to the FP8 the layer computes in
        return int4(w, scale, dtype)
    shape = torch.Size([*w.shape[:-1], w.shape[-1] * 2])
    block = {-1: shape[-1] // scale.shape[-1]}
    if algo in ("MXFP4", "W4A8_MXFP4_FP8"):
        return MXFP4QTensor(shape, dtype, w).dequantize(dtype, scale=scale, block_sizes=block)
    assert "NVFP4" in algo, algo
    if w.dim() == 3 and scale_2.dim():
        scale_2 = scale_2.view(-1, 1, 1)
    return NVFP4QTensor(shape, dtype, w).dequantize(dtype, scale=scale, double_scale=scale_2, block_sizes=block)


def bmm(algo, w, scale, scale_2, dtype=F32):
    """Experts of gpt-oss and Llama 4 are stored `[expert, in, out]`; the exporter packs their transpose and turns it back
    (`maybe_transpose_expert_weight_dimensions`)."""
    if "NVFP4" not in algo:
        return decode(algo, w, scale, scale_2, dtype)
    return decode(algo, w.mT.contiguous(), scale.mT.contiguous(), scale_2, dtype).mT.contiguous()


def low_rank(case, name, a, b):
    """lora_b @ lora_a. modelopt leaves the order of the sum to torch; this sums in F64 and rounds once."""
    exact = (b.double() @ a.double()).to(F32)
    assert torch.equal(exact, torch.stack([(b[:, r, None].double() * a[r].double()) for r in range(len(a))]).sum(0).to(F32))
    case.notes.append(f"{name}: lora_b @ lora_a by torch in F32: {fp8.differing(b.to(F32) @ a.to(F32), exact)} from the sum in F64")
    return exact


def expect_all(case, tensors, configs, before=None):
    """Puts the tensors of an export and what they decode to into the case."""
    quant = configs["hf_quant_config.json"]["quantization"]
    layers = quant.get("quantized_layers")
    case.add(tensors)
    for name, t in tensors.items():
        stacked = name + "_weight_scale" in tensors
        module = name.removesuffix(".weight")
        scale = tensors.get(name + ("_weight_scale" if stacked else "_scale"))
        if scale is None:
            if not name.endswith(DROPPED):
                case.expected[name] = t
            continue
        algo = layers[module]["quant_algo"] if layers else quant["quant_algo"]
        scale_2 = tensors.get(name + ("_weight_scale_2" if stacked else "_scale_2"))
        one = bmm if stacked else decode
        value = one(algo, t, scale, scale_2)
        case.expect(name, value)
        if algo not in ("W4A16_AWQ", "W4A8_AWQ"):
            case.own(name, one(algo, t, scale, scale_2, BF16), "bf16", f"modelopt {algo}")
        for lora in (module + ".weight_quantizer._svdquant_lora_", module + ".svdquant_lora_"):
            if lora + "a" in tensors:  # SVDQuantLinear.fold_weight: weight + lora_b @ lora_a
                value = value + low_rank(case, name, tensors[lora + "a"], tensors[lora + "b"])
        pqs = tensors.get(module + ".pre_quant_scale")
        if pqs is not None:  # export/quant_utils.py _update_pre_quant_scale: weight in F32 times the scale in F32
            smoothed, value = value, value * pqs.to(F32)[None, :]
            if before:
                near = [float((v - before[name].to(F32)).norm() / before[name].to(F32).norm()) for v in (value, smoothed)]
                assert near[0] < 0.2, (name, near)
                case.notes.append(f"{name}: relative distance to the weight before quantization {near[0]:.3f}, without pre_quant_scale {near[1]:.3f}")
        case.expect(name, value)


def sidecars(case, configs, which=("config.json", "hf_quant_config.json")):
    """`which` of the two configs say how the model is quantized; config.json is always there."""
    main = {k: v for k, v in configs["config.json"].items() if k != "quantization_config"}
    if "config.json" in which:
        main["quantization_config"] = configs["config.json"]["quantization_config"]
    case.sidecar("config.json", main)
    if "hf_quant_config.json" in which:
        case.sidecar("hf_quant_config.json", configs["hf_quant_config.json"])


__all__ = ["ModelCase", "U8", "config", "decode", "expect_all", "export_layers", "export_model", "sidecars"]

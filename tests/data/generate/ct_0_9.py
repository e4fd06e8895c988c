"""Golden sparse models, and old pack-quantized ones, as compressed-tensors 0.9.4 wrote and read them (CPU).

Run: `PYTHONPATH=<compressed-tensors 0.9.4> python ct_0_9.py` (see ../README.md). It rewrites `sparse_*`, `pack_0_9_*`.
"""

import json
import shutil
import tempfile
from pathlib import Path

from dirs import META, DirCase, check, save_file

import compressed_tensors
import torch
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.compressors.quantized_compressors.pack_quantized import unpack_from_int32
from compressed_tensors.config import BitmaskConfig, Sparse24BitMaskConfig
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams
from compressed_tensors.utils import unpack_bitmasks

from fp8 import BF16, E4M3, F16, F32, U8, same

assert compressed_tensors.__version__ == "0.9.4"
FAMILY = "compressed_tensors"
L = "model.layers.0."
Q, K, UP, DOWN = L + "self_attn.q_proj", L + "self_attn.k_proj", L + "mlp.up_proj", L + "mlp.down_proj"


def compressor(name, config=None):
    return BaseCompressor.load_from_registry(name, config=config)


def config_of(sparsity=None, groups=None, format=None):
    q = groups and QuantizationConfig(config_groups=groups, ignore=["lm_head"], quantization_status="compressed", format=format)
    with tempfile.TemporaryDirectory() as d:
        (Path(d) / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
        ModelCompressor(sparsity_config=sparsity, quantization_config=q).update_config(d)
        return json.loads((Path(d) / "config.json").read_text())


def prune(c, w, share=0.6):
    """Unstructured: rows of every density, one of them empty and one full."""
    keep = torch.rand(w.shape, generator=c.rng) > share
    keep[1], keep[2] = False, True
    return torch.where(keep, w, torch.zeros_like(w))


def prune_24(w):
    rank = w.abs().float().view(-1, 4).argsort(dim=1, descending=True, stable=True)
    mask = torch.zeros(rank.shape, dtype=torch.bool).scatter_(1, rank[:, :2], True)
    return torch.where(mask.view(w.shape), w, torch.zeros_like(w))


def decompressed(c, tool):
    """What the library makes of the files (its reader puts `.weight` behind every prefix)."""
    return dict(tool.decompress(str(c.model)))


def sparse_cases():
    for case, tool, config, make in [
        ("sparse_bitmask", "sparse-bitmask", BitmaskConfig(targets=["Linear"], ignore=["lm_head"], global_sparsity=0.6), prune),
        (
            "sparse_24",
            "sparse-24-bitmask",
            Sparse24BitMaskConfig(targets=["Linear"], ignore=["lm_head"], global_sparsity=0.5),
            lambda c, w: prune_24(w),
        ),
    ]:
        tool = compressor(tool, config)
        c = DirCase(FAMILY, case, config_of(config))
        state = {}
        for base, shape, dtype in [(Q, (12, 64), BF16), (K, (9, 44), F16), (UP, (16, 96), BF16), (DOWN, (7, 36), F16)]:
            state[base + ".weight"] = make(c, c.randn(*shape, scale=0.05).to(dtype))
        c.add(tool.compress(state))
        c.expected.update({k: v.clone() for k, v in state.items()})
        c.norm(64)
        c.keep("lm_head.weight", c.randn(6, 64, scale=0.02).to(BF16))
        finish(c, tool, state)

    # The oldest files keep `.weight` in the prefix: `X.weight.compressed`.
    tool = compressor("sparse-bitmask", BitmaskConfig())
    c = DirCase(FAMILY, "sparse_bitmask_weight_prefix", config_of(BitmaskConfig(global_sparsity=0.6)))
    for base, shape in [(Q, (10, 33)), (UP, (8, 40))]:
        w = prune(c, c.randn(*shape, scale=0.05).to(BF16))
        c.add(tool.compress_weight(base + ".weight", w))
        c.expected[base + ".weight"] = w
    c.norm(40)
    finish(c, tool, None)


def finish(c, tool, state):
    """Plain sparse weights keep their dtype: nothing in the expected files is rounded."""
    shutil.rmtree(c.dir, ignore_errors=True)
    c.model.mkdir(parents=True)
    save_file({k: v.contiguous().clone() for k, v in sorted(c.tensors.items())}, c.model / "model.safetensors", META)
    save_file({k: v.contiguous().clone() for k, v in c.expected.items()}, c.dir / "expected-f32.safetensors", META)
    (c.model / "config.json").write_text(json.dumps(c.config, indent=2, sort_keys=True) + "\n")
    if state:
        got = decompressed(c, tool)
        for name, w in c.expected.items():
            assert same(got[name], w), name
    else:
        for name in c.expected:
            if name + ".compressed" in c.tensors:
                parts = {k: c.tensors[f"{name}.{k}"] for k in tool.compression_param_names}
                assert same(tool.decompress_weight(parts), c.expected[name])
    check(c.dir)
    print(f"{FAMILY}/{c.dir.name}: {sum(f.stat().st_size for f in c.dir.rglob('*') if f.is_file())} bytes")


def fp8_cases():
    """Sparsity around FP8 values: scatter them, then multiply by the scale."""
    for case, name, config, strategy in [
        (
            "sparse_bitmask_fp8",
            "sparse-bitmask",
            BitmaskConfig(targets=["Linear"], ignore=["lm_head"], global_sparsity=0.6),
            "tensor",
        ),
        (
            "sparse_24_fp8",
            "sparse-24-bitmask",
            Sparse24BitMaskConfig(targets=["Linear"], ignore=["lm_head"], global_sparsity=0.5),
            "channel",
        ),
    ]:
        args = QuantizationArgs(num_bits=8, type="float", strategy=strategy)
        inputs = QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True)
        scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=inputs)
        tool, quantizer = compressor(name, config), compressor("float-quantized")
        c = DirCase(FAMILY, case, config_of(config, {"group_0": scheme}, "float-quantized"))
        for base, shape in [(Q, (12, 64)), (UP, (8, 44))]:
            w = c.randn(*shape, scale=0.05).to(BF16)
            w = prune(c, w) if name == "sparse-bitmask" else prune_24(w)
            dims = {"dim": 1, "keepdim": True} if strategy == "channel" else {}
            scale, _ = calculate_qparams(w.amin(**dims), w.amax(**dims), args)
            q = quantizer.compress_weight(weight=w, scale=scale, quantization_args=args)["weight"]
            assert q.dtype == E4M3
            parts = tool.compress({base + ".weight": q})
            c.add(parts | {base + ".weight_scale": scale})
            # values that underflow are not stored; 2:4 stores two of four whatever they are
            full = torch.zeros(shape, dtype=U8)
            mask = unpack_bitmasks(parts[base + ".bitmask"], list(shape))
            full[mask] = parts[base + ".compressed"].view(U8).flatten()
            again = tool.decompress_weight({k: parts[f"{base}.{k}"] for k in tool.compression_param_names}) if can(tool) else None
            if again is not None:
                assert same(again, full.view(E4M3))
            c.expect(base + ".weight", dequantize(full.view(E4M3), scale.to(F32), args=args))
            c.library(base + ".weight", dequantize(full.view(E4M3), scale, args=args), "dequantize")
        c.norm(64)
        c.keep("lm_head.weight", c.randn(6, 64, scale=0.02).to(BF16))
        c.write()


def can(tool):
    """Decompressing 2:4 FP8 ends in `.cuda()`."""
    return "24" not in type(tool).__name__


def packed_cases():
    """What only that version can decode: a group larger than the row, groups of different sizes in `weight_g_idx`."""
    tool = compressor("pack-quantized")
    c = DirCase(FAMILY, "pack_0_9_groups")
    groups = {}
    for i, (base, shape, sizes) in enumerate([(Q, (9, 24), None), (UP, (6, 64), (40, 24)), (DOWN, (5, 96), (8, 56, 32))]):
        order = "group" if sizes else None
        a = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=32, actorder=order)
        groups[f"group_{i}"] = QuantizationScheme(targets=[base], weights=a)
        w, g_idx = c.randn(*shape, scale=0.05).to(BF16), None
        scale = calculate_qparams(w.amin(1, keepdim=True), w.amax(1, keepdim=True), a)[0]
        if sizes:
            g_idx = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(torch.int32)
            g_idx = g_idx[torch.randperm(shape[1], generator=c.rng)]
            scale = (scale * torch.linspace(1, 0.5, len(sizes))).to(BF16)
        parts = tool.compress_weight(w, scale, a, g_idx=g_idx) | {"weight_scale": scale}
        if g_idx is not None:
            parts["weight_g_idx"] = g_idx
        c.add({f"{base}.{k}": v for k, v in parts.items()})
        wide = parts | {"weight_scale": scale.to(F32)}
        if not sizes:
            c.expect(base + ".weight", tool.decompress_weight(wide, a))
            c.library(base + ".weight", tool.decompress_weight(parts, a), "decompress 0.9.4")
            continue
        # `decompress_weight` infers the group size as columns / groups, of which it only asks that it divides the columns
        assert shape[1] % len(sizes) == 0
        c.expect(base + ".weight", tool.decompress_weight(wide, a))
        c.library(base + ".weight", tool.decompress_weight(parts, a), "decompress 0.9.4")
        q = unpack_from_int32(parts["weight_packed"], 4, shape).to(F32)
        assert same(c.expected[base + ".weight"], q * scale.to(F32)[:, g_idx.long()])
    c.config = config_of(None, groups, "pack-quantized")
    c.norm(64)
    c.write()


if __name__ == "__main__":
    sparse_cases()
    fp8_cases()
    packed_cases()

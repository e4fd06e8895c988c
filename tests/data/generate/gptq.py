"""Golden GPTQ checkpoints: packed and dequantized by gptqmodel 7.7.0 and auto_gptq 0.7.1 on CPU.

Usage: see ../README.md. Writes ../gptq/<case>/ and prints the zero-point table of `v1_wrap`.
"""

import importlib.util
import json
import math
import os
import shutil
import sys
import zlib
from pathlib import Path

os.environ["GPTQMODEL_DISABLE_PACK_EXT"] = "1"  # python packer, no C++ build
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import torch
from safetensors.torch import load_file, save_file

DATA = Path(__file__).resolve().parent.parent
TARGETS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
BITS_OF = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
QUIET_NAN = {torch.float32: 0x7FC00000, torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}
DTYPE_NAME = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}

# Scale bit patterns that break naive arithmetic: zeros, both signs, subnormals, largest finite,
# infinities, quiet/signalling NaN with payload, and (f32, bf16) ties and overflows of the narrower types.
HOSTILE = {
    torch.float16: [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x8400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00,
                    0x7E00, 0xFE00, 0x7FFF, 0x7C01, 0x3C00, 0xBC00, 0x3C01, 0x4248, 0x1400, 0x6BFF],
    torch.bfloat16: [0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0,
                     0xFFC0, 0x7FFF, 0x7F81, 0x3F80, 0xBF80, 0x3F81, 0x3300, 0x3301, 0x3380, 0x3880, 0x477F,
                     0x4780, 0xBDCC],
    torch.float32: [0x00000000, 0x80000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF,
                    0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x3F800000, 0xBF800000,
                    0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x3F801000, 0x3F803000, 0x3F800FFF,
                    0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001, 0x33BFFFFF, 0x7F7F8000, 0x7F7F7FFF,
                    0x3DCCCCCD, 0x00008000, 0x00018000, 0x387FE000],
}


# ---- shared with awq.py -------------------------------------------------------------------------------------------

def hide_generators():
    """This directory holds files named like the libraries (awq.py): keep it off the import path."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != here]


def rng_for(case):
    return np.random.RandomState(zlib.crc32(case.encode()))


def same(a, b):
    """Bitwise equality; NaN equals NaN of any payload."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    nan = torch.isnan(a)
    if not torch.equal(nan, torch.isnan(b)):
        return False
    bits = BITS_OF[a.dtype]
    return torch.equal(a.contiguous().view(bits)[~nan], b.contiguous().view(bits)[~nan])


def canonical_nan(t):
    """NaN payloads depend on the CPU and on torch's vector width; the goldens hold the positive quiet one."""
    bits = t.contiguous().clone().view(BITS_OF[t.dtype])
    bits[torch.isnan(t)] = QUIET_NAN[t.dtype]
    return bits.view(t.dtype)


def save(path, tensors, metadata):
    """safetensors' own writer, then `__metadata__` sorted: its key order is random otherwise."""
    save_file({k: v.contiguous() for k, v in tensors.items()}, str(path), metadata=metadata)
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size:])
    path.chmod(0o644)


def save_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def llama_config(quantization, dtype=torch.float16):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": DTYPE_NAME[dtype],
            "quantization_config": quantization}


def norm_weight(rng, n, dtype):
    return torch.from_numpy(rng.uniform(0.5, 1.5, n)).to(dtype)


def hostile_scales(groups, n, dtype):
    """The patterns above, every group starting elsewhere so that each meets many codes."""
    values = HOSTILE[dtype]
    width = {torch.float32: np.uint32}.get(dtype, np.uint16)
    table = np.array([[values[(g * 7 + c) % len(values)] for c in range(n)] for g in range(groups)], dtype=width)
    return torch.from_numpy(table.view(np.int32 if width is np.uint32 else np.int16).copy()).view(dtype)


def write_expected(out, weights, kept):
    """`weights`: name -> f32 [out, in]. One rounding per target; everything else unchanged."""
    for label, dtype in TARGETS.items():
        tensors = {name: canonical_nan(w.to(dtype)) for name, w in weights.items()}
        save(out / f"expected-{label}.safetensors", tensors | kept, {"format": "pt"})


def fresh(family, case):
    out = DATA / family / case
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return out


def report(family):
    total = 0
    for case in sorted((DATA / family).iterdir()):
        size = sum(f.stat().st_size for f in case.iterdir())
        assert size < 120_000, (case, size)
        total += size
        print(f"case {family}/{case.name}: {size} bytes")
    print(f"total {family}: {total} bytes")


# ---- the libraries ------------------------------------------------------------------------------------------------

def load_auto_gptq(name):
    """auto_gptq's package __init__ wants old peft/transformers; the layer files stand alone."""
    spec = importlib.util.find_spec("auto_gptq")
    assert spec, "put auto_gptq 0.7.1 on PYTHONPATH"
    path = Path(spec.submodule_search_locations[0]) / "nn_modules" / "qlinear" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_libraries():
    global QuantizeConfig, FORMAT, TorchLinear, model_utils, packing, dequant, auto_cuda, auto_cuda_old
    hide_generators()
    import gptqmodel
    assert gptqmodel.__version__ == "7.7.0", gptqmodel.__version__
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import FORMAT, QuantizeConfig
    from gptqmodel.utils import model as model_utils
    from gptqmodel.utils import model_dequant as dequant
    from gptqmodel.utils import packing
    auto_cuda = load_auto_gptq("qlinear_cuda")
    auto_cuda_old = load_auto_gptq("qlinear_cuda_old")


def gptqmodel_config(bits, group, sym, act, fmt):
    return QuantizeConfig(bits=bits, group_size=group, sym=sym, desc_act=act, act_group_aware=False, format=fmt,
                          offload_to_disk=False)


def gptqmodel_json(bits, group, sym, act, fmt):
    """What gptqmodel saves, with `meta` cut down to what says who wrote it."""
    value = gptqmodel_config(bits, group, sym, act, fmt).to_dict()
    value["meta"] = {"quantizer": ["gptqmodel:7.7.0"]}
    return value


def auto_gptq_json(bits, group, sym, act):
    """auto_gptq 0.7.1 `BaseQuantizeConfig.to_dict`."""
    return {"bits": bits, "group_size": group, "damp_percent": 0.01, "desc_act": act, "static_groups": False,
            "sym": sym, "true_sequential": True, "model_name_or_path": None, "model_file_base_name": None,
            "is_marlin_format": False, "quant_method": "gptq"}


def auto_gptq_metadata(bits, group, act):
    """auto_gptq 0.7.1 `save_quantized`."""
    return {"format": "pt", "auto_gptq_version": "0.7.1", "gptq_bits": str(bits), "gptq_group_size": str(group),
            "gptq_desc_act": str(act), "gptq_damp_percent": "0.01", "gptq_is_marlin_format": "False"}


def linear_of(q, z, s, g_idx, bias, dtype=torch.float32):
    """A layer whose weights are exactly on the grid, so that packing gives the codes back."""
    g = g_idx.long()
    w = (q - z[g]).double() * s.double()[g]
    layer = torch.nn.Linear(q.shape[0], q.shape[1], bias=bias is not None, dtype=dtype)
    layer.weight.data = w.t().contiguous().to(dtype)
    if bias is not None:
        layer.bias.data = bias.to(dtype)
    return layer


def torch_linear(bits, k, n, group, sym, act, fmt, bias=False):
    return TorchLinear(bits=bits, group_size=group, sym=sym, desc_act=act, in_features=k, out_features=n, bias=bias,
                       format=FORMAT(fmt))


def pack_gptqmodel(bits, group, sym, act, fmt, q, z, s, g_idx, bias):
    """The path of `model.save`: pack_block, or pack_original when it refuses, then v2 -> v1 zeros."""
    k, n = q.shape
    layer = linear_of(q, z, s, g_idx, bias)
    module = torch_linear(bits, k, n, group, sym, act, fmt, bias is not None)
    model_utils.pack_module("m", {"m": module}, s.float().t().contiguous(), z.float().t().contiguous(), g_idx,
                            {"m": layer}, TorchLinear, None,
                            quantize_config=gptqmodel_config(bits, group, sym, act, fmt))
    return module


def pack_auto_gptq(bits, group, q, z, s, g_idx, bias):
    k, n = q.shape
    layer = linear_of(q, z, s, g_idx, bias, s.dtype)
    module = auto_cuda.QuantLinear(bits, group, k, n, bias is not None, weight_dtype=s.dtype)
    module.pack(layer, s.float().t().clone(), z.float().t().clone(), g_idx)
    return module


def buffers(module, names=("qweight", "qzeros", "scales", "g_idx", "bias")):
    return {x: getattr(module, x).detach().clone() for x in names if getattr(module, x, None) is not None}


def decode(parts, bits, k, n, group, sym, v1, scales):
    """[in, out] by `TorchLinear.dequantize_weight`, loaded as gptqmodel loads a checkpoint."""
    module = torch_linear(bits, k, n, group, sym, False, "gptq")  # registers the trivial g_idx
    module.qweight = parts["qweight"].clone()
    module.qzeros = parts["qzeros"].clone()
    module.scales = scales.clone()
    if "g_idx" in parts:
        module.g_idx = parts["g_idx"].clone()
    if v1:
        model_utils.convert_gptq_v1_to_v2_format_module(module, bits=bits, pack_dtype=torch.int32)
    return module.eval().dequantize_weight()


def decode_auto_gptq(layer_module, parts, bits, k, n, group, scales):
    """[in, out] by auto_gptq's layer applied to the identity (finite scales only)."""
    module = layer_module.QuantLinear(bits, group, k, n, False, weight_dtype=scales.dtype)
    module.qweight, module.qzeros, module.scales = parts["qweight"], parts["qzeros"], scales
    if "g_idx" in parts:
        module.g_idx = parts["g_idx"]
    return module(torch.eye(k, dtype=scales.dtype))


# ---- cases --------------------------------------------------------------------------------------------------------

def case(name, bits, k, n, group, v=1, writer="gptqmodel", act=False, sym=False, scales=torch.float16, hostile=False,
         drop=(), bias=True, config="config.json", module="model.layers.0.self_attn.q_proj", norm=torch.float16):
    """`config`: config.json | config.json-auto_gptq (no checkpoint_format) | quantize_config.json | metadata | None."""
    out, rng = fresh("gptq", name), rng_for(name)
    group_in = group if group > 0 else k
    groups, maxq = math.ceil(k / group_in), 2**bits - 1
    fmt = "gptq" if v == 1 else "gptq_v2"

    q = torch.from_numpy(rng.randint(0, maxq + 1, (k, n)))
    z = torch.from_numpy(rng.randint(v == 1, maxq + 1, (groups, n)))  # v1 cannot hold 0
    z[0, 0], z[-1, -1] = int(v == 1), maxq
    if sym:
        z = torch.full((groups, n), 2**(bits - 1))
    s = torch.from_numpy(rng.uniform(0.001, 0.02, (groups, n))).to(scales)
    order = torch.from_numpy(rng.permutation(k) if act else np.arange(k))
    g_idx = torch.argsort(order).div(group_in, rounding_mode="floor").to(torch.int32)
    if bits == 8 and scales == torch.bfloat16 and not hostile:
        near = z[g_idx.long()]  # auto_gptq packs from bf16 weights: 8 significant bits hold |q - z| < 128 only
        q = q.maximum(near - 120).minimum(near + 120)
    b = torch.from_numpy(rng.uniform(-1, 1, n)).to(torch.float16) if bias else None

    if writer == "gptqmodel":
        assert scales == torch.float16 or hostile
        packer = pack_gptqmodel(bits, group, sym, act, fmt, q, z, s.half(), g_idx, b)
    else:
        packer = pack_auto_gptq(bits, group, q, z, s, g_idx, b)
    parts = buffers(packer)
    if hostile:
        parts["scales"] = hostile_scales(groups, n, scales)
    assert parts["scales"].dtype == scales

    # The library's own unpackers give the codes back.
    aligned = k % 32 == 0 and n % 32 == 0
    assert parts["qweight"].shape == (math.ceil(k * bits / 32), n)
    assert parts["qzeros"].shape == (groups, math.ceil(n * bits / 32))
    assert torch.equal(dequant.unpack_rows(parts["qweight"], bits)[:k].long(), q)
    stored = dequant.unpack_cols(parts["qzeros"], bits)[:, :n].long()
    assert torch.equal(stored + (v == 1), z)

    on_disk = {f"{module}.{p}": t for p, t in parts.items() if p not in drop}
    on_disk["model.norm.weight"] = norm_weight(rng, n, norm)
    metadata = auto_gptq_metadata(bits, group, act) if config == "metadata" else {"format": "pt"}
    save(out / "model.safetensors", on_disk, metadata)
    if config == "config.json":
        save_json(out / config, llama_config(gptqmodel_json(bits, group, sym, act, fmt), scales))
    elif config == "config.json-auto_gptq":
        save_json(out / "config.json", llama_config(auto_gptq_json(bits, group, sym, act), scales))
    elif config == "quantize_config.json":
        save_json(out / config, auto_gptq_json(bits, group, sym, act))

    # Decode what lies on the disk; a dropped qzeros is what `_resolve_zeros` says symmetric means.
    disk = load_file(out / "model.safetensors")
    parts = {key[len(module) + 1:]: t for key, t in disk.items() if key.startswith(module + ".")}
    decode_v1 = v == 1
    if "qzeros" in drop:
        probe = torch_linear(bits, k, n, group, True, act, fmt)
        zeros = packing._resolve_zeros(probe, parts["scales"].t(), None)
        parts["qzeros"] = dequant.pack_cols(zeros.t(), bits, pack_dtype=torch.int32)
        decode_v1 = False
    native = decode(parts, bits, k, n, group, sym, decode_v1, parts["scales"])
    w = decode(parts, bits, k, n, group, sym, decode_v1, parts["scales"].float())
    assert native.dtype == scales and w.dtype == torch.float32 and w.shape == (k, n)
    assert same(w.to(scales), native), "one rounding of the f32 product must be the library's own output"

    # gptqmodel's exporter rounds the f32 product to the target.
    if aligned and not drop:
        quantization = {"bits": bits, "checkpoint_format": fmt}
        for dtype in TARGETS.values():
            exported = dequant.convert_gptq_file(out / "model.safetensors", dtype, quantization, "cpu")
            assert same(exported[f"{module}.weight"], w.to(dtype).t().contiguous())
    if v == 1 and aligned and not hostile and "qzeros" not in drop:
        layers = [auto_cuda] if act or k % group_in else [auto_cuda, auto_cuda_old]
        for layer in layers:
            for dtype in (scales, torch.float32):
                got = decode_auto_gptq(layer, parts, bits, k, n, group, parts["scales"].to(dtype))
                assert torch.equal(got, w.to(dtype)), layer.__name__

    kept = {key: t for key, t in disk.items() if key.endswith(".bias") or not key.startswith(module + ".")}
    write_expected(out, {f"{module}.weight": w.t().contiguous()}, kept)


def zeros_of(decoder, qzeros, bits, n):
    """The zero points a decoder sees: codes 0 and scales 1 give -z."""
    groups = qzeros.shape[0]
    k = 32 * groups
    parts = {"qweight": torch.zeros((k * bits // 32, n), dtype=torch.int32), "qzeros": qzeros.clone()}
    return -decoder(parts, bits, k, n, 32, torch.ones((groups, n)))[::32].long()


def v1_wrap():
    """v1 zeros with all-ones fields. No expected files: libraries disagree, see ../README.md."""
    out, rng = fresh("gptq", "v1_wrap"), rng_for("v1_wrap")
    n, k, group = 32, 128, 32
    names = {4: "q_proj", 2: "k_proj", 8: "v_proj", 3: "o_proj"}
    tensors, table = {}, []
    for bits, name in names.items():
        maxq = 2**bits - 1
        q = torch.from_numpy(rng.randint(0, maxq + 1, (k, n)))
        s = torch.from_numpy(rng.uniform(0.001, 0.02, (4, n))).half()
        g_idx = (torch.arange(k) // group).int()
        z = torch.from_numpy(rng.randint(1, maxq + 1, (4, n)))
        z_row = z.clone()
        z_row[0, [0, 5, 6, 31]] = 0      # row 0: as gptqmodel writes zero points 0
        z_row[2, 2] = 0                  # row 2: as auto_gptq writes one zero point 0
        module = pack_gptqmodel(bits, group, False, False, "gptq", q, z_row, s, g_idx, None)
        auto = pack_auto_gptq(bits, group, q, z_row, s, g_idx, None)
        qzeros = module.qzeros.clone()
        fields = (z[1] - 1).clone()
        fields[[3, 9]] = maxq            # row 1: two lone all-ones fields
        qzeros[1] = dequant.pack_cols(fields[None], bits, pack_dtype=torch.int32)[0]
        qzeros[2] = auto.qzeros[2]
        qzeros[3] = -1                   # row 3: every field all-ones
        parts = {"qweight": module.qweight, "qzeros": qzeros, "scales": module.scales, "g_idx": g_idx}
        tensors |= {f"model.layers.0.self_attn.{name}.{p}": t.clone() for p, t in parts.items()}

        def exporter(p, b, k_, n_, g_, s_):
            fixed = dequant._correct_gptq_v1_qzeros(p["qzeros"], b)
            return -dequant.unpack_cols(fixed, b).repeat_interleave(32, 0)

        seen = {
            "stored field": dequant.unpack_cols(qzeros, bits),
            "gptqmodel load": zeros_of(lambda p, b, k_, n_, g_, s_: decode(p, b, k_, n_, g_, False, True, s_),
                                       qzeros, bits, n),
            "gptqmodel export": zeros_of(exporter, qzeros, bits, n),
            "auto_gptq cuda": zeros_of(lambda *a: decode_auto_gptq(auto_cuda, *a), qzeros, bits, n),
            "auto_gptq cuda_old": zeros_of(lambda *a: decode_auto_gptq(auto_cuda_old, *a), qzeros, bits, n),
        }
        assert bits == 3 or torch.equal(seen["gptqmodel load"][0], z_row[0])
        rows = ["gptqmodel wrote z=0 at 0,5,6,31", "lone all-ones at 3,9", "auto_gptq wrote z=0 at 2", "all-ones"]
        for row, what in enumerate(rows):
            table.append(f"\n{bits} bit, row {row}: {what}; columns 0..11")
            if row in (0, 2):
                table.append(f"  {'true zero point':20}" + " ".join(f"{v:3}" for v in z_row[row, :12].tolist()))
            for who, zeros in seen.items():
                table.append(f"  {who:20}" + " ".join(f"{v:3}" for v in zeros[row, :12].tolist()))
    tensors["model.norm.weight"] = norm_weight(rng, n, torch.float16)
    save(out / "model.safetensors", tensors, {"format": "pt"})
    quantization = gptqmodel_json(4, group, False, False, "gptq")
    quantization["dynamic"] = {f"+:.*\\.{names[b]}$": {"bits": b} for b in (2, 3, 8)}
    save_json(out / "config.json", llama_config(quantization))
    return "\n".join(table)


def v1_mislabelled_sym():
    """gptqmodel's hf_pack_layer stores v2 zeros under the v1 label. No expected files, see ../README.md."""
    out, rng = fresh("gptq", "v1_mislabelled_sym"), rng_for("v1_mislabelled_sym")
    bits, k, n, group = 4, 64, 32, 32
    q = torch.from_numpy(rng.randint(0, 16, (k, n)))
    z = torch.full((2, n), 8)
    s = torch.from_numpy(rng.uniform(0.001, 0.02, (2, n))).half()
    g_idx = (torch.arange(k) // group).int()
    module = torch_linear(bits, k, n, group, True, False, "gptq")
    packing.hf_pack_layer(module, linear_of(q, z, s, g_idx, None), s.float().t().contiguous(), None, g_idx)
    assert module.qzero_format() == 1
    assert torch.equal(dequant.unpack_cols(module.qzeros, bits).long(), z), "stored 8, not 7"
    tensors = {f"model.layers.0.self_attn.q_proj.{p}": t for p, t in buffers(module).items()}
    tensors["model.norm.weight"] = norm_weight(rng, n, torch.float16)
    save(out / "model.safetensors", tensors, {"format": "pt"})
    save_json(out / "config.json", llama_config(gptqmodel_json(bits, group, True, False, "gptq")))


def main():
    import_libraries()
    shutil.rmtree(DATA / "gptq", ignore_errors=True)
    bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    auto = "auto_gptq"
    for b in (2, 3, 4, 8):
        case(f"b{b}_v1_g32", b, 96, 32, 32)
        case(f"b{b}_v1_act_order", b, 128, 32, 32, act=True, norm=bf16)
        case(f"b{b}_v2_g128_act_order", b, 256, 32, 128, v=2, act=True, module="model.layers.3.mlp.down_proj")
        case(f"b{b}_v2_no_g_idx", b, 64, 64, 32, v=2, drop=("g_idx",), bias=False)
        case(f"b{b}_v1_one_group", b, 160, 32, -1, writer=auto, config="config.json-auto_gptq", bias=False)
        case(f"b{b}_v1_sym", b, 64, 32, 32, writer=auto, sym=True, config="config.json-auto_gptq")
        case(f"b{b}_sym_no_qzeros", b, 64, 32, 32, v=1 if b in (3, 4) else 2, sym=True, drop=("qzeros",))
        case(f"b{b}_v1_no_config", b, 96, 32, 32, writer=auto, drop=("g_idx",), config=None)
        case(f"b{b}_v1_metadata", b, 64, 32, 32, writer=auto, config="metadata")
        case(f"b{b}_v1_quantize_config", b, 64, 32, 64 if b == 8 else 32, writer=auto, act=b == 4,
             config="quantize_config.json")
    case("b4_v1_metadata_one_group", 4, 64, 32, -1, writer=auto, config="metadata")
    case("b4_v1_no_config_act_order", 4, 128, 32, 32, writer=auto, act=True, config=None)
    case("b4_v2_sym", 4, 64, 32, 32, v=2, sym=True)
    case("b8_sym_no_qzeros_no_g_idx", 8, 64, 32, 32, v=2, sym=True, drop=("qzeros", "g_idx"), bias=False)

    for b, dtype in [(2, f32), (3, bf16), (4, bf16), (4, f32), (8, bf16), (8, f32)]:
        label = {bf16: "bf16", f32: "f32"}[dtype]
        case(f"b{b}_v1_scales_{label}", b, 96, 32, 32, writer=auto, scales=dtype, config="config.json-auto_gptq",
             norm=dtype)
    case("b2_v1_hostile_f32", 2, 128, 64, 32, scales=f32, hostile=True)
    case("b3_v1_hostile_f16", 3, 128, 32, 32, hostile=True)
    case("b4_v1_hostile_f16", 4, 128, 32, 32, hostile=True, act=True)
    case("b4_v1_hostile_f32", 4, 128, 64, 32, scales=f32, hostile=True)
    case("b8_v2_hostile_bf16", 8, 128, 32, 32, v=2, scales=bf16, hostile=True)

    # Sizes that are no multiple of 32 or of the group: rows, groups and zero words are rounded up.
    case("b2_v1_ragged", 2, 100, 40, 32)
    case("b4_v1_ragged_act_order", 4, 100, 36, 32, act=True)
    case("b8_v2_ragged", 8, 98, 34, 32, v=2)
    case("b4_v2_ragged_no_g_idx", 4, 80, 40, 32, v=2, drop=("g_idx",))
    case("b4_v1_ragged_one_group", 4, 72, 136, -1, sym=True)
    case("b3_v1_short_group", 3, 96, 32, 64)
    case("b4_v1_short_group_act_order", 4, 288, 32, 128, act=True, writer=auto, config="config.json-auto_gptq")

    table = v1_wrap()
    v1_mislabelled_sym()
    report("gptq")
    print(table)


if __name__ == "__main__":
    sys.exit(main())

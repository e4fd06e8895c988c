"""Golden encodings to integers, rounded to nearest: compressed-tensors 0.20, gptqmodel 7.7.0 and autoawq 0.2.9 on CPU.

Usage: see ../README.md. Writes ../int_encode/<case>.safetensors: `original`, and what the library stores of it as module
`m`; the metadata say how and with what config.

compressed-tensors: `calculate_qparams` of the smallest and largest value of each group or channel, as its min-max
observers pass them, all in the dtype of the weight; then `compress` of the scheme's compressor.

gptqmodel: `Quantizer.find_params` (no `mse`) of each group of the weight in F32; `pack_original` of the layer with its
original weight, those scales and zero points, and `g_idx = arange(in) // group`; for `gptq` then
`convert_gptq_v2_to_v1_format_module`, as `pack_module` does. No Hessian takes part.

autoawq: `pseudo_quantize_tensor` of the layer in F16, which then has the weight that it gives; `WQLinear_GEMM.from_linear`.
No scales are searched.
"""

import json
import os
import sys
import types
import zlib
from pathlib import Path

os.environ["GPTQMODEL_DISABLE_PACK_EXT"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
HERE = Path(__file__).resolve().parent
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != HERE]  # awq.py there is no library

import torch
from safetensors.torch import save_file

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LABEL = {F32: "f32", F16: "f16", BF16: "bf16"}
OUT = HERE.parent / "int_encode"


# ---- what is encoded ----------------------------------------------------------------------------------------------

def edges(cols, dtype):
    """Rows that go wrong first."""
    tiny = torch.finfo(dtype).smallest_normal
    step = torch.arange(cols)
    zero = torch.zeros(cols)
    rows = [zero, -zero, torch.where(step % 2 == 0, zero, -zero), zero.index_fill(0, torch.tensor([cols // 2]), 3.0),
            zero.index_fill(0, torch.tensor([1]), -3.0), zero + 0.37, zero - 0.37, zero + 1, (step % 16).float() / 16,
            -(step % 16).float() / 16, step / cols * 2e-7, torch.where(step % 3 == 0, 1e3, 1e-3), 0.05 + step / cols * 0.01,
            (step % 5 - 2) * 0.5, (step % 7 - 3) * 60000.0 / 8, torch.where(step % 32 == 0, -7.0, step % 8 * 1.0)]
    rows = [r.double() for r in rows]
    rows += [(step % 9 - 4).double() * tiny / 16, (step % 200 + 1).double() * tiny / 64, -(step % 3).double() * tiny]
    return torch.stack(rows).to(dtype)


def weights(rng, rows, cols, dtype):
    """Edges first, then values of several distributions and scales."""
    kinds = []
    for i in range(rows):
        x = torch.randn(cols, generator=rng)
        u = torch.rand(cols, generator=rng)
        scale = 10.0 ** (torch.rand(1, generator=rng).item() * 4 - 3.5)
        kinds.append([x, u * 2 - 1, x * u.clamp(min=1e-3) ** -0.5, x + 2, u, x.sign() * u ** 4, x.round() / 4][i % 7] * scale)
    w = torch.stack(kinds).to(dtype)
    edge = edges(cols, dtype)[:rows]
    w[:len(edge)] = edge
    return w


def save(out, name, original, stored, encoder, config, library):
    """safetensors' own writer, then `__metadata__` sorted: its key order is random otherwise."""
    path = out / f"{name}.safetensors"
    tensors = {"original": original} | stored
    metadata = {"encoder": json.dumps(encoder), "config": json.dumps(config, sort_keys=True), "library": library}
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, str(path), metadata=metadata)
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size:])
    path.chmod(0o644)


def rng_for(name):
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


# ---- compressed-tensors -------------------------------------------------------------------------------------------

def compressed_tensors(w, bits, group, symmetric, activations):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.format import infer_module_format
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    strategy = "group" if group else "channel"
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy=strategy, group_size=group)
    inputs = QuantizationArgs(num_bits=8, type="int", strategy="token", symmetric=True, dynamic=True)
    s = QuantizationScheme(targets=["Linear"], weights=args, input_activations=inputs if activations else None)
    s.format = infer_module_format(torch.nn.Linear, s)
    g = w.unflatten(-1, (-1, group or w.shape[-1]))
    scale, zero = calculate_qparams(g.amin(-1), g.amax(-1), args)
    parts = {"weight": w, "weight_scale": scale} | ({} if symmetric else {"weight_zero_point": zero})
    compressor = BaseCompressor.get_value_from_registry(getattr(s.format, "value", s.format))
    return {f"m.{k}": v for k, v in compressor.compress(parts, s).items()}, s


def compressed_tensors_config(s):
    import tempfile
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig
    q = QuantizationConfig(config_groups={"group_0": s}, ignore=["lm_head"], quantization_status="compressed",
                           format=getattr(s.format, "value", s.format))
    with tempfile.TemporaryDirectory() as d:
        (Path(d) / "config.json").write_text("{}")
        ModelCompressor(quantization_config=q).update_config(d)
        return json.loads((Path(d) / "config.json").read_text())["quantization_config"]


def compressed_tensors_case(out, name, rows, cols, dtype, bits, group, symmetric=True, activations=False):
    w = weights(rng_for(name), rows, cols, dtype)
    stored, s = compressed_tensors(w, bits, group, symmetric, activations)
    encoder = dict(method="compressed-tensors", bits=bits, group=group, symmetric=symmetric, activations=activations)
    save(out, name, w, stored, encoder, compressed_tensors_config(s), "compressed-tensors 0.20.0")


# ---- GPTQ ---------------------------------------------------------------------------------------------------------

def gptq(w, bits, group, symmetric, fmt):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import FORMAT, QuantizeConfig
    from gptqmodel.quantization.quantizer import Quantizer
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    n, k = w.shape
    config = QuantizeConfig(bits=bits, group_size=group or -1, sym=symmetric, desc_act=False, act_group_aware=False,
                            format=fmt, offload_to_disk=False)
    quantizer = Quantizer(qcfg=config)
    quantizer.configure(perchannel=True)
    scales, zeros = [], []
    for block in w.float().split(group or k, dim=1):
        quantizer.find_params(block, weight=True)
        scales.append(quantizer.scale)
        zeros.append(quantizer.zero)
    layer = torch.nn.Linear(k, n, bias=False, dtype=w.dtype)
    layer.weight.data = w
    module = TorchLinear(bits=bits, group_size=group or -1, sym=symmetric, desc_act=False, in_features=k, out_features=n,
                         bias=False, format=FORMAT(fmt))
    g_idx = torch.arange(k, dtype=torch.int32) // (group or k)
    module.pack_original(layer, torch.cat(scales, 1), torch.cat(zeros, 1), g_idx)
    assert module.REQUIRES_FORMAT_V2
    if fmt == "gptq":
        convert_gptq_v2_to_v1_format_module(module, config)
    value = config.to_dict()
    value["meta"] = {"quantizer": ["gptqmodel:7.7.0"]}
    return {f"m.{p}": getattr(module, p) for p in ("qweight", "qzeros", "scales", "g_idx")}, value


def gptq_case(out, name, rows, cols, dtype, bits, group, symmetric, fmt):
    w = weights(rng_for(name), rows, cols, dtype)
    stored, config = gptq(w, bits, group, symmetric, fmt)
    encoder = dict(method="gptq", bits=bits, group=group, symmetric=symmetric, version_2=fmt == "gptq_v2")
    save(out, name, w, stored, encoder, config, "gptqmodel 7.7.0")


# ---- AWQ ----------------------------------------------------------------------------------------------------------

def awq(w, group):
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.quantize.quantizer import AwqQuantizer

    layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    layer.weight.data = w
    layer = layer.half()
    quantizer = types.SimpleNamespace(group_size=group, zero_point=True, w_bit=4)
    layer.weight.data, scales, zeros = AwqQuantizer.pseudo_quantize_tensor(quantizer, layer.weight.data)
    module = WQLinear_GEMM.from_linear(layer, 4, group, False, scales.t().contiguous(), zeros.t().contiguous())
    return {f"m.{p}": getattr(module, p) for p in ("qweight", "qzeros", "scales")}


def awq_case(out, name, rows, cols, dtype, group):
    from awq.models._config import AwqConfig
    w = weights(rng_for(name), rows, cols, dtype)
    config = AwqConfig(q_group_size=group, modules_to_not_convert=["lm_head"]).to_transformers_dict()
    save(out, name, w, awq(w, group), dict(method="awq", group=group), config, "autoawq 0.2.9")


def main():
    OUT.mkdir(exist_ok=True)
    for path in OUT.iterdir():
        path.unlink()
    for dtype in (BF16, F16, F32):
        label = LABEL[dtype]
        compressed_tensors_case(OUT, f"ct_w4a16_{label}", 20, 128, dtype, 4, 128)
        compressed_tensors_case(OUT, f"ct_w4a16_asym_{label}", 41, 64, dtype, 4, 32, symmetric=False)
        compressed_tensors_case(OUT, f"ct_w8a16_{label}", 20, 75, dtype, 8, None)
        compressed_tensors_case(OUT, f"ct_w8a8_{label}", 20, 75, dtype, 8, None, activations=True)
        gptq_case(OUT, f"gptq_b4_sym_{label}", 24, 128, dtype, 4, 128, True, "gptq")
        gptq_case(OUT, f"gptq_b4_asym_{label}", 24, 128, dtype, 4, 32, False, "gptq")
        awq_case(OUT, f"awq_g64_{label}", 32, 64, dtype, 64)
    for i, bits in enumerate((1, 2, 3, 5, 6, 7)):
        dtype = (BF16, F16, F32)[i % 3]
        compressed_tensors_case(OUT, f"ct_b{bits}_asym_{LABEL[dtype]}", 37, 64, dtype, bits, 32, symmetric=False)
    compressed_tensors_case(OUT, "ct_b3_g24_bf16", 24, 120, BF16, 3, 24)
    compressed_tensors_case(OUT, "ct_b4_channel_asym_bf16", 24, 77, BF16, 4, None, symmetric=False)
    compressed_tensors_case(OUT, "ct_w8a8_asym_bf16", 24, 77, BF16, 8, None, symmetric=False, activations=True)
    for bits in (2, 3, 8):
        gptq_case(OUT, f"gptq_b{bits}_sym_bf16", 32, 64, BF16, bits, 64, True, "gptq")
        gptq_case(OUT, f"gptq_b{bits}_asym_bf16", 32, 64, BF16, bits, 64, False, "gptq")
    gptq_case(OUT, "gptq_b4_v2_bf16", 24, 128, BF16, 4, 64, False, "gptq_v2")
    gptq_case(OUT, "gptq_b8_one_group_f16", 24, 96, F16, 8, None, True, "gptq")
    awq_case(OUT, "awq_g128_bf16", 32, 256, BF16, 128)
    print(sum(f.stat().st_size for f in OUT.iterdir()), "bytes in", len(list(OUT.iterdir())), "files")


if __name__ == "__main__":
    main()

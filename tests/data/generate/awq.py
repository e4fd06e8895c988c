"""Golden AWQ GEMM checkpoints: packed by autoawq 0.2.9 or gptqmodel 7.7.0, dequantized by autoawq, on CPU.

Usage: see ../README.md. Writes ../awq/<case>/.
"""

import shutil
import sys
import warnings

import torch
from safetensors.torch import load_file

from gptq import (DATA, fresh, hide_generators, hostile_scales, llama_config, norm_weight, report, rng_for, same, save,
                  save_json, write_expected)

warnings.filterwarnings("ignore")


def import_libraries():
    global WQLinear_GEMM, AwqConfig, awq_packing, AwqTorchLinear, QuantizeConfig, model_packing
    global AutoAWQConverter, PackedQuantizationCompressor
    hide_generators()
    import gptqmodel
    assert gptqmodel.__version__ == "7.7.0", gptqmodel.__version__
    from awq.models._config import AwqConfig
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils import packing_utils as awq_packing
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
    from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear
    from gptqmodel.quantization import QuantizeConfig
    from gptqmodel.quantization.awq.utils import packing_utils as model_packing


def gptqmodel_json(group, sym):
    """What gptqmodel saves, with `meta` cut down to what says who wrote it. `sym` becomes `zero_point: false`."""
    value = QuantizeConfig(bits=4, group_size=group, sym=sym, method="awq", format="gemm",
                           offload_to_disk=False).to_dict()
    value["meta"] = {"quantizer": ["gptqmodel:7.7.0"]}
    return value


def pack(writer, layer, group, s, z):
    if writer == "autoawq":
        # from_linear divides by the raw group_size, so -1 does not work there: one group is given as its length.
        k = layer.in_features
        return WQLinear_GEMM.from_linear(layer, 4, group if group > 0 else k, False, s, z.float())
    module = AwqTorchLinear(bits=4, group_size=group, sym=False, desc_act=False, in_features=layer.in_features,
                            out_features=layer.out_features, bias=layer.bias is not None)
    module.pack(layer, s.t().contiguous(), z.t().to(s.dtype).contiguous())
    return module


def compressed_tensors_weight(parts, group, zero_point):
    """[out, in] as compressed-tensors reads the module, in the scales' dtype."""
    converter = AutoAWQConverter(bits=4, group_size=group, zero_point=zero_point)
    state = converter.process({f"m.{p}": t for p, t in parts.items() if p != "bias"})
    scheme = converter._build_quant_config().config_groups["config_group_0"]
    state = {key[2:]: t for key, t in state.items()}
    return PackedQuantizationCompressor.decompress(state, scheme)["weight"]


def case(name, k, n, group, writer="autoawq", zeros="asym", scales=torch.float16, hostile=False, bias=False,
         config="config.json", module="model.layers.0.self_attn.q_proj", norm=torch.float16):
    """`zeros`: asym | eight (symmetric, stored) | none (symmetric, no qzeros tensor)."""
    out, rng = fresh("awq", name), rng_for(name)
    group_in = group if group > 0 else k
    groups = k // group_in
    assert groups * group_in == k

    q = torch.from_numpy(rng.randint(0, 16, (k, n)))
    z = torch.from_numpy(rng.randint(0, 16, (groups, n)))
    z[0, 0], z[-1, -1] = 0, 15
    if zeros != "asym":
        z = torch.full((groups, n), 8)
    s = torch.from_numpy(rng.uniform(0.001, 0.02, (groups, n))).to(scales)
    g = torch.arange(k) // group_in
    layer = torch.nn.Linear(k, n, bias=bias)
    layer.weight.data = ((q - z[g]).double() * s.double()[g]).t().float().contiguous()
    if bias:
        layer.bias.data = torch.from_numpy(rng.uniform(-1, 1, n)).to(scales)
    packed = pack(writer, layer, group, s, z)
    parts = {p: getattr(packed, p).detach().clone() for p in ("qweight", "qzeros", "scales", "bias")
             if getattr(packed, p, None) is not None}
    if hostile:
        parts["scales"] = hostile_scales(groups, n, scales)
    assert parts["qweight"].shape == (k, n // 8) and parts["qzeros"].shape == (groups, n // 8)
    assert parts["scales"].dtype == scales and parts["scales"].shape == (groups, n)

    # autoawq's unpackers give the codes back, and another writer lays them out the same.
    codes = awq_packing.reverse_awq_order(*awq_packing.unpack_awq(parts["qweight"], parts["qzeros"], 4), 4)
    assert torch.equal(codes[0].long() & 15, q) and torch.equal(codes[1].long() & 15, z)
    again = model_packing.pack_awq(q.int(), z.int(), 4)
    assert torch.equal(again[0], parts["qweight"]) and torch.equal(again[1], parts["qzeros"])

    on_disk = {f"{module}.{p}": t for p, t in parts.items() if not (p == "qzeros" and zeros == "none")}
    on_disk["model.norm.weight"] = norm_weight(rng, n, norm)
    save(out / "model.safetensors", on_disk, {"format": "pt"})
    settings = AwqConfig(zero_point=zeros == "asym", q_group_size=group, w_bit=4, version="gemm")
    if config == "config.json":
        saved = settings.to_transformers_dict() if writer == "autoawq" or zeros == "none" else (
            gptqmodel_json(group, zeros != "asym"))
        save_json(out / config, llama_config(saved, scales))
    elif config == "quant_config.json":
        save_json(out / config, settings.to_dict() | {"version": "GEMM"})

    disk = load_file(out / "model.safetensors")
    parts = {key[len(module) + 1:]: t for key, t in disk.items() if key.startswith(module + ".")}
    if zeros == "none":
        # Only compressed-tensors reads such a file: code - 8, no zero point.
        native = compressed_tensors_weight(parts, group_in, False)
        w = compressed_tensors_weight(parts | {"scales": parts["scales"].float()}, group_in, False)
    else:
        def decode(dtype, library):
            return library.dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"].to(dtype), 4,
                                           group_in).t().contiguous()
        native, w = decode(scales, awq_packing), decode(torch.float32, awq_packing)
        assert same(native, decode(scales, model_packing)) and same(w, decode(torch.float32, model_packing))
        if not hostile:
            affine = zeros == "asym"
            assert torch.equal(compressed_tensors_weight(parts, group_in, affine), native)
    assert native.dtype == scales and w.dtype == torch.float32 and w.shape == (n, k)
    assert same(w.to(scales), native), "one rounding of the f32 product must be the library's own output"

    kept = {key: t for key, t in disk.items() if key.endswith(".bias") or not key.startswith(module + ".")}
    write_expected(out, {f"{module}.weight": w}, kept)


def main():
    import_libraries()
    shutil.rmtree(DATA / "awq", ignore_errors=True)
    bf16, f16 = torch.bfloat16, torch.float16
    case("g32_config_bias", 96, 64, 32, bias=True)
    case("g64_no_config", 128, 32, 64, config=None, norm=bf16)
    case("g128_quant_config", 256, 32, 128, config="quant_config.json", module="model.layers.3.mlp.down_proj")
    case("one_group", 96, 32, -1, writer="gptqmodel")
    case("one_group_no_config", 160, 32, -1, config=None)
    case("k100_n40_one_group", 100, 40, -1, writer="gptqmodel", bias=True)
    case("k72_g24", 72, 32, 24)
    case("n136_g32", 64, 136, 32, writer="gptqmodel")
    case("n40_no_config", 64, 40, 32, writer="gptqmodel", config=None, bias=True)
    case("scales_bf16", 96, 32, 32, writer="gptqmodel", scales=bf16, bias=True, norm=bf16)
    case("zeros_eight", 64, 32, 32, writer="gptqmodel", zeros="eight")
    case("no_qzeros", 64, 32, 32, zeros="none", bias=True)
    case("hostile_f16", 128, 32, 32, hostile=True)
    case("hostile_bf16", 128, 32, 32, writer="gptqmodel", scales=bf16, hostile=True)
    report("awq")


if __name__ == "__main__":
    sys.exit(main())

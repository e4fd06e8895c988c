"""Golden models, quantized, exported and decoded by AMD Quark (`ModelQuantizer`, `export_safetensors`, `QParamsLinear`; CPU).

Run: `python amd_quark.py` (see ../README.md). It rewrites `../quark/*`. Importing Quark compiles its kernels: that needs a
C++ compiler and ninja. Quark always computes in F32, and casts the result once.
"""

import contextlib
import io
import json
import shutil
import tempfile
from pathlib import Path

import torch
from fp8 import BF16, DATA, E4M3, F16, F32, rounded
from modelcase import ModelCase, total
from safetensors.torch import load_file

import transformers as tf
from quark.torch import ModelQuantizer, export_safetensors
from quark.torch.export.nn.modules.qparamslinear import QParamsLinear
from quark.torch.quantization.config import config as C
from quark.torch.quantization.config import type as T
from quark.torch.quantization.observer import observer as observers

torch.set_num_threads(1)
L = "model.layers.0."
DROPPED = ("weight_scale", "weight_scale_2", "weight_zero_point", "weight_zero_point_2", "input_scale", "output_scale", "k_scale", "v_scale")
FLOAT = dict(scale_type="float", is_dynamic=False)
INT = FLOAT | dict(round_method="half_even")


def spec(cls, **options):
    return getattr(C, cls)(**options).to_quantization_spec()


FP8 = spec("FP8E4M3PerTensorSpec", observer_method="min_max", is_dynamic=False)
MXFP4 = spec("OCP_MXFP4Spec", ch_axis=-1, is_dynamic=False)
MXFP4_INPUT = spec("OCP_MXFP4Spec", ch_axis=-1, is_dynamic=True)


def decode(config, shape, tensors, base, pack):
    """What Quark's own layer makes of the stored tensors: `QParamsLinear._get_qweight`."""
    layer = QParamsLinear(torch.nn.Linear(shape[1], shape[0], bias=False), "quark", pack, C.QLayerConfig(weight=config.weight))
    quantizers = layer.weight_quantizer if isinstance(config.weight, list) else [layer.weight_quantizer]
    for i, q in enumerate(quantizers):
        suffix = f"_{i + 1}" if i else ""
        scale = tensors.get(f"{base}.weight_scale{suffix}")
        if scale is not None:
            q.scale = scale if scale.element_size() == 1 else scale.to(F32)
        zero = tensors.get(f"{base}.weight_zero_point{suffix}")
        if zero is not None:
            q.zero_point = zero
    out = layer._get_qweight(torch.nn.Parameter(tensors[base + ".weight"], requires_grad=False))
    assert out.dtype == F32 and tuple(out.shape) == tuple(shape), (base, out.dtype, out.shape)
    return out.contiguous()


def expect_all(c, tensors, shapes, config_of, pack="reorder"):
    """`shapes`: of the model before; `config_of(layer)`: Quark's own object for the layer, None if it is not quantized."""
    c.add(tensors)
    for name, t in tensors.items():
        base = name.removesuffix(".weight")
        if base + ".weight_scale" in tensors and name.endswith(".weight"):
            c.expect(name, decode(config_of(base), shapes[name], tensors, base, pack))
        elif not name.endswith(DROPPED):
            c.expected[name] = t


def build(case, **more):
    base = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                head_dim=16, vocab_size=32, tie_word_embeddings=False, dtype="bfloat16", architectures=["LlamaForCausalLM"])
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**base | more)).to(BF16).eval()
    for _, p in sorted(model.named_parameters()):
        p.data = (case.randn(*p.shape) * 0.05).to(BF16)
    return model


def export(model, config, pack):
    ids = [torch.arange(32).view(2, 16)]
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as tmp:
        quantizer = ModelQuantizer(config)
        frozen = quantizer.freeze(quantizer.quantize_model(model, ids))
        export_safetensors(frozen, tmp, weight_format="real_quantized", pack_method=pack)
        files = sorted(f.name for f in Path(tmp).iterdir())
        assert files == ["config.json", "generation_config.json", "model.safetensors"], files
        return load_file(Path(tmp) / "model.safetensors"), json.loads((Path(tmp) / "config.json").read_text())


def case(name, weight, pack="reorder", shards=1, keep=None, exclude=("lm_head",), input_tensors=None, layers={}, kv=None, **model):
    """`layers`: other configs by name pattern. `keep` cuts the model down to names that contain one of these."""
    c = ModelCase("quark", name, shards=shards)
    whole = C.QLayerConfig(weight=weight, input_tensors=input_tensors)
    config = C.QConfig(global_quant_config=whole, exclude=list(exclude), layer_quant_config=dict(layers),
                       kv_cache_quant_config={} if kv is None else {"*k_proj": kv, "*v_proj": kv})
    model = build(c, **model)
    shapes = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    before = {k: v.clone() for k, v in model.state_dict().items()}
    tensors, c.config = export(model, config, pack)
    if keep:
        tensors = {k: v for k, v in tensors.items() if any(part in k for part in keep)}

    def config_of(base):
        for pattern, one in layers.items():
            if pattern.strip("*") in base:
                return one
        return whole

    expect_all(c, tensors, shapes, config_of, pack)
    for k, v in c.expected.items():  # the decoded weights are near to those that were quantized
        far = 0.5 if name.startswith(("int2", "uint2")) else 0.25
        assert float((v.to(F32) - before[k].to(F32)).norm() / before[k].to(F32).norm()) < far, k
    c.write()


def models():
    case("tiny_llama_fp8", FP8, shards=3, input_tensors=FP8, kv=C.QLayerConfig(
        input_tensors=None, weight=FP8, output_tensors=FP8))
    case("tiny_llama_mxfp4", MXFP4, shards=3, input_tensors=MXFP4_INPUT)
    case("tiny_llama_uint4", spec("Uint4PerGroupSpec", ch_axis=-1, group_size=32, **FLOAT), shards=3)
    channel = C.QLayerConfig(weight=spec("FP8E4M3PerChannelSpec", ch_axis=0, is_dynamic=False))
    case("tiny_llama_mixed", MXFP4, shards=3, input_tensors=MXFP4_INPUT, exclude=("lm_head", "*down_proj"),
         layers={"*self_attn*": channel})


def two_bits(dtype, group, zeros="int32"):
    """Asymmetric; Quark has no preset for these."""
    kind = "Group" if group else "Channel"
    return C.QTensorConfig(
        dtype=T.Dtype(dtype), observer_cls=getattr(observers, f"Per{kind}MinMaxObserver"), symmetric=False,
        scale_type=T.ScaleType.float, round_method=T.RoundType.half_even, qscheme=T.QSchemeType(f"per_{kind.lower()}"),
        ch_axis=-1 if group else 0, group_size=group, is_dynamic=False, zero_point_type=T.ZeroPointType(zeros))


def variants():
    """One or two layers of each kind of weight. `reorder` and `order` differ for packed integers only."""
    one = dict(keep=("mlp.up_proj", "self_attn.k_proj", "norm"))
    case("fp8_channel", spec("FP8E4M3PerChannelSpec", ch_axis=0, is_dynamic=False), **one)
    case("fp8_e5m2_tensor", spec("FP8E5M2PerTensorSpec", is_dynamic=False), **one)
    for pack in ("reorder", "order"):
        group = dict(ch_axis=-1, group_size=16)
        case(f"int4_group_{pack}", spec("Int4PerGroupSpec", symmetric=True, **group, **INT), pack, **one)
        case(f"uint4_group_{pack}", spec("Uint4PerGroupSpec", **group, **FLOAT), pack, **one)
        case(f"int4_channel_{pack}", spec("Int4PerChannelSpec", symmetric=True, ch_axis=0, **INT), pack, **one)
    case("int4_group_asym", spec("Int4PerGroupSpec", symmetric=False, ch_axis=-1, group_size=16, **INT), **one)
    case("uint4_channel", spec("Uint4PerChannelSpec", symmetric=False, ch_axis=0, **INT), **one)
    case("int4_tensor", spec("Int4PerTensorSpec", observer_method="min_max", symmetric=True, **INT), **one)
    case("int8_tensor", spec("Int8PerTensorSpec", observer_method="min_max", symmetric=True, **INT), **one)
    case("int8_tensor_asym", spec("Int8PerTensorSpec", observer_method="min_max", symmetric=False, **INT), **one)
    case("int8_channel", spec("Int8PerChannelSpec", symmetric=True, ch_axis=0, **INT), **one)
    case("int8_group", spec("Int8PerGroupSpec", symmetric=True, ch_axis=-1, group_size=16, **INT), **one)
    # The other floats in groups of 32 with E8M0 scales: four 6-bit codes in three bytes, little-endian.
    case("mxfp6_e2m3", spec("OCP_MXFP6E2M3Spec", ch_axis=-1, is_dynamic=False), **one)
    case("mxfp6_e3m2", spec("OCP_MXFP6E3M2Spec", ch_axis=-1, is_dynamic=False), **one)
    case("fp4_group_float", spec("FP4PerGroupSpec", ch_axis=-1, group_size=32, scale_format="float32", is_dynamic=False), **one)
    case("amdfp4", C.AmdFP4Spec(ch_axis=-1, group_size=16, is_dynamic=False).to_quantization_spec(), **one)
    fp8 = C.FP8E4M3PerTensorSpec(observer_method="min_max", is_dynamic=False)
    channel = C.Int4PerChannelSpec(symmetric=True, ch_axis=0, **INT)
    group = C.Int4PerGroupSpec(symmetric=False, ch_axis=-1, group_size=16, **INT)
    for name, second, pack in (("int4_channel_fp8", channel, "reorder"), ("int4_group_fp8", group, "order")):
        case(name, C.ProgressiveSpec(first_stage=fp8, second_stage=second).to_quantization_spec(), pack=pack, **one)
    # Fewer bits: three as a stream, two in bytes (unsigned) or in a word each. `float32`: zero points that are not packed.
    for name, symmetric in (("int3_group", True), ("int3_group_asym", False)):
        case(name, spec("Int3PerGroupSpec", symmetric=symmetric, ch_axis=-1, group_size=16), hidden_size=128, head_dim=64,
             intermediate_size=16, keep=("self_attn.k_proj", "norm"), exclude=("lm_head", "*down_proj"))
    case("int3_channel", spec("Int3PerChannelSpec", symmetric=False, ch_axis=0), **one)
    case("int2_group", spec("Int2PerGroupSpec", symmetric=False, ch_axis=-1, group_size=16), **one)
    case("int2_channel", two_bits("int2", None), **one)
    case("uint2_group", two_bits("uint2", 16), **one)
    case("uint2_channel", two_bits("uint2", None), **one)
    case("uint2_group_plain_zeros", two_bits("uint2", 16, "float32"), **one)
    case("uint4_channel_plain_zeros", two_bits("uint4", None, "float32"), **one)
    # Scales in FP8, and one scale for these.
    for name, pack, first in (("int4_fp8_scales", "reorder", C.Int4PerGroupSpec(symmetric=True, ch_axis=-1, group_size=16, **INT)),
                              ("uint4_fp8_scales", "order", C.Uint4PerGroupSpec(ch_axis=-1, group_size=16, **FLOAT)),
                              ("int8_fp8_scales", "order", C.Int8PerGroupSpec(symmetric=True, ch_axis=-1, group_size=16, **INT))):
        case(name, C.ScaleQuantSpec(first_stage=first, second_stage=fp8).to_quantization_spec(), pack=pack, **one)
    case("uint8_channel", spec("Uint8PerChannelSpec", symmetric=False, ch_axis=0, **INT), **one)


def hostile():
    """Tensors made here, in the layout of an export; configs are Quark's own."""
    def by_hand(name, config, shape, tensors, pack="reorder"):
        c = ModelCase("quark", name)
        quark = C.QConfig(global_quant_config=config, exclude=["lm_head", "re:.*router"]).to_dict()
        quark["export"] = {"kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": pack, "weight_format": "real_quantized",
                           "weight_merge_groups": None}
        c.config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": json.loads(json.dumps(quark))}
        base = L + "mlp.down_proj"
        made = {f"{base}.{k}": v for k, v in tensors(c).items()}
        expect_all(c, made, {base + ".weight": shape}, lambda _: config, pack)
        rounded(c.expected[base + ".weight"])
        c.keep(L + "mlp.router.weight", c.randn(3, 8).to(BF16))
        c.write()

    odd = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45, -1e-40, 3e38, -3e38, 1.17549435e-38, 0.1, -0.37])
    by_hand("hostile_mxfp4", C.QLayerConfig(weight=MXFP4), (64, 128),  # every exponent
            lambda c: {"weight": c.all_bytes(64, 64), "weight_scale": c.all_bytes(64, 4)})
    by_hand("hostile_fp8_channel", C.QLayerConfig(weight=spec("FP8E4M3PerChannelSpec", ch_axis=0, is_dynamic=False)), (12, 256),
            lambda c: {"weight": c.all_bytes(12, 256).view(E4M3), "weight_scale": odd})
    by_hand("hostile_fp8_f16_scale", C.QLayerConfig(weight=FP8), (4, 64),
            lambda c: {"weight": c.all_bytes(4, 64).view(E4M3), "weight_scale": torch.tensor(0.0123).to(F16)})
    words = lambda c, *shape: c.bytes(*shape, 4).view(torch.int32).squeeze(-1)  # noqa: E731
    for kind in ("Uint4", "Int4"):  # groups of hostile scales, and every zero point
        more = dict(symmetric=False, round_method="half_even") if kind == "Int4" else {}
        config = C.QLayerConfig(weight=spec(f"{kind}PerGroupSpec", ch_axis=-1, group_size=8, **FLOAT, **more))
        by_hand(f"hostile_{kind.lower()}", config, (16, 48), lambda c: {
            "weight": words(c, 48, 2), "weight_scale": torch.stack([odd.roll(i) for i in range(8)]).reshape(6, 16),
            "weight_zero_point": words(c, 6, 2)})
    config = C.QLayerConfig(weight=spec("Int8PerChannelSpec", symmetric=False, ch_axis=0, **INT))
    by_hand("hostile_int8", config, (12, 256), lambda c: {
        "weight": c.all_bytes(12, 256).view(torch.int8), "weight_scale": odd, "weight_zero_point": (c.bytes(12) // 2).view(torch.int8)})


if __name__ == "__main__":
    shutil.rmtree(DATA / "quark", ignore_errors=True)
    models()
    variants()
    hostile()
    total("quark")

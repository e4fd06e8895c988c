"""Golden SDNQ models: quantized, stored and dequantized by sdnq 0.2.8 on the CPU, without torch.compile.

Run: `python sdnq_cases.py` with torch 2.15.0, safetensors, numpy and sdnq 0.2.8 (see ../README.md).

Where the library multiplies matrices (products of low rank, rotations), its sums have no order of their own. There the
expected values are sums in F64, rounded once, and `library-f32.safetensors` has the library's own.
"""

import os

os.environ["SDNQ_USE_TORCH_COMPILE"] = "0"  # compiled code does not fuse `addcmul`

import json

import torch
from fp8 import rounded
from safetensors.torch import save_file
from sdnq.layers import SDNQLayer
from sdnq.quant_utils import get_hadamard
from sdnq.quantizer import SDNQConfig, sdnq_post_load_quant
from sdnq.utils import get_sdnq_params

from modelcase import BF16, F16, F32, ModelCase, total
from torch import nn

DTYPES = {"f32": F32, "bf16": BF16, "f16": F16}


class Model(nn.Module):
    """Layers by name, with weights that differ in size from row to row."""

    def __init__(self, layers, rng, dtype):
        super().__init__()
        self.blocks = nn.ModuleDict(layers)
        self.norm = nn.LayerNorm(8)
        for layer in layers.values():
            for parameter in layer.parameters():
                values = torch.randn(parameter.shape, generator=rng)
                rows = torch.rand(parameter.shape[:1] + (1,) * (parameter.ndim - 1), generator=rng)
                parameter.data = (values * (0.1 + rows) + 0.05).to(dtype)
        self.norm.to(dtype)


def exact(layer, params, dtype):
    """What the layer's weight is with sums in F64, and whether the library multiplies matrices for it."""
    sdnq = layer.sdnq_dequantizer
    is_product = params["svd_up"] is not None
    call = {"non_hadamard": True, "non_svd": True, "skip_quantized_matmul": sdnq.use_quantized_matmul, "skip_compile": True}
    values = sdnq(**params, **call, dtype=F32)
    if is_product:
        up, down = params["svd_up"].double(), params["svd_down"].double()
        if sdnq.use_quantized_matmul:
            up, down = up.t(), down.t()
        values = values + (up @ down).float().view(values.shape)
    values = values.to(dtype)
    if sdnq.use_hadamard:
        is_product = True
        size = sdnq.hadamard_group_size
        matrix = get_hadamard(size, dtype=dtype).double()
        blocks = values.flatten(1).unflatten(1, (-1, size)).double()
        values = (blocks @ matrix).float().to(dtype).view(values.shape)
    return values, is_product


class Case(ModelCase):
    def __init__(self, name, layers, torch_dtype=BF16, edit=None, place="config.json", version=None, **options):
        super().__init__("sdnq", name)
        options = {"minimum_allowed_numel": 1, "minimum_allowed_channel_size": 1, "add_skip_keys": False} | options
        model = Model(layers, self.rng, torch_dtype)
        sdnq_post_load_quant(model, torch_dtype=torch_dtype, quantization_config=SDNQConfig(**options))
        config = json.loads(json.dumps(model.quantization_config.to_dict()))
        config["modules_to_not_convert"] = sorted(config["modules_to_not_convert"])
        if version:
            config["sdnq_version"] = version
        self.own_values, library = {}, {}
        self.quantized(model, edit, torch_dtype, library)
        if place == "metadata":
            self.metadata["quantization_config"] = json.dumps(config)
        elif place == "config.json":
            self.sidecar(place, {"_class_name": "Model", "quantization_config": config})
        else:
            self.sidecar(place, config)
        self.write()
        differing = {k: v for k, v in self.own_values.items() if v}
        for name in ("bf16", "f16") if differing else ():
            tensors = {k: v[name] if k in differing else t for k, t, v in self.all_values(name)}
            save_file({k: v.contiguous() for k, v in tensors.items()}, self.dir / f"expected-{name}.safetensors", {"format": "pt"})
        if library:
            save_file(library, self.dir / "library-f32.safetensors", {"format": "pt"})

    def all_values(self, name):
        for k, t in self.expected.items():
            stored = self.tensors.get(k)
            is_plain = stored is not None and stored.dtype == t.dtype and stored.shape == t.shape
            yield k, (t if is_plain and t.dtype != F32 else rounded(t)[name]), self.own_values.get(k, {})

    def quantized(self, model, edit, torch_dtype, library):
        for name, value in model.state_dict().items():
            self.tensors[name] = value.detach().clone().contiguous()
        if edit:
            edit(self.tensors)
        layers = {n: m for n, m in model.named_modules() if isinstance(m, SDNQLayer)}
        inner = {f"{n}.{k}" for n, m in layers.items() for k, v in get_sdnq_params(m).items() if v is not None}
        for name, value in self.tensors.items():
            if name not in inner:
                self.expected[name] = value
        for name, layer in layers.items():
            # As `create_quantized_param` loads them: scales and factors become F32 if they are not quantized.
            params = {k: self.tensors.get(f"{name}.{k}") for k in get_sdnq_params(layer)}
            sdnq = layer.sdnq_dequantizer
            for key, nested in (("scale", "scale_2"), ("zero_point", "zero_point_scale"), ("svd_up", None), ("svd_down", None)):
                if params[key] is not None and (nested is None or params[nested] is None):
                    params[key] = params[key].float()
            weight = f"{name}.weight"
            own = {k: exact(layer, params, dtype)[0] for k, dtype in DTYPES.items()}
            self.expected[weight] = own["f32"]
            call = {"skip_quantized_matmul": sdnq.use_quantized_matmul, "skip_compile": True, "dtype": F32}
            theirs = sdnq(**{k: v if v is None else v.clone() for k, v in params.items()}, **call)
            if exact(layer, params, F32)[1]:
                library[weight] = theirs.contiguous()
            else:
                assert torch.equal(theirs.nan_to_num(7), own["f32"].nan_to_num(7)), weight
            if sdnq.use_hadamard:
                self.own_values[weight] = {k: own[k] for k in ("bf16", "f16")}


def linears(sizes, bias=False):
    return {f"{name}": nn.Linear(k, n, bias=bias) for name, (n, k) in sizes.items()}


def by_dtype(names, n, k):
    """A layer for each dtype, and the entries that give it that."""
    layers = linears({f"l{i}_{d}": (n, k) for i, d in enumerate(names)})
    return layers, {d: [f"blocks.l{i}_{d}.weight"] for i, d in enumerate(names)}


def every_dtype():
    from sdnq.common import dtype_dict, weights_dtype_order

    narrow = [d for d in weights_dtype_order if dtype_dict[d]["num_bits"] <= 8]
    narrow += ["float8_e4m3fnuz", "fp4", "ufp6"]
    integers = [d for d in narrow if dtype_dict[d]["is_integer"]]
    floats = [d for d in narrow if not dtype_dict[d]["is_integer"]]
    for name, dtypes, size in (("integers", integers, (6, 80)), ("floats", floats, (3, 40))):
        layers, entries = by_dtype(dtypes, *size)
        Case(f"every_{name}", layers, modules_dtype_dict=entries, group_size=20 if name == "floats" else 0)


def wide_dtypes():
    """Dtypes of more than eight bits: rows that begin within a unit of codes, and last units that lack codes."""
    from sdnq.common import dtype_dict, weights_dtype_order

    wide = [d for d in weights_dtype_order if dtype_dict[d]["num_bits"] > 8] + ["bfloat16", "fp12", "ufp10"]
    integers = [d for d in wide if dtype_dict[d]["is_integer"]]
    floats = [d for d in wide if not dtype_dict[d]["is_integer"]]
    for name, dtypes, size in (("integers", integers, (4, 60)), ("floats", floats, (2, 24))):
        layers, entries = by_dtype(dtypes, *size)
        Case(f"wide_{name}", layers, modules_dtype_dict=entries, group_size=size[1] // 3)
    odd = {"uint12": ["a"], "int12": ["b"], "uint10": ["c"], "int14": ["d"], "uint9": ["e"], "int15": ["f"]}
    sizes = {"a": (3, 12), "b": (1, 4), "c": (3, 8), "d": (5, 24), "e": (16, 3), "f": (2, 8)}
    Case("wide_odd", linears(sizes), modules_dtype_dict=odd, group_size=-1)
    Case("wide_tensorwise", linears({"a": (6, 32), "b": (6, 24)}, bias=True), modules_dtype_dict={"uint11": ["a"], "float16": ["b"]}, group_size=-2)
    Case("wide_matmul", linears({"a": (32, 48), "b": (4, 64), "c": (32, 32)}), weights_dtype="float16", use_quantized_matmul=True, modules_dtype_dict={"int16": ["c"]})
    Case("wide_matmul_float8", linears({"a": (32, 48)}), weights_dtype="float16", use_quantized_matmul=True, quantized_matmul_dtype="float8_e4m3fn", group_size=-1)
    Case("wide_nested", linears({"a": (8, 64)}, bias=True), weights_dtype="uint9", scale_dtype="uint12", zero_point_dtype="float16_e4m12fnu", group_size=16)
    Case("wide_svd_hadamard", linears({"a": (3, 64)}), weights_dtype="uint13", use_hadamard=True, use_svd=True, svd_rank=2, group_size=16)
    Case("wide_conv", {"c": nn.Conv2d(8, 2, 2)}, weights_dtype="uint10", quant_conv=True, group_size=4)
    Case("wide_hostile", linears({"a": (4, 64), "b": (4, 64), "c": (4, 64)}), modules_dtype_dict={"uint9": ["a"], "float16": ["b"], "bfloat16": ["c"]}, group_size=32, edit=hostile)


def special_codes(tensor):
    """Infinities, NaN, zeros and subnormals among the codes of a float."""
    if tensor.dtype in (F16, BF16):
        numbers = [0, 0x8000, 1, 0x8001, 0x3FF, 0x7C00, 0xFC00, 0x7E00, 0x7F80, 0xFF80, 0x7FC1]
        tensor.view(-1).view(torch.int16)[:: 5][: len(numbers)] = torch.tensor(numbers, dtype=torch.int32).to(torch.int16)


def hostile(tensors):
    for name in [n for n in tensors if n.endswith((".scale", ".zero_point"))]:
        flat = tensors[name].view(-1)
        numbers = [0.0, -0.0, 1e-45, -1e-40, 3.4e38, -3.4e38, float("inf"), float("-inf"), float("nan"), 1.1754942e-38]
        shift = 3 * name.endswith(".zero_point")
        for i in range(min(len(numbers), len(flat))):
            flat[i] = numbers[(i + shift) % len(numbers)]
    for name in [n for n in tensors if n.endswith(".weight") and n.startswith("blocks")]:
        special_codes(tensors[name])


def main():
    every_dtype()
    sizes = {"to_q": (8, 64), "to_k": (6, 96), "ff": (3, 200)}
    Case("uint4", linears(sizes | {"one": (1, 64), "few": (1, 128)}, bias=True), weights_dtype="uint4")
    Case("uint4_group_odd", linears({"a": (6, 90), "b": (3, 26)}), weights_dtype="uint4", group_size=18, torch_dtype=F32)
    Case("rows_f16", linears(sizes), weights_dtype="uint6", group_size=-1, torch_dtype=F16, dequantize_fp32=False)
    Case("scales_bf16", linears(sizes), weights_dtype="uint4", dequantize_fp32=False, modules_dtype_dict={"int8": ["to_k"]})
    tensorwise = {"uint4": ["*.to_q.weight"], "int8": ["to_k"], "float8_e4m3fn": ["ff"]}
    Case("tensorwise", linears(sizes, bias=True), group_size=-2, modules_dtype_dict=tensorwise)
    Case("matmul_int8", linears({"a": (32, 48), "b": (4, 64), "c": (32, 48), "d": (32, 32)}), weights_dtype="int8", use_quantized_matmul=True, modules_to_not_use_matmul=["d"], modules_dtype_dict={"float8_e4m3fn": ["c"]})
    Case("matmul_uint8", linears({"a": (32, 48)}), weights_dtype="uint8", use_quantized_matmul=True)
    Case("matmul_tensorwise", linears({"a": (32, 48), "b": (32, 32)}), weights_dtype="int8", use_quantized_matmul=True, group_size=-2)
    Case("svd_uint4", linears({"a": (10, 64), "b": (4, 96)}), weights_dtype="uint4", use_svd=True, svd_rank=8)
    Case("svd_matmul", linears({"a": (32, 32), "b": (9, 64)}), weights_dtype="int8", use_svd=True, svd_rank=8, use_quantized_matmul=True)
    Case("svd_matmul_uint4", linears({"a": (32, 32)}), weights_dtype="uint4", use_svd=True, svd_rank=8, use_quantized_matmul=True)
    Case("hadamard", linears({"a": (2, 256), "b": (3, 96), "c": (2, 128), "d": (3, 6), "e": (2, 64)}), weights_dtype="uint4", use_hadamard=True)
    Case("svd_hadamard", linears({"a": (5, 192)}), weights_dtype="int5", use_hadamard=True, use_svd=True, svd_rank=4, hadamard_group_size=128)
    codebooks = {"uint2": ["to_q"], "uint8": ["ff"], "uint5": ["to_k"]}
    Case("codebook", linears(sizes | {"ff": (2, 96)}), weights_dtype="uint4", use_codebook=True, modules_dtype_dict=codebooks, group_size=32)
    Case("codebook_tensorwise", linears({"a": (6, 64)}, bias=True), weights_dtype="uint3", use_codebook=True, group_size=-2)
    for scale, zero in (("int8", "uint8"), ("uint4", None), ("float8_e4m3fn", "float6_e3m2fn"), ("uint8", "none")):
        nested = dict(weights_dtype="uint4", scale_dtype=scale, zero_point_dtype=zero, group_size=16)
        Case(f"nested_{scale}_{zero}".lower(), linears({"a": (8, 64)}, bias=True), **nested)
    Case("nested_codebook", linears({"a": (8, 64)}, bias=True), weights_dtype="uint4", scale_dtype="uint8", use_codebook_scale=True, group_size=16)
    Case("nested_zero_point_int8", linears({"a": (8, 64), "b": (4, 32)}), weights_dtype="uint4", scale_dtype="int8", group_size=16)
    rows = {"int11": ["b"], "uint4": ["c"]}
    sizes = {"a": (16, 64), "b": (16, 32), "c": (8, 32)}
    Case("nested_rows", linears(sizes, bias=True), weights_dtype="float8_e4m3fn", scale_dtype="uint6", group_size=-1, modules_dtype_dict=rows)
    Case("nested_int8", linears({"a": (8, 64)}), weights_dtype="int6", scale_dtype="uint8", group_size=16)
    convs = {"c1": nn.Conv1d(32, 6, 3), "c2": nn.Conv2d(16, 6, 3), "c3": nn.Conv2d(64, 4, 1), "c4": nn.Conv3d(8, 2, 2)}
    Case("conv", convs, weights_dtype="uint4", quant_conv=True, group_size=8)
    convs = {"c2": nn.Conv2d(16, 6, 3), "c3": nn.Conv2d(64, 6, 1)}
    Case("conv_hadamard", convs, weights_dtype="int8", quant_conv=True, group_size=-1, use_hadamard=True, use_svd=True, svd_rank=2)
    Case("embedding", {"e": nn.Embedding(10, 64)}, weights_dtype="int7", quant_embedding=True)
    rules = {".blocks.a": {"weights_dtype": "int8", "group_size": -1}, "*.b.*": {"weights_dtype": "float8_e4m3fn"}}
    Case(
        "rules",
        linears({"a": (4, 64), "b": (4, 64), "c": (4, 64), "d": (4, 64), "e": (4, 64)}),
        weights_dtype="uint4",
        modules_quant_config=rules,
        modules_dtype_dict={"minimum_6bit": ["c"], "5bit": [".blocks.d"], "uint2": ["*.c.weight", "e"]},
        place="quantization_config.json",
    )
    Case("metadata", linears({"a": (4, 64)}), weights_dtype="uint5", place="metadata")
    Case("hostile", linears({"a": (12, 64), "b": (12, 64)}), modules_dtype_dict={"uint4": ["a"], "int8": ["b"]}, group_size=32, edit=hostile)
    wide_dtypes()
    total("sdnq")


if __name__ == "__main__":
    main()

"""Golden pack-quantized models, made and decoded by compressed-tensors 0.20 (CPU).

Run: `python ct_pack.py` (see ../README.md). It rewrites `../compressed_tensors/pack_*` but for `pack_old_*`.
"""

from ct_common import *  # noqa: F403

import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import apply_quantization_config, preset_name_to_scheme

from dirs import DirCase
from fp8 import BF16, F16, F32

I32 = torch.int32


def weight(c, n, k, dtype=BF16):
    return c.randn(n, k, scale=0.05).to(dtype)


def lm_head(c, k=64):
    c.norm(k)
    c.keep("lm_head.weight", c.randn(6, k, scale=0.02).to(BF16))


def bits_cases():
    """Every width, symmetric and not, in groups and channels; sizes that fill neither words nor bytes."""
    for b in range(1, 9):
        c = DirCase(FAMILY, f"pack_b{b}")
        groups, make = (
            {},
            [
                (Q, (13, 96), F16, dict(group_size=32, strategy="group")),
                (K, (37, 64), BF16, dict(group_size=32, strategy="group", symmetric=False)),
                (UP, (9, 75), F32, dict(strategy="channel")),
                (DOWN, (19, 77), BF16, dict(strategy="channel", symmetric=False)),
            ],
        )
        for i, (base, shape, dtype, args) in enumerate(make):
            groups[f"group_{i}"] = s = scheme([base], num_bits=b, **args)
            s.format = "pack-quantized"
            parts = compress(weight(c, *shape, dtype), s)
            assert parts["weight_packed"].shape == (shape[0], -(-shape[1] * b // 32))
            if "weight_zero_point" in parts:
                assert parts["weight_zero_point"].shape[0] == -(-shape[0] * b // 32)
            add(c, base, parts, s)
        c.config = config_of(groups)
        lm_head(c)
        c.write()
        whole(c)


def preset_cases():
    """One scheme for all Linear modules, as llm-compressor's presets have it."""
    for case, preset, shape, edit in [
        ("pack_w4a16", "W4A16", (10, 256), {}),
        ("pack_w4a16_asym", "W4A16_ASYM", (17, 256), {}),
        ("pack_w8a16_g64", "W8A16", (8, 192), {"group_size": 64}),
        ("pack_w3a16_g32", "W3A16", (11, 160), {"group_size": 32}),
    ]:
        c = DirCase(FAMILY, case)
        s = preset_name_to_scheme(preset, ["Linear"])
        for k, v in edit.items():
            setattr(s.weights, k, v)
        c.config = config_of({"group_0": s})
        for base in (Q, UP):
            add(c, base, compress(weight(c, *shape), s), s)
            c.keep(base + ".bias", c.randn(shape[0], scale=0.1).to(BF16))
        lm_head(c)
        c.write()
        whole(c)

    # A group whose name is a preset and whose value is the list of targets; embeddings quantized too.
    c = DirCase(FAMILY, "pack_preset_name")
    full = QuantizationConfig(config_groups={"W4A16": ["Linear", "Embedding"]})
    s = full.config_groups["W4A16"]
    c.config = config_of({"W4A16": s}, ignore=[])
    c.config["quantization_config"]["config_groups"] = {"W4A16": ["Linear", "Embedding"]}
    for base, shape in [(Q, (8, 128)), ("model.embed_tokens", (12, 256)), ("lm_head", (12, 256))]:
        add(c, base, compress(weight(c, *shape), s), s)
    c.norm(128)
    c.write()
    whole(c)


def overlap_case():
    """Targets that overlap: the library says which group a module has. Each group has a width of its own."""
    c = DirCase(FAMILY, "pack_overlap")
    targets = [["re:.*proj$"], ["Linear"], ["re:.*down_proj$", O], [UP], ["re:.*[qk]_proj$"], ["re:.*[kv]_proj$"]]
    groups = {}
    for i, (names, bits) in enumerate(zip(targets, [8, 4, 7, 6, 5, 3])):
        groups[f"group_{i}"] = scheme(names, num_bits=bits, strategy="channel", format="pack-quantized")
    c.config = config_of(groups)
    root = torch.nn.Module()
    for base in (Q, K, V, O, GATE, UP, DOWN, L + "mlp.router"):
        module = root
        for name in base.split(".")[:-1]:
            module.add_module(name, getattr(module, name, torch.nn.Module()))
            module = getattr(module, name)
        module.add_module(base.split(".")[-1], torch.nn.Linear(32, 6, bias=False))
    apply_quantization_config(root, QuantizationConfig(config_groups=groups, ignore=["lm_head"]), show_progress=False)
    for base, module in root.named_modules():
        if isinstance(module, torch.nn.Linear):
            s = module.quantization_scheme
            print(f"    {base}: {s.weights.num_bits} bits")
            add(c, base, compress(weight(c, 6, 32), s), s)
    c.write()  # not `whole`: `CompressedTensorsDequantizer` takes the first group of the config that fits


def variant_cases():
    # actorder weight and static change nothing in the file
    c = DirCase(FAMILY, "pack_actorder")
    groups = {}
    for i, (base, order) in enumerate([(Q, "weight"), (UP, "static")]):
        groups[f"group_{i}"] = s = scheme([base], group_size=32, strategy="group", actorder=order, format="pack-quantized")
        add(c, base, compress(weight(c, 12, 64), s), s)
    c.config = config_of(groups)
    c.config["quantization_config"]["config_groups"]["group_1"]["weights"]["actorder"] = "static"
    c.norm(64)
    c.write()
    whole(c)

    # weight_shape as I32, as older writers and `compression_param_info` have it
    c = DirCase(FAMILY, "pack_shape_i32")
    s = scheme(group_size=32, strategy="group", symmetric=False)
    c.config = config_of({"group_0": s})
    for base, shape in [(Q, (18, 64)), (DOWN, (24, 96))]:
        parts = compress(weight(c, *shape), s)
        add(c, base, parts | {"weight_shape": parts["weight_shape"].to(I32)}, s)
    c.norm(64)
    c.write()
    whole(c)

    # one scale for the tensor: the zero point is not packed but I8 [1]
    c = DirCase(FAMILY, "pack_tensor")
    groups = {}
    for i, (base, symmetric) in enumerate([(Q, True), (UP, False)]):
        groups[f"group_{i}"] = s = scheme([base], strategy="tensor", symmetric=symmetric, format="pack-quantized")
        parts = compress(weight(c, 11, 45), s)
        assert symmetric or parts["weight_zero_point"].dtype == torch.int8
        add(c, base, parts, s)
    c.config = config_of(groups)
    c.norm(45)
    c.write()
    whole(c)

    # ignored modules (exact names and regexes, which match from the start of the name), and scales that are not the weights'
    c = DirCase(FAMILY, "pack_ignore_kv")
    s = scheme(group_size=32, strategy="group")
    ignore = ["lm_head", "re:.*self_attn.*", "re:vision_tower.*", L + "mlp.gate_proj"]
    c.config = config_of({"group_0": s}, ignore=ignore)
    c.config["quantization_config"]["kv_cache_scheme"] = QuantizationArgs(
        num_bits=8, type="float", strategy="tensor"
    ).model_dump()
    add(c, UP, compress(weight(c, 8, 64), s), s)
    add(c, DOWN, compress(weight(c, 8, 32), s), s)
    c.add({UP + ".input_scale": torch.tensor([0.5]).to(BF16), UP + ".output_scale": torch.tensor([0.25]).to(BF16)})
    c.add({L + f"self_attn.{n}_scale": torch.tensor([0.031]).to(BF16) for n in "kv"})
    for name in (Q, O, GATE, "vision_tower.blocks.0.fc"):
        c.keep(name + ".weight", weight(c, 4, 32))
    lm_head(c)
    c.write()
    whole(c)


def expert_cases():
    """Stacked experts: every slice is packed for itself. Three ways to name them; the result is named as in transformers."""
    c = DirCase(FAMILY, "pack_experts3d")
    s = scheme(["re:.*experts.*"], group_size=32, strategy="group")
    c.config = config_of({"group_0": s}, ignore=["lm_head", "re:.*router.*"])
    for name, dotted, shape, shaped in [
        (L + "mlp.experts.gate_up_proj", True, (3, 20, 64), True),
        (L + "mlp.experts.down_proj", True, (3, 10, 32), False),  # without weight_shape
        ("model.layers.1.mlp.experts.gate_up_proj", False, (2, 12, 64), False),  # gate_up_proj_packed, gate_up_proj_scale
        ("model.layers.1.mlp.experts.down_proj", False, (2, 9, 32), False),
        ("model.layers.2.mlp.experts.w2_weight", True, (2, 7, 64), False),
    ]:
        parts = compress(c.randn(*shape, scale=0.05).to(BF16), s)
        assert parts["weight_packed"].shape == (*shape[:2], shape[2] // 8)
        keep = {k: v for k, v in parts.items() if shaped or k != "weight_shape"}
        c.add({f"{name}.{k}" if dotted else name + k.removeprefix("weight"): v for k, v in keep.items()})
        c.expect(name, decode(parts, s))
        c.library(name, compressor_of(s).decompress(parts, s)["weight"], "decompress")
    c.keep(L + "mlp.router.weight", weight(c, 3, 64))
    c.norm(64)
    c.write()

    c = DirCase(FAMILY, "pack_experts3d_asym")
    s = scheme(["re:.*experts.*"], group_size=32, strategy="group", symmetric=False)
    c.config = config_of({"group_0": s}, ignore=["lm_head"])
    name = L + "mlp.experts.gate_up_proj"
    parts = compress(c.randn(3, 20, 64, scale=0.05).to(BF16), s)
    assert parts["weight_zero_point"].shape == (3, 3, 2) and parts["weight_shape"].shape == (3,)
    c.add({f"{name}.{k}": v for k, v in parts.items()})
    c.expect(name, decode(parts, s))
    c.library(name, compressor_of(s).decompress(parts, s)["weight"], "decompress")
    c.norm(64)
    c.write()


ODD = [
    0.0,
    -0.0,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e-45,
    -1e-40,
    3e38,
    -3e38,
    1.17549435e-38,
    0.1,
    -0.37,
    65504.0,
    6e-8,
    2.0**-133,
    2.0**-130 * 1.7,
    3.3895314e38,
    6.1e-5,
]


def hostile_case():
    """Every code under scales that break naive arithmetic; zero points from end to end."""
    for b in (4, 8):
        c = DirCase(FAMILY, f"pack_hostile_b{b}")
        groups, n, k = {}, len(ODD), 64
        for i, (base, dtype, symmetric) in enumerate(
            [(Q, BF16, True), (K, F16, True), (V, F32, True), (UP, BF16, False), (GATE, F16, False), (DOWN, F32, False)]
        ):
            groups[f"group_{i}"] = s = scheme(
                [base], num_bits=b, strategy="channel", symmetric=symmetric, format="pack-quantized"
            )
            low = -(2 ** (b - 1))
            codes = torch.stack([torch.randperm(256, generator=c.rng)[:k] % 2**b + low for _ in range(n)]).to(torch.int8)
            parts = {
                "weight_packed": pack_to_int32(codes, b),
                "weight_shape": torch.tensor([n, k]),
                "weight_scale": torch.tensor(ODD).view(n, 1).to(dtype),
            }
            if not symmetric:
                zero = (torch.arange(n) * (2**b - 1) // (n - 1) + low).to(torch.int8).view(n, 1)
                parts["weight_zero_point"] = pack_to_int32(zero, b, packed_dim=0)
            add(c, base, parts, s)
        c.config = config_of(groups)
        c.norm(64)
        c.write()
        whole(c)


if __name__ == "__main__":
    bits_cases()
    overlap_case()
    preset_cases()
    variant_cases()
    expert_cases()
    hostile_case()

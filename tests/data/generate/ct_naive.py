"""Golden int-, naive- and float-quantized, NVFP4, MXFP4, MXFP6 and MXFP8 modules of compressed-tensors 0.20 (CPU).

Run: `python ct_naive.py` (see ../README.md). It rewrites `../compressed_tensors/{int,naive,float,nvfp4,mxfp*,mixed}_*`.
"""

from ct_common import *  # noqa: F403

import torch
from compressed_tensors.quantization import preset_name_to_scheme

from ct_pack import ODD, lm_head, weight
from dirs import DirCase
from fp8 import BF16, E4M3, F16, F32, U8

DYNAMIC = QuantizationArgs(num_bits=8, type="int", strategy="token", dynamic=True)


def int_cases():
    for case, format, inputs in [("int_quantized", "int-quantized", DYNAMIC), ("naive_int", "naive-quantized", None)]:
        c = DirCase(FAMILY, case)
        groups = {}
        for i, (base, shape, dtype, args) in enumerate(
            [
                (Q, (17, 45), BF16, dict(strategy="channel")),
                (K, (12, 33), F16, dict(strategy="tensor")),
                (UP, (15, 40), BF16, dict(strategy="channel", symmetric=False)),
                (GATE, (11, 27), F32, dict(strategy="tensor", symmetric=False)),
                (DOWN, (9, 64), BF16, dict(strategy="group", group_size=32, symmetric=False)),
                (O, (40, 48), BF16, dict(strategy="block", block_structure=[32, 16])),
            ]
        ):
            groups[f"group_{i}"] = s = scheme([base], inputs, format, num_bits=8, **args)
            parts = compress(weight(c, *shape, dtype), s)
            assert parts["weight"].dtype == torch.int8
            if not s.weights.symmetric:
                assert parts["weight_zero_point"].dtype == torch.int8
            add(c, base, parts, s)
        c.config = config_of(groups)
        lm_head(c)
        c.write()
        if inputs is not None:  # the whole-model decoder goes by the inferred format, which is never naive for integers
            whole(c)

    # Fewer than eight bits, a byte each: the values are in the range of the bits.
    c = DirCase(FAMILY, "naive_int4")
    groups = {}
    for i, (base, symmetric) in enumerate([(Q, True), (UP, False)]):
        groups[f"group_{i}"] = s = scheme([base], None, "naive-quantized", group_size=16, strategy="group", symmetric=symmetric)
        add(c, base, compress(weight(c, 10, 48), s), s)
    c.config = config_of(groups)
    lm_head(c)
    c.write()

    # W8A8 preset as in RedHatAI's *-quantized.w8a8, with static input scales
    c = DirCase(FAMILY, "int_w8a8")
    s = preset_name_to_scheme("W8A8", ["Linear"])
    c.config = config_of({"group_0": s}, ignore=["re:.*lm_head", "re:.*self_attn\\.(k|v)_proj$"])
    for base in (Q, UP, DOWN):
        add(c, base, compress(weight(c, 14, 50), s), s)
        c.add(
            {
                base + ".input_scale": torch.tensor([0.02]).to(BF16),
                base + ".input_zero_point": torch.tensor([3], dtype=torch.int8),
            }
        )
        c.keep(base + ".bias", c.randn(14, scale=0.1).to(BF16))
    c.keep(K + ".weight", weight(c, 6, 50))
    lm_head(c, 50)
    c.write()
    whole(c)

    c = DirCase(FAMILY, "int_hostile")
    groups, n = {}, len(ODD)
    for i, (base, dtype, symmetric) in enumerate(
        [(Q, BF16, True), (K, F16, True), (V, F32, True), (UP, BF16, False), (GATE, F16, False), (DOWN, F32, False)]
    ):
        groups[f"group_{i}"] = s = scheme([base], DYNAMIC, "int-quantized", num_bits=8, strategy="channel", symmetric=symmetric)
        codes = torch.stack([torch.randperm(256, generator=c.rng)[:64] for _ in range(n)]).to(torch.uint8).view(torch.int8)
        parts = {"weight": codes, "weight_scale": torch.tensor(ODD).view(n, 1).to(dtype)}
        if not symmetric:
            parts["weight_zero_point"] = (torch.arange(n) * 255 // (n - 1) - 128).to(torch.int8).view(n, 1)
        add(c, base, parts, s)
    c.config = config_of(groups)
    c.norm(64)
    c.write()
    whole(c)


def float_cases():
    """The presets in BF16 are tests/data/fp8/ct_*; here all strategies side by side, the other scale dtypes, and hostile scales."""
    c = DirCase(FAMILY, "float_quantized")
    groups, inputs = {}, QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True)
    for i, (base, shape, dtype, args) in enumerate(
        [
            (Q, (17, 45), F16, dict(strategy="channel")),
            (K, (12, 33), F32, dict(strategy="tensor")),
            (O, (40, 50), BF16, dict(strategy="block", block_structure=[32, 16])),
            (UP, (35, 64), F32, dict(strategy="block", block_structure=[16, 64])),
            (DOWN, (9, 96), BF16, dict(strategy="group", group_size=32)),
        ]
    ):
        groups[f"group_{i}"] = s = scheme([base], inputs, "float-quantized", num_bits=8, type="float", **args)
        parts = compress(weight(c, *shape, dtype), s)
        assert parts["weight"].dtype == E4M3
        add(c, base, parts, s)
    c.config = config_of(groups)
    lm_head(c)
    c.write()
    whole(c)

    c = DirCase(FAMILY, "float_hostile")
    groups, n = {}, len(ODD)
    for i, (base, dtype) in enumerate([(Q, BF16), (K, F16), (V, F32)]):
        groups[f"group_{i}"] = s = scheme([base], None, "naive-quantized", num_bits=8, type="float", strategy="channel")
        codes = torch.stack([torch.randperm(256, generator=c.rng)[:128] for _ in range(n)]).to(U8).view(E4M3)
        add(c, base, {"weight": codes, "weight_scale": torch.tensor(ODD).view(n, 1).to(dtype)}, s)
    c.config = config_of(groups)
    c.norm(64)
    c.write()
    whole(c)


def codes4(c, n, k):
    """Packed FP4: every 16 values hold each code once."""
    q = torch.stack([torch.randperm(16, generator=c.rng) for _ in range(n * k // 16)]).reshape(n, k).to(U8)
    return q[:, 1::2] << 4 | q[:, 0::2]


def mx_cases():
    for case, preset, base_shape in [
        ("nvfp4_a16", "NVFP4A16", (10, 80)),
        ("mxfp4", "MXFP4", (9, 96)),
        ("mxfp4_a16", "MXFP4A16", (7, 64)),
        ("mxfp6", "MXFP6A16", (9, 96)),
        ("mxfp8", "MXFP8", (9, 96)),
    ]:
        c = DirCase(FAMILY, case)
        s = preset_name_to_scheme(preset, ["Linear"])
        c.config = config_of({"group_0": s}, ignore=["lm_head", "re:.*gate_proj"])
        for base in (Q, DOWN):
            w = weight(c, *base_shape)
            w[0, :32] = 0
            w[1] *= 2.0**-30
            if preset.startswith("MX"):
                w[2] *= 2.0**40
            parts = compress(w, s)
            assert parts["weight_scale"].dtype == (E4M3 if preset.startswith("NV") else U8), parts["weight_scale"].dtype
            add(c, base, parts, s)
        c.keep(GATE + ".weight", weight(c, 5, 32))
        lm_head(c)
        c.write()
        whole(c)

    # every exponent byte, among them 0 (2^-127), 254 and 255 (the library decodes it as infinity)
    c = DirCase(FAMILY, "mx_hostile")
    groups = {}
    for i, (base, preset) in enumerate([(Q, "MXFP4A16"), (UP, "MXFP6A16"), (DOWN, "MXFP8A16")]):
        groups[f"group_{i}"] = s = preset_name_to_scheme(preset, [base])
        s.format = infer_module_format(torch.nn.Linear, s)
        scale = torch.randperm(256, generator=c.rng).to(U8)[:96].view(12, 8)
        scale[0] = torch.tensor([0, 1, 2, 127, 252, 253, 254, 255])
        if preset == "MXFP8A16":
            codes = {"weight": torch.stack([torch.randperm(256, generator=c.rng) for _ in range(12)]).to(U8).view(E4M3)}
        elif preset == "MXFP6A16":
            codes = {"weight_packed": c.bytes(12, 192)}
        else:
            codes = {"weight_packed": codes4(c, 12, 256)}
        add(c, base, codes | {"weight_scale": scale}, s)
    c.config = config_of(groups)
    c.norm(64)
    c.write()
    whole(c)


def mixed_case():
    """Five formats in one model: the group's `format` decides, the global one is `mixed-precision`."""
    c = DirCase(FAMILY, "mixed_precision")
    fp8 = preset_name_to_scheme("FP8_DYNAMIC", ["re:.*self_attn\\.(q|k|v|o)_proj$"])
    nvfp4 = preset_name_to_scheme("NVFP4", ["re:.*layers\\.0\\.mlp\\..*"])
    int4 = scheme(["re:.*layers\\.1\\.mlp\\.(gate|up)_proj"], strategy="group", group_size=32, symmetric=False)
    int8 = preset_name_to_scheme("W8A8", ["model.layers.1.mlp.down_proj"])
    mx = preset_name_to_scheme("MXFP8", ["re:lm_.*"])
    groups = {"attention": fp8, "group_1": nvfp4, "group_2": int4, "group_3": int8, "group_4": mx}
    c.config = config_of(groups, ignore=["re:.*layers\\.1\\.self_attn.*", "model.visual.proj"])
    assert c.config["quantization_config"]["format"] == "mixed-precision"
    for base, s in [
        (Q, fp8),
        (V, fp8),
        (UP, nvfp4),
        (DOWN, nvfp4),
        ("model.layers.1.mlp.up_proj", int4),
        ("model.layers.1.mlp.gate_proj", int4),
        ("model.layers.1.mlp.down_proj", int8),
        ("lm_head", mx),
    ]:
        add(c, base, compress(weight(c, 12, 64), s), s)
        if s is nvfp4:
            c.add({base + ".input_global_scale": torch.tensor([432.0])})
    c.keep("model.layers.1.self_attn.q_proj.weight", weight(c, 8, 64))
    c.keep("model.visual.proj.weight", weight(c, 8, 64))
    c.norm(64)
    c.write(shards=2)
    whole(c)


def consolidated_case():
    """Mistral's own files with compressed-tensors inside: the config is in params.json."""
    c = DirCase(FAMILY, "consolidated_nvfp4")
    s = preset_name_to_scheme("NVFP4", ["Linear"])
    params = config_of(
        {"group_0": s},
        ignore=["output", "re:layers\\.0\\.attention\\.w[qk]", "tok_embeddings"],
        base={"dim": 64, "n_layers": 1, "n_heads": 2},
    )
    c.sidecar("params.json", params)
    for name in ("attention.wo", "feed_forward.w2"):
        add(c, f"layers.0.{name}", compress(weight(c, 12, 64), s), s)
        c.add({f"layers.0.{name}.input_global_scale": torch.tensor([432.0])})
    for name in ("output", "tok_embeddings", "layers.0.attention.wq"):
        c.keep(name + ".weight", weight(c, 8, 64))
    c.norm(64, "norm.weight")
    c.write(shards=2, stem="consolidated")
    whole(c)


if __name__ == "__main__":
    int_cases()
    float_cases()
    mx_cases()
    mixed_case()
    consolidated_case()

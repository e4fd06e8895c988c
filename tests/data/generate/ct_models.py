"""Golden sharded models of compressed-tensors 0.20: made by its model compressor, read back by transformers (CPU).

Run: `python ct_models.py` (see ../README.md). It rewrites `../compressed_tensors/tiny_*`.
"""

from ct_common import *  # noqa: F403

import torch
import transformers
from compressed_tensors.quantization import apply_quantization_config, preset_name_to_scheme
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, DeepseekV3Config, LlamaConfig

from dirs import DirCase, load_all, rounded
from fp8 import BF16, same

transformers.logging.set_verbosity_error()

LLAMA_TINY = dict(
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    vocab_size=24,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
)
MOE_TINY = dict(
    hidden_size=32,
    intermediate_size=32,
    moe_intermediate_size=32,
    num_hidden_layers=2,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    q_lora_rank=None,
    kv_lora_rank=16,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
    vocab_size=24,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
)


def tiny(c, config):
    model = AutoModelForCausalLM.from_config(config, dtype=BF16)
    for name, p in sorted(model.named_parameters()):
        p.data = (c.randn(*p.shape, scale=0.05) + (1 if "norm" in name else 0)).to(p.dtype)
    return model


def saved(model, compressor=None):
    """Tensors and config.json, as `save_pretrained` and `update_config` write them."""
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        if compressor:
            compressor.update_config(d)
        return load_all(Path(d)), json.loads((Path(d) / "config.json").read_text())


def quantize_llama(c, groups, ignore, kv=None):
    model = tiny(c, LlamaConfig(**LLAMA_TINY))
    for g in groups.values():
        g.format = g.format or infer_module_format(torch.nn.Linear, g)
    apply_quantization_config(
        model, QuantizationConfig(config_groups=groups, ignore=ignore, kv_cache_scheme=kv), show_progress=False
    )
    for _, m in model.named_modules():
        s = getattr(m, "quantization_scheme", None)
        if s is None or s.weights is None:
            for n, p in m.named_parameters(recurse=False):
                if n in ("k_scale", "v_scale"):
                    p.data.fill_(0.0123)
            continue
        for k, v in qparams(m.weight.data, s).items():
            getattr(m, k).data = v
        for n, p in m.named_parameters(recurse=False):
            if n.startswith("input_"):
                p.data.fill_(0.5)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    return saved(model, compressor)


def module_parts(tensors):
    out = {}
    for name, t in tensors.items():
        base, _, part = name.rpartition(".")
        out.setdefault(base, {})[part] = t
    return out


NOT_WEIGHTS = {"input_scale", "input_zero_point", "input_global_scale", "k_scale", "v_scale", "bias"}


def fill(c, tensors, scheme_of):
    """The file's tensors, and what each module must become."""
    for base, parts in module_parts(tensors).items():
        if "weight_scale" not in parts:
            for part, t in parts.items():
                name = f"{base}.{part}"
                (c.add({name: t}) if part in NOT_WEIGHTS else c.keep(name, t))
            continue
        s = scheme_of(base)
        own = {k: v for k, v in parts.items() if k not in NOT_WEIGHTS}
        c.add({f"{base}.{k}": parts[k] for k in parts.keys() - own.keys()})
        add(c, base, own, s)


def reload(c):
    """transformers, dequantizing, must find the same model; everything is BF16."""
    model = AutoModelForCausalLM.from_pretrained(
        c.model, quantization_config=CompressedTensorsConfig(dequantize=True), dtype=BF16
    )
    got = {k: v for k, v in model.state_dict().items() if k.endswith("weight")}
    assert got.keys() == c.expected.keys(), got.keys() ^ c.expected.keys()
    for name, v in got.items():
        want = c.expected[name]
        assert same(v, rounded(want)["bf16"] if want.dtype == F32 else want), name


def llama_cases():
    kv = QuantizationArgs(num_bits=8, type="float", strategy="tensor", symmetric=True)
    for case, groups, ignore, more in [
        ("tiny_w4a16", {"group_0": scheme(strategy="group", group_size=32)}, ["lm_head"], {"shards": 3}),
        ("tiny_w4a16_asym", {"group_0": scheme(strategy="group", group_size=16, symmetric=False)}, ["lm_head"], {}),
        ("tiny_w8a8", {"group_0": preset_name_to_scheme("W8A8", ["Linear"])}, ["re:.*lm_head"], {}),
        ("tiny_fp8_dynamic", {"group_0": preset_name_to_scheme("FP8_DYNAMIC", ["Linear"])}, ["lm_head"], {"kv": kv}),
        (
            "tiny_fp8_block",
            {
                "group_0": scheme(
                    num_bits=8,
                    type="float",
                    strategy="block",
                    block_structure=[32, 16],
                    inputs=QuantizationArgs(num_bits=8, type="float", strategy="group", group_size=16, dynamic=True),
                )
            },
            ["lm_head", "re:.*k_proj"],
            {},
        ),
        ("tiny_nvfp4", {"group_0": preset_name_to_scheme("NVFP4", ["Linear"])}, ["lm_head"], {"shards": 3}),
        ("tiny_mxfp4", {"group_0": preset_name_to_scheme("MXFP4", ["Linear"])}, ["lm_head"], {}),
        ("tiny_mxfp8", {"group_0": preset_name_to_scheme("MXFP8", ["Linear"])}, ["lm_head"], {}),
        (
            "tiny_mixed",
            {
                "group_0": preset_name_to_scheme("FP8_DYNAMIC", ["re:.*self_attn.*_proj$"]),
                "group_1": scheme(["re:.*mlp.*_proj$"], strategy="group", group_size=32),
            },
            ["lm_head"],
            {"shards": 3},
        ),
    ]:
        c = DirCase(FAMILY, case)
        tensors, c.config = quantize_llama(c, groups, ignore, more.get("kv"))
        schemes = QuantizationConfig.model_validate(c.config["quantization_config"]).config_groups.values()

        def scheme_of(base):  # one scheme, or attention and the rest
            return list(schemes)[0 if len(schemes) == 1 or "self_attn" in base else 1]

        fill(c, tensors, scheme_of)
        c.write(shards=more.get("shards", 2))
        whole(c)
        if case != "tiny_mixed":  # there transformers 5.23 takes every module for FP8 and raises
            reload(c)


def moe_case():
    """Routed experts in INT4, a tensor each; attention, shared experts and the dense layer stay BF16, as in Kimi-K2-Thinking."""
    c = DirCase(FAMILY, "tiny_moe_w4a16")
    tensors, config = saved(tiny(c, DeepseekV3Config(**MOE_TINY)))
    s = scheme(strategy="group", group_size=32)
    ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]
    c.config = config_of({"group_0": s}, ignore, base=config)
    experts = 0
    for name, t in tensors.items():
        if ".mlp.experts." in name:
            base = name.removesuffix(".weight")
            parts = compress(t, s)
            add(c, base, parts | {"weight_shape": parts["weight_shape"].to(torch.int32)}, s)
            experts += 1
        else:
            c.keep(name, t)
    assert experts == 4 * 3
    c.write(shards=4)
    whole(c)


if __name__ == "__main__":
    llama_cases()
    moe_case()

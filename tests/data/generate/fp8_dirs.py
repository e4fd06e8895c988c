"""Golden FP8 models as directories: fine-grained FP8, MXFP8, FBGEMM, Mistral's own format, decoded by transformers (CPU).

Run: `python fp8_dirs.py` (see ../README.md). It rewrites `../fp8_dirs/*`. FBGEMM's kernels need a GPU: there, and where a
scale is laid out otherwise than the weight's blocks, the formula is written out, with the source it is from.
"""

import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True

from dirs import DirCase, load_all, rounded

import torch
import transformers
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, LlamaConfig, Qwen3Config, Qwen3MoeConfig
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize, FP8Embedding

from fp8 import BF16, E4M3, E8M0, F16, F32, U8, Quantizer, ct_block, encode, hf, hf_padded, modelopt_mxfp8, numpy_product, same

transformers.logging.set_verbosity_error()
FAMILY, L = "fp8_dirs", "model.layers.0."
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def q_config(base=LLAMA, **more):
    return base | {"quantization_config": {"activation_scheme": "dynamic", "quant_method": "fp8"} | more}


def saved(c, config):
    model = AutoModelForCausalLM.from_config(config, dtype=BF16)
    for name, p in sorted(model.named_parameters()):
        p.data = (c.randn(*p.shape, scale=0.05) + (1 if "norm" in name else 0)).to(p.dtype)
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        return load_all(Path(d)), config.to_dict() | {"architectures": [type(model).__name__], "dtype": "bfloat16"}


def add(c, name, weight, scale_name, scale, view=None):
    """transformers' `_dequantize_one`; `view` is the scale shaped as it wants it."""
    view = scale if view is None else view
    c.add({name: weight, scale_name: scale})
    c.expect(name, hf(weight, view))
    for dtype in (BF16, F16):
        c.library(name, hf(weight, view, dtype), "transformers Fp8Dequantize")


def add_rows(c, name, weight, scale_name, scale, view):
    """A scale that broadcasts; checked with numpy as well."""
    add(c, name, weight, scale_name, scale, view)
    assert same(c.expected[name], numpy_product(weight, view))


# ---------------------------------------------------------------- models


def tiny(case, config, fp8, skip, shards=3):
    """Quantized as transformers does it, tensor by tensor; and read back by transformers."""
    c = DirCase(FAMILY, case)
    tensors, c.config = saved(c, config)
    c.config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"} | fp8
    quantizer = Quantizer(**{k: v for k, v in fp8.items() if k in ("weight_block_size", "scale_fmt")})
    for name, t in tensors.items():
        if t.ndim < 2 or any(s in name for s in skip):
            c.keep(name, t)
            continue
        out = Fp8Quantize(quantizer).convert({name: t})
        scale_name = name.removesuffix("weight") + "weight_scale_inv"
        assert set(out) == {name, scale_name}, (name, t.shape)
        add(c, name, out[name], scale_name, out[scale_name])
        assert same(
            c.expected[name],
            Fp8Dequantize(quantizer).convert({"weight": out[name], "weight_scale_inv": out[scale_name].to(F32)})["weight"],
        )
    c.write(shards=shards)
    model = AutoModelForCausalLM.from_pretrained(c.model, quantization_config=FineGrainedFP8Config(dequantize=True), dtype=BF16)
    state, want = model.state_dict(), {k: rounded(v)["bf16"] if v.dtype == F32 else v for k, v in c.expected.items()}
    for name, t in want.items():
        if ".experts." not in name:
            assert same(state[name], t), name
    for name in [n for n in state if n.endswith("experts.gate_up_proj")]:
        base = name.removesuffix("gate_up_proj")
        for e, both in enumerate(state[name]):
            assert same(both, torch.cat([want[f"{base}{e}.{p}_proj.weight"] for p in ("gate", "up")]))
            assert same(state[base + "down_proj"][e], want[f"{base}{e}.down_proj.weight"])


def model_cases():
    qwen = dict(
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=40,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    tiny(
        "tiny_qwen3",
        Qwen3Config(**qwen),
        {"weight_block_size": [16, 32], "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.down_proj"]},
        ["lm_head", "embed_tokens", "mlp.down_proj"],
    )
    moe = qwen | dict(intermediate_size=64, moe_intermediate_size=32, num_experts=3, num_experts_per_tok=2)
    tiny(
        "tiny_qwen3_moe_ue8m0",
        Qwen3MoeConfig(**moe),
        {"weight_block_size": [16, 16], "scale_fmt": "ue8m0", "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]},
        ["lm_head", "embed_tokens", "mlp.gate."],
        shards=4,
    )


# ---------------------------------------------------------------- fine-grained FP8 and MXFP8


def config_cases():
    """What only the config tells: block sizes, skip lists under their several names, nested configs."""
    skip = [
        ("modules_to_not_convert", LLAMA),
        ("ignored_layers", {"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2"}),
    ]
    for key, base in skip:
        c = DirCase(
            FAMILY,
            key,
            q_config(base, weight_block_size=[128, 128], fmt="e4m3", **{key: ["lm_head", "model.layers.0.mlp.gate", "visual"]}),
        )
        for name, (n, k), grid in [("self_attn.q_proj", (136, 40), (2, 1)), ("mlp.down_proj", (24, 130), (1, 2))]:
            w, s = encode(c, n, k), c.scales(*grid)
            c.add({f"{L}{name}.weight": w, f"{L}{name}.weight_scale_inv": s})
            c.expect(f"{L}{name}.weight", ct_block(w, s, (128, 128)))
            assert same(c.expected[f"{L}{name}.weight"], hf_padded(w, s, (128, 128)))
        for name in ("lm_head", L + "mlp.gate", "visual.blocks.0.proj"):
            c.keep(name + ".weight", c.randn(6, 40, scale=0.02).to(BF16))
        c.norm(40)
        c.write(shards=2)

    # the config of the language model is nested
    c = DirCase(
        FAMILY,
        "text_config",
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "model_type": "mistral3",
            "text_config": q_config({"model_type": "ministral3"}, weight_block_size=[32, 16]),
        },
    )
    w, s = encode(c, 70, 40), c.scales(3, 3)
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    c.add({name: w, name + "_scale_inv": s})
    c.expect(name, ct_block(w, s, (32, 16)))
    assert same(c.expected[name], hf_padded(w, s, (32, 16)))
    c.keep("model.vision_tower.patch_conv.weight", c.randn(4, 3, 2, 2).to(BF16))
    c.norm(40, "model.language_model.norm.weight")
    c.write()

    # one static scale a tensor, as in Ministral 3; scales of rank 0 and 1
    c = DirCase(
        FAMILY,
        "static",
        q_config(weight_block_size=None, activation_scheme="static", modules_to_not_convert=["model.vision_tower", "lm_head"]),
    )
    for proj, s in [
        ("q_proj", torch.tensor(0.00123).to(BF16)),
        ("k_proj", torch.tensor([0.0345])),
        ("v_proj", torch.tensor([[0.0345]]).to(BF16)),
    ]:
        name = f"{L}self_attn.{proj}"
        add_rows(c, name + ".weight", encode(c, 21, 34), name + ".weight_scale_inv", s, s.view(1, 1))
        c.add({name + ".activation_scale": torch.tensor(0.5).to(s.dtype)})
    c.keep("lm_head.weight", c.randn(5, 34, scale=0.02).to(BF16))
    c.norm(34)
    c.write()

    # an embedding table with one scale: FP8Embedding.forward gives the rows
    c = DirCase(
        FAMILY, "embedding", q_config(weight_block_size=[128, 128], modules_to_convert=["ple.ple_embedding.ngram_embedding"])
    )
    for name, dtype in [
        ("model.ple.ple_embedding.ngram_embedding", BF16),
        ("model.layers.1.ple.ple_embedding.ngram_embedding", F32),
    ]:
        w, s = c.all_bytes(24, 32).view(E4M3), torch.tensor([0.01171875 * 1.37]).to(dtype)
        add_rows(c, name + ".weight", w, name + ".weight_scale", s, s.view(1, 1))
        table = FP8Embedding(24, 32)
        table.weight.data, table.weight_scale.data = w, s
        c.library(name + ".weight", (table.weight.to(s.dtype) * table.weight_scale).data, "FP8Embedding")
        plain = (w.view(U8) & 0x7F) != 0x7F  # a lookup of the same rows, where there is no NaN
        rows = torch.nn.functional.embedding(torch.arange(24), w.view(U8)).view(E4M3).to(s.dtype) * s
        assert torch.equal(rows[plain], rounded(c.expected[name + ".weight"])["bf16" if dtype == BF16 else "f32"][plain])
    w, s = encode(c, 20, 30), c.scales(1, 1)
    add(c, L + "mlp.up_proj.weight", w, L + "mlp.up_proj.weight_scale_inv", s)
    c.keep("model.embed_tokens.weight", c.randn(8, 30, scale=0.02).to(BF16))
    c.norm(30)
    c.write()


def mx_cases():
    """`quant_method: mxfp8` says it all: no block size, exponents as U8 or F8_E8M0."""
    for case, config in [
        ("mxfp8", {"quant_method": "mxfp8"}),
        ("mxfp8_block_1x32", {"weight_block_size": [1, 32], "scale_fmt": "ue8m0"}),
    ]:
        c = DirCase(FAMILY, case, q_config(modules_to_not_convert=["lm_head"], **config))
        for i, (proj, (n, k), dtype, suffix) in enumerate(
            [
                ("gate_proj", (9, 96), U8, "weight_scale"),
                ("up_proj", (6, 64), E8M0, "weight_scale_inv"),
                ("down_proj", (7, 32), U8, "weight_scale_inv"),
            ]
        ):
            w, b = c.all_bytes(n, k).view(E4M3), c.bytes(n, k // 32) % 40 + 100
            add(c, f"{L}mlp.{proj}.weight", w, f"{L}mlp.{proj}.{suffix}", b.view(dtype))
            assert same(c.expected[f"{L}mlp.{proj}.weight"], modelopt_mxfp8(w, b))
        c.keep("lm_head.weight", c.randn(5, 96, scale=0.02).to(BF16))
        c.norm(96)
        c.write(shards=2)

    # squares of 32 with power-of-two scales
    c = DirCase(FAMILY, "ue8m0_32x32", q_config(weight_block_size=[32, 32], scale_fmt="ue8m0"))
    for proj, dtype in [("q_proj", U8), ("o_proj", E8M0)]:
        w, b = c.all_bytes(64, 32).view(E4M3), c.bytes(2, 1) % 40 + 100
        add(c, f"{L}self_attn.{proj}.weight", w, f"{L}self_attn.{proj}.weight_scale_inv", b.view(dtype))
    c.norm(96)
    c.write()


def expert_cases():
    """Fused experts: the scale's suffix follows without a dot, or the module has a weight of rank three."""
    c = DirCase(FAMILY, "experts_fused", q_config(weight_block_size=[32, 16], fmt="e4m3"))
    for name, dot, (e, n, k), grid in [
        (L + "mlp.experts.gate_up_proj", "_scale_inv", (2, 64, 48), (2, 2, 3)),
        (L + "mlp.experts.down_proj", "_scale_inv", (2, 48, 32), (2, 2, 2)),  # 48 rows in blocks of 32
        ("model.layers.1.moe.gate_proj.weight", "_scale_inv", (2, 32, 32), (2, 1, 2)),  # .weight, .weight_scale_inv
    ]:
        w, s = torch.stack([encode(c, n, k) for _ in range(e)]), c.scales(*grid)
        c.add({name: w, name + dot: s})
        c.expect(name, torch.stack([ct_block(a, b, (32, 16)) for a, b in zip(w, s)]))
        assert same(c.expected[name], torch.stack([hf_padded(a, b, (32, 16)) for a, b in zip(w, s)]))
    c.keep(L + "mlp.experts.gate_up_proj_bias", c.randn(2, 64, scale=0.1).to(BF16))
    c.norm(48)
    c.write(shards=2)

    # vLLM's names; one scale an expert, or a row
    c = DirCase(FAMILY, "experts_w13", q_config(weight_block_size=None))
    for name, (e, n, k), shape in [("w13_weight", (3, 20, 16), (3,)), ("w2_weight", (3, 16, 10), (3,))]:
        w, s = torch.stack([encode(c, n, k) for _ in range(e)]), c.scales(*shape)
        add_rows(c, f"{L}mlp.experts.{name}", w, f"{L}mlp.experts.{name}_scale", s, s.view(e, 1, 1))
    for name, (e, n, k) in [("w13_weight", (2, 12, 16)), ("w2_weight", (2, 16, 6))]:
        w, s = torch.stack([encode(c, n, k) for _ in range(e)]), c.scales(e, n, 1)
        add_rows(c, f"model.layers.1.mlp.experts.{name}", w, f"model.layers.1.mlp.experts.{name}_scale", s, s)
    c.norm(16)
    c.write()

    # `expert_dtype: fp4` with scales that are no exponents: packed E2M1, a scale for 32 inputs of a row.
    c = DirCase(FAMILY, "experts_fp4", q_config(expert_dtype="fp4", weight_block_size=[128, 128]))
    for name, shape in (("gate_up_proj", (2, 12, 64)), ("down_proj", (2, 6, 96))):
        e, n, k = shape
        codes, scale = c.all_bytes(e * n, k // 2).view(torch.int8).reshape(e, n, k // 2), c.scales(e * n * k // 32).reshape(e, n, k // 32)
        add(c, f"{L}mlp.experts.{name}", codes, f"{L}mlp.experts.{name}_scale_inv", scale)
    c.write()


# ---------------------------------------------------------------- FBGEMM and Mistral


def rows_fp8(w):
    """FBGEMM's `quantize_fp8_per_row`: scale = amax / 448 of a row, values divided by it."""
    scale = w.float().abs().amax(-1, keepdim=True) / 448
    return (w.float() / scale).clamp(-448, 448).to(E4M3), scale


def fbgemm_cases():
    c = DirCase(FAMILY, "tiny_fbgemm")
    tensors, c.config = saved(
        c,
        LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            vocab_size=40,
            max_position_embeddings=64,
            tie_word_embeddings=False,
        ),
    )
    c.config["quantization_config"] = {
        "activation_scale_ub": 1200.0,
        "modules_to_not_convert": ["lm_head", "model.layers.0.self_attn.q_proj"],
        "quant_method": "fbgemm_fp8",
    }
    for name, t in tensors.items():
        if t.ndim < 2 or any(s in name for s in ("lm_head", "embed_tokens", "q_proj")):
            c.keep(name, t)
        else:
            w, s = rows_fp8(t)
            add_rows(c, name, w, name + "_scale", s, s)
    c.write(shards=3)

    # Llama 4 (transformers, integrations/fbgemm_fp8.py, FbgemmFp8Quantize): experts are stored [E, in, out] and were
    # quantized transposed, a scale for each output. gate_up_proj_scale is [E, 1, out], but down_proj_scale is [E, out, 1]:
    # it has to be transposed. With in == out the shapes do not tell.
    c = DirCase(
        FAMILY,
        "fbgemm_llama4",
        {
            "architectures": ["Llama4ForConditionalGeneration"],
            "model_type": "llama4",
            "quantization_config": {
                "activation_scale_ub": 1200.0,
                "modules_to_not_convert": ["lm_head"],
                "quant_method": "fbgemm_fp8",
            },
        },
    )
    for layer, (e, h, i) in enumerate([(2, 24, 16), (2, 16, 16)]):
        base = f"language_model.model.layers.{layer}.feed_forward.experts."
        for proj, (k, n) in [("gate_up_proj", (h, 2 * i)), ("down_proj", (i, h))]:
            q, s = rows_fp8(c.randn(e, n, k, scale=0.05).to(BF16))  # value.transpose(1, 2)
            w = q.transpose(1, 2).contiguous()
            stored = s.reshape(e, 1, n) if proj == "gate_up_proj" else s.reshape(e, n, 1)
            add_rows(c, base + proj, w, f"{base}{proj}_scale", stored, s.reshape(e, 1, n))
            assert same(c.expected[base + proj], (q.float() * s).transpose(1, 2).contiguous())
        shared = f"language_model.model.layers.{layer}.feed_forward.shared_expert.down_proj"
        w, s = rows_fp8(c.randn(8, 16, scale=0.05))
        add_rows(c, shared + ".weight", w, shared + ".weight_scale", s, s)
    c.norm(24, "language_model.model.norm.weight")
    c.write()


def mistral_cases():
    """Mistral's own files: params.json, consolidated*.safetensors; the names stay theirs."""
    params = {
        "dim": 32,
        "n_layers": 1,
        "head_dim": 16,
        "hidden_dim": 48,
        "n_heads": 2,
        "n_kv_heads": 1,
        "rope_theta": 1000000.0,
        "norm_eps": 1e-05,
        "vocab_size": 40,
        "tied_embeddings": False,
    }
    for case, scheme, stem, shards, dtype in [
        ("mistral_consolidated", "TENSOR", "consolidated", 1, BF16),
        ("mistral_consolidated_sharded", "NO_SCALES", "consolidated", 2, F32),
    ]:
        c = DirCase(FAMILY, case)
        c.sidecar("params.json", params | {"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": scheme}})
        for name, (n, k) in [
            ("attention.wq", (32, 32)),
            ("attention.wk", (16, 32)),
            ("attention.wv", (16, 32)),
            ("attention.wo", (32, 32)),
            ("feed_forward.w1", (48, 32)),
            ("feed_forward.w2", (32, 48)),
            ("feed_forward.w3", (48, 32)),
        ]:
            base = f"layers.0.{name}"
            s = c.scales(1)[0].to(dtype)
            add_rows(c, base + ".weight", encode(c, n, k), base + ".qscale_weight", s, s.view(1, 1))
            if scheme == "TENSOR":
                c.add({base + ".qscale_act": torch.tensor(0.02).to(dtype)})
        for name in ("tok_embeddings.weight", "output.weight"):
            c.keep(name, c.randn(40, 32, scale=0.02).to(BF16))
        for name in ("norm.weight", "layers.0.attention_norm.weight", "layers.0.ffn_norm.weight"):
            c.norm(32, name)
        c.write(shards=shards, stem=stem)


if __name__ == "__main__":
    model_cases()
    config_cases()
    mx_cases()
    expert_cases()
    fbgemm_cases()
    mistral_cases()

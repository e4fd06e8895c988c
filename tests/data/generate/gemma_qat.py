"""Golden Gemma QAT models (`quant_method: gemma`): unpacked by transformers' own layers (CPU).

Run: `python gemma_qat.py` (see ../README.md). It rewrites `../gemma_qat/*`. transformers only reads these, so the packing is
written out here, as the inverse of `_unpack_int4` and `_unpack_int2` of transformers/integrations/gemma_quant.py.
"""

import json

from directories import BF16, F32, U8, Dir, randomize

import torch
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig
from transformers.integrations.gemma_quant import QuantizedEmbedding, QuantizedLinear, replace_with_quant_layers
from transformers.utils.quantization_config import GemmaQuantizationConfig

L = "model.layers.0."
I8 = torch.int8


def pack(q, bits):
    """Codes to bytes along rows, lowest bits first; the last byte of a row is filled with code 0, a value of -8 or -2."""
    if bits == 8:
        return q.to(I8)
    q = torch.nn.functional.pad(q + 2 ** (bits - 1), (0, -q.shape[-1] % (8 // bits))).to(U8)
    q = q.unflatten(-1, (-1, 8 // bits)) << (torch.arange(8 // bits, dtype=U8) * bits)
    return q.sum(-1).to(U8)


def quantize(weight, bits, blocks=1):
    w = weight.float().unflatten(-1, (blocks, -1))
    scale = w.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 0.5)
    q = (w / scale).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return pack(q.flatten(-2).to(torch.int64), bits), scale.squeeze(-1)


def linear(packed, scale, n, k, bits):
    module = QuantizedLinear(k, n, num_bits=bits)
    module.weight.data, module.weight_scale.data = packed, scale
    return module


def embedding(packed, scale, n, k, bits, dtype):
    module = QuantizedEmbedding(n, k, dtype, num_bits=bits)
    module.embedding_quantized.data, module.embedding_scale.data = packed, scale
    return module


def expect_linear(d, name, packed, scale, n, k, bits):
    """F32: what the layer gives when no dtype is asked for. In BF16 it casts the scale first: noted, not followed."""
    module = linear(packed, scale, n, k, bits)
    d.expect(name, module._dequantize_weights(), module._dequantize_weights(BF16), "note")


def expect_embedding(d, name, packed, scale, n, k, bits):
    d.expect(name, embedding(packed, scale, n, k, bits, F32).weight, embedding(packed, scale, n, k, bits, BF16).weight, "note")


class Unit(Dir):
    def __init__(self, name, **quantization):
        super().__init__("gemma_qat", name)
        self.state, self.quantization, self.made = {}, quantization, {}

    def linear(self, key, n, k, bits, packed=None, scale=None, bias=False):
        module = f"{L}{key}"
        self.made[module] = torch.nn.Linear(k, n, bias=bias, device="meta"), bits
        made = quantize(self.randn(n, k), bits)
        packed, scale = made[0] if packed is None else packed, made[1] if scale is None else scale
        self.state |= {f"{module}.weight": packed, f"{module}.weight_scale": scale,
                       f"{module}.input_activation_scale": torch.tensor(0.031),
                       f"{module}.output_activation_scale": torch.tensor(0.0)}
        expect_linear(self, f"{module}.weight", packed, scale, n, k, bits)
        if bias:
            self.state[f"{module}.bias"] = self.keep(f"{module}.bias", self.randn(n).to(BF16))

    def embedding(self, key, n, k, bits, blocks=1):
        self.made[f"model.{key}"] = torch.nn.Embedding(n, k, device="meta"), bits
        packed, scale = quantize(self.randn(n, k), bits, blocks)
        self.state |= {f"model.{key}.embedding_quantized": packed, f"model.{key}.embedding_scale": scale}
        expect_embedding(self, f"model.{key}.weight", packed, scale, n, k, bits)

    def check(self):
        """The config must make transformers expect these bits and shapes."""
        root = torch.nn.Module()
        for name, (module, _) in self.made.items():
            *path, last = name.split(".")
            parent = root
            for part in path:
                if part not in parent._modules:
                    parent.add_module(part, torch.nn.Module())
                parent = parent._modules[part]
            parent.add_module(last, module)
        config = GemmaQuantizationConfig(**self.quantization)
        replace_with_quant_layers(root, config, config.modules_to_not_convert)
        for name, (_, bits) in self.made.items():
            module = root.get_submodule(name)
            part = "weight" if isinstance(module, QuantizedLinear) else "embedding_quantized"
            assert module.num_bits == bits, (name, module.num_bits)
            assert getattr(module, part).shape == self.state[f"{name}.{part}"].shape, name

    def finish(self, **sizes):
        self.check()
        norm = "model.norm.weight"
        self.state[norm] = self.keep(norm, self.randn(16, scale=0.1).to(BF16))
        quantization = GemmaQuantizationConfig(**self.quantization).to_dict()
        self.save(self.state, {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"} | sizes
                  | {"quantization_config": quantization})
        self.write()


# ---------------------------------------------------------------- tiny models


def tiny(name, make, quantization):
    d = Dir("gemma_qat", name)
    torch.manual_seed(d.seed)
    model = randomize(make().to(BF16))
    source = {k: v.detach().clone() for k, v in model.state_dict().items()}
    config = GemmaQuantizationConfig(**quantization)
    replace_with_quant_layers(model, config, quantization.get("modules_to_not_convert"))
    tied = model.config.tie_word_embeddings
    state, made_of = {}, {}
    for key, t in source.items():
        module_name = key.rpartition(".")[0]
        module = model.get_submodule(module_name)
        if tied and key == "lm_head.weight":
            continue
        if isinstance(module, (QuantizedLinear, QuantizedEmbedding)) and key.endswith(".weight"):
            packed, scale = quantize(t, module.num_bits)
            of = ("weight", "weight_scale") if isinstance(module, QuantizedLinear) else ("embedding_quantized", "embedding_scale")
            made_of[key] = [f"{module_name}.{part}" for part in of]
            state |= dict(zip(made_of[key], (packed, scale)))
            check = expect_linear if isinstance(module, QuantizedLinear) else expect_embedding
            check(d, key, packed, scale, *t.shape, module.num_bits)
            if isinstance(module, QuantizedLinear):
                state |= {f"{module_name}.input_activation_scale": torch.tensor(0.02),
                          f"{module_name}.output_activation_scale": torch.tensor(0.04)}
            if module_name.endswith("k_proj"):
                attention = module_name.removesuffix(".k_proj")
                state |= {f"{attention}.k_cache_scale": torch.tensor(0.1), f"{attention}.v_cache_scale": torch.tensor(0.2)}
        else:
            state[key] = d.keep(key, t)
    config = model.config.to_diff_dict() | {"architectures": [type(model).__name__], "dtype": "bfloat16",
                                            "quantization_config": config.to_dict()}
    d.save(state, json.loads(json.dumps(config, default=str)), shards=3)
    loaded, info = AutoModelForCausalLM.from_pretrained(d.model, dtype=BF16, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    for key in d.f32:
        module = loaded.get_submodule(key.removesuffix(".weight"))
        if isinstance(module, QuantizedEmbedding):
            module.output_dtype = F32
        got = module.weight if isinstance(module, QuantizedEmbedding) else module._dequantize_weights()
        assert torch.equal(got, d.f32[key]), key
    d.write(lambda key: made_of[key])


def gemma3(**more):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
             "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 72, "max_position_embeddings": 64, "sliding_window": 16}
    return Gemma3ForCausalLM(Gemma3TextConfig(**(sizes | more)))


def gemma4():
    """As the published ones: embeddings for each layer beside those for all."""
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    return Gemma4ForCausalLM(Gemma4TextConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        global_head_dim=16, vocab_size=72, vocab_size_per_layer_input=72, hidden_size_per_layer_input=8,
        max_position_embeddings=64, sliding_window=16, layer_types=["sliding_attention", "full_attention"],
        tie_word_embeddings=False))


def tiny_cases():
    tiny("tiny_gemma3", gemma3, {"num_bits": 4, "modules_to_not_convert": ["lm_head"]})
    tiny("tiny_gemma4", gemma4, {"num_bits": 4, "quantize_embeddings": True, "modules_to_not_convert": ["lm_head"],
                                 "module_quant_configs": {r"mlp\.(gate|up)_proj": {"num_bits": 2},
                                                          r"layers\.1\.self_attn": {"num_bits": 8},
                                                          r"embed_tokens_per_layer": {"num_bits": 8}}})


# ---------------------------------------------------------------- units


def unit_cases():
    u = Unit("bits", num_bits=4, module_quant_configs={"q_proj": {"num_bits": 2}, "v_proj$": {"num_bits": 8}, "o_proj": {}},
             quantize_embeddings=True, modules_to_not_convert=[])
    u.linear("self_attn.q_proj", 17, 64, 2, packed=u.all_bytes(17, 16))
    u.linear("self_attn.k_proj", 16, 64, 4, packed=u.all_bytes(16, 32), bias=True)
    u.linear("self_attn.v_proj", 16, 64, 8, packed=u.all_bytes(16, 64).view(I8))
    u.linear("self_attn.o_proj", 64, 16, 4)
    u.embedding("embed_tokens", 24, 64, 4)
    u.finish(hidden_size=64, num_attention_heads=1, num_key_value_heads=1, head_dim=16, vocab_size=24)

    # The leftmost place where any pattern matches decides, and only there the order of the patterns: q_proj has 4 bits
    # ("layers" comes before "q_proj" in its name), embed_tokens 2.
    u = Unit("leftmost_pattern", num_bits=8, quantize_embeddings=True, modules_to_not_convert=[],
             module_quant_configs={"q_proj": {"num_bits": 2}, "layers": {"num_bits": 4}, "embed": {"num_bits": 2},
                                   "embed_tokens": {"num_bits": 4}})
    u.linear("self_attn.q_proj", 16, 32, 4)
    u.embedding("embed_tokens", 24, 32, 2)
    u.finish(hidden_size=32, num_attention_heads=1, head_dim=16, vocab_size=24)

    # Widths that do not fill their last bytes; only the config knows them.
    u = Unit("odd_width", num_bits=4, quantize_embeddings=True, modules_to_not_convert=[],
             module_quant_configs={"up_proj": {"num_bits": 2}, "embed_tokens_2": {"num_bits": 2}})
    u.linear("mlp.gate_proj", 10, 33, 4)
    u.linear("mlp.up_proj", 10, 33, 2)
    u.linear("mlp.down_proj", 33, 10, 4)
    u.embedding("embed_tokens", 12, 33, 4)
    u.finish(hidden_size=33, intermediate_size=10, vocab_size=12)

    # One scale for each block of an embedding's row.
    u = Unit("embedding_blocks", num_bits=4, quantize_embeddings=True, modules_to_not_convert=[],
             module_quant_configs={"embed_tokens_per_layer": {"num_bits": 8}})
    u.embedding("embed_tokens", 24, 64, 4, blocks=2)
    u.embedding("embed_tokens_per_layer", 24, 48, 8, blocks=3)
    u.finish(hidden_size=64, vocab_size=24, vocab_size_per_layer_input=24)

    hostile = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 3.4028235e38, -3.0, float("inf"), float("-inf"),
                            float("nan"), 1.0, 2.0**-140]).reshape(-1, 1)
    u = Unit("hostile", num_bits=4, module_quant_configs={"q_proj": {"num_bits": 2}, "v_proj": {"num_bits": 8}},
             modules_to_not_convert=[])
    for key, bits in [("q_proj", 2), ("k_proj", 4), ("v_proj", 8)]:
        codes = u.all_bytes(12, 64 * bits // 8)
        u.linear(f"self_attn.{key}", 12, 64, bits, packed=codes.view(I8) if bits == 8 else codes, scale=hostile.clone())
    u.finish(hidden_size=64)


if __name__ == "__main__":
    tiny_cases()
    unit_cases()

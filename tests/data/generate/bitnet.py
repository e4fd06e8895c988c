"""Golden BitNet models: packed, saved, loaded and unpacked by transformers (CPU).

Run: `python bitnet.py` (see ../README.md). It rewrites `../bitnet/*`. transformers has no function for the weight that a
layer stands for. It is written out here from the two forward passes of transformers/integrations/bitnet.py: `BitLinear`
divides its output by weight_scale, `AutoBitLinear` multiplies by it.
"""

from directories import BF16, F16, F32, Dir, randomize, tiny_llama

import torch
from transformers import AutoModelForCausalLM, BitNetConfig, BitNetForCausalLM, BitNetQuantConfig
from transformers.integrations.bitnet import AutoBitLinear, BitLinear, pack_weights, unpack_weights

L = "model.layers.0."


def weight_of(ternary, scale, multiply):
    return ternary * scale if multiply else ternary / scale


def expect(d, name, packed, scale, multiply, rule="equal"):
    f32 = weight_of(unpack_weights(packed, F32), scale.to(F32), multiply)
    own = weight_of(unpack_weights(packed, scale.dtype), scale, multiply)
    d.expect(name, f32, own, rule)


def ternary(weight, multiply, dtype):
    """What BitNet's training stands for: -1, 0, 1 times the mean magnitude, stored as it is or as its inverse."""
    mean = weight.float().abs().mean()
    q = (weight.float() / mean).round().clamp(-1, 1)
    return pack_weights(q), (mean if multiply else 1 / mean).reshape(1).to(dtype)


def tiny(name, model, quantization, dtype=BF16):
    """Sharded; what is loaded again must be the same."""
    d = Dir("bitnet", name)
    torch.manual_seed(d.seed)
    model = randomize(model().to(dtype))
    multiply = quantization.get("linear_class") == "autobitlinear"
    state = {}
    for key, t in model.state_dict().items():
        module = model.get_submodule(key.rpartition(".")[0])
        if isinstance(module, torch.nn.Linear) and not key.startswith("lm_head") and key.endswith("weight"):
            packed, scale = ternary(t, multiply, dtype)
            state |= {key: packed, key + "_scale": scale}
            expect(d, key, packed, scale, multiply)
        elif not (key == "lm_head.weight" and model.config.tie_word_embeddings):
            state[key] = d.keep(key, t)
    config = model.config.to_diff_dict() | {"architectures": [type(model).__name__], "dtype": str(dtype)[6:],
                                            "quantization_config": {"quant_method": "bitnet"} | quantization}
    d.save(state, config, shards=3)
    loaded, info = AutoModelForCausalLM.from_pretrained(d.model, dtype=dtype, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    for key, module in loaded.named_modules():
        if isinstance(module, (BitLinear, AutoBitLinear)):
            t = module.weight if multiply else unpack_weights(module.weight, F32)
            got = weight_of(t.to(F32), module.weight_scale.to(F32), multiply)
            assert torch.equal(got, d.f32[key + ".weight"]), key
    d.write(lambda key: [key, key + "_scale"])


def bitnet():
    return BitNetForCausalLM(BitNetConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                                          num_key_value_heads=1, vocab_size=72, max_position_embeddings=64,
                                          bos_token_id=1, eos_token_id=2, pad_token_id=None))


def llama():
    return tiny_llama(None)


def config(**quantization):
    return {"architectures": ["BitNetForCausalLM"], "model_type": "bitnet",
            "quantization_config": {"quant_method": "bitnet"} | quantization}


def unit_cases():
    full = {"modules_to_not_convert": None, "use_rms_norm": False, "rms_norm_eps": 1e-6}
    auto = {"linear_class": "autobitlinear", "quantization_mode": "offline"}
    plain = {"linear_class": "bitlinear", "quantization_mode": "offline"}
    assert BitNetQuantConfig(**(full | auto)).to_dict() == {"quant_method": "bitnet"} | full | auto

    # Every byte, code 3 too, which is 2; hostile scales in every dtype; biases; the norm that `use_rms_norm` puts before a
    # layer, which is a tensor of its own.
    hostile = [0.3172, 0.0, -0.0, 1e-45, 2.0**-126, 3.4028235e38, -3.0, float("inf"), float("nan"), 1e-40]
    for name, quantization, multiply in [("divide", full | plain | {"use_rms_norm": True}, False),
                                         ("multiply", full | auto, True)]:
        d = Dir("bitnet", name)
        state = {}
        for i, (value, dtype) in enumerate([(v, t) for t in (F32, BF16, F16) for v in hostile[: None if t == F32 else 4]]):
            key = f"{L}mlp.experts.{i}.up_proj.weight"
            packed, scale = d.all_bytes(4, 64), torch.tensor([value]).to(dtype)
            state |= {key: packed, key + "_scale": scale}
            expect(d, key, packed, scale, multiply)
        for key, t in [("model.norm.weight", 1 + d.randn(64, scale=0.1)), (f"{L}mlp.experts.0.up_proj.bias", d.randn(16)),
                       (f"{L}mlp.experts.0.up_proj.rms_norm.weight", 1 + d.randn(64, scale=0.1))]:
            if multiply and "rms_norm" in key:
                continue
            state[key] = d.keep(key, t.to(BF16))
        d.save(state, config(**quantization))
        d.write()

    # What saving a loaded "autobitlinear" model gives: the ternary weights as floats, and still a scale. The dtype
    # of the file is BF16; `AutoBitLinear` multiplies.
    d = Dir("bitnet", "multiply_unpacked")
    key = f"{L}self_attn.q_proj.weight"
    q, scale = d.randint(-1, 2, 12, 40).to(BF16), torch.tensor([0.01234]).to(BF16)
    d.expect(key, q.to(F32) * scale.to(F32), q * scale)
    norm = d.keep("model.norm.weight", (1 + d.randn(40, scale=0.1)).to(BF16))
    d.save({key: q, key + "_scale": scale, "model.norm.weight": norm}, config(**(full | auto)))
    d.write()

    # Modules that are not converted; they are plain. The packed one has a scale.
    d = Dir("bitnet", "not_converted")
    state = {}
    for key, skip in [("self_attn.q_proj", True), ("self_attn.k_proj", False)]:
        w, name = d.randn(16, 32).to(BF16), f"{L}{key}.weight"
        if skip:
            state[name] = d.keep(name, w)
        else:
            state[name], state[name + "_scale"] = ternary(w, False, BF16)
            expect(d, name, state[name], state[name + "_scale"], False)
    d.save(state, config(**(full | plain | {"modules_to_not_convert": [f"{L}self_attn.q_proj", "lm_head"]})))
    d.write()

    # "online": plain weights, which are quantized anew in every forward pass. Nothing is packed; all stays as it is.
    d = Dir("bitnet", "online")
    state = {k: d.keep(k, d.randn(16, 32).to(BF16)) for k in (f"{L}self_attn.q_proj.weight", "lm_head.weight")}
    d.save(state, config(**(full | {"linear_class": "autobitlinear", "quantization_mode": "online"})))
    d.write()


if __name__ == "__main__":
    tiny("tiny_divide", bitnet, {})
    tiny("tiny_multiply", bitnet, {"linear_class": "autobitlinear", "quantization_mode": "offline"})
    tiny("tiny_llama", llama, {"modules_to_not_convert": ["lm_head"]})
    unit_cases()

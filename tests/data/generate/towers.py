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

import sums
import torch
import transformers
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
FLAT = ("qwen2_5_vl",)  # the fields of the language model stand beside vision_config, as in published models
# The converter asks for the id of this token.
BREAK = {"added_tokens": [{"id": 12, "content": "[IMG_BREAK]", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                           "special": True}]}
BREAKING = ("mistral3", "pixtral")
TYPES = {"gemma3": ("f16", "f32"), "qwen2_5_vl": ("f16", "f32"), "mistral3": ("f16",)}
# Names that transformers 5 writes otherwise than they are in published models.
RENAMED = {
    "gemma3": {"vision_tower.": "vision_tower.vision_model."},
    "gemma3_pool2": {"vision_tower.": "vision_tower.vision_model."},
    "lfm2_vl": {"vision_tower.": "vision_tower.vision_model."},
    "internvl": INTERNVL_NAMES,
}
LANGUAGE = ("language_model.", "model.text_model.", "model.layers.", "model.norm.", "model.embed_tokens.", "lm_head.")


def save(name, out):
    """Writes OUT/hf of a model with random values: as transformers saves it, without the tensors of the language model."""
    class_name, model_type, config, preprocessor = MODELS[name]
    torch.manual_seed(sum(name.encode()))
    model = getattr(transformers, class_name)(CONFIG_MAPPING[model_type](**config)).bfloat16()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.1 + (parameter.mean() if parameter.dim() <= 1 else 0))
        for key, buffer in model.named_buffers():
            if key.endswith(("put_min", "put_max", "std_bias", "std_scale")):
                buffer.copy_((torch.rand_like(buffer) + 0.5) * (-1 if key.endswith("min") else 1))
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
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((out / "config.json").read_text())
    if name == "internvl":
        written = INTERNVL
    if name in FLAT:
        written = written.pop("text_config") | written
    (out / "config.json").write_text(json.dumps(written, indent=2) + "\n")
    file = "processor_config.json" if "image_processor" in preprocessor else "preprocessor_config.json"
    (out / file).write_text(json.dumps(preprocessor, indent=2) + "\n")


def fuse_qkv(tensors):
    for prefix in {key.split("attention.")[0] for key in tensors if ".q_proj." in key}:
        for part in ("weight", "bias"):
            tensors[f"{prefix}attn.qkv.{part}"] = torch.cat([tensors.pop(f"{prefix}attention.{letter}_proj.{part}") for letter in "qkv"])


def is_language(name):
    return name.startswith(LANGUAGE) or name.startswith("model.language_model.")


def convert(name, root, outtype, out):
    """Runs the converter, with two mistakes of it mended. It needs the row of [IMG_BREAK], which llama.cpp asks for, but it
    leaves out all of `language_model.`: here it sees the matrix. It gives a norm of Llama 4, `ln2`, the name of one of Gemma 4."""
    paths = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]
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
sys.argv = {arguments!r}
runpy.run_path({str(LLAMA_CPP / "convert_hf_to_gguf.py")!r}, run_name="__main__")
"""
    subprocess.run([sys.executable, "-c", run], check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in sys.argv[2:] or MODELS:
        (root / name / "hf").mkdir(parents=True, exist_ok=True)
        save(name, root / name / "hf")
        types = {"canonical": "bf16"} | {outtype: outtype for outtype in TYPES.get(name, ())}
        for file, outtype in types.items():
            convert(name, root / name, outtype, root / name / f"{file}.gguf")
            sums.reduce(root / name / f"{file}.gguf")

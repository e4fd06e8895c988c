"""Image towers of tiny models as transformers saves them, and as llama.cpp's converter writes them to GGUF (`--mmproj`).

    LLAMA_CPP=DIRECTORY python towers.py OUT [NAME...]

transformers 5.24.0, torch 2.15.0, safetensors 0.8.0; LLAMA_CPP is `vendor/llama.cpp` of the sdist llama-cpp-python 0.3.36.
OUT/NAME gets `hf/` (config.json, model.safetensors without the language model, preprocessor_config.json) and `canonical.gguf`
(`--outtype bf16`); the names in TYPES also get `f16.gguf` and `f32.gguf`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING

LLAMA_CPP = Path(os.environ["LLAMA_CPP"])
TEXT = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=12,
            vocab_size=64, max_position_embeddings=128, bos_token_id=0, eos_token_id=1, pad_token_id=2)
SIGLIP = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, patch_size=4)
QWEN = dict(hidden_size=32, intermediate_size=48, depth=2, num_heads=4, patch_size=4, out_hidden_size=24)
HALVES = dict(image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5])
CLIP = dict(image_mean=[0.48145466, 0.4578275, 0.40821073], image_std=[0.26862954, 0.26130258, 0.27577711])
FLAGS = dict(do_convert_rgb=True, do_normalize=True, do_rescale=True, do_resize=True, rescale_factor=1 / 255)
MROPE = dict(rope_type="default", mrope_section=[2, 2, 2], rope_theta=1000000.0)

# Name: class, model_type, config, fields that are written over those of the saved config, preprocessor_config.json.
MODELS = {
    "gemma3": ("Gemma3ForConditionalGeneration", "gemma3",
               dict(text_config=dict(TEXT), vision_config=dict(SIGLIP, image_size=32, vision_use_head=False), mm_tokens_per_image=4),
               {},
               dict(FLAGS, **HALVES, image_processor_type="Gemma3ImageProcessor", processor_class="Gemma3Processor", image_seq_length=4,
                    size=dict(height=32, width=32), resample=2, do_pan_and_scan=None)),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl",
                   dict(text_config=dict(TEXT, rope_parameters=MROPE),
                        vision_config=dict(QWEN, depth=4, fullatt_block_indexes=[1, 3], window_size=16, spatial_merge_size=2)),
                   {},
                   dict(**CLIP, image_processor_type="Qwen2VLImageProcessor", processor_class="Qwen2_5_VLProcessor", min_pixels=256,
                        max_pixels=4096, patch_size=4, temporal_patch_size=2, merge_size=2)),
    "smolvlm": ("SmolVLMForConditionalGeneration", "smolvlm",
                dict(text_config=dict(TEXT), vision_config=dict(SIGLIP, image_size=16), scale_factor=2),
                {},
                dict(FLAGS, **HALVES, image_processor_type="SmolVLMImageProcessor", processor_class="SmolVLMProcessor", do_image_splitting=True,
                     do_pad=True, max_image_size=dict(longest_edge=16), size=dict(longest_edge=64), resample=1)),
}
FLAT = ("qwen2_5_vl",)  # the fields of the language model stand beside vision_config, as in published models
TYPES = ("gemma3", "qwen2_5_vl")
# Names that transformers 5 writes otherwise than they are in published models.
RENAMED = {
    "gemma3": {"vision_tower.": "vision_tower.vision_model."},
}
LANGUAGE = ("language_model.", "model.text_model.", "model.layers.", "model.norm.", "model.embed_tokens.", "lm_head.")


def save(name, out):
    """Writes OUT/hf of a model with random values: as transformers saves it, without the tensors of the language model."""
    class_name, model_type, config, fields, preprocessor = MODELS[name]
    torch.manual_seed(sum(name.encode()))
    model = getattr(transformers, class_name)(CONFIG_MAPPING[model_type](**config)).bfloat16()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.1 + (parameter.mean() if parameter.dim() <= 1 else 0))
    model.save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    tensors = {key: value for key, value in load_file(out / "model.safetensors").items() if not is_language(key)}
    for place, published in RENAMED.get(name, {}).items():
        tensors = {key.replace(place, published): value for key, value in tensors.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((out / "config.json").read_text())
    if name in FLAT:
        written = written.pop("text_config") | written
    (out / "config.json").write_text(json.dumps(merge(written, fields), indent=2) + "\n")
    (out / "preprocessor_config.json").write_text(json.dumps(preprocessor, indent=2) + "\n")


def is_language(name):
    return name.startswith(LANGUAGE) or name.startswith("model.language_model.")


def merge(config, fields):
    """CONFIG with FIELDS, by level; a field that is None in FIELDS is removed."""
    config = {key: value for key, value in config.items() if key not in fields or fields[key] is not None}
    for key, value in fields.items():
        if value is not None:
            config[key] = merge(config.get(key, {}), value) if isinstance(value, dict) else value
    return config


def convert(name, root, outtype, out):
    arguments = [str(root / "hf"), "--mmproj", "--outtype", outtype, "--outfile", str(out), "--model-name", name]
    environment = os.environ | {"PYTHONPATH": str(LLAMA_CPP / "gguf-py")}
    subprocess.run([sys.executable, str(LLAMA_CPP / "convert_hf_to_gguf.py"), *arguments], check=True, env=environment, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in sys.argv[2:] or MODELS:
        (root / name / "hf").mkdir(parents=True, exist_ok=True)
        save(name, root / name / "hf")
        convert(name, root / name, "bf16", root / name / "canonical.gguf")
        for outtype in ("f16", "f32") if name in TYPES else ():
            convert(name, root / name, outtype, root / name / f"{outtype}.gguf")

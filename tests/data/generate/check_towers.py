"""Checks image towers in both programs that run them: whole small models in transformers, and what `amn` makes of them in llama.cpp.

    python check_towers.py AMN WHOLE OUT [NAME...]

transformers 5.24.0, torch 2.15.0; llama.cpp's C API (`mtmd_*`) of the wheel xllamacpp 2026.10.11549. AMN is the program, WHOLE is
tests/data/whole (its tokenizers are taken). OUT/NAME gets `hf/` (a random model in BF16, the language model 64 wide and the tower 80),
`lm.gguf` and `mmproj.gguf`. An image that needs no resizing goes through both programs. For each model: the relative error
||a - b|| / ||b|| of what the tower returns, and of the logits after "see <image> now", b being transformers in F32.

DTYPE (f32) is that of the GGUF files; FLASH=1 fuses llama.cpp's attention; EDIT=KEY=VALUE (true, false or a text) goes into the tower's
metadata, e.g. EDIT=clip.use_gelu=false. llama.cpp rounds pixels and GELU to F16: 2e-4 to 8e-4 is right.
"""

import ctypes
import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ |= {"LLAMA_CPP": ".", "GGML_NO_BACKTRACE": "1"}
import torch
import transformers
import xllamacpp
from more_towers import HEARS as MORE_HEARS
from safetensors.torch import load_file, save_file
from towers import FLAT, INTERNVL, MODELS, RENAMED, fuse_qkv
from torch import nn
from transformers import CONFIG_MAPPING, logging

logging.set_verbosity_error()
VOCAB, IMAGE = 354, 350
SOUND = None
SAMPLES = 400000  # 25 seconds: llama.cpp makes two chunks of 30, and sees what is padded
MROPE = dict(rope_type="default", mrope_section=[4, 2, 2], rope_theta=10000.0)
TEXT = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            vocab_size=VOCAB, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1, pad_token_id=2)
VISION = dict(hidden_size=80, intermediate_size=112)
# llama.cpp caps logits at 30 also where the metadata say nothing.
GEMMA4 = dict(global_head_dim=32, final_logit_softcapping=30.0, vocab_size_per_layer_input=VOCAB)
# Name: tokenizer, image (width, height), fields of text_config, of vision_config, of the config.
CASES = {
    "gemma3": ("gemma3", (64, 64), dict(query_pre_attn_scalar=16), dict(image_size=64), dict(mm_tokens_per_image=16)),
    "gemma3_pool2": ("gemma3", (32, 32), dict(query_pre_attn_scalar=16), dict(image_size=32), dict(mm_tokens_per_image=16)),
    "qwen2_vl": ("qwen2", (64, 48), dict(rope_parameters=MROPE), dict(embed_dim=80, hidden_size=64, num_heads=4), {}),
    "qwen2_5_vl": ("qwen2", (160, 128), dict(rope_parameters=MROPE), dict(num_heads=4, out_hidden_size=64), {}),
    "qwen3_vl": ("qwen3", (64, 48), dict(num_hidden_layers=4, rope_parameters=MROPE),
                 dict(num_heads=4, out_hidden_size=64, num_position_embeddings=144), {}),
    "qwen3_5": ("qwen3_5", (64, 48), dict(num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
                linear_value_head_dim=16, rope_parameters=dict(MROPE, mrope_section=[2, 1, 1], mrope_interleaved=True,
                partial_rotary_factor=0.5)), dict(num_heads=4, out_hidden_size=64, num_position_embeddings=144), {}),
    "smolvlm": ("llama", (32, 32), {}, dict(image_size=32), {}),
    "idefics3": ("llama", (48, 48), {}, dict(image_size=48), {}),
    "mistral3": ("mistral", (48, 32), dict(rms_norm_eps=1e-5), dict(image_size=64), dict(image_token_index=IMAGE)),
    "pixtral": ("mistral", (48, 32), {}, dict(image_size=64), dict(image_token_index=IMAGE)),
    "glm4v": ("glm4", (48, 40), dict(rope_parameters=dict(MROPE, partial_rotary_factor=0.5, mrope_section=[2, 1, 1])),
              dict(out_hidden_size=64, image_size=32), {}),
    # llama.cpp knows by this width that image tokens see no later ones.
    "gemma4": ("gemma4", (108, 120), GEMMA4 | dict(hidden_size_per_layer_input=4, hidden_size=1536, pad_token_id=0,
                                                  use_bidirectional_attention=None),
               dict(head_dim=20, position_embedding_size=32), {}),
    "gemma4_large": ("gemma4", (108, 120), GEMMA4 | dict(use_bidirectional_attention="vision"),
                     dict(head_dim=20, position_embedding_size=32), {}),
    "internvl": ("qwen2", (32, 32), {}, dict(num_attention_heads=4, image_size=[32, 32]), dict(image_seq_length=16)),
    "lfm2_vl": ("lfm2", (288, 256), dict(layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False),
                dict(num_attention_heads=4, num_patches=256), dict(projector_hidden_size=96)),
    "llama4": ("llama4", (64, 64), dict(num_hidden_layers=4, intermediate_size=48, intermediate_size_mlp=96, num_local_experts=4,
               rms_norm_eps=1e-5), dict(num_attention_heads=4, intermediate_size=320, image_size=64, projector_input_dim=72,
               projector_output_dim=72, vision_output_dim=72), {}),
}
CASES |= {
    "glm_ocr": ("glm4", (48, 40), dict(rope_parameters=dict(MROPE, partial_rotary_factor=0.5, mrope_section=[2, 1, 1])),
                dict(out_hidden_size=64, image_size=32), {}),
    "lighton_ocr": ("qwen3", (32, 24), dict(rms_norm_eps=1e-6, tie_word_embeddings=True), {}, {}),
    "paddleocr_vl": ("ernie4_5", (64, 48), dict(rope_parameters=MROPE), {}, {}),
    "hunyuan_vl": ("hunyuan", (64, 48), dict(rope_parameters=dict(rope_type="dynamic", alpha=1000.0, factor=1.0, rope_theta=10000.0,
                                                              mrope_section=[2, 2, 2, 2])),
                   dict(out_hidden_size=64, text_hidden_size=64), {}),
    "exaone4_5": ("exaone4", (64, 48), dict(sliding_window=None, layer_types=["full_attention"] * 2),
                  dict(num_heads=4, num_key_value_heads=2, out_hidden_size=64), {}),
    "minicpmv4_6": ("qwen3_5", (64, 64), dict(num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
                    linear_value_head_dim=16, rope_parameters=dict(MROPE, mrope_section=[2, 1, 1], mrope_interleaved=True,
                    partial_rotary_factor=0.5)), dict(image_size=280), {}),
    "glm5_next": ("glm4", (64, 48), dict(num_key_value_heads=4, layer_types=["linear_attention", "indexed_attention"], linear_num_heads=4,
                               linear_head_dim=16, mlp_layer_types=["dense", "sparse"], num_experts_per_tok=2), dict(num_heads=4, out_hidden_size=64), {}),
    # Heads of the tower are 80 wide.
    "minimax_m3": ("llama", (64, 48), dict(num_experts_per_tok=2, num_local_experts=4, intermediate_size=96, shared_intermediate_size=96,
                   dense_intermediate_size=96, rotary_dim=8, mlp_layer_types=["dense", "sparse"], layer_types=["full_attention", "minimax_m3_sparse"],
                   index_n_heads=2, index_head_dim=16, rope_parameters=dict(rope_type="default", rope_theta=5000000.0, partial_rotary_factor=0.5)),
                   dict(hidden_size=160, num_attention_heads=2), {}),
    "janus": ("llama", (32, 32), {}, dict(image_size=32, projection_dim=64), dict(tie_word_embeddings=False)),
    "qwen2_audio": ("qwen2", SOUND, {}, dict(max_source_positions=1500), dict(audio_token_index=IMAGE)),
    "voxtral": ("llama", SOUND, {}, dict(max_source_positions=1500), dict(audio_token_id=IMAGE)),
    "audio_flamingo3": ("qwen2", SOUND, {}, dict(max_source_positions=1500), dict(audio_token_id=IMAGE)),
}
# Two towers, of which images are compared, and sounds.
HEARS = dict(MORE_HEARS, output_dim=64)
CASES |= {
    "qwen2_5_omni": ("qwen2", (64, 48), dict(rope_parameters=MROPE, tie_word_embeddings=False), dict(num_heads=4, out_hidden_size=64), dict(audio_config=HEARS)),
    "qwen3_omni_moe": ("qwen3", (64, 48), dict(rope_parameters=MROPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
                       dict(num_heads=4, out_hidden_size=64, num_position_embeddings=144, deepstack_visual_indexes=[]),  # mtmd loads no others
                       dict(audio_config=dict(HEARS, downsample_hidden_size=6))),
    "qwen3_asr_hf": ("qwen3", SOUND, dict(rope_parameters=MROPE), dict(output_dim=64), dict(pad_token_id=2, eos_token_id=1)),
    "gemma4_unified": ("gemma4", (108, 120), dict(GEMMA4, use_bidirectional_attention="vision"), dict(mm_embed_dim=80, output_proj_dims=80, mm_posemb_size=32), {}),
}
MODELS["qwen3_asr_hf"] = ("Qwen3ASRForConditionalGeneration", "qwen3_asr",
                          dict(text_config=dict(model_type="qwen3", tie_word_embeddings=True), audio_config=dict(MORE_HEARS, downsample_hidden_size=6)), {})
# Of these, the tower alone is compared: language models of the small ones know no tokens of images.
NO_LOGITS = ("qwen2_5_omni", "qwen3_omni_moe", "qwen3_asr_hf", "gemma4_unified")
# Of these `amn` writes the language model of a class of its own alone.
APART = {"smolvlm": "LlamaForCausalLM", "idefics3": "LlamaForCausalLM", "internvl": "Qwen2ForCausalLM", "lfm2_vl": "Lfm2ForCausalLM"}
# Of these a small Llama stands in for the language model, and the tower alone is compared.
ALONE = ("minimax_m3",)
# What llama.cpp computes otherwise: with that, transformers is to return the same.
WRONG = {
    "hunyuan_vl": ", positions of the tower and of the language model as llama.cpp has them",
    "internvl": ", positions one row later (llama.cpp has the class token behind the patches, its position before theirs)",
    "llama4": ", tokens by columns (llama.cpp leaves out the last permutation of the pixel shuffle)",
}
SPECIAL = {
    "glm_ocr": ["<|begin_of_image|>", "<|end_of_image|>"], "glm5_next": ["<|begin_of_image|>", "<|end_of_image|>"],
    "minicpmv4_6": ["<image>", "</image>", "<slice>", "</slice>"],
    "qwen": ["<|vision_start|>", "<|vision_end|>"], "gemma4": ["<|image>", "<image|>"], "glm4v": ["<|begin_of_image|>", "<|end_of_image|>"],
    "llama4": ["<|image_start|>", "<|image_end|>"], "lfm2_vl": ["<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"],
    "mistral3": ["[IMG_BREAK]", "[IMG_END]"], "pixtral": ["[IMG_BREAK]", "[IMG_END]"], "internvl": ["<img>", "</img>"],
    "smolvlm": ["\n\n", "<fake_token_around_image>", "<global-img>"], "idefics3": ["\n\n", "<fake_token_around_image>", "<global-img>"],
}


def save(name, whole, out):
    """Writes OUT/hf as published models are, OUT/saved as transformers saves it, OUT/text if the language model is written apart."""
    tokenizer, _, text, vision, more = CASES[name]
    class_name, model_type, config, preprocessor = MODELS[name]
    config = config | dict(image_token_id=IMAGE) | more | dict(text_config=config["text_config"] | TEXT | text)
    if "vision_config" in config:
        config["vision_config"] = config["vision_config"] | VISION | vision
    else:
        config["audio_config"] = config["audio_config"] | vision
    if name == "gemma4_unified":
        config["vision_config"] = {key: value for key, value in config["vision_config"].items() if key not in VISION}
    if name in ("qwen2_vl", "janus"):
        config["vision_config"].pop("intermediate_size")
    torch.manual_seed(sum(name.encode()))
    model = getattr(transformers, class_name)(CONFIG_MAPPING[model_type](**config)).bfloat16()
    randomize(model)
    if name == "hunyuan_vl":  # GGUF does not get this position, and nothing reads it
        with torch.no_grad():
            next(value for key, value in model.named_parameters() if "position_embedding.weight" in key)[0] = 0
    if name == "qwen2_5_omni":  # GGUF does not get it, and nothing reads it
        nn.init.zeros_(next(value for key, value in model.named_parameters() if "audio_bos_eos_token" in key))
    for part in ("hf", "saved"):
        model.save_pretrained(out / part)
    tensors = load_file(out / "hf" / "model.safetensors")
    for place, published in RENAMED.get(name, {}).items():
        tensors = {key.replace(place, published): value for key, value in tensors.items()}
    if name == "internvl":
        rest = {key: tensors.pop(key) for key in list(tensors) if key.startswith("language_model.")}
        fuse_qkv(tensors)
        tensors |= rest
    save_file(tensors, out / "hf" / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((out / "hf" / "config.json").read_text())
    if name == "internvl":
        written = INTERNVL | dict(force_image_size=32, llm_config=written["text_config"] | dict(architectures=["Qwen2ForCausalLM"]))
        written["vision_config"] = INTERNVL["vision_config"] | VISION | dict(num_attention_heads=4, image_size=32)
    if name.startswith(FLAT):
        written = written.pop("text_config") | written
    (out / "hf" / "config.json").write_text(json.dumps(written, indent=2) + "\n")
    nested = preprocessor.get("image_processor", preprocessor)
    if name.startswith("gemma3"):
        nested = nested | dict(image_seq_length=16)
    if name.startswith(("smolvlm", "idefics3")):  # one tile
        edge = dict(longest_edge=config["vision_config"]["image_size"])
        nested = nested | dict(size=edge, max_image_size=edge)
    if name.startswith("minicpm"):  # one tile
        nested = nested | dict(scale_resolution=64)
    preprocessor = preprocessor | dict(image_processor=nested) if "image_processor" in preprocessor else nested
    file = "processor_config.json" if "image_processor" in preprocessor else "preprocessor_config.json"
    (out / "hf" / file).write_text(json.dumps(preprocessor, indent=2) + "\n")
    special = next((tokens for key, tokens in SPECIAL.items() if name.startswith(key)), [])
    give_tokenizer(whole / tokenizer / "hf", special, out / "hf")
    if name in ALONE:
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT)).bfloat16().save_pretrained(out / "text")
        give_tokenizer(whole / tokenizer / "hf", special, out / "text")
    if name in APART:
        apart = getattr(transformers, APART[name])(model.config.text_config).bfloat16()
        apart.load_state_dict(language(model))
        apart.save_pretrained(out / "text")
        give_tokenizer(whole / tokenizer / "hf", special, out / "text")


def language(model):
    inner = getattr(model.model, "text_model", None) or model.model.language_model
    return {f"model.{key}": value for key, value in inner.state_dict().items()} | {"lm_head.weight": model.lm_head.weight}


def give_tokenizer(source, special, out):
    for path in source.glob("token*"):
        shutil.copy(path, out)
    if (out / "tokenizer.json").exists():
        written = json.loads((out / "tokenizer.json").read_text())
        next_id = 1 + max([*written["model"]["vocab"].values(), *(token["id"] for token in written["added_tokens"])])
        plain = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
        written["added_tokens"] += [dict(plain, id=number, content=token) for number, token in enumerate(special, next_id)]
        (out / "tokenizer.json").write_text(json.dumps(written, indent=2) + "\n")


def randomize(model):
    """Keeps what goes through all layers about as large as it is, and no bias or norm plain."""
    with torch.no_grad():
        for key, value in model.named_parameters():
            if value.dim() <= 1:
                value.copy_(value.mean() + torch.randn_like(value) * 0.2)
            elif any(word in key for word in ("embed_tokens", "position", "class_embedding", "cls_token")):
                value.copy_(torch.randn_like(value) * (0.8 if "embed_tokens" in key else 0.5))
            else:
                fan_in = value.shape[1] if "experts" in key else value[0].numel()
                value.copy_(torch.randn_like(value) * fan_in**-0.5 * 1.2)
        for key, value in model.named_buffers():
            if key.endswith(("put_min", "put_max", "std_bias", "std_scale")):
                value.copy_((torch.rand_like(value) + 1.5) * (-1 if key.endswith("min") else 1))


def pixels(name, image, nested, count):
    """What transformers' processors make of an image of the right size."""
    mean, std = torch.tensor(nested["image_mean"]), torch.tensor(nested["image_std"])
    normal = ((image.float() / 255 - mean) / std).permute(2, 0, 1)
    _, height, width = normal.shape
    if name.startswith(("paddleocr", "hunyuan", "minicpm")):
        size = 4
        rows, columns = height // size, width // size
        patches = normal.reshape(3, rows, size, columns, size).permute(1, 3, 0, 2, 4).reshape(rows * columns, 3, size, size)
        if name.startswith("minicpm"):
            return dict(pixel_values=patches.permute(1, 2, 0, 3).reshape(1, 3, size, -1), target_sizes=torch.tensor([[rows, columns]]))
        patches = patches.reshape(rows * columns, -1) if name.startswith("hunyuan") else patches
        return dict(pixel_values=patches, image_grid_thw=torch.tensor([[1, rows, columns]]))
    if name.startswith(("qwen", "glm", "exaone", "minimax")):
        size = 4
        rows, columns = height // size, width // size
        patches = normal[:, None].expand(3, 2, height, width).reshape(3, 2, rows // 2, 2, size, columns // 2, 2, size)
        patches = patches.permute(2, 5, 3, 6, 0, 1, 4, 7).reshape(rows * columns, -1)
        return dict(pixel_values=patches, image_grid_thw=torch.tensor([[1, rows, columns]]))
    if name.startswith(("gemma4", "lfm2")):
        size = {"gemma4_unified": 6}.get(name, 4) if name.startswith("gemma4") else 16
        rows, columns = height // size, width // size
        patches = normal.reshape(3, rows, size, columns, size).permute(1, 3, 2, 4, 0).reshape(1, rows * columns, -1)
        if name.startswith("lfm2"):
            return dict(pixel_values=patches, spatial_shapes=torch.tensor([[rows, columns]]),
                        pixel_attention_mask=torch.ones(1, rows * columns, dtype=torch.long))
        places = torch.stack(torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy"), -1).reshape(1, -1, 2)
        return dict(pixel_values=patches, image_position_ids=places)
    if name.startswith(("smolvlm", "idefics3")):
        return dict(pixel_values=normal.expand(1, count, 3, height, width))
    if name.startswith(("mistral3", "pixtral", "lighton")):
        return dict(pixel_values=normal[None], image_sizes=torch.tensor([[height, width]]))
    return dict(pixel_values=normal[None])


def mel_bands(sound, config):
    """What transformers' processors make of a sound of thirty seconds."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=config.num_mel_bins)
    features = extractor(sound.numpy(), sampling_rate=16000, return_tensors="pt").input_features
    mask = torch.ones(1, features.shape[-1], dtype=torch.long)
    return dict(input_features=features, feature_attention_mask=mask, input_features_mask=mask)


def accepted(function, inputs):
    return {key: value for key, value in inputs.items() if key in inspect.signature(function).parameters}


def expected(name, out, image, chunks, as_llama):
    model = getattr(transformers, MODELS[name][0]).from_pretrained(out / "saved", dtype=torch.float32, attn_implementation="eager")
    path = next(out.glob("hf/*processor_config.json"))
    nested = json.loads(path.read_text())
    is_sound = image.dim() == 1
    nested = nested.get("image_processor", nested)
    if name == "internvl" and as_llama:
        positions = model.model.vision_tower.embeddings.position_embeddings
        positions.data = torch.roll(positions.data, 1, 1)
    if name == "hunyuan_vl" and as_llama:
        patches = model.model.vision_tower.embeddings
        patches.interpolate_pos_encoding = lambda _, *size: nn.functional.interpolate(
            patches.position_embedding.weight[1:].T.reshape(1, -1, patches.position_edge, patches.position_edge), mode="bilinear",
            scale_factor=[(float(length) + 0.1) / patches.position_edge for length in size]).flatten(2).mT
        rotary = model.model.language_model.rotary_emb
        rotary.recomposition_frequencies = lambda turns: torch.cat(2 * [torch.cat(
            [part[axis] for axis, part in enumerate(turns.split(rotary.mrope_section, -1))], -1)], -1)
    if is_sound:
        inputs = accepted(model.forward, mel_bands(image, model.config.audio_config))
    else:
        inputs = pixels(name, image, nested, sum(not isinstance(chunk, list) for chunk in chunks))
    with torch.no_grad():
        if name == "qwen2_audio":
            found = model.model.audio_tower(inputs["input_features"])
            found.pooler_output = model.model.multi_modal_projector(found.last_hidden_state)
        else:
            found = model.get_audio_features(**inputs) if is_sound else model.model.get_image_features(**inputs)
        features = found.pooler_output
        if name == "llama4":
            features = model.multi_modal_projector(found.last_hidden_state)
            if as_llama:
                features = features.reshape(8, 8, -1).transpose(0, 1)
        features = torch.cat(list(features)) if isinstance(features, (list, tuple)) else features
        features = features.reshape(-1, features.shape[-1])
        deep = getattr(found, "deepstack_features", None)
        if deep is not None:
            features = torch.cat([features, *(torch.cat(list(layer)) for layer in deep)], -1)
        ids, rows = [], slice(None)
        if name in NO_LOGITS:
            return features, rows, torch.zeros(1), torch.zeros(1)
        for chunk in chunks:
            if isinstance(chunk, list):
                ids += chunk
            elif name.startswith(("mistral3", "pixtral")):  # a token ends each row but the last
                columns = image.shape[1] // (8 if name.startswith("mistral3") else 4)
                added = json.loads((out / "hf/tokenizer.json").read_text())["added_tokens"]
                token = next(entry["id"] for entry in added if entry["content"] == "[IMG_BREAK]")
                is_break = torch.arange(1, len(chunk) + 1) % (columns + 1) == 0
                ids += torch.where(is_break, token, IMAGE).tolist()
                rows = ~is_break
                assert torch.equal(chunk[is_break], model.get_input_embeddings().weight[token].expand(is_break.sum(), -1)), "[IMG_BREAK]"
            else:
                ids += [IMAGE] * len(chunk)
        ids = torch.tensor([ids])
        kinds = (ids == IMAGE).long()
        more = accepted(model.forward, dict(mm_token_type_ids=kinds, token_type_ids=kinds))
        if name == "llama4":  # whose forward asks for a field that its output has not
            embedded = model.get_input_embeddings()(ids)
            blind = model.language_model(inputs_embeds=embedded.clone()).logits[0, -1]
            embedded[ids == IMAGE] = features
            return features, rows, model.language_model(inputs_embeds=embedded).logits[0, -1], blind
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs, **more).logits[0, -1]
        blind = model(input_ids=ids, attention_mask=torch.ones_like(ids), **more).logits[0, -1]
    return features, rows, logits, blind


class ContextParams(ctypes.Structure):
    _fields_ = [(key, kind) for kind, keys in [
        (ctypes.c_uint32, "n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max n_outputs_max_per_seq"),
        (ctypes.c_int32, "n_threads n_threads_batch"), (ctypes.c_int, "ctx_type rope_scaling_type pooling_type attention_type flash_attn_type"),
        (ctypes.c_float, "base scale ext attn fast slow"), (ctypes.c_uint32, "orig"), (ctypes.c_float, "defrag"),
        (ctypes.c_void_p, "cb_eval cb_data"), (ctypes.c_int, "type_k type_v"), (ctypes.c_void_p, "abort abort_data unnamed"), (ctypes.c_bool, "embeddings offload_kqv no_perf op_offload swa_full kv_unified"),
        (ctypes.c_void_p, "samplers"), (ctypes.c_size_t, "n_samplers"), (ctypes.c_void_p, "ctx_other")] for key in keys.split()]


class ModelParams(ctypes.Structure):
    _fields_ = [("head", ctypes.c_void_p * 2), ("ints", ctypes.c_int32 * 5), ("pointers", ctypes.c_void_p * 4), ("flags", ctypes.c_bool * 6)]


class TowerParams(ctypes.Structure):
    _fields_ = [(key, kind) for kind, keys in [
        (ctypes.c_bool, "use_gpu"), (ctypes.c_void_p, "device"), (ctypes.c_bool, "print_timings"), (ctypes.c_int, "n_threads"),
        (ctypes.c_char_p, "image_marker media_marker"), (ctypes.c_int, "flash_attn_type"), (ctypes.c_bool, "warmup"),
        (ctypes.c_int, "image_min_tokens image_max_tokens"), (ctypes.c_void_p, "cb_eval cb_data"), (ctypes.c_int32, "batch_max_tokens"),
        (ctypes.c_void_p, "progress progress_data")] for key in keys.split()]


class Text(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char_p), ("length", ctypes.c_size_t), ("add_special", ctypes.c_bool), ("parse_special", ctypes.c_bool)]


LOG = []
LOGGER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
keep = LOGGER(lambda level, text, _: LOG.append(text.decode(errors="replace")) if level >= 3 else None)


def in_llama(lm, tower, image):
    """The chunks of the prompt, lists of tokens or matrices of the tower, and the logits behind the last token."""
    so = next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))
    api = ctypes.CDLL(str(so))
    for function in (api.llama_log_set, api.mtmd_log_set, api.mtmd_helper_log_set):
        function(keep, None)
    for function, kind in [("llama_model_default_params", ModelParams), ("llama_context_default_params", ContextParams),
                           ("mtmd_context_params_default", TowerParams)]:
        getattr(api, function).restype = kind
    for function in ("llama_model_load_from_file", "llama_init_from_model", "mtmd_init_from_file", "mtmd_bitmap_init", "mtmd_bitmap_init_from_audio", "mtmd_input_chunks_init",
                     "mtmd_input_chunks_get"):
        getattr(api, function).restype = ctypes.c_void_p
    for function in ("mtmd_get_output_embd", "llama_get_logits_ith"):
        getattr(api, function).restype = ctypes.POINTER(ctypes.c_float)
    api.mtmd_input_chunk_get_tokens_text.restype = ctypes.POINTER(ctypes.c_int32)
    for function in ("mtmd_input_chunk_get_n_tokens", "mtmd_input_chunks_size"):
        getattr(api, function).restype = ctypes.c_size_t
    api.llama_backend_init()
    flash = int(os.environ.get("FLASH", "0"))
    model = api.llama_model_load_from_file(str(lm).encode(), api.llama_model_default_params())
    assert model, "language model not loaded"
    params = api.llama_context_default_params()
    assert (params.n_seq_max, params.type_k, params.type_v) == (1, 1, 1), "another layout of llama_context_params"
    params.n_ctx = params.n_batch = params.n_ubatch = 2048
    params.flash_attn_type, params.type_k, params.type_v, params.n_threads, params.n_threads_batch = 0, 0, 0, 1, 1
    context = ctypes.c_void_p(api.llama_init_from_model(ctypes.c_void_p(model), params))
    assert context, "no context"
    params = api.mtmd_context_params_default()
    assert (params.image_min_tokens, params.media_marker) == (-1, b"<__media__>"), "another layout of mtmd_context_params"
    params.use_gpu, params.warmup, params.flash_attn_type, params.n_threads, params.print_timings = False, False, flash, 1, False
    mtmd = ctypes.c_void_p(api.mtmd_init_from_file(str(tower).encode(), ctypes.c_void_p(model), params))
    assert mtmd, "tower not loaded"
    if image.dim() == 1:
        bitmap = ctypes.c_void_p(api.mtmd_bitmap_init_from_audio(ctypes.c_size_t(len(image)), image.numpy().tobytes()))
    else:
        height, width, _ = image.shape
        bitmap = ctypes.c_void_p(api.mtmd_bitmap_init(width, height, image.numpy().tobytes()))
    chunks = ctypes.c_void_p(api.mtmd_input_chunks_init())
    prompt = b"see <__media__> now"
    status = api.mtmd_tokenize(mtmd, chunks, ctypes.byref(Text(prompt, len(prompt), True, True)), ctypes.byref(bitmap), ctypes.c_size_t(1))
    assert status == 0, f"mtmd_tokenize: {status}"
    found, width = [], api.llama_model_n_embd_inp(ctypes.c_void_p(model))
    for at in range(api.mtmd_input_chunks_size(chunks)):
        chunk = ctypes.c_void_p(api.mtmd_input_chunks_get(chunks, ctypes.c_size_t(at)))
        count = api.mtmd_input_chunk_get_n_tokens(chunk)
        if api.mtmd_input_chunk_get_type(chunk) == 0:
            found.append(api.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(ctypes.c_size_t()))[:count])
        else:
            assert api.mtmd_encode_chunk(mtmd, chunk) == 0, "mtmd_encode_chunk"
            found.append(torch.tensor(api.mtmd_get_output_embd(mtmd)[: count * width]).reshape(count, width))
    past = ctypes.c_int32()
    status = api.mtmd_helper_eval_chunks(mtmd, context, chunks, 0, 0, 2048, ctypes.c_bool(True), ctypes.byref(past))
    assert status == 0, f"mtmd_helper_eval_chunks: {status}"
    return found, torch.tensor(api.llama_get_logits_ith(context, -1)[:VOCAB])


def error(found, right):
    assert found.shape == right.shape, (found.shape, right.shape)
    return ((found - right).norm() / right.norm()).item()


def check(amn, whole, out, name):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    save(name, whole, out)
    lm, tower = out / "lm.gguf", out / "mmproj.gguf"
    dtype, edits = os.environ.get("DTYPE", "f32"), []
    if "EDIT" in os.environ:
        key, value = os.environ["EDIT"].split("=", 1)
        (out / "edit.json").write_text(json.dumps({key: {"true": True, "false": False}.get(value, value)}))
        edits = ["--gguf-metadata", out / "edit.json"]
    for arguments in ([out / ("text" if name in APART or name in ALONE else "hf"), "-o", lm], [out / "hf", "--mmproj", *edits, "-o", tower]):
        made = subprocess.run([amn, "convert", *arguments, "--to", "gguf", "--out-dtype", dtype], capture_output=True, text=True)
        if made.returncode:
            sys.exit(f"{name}: amn: {made.stderr.strip()}")
    generator = torch.Generator().manual_seed(1)
    if CASES[name][1] == SOUND:
        image = torch.randn(SAMPLES, generator=generator)  # loud: what is quiet, llama.cpp raises to 6e-8 where transformers has 1e-10
    else:
        width, height = CASES[name][1]
        image = torch.randint(0, 256, (height, width, 3), generator=generator, dtype=torch.uint8)
    try:
        chunks, logits = in_llama(lm, tower, image)
    except AssertionError as problem:
        sys.exit(f"{name}: {problem}\n{''.join(LOG)}")
    made = [chunk for chunk in chunks if not isinstance(chunk, list)]
    for as_llama in (False, True) if name in WRONG else (False,):
        right, rows, right_logits, blind = expected(name, out, image, chunks, as_llama)
        mine = made[0][rows]
        right = right[: len(mine)] if len(made) > 1 else right
        if name in NO_LOGITS:
            print(f"{name}: {len(made)} x {tuple(mine.shape)}: tower {error(mine, right):.1e}", flush=True)
            continue
        print(f"{name}{WRONG[name] if as_llama else ''}: {len(made)} x {tuple(mine.shape)}: tower {error(mine, right):.1e}, "
              f"logits {error(logits, right_logits):.1e} (without the image {error(blind, right_logits):.1e})", flush=True)
    if dtype == "f32" and not edits:
        assert error(mine, right) < 2e-3 and (name in ALONE + NO_LOGITS or error(logits, right_logits) < 2e-3), name


if __name__ == "__main__":
    amn, whole, root = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    names = sys.argv[4:] or list(CASES)
    if len(names) == 1:
        check(amn, whole, root / names[0], names[0])
    else:  # a failed assertion of llama.cpp ends its process
        for name in names:
            subprocess.run([sys.executable, __file__, *sys.argv[1:4], name])

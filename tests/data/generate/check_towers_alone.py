"""Checks towers whose classes transformers does not have, or under other names: `amn`'s file in llama.cpp, and its directory in mlx-vlm.

    python check_towers_alone.py AMN WHOLE OUT [NAME...]

As check_towers.py, whose packages it needs, with mlx-vlm 0.7.10 and mlx 0.32.4. The models are those of HANDMADE in towers.py with other
values. llama.cpp needs a language model beside a tower: a small Llama. Prints the relative error of what the tower returns.
"""

import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import mlx.core as mx
import torch
import transformers
from check_towers import LOG, error, give_tokenizer, in_llama
from mlx import nn
from safetensors.torch import save_file
from towers import HANDMADE, moon_vit, sam

SIZES = {"deepseek_ocr": (1024, 1024), "unlimited_ocr": (1024, 1024), "deepseek_ocr2": (1024, 1024), "youtu_vl": (64, 96)}
# llama.cpp has images of 1024 pixels in patches of 16.
GRID = {"pos_embed": (1, 64, 64, 10), "patch_embed.proj.weight": (10, 3, 16, 16)}


def saved(name, out):
    """Writes OUT/hf; its config, processor and tensors."""
    config, preprocessor, shapes = HANDMADE[name]
    config = json.loads(json.dumps(config))
    if "ocr" in name and name != "dots_ocr":
        shapes = dict(shapes)
        for key in shapes:
            if ".rel_pos_" in key:
                shapes[key] = ((127 if "blocks.2." in key else 27), 5)
            for end, shape in GRID.items():
                if key.startswith("model.sam_model.") and key.endswith(end):
                    shapes[key] = shape
        for key, shape in {"embeddings.position_embedding.weight": (257, 16), "query_768.weight": (144, 16), "query_1024.weight": (256, 16)}.items():
            shapes |= {found: shape for found in shapes if found.endswith(key)}
        widths = config["vision_config"]["width"]
        widths["sam_vit_b"]["downsample_channels"] = [10, 16]
        shapes["model.sam_model.net_3.weight"] = (16, 10, 3, 3)
        if name != "deepseek_ocr2":
            widths["clip-l-14-224"]["image_size"] = 64
            shapes["model.projector.layers.weight"] = (24, 32)
    generator = torch.Generator().manual_seed(sum(name.encode()))
    tensors = {}
    for key, shape in shapes.items():
        value = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            value = value * 0.2 + (key.endswith("weight"))
        elif not any(word in key for word in ("pos_emb", "query_", "position")):
            value *= value[0].numel() ** -0.5 * 1.2
        tensors[key] = value.bfloat16()
    (out / "hf").mkdir(parents=True)
    save_file(tensors, out / "hf/model.safetensors", metadata={"format": "pt"})
    for file, written in (("config", config), ("preprocessor_config", preprocessor)):
        (out / "hf" / f"{file}.json").write_text(json.dumps(written, indent=2) + "\n")
    preprocessor = preprocessor.get("media_proc_cfg", preprocessor)
    return config, preprocessor, {key: mx.array(value.float().numpy()) for key, value in tensors.items()}


def language(whole, out):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(hidden_size=24, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2, vocab_size=354)
    transformers.LlamaForCausalLM(config).save_pretrained(out / "text")
    give_tokenizer(whole / "llama/hf", [], out / "text")


def fields_of(module, config):
    kind = module.VisionConfig
    return kind(**{key: value for key, value in config.items() if key in kind.__dataclass_fields__})


def loaded(model, tensors, prefix):
    """`model` with the tensors behind `prefix`, in MLX's layout."""
    mine = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    model.load_weights(list(model.sanitize(mine).items()))
    return model


def linear(tensors, name, values):
    return values @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]


def grouped(image, side, channels_last=False):
    """Patches, four of a square in a row: a vector of each."""
    _, height, width = image.shape
    rows, columns = height // side, width // side
    parts = image.reshape(3, rows // 2, 2, side, columns // 2, 2, side)
    parts = parts.permute(1, 4, 2, 5, *((3, 6, 0) if channels_last else (0, 3, 6)))
    return mx.array(parts.reshape(rows * columns, -1).numpy()), mx.array([[rows, columns]])


def resized(mode):
    """torch's interpolation, which the models' own code has."""
    return lambda values, size: mx.array(torch.nn.functional.interpolate(torch.tensor(values.tolist()), size=size, mode=mode).numpy())


def by_axes(fused, heads=2):
    """Rows of queries and keys of which llama.cpp takes the first half of a head for columns, and the second for rows."""
    parts = fused.reshape(3, heads, 2, -1, 2, *fused.shape[1:])
    turned = parts[:2].transpose(0, 1, 3, 2, *range(4, parts.ndim))
    return mx.concatenate([turned.reshape(-1, *fused.shape[1:]), parts[2].reshape(-1, *fused.shape[1:])])


def moon(name, config, tensors, image, as_llama=False):
    module = import_module("mlx_vlm.models.kimi_vl.vision")
    config = config["vision_config"]
    config = module.VisionConfig(model_type="moonvit", depth=3, embed_dim=16, hidden_size=16, num_heads=2, patch_size=4, intermediate_size=48,
                                 init_pos_emb_height=config["init_pos_emb_height"])
    module.bicubic_interpolate = resized("bilinear" if as_llama else "bicubic")
    tower = module.VisionModel(config)
    for block in tower.blocks:  # as in the models' own code
        block.mlp.activation_fn = nn.GELU(approx="tanh")
    parts = {key.removeprefix("vision_tower.").replace("encoder.", ""): value for key, value in tensors.items()}
    parts = {key.replace(".wqkv", ".attn.wqkv").replace(".wo", ".attn.wo"): value for key, value in parts.items()
             if key.startswith(("blocks", "patch_embed", "final"))}
    if as_llama:
        parts = {key: by_axes(value) if ".wqkv." in key else value for key, value in parts.items()}
    parts = tower.sanitize(parts)
    parts["patch_embed.proj.weight"] = tensors["vision_tower.patch_embed.proj.weight"].transpose(0, 2, 3, 1)
    tower.load_weights(list(parts.items()))
    _, height, width = image.shape
    rows, columns = height // 4, width // 4
    patches = image.reshape(3, rows, 4, columns, 4).permute(1, 3, 2, 4, 0).reshape(rows * columns, 4, 4, 3)
    merged = tower(mx.array(patches.numpy()), mx.array([[rows, columns]]))[0]
    front = "multi_modal_projector" if name == "kimi_vl" else "mm_projector"
    ends = ("proj.0", "proj.2") if name == "kimi_k25" else ("linear_1", "linear_2")
    normed = mx.fast.layer_norm(merged, tensors[f"{front}.pre_norm.weight"], tensors[f"{front}.pre_norm.bias"], 1e-5)
    hidden = nn.gelu(linear(tensors, f"{front}.{ends[0]}", normed.reshape(-1, 64)))
    return linear(tensors, f"{front}.{ends[1]}", hidden)


def dots(name, config, tensors, image):
    module = import_module("mlx_vlm.models.dots_ocr.vision")
    config = fields_of(module, config["vision_config"])
    config.hidden_size = 24
    parts = {key.removeprefix("vision_tower."): value for key, value in tensors.items()}
    parts["patch_embed.patchifier.proj.weight"] = parts["patch_embed.patchifier.proj.weight"].transpose(0, 2, 3, 1)
    tower = module.VisionModel(config)
    tower.load_weights(list(parts.items()))
    patches, grid = grouped(image, 4)
    return tower(patches, mx.concatenate([mx.array([[1]]), grid], axis=1))


def youtu(name, config, tensors, image):
    module = import_module("mlx_vlm.models.youtu_vl.vision")
    parts = {key.removeprefix("siglip2.vision_model."): value for key, value in tensors.items()}
    tower = module.VisionModel(fields_of(module, config["vision_config"]))
    tower.load_weights(list(parts.items()))
    patches, grid = grouped(image, 4, channels_last=True)
    return tower(patches, grid)


def deepseek(name, config, tensors, image):
    module = import_module("mlx_vlm.models.deepseekocr.sam")
    eye = module.SAMEncoder(1024, 16, 3, 10, 3, 2, out_chans=6, window_size=14, global_attn_indexes=(2,), final_out_chans=12)  # of the last, weights say it
    filters = ("patch_embed.proj.weight", "neck.0.weight", "neck.2.weight", "net_2.weight", "net_3.weight")
    place = "model.sam_model."
    parts = {key.removeprefix(place): value for key, value in tensors.items() if key.startswith(place)}
    eye.load_weights([(key, value.transpose(0, 2, 3, 1) if key in filters else value) for key, value in parts.items()], strict=False)
    seen = eye(mx.array(image.permute(1, 2, 0)[None].numpy()))
    if name == "deepseek_ocr2":
        module = import_module("mlx_vlm.models.deepseekocr_2.vision")
        tower = module.Qwen2Decoder2Encoder(module.Qwen2EncoderConfig(dim=16, layers=4, heads=4, kv_heads=2, intermediate_size=40))
        place = "model.qwen2_model."
        parts = {key.removeprefix(place).removeprefix("model.model."): value for key, value in tensors.items() if key.startswith(place)}
        tower.load_weights([(key.replace(".weight", "") if key.startswith("query_") else key, value) for key, value in parts.items()])
        rows = linear(tensors, "model.projector.layers", tower(seen)[0])
        return mx.concatenate([rows, tensors["model.view_seperator"][None]])
    module = import_module("mlx_vlm.models.deepseekocr.vision")
    config = module.VisionConfig(model_type="vision", layers=4, width=16, hidden_size=16, intermediate_size=64, num_attention_heads=2, image_size=256,
                                 patch_size=16, layer_norm_eps=1e-5, mlp_ratio=4.0)
    tower = module.VisionModel(config)
    tower.embeddings.num_positions = 257
    for layer in tower.transformer.layers:  # as in the models' own code, and in transformers' Unlimited OCR
        layer.mlp.activation_fn = nn.gelu_fast_approx
    place = "model.vision_model."
    parts = {key.removeprefix(place): value for key, value in tensors.items() if key.startswith(place)}
    parts["embeddings.patch_embedding.weight"] = parts["embeddings.patch_embedding.weight"].transpose(0, 2, 3, 1)
    tower.load_weights(list(parts.items()), strict=False)
    both = mx.concatenate([tower(mx.zeros((1, 256, 256, 3)), seen)[:, 1:], seen.reshape(1, 256, -1)], axis=-1)
    rows = linear(tensors, "model.projector.layers", both[0]).reshape(16, 16, -1)
    ends = mx.broadcast_to(tensors["model.image_newline"], (16, 1, 24))
    return mx.concatenate([mx.concatenate([rows, ends], axis=1).reshape(-1, 24), tensors["model.view_seperator"][None]])


# What llama.cpp computes otherwise: with that, the class is to return the same.
WRONG = {"kimi_vl": ", rows and columns of a head apart, and positions in between by lines, as in llama.cpp"}
TOWERS = {"kimi_vl": moon, "kimi_k25": moon, "glm5v": moon, "dots_ocr": dots, "youtu_vl": youtu,
          "deepseek_ocr": deepseek, "unlimited_ocr": deepseek, "deepseek_ocr2": deepseek}


def check(amn, whole, out, name):
    shutil.rmtree(out, ignore_errors=True)
    config, preprocessor, tensors = saved(name, out)
    language(whole, out)
    for arguments in ([out / "text", "-o", out / "lm.gguf"], [out / "hf", "--mmproj", "-o", out / "mmproj.gguf"]):
        made = subprocess.run([amn, "convert", *arguments, "--to", "gguf", "--out-dtype", "f32"], capture_output=True, text=True)
        if made.returncode:
            sys.exit(f"{name}: amn: {made.stderr.strip()}")
    width, height = SIZES.get(name, (64, 48))
    image = torch.randint(0, 256, (height, width, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    try:
        chunks, _ = in_llama(out / "lm.gguf", out / "mmproj.gguf", image)
    except AssertionError as problem:
        sys.exit(f"{name}: {problem}\n{''.join(LOG)}")
    made = [chunk for chunk in chunks if not isinstance(chunk, list)]
    mean, std = torch.tensor(preprocessor["image_mean"]), torch.tensor(preprocessor["image_std"])
    normal = ((image.float() / 255 - mean) / std).permute(2, 0, 1)
    for options in ({}, dict(as_llama=True)) if name in WRONG else ({},):
        right = torch.tensor(TOWERS[name](name, config, tensors, normal, **options).tolist())
        print(f"{name}{WRONG[name] if options else ''}: {len(made)} x {tuple(made[-1].shape)}: tower {error(made[-1], right):.1e}", flush=True)
    assert error(made[-1], right) < 2e-3, name


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    amn, whole, root = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    names = sys.argv[4:] or list(TOWERS)
    if len(names) == 1:
        check(amn, whole, root / names[0], names[0])
    else:
        for name in names:
            subprocess.run([sys.executable, __file__, *sys.argv[1:4], name])

"""Loads LoRA that `amn convert --to safetensors --base` has written into diffusers and PEFT, and compares what is fused with what diffusers
fuses of the input.

    python -P check_adapters_image.py AMN adapters_image

diffusers 0.42.1, peft 0.21.2, torch 2.15.0. Each adapter becomes a file with the names of diffusers, one with those of kohya's scripts, and a
directory of PEFT, and that directory each of the three again. Prints the largest difference of each, relative to the largest value that changes.
"""

import inspect
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from diffusers import FluxTransformer2DModel, UNet2DConditionModel
from diffusers.loaders import FluxLoraLoaderMixin, StableDiffusionLoraLoaderMixin, lora_conversion_utils, lora_pipeline
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel

AMN, DATA = sys.argv[1], Path(sys.argv[2])
# Keys that PEFT misses or does not expect, and settings that it does not use, are warnings.
warnings.simplefilter("error", UserWarning)
UNET = dict(
    sample_size=8, in_channels=4, out_channels=4, block_out_channels=(4, 8), layers_per_block=2, cross_attention_dim=8,
    attention_head_dim=2, norm_num_groups=2, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
)
FLUX = dict(
    patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
    joint_attention_dim=12, pooled_projection_dim=12, axes_dims_rope=(2, 2, 4), guidance_embeds=False,
)
CLIP = dict(vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=10)


def load(model, directory, name):
    if isinstance(model, UNet2DConditionModel):
        state, alphas = StableDiffusionLoraLoaderMixin.lora_state_dict(directory, weight_name=name, unet_config=model.config)
        return StableDiffusionLoraLoaderMixin.load_lora_into_unet(state, alphas, model)
    state, alphas, metadata = FluxLoraLoaderMixin.lora_state_dict(directory, weight_name=name, return_alphas=True, return_lora_metadata=True)
    FluxLoraLoaderMixin.load_lora_into_transformer(state, network_alphas=alphas, transformer=model, metadata=metadata)


CASES = [("unet", "kohya"), ("unet", "processors"), ("unet", "peft"), ("flux", "flux-kohya"), ("flux", "metadata"), ("flux", "flux-all"),
         ("text_encoder", "kohya")]
# Flux's width is written into the converter.
source = inspect.getsource(lora_conversion_utils._convert_kohya_flux_lora_to_diffusers)
scope = dict(vars(lora_conversion_utils))
exec(source.replace("3072", "16").replace("12288", "64"), scope)


def convert_flux(state):
    """The names of diffusers, which forgets the part of the pipeline for modules outside of the blocks, and does not load these then."""
    made = scope["_convert_kohya_flux_lora_to_diffusers"](state)
    return {f"transformer.{name.removeprefix('transformer.')}": value for name, value in made.items()}


lora_pipeline._convert_kohya_flux_lora_to_diffusers = convert_flux


def model_of(base):
    """The model, and whether its names lack what transformers 4 has before them."""
    if base == "text_encoder":
        model = CLIPTextModel(CLIPTextConfig(**CLIP)).eval()
    else:
        model = {"unet": UNet2DConditionModel(**UNET), "flux": FluxTransformer2DModel(**FLUX)}[base].eval()
    state = load_file(DATA / f"models/{base}.safetensors")
    is_short = not any(name.startswith("text_model.") for name in model.state_dict())
    model.load_state_dict({name.removeprefix("text_model.") if is_short else name: value for name, value in state.items()}, strict=base != "text_encoder")
    return model


def fused_by_peft(model, directory):
    """The weights with the adapter in the directory, all factors of which are in layers of PEFT."""
    model = PeftModel.from_pretrained(model, directory, autocast_adapter_dtype=False)
    factors = sum("lora_" in name for name, _ in model.named_parameters())
    assert factors == len(load_file(Path(directory) / "adapter_model.safetensors")), factors
    return model.double().merge_and_unload().state_dict()


def fused_by_diffusers(model, path):
    model = model.double()
    load(model, str(path.parent), path.name)
    model.fuse_lora()
    return {name.replace(".base_layer", ""): value for name, value in model.state_dict().items()}


STYLES = {"diffusers": ("out.safetensors", []), "kohya": ("out.safetensors", ["--kohya-names"]), "peft": ("adapter", [])}
def part_of_flux_all(directory):
    """A module whose name others end in, of another rank than most and than those, which have no factors."""
    tensors = load_file(DATA / "flux-all.safetensors")
    names = [f"transformer.{module}" for module in ("proj_out", "transformer_blocks.0.attn.to_q", "single_transformer_blocks.0.norm.linear")]
    tensors = {name: value for name, value in tensors.items() if name.startswith(tuple(f"{begin}.lora" for begin in names))}
    a, b = (f"transformer.proj_out.lora_{x}.weight" for x in "AB")
    tensors |= {a: tensors[a][:1].clone(), b: tensors[b][:, :1].clone()}
    path = directory / "flux-ends.safetensors"
    save_file(tensors, path)
    before, after = model_of("flux").state_dict(), fused_by_diffusers(model_of("flux"), path)
    return path, {name: value.float() for name, value in after.items() if name in before and not torch.equal(value.float(), before[name])}


for base, adapter in [*CASES, ("flux", "flux-ends")]:
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        if adapter == "flux-ends":
            source, want = part_of_flux_all(directory)
        else:
            source, want = DATA / f"{adapter}.safetensors", load_file(DATA / f"expected-{base}-{adapter}.safetensors")
        part = directory / base
        model_of(base).save_pretrained(part)
        adapters = [("", source), ("peft, ", directory / "first")]
        for before, path in adapters:
            for style, (out, names) in STYLES.items():
                if base == "text_encoder" and style != "peft":
                    continue
                out = directory / ("first" if not before and style == "peft" else f"{len(before)}{style}-{out}")
                run = [AMN, "convert", path, "--to", "safetensors", "--base", part, "-o", out, *names]
                subprocess.run(run, check=True, capture_output=True)
                fused = fused_by_peft if style == "peft" else fused_by_diffusers
                after = fused(model_of(base), out)
                after = {name.removeprefix("text_model."): value for name, value in after.items()}
                worst = max(((after[k.removeprefix("text_model.")].float() - v).abs().max() / v.abs().max()).item() for k, v in want.items())
                print(f"{base} {adapter}: {before}{style}: {len(want)} tensors, {worst:.2g}")
                assert worst < 2e-7, json.dumps([base, adapter])

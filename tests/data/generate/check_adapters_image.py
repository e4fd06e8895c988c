"""Loads LoRA that `amn convert --to safetensors --base` has written into diffusers, and compares what it fuses with what it fuses of the input.

    python -P check_adapters_image.py AMN adapters_image

diffusers 0.42.1, peft 0.21.2, torch 2.15.0. Prints the largest difference of each case, relative to the largest value that changes.
"""

import inspect
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from diffusers import FluxTransformer2DModel, UNet2DConditionModel
from diffusers.loaders import FluxLoraLoaderMixin, StableDiffusionLoraLoaderMixin, lora_conversion_utils, lora_pipeline
from safetensors.torch import load_file

AMN, DATA = sys.argv[1], Path(sys.argv[2])
UNET = dict(
    sample_size=8, in_channels=4, out_channels=4, block_out_channels=(4, 8), layers_per_block=2, cross_attention_dim=8,
    attention_head_dim=2, norm_num_groups=2, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
)
FLUX = dict(
    patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
    joint_attention_dim=12, pooled_projection_dim=12, axes_dims_rope=(2, 2, 4), guidance_embeds=False,
)


def load(model, directory, name):
    if isinstance(model, UNet2DConditionModel):
        state, alphas = StableDiffusionLoraLoaderMixin.lora_state_dict(directory, weight_name=name, unet_config=model.config)
        return StableDiffusionLoraLoaderMixin.load_lora_into_unet(state, alphas, model)
    state, alphas, metadata = FluxLoraLoaderMixin.lora_state_dict(directory, weight_name=name, return_alphas=True, return_lora_metadata=True)
    FluxLoraLoaderMixin.load_lora_into_transformer(state, network_alphas=alphas, transformer=model, metadata=metadata)


CASES = [("unet", "kohya"), ("unet", "processors"), ("unet", "peft"), ("flux", "flux-kohya"), ("flux", "metadata"), ("flux", "flux-all")]
# Flux's width is written into the converter.
source = inspect.getsource(lora_conversion_utils._convert_kohya_flux_lora_to_diffusers)
scope = dict(vars(lora_conversion_utils))
exec(source.replace("3072", "16").replace("12288", "64"), scope)


def convert_flux(state):
    """The names of diffusers, which forgets the part of the pipeline for modules outside of the blocks, and does not load these then."""
    made = scope["_convert_kohya_flux_lora_to_diffusers"](state)
    return {f"transformer.{name.removeprefix('transformer.')}": value for name, value in made.items()}


lora_pipeline._convert_kohya_flux_lora_to_diffusers = convert_flux
for base, adapter, names in [(base, adapter, names) for base, adapter in CASES for names in ([], ["--kohya-names"])]:
    kind, options = (UNet2DConditionModel, UNET) if base == "unet" else (FluxTransformer2DModel, FLUX)
    with tempfile.TemporaryDirectory() as directory:
        part = Path(directory) / base
        model = kind(**options).eval()
        model.load_state_dict(load_file(DATA / f"models/{base}.safetensors"))
        model.save_pretrained(part)
        run = [AMN, "convert", DATA / f"{adapter}.safetensors", "--to", "safetensors", "--base", part, "-o", Path(directory) / "out.safetensors", *names]
        subprocess.run(run, check=True, capture_output=True)
        model = model.double()
        load(model, directory, "out.safetensors")
        model.fuse_lora()
        after = {name.replace(".base_layer", ""): value for name, value in model.state_dict().items()}
        want = load_file(DATA / f"expected-{base}-{adapter}.safetensors")
        worst = max(((after[k].float() - v).abs().max() / v.abs().max()).item() for k, v in want.items())
        print(f"{base} {adapter} {' '.join(names)}: {len(want)} tensors, {worst:.2g}")
        assert worst < 2e-7, json.dumps([base, adapter])

"""LoRA for image models, the models that they belong to, and what diffusers makes of both.

    python adapters_image.py OUT

diffusers 0.42.1, peft 0.21.2, transformers 5.24.0, torch 2.15.0. OUT gets a UNet and a text encoder with the names of diffusers
(`models/unet.safetensors`, `models/text_encoder.safetensors`), both in one file with the names of their authors
(`models/checkpoint.safetensors`), a Flux transformer (`models/flux.safetensors`), adapters with the names of kohya's scripts (`kohya`), of diffusers of old (`processors`), of
PEFT in a pipeline (`peft`, with alphas; `metadata`, whose settings are in the metadata), and `expected-BASE-ADAPTER.safetensors`: the
tensors that change, which diffusers fuses in F64 and which are rounded once to F32.
"""

import inspect
import re
import sys
from pathlib import Path

import torch
from diffusers import FluxPipeline, FluxTransformer2DModel, UNet2DConditionModel
from diffusers.loaders import FluxLoraLoaderMixin, StableDiffusionLoraLoaderMixin, lora_conversion_utils, lora_pipeline, single_file_utils
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint
from peft import LoraConfig
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel

OUT = Path(sys.argv[1])
MODELS = OUT / "models"
MODELS.mkdir(parents=True, exist_ok=True)
GENERATOR = torch.Generator().manual_seed(7)
UNET = dict(
    sample_size=8, in_channels=4, out_channels=4, block_out_channels=(4, 8), layers_per_block=2, cross_attention_dim=8,
    attention_head_dim=2, norm_num_groups=2, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
)
FLUX = dict(
    patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
    joint_attention_dim=12, pooled_projection_dim=12, axes_dims_rope=(2, 2, 4), guidance_embeds=False,
)
CLIP = CLIPTextConfig(vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
                      max_position_embeddings=10)


def randn(*shape):
    return torch.randn(shape, generator=GENERATOR)


def original_name(name):
    """The name in Stable Diffusion's own file of a tensor of diffusers' UNet."""
    around = {
        "time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2", "conv_in": "input_blocks.0.0",
        "conv_norm_out": "out.0", "conv_out": "out.2",
    }
    resnet = {
        "norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1", "norm2": "out_layers.0",
        "conv2": "out_layers.3", "conv_shortcut": "skip_connection",
    }
    for theirs, ours in around.items():
        if name.startswith(theirs + "."):
            return name.replace(theirs, ours, 1)
    for theirs, ours in resnet.items():
        name = re.sub(rf"(resnets\.\d+)\.{theirs}\.", rf"\1.{ours}.", name)
    name = re.sub(r"^mid_block\.attentions\.0\.", "middle_block.1.", name)
    name = re.sub(r"^mid_block\.resnets\.(\d)\.", lambda m: f"middle_block.{2 * int(m[1])}.", name)
    name = re.sub(r"^down_blocks\.(\d)\.attentions\.(\d)\.", lambda m: f"input_blocks.{3 * int(m[1]) + int(m[2]) + 1}.1.", name)
    name = re.sub(r"^down_blocks\.(\d)\.resnets\.(\d)\.", lambda m: f"input_blocks.{3 * int(m[1]) + int(m[2]) + 1}.0.", name)
    name = re.sub(r"^down_blocks\.(\d)\.downsamplers\.0\.conv\.", lambda m: f"input_blocks.{3 * int(m[1]) + 3}.0.op.", name)
    name = re.sub(r"^up_blocks\.(\d)\.attentions\.(\d)\.", lambda m: f"output_blocks.{3 * int(m[1]) + int(m[2])}.1.", name)
    name = re.sub(r"^up_blocks\.(\d)\.resnets\.(\d)\.", lambda m: f"output_blocks.{3 * int(m[1]) + int(m[2])}.0.", name)
    # The block without attention has nothing in its place.
    return re.sub(r"^up_blocks\.(\d)\.upsamplers\.0\.conv\.", lambda m: f"output_blocks.{3 * int(m[1]) + 2}.1.conv.", name)


FLUX_NAMES = {
    "x_embedder": "img_in", "context_embedder": "txt_in", "proj_out": "final_layer.linear",
    "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer", "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "time_text_embed.text_embedder.linear_1": "vector_in.in_layer", "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
}
DOUBLE = {
    "norm1.linear": "img_mod.lin", "norm1_context.linear": "txt_mod.lin", "attn.to_out.0": "img_attn.proj", "attn.to_add_out": "txt_attn.proj",
    "ff.net.0.proj": "img_mlp.0", "ff.net.2": "img_mlp.2", "ff_context.net.0.proj": "txt_mlp.0", "ff_context.net.2": "txt_mlp.2",
}
FUSED = {
    "double_blocks.0.img_attn.qkv": ["transformer_blocks.0.attn.to_q", "transformer_blocks.0.attn.to_k", "transformer_blocks.0.attn.to_v"],
    "double_blocks.0.txt_attn.qkv": [f"transformer_blocks.0.attn.add_{x}_proj" for x in "qkv"],
    "single_blocks.0.linear1": [f"single_transformer_blocks.0.{x}" for x in ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"]],
}


def original_flux(state):
    """The tensors of diffusers' Flux transformer as its authors' file has them, norms of queries and keys left out."""
    original = {}
    for theirs, ours in FLUX_NAMES.items():
        original |= {f"{ours}.{end}": state[f"{theirs}.{end}"] for end in ("weight", "bias")}
    for theirs, ours in DOUBLE.items():
        original |= {f"double_blocks.0.{ours}.{end}": state[f"transformer_blocks.0.{theirs}.{end}"] for end in ("weight", "bias")}
    for theirs, ours in {"norm.linear": "modulation.lin", "proj_out": "linear2"}.items():
        original |= {f"single_blocks.0.{ours}.{end}": state[f"single_transformer_blocks.0.{theirs}.{end}"] for end in ("weight", "bias")}
    for end in ("weight", "bias"):
        for ours, theirs in FUSED.items():
            original[f"{ours}.{end}"] = torch.cat([state[f"{name}.{end}"] for name in theirs])
        scale, shift = state[f"norm_out.linear.{end}"].chunk(2)
        original[f"final_layer.adaLN_modulation.1.{end}"] = torch.cat([shift, scale])
    return original


def of_small_model(module, function):
    """A function of diffusers for the width of the small model: Flux's is written into it."""
    source = inspect.getsource(getattr(module, function))
    scope = dict(vars(module))
    exec(source.replace("3072", "16").replace("12288", "64"), scope)
    return scope[function]


def require_converted(original, state):
    """Fails unless diffusers' converter, for the small model's width, makes `state` of `original`."""
    norms = {f"double_blocks.0.{side}_attn.norm.{x}_norm.scale": torch.ones(8) for side in ("img", "txt") for x in ("query", "key")}
    norms |= {f"single_blocks.0.norm.{x}_norm.scale": torch.ones(8) for x in ("query", "key")}
    convert = of_small_model(single_file_utils, "convert_flux_transformer_checkpoint_to_diffusers")
    converted = convert({**original, **norms})
    assert converted.keys() == state.keys(), converted.keys() ^ state.keys()
    assert all(torch.equal(converted[k], v) for k, v in state.items() if "attn.norm" not in k)


def factors(module, rank):
    """A and B for a module of a model."""
    weight = module.weight
    if weight.dim() == 2:
        return 0.1 * randn(rank, weight.shape[1]), 0.1 * randn(weight.shape[0], rank)
    return 0.1 * randn(rank, *weight.shape[1:]), 0.1 * randn(weight.shape[0], rank, 1, 1)


def fused(model, load):
    """The weights that change when the adapter that `load` loads is fused in F64."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model = model.double()
    load(model)
    model.fuse_lora() if hasattr(model, "fuse_lora") else fuse_layers(model)
    after = {name.replace(".base_layer", ""): value for name, value in model.state_dict().items() if ".lora_" not in name}
    return {name: value.float() for name, value in after.items() if not torch.equal(value.float(), before[name])}


def fuse_layers(model):
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module.merge()


def models():
    torch.manual_seed(3)
    return UNet2DConditionModel(**UNET).eval(), CLIPTextModel(CLIP).eval()


def with_first_part(state):
    """Names as transformers 4 has them."""
    return {(k if k.startswith("text_model.") else f"text_model.{k}"): v for k, v in state.items()}


unet, text = models()
flux = FluxTransformer2DModel(**FLUX).eval()
save_file(unet.state_dict(), MODELS / "unet.safetensors")
text_state = with_first_part({k: v for k, v in text.state_dict().items() if "position_ids" not in k})
save_file(text_state, MODELS / "text_encoder.safetensors")
save_file(flux.state_dict(), MODELS / "flux.safetensors")
FLUX_STATE = {k: v.clone() for k, v in flux.state_dict().items()}
require_converted(original_flux(FLUX_STATE), FLUX_STATE)
save_file({f"model.diffusion_model.{k}": v for k, v in original_flux(FLUX_STATE).items()}, MODELS / "flux-original.safetensors")

# All linear layers of Flux under the names of diffusers, and those of its blocks under its authors' as kohya's scripts have them.
flux_all, flux_kohya = {}, {}
for name, module in flux.named_modules():
    if isinstance(module, torch.nn.Linear):
        a, b = factors(module, 2)
        flux_all |= {f"transformer.{name}.lora_A.weight": a, f"transformer.{name}.lora_B.weight": b}
for name, value in original_flux(FLUX_STATE).items():
    if name.endswith(".weight") and "_blocks." in name:
        key = "lora_unet_" + name.removesuffix(".weight").replace(".", "_")
        flux_kohya |= {f"{key}.lora_down.weight": 0.1 * randn(2, value.shape[1]), f"{key}.lora_up.weight": 0.1 * randn(value.shape[0], 2),
                       f"{key}.alpha": torch.tensor(4.0)}
save_file(flux_all, OUT / "flux-all.safetensors")
save_file(flux_kohya, OUT / "flux-kohya.safetensors")
original = {original_name(name): value for name, value in unet.state_dict().items()}
converted = convert_ldm_unet_checkpoint({f"model.diffusion_model.{k}": v for k, v in original.items()},
                                        {**UNET, "class_embed_type": None, "addition_embed_type": None})
assert converted.keys() == unet.state_dict().keys(), set(converted) ^ set(unet.state_dict())
assert all(torch.equal(converted[k], v) for k, v in unet.state_dict().items())
save_file({**{f"model.diffusion_model.{k}": v for k, v in original.items()},
           **{f"cond_stage_model.transformer.{k}": v for k, v in text_state.items()}}, MODELS / "checkpoint.safetensors")

# kohya: all linear layers of attention and feed-forward layers, some convolutions, and the text encoder.
kohya, processors, peft_names = {}, {}, {}
for name, module in unet.named_modules():
    is_attention = ".attn" in name and re.search(r"to_(q|k|v)$|to_out\.0$", name)
    is_other = re.search(r"ff\.net\.(0\.proj|2)$|proj_in$|resnets\.0\.conv1$|samplers\.0\.conv$|time_emb_proj$", name)
    if not (is_attention or is_other):
        continue
    rank = 3 if is_attention else 2
    a, b = factors(module, rank)
    key = "lora_unet_" + name.replace(".", "_")
    kohya |= {f"{key}.lora_down.weight": a, f"{key}.lora_up.weight": b, f"{key}.alpha": torch.tensor(1.5 if is_attention else 2.0)}
    peft_names |= {f"unet.{name}.lora_A.weight": a, f"unet.{name}.lora_B.weight": b}
    if is_attention:
        parent, last = re.fullmatch(r"(.*)\.(to_q|to_k|to_v|to_out)(?:\.0)?", name).groups()
        processors |= {f"unet.{parent}.processor.{last}_lora.down.weight": a, f"unet.{parent}.processor.{last}_lora.up.weight": b}
for name, module in text.named_modules():
    if re.search(r"(q|k|v|out)_proj$|fc1$", name):
        a, b = factors(module, 2)
        name = name if name.startswith("text_model.") else f"text_model.{name}"
        key = "lora_te_" + name.replace(".", "_")
        kohya |= {f"{key}.lora_down.weight": a, f"{key}.lora_up.weight": b, f"{key}.alpha": torch.tensor(1.0)}
save_file(kohya, OUT / "kohya.safetensors", metadata={"ss_network_alpha": "8"})
save_file(processors, OUT / "processors.safetensors")
save_file(peft_names, OUT / "peft.safetensors")


def expect(base, adapter, values):
    assert values, (base, adapter)
    save_file(values, OUT / f"expected-{base}-{adapter}.safetensors")


def into_unet(adapter):
    def load(model):
        state, alphas = StableDiffusionLoraLoaderMixin.lora_state_dict(str(OUT), weight_name=f"{adapter}.safetensors", unet_config=model.config)
        StableDiffusionLoraLoaderMixin.load_lora_into_unet(state, alphas, model)
    return load


def into_text(model):
    state, alphas = StableDiffusionLoraLoaderMixin.lora_state_dict(str(OUT), weight_name="kohya.safetensors", unet_config=unet.config)
    StableDiffusionLoraLoaderMixin.load_lora_into_text_encoder(state, alphas, model)


for adapter in ["kohya", "processors", "peft"]:
    expect("unet", adapter, fused(models()[0], into_unet(adapter)))
expect("text_encoder", "kohya", with_first_part(fused(models()[1], into_text)))

# Settings in the metadata, as FluxPipeline.save_lora_weights writes them.
config = LoraConfig(r=4, lora_alpha=6, target_modules=["to_q", "to_k", "proj_mlp"], rank_pattern={"proj_mlp": 2},
                    alpha_pattern={"transformer_blocks.0.attn.to_k": 3})
flux.add_adapter(config)
for name, p in flux.named_parameters():
    if "lora_" in name:
        p.data = 0.1 * randn(*p.shape)
layers = get_peft_model_state_dict(flux)
FluxPipeline.save_lora_weights(str(OUT), transformer_lora_layers=layers, weight_name="metadata.safetensors",
                               transformer_lora_adapter_metadata={**config.to_dict(), "target_modules": sorted(config.target_modules)})


lora_pipeline._convert_kohya_flux_lora_to_diffusers = of_small_model(lora_conversion_utils, "_convert_kohya_flux_lora_to_diffusers")


def into_flux(adapter):
    def load(model):
        state, alphas, metadata = FluxLoraLoaderMixin.lora_state_dict(
            str(OUT), weight_name=f"{adapter}.safetensors", return_alphas=True, return_lora_metadata=True)
        FluxLoraLoaderMixin.load_lora_into_transformer(state, network_alphas=alphas, transformer=model, metadata=metadata)
    return load


for adapter in ["metadata", "flux-all", "flux-kohya"]:
    base = FluxTransformer2DModel(**FLUX).eval()
    base.load_state_dict(load_file(MODELS / "flux.safetensors"))
    changed = fused(base, into_flux(adapter))
    expect("flux", adapter, changed)
    after = original_flux({**FLUX_STATE, **changed})
    before = original_flux(FLUX_STATE)
    expect("flux-original", adapter, {f"model.diffusion_model.{k}": v for k, v in after.items() if not torch.equal(v, before[k])})

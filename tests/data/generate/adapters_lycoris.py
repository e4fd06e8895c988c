"""LoHa, LoKr and other adapters of LyCORIS and PEFT, and what these libraries make of them and a model.

    python -P adapters_lycoris.py adapters adapters_image

lycoris-lora 4.1.3, peft 0.21.2, torch 2.15.0, diffusers 0.42.1. Reads `base-layers` of `adapters_layers.py` and `models` of `adapters_image.py`. The first
directory gets `loha*/` and `lokr*/` of PEFT, the second one adapters of LyCORIS, and both `expected-BASE-ADAPTER.safetensors`: the tensors
that change, computed in F64 and rounded once to F32.
"""

import copy
import sys
from pathlib import Path

import torch
from lycoris.modules.full import FullModule
from lycoris.modules.locon import LoConModule
from lycoris.modules.loha import LohaModule
from lycoris.modules.lokr import LokrModule
from lycoris.modules.norms import NormModule
from peft import LoHaConfig, LoKrConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn

OUT, IMAGES = map(Path, sys.argv[1:3])


class Layers(nn.Module):
    """The layers of `base-layers` that LyCORIS changes."""

    def __init__(self):
        super().__init__()
        self.line = nn.Conv1d(6, 10, 5)
        self.point = nn.Conv1d(6, 10, 1)
        self.image = nn.Conv2d(5, 12, (3, 2))
        self.pixel = nn.Conv2d(12, 7, 1, bias=False)
        self.video = nn.Conv3d(3, 8, (2, 3, 3), bias=False)
        self.fc = nn.Linear(14, 9)
        self.gate = nn.Linear(9, 5, bias=False)


TUCKER, DORA, DORA_IN = dict(use_tucker=True), dict(weight_decompose=True), dict(weight_decompose=True, wd_on_out=False)
# Class, rank, alpha, options.
ADAPTERS = {
    "lycoris": {
        "line": (LoConModule, 3, 2.0, TUCKER), "image": (LohaModule, 2, 3.0, TUCKER), "pixel": (LohaModule, 3, 1.0, {}),
        "video": (LokrModule, 1, 1.5, TUCKER | {"factor": 2}), "fc": (LokrModule, 1, 0.5, {"decompose_both": True}),
        # Whole matrices, which have no scale.
        "point": (LokrModule, 100, 5.0, {}), "gate": (FullModule, 1, 1.0, {}),
    },
    "lycoris-flat": {
        "line": (LohaModule, 3, 4.0, {}), "image": (LokrModule, 1, 2.0, {"factor": 2}), "pixel": (FullModule, 1, 1.0, {}),
        "video": (LoConModule, 2, 1.0, {}), "fc": (LohaModule, 2, 2.0, {}), "point": (FullModule, 1, 1.0, {}),
        "gate": (LokrModule, 2, 7.0, {}),
    },
    "lycoris-dora": {
        "line": (LoConModule, 2, 1.0, DORA), "image": (LohaModule, 2, 3.0, TUCKER | DORA), "video": (LokrModule, 1, 1.0, DORA),
        "fc": (LoConModule, 2, 3.0, DORA),
    },
    "lycoris-dora-in": {
        "line": (LoConModule, 2, 1.0, TUCKER | DORA_IN), "image": (LoConModule, 2, 3.0, DORA_IN), "video": (LokrModule, 1, 1.0, DORA_IN),
        "fc": (LohaModule, 2, 3.0, DORA_IN), "pixel": (LokrModule, 2, 1.0, DORA_IN),
    },
}


def randomize(module, key):
    """Random values for a tensor of an adapter, of about the same size in its product whatever its kind."""
    for name, p in module.named_parameters():
        noise = torch.randn(p.shape)
        p.data = p.data * (1 + 0.1 * noise) if name == "dora_scale" else 0.3 * noise
    state = {f"{key}.{k}": v.detach().clone().contiguous() for k, v in module.state_dict().items()}
    if isinstance(module, FullModule):
        # Before it is applied it holds differences, and its own names are those afterwards.
        state = {f"{key}.diff": module.weight.detach().clone()}
        if module.bias is not None:
            state[f"{key}.diff_b"] = module.bias.detach().clone()
    return state


def merged(module, name, multiplier=1.0):
    """Weight and bias that the module computes with in F64.

    `get_merged_weight` of lycoris-lora 4.1.3 multiplies LoHa and LoKr by the scale twice, which `forward` does not.
    """
    module = module.double()
    layer = module.org_module[0]
    module._org_weight = [layer.weight.data]
    if getattr(module, "org_bias", None) is not None:
        module.org_bias = [layer.bias.data]
    shape = layer.weight.shape
    if isinstance(module, (LohaModule, LokrModule)):
        added = module.get_weight(shape)
        weight = layer.weight + added * multiplier
        if module.wd:
            weight = module.apply_weight_decompose(layer.weight + added, multiplier)
        bias = None
    else:
        weight, bias = module.get_merged_weight(multiplier, shape)
    require_forward(module, weight, bias, multiplier)
    changed = {f"{name}.weight": weight.detach().float().contiguous()}
    return changed if bias is None else changed | {f"{name}.bias": bias.detach().float().contiguous()}


def require_forward(module, weight, bias, multiplier):
    """Fails unless the module's `forward` is that of its layer with this weight and bias."""
    layer = copy.deepcopy(module.org_module[0])
    if isinstance(module, NormModule):
        x = torch.randn(2, layer.weight.numel(), layer.weight.numel()).double()
    elif isinstance(layer, nn.Linear):
        x = torch.randn(4, layer.in_features).double()
    else:
        x = torch.randn(1, layer.in_channels, *[7] * (layer.weight.dim() - 2)).double()
    module.multiplier = multiplier
    got = module.eval()(x)
    layer.weight.data = weight.detach()
    if bias is not None:
        layer.bias.data = bias.detach()
    assert torch.allclose(got, layer(x), rtol=1e-12, atol=1e-12), type(module)


def module_of(kind, layer, rank, alpha, options):
    return kind("", copy.deepcopy(layer).double(), 1.0, rank, alpha, **options).float()


def lycoris():
    torch.manual_seed(5)
    base = Layers()
    stored = load_file(OUT / "base-layers/model.safetensors")
    base.load_state_dict({k: stored[k] for k in base.state_dict()})
    for name, layers in ADAPTERS.items():
        state, changed, half = {}, {}, {}
        for layer, made in layers.items():
            module = module_of(made[0], getattr(base, layer), *made[1:])
            state |= randomize(module, f"lycoris_{layer}")
            changed |= merged(module, layer)
            half |= {} if name != "lycoris" else merged(module, layer, 0.5)
        save_file(state, IMAGES / f"{name}.safetensors")
        save_file(changed, IMAGES / f"expected-base-layers-{name}.safetensors")
        if half:
            save_file(half, IMAGES / f"expected-base-layers-{name}-half.safetensors")
        print(name, *(f"{k.removeprefix('lycoris_')}{list(v.shape)}" for k, v in state.items()))


def peft():
    configs = {
        # PEFT rounds the scale of LoHa to F32: these are exact.
        "loha": LoHaConfig(r=4, alpha=6, target_modules=["line", "point", "image", "pixel", "fc"], use_effective_conv2d=True,
                           rank_pattern={"fc": 2}, alpha_pattern={"image": 3}),
        "loha-flat": LoHaConfig(r=2, alpha=5, target_modules=["line", "image"]),
        "lokr": LoKrConfig(r=2, alpha=3, target_modules=["line", "image", "pixel", "fc"], use_effective_conv2d=True, alpha_pattern={"fc": 1}),
        "lokr-flat": LoKrConfig(r=1, alpha=3, target_modules=["image", "fc", "gate"], decompose_both=True, decompose_factor=4, rank_pattern={"gate": 9}),
    }
    base = Layers().eval()
    stored = load_file(OUT / "base-layers/model.safetensors")
    base.load_state_dict({k: stored[k] for k in base.state_dict()})
    before = base.state_dict()
    for seed, (name, config) in enumerate(configs.items()):
        torch.manual_seed(seed)
        model = get_peft_model(copy.deepcopy(base), config)
        for key, p in model.named_parameters():
            if "hada_" in key or "lokr_" in key:
                p.data = 0.3 * torch.randn(p.shape)
        model.save_pretrained(OUT / name)
        (OUT / name / "README.md").unlink(missing_ok=True)
        model = PeftModel.from_pretrained(copy.deepcopy(base).double(), OUT / name).double().merge_and_unload()
        changed = {k: v.float().contiguous() for k, v in model.state_dict().items() if not torch.equal(v.float(), before[k])}
        save_file(changed, OUT / f"expected-base-layers-{name}.safetensors")
        print(name, *(f"{k}{list(v.shape)}" for k, v in load_file(OUT / name / "adapter_model.safetensors").items()))


FUSED = {
    "double_blocks.0.img_attn.qkv": [f"transformer_blocks.0.attn.to_{x}" for x in "qkv"],
    "double_blocks.0.txt_attn.qkv": [f"transformer_blocks.0.attn.add_{x}_proj" for x in "qkv"],
    "single_blocks.0.linear1": [f"single_transformer_blocks.0.{x}" for x in ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"]],
}


def images():
    torch.manual_seed(6)
    from diffusers import FluxTransformer2DModel, UNet2DConditionModel

    # As LyCORIS names modules of a model of diffusers, which its authors' file has in one.
    flux = load_file(IMAGES / "models/flux.safetensors")
    config = dict(patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
                  joint_attention_dim=12, pooled_projection_dim=12, axes_dims_rope=(2, 2, 4), guidance_embeds=False)
    model = FluxTransformer2DModel(**config)
    model.load_state_dict(flux)
    state, changed = {}, {}
    for i, name in enumerate(sum(FUSED.values(), [])):
        module = module_of(LohaModule if i % 3 == 1 else LokrModule, model.get_submodule(name), 1, 2.0, {} if i % 2 else {"decompose_both": True})
        state |= randomize(module, "lycoris_" + name.replace(".", "_"))
        changed |= merged(module, name)
    save_file(state, IMAGES / "flux-lokr.safetensors")
    save_file(changed, IMAGES / "expected-flux-flux-lokr.safetensors")
    all_values = flux | changed
    original = {f"model.diffusion_model.{ours}.weight": torch.cat([all_values[f"{name}.weight"] for name in theirs]) for ours, theirs in FUSED.items()}
    save_file(original, IMAGES / "expected-flux-original-flux-lokr.safetensors")

    stored = load_file(IMAGES / "models/unet.safetensors")
    unet = UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, block_out_channels=(4, 8), layers_per_block=2, cross_attention_dim=8,
        attention_head_dim=2, norm_num_groups=2, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    unet.load_state_dict(stored)
    state, changed = {}, {}
    for name, made in {
        "conv_norm_out": (NormModule, 1, 1.0, {}), "mid_block.attentions.0.transformer_blocks.0.norm1": (NormModule, 1, 1.0, {}),
        "conv_in": (LoConModule, 2, 1.0, TUCKER), "mid_block.resnets.0.conv1": (LokrModule, 1, 1.0, TUCKER),
    }.items():
        module = module_of(made[0], unet.get_submodule(name), *made[1:])
        state |= randomize(module, "lora_unet_" + name.replace(".", "_"))
        changed |= merged(module, name)
    save_file(state, IMAGES / "norms.safetensors")
    save_file(changed, IMAGES / "expected-unet-norms.safetensors")
    print("lokr, norms", *(f"{k}{list(v.shape)}" for k, v in state.items()))


lycoris()
peft()
images()

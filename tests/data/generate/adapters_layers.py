"""Adapters of PEFT for convolutions, biases and stacks of experts, a model that has them, and what `merge_and_unload` makes of both.

    python -P adapters_layers.py OUT

peft 0.21.2, torch 2.15.0; `-P`, for peft imports `eetq` if there is one. OUT gets `base-layers/`, ADAPTER/ for each adapter, and `expected-base-layers-ADAPTER.safetensors`: the
tensors that change, which peft computes in F64 and which are rounded once to F32. Prints how far peft in F32 is from that, in units of
the last place of the larger of the weight and the result.
"""

import copy
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

OUT = Path(sys.argv[1])


class Experts(nn.Module):
    """Stacks as transformers has them: `[experts, in, out]` if `is_transposed`, else `[experts, out, in]`."""

    def __init__(self, experts, width, hidden, is_transposed):
        super().__init__()
        self.is_transposed = is_transposed
        up, down = (2 * hidden, width), (width, hidden)
        if is_transposed:
            up, down = up[::-1], down[::-1]
        self.gate_up_proj = nn.Parameter(0.1 * torch.randn(experts, *up))
        self.down_proj = nn.Parameter(0.1 * torch.randn(experts, *down))


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Conv1d(6, 10, 5, stride=2, padding=1)
        self.point = nn.Conv1d(6, 10, 1)
        self.image = nn.Conv2d(5, 12, (3, 2), padding=1)
        self.pixel = nn.Conv2d(12, 7, 1, bias=False)
        self.video = nn.Conv3d(3, 8, (2, 3, 3), bias=False)
        self.fc = nn.Linear(14, 9)
        self.gate = nn.Linear(9, 5, bias=False)
        self.experts = Experts(3, 8, 6, False)
        # Square in one of its two parameters, as those of gpt-oss are.
        self.turned = Experts(2, 8, 8, True)
        self.one = Experts(1, 8, 5, False)
        # A weight [in, out], of a module before and one behind that have [out, in]: PEFT saves `fan_in_fan_out` as the last one has it.
        self.conv1d = Conv1D(15, 6)
        self.last = nn.Linear(6, 4, bias=False)
        self.tokens = nn.Embedding(23, 7)


ADAPTERS = {
    "conv": dict(r=4, lora_alpha=6, target_modules=["line", "point", "image", "pixel", "video"], rank_pattern={"image": 3}),
    "conv-dora": dict(r=4, lora_alpha=6, target_modules=["line", "image", "pixel", "video"], use_dora=True),
    "conv-transposed": dict(r=2, lora_alpha=6, target_modules=["image", "pixel"], fan_in_fan_out=True),
    "lora-bias": dict(r=4, lora_alpha=10, target_modules=["line", "image", "fc"], lora_bias=True, use_rslora=True),
    "bias-all": dict(r=2, lora_alpha=4, target_modules=["line", "gate"], bias="all"),
    "bias-lora-only": dict(r=2, lora_alpha=4, target_modules=["fc", "image"], bias="lora_only"),
    "experts": dict(r=3, lora_alpha=5, target_modules=["fc"],
                    target_parameters=["experts.gate_up_proj", "experts.down_proj", "one.down_proj", "gate.weight"],
                    rank_pattern={"experts.down_proj": 2}, alpha_pattern={"gate.weight": 7}),
    "experts-transposed": dict(r=3, lora_alpha=5, target_modules=[], use_rslora=True,
                               target_parameters=["turned.gate_up_proj", "turned.down_proj"]),
    "conv1d": dict(r=3, lora_alpha=5, target_modules=["gate", "conv1d", "last"]),
    "conv1d-dora": dict(r=3, lora_alpha=5, target_modules=["gate", "conv1d"], use_dora=True),
    "embedding-dora": dict(r=4, lora_alpha=10, target_modules=["tokens"], use_dora=True),
}


def randomize(model, seed):
    """Trains the adapter: every tensor of it gets values of the size that training gives."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                noise = torch.randn(p.shape, generator=generator)
                if "lora_magnitude" in name:
                    p.mul_(1 + 0.1 * noise)
                else:
                    p.copy_(0.1 * noise)


def merged(base, name, dtype):
    model = PeftModel.from_pretrained(copy.deepcopy(base).to(dtype), OUT / name)
    # Before it computes: weights of adapters come as F32.
    model = model.to(dtype).merge_and_unload()
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def ulps(a, b, weight):
    scale = torch.maximum(b.abs(), weight.abs())
    ulp = (torch.nextafter(scale, torch.tensor(float("inf"))) - scale).double()
    return ((a.double() - b.double()).abs() / ulp).max().item()


OUT.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
base = Layers().eval()
before = base.state_dict()
(OUT / "base-layers").mkdir(exist_ok=True)
save_file(before, OUT / "base-layers/model.safetensors", {"format": "pt"})
for seed, (name, options) in enumerate(ADAPTERS.items()):
    model = get_peft_model(copy.deepcopy(base), LoraConfig(**options))
    randomize(model, seed)
    model.save_pretrained(OUT / name)
    (OUT / name / "README.md").unlink(missing_ok=True)
    f32, f64 = (merged(base, name, dtype) for dtype in (torch.float32, torch.float64))
    f64 = {k: v.float().contiguous() for k, v in f64.items()}
    changed = {k: v for k, v in f64.items() if not torch.equal(v, before[k])}
    assert changed, name
    save_file(changed, OUT / f"expected-base-layers-{name}.safetensors")
    print(name, sorted(changed), f"{max(ulps(f32[k], v, before[k]) for k, v in changed.items()):.2f} ulp")

"""What diffusers makes of the names of kohya's scripts for SDXL, Qwen-Image and Wan, and of its own names for kohya's scripts.

    python -P adapters_image_modules.py adapters_image

diffusers 0.42.1, peft 0.21.2, transformers 5.24.0, torch 2.15.0. Writes `modules.jsonl`: a line for each layer of small models. Values of
factors are all alike, so that two numbers (`values`) stand for them: `to` are those that a converter makes of them for diffusers, `product` one
value of what diffusers adds, `rank` the number of columns of B. `kohya` is what `convert_state_dict_to_kohya` makes of
diffusers' name, `authors` the module in the file of the authors.
"""

import json
import re
import sys
from pathlib import Path

import torch
from diffusers import QwenImageTransformer2DModel, UNet2DConditionModel, WanTransformer3DModel
from diffusers.loaders import StableDiffusionXLLoraLoaderMixin, lora_conversion_utils
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint, convert_wan_transformer_to_diffusers
from diffusers.utils.state_dict_utils import convert_state_dict_to_kohya
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import CLIPTextConfig, CLIPTextModel

OUT = Path(sys.argv[1])
LINES = []
UNET = dict(
    sample_size=8, in_channels=4, out_channels=4, block_out_channels=(2, 4, 4), layers_per_block=2, cross_attention_dim=6, attention_head_dim=2,
    norm_num_groups=2, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), transformer_layers_per_block=1, use_linear_projection=True,
    addition_embed_type="text_time", addition_time_embed_dim=2, projection_class_embeddings_input_dim=8,
)
RESNET = {
    "norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1", "norm2": "out_layers.0", "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
AROUND = {
    "time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2", "conv_in": "input_blocks.0.0", "conv_norm_out": "out.0",
    "conv_out": "out.2", "add_embedding.linear_1": "label_emb.0.0", "add_embedding.linear_2": "label_emb.0.2",
}
WAN = [
    ("condition_embedder.time_embedder.linear_1", "time_embedding.0"), ("condition_embedder.time_embedder.linear_2", "time_embedding.2"),
    ("condition_embedder.text_embedder.linear_1", "text_embedding.0"), ("condition_embedder.text_embedder.linear_2", "text_embedding.2"),
    ("condition_embedder.time_proj", "time_projection.1"), ("condition_embedder.image_embedder.ff.net.0.proj", "img_emb.proj.1"),
    ("condition_embedder.image_embedder.ff.net.2", "img_emb.proj.3"), ("attn1", "self_attn"), ("attn2", "cross_attn"), (".to_out.0", ".o"),
    (".to_q", ".q"), (".to_k", ".k"), (".to_v", ".v"), (".add_k_proj", ".k_img"), (".add_v_proj", ".v_img"), ("ffn.net.0.proj", "ffn.0"),
    ("ffn.net.2", "ffn.2"), ("proj_out", "head.head"),
]


def name_of_sdxl(name):
    """The name in the authors' file of a tensor of diffusers' UNet, whose blocks of convolutions and attention are the number 0 and 1 of a layer."""
    for theirs, ours in AROUND.items():
        if name.startswith(theirs + "."):
            return name.replace(theirs, ours, 1)
    for theirs, ours in RESNET.items():
        name = re.sub(rf"(resnets\.\d+)\.{theirs}\.", rf"\1.{ours}.", name)
    name = re.sub(r"^mid_block\.attentions\.0\.", "middle_block.1.", name)
    name = re.sub(r"^mid_block\.resnets\.(\d)\.", lambda m: f"middle_block.{2 * int(m[1])}.", name)
    name = re.sub(r"^down_blocks\.(\d)\.downsamplers\.0\.conv\.", lambda m: f"input_blocks.{3 * int(m[1]) + 3}.0.op.", name)
    name = re.sub(r"^up_blocks\.(\d)\.upsamplers\.0\.conv\.", lambda m: f"output_blocks.{3 * int(m[1]) + 2}.2.conv.", name)
    kinds = {"resnets": 0, "attentions": 1}
    name = re.sub(r"^down_blocks\.(\d)\.(\w+)\.(\d)\.", lambda m: f"input_blocks.{3 * int(m[1]) + int(m[3]) + 1}.{kinds[m[2]]}.", name)
    return re.sub(r"^up_blocks\.(\d)\.(\w+)\.(\d)\.", lambda m: f"output_blocks.{3 * int(m[1]) + int(m[3])}.{kinds[m[2]]}.", name)


def name_of_wan(name):
    for theirs, ours in WAN:
        name = name.replace(theirs, ours)
    return name


def same(name):
    return name


def layers(model):
    kinds = (torch.nn.Linear, torch.nn.Conv2d)
    return [(name, module) for name, module in model.named_modules() if isinstance(module, kinds)]


def line(kind, number, name, module, authors):
    """A layer with factors of rank 1 or 2, and an alpha by which the product is divided or doubled: all of it exact."""
    rank, weight = 1 + number % 2, module.weight
    kernel = [1] * (weight.dim() - 2)
    a, b = [rank, *weight.shape[1:]], [weight.shape[0], rank, *kernel]
    return {"model": kind, "module": name, "authors": authors, "a": a, "b": b, "alpha": rank * 2.0 ** (number % 5 - 3), "values": [number + 1, 3]}


def tensors(lines, begin, joint="_", has_alpha=True):
    state = {}
    for found in lines:
        key = begin + found["authors"].replace(".", joint)
        state |= {f"{key}.lora_down.weight": torch.full(found["a"], float(found["values"][0])),
                  f"{key}.lora_up.weight": torch.full(found["b"], float(found["values"][1]))}
        if has_alpha:
            state[f"{key}.alpha"] = torch.tensor(found["alpha"])
    return state


def one(tensor):
    assert (tensor == tensor.flatten()[0]).all()
    return tensor.flatten()[0].item()


def converted(lines, state, convert):
    """Names and values that a converter makes of `state`."""
    made = convert(dict(state))
    for found in lines:
        a, b = (made.pop(f"transformer.{found['module']}.lora_{x}.weight") for x in "AB")
        assert list(a.shape) == found["a"] and list(b.shape) == found["b"], found
        found["to"] = [one(a), one(b)]
        found["product"] = found["to"][0] * found["to"][1] * found["a"][0]
    assert not made, made.keys()
    LINES.extend(lines)


def require_names(name_of, model, convert):
    """Fails unless `name_of` undoes diffusers' converter of the authors' files."""
    state = model.state_dict()
    back = convert({name_of(name): value for name, value in state.items()})
    assert back.keys() == state.keys(), sorted(back.keys() ^ state.keys())
    assert all(torch.equal(back[name], value) for name, value in state.items())


torch.manual_seed(1)
unet = UNet2DConditionModel(**UNET)
require_names(lambda name: f"model.diffusion_model.{name_of_sdxl(name)}", unet,
              lambda state: convert_ldm_unet_checkpoint(state, {**UNET, "class_embed_type": None, "num_class_embeds": None}))
lines = [line("sdxl", n, name, module, name_of_sdxl(f"{name}.weight").removesuffix(".weight")) for n, (name, module) in enumerate(layers(unet))]
lines = [{**found, "alpha": 2.0} for found in lines]
state, alphas = StableDiffusionXLLoraLoaderMixin.lora_state_dict(tensors(lines, "lora_unet_"), unet_config=unet.config)
by_diffusers = convert_state_dict_to_kohya({f"unet.{found['module']}.lora_{x}.weight": torch.ones(found[x.lower()]) for found in lines for x in "AB"})
StableDiffusionXLLoraLoaderMixin.load_lora_into_unet(state, alphas, unet)
adapted = {name: module for name, module in unet.named_modules() if isinstance(module, BaseTunerLayer)}
for found in lines:
    module = adapted.pop(found["module"], None)
    if module is None:
        print("diffusers does not load", found["module"])
        continue
    a, b = (one(getattr(module, f"lora_{x}")["default_0"].weight.data) for x in "AB")
    assert [a, b] == found["values"], found
    found["product"] = a * b * module.scaling["default_0"] * found["a"][0]
    name = "lora_unet_" + found["module"].replace(".", "_")
    assert int(by_diffusers.pop(f"{name}.alpha")) == found["a"][0]
    assert {by_diffusers.pop(f"{name}.lora_{x}.weight").dim() for x in ("down", "up")} == {len(found["a"])}
    found["kohya"] = name
    LINES.append(found)
assert not adapted, adapted.keys()
print(len(by_diffusers), "of kohya left")

qwen = QwenImageTransformer2DModel(in_channels=4, out_channels=1, patch_size=2, num_layers=2, attention_head_dim=4, num_attention_heads=2,
                                   joint_attention_dim=6, axes_dims_rope=(2, 2, 4))
lines = [line("qwen", n, name, module, name) for n, (name, module) in enumerate(layers(qwen))]
converted(lines, tensors(lines, "lora_unet_"), lora_conversion_utils._convert_non_diffusers_qwen_lora_to_diffusers)

wan = WanTransformer3DModel(patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=4, in_channels=4, out_channels=4, text_dim=6, freq_dim=4,
                            ffn_dim=10, num_layers=2, image_dim=5, added_kv_proj_dim=8, rope_max_seq_len=16)
lines = [line("wan", n, name, module, name_of_wan(name)) for n, (name, module) in enumerate(layers(wan))]
blocks = [found for found in lines if found["module"].startswith("blocks.")]
converted(blocks, tensors(blocks, "lora_unet_"), lora_conversion_utils._convert_musubi_wan_lora_to_diffusers)
# diffusers reads no alpha of what is outside of the blocks, which kohya's scripts do not train.
around = [{**found, "model": "wan-around", "alpha": None} for found in lines if found not in blocks]
state = tensors(around, "diffusion_model.", ".", has_alpha=False) | tensors(blocks, "diffusion_model.", ".")
made = lora_conversion_utils._convert_non_diffusers_wan_lora_to_diffusers(state)
converted(around, made, lambda made: {name: value for name, value in made.items() if not name.startswith("transformer.blocks.")})

text = CLIPTextModel(CLIPTextConfig(vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2))
for component in ("text_encoder", "text_encoder_2"):
    found = layers(text)
    names = [name if name.startswith("text_model.") else f"text_model.{name}" for name, _ in found]
    lines = [line(component, n, name, module, name) for n, (name, (_, module)) in enumerate(zip(names, found))]
    state = {f"{component}.{found['module']}.lora_{x}.weight": torch.ones(found[x.lower()]) for found in lines for x in "AB"}
    made = convert_state_dict_to_kohya(state)
    for found in lines:
        name = next(name for name in made if name.endswith("_" + found["module"].replace(".", "_") + ".lora_down.weight"))
        found["kohya"] = name.removesuffix(".lora_down.weight")
        assert int(made[f"{found['kohya']}.alpha"]) == found["a"][0]
        LINES.append({**found, "alpha": None, "product": found["a"][0] * found["values"][0] * found["values"][1]})

(OUT / "modules.jsonl").write_text("".join(json.dumps(found, separators=(",", ":")) + "\n" for found in LINES))
print(len(LINES), "modules")

"""Golden torchao models whose tensors transformers has renamed when it saved them, while metadata have the names of its classes.

Run after torchao_cases.py, which empties the directory: `python torchao_renamed.py` (see ../README.md). transformers loads what it
has saved, and must have the same values.
"""

from directories import BF16, F32, Dir

import torch
from safetensors import safe_open
from torchao.quantization import PerRow
from torchao.quantization.quant_api import Float8WeightOnlyConfig, FqnToConfig, Int8WeightOnlyConfig
from transformers import (Gemma3Config, Gemma3ForConditionalGeneration, MixtralConfig, MixtralForCausalLM, TorchAoConfig)

from torchao_cases import expect, in_f32, stored_in

TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "vocab_size": 16}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}


def case(name, cls, config, quantization, renames):
    d = Dir("torchao", name)
    base = d.dir / "base"
    cls(config).to(BF16).save_pretrained(base)
    model = cls.from_pretrained(base, dtype=BF16, quantization_config=TorchAoConfig(quantization))
    for file in base.iterdir():
        file.unlink()
    base.rmdir()
    model.save_pretrained(d.model)
    with safe_open(d.model / "model.safetensors", "pt") as f:
        stored, described = {n: f.get_tensor(n) for n in f.keys()}, f.metadata()
    parts = set()
    for key, t in model.state_dict().items():
        if type(t) in (torch.Tensor, torch.nn.Parameter):
            continue
        new = key
        for old, name_saved in renames:
            new = new.replace(old, name_saved)
        assert key in described and (new == key or new not in described) and stored_in(stored, new), (key, new)
        parts |= set(stored_in(stored, new))
        expect(d, new, t)
    assert set(d.f32) - set(described)
    for n in stored.keys() - parts:
        d.keep(n, stored[n])
    loaded = cls.from_pretrained(d.model, dtype=BF16)
    for (key, a), (_, b) in zip(model.state_dict().items(), loaded.state_dict().items(), strict=True):
        a, b = (t if type(t) in (torch.Tensor, torch.nn.Parameter) else in_f32(t) for t in (a, b))
        assert torch.equal(a.to(F32), b.to(F32)), key
    d.write()


def main():
    case("renamed_gemma3", Gemma3ForConditionalGeneration,
         Gemma3Config(text_config=TEXT | {"model_type": "gemma3_text"}, vision_config=VISION, mm_tokens_per_image=4),
         Int8WeightOnlyConfig(),
         [("model.language_model.", "language_model.model."), ("model.vision_tower.", "vision_tower."),
          ("model.multi_modal_projector.", "multi_modal_projector.")])
    experts = FqnToConfig({r"re:.*\.experts\.(gate_up_proj|down_proj)": Float8WeightOnlyConfig(granularity=PerRow()),
                           r"re:.*\.self_attn\.[qkvo]_proj": Int8WeightOnlyConfig()})
    case("renamed_mixtral", MixtralForCausalLM, MixtralConfig(**TEXT, num_local_experts=2), experts,
         [(".mlp.experts.", ".block_sparse_moe.experts.")])


if __name__ == "__main__":
    main()

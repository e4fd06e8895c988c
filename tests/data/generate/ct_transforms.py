"""Golden models with a transform_config, made by compressed-tensors 0.20 (CPU).

Run: `python ct_transforms.py` (see ../README.md). It rewrites `../transforms`.

`apply_transform_config` multiplies weights and adds hooks for activations. Expected are the weights of the model without hooks: those
that the library decodes, multiplied in F64 with the matrices of the hooks, as `apply_transform_weight` says. The model of these
weights must give the same logits as the one with hooks.
"""

import copy
import math

from ct_common import *  # noqa: F403

import torch
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.transform import TransformArgs, TransformConfig, TransformLocation, TransformScheme, apply_transform_config
from compressed_tensors.transform.factory.base import TransformBase
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from dirs import DirCase
from fp8 import BF16, F32
from gptq import hostile_scales

TINY = dict(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    vocab_size=24,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
)


def tiny(c, config):
    model = AutoModelForCausalLM.from_config(config, dtype=F32)
    for name, p in sorted(model.named_parameters()):
        p.data = (c.randn(*p.shape, scale=0.2) + (1 if "norm" in name else 0)).to(F32)
    return model


def both(targets, ignore=(), is_output=False):
    """A transform of activations, and its inverse in the weight; or the other way round."""
    args = dict(targets=targets, ignore=list(ignore))
    if is_output:
        return [TransformArgs(location="weight_output", **args), TransformArgs(location="output", inverse=True, **args)]
    return [TransformArgs(location="input", **args), TransformArgs(location="weight_input", inverse=True, **args)]


def times(values, matrix):
    """Each block of columns times the matrix: a number that is not finite stays in its block."""
    return (values.unflatten(-1, (-1, matrix.shape[0])) @ matrix).flatten(-2)


def matrix_of(transform):
    """The matrix that a hook multiplies activations with, in F64, and a factor: sums of entries of 1 and -1 are exact before it."""
    matrix = transform.weight.data.double()
    if not hasattr(transform, "_scale"):
        return matrix, 1.0  # the inverse is what is stored
    matrix = matrix.T if transform.args.inverse else matrix
    return matrix, 1 / math.sqrt(matrix.shape[0])


def case(name, config, transforms, groups, ignore=(), shared=False, hostile=False):
    c = DirCase("transforms", name)
    plain = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=F32)
    model = tiny(c, config)
    torch.manual_seed(7)
    apply_transform_config(model, transforms)
    c.config = config_of(groups, ignore=ignore, transform_config=transforms.model_dump(mode="json"))
    seen, exact = {}, {}
    for module_name, module in model.named_modules():
        if isinstance(module, TransformBase):
            # Shared matrices are saved once.
            if not (shared and seen.setdefault(module.weight.data_ptr(), module_name) != module_name):
                c.add({module_name + ".weight": module.weight.data})
            continue
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        group = next((s for s in groups.values() if isinstance(module, torch.nn.Linear) and is_target(s, module_name, ignore)), None)
        if group is not None:
            group.format = group.format or infer_module_format(torch.nn.Linear, group)
            parts = compress(module.weight.data, group)
            if hostile:
                rows, groups_of_row = parts["weight_scale"].shape
                parts["weight_scale"] = hostile_scales(groups_of_row, rows, F32).T.contiguous()
            c.add({f"{module_name}.{k}": v for k, v in parts.items()})
            module.weight.data = decode(parts, group)
        hooks = [m for m in module.children() if isinstance(m, TransformBase)]
        for part, p in own.items():
            full = f"{module_name}.{part}"
            is_quantized = group is not None and part == "weight"
            if not is_quantized:  # stored in BF16
                p.data = p.data.to(BF16).float()
            values = changed(p.data, hooks)
            exact[full] = p.data if values is None else values
            if is_quantized:
                c.expect(full, exact[full])
            elif values is None:
                c.keep(full, p.data.to(BF16))
            else:
                c.add({full: p.data.to(BF16)})
                c.expected[full] = values.to(BF16)
                c.kept.add(full)
    if hostile:  # logits are NaN
        return c.write()
    plain.load_state_dict({n: exact[n] for n in plain.state_dict()})
    tokens = torch.arange(12).view(1, 12) % 24
    with torch.no_grad():
        want, got = model(tokens).logits, plain(tokens).logits
    assert torch.allclose(want, got, rtol=1e-3, atol=1e-4 * want.abs().max().item()), (name, (want - got).abs().max())
    print(f"    logits differ by {(want - got).abs().max():.1e} of {want.abs().max():.1f}")
    c.write()


def is_target(scheme, name, ignore):
    from compressed_tensors.utils import match_name

    fits = lambda targets: any(t == "Linear" or match_name(name, t) for t in targets)  # noqa: E731
    return fits(scheme.targets) and not fits(ignore)


def changed(values, hooks):
    """A weight or bias for a module without its hooks; `None`: as it is."""
    out, dims = values.double(), values.dim()
    found = False
    for hook in hooks:
        (matrix, factor), location = matrix_of(hook), hook.args.location
        if location == TransformLocation.INPUT and dims == 2:
            out, found = times(out, matrix.T) * factor, True
        elif location == TransformLocation.OUTPUT:
            out, found = (times(out.mT, matrix).mT if dims == 2 else times(out, matrix)) * factor, True
    # The sign of a zero depends on the order of the sums of a product: +0 here.
    return out.float() + 0.0 if found else None


def main():
    int8 = preset_name_to_scheme("W8A16", ["Linear"])
    int8.weights.group_size, int8.weights.strategy = None, "channel"
    quip = TransformConfig(
        config_groups={
            "v": TransformScheme(type="random-hadamard", apply=both(["Linear"], ["lm_head"]), head_dim=16),
            "u": TransformScheme(type="random-hadamard", apply=both(["Linear"], ["lm_head"], True), head_dim=8),
        }
    )
    case("quip", Qwen2Config(**TINY), quip, {"group_0": int8}, ["lm_head"], shared=True)

    int4 = preset_name_to_scheme("W4A16", ["Linear"])
    int4.weights.group_size = 32
    attention = [TransformArgs(targets=["re:.*self_attn$"], location=location) for location in ("q_attn", "k_cache")]
    before = ["re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$", "re:.*up_proj$", "re:.*gate_proj$", "lm_head"]
    spinquant = TransformConfig(
        config_groups={
            "R1": TransformScheme(
                type="hadamard",
                apply=[
                    TransformArgs(targets=["re:.*embed_tokens$", "re:.*o_proj$", "re:.*down_proj$"], location="weight_output"),
                    TransformArgs(targets=before, location="weight_input", inverse=True),
                ],
            ),
            "R2": TransformScheme(
                type="hadamard",
                apply=[
                    TransformArgs(targets=["re:.*v_proj$"], location="weight_output"),
                    TransformArgs(targets=["re:.*o_proj$"], location="weight_input", inverse=True),
                ],
                head_dim=16,
            ),
            "R3": TransformScheme(type="hadamard", apply=attention, head_dim=16),
            "R4": TransformScheme(type="hadamard", apply=both(["re:.*down_proj$"])),
        }
    )
    case("spinquant", LlamaConfig(**TINY), spinquant, {"group_0": int4}, ["lm_head"])

    int8 = preset_name_to_scheme("W8A16", ["re:.*(q|k|v)_proj$"])
    int8.weights.group_size, int8.weights.strategy = None, "channel"
    matrices = TransformConfig(
        config_groups={
            "in": TransformScheme(type="random-matrix", apply=both(["re:.*down_proj$", "re:.*q_proj$"])),
            "out": TransformScheme(type="random-hadamard", apply=both(["re:.*o_proj$"], (), True), precision=torch.bfloat16),
            "odd": TransformScheme(type="random-hadamard", apply=both(["re:.*up_proj$"]), head_dim=4),
        }
    )
    case("matrices", LlamaConfig(**TINY), matrices, {"group_0": int8})

    # Hadamard matrices of 12, 20, 24 and 40 rows, which are none of Sylvester's.
    int8 = preset_name_to_scheme("W8A16", ["Linear"])
    int8.weights.group_size, int8.weights.strategy = None, "channel"
    sizes = TransformConfig(
        config_groups={
            "blocks": TransformScheme(type="random-hadamard", apply=both(["re:.*(q|k)_proj$"]), head_dim=12),
            "all": TransformScheme(type="random-hadamard", apply=both(["re:.*down_proj$"])),
            "rows": TransformScheme(type="random-hadamard", apply=both(["re:.*up_proj$"], (), True), head_dim=20),
            # Of equal sizes the two factors would be a rational number, and some values ties.
            "inner": TransformScheme(type="random-hadamard", apply=both(["re:.*o_proj$"]), head_dim=24),
            "outer": TransformScheme(type="random-hadamard", apply=both(["re:.*o_proj$"], (), True), head_dim=12),
        }
    )
    case("sizes", LlamaConfig(**TINY | dict(hidden_size=48, intermediate_size=40, head_dim=24)), sizes, {"group_0": int8}, ["lm_head"])

    int8 = preset_name_to_scheme("W8A16", ["re:.*(q|k|o)_proj$"])
    int8.weights.group_size, int8.weights.strategy = None, "channel"
    int4 = preset_name_to_scheme("W4A16", ["re:.*down_proj$"])
    int4.weights.group_size = 32
    hostile = TransformConfig(
        config_groups={
            "in": TransformScheme(type="hadamard", apply=both(["re:.*q_proj$", "re:.*down_proj$"]), head_dim=16),
            "stored": TransformScheme(type="random-matrix", apply=both(["re:.*k_proj$"])),
            "out": TransformScheme(type="random-hadamard", apply=both(["re:.*o_proj$"], (), True), head_dim=8),
        }
    )
    case("hostile", LlamaConfig(**TINY), hostile, {"group_0": int8, "group_1": int4}, hostile=True)


if __name__ == "__main__":
    main()

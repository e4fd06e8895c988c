"""Golden AutoRound models that were quantized without being loaded (`model_free`), by auto-round 0.16.1 and 0.15.1.

Run after autoround.py, once with each version: `python autoround_free.py`, `PYTHONPATH=auto_round-0.15.1 python autoround_free.py`.

0.15.1 stores all zero points less one, and names the other convention for asymmetric models; 0.16.1 stores those of each layer by
the layer's symmetry, and names the convention of the model. Expected is what the layer of the convention that was stored gives for
the identity, which must be within a step of the weights.
"""

from fp8 import F16, F32
from layout import Layout

import torch
from auto_round.version import __version__
from auto_round.utils import missing_tensors
from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp

OLD = __version__ == "0.15.1"
GROUP = 32


def numbers(words, bits, add):
    """Fields of words, from the lowest, after `add` was added to each of them, with carry."""
    one = sum(add << i for i in range(0, 32, bits))
    fields = ((words.long() & 0xFFFFFFFF) + one).unsqueeze(-1) >> torch.arange(0, 32, bits)
    return fields & (1 << bits) - 1


def exact(parts, bits, subtracts_one):
    """`(q - z) * s`: the product of the library's layer with the identity has no zeros below zero."""
    q = numbers(parts["qweight"].t(), bits, 0).flatten(1)
    z = numbers(parts["qzeros"], bits, int(subtracts_one)).flatten(1).t().repeat_interleave(GROUP, 1)
    return (q - z).float() * parts["scales"].float().t().repeat_interleave(GROUP, 1)


def decode(parts, bits, subtracts_one, shape, dtype):
    module = (qlinear_torch_zp if subtracts_one else qlinear_torch).QuantLinear(bits, GROUP, shape[1], shape[0], bias=False)
    module.qweight, module.qzeros, module.scales = parts["qweight"], parts["qzeros"], parts["scales"].to(dtype)
    return module(torch.eye(shape[1], dtype=dtype)).t().contiguous()


def case(name, sym, layers):
    """`layers`: bits and symmetry of each, 4 bits and that of the model elsewhere."""
    extra = {path: {k: v for k, v in (("bits", bits), ("sym", own)) if v != dict(bits=4, sym=sym)[k]}
             for path, (bits, own) in layers.items()}
    config = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq" if sym else "auto_round", "bits": 4,
              "group_size": GROUP, "sym": sym, "data_type": "int", "iters": 0, "model_free": True,
              "autoround_version": __version__, "block_name_to_quantize": "model.layers"}
    if any(extra.values()):
        config["extra_config"] = {path: entry for path, entry in extra.items() if entry}
    c = Layout("gptq_more", name, {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": config})
    for path, (bits, own) in layers.items():
        weight = torch.randn(32, 64, generator=c.rng) * 0.05 + 0.02
        if OLD:
            found, subtracts_one = missing_tensors.quantize_weight_rtn(weight, bits, GROUP, sym=own), True
        else:
            from auto_round.utils.model_free_utils import _declared_int_packing, quantize_weight_rtn

            packing = _declared_int_packing(own)
            subtracts_one = packing == "auto_round:auto_gptq"
            found = quantize_weight_rtn(weight, bits, GROUP, sym=own, packing=packing)
        parts = dict(zip(("qweight", "qzeros", "scales"), found))
        c.add({f"{path}.{part}": t for part, t in parts.items()})
        f32 = exact(parts, bits, subtracts_one)
        assert all(torch.equal(f32.to(d), decode(parts, bits, subtracts_one, weight.shape, d)) for d in (F32, F16)), path
        step = parts["scales"].float().t().repeat_interleave(GROUP, 1).abs()
        assert ((f32 - weight).abs() <= 1.01 * step).all() and (f32 - weight).abs().mean() < 0.3 * step.mean(), path
        c.decoded(f"{path}.weight", f32)
    c.write()


def main():
    block = "model.layers.0.self_attn."
    if OLD:
        case("ar_free_0_15_asym", False, {block + "q_proj": (4, False), block + "k_proj": (2, False), block + "o_proj": (8, True)})
        return
    case("ar_free_asym", False, {block + "q_proj": (4, False), block + "k_proj": (4, True)})
    case("ar_free_sym", True, {block + "q_proj": (4, True), block + "k_proj": (2, False), block + "o_proj": (8, True)})


if __name__ == "__main__":
    main()

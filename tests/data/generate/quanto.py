"""Golden optimum-quanto models: made and decoded by optimum-quanto (CPU).

Run: `python quanto.py` (see ../README.md). It rewrites `../quanto/*`. quanto compiles its C++ `unpack` when it is first
used, with ninja and a C++ compiler. Weights are read back with quanto's own
`load_from_state_dict`, once with scales and shifts as they are, once with them widened to F32.
"""

import json

from directories import BF16, F16, F32, Dir, tiny_llama

import torch
from optimum.quanto import (Calibration, MaxOptimizer, QuantizedModelForCausalLM, WeightQBitsTensor, WeightQBytesTensor,
                            qfloat8_e4m3fn, qfloat8_e4m3fnuz, qfloat8_e5m2, qint2, qint4, qint8, qtypes, quantization_map,
                            quantize_weight)
from optimum.quanto.nn.qmodule import quantize_module
from safetensors.torch import load_file

L = "model.layers.0."


def group_of(weight):
    """The group size that quanto's modules choose, and choose again when they load; None: whole rows."""
    k = weight.numel() // weight.shape[0]
    size = 128
    while k > 128 and k % size and size > 32:
        size -= 32
    return size if k > 128 and k % size == 0 else None


def decode(state, name, qtype, shape, dtype=None):
    """`a.b.weight` from `a.b.weight.*`; with a dtype, scale and float shift are cast to it first."""
    state = {k: v.clone() for k, v in state.items() if k.startswith(name + ".")}
    for part in ("_scale", "_shift"):
        t = state.get(f"{name}.{part}")
        if dtype is not None and t is not None and t.dtype.is_floating_point:
            state[f"{name}.{part}"] = t.to(dtype)
    like, missing = torch.empty(shape, device="meta"), []
    if qtype.bits == 8:
        t = WeightQBytesTensor.load_from_state_dict(state, name + ".", qtype, 0, like.size(), like.stride(), None, missing)
    else:
        t = WeightQBitsTensor.load_from_state_dict(state, name + ".", qtype, 0, group_of(like), like.size(), like.stride(),
                                                   missing)
    assert not missing, missing
    return t.dequantize()


def stored_in(names, name):
    return [n for n in names if n.startswith(name + ".")]


# ---------------------------------------------------------------- tiny models


def tiny(name, qtype, dtype=BF16, activations=None, rule="equal", exclude="lm_head", **sizes):
    d = Dir("quanto", name)
    model = tiny_llama(None, dtype, **sizes)
    shapes = {k: v.shape for k, v in model.state_dict().items()}
    quantized = QuantizedModelForCausalLM.quantize(model, weights=qtype, activations=activations, exclude=exclude)
    if activations is not None:
        with torch.no_grad(), Calibration():
            model(torch.arange(32).reshape(2, 16))
    qmap = quantization_map(model)
    sharded = False
    for size in range(4000, 14000, 130):
        for file in d.model.iterdir():
            file.unlink()
        quantized.save_pretrained(d.model)
        (d.model / "README.md").unlink(missing_ok=True)
        (d.model / "model.safetensors").unlink()
        model.save_pretrained(d.model, max_shard_size=size)
        index = json.loads((d.model / "model.safetensors.index.json").read_text())["weight_map"]
        sharded = any(len({index[n] for n in stored_in(index, key + ".weight")}) > 1 for key in qmap)
        if sharded:
            break
    state = {}
    for file in sorted(set(index.values())):
        state |= load_file(d.model / file)
    for key, shape in shapes.items():
        module = key.removesuffix(".weight")
        if module in qmap and qmap[module]["weights"] != "none":
            d.expect(key, decode(state, key, qtypes[qmap[module]["weights"]], shape, F32),
                     decode(state, key, qtypes[qmap[module]["weights"]], shape), rule)
        else:
            d.keep(key, state[key])
    assert json.loads((d.model / "quanto_qmap.json").read_text()) == qmap
    d.write(lambda key: stored_in(index, key))


def tiny_cases():
    tiny("tiny_qint8", qint8)
    tiny("tiny_qint8_activations", qint8, activations=qint8, exclude=["lm_head", "*.k_proj"])
    tiny("tiny_qint4", qint4, rule="file")
    tiny("tiny_qint4_groups", qint4, rule="file", hidden_size=160, intermediate_size=24, num_attention_heads=1, head_dim=16,
         vocab_size=32)
    tiny("tiny_qfloat8", qfloat8_e4m3fn, exclude=None)


# ---------------------------------------------------------------- units


class Unit(Dir):
    def __init__(self, name):
        super().__init__("quanto", name)
        self.state, self.qmap = {}, {}

    def linear(self, key, qtype, n, k, dtype, rule="equal", bias=False, module=None, zeropoint=False, edit=None):
        module = module or torch.nn.Linear(k, n, bias=bias)
        with torch.no_grad():
            module.weight.copy_(self.randn(*module.weight.shape, scale=0.3) + 0.05)
        module = module.to(dtype)
        q = quantize_module(module, weights=qtype)
        if zeropoint:
            scale, shift = MaxOptimizer()(q.weight, qtype=qtype, axis=0, group_size=q.weight_group_size, zeropoint=True)
            t = quantize_weight(q.weight, qtype=qtype, axis=0, scale=scale, shift=shift, group_size=q.weight_group_size)
            q.weight = torch.nn.Parameter(t)
        else:
            q.freeze()
        state = {f"{L}{key}.{k}": v.detach().clone() for k, v in q.state_dict().items()}
        if edit is not None:
            edit({k.removeprefix(f"{L}{key}."): v for k, v in state.items()})
        self.state |= state
        self.qmap[f"{L}{key}"] = {"weights": qtype.name, "activations": "none"}
        name = f"{L}{key}.weight"
        self.expect(name, decode(state, name, qtype, module.weight.shape, F32),
                    decode(state, name, qtype, module.weight.shape), rule)
        if bias:
            self.keep(f"{L}{key}.bias", state[f"{L}{key}.bias"])

    def finish(self, sidecar="quanto_qmap.json", **sizes):
        norm = "model.norm.weight"
        self.state[norm] = self.keep(norm, (1 + self.randn(16, scale=0.1)).to(BF16))
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | sizes
        self.save(self.state, config, sidecars={sidecar: self.qmap} if sidecar else None)
        self.write()


def unit_cases():
    for sidecar, name in [("quanto_qmap.json", "qint8_scales"), ("quantization_map.json", "qint8_other_map"),
                          (None, "qint8_no_map")]:
        u = Unit(name)
        u.linear("self_attn.q_proj", qint8, 17, 40, BF16, bias=True)
        u.linear("self_attn.k_proj", qint8, 16, 33, F16)
        u.linear("self_attn.v_proj", qint8, 5, 64, F32)
        if sidecar == "quanto_qmap.json":
            u.linear("conv", qint8, None, None, BF16, module=torch.nn.Conv2d(6, 10, 3, bias=False))
        u.finish(sidecar)

    u = Unit("qfloat8_scales")
    for i, qtype in enumerate([qfloat8_e4m3fn, qfloat8_e5m2, qfloat8_e4m3fnuz]):
        for j, dtype in enumerate([BF16, F16, F32]):
            u.linear(f"mlp.experts.{3 * i + j}.up_proj", qtype, 9 + i, 24 + j, dtype)
    u.finish()

    # Whole rows; odd numbers of rows, which do not fill the last bytes; groups of 128, 96, 64 and 32 codes. With groups
    # the shape of the weight is nowhere in the file: `_scale` has a row for each group.
    for qtype in (qint4, qint2):
        for dtype, short in [(BF16, "bf16"), (F16, "f16"), (F32, "f32")]:
            u = Unit(f"{qtype.name}_{short}")
            for key, n, k in [("self_attn.q_proj", 12, 64), ("self_attn.k_proj", 13, 40), ("self_attn.v_proj", 3, 200)]:
                u.linear(key, qtype, n, k, dtype, "file")
            u.finish()
            u = Unit(f"{qtype.name}_groups_{short}")
            for key, n, k in [("mlp.gate_proj", 15, 160), ("mlp.down_proj", 160, 15)]:
                u.linear(key, qtype, n, k, dtype, "file")
            u.finish(hidden_size=160, intermediate_size=15)
    u = Unit("qint4_group_sizes")
    for i, (n, k) in enumerate([(6, 256), (5, 192), (4, 320), (7, 160)]):
        u.linear(f"mlp.experts.{i}.down_proj", qint4, n, k, F16, "file", bias=True)
    u.finish()
    # BF16 in groups of 128 is repacked for a CPU kernel when it is frozen, and repacked again when it is saved, with other
    # shifts; and once more when it is loaded. What counts here is the file.
    u = Unit("qint4_group_128_bf16")
    u.linear("mlp.down_proj", qint4, 16, 256, BF16, "file")
    u.finish(hidden_size=16, intermediate_size=256)

    # Integer shifts: (q - z) * s, one rounding.
    for dtype, short in [(BF16, "bf16"), (F16, "f16")]:
        u = Unit(f"qint_zeropoint_{short}")
        u.linear("self_attn.q_proj", qint4, 12, 64, dtype, zeropoint=True)
        u.linear("self_attn.k_proj", qint2, 10, 40, dtype, zeropoint=True)
        u.linear("mlp.gate_proj", qint4, 8, 160, dtype, zeropoint=True)
        u.finish(hidden_size=160, intermediate_size=8)

    hostile = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 3.4028235e38, -3.0, float("inf"), float("-inf"),
                            float("nan"), 1.0, 2.0**-140])

    def edit(state):
        state["weight._scale"].copy_(hostile.reshape(-1, 1))
        if "weight._shift" in state:
            state["weight._shift"].copy_(hostile.roll(1).reshape(-1, 1))

    u = Unit("hostile")
    u.linear("self_attn.q_proj", qint8, 12, 64, BF16, edit=edit)
    u.linear("self_attn.k_proj", qfloat8_e5m2, 12, 64, F32, edit=edit)
    u.linear("self_attn.v_proj", qint4, 12, 64, BF16, "file", edit=edit)
    u.linear("self_attn.o_proj", qint2, 12, 64, F32, edit=edit)
    u.finish()


if __name__ == "__main__":
    tiny_cases()
    unit_cases()

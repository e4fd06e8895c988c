"""Golden HQQ models: made and decoded by hqq (CPU).

Run: `python hqq_cases.py` (see ../README.md). It rewrites `../hqq/*`. (A script called hqq.py would hide the library.)
Expected values come from `Quantizer.dequantize` on what the file holds: with compute_dtype, scale and zero as they are, and
with all three in F32.
"""

import copy
import json
import zipfile

from directories import BF16, F16, F32, Dir, tiny_llama

import torch
from hqq.core.quantize import _META_TYPE, BaseQuantizeConfig, HQQLinear, Quantizer
from hqq.core.utils import decode_safetensor_type
from hqq.models.hf.base import AutoHQQHFModel
from transformers import HqqConfig

L = "model.layers.0."


def decode(state, dtype=None):
    """The weight of a layer's plain (not encoded) state; with a dtype, in that dtype."""
    state = copy.deepcopy(state)
    meta = state.get("meta", state)
    for part in ("zero", "scale"):  # nested: themselves quantized, see HQQLinear.dequantize
        if meta.get("quant_" + part):
            inner = meta["meta_" + part]
            if dtype is not None:
                inner |= {"compute_dtype": dtype, "scale": inner["scale"].to(dtype), "zero": inner["zero"].to(dtype)}
            meta[part] = Quantizer.dequantize(meta[part + "_q"], inner)
    if dtype is not None:
        meta |= {"compute_dtype": dtype, "scale": meta["scale"].to(dtype), "zero": meta["zero"].to(dtype)}
    return Quantizer.dequantize(state["W_q"], meta)


def plain(state):
    """Back from the tensors that stand for numbers and texts in a safetensors file, by the library's own decoder."""
    return {k: decode_safetensor_type(v, _META_TYPE[k]) for k, v in state.items() if k in _META_TYPE} | {"W_q": state["W_q"]}


def layer(d, n, k, dtype, bias=False, amp=0.2, **config):
    linear = torch.nn.Linear(k, n, bias=bias)
    with torch.no_grad():
        linear.weight.copy_(d.randn(n, k, scale=amp) + 0.02)
    return HQQLinear(linear.to(dtype), BaseQuantizeConfig(**config), compute_dtype=dtype, device="cpu")


def hf_config(skip=("lm_head",), **config):
    return HqqConfig(**config, skip_modules=list(skip)).to_dict()


class Unit(Dir):
    def __init__(self, name):
        super().__init__("hqq", name)
        self.state = {}

    def linear(self, key, n, k, dtype, edit=None, **config):
        lin = layer(self, n, k, dtype, **config)
        if edit is not None:
            edit(lin)
        state = {k: v.detach() if torch.is_tensor(v) else v for k, v in lin.state_dict().items()}
        self.state |= {f"{L}{key}.{k}": v for k, v in state.items()}
        raw = plain(state)
        assert torch.equal(decode(raw).nan_to_num(), lin.dequantize().nan_to_num())
        self.expect(f"{L}{key}.weight", decode(raw, F32), decode(raw), "file")
        if lin.bias is not None:
            self.keep(f"{L}{key}.bias", lin.bias)

    def finish(self, **config):
        norm = "model.norm.weight"
        self.state[norm] = self.keep(norm, (1 + self.randn(16, scale=0.1)).to(BF16))
        self.save(self.state, {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                               "quantization_config": hf_config(**(config or {"nbits": 4, "group_size": 64, "axis": 1}))})
        self.write()


# ---------------------------------------------------------------- tiny models


def quantized_llama(d, dtype=BF16, **config):
    model = tiny_llama(None, dtype)
    AutoHQQHFModel.quantize_model(model, BaseQuantizeConfig(**config), compute_dtype=dtype, device="cpu")
    return model


def expect_model(d, model, states, rule="file"):
    for name, module in model.named_modules():
        if isinstance(module, HQQLinear):
            raw = states[name]
            assert torch.equal(decode(raw), module.dequantize())
            d.expect(name + ".weight", decode(raw, F32), decode(raw), rule)
    for name, t in model.state_dict().items():
        if not any(name.startswith(key + ".") for key in states):
            d.keep(name, t.detach())


def tiny_cases():
    for name, config in [("tiny_4bit", {"nbits": 4, "group_size": 32, "axis": 1}),
                         ("tiny_3bit_axis0", {"nbits": 3, "group_size": 64, "axis": 0})]:
        d = Dir("hqq", name)
        model = quantized_llama(d, **config)
        state = {k: v.detach() for k, v in model.state_dict().items()}
        names = [k for k, m in model.named_modules() if isinstance(m, HQQLinear)]
        expect_model(d, model, {n: plain({k.removeprefix(n + "."): v for k, v in state.items() if k.startswith(n + ".")})
                                for n in names})
        d.save(state, model.config.to_diff_dict() | {"quantization_config": hf_config(**config)}, shards=3)
        d.write(lambda key: [k for k in state if k.startswith(key.removesuffix("weight"))])

    # hqq's own saver: one file, no quantization_config.
    d = Dir("hqq", "own_saver")
    model = quantized_llama(d, F16, nbits=2, group_size=16, axis=1)
    state = {k: v.detach() for k, v in model.state_dict().items()}
    names = [k for k, m in model.named_modules() if isinstance(m, HQQLinear)]
    expect_model(d, model, {n: plain({k.removeprefix(n + "."): v for k, v in state.items() if k.startswith(n + ".")})
                            for n in names})
    d.model.rmdir()  # it calls mkdir
    AutoHQQHFModel.save_to_safetensors(model, str(d.model), verbose=False)
    d.write()


# ---------------------------------------------------------------- qmodel.pt


def qmodel_cases():
    d = Dir("hqq", "qmodel_pt")
    model = quantized_llama(d, BF16, nbits=4, group_size=32, axis=0)
    kept = {k: v.detach().clone() for k, v in model.state_dict().items() if ".self_attn." not in k and ".mlp." not in k}
    AutoHQQHFModel.save_quantized(model, str(d.model))
    weights = torch.load(d.model / "qmodel.pt", weights_only=False)
    for name, raw in weights.items():
        if "W_q" in raw:
            d.expect(name + ".weight", decode(raw, F32), decode(raw), "file")
    finish_pt(d, weights, kept)

    # Zero points and scales that are quantized themselves, as hqq did until 0.2.2; 0.2.8 still reads and can make them.
    # "zero" alone, as in its old default (one scale for all), "scale" in groups too; the dictionary "meta" of old files.
    for name, meta in [("qmodel_pt_quant_zero", False), ("qmodel_pt_old_meta", True)]:
        d = Dir("hqq", name)
        zero = {"nbits": 8, "channel_wise": False, "group_size": None, "optimize": False}
        scale = {"nbits": 8, "channel_wise": True, "group_size": 16, "optimize": False}
        weights = {}
        for key, quant_scale in [("q_proj", False), ("k_proj", True)]:
            lin = HQQLinear(None, {"offload_meta": False}, compute_dtype=F16, device="cpu", initialize=False)
            config = {"nbits": 4, "channel_wise": True, "group_size": 32, "optimize": True, "round_zero": True, "axis": 0}
            lin.quant_config = {"weight_quant_params": config, "scale_quant_params": scale if quant_scale else None,
                                "zero_quant_params": zero}
            lin.quantize(d.randn(48, 64, scale=0.2), **lin.quant_config)
            lin.encoded_state_dict = False
            raw = dict(lin.state_dict())
            assert torch.equal(decode(raw), lin.dequantize())
            d.expect(f"{L}self_attn.{key}.weight", decode(raw, F32), decode(raw), "file")
            if meta:
                raw = {"W_q": raw["W_q"], "bias": None, "offload_meta": False,
                       "meta": {k: v for k, v in raw.items() if k in lin.meta and k not in ("view_as_float",
                                                                                            "unpack_view_dtype")}}
                again = HQQLinear(None, None, compute_dtype=F16, device="cpu")  # the library still reads it
                again.load_state_dict(copy.deepcopy(raw))
                assert torch.equal(again.dequantize(), lin.dequantize())
            weights[f"{L}self_attn.{key}"] = raw
        kept = {"model.norm.weight": (1 + d.randn(64, scale=0.1)).to(F16)}
        weights["model.norm"] = {"weight": kept["model.norm.weight"]}
        torch.save(weights, d.model / "qmodel.pt")
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        (d.model / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        finish_pt(d, weights, kept)


def finish_pt(d, weights, kept):
    with zipfile.ZipFile(d.model / "qmodel.pt") as z:
        assert z.testzip() is None
    for name, tensor in kept.items():
        d.keep(name, tensor)
    d.write(stored={f"{module}.{key}": t for module, raw in weights.items() for key, t in raw.items() if torch.is_tensor(t)})


# ---------------------------------------------------------------- units


def unit_cases():
    shapes = {8: (10, 96), 4: (8, 96), 3: (9, 128), 2: (16, 96), 1: (16, 96), 6: (6, 64), 5: (6, 64), 1.58: (16, 64)}
    for dtype, short in [(BF16, "bf16"), (F16, "f16"), (F32, "f32")]:
        u = Unit(f"bits_{short}")
        for i, (nbits, (n, k)) in enumerate(shapes.items()):
            u.linear(f"mlp.experts.{2 * i}.up_proj", n, k, dtype, nbits=nbits, group_size=32, axis=1)
            u.linear(f"mlp.experts.{2 * i + 1}.up_proj", n, k, dtype, nbits=nbits, group_size=32, axis=0)
        u.finish(nbits=4, group_size=32, axis=1)

    # Whole rows or columns (no group size); rows that a group reaches over; zero points that are not rounded; biases; no
    # optimization; one scale for all.
    u = Unit("groups")
    u.linear("self_attn.q_proj", 12, 40, BF16, nbits=4, group_size=None, axis=1, bias=True)
    u.linear("self_attn.k_proj", 12, 40, BF16, nbits=4, group_size=None, axis=0)
    u.linear("self_attn.v_proj", 12, 40, BF16, nbits=8, group_size=80, axis=1)  # a group is two rows
    u.linear("self_attn.o_proj", 12, 40, BF16, nbits=4, group_size=16, axis=0)  # and here not a divisor of 12
    u.linear("mlp.gate_proj", 7, 50, BF16, nbits=3, group_size=None, axis=1)  # 7 rows in words of 10
    u.linear("mlp.up_proj", 25, 6, BF16, nbits=3, group_size=None, axis=0)
    u.finish(nbits=4, group_size=16, axis=0)

    # Codes whose bytes are called floats, so that a module's cast to a dtype does not touch them.
    for dtype, short in [(BF16, "bf16"), (F16, "f16"), (F32, "f32")]:
        u = Unit(f"view_as_float_{short}")
        for i, nbits in enumerate([8, 4, 3, 2, 1]):
            u.linear(f"mlp.experts.{i}.up_proj", 16, 64, dtype, nbits=nbits, group_size=32, axis=1, view_as_float=True)
        u.finish(nbits=4, group_size=32, axis=1, view_as_float=True)

    hostile = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 3.4028235e38, -3.0, float("inf"), float("-inf"),
                            float("nan"), 1.0, 2.0**-140])

    def edit(lin):
        lin.meta["scale"] = hostile.reshape(lin.meta["scale"].shape).to(lin.compute_dtype)
        lin.meta["zero"] = hostile.roll(1).reshape(lin.meta["zero"].shape).to(lin.compute_dtype)

    for dtype, short in [(BF16, "bf16"), (F32, "f32")]:
        u = Unit(f"hostile_{short}")
        u.linear("self_attn.q_proj", 12, 32, dtype, edit=edit, nbits=4, group_size=32, axis=1)
        u.linear("self_attn.k_proj", 32, 12, dtype, edit=edit, nbits=8, group_size=32, axis=0)
        u.finish(nbits=4, group_size=32, axis=1)


if __name__ == "__main__":
    tiny_cases()
    qmodel_cases()
    unit_cases()

"""Golden QQQ layers, packed and decoded by gptqmodel's own `QQQTorchLinear` on CPU.

Run: `python qqq.py gptqmodel-7.7.0` (see ../README.md). Only `gptqmodel/nn_modules/qlinear/qqq.py` is
loaded; the modules that it imports are stubs, and its base class keeps the sizes and nothing else.
"""

import importlib.util
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import torch

from gptq import HOSTILE
from modelcase import F16, F32, ModelCase, total


class Anything(types.ModuleType):
    """A module every name of which is an object without meaning."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), dict.fromkeys("QQQ QQQ_TORCH CUDA ROCM LINUX ALL CPU".split()))


class Base(torch.nn.Module):
    """What `GroupedQuantLinear` keeps of its arguments."""

    def __init__(self, **kwargs):
        super().__init__()
        self.bits, self.in_features, self.out_features = kwargs["bits"], kwargs["in_features"], kwargs["out_features"]
        self.group_size = self.in_features if kwargs["group_size"] == -1 else kwargs["group_size"]


def load_library():
    for name in ["", ".adapter", ".adapter.adapter", ".models", ".models._const", ".nn_modules", ".nn_modules.qlinear",
                 ".nn_modules.qlinear._runtime_cache", ".quantization", ".utils", ".utils.backend", ".utils.logger", ".utils.qqq", ".utils.rocm"]:
        sys.modules["gptqmodel" + name] = Anything("gptqmodel" + name)
    sys.modules["gptqmodel.nn_modules.qlinear"].GroupedQuantLinear = Base
    sys.modules["gptqmodel.utils.logger"].setup_logger = MagicMock
    sys.modules["gptqmodel.models._const"].CPU = torch.device("cpu")
    path = Path(sys.argv[1]) / "gptqmodel/nn_modules/qlinear/qqq.py"
    spec = importlib.util.spec_from_file_location("gptqmodel.nn_modules.qlinear.qqq", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.QQQTorchLinear


class Case(ModelCase):
    def __init__(self, name, config):
        super().__init__("qqq", name, config)

    def layer(self, name, k, n, group, hostile=False, bias=False, has_empty=True):
        library = Linear(bits=4, group_size=group, desc_act=False, sym=True, in_features=k, out_features=n, bias=bias)
        size = k if group == -1 else group
        codes = torch.randint(-8 if size != k else -7, 8, (n, k), generator=self.rng).float()
        scales = 2.0 ** -torch.randint(4, 9, (n, k // size), generator=self.rng) * (
            1 + torch.rand(n, k // size, generator=self.rng))
        linear = torch.nn.Linear(k, n, bias=bias)
        linear.weight.data = codes * scales.repeat_interleave(size, 1)
        if bias:
            linear.bias.data = self.randn(n, scale=0.1)
        # As `quantization/qqq.py`: the largest value of a row in 127 steps.
        extra = linear.weight.data.abs().amax(1, keepdim=True) / 127
        library.pack(linear, scales, extra)
        if hostile:
            numbers = torch.tensor(HOSTILE[F32], dtype=torch.int64).to(torch.int32).view(F32)
            library.s_channel[0, : len(numbers)] = numbers
            if size != k:
                halves = torch.tensor(HOSTILE[F16]).to(torch.int16).view(F16)
                for row in range(len(library.s_group)):
                    library.s_group[row, row * 3 : row * 3 + len(halves)] = halves
                # Products that lie between two integers, and beyond the range of bytes.
                library.s_group[-1, 32:64] = torch.arange(32).to(F16) * 0.75 + 0.5
        parts = {part: getattr(library, part) for part in ("B", "s_channel", "s_group")}
        if not has_empty and size == k:
            del parts["s_group"]
        self.add({f"{name}.{part}": tensor for part, tensor in parts.items()})
        if bias:
            self.keep(f"{name}.bias", library.bias)
        weight, channel = library._dequantize_weight_for_torch()
        if not hostile and size == k:
            assert torch.equal(weight, codes.t() * 16)
        self.expect(f"{name}.weight", (weight * channel).t().contiguous())


def config(group):
    return {"model_type": "llama", "quantization_config": {
        "bits": 4, "group_size": group, "desc_act": False, "sym": True, "lm_head": False, "quant_method": "qqq",
        "checkpoint_format": "qqq", "pack_dtype": "int32", "meta": {"quantizer": ["gptqmodel:7.7.0"]}}}


def main():
    case = Case("groups", config(128))
    case.shards = 2
    case.layer("model.layers.0.self_attn.q_proj", 256, 128, 128, bias=True)
    # Its inputs are one group, which is the layout of channels.
    case.layer("model.layers.0.mlp.down_proj", 128, 64, 128)
    case.norm(64)
    case.write()

    case = Case("channels", config(-1))
    case.layer("model.layers.0.self_attn.q_proj", 80, 128, -1, has_empty=False)
    case.layer("model.layers.0.self_attn.o_proj", 48, 64, -1)
    case.write()

    case = Case("hostile", None)
    case.layer("l.0", 256, 64, 128, hostile=True)
    case.layer("l.1", 32, 64, -1, hostile=True)
    case.write()
    total("qqq")


if __name__ == "__main__":
    Linear = load_library()
    main()

"""Golden layers of Nunchaku Lite, packed by nunchaku's own packers.

Run: `python nunchaku_lite.py PATH`, with PATH a checkout of nunchaku at 3a3cc3d0649a7d5bc575dc899a03f2d4456df181 (see ../README.md).
The package imports kernels, so that `nunchaku/lora/flux/packer.py` and `nunchaku/models/text_encoders/tinychat_utils.py` are loaded
alone. Kernels decode, and need a GPU: the expected values are the formula of docs/schemes.md, with sums in F64.
"""

import sys
import types
from pathlib import Path

import torch

from modelcase import BF16, F16, F32, ModelCase, total

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0] + [-0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def load(path):
    """The packers, in packages that have nothing else but what they import."""
    source = Path(path) / "nunchaku"

    def module(name, file=None):
        found = types.ModuleType(name)
        found.__package__ = name.rsplit(".", 1)[0]
        found.__path__ = []
        sys.modules[name] = found
        if file:
            exec(compile((source / file).read_text(), str(file), "exec"), found.__dict__)
        return found

    for name in ("nunchaku", "nunchaku.lora", "nunchaku.lora.flux"):
        module(name)
    utils = module("nunchaku.utils")
    utils.ceil_divide, utils.load_state_dict_in_safetensors = lambda x, y: -(-x // y), None
    module("nunchaku.lora.flux.utils", "lora/flux/utils.py")
    packer = module("nunchaku.lora.flux.packer", "lora/flux/packer.py").NunchakuWeightPacker(bits=4)
    return packer, module("nunchaku.tinychat_utils", "models/text_encoders/tinychat_utils.py")


class Lite(ModelCase):
    def __init__(self, name, precision, dtype, rank, packers):
        super().__init__("nunchaku", name, {"_class_name": "Model"})
        self.precision, self.dtype, self.rank = precision, dtype, rank
        self.packer, self.tinychat = packers
        self.svdq, self.awqs = [], []

    def vector(self, values):
        return self.packer.pack_scale(values.view(-1, 1), group_size=-1)

    def layer(self, name, n, k):
        dtype, packer, rank = self.dtype, self.packer, self.rank
        smooth = torch.exp2(self.randn(k)).to(dtype)
        down, up = self.randn(rank, k, scale=0.2).to(dtype), self.randn(n, rank, scale=0.2).to(dtype)
        codes = torch.randint(0, 16, (n, k), generator=self.rng, dtype=torch.int32)
        if self.precision == "int4":
            values, size = torch.where(codes < 8, codes, codes - 16).float(), 64
            scale = self.scales(n, k // size).to(dtype)
            stored, scale = packer.pack_scale(scale.view(n, 1, -1, 1), size), scale.float()
        else:
            values, size = E2M1[codes], 16
            scale = self.scales(n, k // size, lo=-3, hi=7).to(torch.float8_e4m3fn)
            stored = packer.pack_scale(scale.to(dtype).view(n, 1, -1, 1), size)
            outputs, all_of_it = (1 + self.randn(n, scale=0.2)).to(dtype), torch.tensor([0.0123]).to(dtype)
            self.add({name + ".wcscales": self.vector(outputs), name + ".wtscale": all_of_it})
            scale = scale.float() * (outputs.float() * all_of_it.float())[:, None]
        tensors = {"qweight": packer.pack_weight(codes.clone()), "wscales": stored, "smooth_factor": self.vector(smooth)}
        tensors |= {"proj_down": packer.pack_lowrank_weight(down, True), "proj_up": packer.pack_lowrank_weight(up, False)}
        assert torch.equal(packer.unpack_lowrank_weight(tensors["proj_down"], True), down)
        self.add({f"{name}.{part}": t for part, t in tensors.items()})
        own = self.randn(n).to(dtype)
        self.add({name + ".bias": self.vector(own)})
        self.expected[name + ".bias"] = own
        product = torch.zeros(n, k, dtype=torch.float64)
        for r in range(rank):
            product += up[:, r, None].double() * down[r].double()
        self.expect(name + ".weight", values * scale.repeat_interleave(size, 1) / smooth.float() + product.float())
        self.svdq.append(name)

    def awq(self, name, n, k):
        codes = torch.randint(0, 16, (n, k), generator=self.rng, dtype=torch.int32)
        scale, zero = self.scales(k // 64, n).to(self.dtype), self.randn(k // 64, n).to(self.dtype)
        packed = self.tinychat.pack_w4(codes).view(torch.int32)
        assert packed.shape == (n // 4, k // 2)
        self.add({name + ".qweight": packed, name + ".wscales": scale, name + ".wzeros": zero})
        self.keep(name + ".bias", self.randn(n).to(self.dtype))
        wide = [t.float().t().repeat_interleave(64, 1) for t in (scale, zero)]
        self.expect(name + ".weight", codes.float() * wide[0] + wide[1])
        self.awqs.append(name)

    def write(self):
        size = 64 if self.precision == "int4" else 16
        config = {"quant_method": "nunchaku_lite", "compute_dtype": str(self.dtype)[6:]}
        if self.svdq:
            config["svdq_w4a4"] = {"precision": self.precision, "group_size": size, "rank": self.rank, "targets": self.svdq}
        if self.awqs:
            config["awq_w4a16"] = {"precision": "int4", "group_size": 64, "targets": self.awqs}
        self.config["quantization_config"] = config
        super().write()


def main(path):
    packers = load(path)
    for name, precision, dtype, rank, size in (("int4", "int4", BF16, 32, (256, 128)), ("nvfp4", "nvfp4", F16, 16, (128, 256))):
        case = Lite(name, precision, dtype, rank, packers)
        case.layer("blocks.0.ff", *size)
        case.awq("blocks.0.mod", 12, 192)
        case.norm(8, "norm.weight")
        case.write()
    total("nunchaku")


if __name__ == "__main__":
    main(sys.argv[1])

"""Golden layers of nunchaku: of its own models, and of Nunchaku Lite. They are packed by nunchaku's own packers.

Run: `python nunchaku_layers.py PATH COMFY`, with PATH a checkout of nunchaku at 3a3cc3d0649a7d5bc575dc899a03f2d4456df181, and COMFY one of
comfy-quants at 55f0a267f177d5536c5b5673ced2bd9ff9191bd0 (see ../README.md). The package nunchaku imports kernels, so that
`nunchaku/lora/flux/packer.py` and `nunchaku/models/text_encoders/tinychat_utils.py` are loaded alone. Kernels decode, and need a GPU:
the expected values are the formula of docs/schemes.md, with sums in F64. comfy-quants' own packing has to give the same layers of
integers, and its reference of a layer, without the rounding of activations, the same outputs.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path

import torch

from fp8 import same
from gptq import HOSTILE
from modelcase import BF16, F16, F32, ModelCase, total

# Scales of E4M3: zeros, subnormals, the largest, NaN, and ordinary ones.
HOSTILE_E4M3 = [0x00, 0x80, 0x01, 0x81, 0x07, 0x08, 0x88, 0x7E, 0xFE, 0x7F, 0xFF, 0x38, 0xB8, 0x39, 0x4D]
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


class Layers(ModelCase):
    """Layers with the parts' names of Nunchaku Lite, or the `old` ones of nunchaku's models of FLUX."""

    OLD = {"smooth_factor": "smooth", "smooth_factor_orig": "smooth_orig", "proj_down": "lora_down", "proj_up": "lora_up"}

    def __init__(self, name, precision, dtype, rank, packers, config=None, old=False):
        super().__init__("nunchaku", name, config)
        self.precision, self.dtype, self.rank, self.old = precision, dtype, rank, old
        self.packer, self.tinychat, self.comfy = packers

    hostile = False

    def numbers(self, values):
        """Of a hostile case: numbers of the same dtype that break naive arithmetic, otherwise `values`."""
        if not self.hostile:
            return values
        is_byte = values.dtype == torch.float8_e4m3fn
        patterns = torch.tensor(HOSTILE_E4M3 if is_byte else HOSTILE[values.dtype])
        places = torch.arange(values.numel()) * 11 % len(patterns)  # none of the lists has 11 n of them
        return patterns[places].to(torch.uint8 if is_byte else torch.int16).view(values.dtype).view(values.shape)

    def vector(self, values):
        return self.packer.pack_scale(self.packer.pad_scale(values.view(-1, 1), -1), group_size=-1)

    def micro_scale(self, scale):
        """`pack_scale` takes no NaN: its places are packed by themselves."""
        is_nan = scale.float().isnan()
        pack = lambda t: self.packer.pack_scale(t.to(self.dtype).view(len(t), 1, -1, 1), 16).view(torch.uint8)  # noqa: E731
        stored, nan = pack(scale.float().masked_fill(is_nan, 0)), pack(is_nan)
        return torch.where(nan == 0, stored, 0x7F).to(torch.uint8).view(torch.float8_e4m3fn)

    def outer(self, name, n):
        """The outer scales of E2M1 that are stored, and those of all outputs."""
        outputs, whole = self.numbers((1 + self.randn(n, scale=0.2)).to(self.dtype)), torch.tensor([0.0123]).to(self.dtype)
        self.add({name + ".wcscales": self.vector(outputs), name + ".wtscale": whole})
        return outputs.float() * whole.float()

    def layer(self, name, n, k):
        """Adds a layer, and returns its weight without the product of low rank, over the smoothing factors; and its bias."""
        dtype, packer, rank = self.dtype, self.packer, self.rank
        smooth = self.numbers(torch.exp2(self.randn(k)).to(dtype))
        down, up = self.randn(rank, k, scale=0.2).to(dtype), self.randn(n, rank, scale=0.2).to(dtype)
        if self.hostile:
            numbers = self.numbers(torch.zeros(len(HOSTILE[dtype]), dtype=dtype))
            up[: len(numbers), 3] = numbers
        codes = torch.randint(0, 16, (n, k), generator=self.rng, dtype=torch.int32)
        if self.precision == "int4":
            values, size = torch.where(codes < 8, codes, codes - 16).float(), 64
            scale = self.numbers(self.scales(n, k // size).to(dtype))
            stored, natural = packer.pack_scale(packer.pad_scale(scale.view(n, 1, -1, 1), size), size), scale
            scale = scale.float()
        else:
            values, size = E2M1[codes], 16
            scale = self.numbers(self.scales(n, k // size, lo=-3, hi=7).to(torch.float8_e4m3fn))
            stored = self.micro_scale(scale)
            scale = scale.float() * self.outer(name, n)[:, None]
        tensors = {"qweight": packer.pack_weight(packer.pad_weight(codes.clone())), "wscales": stored, "smooth_factor": self.vector(smooth)}
        padded = [packer.pad_lowrank_weight(down, True), packer.pad_lowrank_weight(up, False)]
        tensors |= {"proj_down": packer.pack_lowrank_weight(padded[0], True), "proj_up": packer.pack_lowrank_weight(padded[1], False)}
        bias = self.randn(n).to(dtype)
        tensors["bias"] = self.vector(bias)
        if self.precision == "int4":
            self.check_packing(tensors, (codes, natural, smooth, down, up, bias))
        self.store(name, tensors)
        product = torch.zeros(n, k, dtype=torch.float64)
        for r in range(rank):
            product += up[:, r, None].double() * down[r].double()
        quantized = values * scale.repeat_interleave(size, 1)
        weight = quantized / smooth.float() + product.float()
        rows = tensors["qweight"].shape[0]
        self.expect(name + ".weight", torch.nn.functional.pad(weight, (0, 0, 0, rows - n)))
        self.expected[name + ".bias"] = self.padded_bias(bias)
        return quantized, smooth, bias

    def padded_bias(self, bias):
        return self.packer.pad_scale(bias.view(-1, 1), -1).view(-1)

    def store(self, name, tensors):
        names = self.OLD if self.old else {}
        self.add({f"{name}.{names.get(part, part)}": t for part, t in tensors.items()})

    def payload(self, codes, scale, smooth, down, up, bias, inputs, **config):
        """A layer of comfy-quants, in the order of its formulas."""
        bytes_ = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8).view(torch.int8)
        parts = (bytes_, scale.t().contiguous(), smooth, down.t().contiguous(), up, bias)
        return self.comfy.NunchakuSvdquantFixturePayload("x", *parts, inputs, config)

    def check_packing(self, tensors, parts):
        self.natural = parts
        if parts[0].shape[0] % 128:
            return
        packed = self.comfy._to_nunchaku_runtime_packed_payload(self.payload(*parts, torch.zeros(parts[0].shape[1])), dtype=self.dtype)
        for part, want in tensors.items():
            assert same(getattr(packed, part), want), part

    def codes_of_awq(self, name, n, k):
        """Adds a layer of AWQ in the order of its rows, and returns its weight."""
        codes = torch.randint(0, 16, (n, k), generator=self.rng, dtype=torch.int32)
        scale, zero = (self.numbers(t.to(self.dtype)) for t in (self.scales(k // 64, n), self.randn(k // 64, n)))
        packed = self.tinychat.pack_w4(codes).view(torch.int32)
        assert packed.shape == (n // 4, k // 2)
        self.add({name + ".qweight": packed, name + ".wscales": scale, name + ".wzeros": zero})
        wide = [t.float().t().repeat_interleave(64, 1) for t in (scale, zero)]
        return codes.float() * wide[0] + wide[1]


class Lite(Layers):
    def __init__(self, name, precision, dtype, rank, packers):
        super().__init__(name, precision, dtype, rank, packers, {"_class_name": "Model"})
        self.svdq, self.awqs = [], []

    def layer(self, name, n, k):
        super().layer(name, n, k)
        self.svdq.append(name)

    def awq(self, name, n, k):
        self.expect(name + ".weight", self.codes_of_awq(name, n, k))
        self.keep(name + ".bias", self.randn(n).to(self.dtype))
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


class Own(Layers):
    """A model of nunchaku's, whose config is in the file's metadata, as `merge_safetensors.py` writes it."""

    def __init__(self, name, model_class, *rest, **named):
        super().__init__(name, *rest, **named)
        is_int = self.precision == "int4"
        dtype, size = ("int4", 64) if is_int else ("fp4_e2m1_all", 16)
        scale = [None, None] if is_int else [[None, "fp8_e4m3_nan"], "fp8_e4m3_nan"]
        kinds = {kind: {"dtype": dtype, "scale_dtype": s, "group_size": size} for kind, s in zip(("weight", "activation"), scale)}
        config = {"method": "svdquant", **kinds, "rank": self.rank}
        self.metadata |= {"model_class": model_class, "quantization_config": json.dumps(config)}

    def outer(self, name, n):
        """As nunchaku stores them: one for all outputs, or for each of fused projections."""
        if "qkv" not in name:
            whole = torch.tensor([0.0123]).to(self.dtype)
            self.add({name + ".wtscale": whole})
            return whole.float().expand(n)
        outputs = (0.02 + self.randn(n, scale=0.005)).to(self.dtype)
        self.add({name + ".wcscales": self.vector(outputs)})
        return outputs.float()

    def layer(self, name, n, k, gelu=False):
        quantized, smooth, bias = super().layer(name, n, k)
        self.store(name, {"smooth_factor_orig": self.vector(torch.exp2(self.randn(k)).to(self.dtype))})
        if gelu and self.precision == "int4":
            sums = (quantized.double() / smooth.double()).sum(1)
            shifted = (bias.double() + 0.171875 * sums).float()
            self.expected[name + ".bias"] = self.padded_bias(shifted).to(self.dtype)
            self.check_outputs(name, shifted)

    def check_outputs(self, name, bias):
        """The reference of comfy-quants computes what a plain layer does with the decoded weight and bias."""
        codes, *rest = self.natural
        inputs = torch.rand(5, codes.shape[1], generator=self.rng)
        payload = self.payload(codes, *rest, inputs, act_unsigned=True)
        full = self.comfy._reference_component_outputs(payload)["full"]
        plain = inputs.double() @ self.expected[name + ".weight"][: len(bias)].double().t() + bias.double()
        assert torch.allclose(full.double(), plain, rtol=1e-4, atol=1e-4 * plain.abs().max().item()), name

    def modulation(self, name, vectors, length, k):
        """As `NunchakuAdaLayerNormZero` takes them: outputs `[-1, vectors]`, and 1 added to the scales."""
        n = vectors * length
        stored = self.codes_of_awq(name, n, k)
        bias = self.randn(n).to(self.dtype)
        self.add({name + ".bias": bias})
        natural = [t.view(length, vectors, -1).transpose(0, 1).reshape(n, -1) for t in (stored, bias.float())]
        scales = torch.zeros(vectors, 1)
        scales[1] = scales[-2] = 1
        own = natural[1].view(vectors, -1) - scales
        x = torch.randn(3, k, generator=self.rng, dtype=torch.float64)
        emb = (x @ stored.double().t() + bias.double()).view(3, -1, vectors).permute(2, 0, 1)
        plain = (x @ natural[0].double().t() + own.reshape(-1).double()).chunk(vectors, 1)
        for i, (want, got) in enumerate(zip(emb, plain)):
            assert torch.allclose(want, got + scales[i].double(), atol=1e-5)
        self.expect(name + ".weight", natural[0])
        self.expected[name + ".bias"] = own.reshape(-1).to(self.dtype)


def load_comfy(path):
    """comfy-quants' harness, without the rounding of activations."""
    sys.path.insert(0, str(Path(path) / "src"))
    spec = importlib.util.spec_from_file_location("harness", Path(path) / "scripts/dev/run_nunchaku_svdquant_fixture.py")
    harness = importlib.util.module_from_spec(spec)
    sys.modules["harness"] = harness
    spec.loader.exec_module(harness)
    harness._activation_quant = lambda _, inputs: types.SimpleNamespace(dequantized=inputs)
    return harness


def main(path, comfy):
    packers = (*load(path), load_comfy(comfy))
    for name, precision, dtype, rank, size in (("int4", "int4", BF16, 32, (256, 128)), ("nvfp4", "nvfp4", F16, 16, (128, 256))):
        case = Lite(name, precision, dtype, rank, packers)
        case.layer("blocks.0.ff", *size)
        case.awq("blocks.0.mod", 12, 192)
        case.norm(8, "norm.weight")
        case.write()

    for name, precision, dtype in (("int4_hostile", "int4", BF16), ("nvfp4_hostile", "nvfp4", F16)):
        case = Lite(name, precision, dtype, 16, packers)
        case.hostile = True
        case.layer("blocks.0.ff", 128, 128)
        case.awq("blocks.0.mod", 12, 192)
        case.write()

    case = Own("flux_int4", "NunchakuFluxTransformer2dModel", "int4", BF16, 20, packers, old=True)
    case.layer("single_transformer_blocks.0.mlp_fc2", 100, 128, gelu=True)
    case.modulation("transformer_blocks.1.norm1.linear", 6, 6, 64)
    case.modulation("single_transformer_blocks.0.norm.linear", 3, 20, 64)
    case.norm(8, "transformer_blocks.1.norm_q.weight")
    case.write()
    case = Own("flux_fp4", "NunchakuFluxTransformer2DModelV2", "nvfp4", BF16, 16, packers)
    case.layer("transformer_blocks.0.attn.to_qkv", 128, 128)
    case.layer("transformer_blocks.0.ff.net.2", 128, 128, gelu=True)
    case.write()
    case = Own("qwen_int4", "NunchakuQwenImageTransformer2DModel", "int4", F16, 16, packers)
    case.layer("transformer_blocks.7.txt_mlp.net.2", 128, 128, gelu=True)
    case.modulation("transformer_blocks.7.img_mod.1", 6, 10, 64)
    case.write()
    total("nunchaku")


if __name__ == "__main__":
    main(*sys.argv[1:])

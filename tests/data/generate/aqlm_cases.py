"""Golden AQLM layers, decoded by aqlm 1.1.7 on CPU: `_dequantize_weight` of `aqlm.utils`, in F32.

Run: `python aqlm_cases.py` (see ../README.md).
"""

import os

os.environ["AQ_USE_JIT"] = "0"

import torch
from aqlm.utils import _dequantize_weight, pack_int_data, unpack_int_data

from gptq import HOSTILE
from modelcase import BF16, F16, F32, ModelCase, total


class Case(ModelCase):
    def __init__(self, name, config):
        super().__init__("aqlm", name, config)

    def layer(self, name, n, k, books, bits, block=(1, 8), dtype=F16, hostile=False, bias=False):
        height, width = block
        codes = torch.randint(0, 2**bits, (n // height, k // width, books), generator=self.rng)
        codes[0, 0], codes[-1, -1] = 2**bits - 1, 2 ** (bits - 1)
        codebooks = self.randn(books, 2**bits, height, width, scale=0.1).to(dtype)
        scales = (1 + torch.rand(n // height, 1, 1, 1, generator=self.rng)).to(dtype)
        if hostile:
            numbers = torch.tensor(HOSTILE[F16]).to(torch.int16).view(F16)
            scales.view(-1)[: len(numbers)] = numbers
            places = torch.randint(0, codebooks.numel(), (400,), generator=self.rng)
            codebooks.view(-1)[places] = numbers[torch.randint(0, len(numbers), (400,), generator=self.rng)]
        packed = pack_int_data(codes.clone(), bits)
        assert torch.equal(unpack_int_data(packed, bits), codes)
        self.add({f"{name}.codes": packed, f"{name}.codebooks": codebooks, f"{name}.scales": scales})
        if bias:
            self.keep(f"{name}.bias", self.randn(n).to(dtype))
        weight = _dequantize_weight(unpack_int_data(packed, bits), codebooks.to(F32), scales.to(F32))
        # The order of the sum is that of the codebooks.
        twin = codebooks[0].to(F32)[codes[..., 0]]
        for book in range(1, books):
            twin = twin + codebooks[book].to(F32)[codes[..., book]]
        twin = (twin * scales.to(F32)).swapaxes(-3, -2).reshape(n, k)
        assert torch.equal(weight.view(torch.int32)[~weight.isnan()], twin.view(torch.int32)[~weight.isnan()])
        self.expect(f"{name}.weight", weight)


def config(books, bits, block=(1, 8)):
    return {"model_type": "llama", "quantization_config": {
        "quant_method": "aqlm", "nbits_per_codebook": bits, "num_codebooks": books, "out_group_size": block[0],
        "in_group_size": block[1], "linear_weights_not_to_quantize": ["lm_head.weight", "model.norm.weight"]}}


def main():
    case = Case("1x12", config(1, 12))
    case.shards = 2
    case.layer("model.layers.0.self_attn.q_proj", 40, 72, 1, 12, bias=True)
    case.norm(72)
    case.keep("lm_head.weight", case.randn(8, 72).to(F16))
    case.write()

    case = Case("2x8", config(2, 8))
    case.layer("model.layers.0.mlp.down_proj", 56, 136, 2, 8)
    case.write()

    # Blocks of other shapes, codes of other widths, and codebooks of other types.
    case = Case("3x8_2x4", config(3, 8, (2, 4)))
    case.layer("l.0", 12, 24, 3, 8, block=(2, 4), dtype=BF16)
    case.write()
    case = Case("2x6_1x16", config(2, 6, (1, 16)))
    case.layer("l.0", 6, 64, 2, 6, block=(1, 16), dtype=F32)
    case.write()
    case = Case("1x9_8x1", config(1, 9, (8, 1)))
    case.layer("l.0", 24, 9, 1, 9, block=(8, 1))
    case.write()
    case = Case("4x1", config(4, 1))
    case.layer("l.0", 4, 16, 4, 1)
    case.write()

    case = Case("hostile", config(2, 8))
    case.layer("l.0", 40, 64, 2, 8, hostile=True)
    case.write()
    total("aqlm")


if __name__ == "__main__":
    main()

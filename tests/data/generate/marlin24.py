"""Golden marlin-24 models, compressed by compressed-tensors 0.9.4 on the CPU. The library never decompresses them: expected is
`dequantize` of what its `quantize` gives, which it compresses.

Run: `python marlin24.py` with torch 2.15.0 and compressed-tensors 0.9.4 (see ../README.md).
"""

import torch
from compressed_tensors.compressors.sparse_quantized_compressors.marlin_24 import Marlin24Compressor, pack_scales_24
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.utils import mask_creator

from gptq import HOSTILE
from modelcase import BF16, F16, F32, ModelCase, total


class Case(ModelCase):
    def __init__(self, name, bits, group=None, **more):
        weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group" if group else "channel",
                   "group_size": group}
        self.args = QuantizationArgs(**weights)
        config = {"quant_method": "compressed-tensors", "format": "marlin-24", "ignore": ["lm_head"],
                  "quantization_status": "compressed", "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
        super().__init__("marlin24", name, {"model_type": "llama", "quantization_config": config}, **more)

    def layer(self, name, n, k, hostile=False):
        """Hostile scales are those of the last group of some outputs."""
        most = 2 ** (self.args.num_bits - 1)
        codes = torch.randint(-most, most, (n, k), generator=self.rng).float()
        codes *= mask_creator(codes + torch.rand(n, k, generator=self.rng))
        # Quads with fewer codes than two.
        codes[: n // 4, ::4], codes[: n // 8, 1::2] = 0, 0
        groups = k // self.args.group_size if self.args.group_size else 1
        scale = self.scales(n, groups).to(F16)
        weight = (codes * scale.repeat_interleave(k // groups, 1).float()).to(F16)
        zeros = torch.zeros_like(scale, dtype=torch.int8)
        state = {f"{name}.weight": weight, f"{name}.weight_scale": scale, f"{name}.weight_zero_point": zeros}
        packed = Marlin24Compressor().compress(state, {name: self.args})
        kept = quantize(x=weight, scale=scale, zero_point=zeros, args=self.args)
        if hostile:  # when codes are packed, for these are quotients by scales
            numbers = torch.tensor(HOSTILE[F16]).to(torch.int16).view(F16)
            scale[: len(numbers), -1] = numbers
            packed[f"{name}.scale_packed"] = pack_scales_24(scale.t().contiguous(), self.args, (k // 2, n))
        self.add(packed)
        values = dequantize(x_q=kept.float(), scale=scale.float(), zero_point=zeros, args=self.args)
        assert values.dtype == F32
        self.expect(f"{name}.weight", values)


def main():
    case = Case("w4_channel", 4, shards=2)
    case.layer("model.layers.0.self_attn.q_proj", 64, 96)
    case.layer("model.layers.0.mlp.down_proj", 128, 32, hostile=True)
    case.norm(32)
    case.write()

    case = Case("w4_g128", 4, 128)
    case.layer("l.q_proj", 64, 384, hostile=True)
    case.layer("l.v_proj", 64, 128)
    case.write()

    case = Case("w8_channel", 8)
    case.layer("l.q_proj", 128, 64)
    case.layer("l.k_proj", 64, 32, hostile=True)
    case.write()

    # Two groups are stored as one is.
    case = Case("w8_g128", 8, 128)
    case.layer("l.q_proj", 64, 256, hostile=True)
    case.write()
    total("marlin24")


if __name__ == "__main__":
    main()

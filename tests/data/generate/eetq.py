"""Golden EETQ layers. EETQ packs with compiled code alone: this is a reading of its source, and not the library.

Run: `python eetq.py` (see ../README.md). `pack` takes the steps of `preprocess_weights_for_mixed_gemm` one by one, as
csrc/cutlass_kernels/cutlass_preprocessors.cc of NetEase-FuXi/EETQ 465e9726bf7ae30803a2d0dd9e5d4315aef17491 has them for
compute capabilities 7.5 to 8.9. Its bytes are those of that source, compiled alone, for all shapes below.
"""

import numpy as np
import torch

from gptq import HOSTILE
from modelcase import F16, F32, ModelCase, total


def permute_rows(b):
    """`permute_B_rows_for_mixed_gemm`: rows in sixteens."""
    rows = [8 * (row % 4 // 2) + row % 2 + 2 * (row // 4) for row in range(16)]
    return b.reshape(-1, 16, b.shape[1])[:, rows].reshape(b.shape)


def interleave(columns):
    """`interleave_column_major_tensor` with tiles of 64 rows and two columns; `columns` are transposed, words of four bytes."""
    words = columns.copy().view(np.uint32)
    count, rows = words.shape
    out = np.zeros(count * rows, np.uint32)
    for col in range(count):
        for base in range(0, rows, 16):
            for row in range(base, base + 16):
                out[col // 2 * rows * 2 + 2 * base + 16 * (col % 2) + row % 16] = words[col, row]
    return out.view(np.uint8)


def pack(codes):
    """Signed codes `[in, out]` as they are stored."""
    flat = interleave(np.ascontiguousarray(permute_rows(codes.view(np.uint8)).T))
    biased = (flat.astype(np.int16) + 128).astype(np.uint8).reshape(-1, 4)
    return biased[:, [0, 2, 1, 3]].reshape(codes.shape).view(np.int8)


class Case(ModelCase):
    def __init__(self, name, config):
        super().__init__("eetq", name, config)

    def layer(self, name, k, n, codes="weight", hostile=False, bias=False):
        q = self.all_bytes(k, n).numpy().view(np.int8)
        scales = self.scales(n).to(F16)
        if hostile:
            numbers = torch.tensor(HOSTILE[F16]).to(torch.int16).view(F16)
            scales[: len(numbers)] = numbers
        self.add({f"{name}.{codes}": torch.from_numpy(pack(q)), f"{name}.weight_scales": scales})
        if bias:
            self.keep(f"{name}.bias", self.randn(n).to(F16))
        # In F16 the kernel has the same product, rounded once.
        self.expect(f"{name}.weight", (torch.from_numpy(q).to(F32) * scales.to(F32)).t().contiguous())


def config(**more):
    return {"model_type": "llama", "quantization_config": {"quant_method": "eetq", **more}}


def main():
    case = Case("transformers", config(weights="int8", modules_to_not_convert=None))
    case.shards = 2
    case.layer("model.layers.0.self_attn.q_proj", 128, 192, bias=True)
    case.layer("model.layers.0.mlp.down_proj", 192, 64, hostile=True)
    case.norm(64)
    case.keep("lm_head.weight", case.randn(8, 64).to(F16))
    case.write()

    case = Case("own", config(zero_point=False, bits=8))
    # Of q, k, v, gate and up these models have parts of a matrix of several layers.
    case.layer("model.layers.0.self_attn.o_proj", 64, 64, codes="qweight")
    case.write()
    total("eetq")


if __name__ == "__main__":
    main()

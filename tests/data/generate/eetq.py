"""Golden EETQ layers, packed by EETQ's own C++.

    EETQ_ORACLE=<shared library> python eetq.py        (see ../README.md)

EETQ_ORACLE has csrc/cutlass_kernels/cutlass_preprocessors.cc of NetEase-FuXi/EETQ at commit
465e9726bf7ae30803a2d0dd9e5d4315aef17491, with `half` as the compiler's F16, behind these functions, which return 0 if the library
throws nothing. `sm` is the compute capability of the GPU that it is packed for.

    int oracle_preprocess(const int8_t * codes, size_t in, size_t out, int sm, int8_t * packed);     preprocess_weights
    int oracle_quantize(const void * f16, size_t in, size_t out, int sm, int8_t * packed, int8_t * codes, void * f16_scales);
                                                                                                    symmetric_quantize
"""

import ctypes
import os

import torch

from gptq import HOSTILE
from modelcase import F16, F32, ModelCase, total

CAPABILITIES = 75, 80, 86, 89


def open_eetq():
    eetq, size, pointer = ctypes.CDLL(os.environ["EETQ_ORACLE"]), ctypes.c_size_t, ctypes.c_void_p
    eetq.oracle_preprocess.argtypes = [pointer, size, size, ctypes.c_int, pointer]
    eetq.oracle_quantize.argtypes = [pointer, size, size, ctypes.c_int, pointer, pointer, pointer]
    return eetq


EETQ = open_eetq()


def pack(codes):
    """Signed codes `[in, out]` as they are stored, which is the same for all capabilities."""
    packed = [torch.empty_like(codes) for _ in CAPABILITIES]
    for sm, out in zip(CAPABILITIES, packed):
        assert EETQ.oracle_preprocess(codes.data_ptr(), *codes.shape, sm, out.data_ptr()) == 0
        assert torch.equal(out, packed[0])
    return packed[0]


def quantize(weight):
    """A weight F16 `[in, out]`: its codes as they are stored, the codes, and the scales."""
    stored, codes = (torch.empty(weight.shape, dtype=torch.int8) for _ in range(2))
    scales = torch.empty(weight.shape[1], dtype=F16)
    pointers = (t.data_ptr() for t in (stored, codes, scales))
    assert EETQ.oracle_quantize(weight.data_ptr(), *weight.shape, CAPABILITIES[0], *pointers) == 0
    assert torch.equal(stored, pack(codes))
    return stored, codes, scales


class Case(ModelCase):
    def __init__(self, name, config):
        super().__init__("eetq", name, config)

    def layer(self, name, k, n, codes="weight", hostile=False, bias=False):
        """Codes of all bytes."""
        q = self.all_bytes(k, n).contiguous().view(torch.int8)
        scales = self.scales(n).to(F16)
        if hostile:
            numbers = torch.tensor(HOSTILE[F16]).to(torch.int16).view(F16)
            scales[: len(numbers)] = numbers
        self.keep_layer(name, (pack(q), q, scales), codes)
        if bias:
            self.keep(f"{name}.bias", self.randn(n).to(F16))

    def quantized(self, name, k, n):
        """A weight that the library quantizes: some of its columns are large, and one is tiny."""
        weight = self.randn(k, n) * torch.linspace(0.01, 4, n)
        weight[:, n // 2] *= 1e-4
        self.keep_layer(name, quantize(weight.to(F16).contiguous()))

    def keep_layer(self, name, layer, suffix="weight"):
        stored, codes, scales = layer
        self.add({f"{name}.{suffix}": stored, f"{name}.weight_scales": scales})
        # In F16 the kernel has the same product, rounded once.
        self.expect(f"{name}.weight", (codes.to(F32) * scales.to(F32)).t().contiguous())


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

    case = Case("quantized", config(weights="int8"))
    case.quantized("wide", 64, 192)
    case.quantized("tall", 192, 64)
    case.write()
    total("eetq")


if __name__ == "__main__":
    main()

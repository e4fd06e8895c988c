"""Golden SpQR models, packed and decoded by SpQR's own C++ for the CPU.

    pip install torch==2.15.0 safetensors==0.8.0 numpy==2.4.6
    SPQR_ORACLE=<shared library> python spqr_cases.py

SPQR_ORACLE has `tensor_compress_interleaved` and `dequantize_compressed` of spqr_cuda.cpp (Vahe1994/SpQR, commit 543d10e5) behind
`oracle_compress` and `oracle_dequantize`, whose arguments are pointers as below. Its halves are rounded to nearest after each operation.
The library multiplies inputs in the order `in_perm` (`x[in_order]` in spqr_cuda_kernel.cu), so that column j of its matrix is column
`in_perm[j]` of the weight.
"""

import ctypes
import os

import numpy as np
import torch

from modelcase import ModelCase, total

SPQR = ctypes.CDLL(os.environ["SPQR_ORACLE"])
HOSTILE = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x0400, 0x3C00, 0x2E66]


def pointers(arrays):
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))


def layer(rng, m, n, density, is_ptcsr=False, hostile=False):
    """Tensors of a layer and its matrix as the library stores it."""
    random = lambda high, shape: rng.randint(0, high, shape).astype(np.uint8)
    tiles = (m // 16) * -(-n // 16)
    codes = [random(8, (m, n)), random(8, tiles * 16), random(8, tiles * 16)]
    numbers = [rng.uniform(*span, tiles).astype(np.float16) for span in ((0.001, 0.02), (-4, 4), (0.2, 2), (0, 6))]
    if hostile:
        for i, values in enumerate(numbers):
            values[:] = np.resize(np.roll(np.array(HOSTILE, dtype=np.uint16), i * 5), tiles).view(np.float16)
    mask = rng.uniform(size=(m, n)) < density
    offsets = np.concatenate([[0], mask.sum(axis=1).cumsum()]).astype(np.int32)
    cols = np.nonzero(mask)[1].astype(np.uint32)
    values = (rng.standard_normal(len(cols)) * 0.3).astype(np.float16)
    if hostile and len(values):
        values[: len(HOSTILE)] = np.array(HOSTILE, dtype=np.uint16).view(np.float16)[: len(values)]
    col_vals = (values.view(np.uint16).astype(np.uint32) << 16 | cols).astype(np.uint32)
    offsets_out, col_vals_out = offsets, col_vals
    if is_ptcsr:
        # `init_ptcsr` of sparse_util.py.
        widest = np.diff(offsets).reshape(-1, 16).max(axis=1) * 16
        offsets_out = np.zeros(m // 16 + 1, dtype=np.int32)
        col_vals_out = np.zeros(widest.sum(), dtype=np.uint32)
    words = np.zeros(tiles * 16, dtype=np.int64)
    SPQR.oracle_compress(m, n, pointers(codes), pointers(numbers), *(ctypes.c_void_p(a.ctypes.data) for a in (offsets, offsets_out, col_vals, col_vals_out)),
                         int(is_ptcsr), ctypes.c_void_p(words.ctypes.data))
    out = np.zeros((m, n), dtype=np.float16)
    SPQR.oracle_dequantize(m, n, *(ctypes.c_void_p(a.ctypes.data) for a in (words, offsets_out)), ctypes.c_long(len(offsets_out)),
                           ctypes.c_void_p(col_vals_out.ctypes.data), len(col_vals_out), ctypes.c_void_p(out.ctypes.data))
    return {
        "dense_weights": torch.from_numpy(words),
        "row_offsets": torch.from_numpy(offsets_out.copy()),
        "col_vals": torch.from_numpy(col_vals_out.view(np.int32).copy()) if len(col_vals_out) else torch.zeros(0),
    }, torch.from_numpy(out)


class Case(ModelCase):
    def __init__(self, name, layers, sizes=None):
        super().__init__("spqr", name)
        rng = np.random.RandomState(len(name) * 7 + sum(map(ord, name)))
        shapes = {}
        for key, (m, n, density, order, options) in layers.items():
            base = f"model.layers.0.{key}"
            tensors, matrix = layer(rng, m, n, density, **options)
            weight = matrix
            if order:
                order = rng.permutation(n).astype(np.uint16)
                tensors["in_perm"] = torch.from_numpy(order.view(np.int32).copy())
                weight = torch.empty_like(matrix)
                weight[:, torch.from_numpy(order.astype(np.int64))] = matrix
            else:
                tensors["in_perm"] = torch.zeros(0, dtype=torch.int32)
            for part, tensor in tensors.items():
                self.tensors[f"{base}.{part}"] = tensor
                shapes[f"{base}.{part}.shape"] = len(tensor)
            self.expected[f"{base}.weight"] = weight.float()
        norm = torch.from_numpy(rng.standard_normal(8).astype(np.float16))
        self.tensors["model.norm.weight"] = self.expected["model.norm.weight"] = norm
        config = {"quant_method": "spqr", "bits": 3, "beta1": 16, "beta2": 16, "shapes": shapes, "modules_to_not_convert": ["lm_head.weight"]}
        self.sidecar("config.json", {"quantization_config": config} | (sizes or {}))
        self.write()


def main():
    Case("ordered", {"self_attn.q_proj": (32, 64, 0.02, True, {}), "self_attn.k_proj": (16, 48, 0.3, True, {}), "mlp.up_proj": (48, 40, 0.0, True, {})})
    Case("ptcsr", {"self_attn.q_proj": (32, 64, 0.05, True, {"is_ptcsr": True}), "mlp.up_proj": (16, 34, 0.1, True, {"is_ptcsr": True})})
    llama = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "num_hidden_layers": 1, "vocab_size": 8}
    in_order = {"self_attn.q_proj": (64, 64, 0.02, False, {}), "mlp.up_proj": (96, 64, 0.02, False, {}), "mlp.down_proj": (64, 96, 0.02, False, {"is_ptcsr": True})}
    Case("in_order", in_order, llama)
    Case("hostile", {"self_attn.q_proj": (64, 64, 0.05, True, {"hostile": True}), "mlp.up_proj": (48, 64, 0.05, True, {"hostile": True, "is_ptcsr": True})})
    total("spqr")


main()

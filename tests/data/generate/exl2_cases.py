"""Golden EXL2 layers, decoded by exllamav2's own kernels, compiled for the CPU.

Run: `python exl2_cases.py exl2-wheel/exllamav2`, the unpacked wheel of exllamav2 0.3.2 (see ../README.md). Compiles exl2_oracle.cpp (the
command is in that file; `$CXX`), for an x86-64 CPU with F16C. Packing is that of `conversion/adaptivegptq.py` (`pack`) and
`ext_quant.cpp`; what `ext.py` (`make_q_matrix`, `make_group_map_py`) and the constructor of `QMatrix` do before the kernels run is
written out.
"""

import ctypes
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from modelcase import BF16, F16, ModelCase, total

I16, I32 = torch.int16, torch.int32


def pack_columns(codes, bits):
    """Codes down each column as words, lowest bits first."""
    k, n = codes.shape
    stream = (codes[:, None, :] >> np.arange(bits)[None, :, None] & 1).reshape(k * bits, n)
    weights = np.uint64(1) << np.arange(32, dtype=np.uint64)
    words = (stream.reshape(-1, 32, n).astype(np.uint64) * weights[None, :, None]).sum(1)
    return words.astype(np.uint32)


def pack_rows_4(scales):
    """Eight scales of neighbouring columns in a word."""
    g, n = scales.shape
    shifts = np.arange(8, dtype=np.uint64) * np.uint64(4)
    return (scales.reshape(g, n // 8, 8).astype(np.uint64) << shifts).sum(2).astype(np.uint32)


# ---------------------------------------------------------------- the library's kernels

HERE, CUDA = Path(__file__).parent, Path(sys.argv[1]) / "exllamav2_ext/cuda"


def kernels():
    """The sources of the kernels that load and decode a layer, without their includes of CUDA."""
    without_includes = lambda text: re.sub(r"^#include.*$", "", text, flags=re.M)
    headers = ["../config.h", "quant/qdq_util.cuh", "matrix_view.cuh"] + [f"quant/qdq_{bits}.cuh" for bits in (2, 3, 4, 5, 6, 8)]
    parts = [without_includes((CUDA / header).read_text()) for header in headers]
    matrix = (CUDA / "q_matrix.cu").read_text()
    parts += re.findall(r"^#define (?:BLOCK_KN_SIZE|THREADS_X) .*$", matrix, flags=re.M)
    for kernel in ("shuffle_kernel", "reconstruct_kernel"):
        (found,) = re.findall(rf"^__global__ void {kernel}\n.*?^}}$", matrix, flags=re.M | re.S)
        parts.append(found)
    return "\n".join(parts)


def build():
    with tempfile.TemporaryDirectory() as out:
        (Path(out) / "exl2_host.inc").write_text(kernels())
        lib = f"{out}/libexl2.so"
        subprocess.run([os.environ.get("CXX", "c++"), "-shared", "-fPIC", "-w", "-std=c++20", "-O1", "-ffp-contract=off", "-mf16c",
                        "-I", out, "-o", lib, HERE / "exl2_oracle.cpp"], check=True)
        return ctypes.CDLL(lib)


EXL2 = build()


def reconstructed(layer, k):
    """`make_q_matrix` and `reconstruct`: halves `[in, out]`."""
    words, groups = layer["q_weight"].astype(np.uint32), layer["q_groups"].reshape(-1, 2)
    n = words.shape[1]
    group_map, rows = [], {8: 0, 6: 0, 5: 0, 4: 0, 3: 0, 2: 0}
    for g, (bits, first) in enumerate(groups.tolist()):
        last = int(groups[g + 1][1]) if g + 1 < len(groups) else len(words)
        size = (last - first) * 32 // bits
        rows[bits] += size
        group_map += [part for j in range(size) for part in (g, size - j)]
    # `w["q_scale_max"] *= prescale / 256`, as torch multiplies halves by a number.
    maxima = torch.from_numpy(layer["q_scale_max"].copy())
    maxima *= 1 / 256
    parts = [np.ascontiguousarray(words), np.argsort(layer["q_invperm"]).astype(np.uint16), layer["q_scale"].astype(np.uint32),
             maxima.numpy(), np.array(group_map, np.uint16)]
    ends, out = np.cumsum(list(rows.values())).astype(np.int32), np.full((k, n), 77, np.float16)
    address = lambda a: ctypes.c_void_p(a.ctypes.data)
    EXL2.oracle_reconstruct(*map(address, parts), k, n, len(groups), address(ends), address(out))
    return out


class Case(ModelCase):
    def __init__(self, name, config, **more):
        super().__init__("exl2", name, config, **more)
        self.halves = {}

    def layer(self, name, n, widths, outputs=None, hostile=False):
        """A layer with a group for each of `widths`: bits and inputs."""
        groups, words, row = [], [], 0
        for bits, size in widths:
            codes = torch.randint(0, 1 << bits, (size, n), generator=self.rng).numpy()
            groups += [bits, row]
            words.append(pack_columns(codes, bits))
            row += len(words[-1])
        k = sum(size for _, size in widths)
        scale = torch.randint(0, 16, (len(widths), n), generator=self.rng).numpy()
        maxima = self.scales(len(widths)).to(F16)
        if hostile:
            maxima[:7] = torch.tensor([0.0, -0.0, 6e-8, 1e-4, 65504.0, float("inf"), float("nan")]).to(F16)
        layer = {"q_weight": np.concatenate(words), "q_invperm": torch.randperm(k, generator=self.rng).numpy(),
                 "q_scale": pack_rows_4(scale), "q_scale_max": maxima.numpy(), "q_groups": np.array(groups)}
        types = {"q_weight": np.int32, "q_invperm": np.int32, "q_scale": np.int32, "q_scale_max": np.float16, "q_groups": np.int16}
        as_stored = lambda part: torch.from_numpy(np.ascontiguousarray(layer[part].astype(types[part])))
        self.add({f"{name}.{part}": as_stored(part) for part in layer})
        halves = torch.from_numpy(reconstructed(layer, k).T[:outputs].copy())
        # The product of a code and a scale is exact in F32, and a half of it is what the kernel has.
        bits = np.repeat([bits for bits, _ in widths], [size for _, size in widths])
        codes = np.concatenate([self.codes(layer, g) for g in range(len(widths))])
        with np.errstate(all="ignore"):
            maxima = (layer["q_scale_max"].astype(np.float32) / np.float32(256)).astype(np.float16)
            steps = ((scale + 1) ** 2).astype(np.float16) * maxima[:, None]
            rows = np.repeat(steps, [size for _, size in widths], 0).astype(np.float32)
            exact = (codes - (1 << (bits - 1))[:, None]).astype(np.float32) * rows
        exact = torch.from_numpy(exact[layer["q_invperm"]].T[:outputs].copy())
        same = (exact.to(F16) == halves) | exact.isnan() & halves.isnan()
        assert same.all()
        self.expect(f"{name}.weight", exact)

    def codes(self, layer, g):
        groups = layer["q_groups"].reshape(-1, 2)
        bits, first = groups[g]
        last = groups[g + 1][1] if g + 1 < len(groups) else len(layer["q_weight"])
        words = layer["q_weight"][first:last]
        stream = (words[:, None, :] >> np.arange(32, dtype=np.uint32)[None, :, None] & 1).reshape(-1, words.shape[1])
        weights = 1 << np.arange(bits)
        return (stream.reshape(-1, bits, words.shape[1]) * weights[None, :, None]).sum(1).astype(np.int64)

    def bias(self, name, n, stored=None):
        bias = self.randn(n, scale=0.1).to(F16)
        padded = torch.nn.functional.pad(bias, (0, (stored or n) - n))
        self.add({f"{name}.bias": padded})
        self.expected[f"{name}.bias"] = bias if stored else padded


def config(**sizes):
    quantization = {"quant_method": "exl2", "version": "0.3.2", "bits": 4.0, "head_bits": 6,
                    "calibration": {"rows": 115, "length": 2048, "dataset": "(default)"}}
    return {"model_type": "llama", **sizes, "quantization_config": quantization}


def main():
    case = Case("mixed", config(hidden_size=384, vocab_size=30), shards=2)
    case.layer("model.layers.0.self_attn.q_proj", 24, [(8, 32), (6, 64), (5, 64), (4, 96), (3, 64), (2, 64)])
    case.layer("model.layers.0.mlp.down_proj", 16, [(4, 128), (4, 128), (4, 32)])
    case.layer("lm_head", 32, [(6, 128), (6, 128), (6, 128)], outputs=30)
    case.keep("model.layers.0.self_attn.q_proj.bias", case.randn(24, scale=0.1).to(F16))
    case.norm(384)
    case.write()

    case = Case("padded", None)
    case.layer("l.0", 32, [(5, 64), (3, 64), (2, 16)], outputs=10)
    case.bias("l.0", 10)
    case.write()

    case = Case("hostile", None)
    case.layer("l.0", 16, [(8, 32), (6, 32), (5, 32), (4, 32), (4, 32), (3, 32), (2, 32), (2, 16)], hostile=True)
    case.write()
    total("exl2")


if __name__ == "__main__":
    main()

"""Golden EXL2 layers. exllamav2 decodes on GPUs alone: this is a reading of its sources, and not the library.

Run: `python exl2_cases.py` (see ../README.md). Sources, of exllamav2 da07facd10b5c7f35b03664c41a3090c9f093de5: packing as in
`conversion/adaptivegptq.py` (`pack`) and `ext_quant.cpp`; decoding as in `ext.py` (`make_q_matrix`), `cuda/q_matrix.cu`
(`reconstruct_kernel`) and `cuda/quant/qdq_*.cuh`, step by step, with numpy's halves: the words are shuffled as on load, and
codes are taken from them with the masks of the kernels.
"""

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


# ---------------------------------------------------------------- qdq_*.cuh


def shuffled(words, bits):
    """A block of words of one column as `shuffle_*` leaves it, and the pairs of halves that `dequant_*` masks out of it."""
    big = sum(int(w) << (32 * i) for i, w in enumerate(words))
    q = [big >> (bits * i) & ((1 << bits) - 1) for i in range(len(words) * 32 // bits)]
    pair = lambda first, second: first | second << 16
    z = [0] * len(words)
    if bits == 2:
        for i in range(8):
            z[0] |= pair(q[2 * i], q[2 * i + 1]) << (2 * i)
        take = lambda z: [z[0] >> (2 * i) & 0x00030003 for i in range(8)]
    elif bits == 3:
        for block in range(3):
            for i in range(5):
                z[block] |= pair(q[10 * block + 2 * i], q[10 * block + 2 * i + 1]) << (3 * i)
            z[block] |= pair(q[30] >> block & 1, q[31] >> block & 1) << 15
        take = lambda z: [z[i // 5] >> (3 * (i % 5)) & 0x00070007 for i in range(15)] + [
            sum((z[block] >> 15 & 0x00010001) << block for block in range(3))]
    elif bits == 4:
        for i in range(4):
            z[0] |= pair(q[2 * i], q[2 * i + 1]) << (4 * i)
        take = lambda z: [z[0] >> (4 * i) & 0x000F000F for i in range(4)]
    elif bits == 5:
        for block in range(5):
            for i in range(3):
                z[block] |= pair(q[6 * block + 2 * i], q[6 * block + 2 * i + 1]) << (5 * i)
            z[block] |= pair(q[30] >> block & 1, q[31] >> block & 1) << 15
        take = lambda z: [z[i // 3] >> (5 * (i % 3)) & 0x001F001F for i in range(15)] + [
            sum((z[block] >> 15 & 0x00010001) << block for block in range(5))]
    elif bits == 6:
        for block in range(3):
            for i in range(2):
                z[block] |= pair(q[4 * block + 2 * i], q[4 * block + 2 * i + 1]) << (6 * i)
        z[0] |= pair(q[12] & 15, q[13] & 15) << 12
        z[1] |= pair(q[14] & 15, q[15] & 15) << 12
        z[2] |= pair(q[12] >> 4, q[13] >> 4) << 12 | pair(q[14] >> 4, q[15] >> 4) << 14
        take = lambda z: [z[i // 2] >> (6 * (i % 2)) & 0x003F003F for i in range(6)] + [
            z[0] >> 12 & 0x000F000F | z[2] >> 8 & 0x00300030, z[1] >> 12 & 0x000F000F | z[2] >> 10 & 0x00300030]
    else:
        return [int(w) >> (8 * i) & 0xFF for w in words for i in range(4)]
    return [half for pair in take(z) for half in (pair & 0xFFFF, pair >> 16)]


BLOCKS = {8: 2, 6: 3, 5: 5, 4: 1, 3: 3, 2: 1}


def reconstructed(layer, k):
    """`reconstruct_kernel`: halves `[in, out]`."""
    words, groups = layer["q_weight"], layer["q_groups"].reshape(-1, 2)
    n = words.shape[1]
    perm = np.argsort(layer["q_invperm"])
    with np.errstate(all="ignore"):
        maxima = (layer["q_scale_max"].astype(np.float32) / np.float32(256)).astype(np.float16)
    out = np.zeros((k, n), np.float16)
    row = 0
    for g, (bits, first) in enumerate(groups.tolist()):
        last = int(groups[g + 1][1]) if g + 1 < len(groups) else len(words)
        scales = np.array([layer["q_scale"][g, c // 8] >> (4 * (c % 8)) & 15 for c in range(n)]).astype(np.int32) + 1
        with np.errstate(all="ignore"):
            scales = (scales * scales).astype(np.float16) * maxima[g]
        for at in range(first, last, BLOCKS[bits]):
            codes = np.array([shuffled(words[at : at + BLOCKS[bits], c], bits) for c in range(n)]).T
            for code in codes:
                with np.errstate(all="ignore"):
                    out[perm[row]] = (code - (1 << (bits - 1))).astype(np.float16) * scales
                row += 1
    assert row == k
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

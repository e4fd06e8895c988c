"""Golden EXL3 layers of 1.5, 2.5 and 3.5 bits, and tables of embeddings: states by exllamav3 1.6.5, all else as in exl3_cases.py.

Run: `python exl3_halves.py GPTQMODEL EXLLAMAV3`, with the unpacked sdist of gptqmodel 7.7.0 and the unpacked wheel of exllamav3
1.6.5 (see ../README.md). The functions of exllamav3's `frac.cu` that find a state are compiled for the CPU, with a C++ compiler;
gptqmodel has no such widths. For whole bits both find the same states.
"""

import ctypes
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

import exl3_cases as exl3
from modelcase import DATA, F16

I16 = torch.int16
RATES = (1.5, 2.5, 3.5)
LOOP = """
extern "C" void states(uint16_t* out, const uint32_t* words, int tiles, int ka, uint32_t mask, int bpb) {
    for (int tile = 0; tile < tiles; ++tile)
        for (int i = 0; i < 256; ++i)
            out[tile * 256 + i] = frac_window(words + tile * bpb / 2, bpb / 2, frac_s(i, ka, mask, bpb) - 16);
}
"""


def compiled(exllamav3):
    """`states`, made of the functions `frac_d`, `frac_s` and `frac_window`."""
    source = (Path(exllamav3) / "exllamav3/exllamav3_ext/quant/frac.cu").read_text()
    one = r"^__device__ __forceinline__ \w+ %s\([^\n]*(?:\}$|\n\{\n.*?^\}$)"
    found = [re.search(one % name, source, re.S | re.M).group() for name in ("frac_d", "frac_s", "frac_window")]
    text = "#include <cstdint>\n#define __device__\n#define __forceinline__ inline\n" + "\n".join(found) + LOOP
    path = Path(tempfile.mkdtemp())
    (path / "frac.cpp").write_text(text)
    subprocess.run(["c++", "-shared", "-fPIC", "-w", "-O1", "-o", path / "frac.so", path / "frac.cpp"], check=True)
    return ctypes.CDLL(str(path / "frac.so")).states


def states(trellis):
    """The states of all tiles, as `_unpack_indices` of gptqmodel gives them."""
    words = trellis.shape[-1]
    out = torch.zeros(*trellis.shape[:2], 256, dtype=I16)
    # As `frac_k` of exllamav3 has it: every second value has one bit more.
    mask = 0xAAAA if words % 16 else 0
    trellis = trellis.contiguous()
    library(ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(trellis.data_ptr()), out.shape[0] * out.shape[1], words // 16, mask,
            words)
    return out.to(torch.long) & 0xFFFF


class Case(exl3.Case):
    def bytes(self, *shape):
        return super().bytes(*(int(n) for n in shape))


def table(codec, name, dim, bits, rows):
    """A table of embeddings of `rows` rows. The library's own values are in F32, in the order of its steps."""
    case = exl3.Case(name, exl3.config(3, "mul1", hidden_size=dim))
    groups = -(-dim // 256)
    rings = case.bytes(rows * groups, 2 * (1 + 16 * bits)).view(I16)
    scales = (case.scales(rows * groups) * (1 + case.randn(rows * groups, scale=0.1))).to(F16)
    rings[:, 0] = scales.view(I16)
    signs = (torch.randint(0, 2, (groups, 256), generator=case.rng) * 2 - 1).to(F16)
    embed = "model.embed_tokens"
    case.add({f"{embed}.trellis": rings.reshape(rows, -1), f"{embed}.signs": signs})
    codebook = codec["mul1_codebook"]("cpu")
    repeated = signs.repeat(rows, 1)
    near = codec["dequant_rows"](rings, bits, codebook, signs=repeated).view(rows, -1)[:, :dim]
    found, scale = codec["unpack_rows"](rings, bits)
    h = torch.tensor([[(-1) ** (i & j).bit_count() for j in range(256)] for i in range(256)], dtype=torch.float64)
    # Sums of multiples of 2^-17, which F64 holds.
    w = (codebook[found].double() @ h) / 16 * scale.double()[:, None] * repeated.double()
    w = w.float().view(rows, -1)[:, :dim].contiguous()
    assert ((near - w).abs() <= 1e-5 * w.abs().amax(1, keepdim=True)).all()
    case.expect(f"{embed}.weight", w)
    case.library[f"{embed}.weight"] = near.contiguous()
    case.write()


def main(gptqmodel, exllamav3):
    global library
    exl3.linear, exl3.lib = exl3.libraries(gptqmodel, exllamav3)
    quantize = Path(exllamav3) / "exllamav3/modules/quant/exl3_lib/quantize.py"
    exl3.compiled(quantize, ["_HAD_MAX_GEMM_ROWS"], exl3.lib)
    library = compiled(exllamav3)
    own = exl3.linear._unpack_indices

    def unpack(self, first=0, end=None):
        assert first == 0 and end is None
        found = states(self.trellis)
        assert self.trellis.shape[-1] % 16 or torch.equal(found, own(self))
        return found

    exl3.linear._unpack_indices = unpack
    exl3.inner_of(torch.randint(0, 2**15, (2, 3, 48), dtype=I16), "mul1")

    rng, out = torch.Generator().manual_seed(4), {}
    for rate in RATES:
        trellis = torch.randint(0, 256, (1, 1, int(32 * rate)), generator=rng, dtype=torch.uint8).view(I16).contiguous()
        out[f"{rate}.trellis"], out[f"{rate}.inner"] = trellis, exl3.inner_of(trellis, "mul1").contiguous()
    assert out["1.5.inner"].dtype == F16
    save_file(out, DATA / "exl3/half_tiles.safetensors", {"format": "pt"})

    case = Case("half_bits", exl3.config(2.5, "mul1"))
    for rate in RATES:
        name = f"l.{int(rate)}"
        case.layer(name, 128, 128, rate, "mul1", outputs=6, compare=True)
        case.bias(name, 6)
    case.write()

    codec = {"torch": torch}
    names = ["ROW_DIM", "MUL1", "ring_dim", "mul1_codebook", "unpack_rows", "hadamard_rotate", "dequant_rows"]
    exl3.compiled(quantize.with_name("ngram_codec.py"), names, codec)
    for bits in (1, 3, 8):
        table(codec, f"table_{bits}", 300, bits, 5)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Codes and streams of dfloat11's own encoder on CPU, for the encoder.

Run: `python dfloat11_encode.py FILE`, with FILE as for dfloat11_cases.py.

    dfloat11_encode/codes.safetensors    N.counts I64 [256] -> N.luts, N.eof I64 [2] (length and bits of the code that ends a stream)
    dfloat11_encode/streams.safetensors  N.values BF16 -> the stored tensors, N.luts and so on
"""

import contextlib
import io
import sys

import torch
from dfloat11_cases import load
from fp8 import BF16, DATA
from safetensors.torch import save_file

RNG = torch.Generator().manual_seed(11)
MOST_EXPONENT = 239


def quietly(f, *args):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return f(*args)


def fibonacci(n):
    found = [1, 1]
    while len(found) < n:
        found.append(found[-1] + found[-2])
    return found


def counters():
    """Counts with ties, of one symbol less and more than a table has levels for, and such as would need more than 32 bits."""
    yield {127 - i: 10 ** 9 >> i for i in range(30)}
    yield {i: 7 for i in range(MOST_EXPONENT + 1)}
    yield {i: 1 for i in range(100, 117)}
    yield {3: 1, 5: 1}
    yield {3: 1, 5: 2, 7: 2, 9: 3, 200: 3, 239: 5}
    # Distinct counts, for which equals become 1 is the library's secret.
    for n in (31, 32, 33, 34, 36, 45):
        yield {60 + i: f for i, f in enumerate(fibonacci(n + 2)[2:])}
    yield {60 + i: f for i, f in enumerate(reversed(fibonacci(42)[2:]))}
    for size in (9, 20, 40, 90, 150):
        at = torch.randperm(MOST_EXPONENT + 1, generator=RNG)[:size].sort().values.tolist()
        yield {e: int(10 ** (torch.rand((), generator=RNG).item() * 7)) for e in at}


def codes():
    for counter in counters():
        codec, _, table = quietly(utils.get_32bit_codec, counter)
        counts = torch.zeros(256, dtype=torch.int64)
        for e, n in counter.items():
            counts[e] = n
        yield {"counts": counts, "luts": quietly(utils.get_luts, table), "eof": torch.tensor(table[codec._eof])}


def streams():
    """Streams that end at every bit of a byte, and just before and behind a run of 8 bytes and a chunk of 4096."""
    def of(exponents):
        exponents = exponents[torch.randperm(len(exponents), generator=RNG)].to(torch.int32)
        rest = torch.randint(0, 256, exponents.shape, generator=RNG, dtype=torch.int32)
        bits = (rest & 128) << 8 | exponents << 7 | rest & 127
        return bits.to(torch.int16).view(BF16)

    for n in [*range(10, 80, 3), 200, 1003]:
        yield of((torch.randn(n, generator=RNG).abs().log2() + 127).floor().clamp(0, MOST_EXPONENT))
    for n in (*range(4126, 4133), 9000):
        yield of(torch.arange(n) % 240)


def encoded(values):
    """None where the library fails: no code begins with the bits of the first, which ends streams."""
    _, counter = utils.get_codec(values)
    codec, _, table = utils.get_32bit_codec(counter)
    try:
        luts = utils.get_luts(table)
    except UnboundLocalError:
        return None
    codes, rest, positions, gaps, splits = utils.encode_weights([values], codec, 8, 512)
    return {"values": values, "luts": luts, "encoded_exponent": codes, "sign_mantissa": rest,
            "output_positions": positions.view(torch.uint8), "gaps": gaps, "split_positions": splits}


def main(file):
    global utils
    utils = load(file)
    directory = DATA / "dfloat11_encode"
    directory.mkdir(exist_ok=True)
    found = filter(None, (quietly(encoded, values) for values in streams()))
    for name, cases in [("codes", codes()), ("streams", found)]:
        tensors = {f"{i}.{key}": t.contiguous() for i, case in enumerate(cases) for key, t in case.items()}
        save_file(tensors, directory / f"{name}.safetensors", {"format": "pt"})
        print(name, sum(t.numel() * t.element_size() for t in tensors.values()))


if __name__ == "__main__":
    main(sys.argv[1])

"""Golden casts of plain floats: what torch's `.to()` makes of them.

    pip install torch==2.6.0 safetensors==0.8.0 numpy
    python cast.py

It rewrites ../cast/*. `input.safetensors` has values that decide a rounding, subnormals, infinities and NaN, and integers and
booleans, which no cast touches; no finite value of it is infinite in another type. `overflow.safetensors` has finite values beyond
the range of F16, BF16 or F32. `expected-TYPE.safetensors` and `expected-overflow-TYPE.safetensors` hold the casts: of
the second, with the finite values clamped first.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent.parent / "cast"
TARGETS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def values(generator, count):
    """F32 of all magnitudes that F16 has, and ties of F16 and BF16."""
    bits = torch.randint(0, 2**31, (count,), generator=generator, dtype=torch.int64)
    exponent = torch.randint(127 - 30, 127 + 15, (count,), generator=generator, dtype=torch.int64)
    low = torch.tensor([0, 0x1000, 0x2FFF, 0x3000, 0x8000, 0x18000, 0x1001, 0xFFFF])[torch.arange(count) % 8]
    bits = (bits & 0x7E0000) | (exponent << 23) | low
    out = bits.to(torch.int32).view(torch.float32)
    return torch.where(torch.arange(count) % 3 == 0, -out, out)


def main():
    HERE.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(20)
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 65504.0, 65519.99, 6e-8, 2.98e-8, 1e-40, -1e-45])
    single = torch.cat([values(generator, 7 * 33 - len(special)), special]).reshape(7, 33)
    # Beyond F32's last place, so that the first rounding decides the second.
    double = torch.cat([values(generator, 200).double() * (1 + 2.0**-30), special.double()])
    plain = {
        "single": single,
        "double": double,
        "ties": torch.tensor([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-24], dtype=torch.float64),
        "half": single.clamp(-60000, 60000).to(torch.float16),
        "brain": single.clamp(-60000, 60000).to(torch.bfloat16),
        "scalar": torch.tensor(0.1),
        "empty": torch.zeros(0, 3),
    }
    others = {
        "integers": torch.tensor([2**53 + 1, -1]),
        "flags": torch.tensor([True, False]),
        "bytes": torch.tensor([1, 255], dtype=torch.uint8),
    }
    save_file(plain | others, HERE / "input.safetensors")
    over = {
        "single": torch.tensor([1.0, 65520.0, -65536.0, 1e30, -3.4e38, 3.4028e38, float("inf"), float("nan")]),
        "double": torch.tensor([1.0, 1e39, -1e300, 3.5e38, 70000.0, -float("inf"), float("nan")], dtype=torch.float64),
        "brain": torch.tensor([1.0, 65536.0, -3e38, float("inf")], dtype=torch.bfloat16),
    }
    save_file(over, HERE / "overflow.safetensors")
    for name, dtype in TARGETS.items():
        save_file({key: value.to(dtype) for key, value in plain.items()} | others, HERE / f"expected-{name}.safetensors")
        largest = torch.finfo(dtype).max
        # Clamped in F64, for the largest BF16 is no F16; then cast as torch casts.
        clamped = {
            key: torch.where(value.isinf(), value.to(dtype), over[key].double().clamp(-largest, largest).to(dtype))
            for key, value in over.items()
        }
        save_file(clamped, HERE / f"expected-overflow-{name}.safetensors")


main()

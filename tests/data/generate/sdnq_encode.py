"""Golden encodings by sdnq 0.2.8 on the CPU, without torch.compile: `sdnq_quantize_layer_weight` of an `nn.Linear`.

Usage: see ../README.md. Writes ../sdnq_encode/<case>.safetensors: `original`, and what sdnq stores of it as module `m`.
"""

import json
import os
import sys
from pathlib import Path

os.environ["SDNQ_USE_TORCH_COMPILE"] = "0"

import torch
from sdnq.quantizer import SDNQConfig, sdnq_quantize_layer_weight

from int_encode import BF16, F16, F32, LABEL, rng_for, save, weights

OUT = Path(__file__).resolve().parent.parent / "sdnq_encode"


def case(name, shape, dtype, codes, group=0, spread=None):
    w = weights(rng_for(name), *shape, dtype)
    if spread is not None:  # ordinary weights
        w = (torch.randn(shape, generator=rng_for(name)) * spread).to(dtype)
    _, stored = sdnq_quantize_layer_weight(w.clone(), "Linear", weights_dtype=codes, group_size=group, torch_dtype=dtype)
    stored = {f"m.{k}": v for k, v in stored.items() if v is not None}
    config = SDNQConfig(weights_dtype=codes, group_size=group, modules_to_not_convert=["lm_head.weight"]).to_dict()
    encoder = dict(method="sdnq", dtype=codes, group=group or None)
    save(OUT, name, w, stored, encoder, json.loads(json.dumps(config)), "sdnq 0.2.8")


def main():
    OUT.mkdir(exist_ok=True)
    for path in OUT.iterdir():
        path.unlink()
    order = [BF16, F16, F32]
    dtypes = [f"{kind}{bits}" for bits in range(2, 9) for kind in ("int", "uint")] + ["float8_e4m3fn"]
    for i, codes in enumerate(dtypes):
        label, bits = codes.removesuffix("_e4m3fn"), int(codes.removesuffix("_e4m3fn")[-1])
        dtype = order[i % 3]
        case(f"{label}_g32_{LABEL[dtype]}", (24, 64), dtype, codes, 32)
        case(f"{label}_f32", (20, 24), F32, codes, 12)
        # The library's choice: groups of 4 << bits, fewer and longer ones, and one for a row.
        case(f"{label}_auto", (2, 12 << bits), BF16, codes, 0, 0.02)
        case(f"{label}_longer", (2, (9 << bits) + 4 * (bits % 2)), BF16, codes, 0, 0.02)
        case(f"{label}_row", (8, 27), F16, codes, 0, 1.0)
        case(f"{label}_short", (8, 90), BF16, codes, 18, 0.1)
    print(sum(f.stat().st_size for f in OUT.iterdir()), "bytes in", len(list(OUT.iterdir())), "files")


if __name__ == "__main__":
    sys.exit(main())

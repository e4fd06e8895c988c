"""Big-endian files as gguf-py writes them on a little-endian machine: BF16 and blocks stay little-endian.

    python gguf_big_endian.py        (gguf 0.19.0, numpy 2.4.6)

convert_hf_to_gguf.py --bigendian writes such files. Random weights, seed 1.
"""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFEndian, GGUFWriter, quantize

OUT = Path(__file__).parent.parent / "gguf-big-endian"

OUT.mkdir(exist_ok=True)
for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0"):
    kind = GGMLQuantizationType[name]
    weights = np.random.default_rng(1).standard_normal((16, 64)).astype(np.float32)
    writer = GGUFWriter(OUT / f"{name.lower()}.gguf", "llama", endianess=GGUFEndian.BIG)
    writer.add_tensor("weight", quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

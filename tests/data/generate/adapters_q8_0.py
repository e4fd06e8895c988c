"""An adapter in Q8_0 as llama.cpp's converter writes it, and the F32 values of its factors.

    python convert_lora_to_gguf.py --base adapters/base --outtype q8_0 --outfile adapters/plain-q8_0.gguf adapters/plain
    python adapters_q8_0.py adapters        (gguf 0.19.0)
"""

import sys
from pathlib import Path

from gguf import GGUFReader, GGUFWriter, dequantize

folder = Path(sys.argv[1])
reader = GGUFReader(folder / "plain-q8_0.gguf")
writer = GGUFWriter(folder / "plain-q8_0-f32.gguf", "llama")
for key in ("general.type", "adapter.type"):
    writer.add_string(key, reader.fields[key].contents())
writer.add_float32("adapter.lora.alpha", reader.fields["adapter.lora.alpha"].contents())
for tensor in reader.tensors:
    writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype("float32"))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

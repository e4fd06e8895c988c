"""Golden files of convert_to_quant: FP8 with a scale for each row, FP8 and INT8 with a scale for each square, MXFP8 with a scale
for GPUs that have none, in ComfyUI's form.

Run: `PYTHONPATH=<convert_to_quant> python comfy_squares.py` (see ../README.md). It rewrites `../comfy_squares/*`. The layouts of
`convert_to_quant/comfy/quant_ops.py` quantize and decode on the CPU; descriptions are its `create_comfy_quant_tensor`'s.
"""

import json
import shutil
import tempfile

import torch
from convert_to_quant.comfy.quant_ops import BlockWiseFP8Layout, BlockWiseINT8Layout, RowWiseFP8Layout
from convert_to_quant.converters.mxfp8_converter import MXFP8Converter
from convert_to_quant.formats.hybrid_mxfp8_conversion import convert_to_hybrid_mxfp8
from convert_to_quant.utils.comfy_quant import create_comfy_quant_tensor
from fp8 import BF16, DATA, F32
from modelcase import ModelCase, total
from safetensors.torch import load_file, save_file

P = "model.diffusion_model.blocks.0."


def layer(c, stem, layout, form, shape, block=None, stated=True):
    """A weight of `shape` in squares of `block`, or in rows. `stated`: whether the description has the size."""
    w = c.randn(*shape, scale=0.05).to(BF16)
    options = {"block_size": block, "is_weight": True} if block else {}
    codes, params = layout.quantize(w, **options)
    want = layout.dequantize(codes, **params | {"orig_dtype": F32})
    assert want.dtype == F32 and (want - w.float()).abs().max() < 0.02
    if c.descriptions is None:
        marker = create_comfy_quant_tensor(form, block_size=block if stated else None)
        c.add({f"{P}{stem}.comfy_quant": marker})
    else:
        c.descriptions[P + stem] = {"format": form} | ({"group_size": block} if block and stated else {})
    c.add({f"{P}{stem}.weight": codes, f"{P}{stem}.weight_scale": params["scale"]})
    c.add({f"{P}{stem}.input_scale": torch.tensor(1.0)})
    c.expect(f"{P}{stem}.weight", want)
    c.keep(f"{P}{stem}.bias", c.randn(shape[0], scale=0.1).to(BF16))


def case(name, in_metadata):
    c = ModelCase("comfy_squares", name)
    c.descriptions = {} if in_metadata else None
    layer(c, "row", RowWiseFP8Layout, "float8_e4m3fn_rowwise", (6, 24))
    layer(c, "square", RowWiseFP8Layout, "float8_e4m3fn_rowwise", (8, 8))
    layer(c, "fp8", BlockWiseFP8Layout, "float8_e4m3fn_blockwise", (16, 24), 8)
    layer(c, "fp8_default", BlockWiseFP8Layout, "float8_e4m3fn_blockwise", (64, 128), 64, in_metadata)
    layer(c, "int8", BlockWiseINT8Layout, "int8_blockwise", (24, 16), 8)
    layer(c, "int8_one", BlockWiseINT8Layout, "int8_blockwise", (16, 16), 16)
    c.keep(f"{P}norm.weight", c.randn(8).to(BF16))
    if in_metadata:
        c.metadata["_quantization_metadata"] = json.dumps({"format_version": "1.0", "layers": c.descriptions})
    c.write()


def hybrid():
    """The tool itself makes a file of `mxfp8` one of `hybrid_mxfp8`."""
    c = ModelCase("comfy_squares", "hybrid_mxfp8")
    converter, layers = MXFP8Converter(), {}
    for stem, shape in (("q", (32, 64)), ("up", (160, 32))):
        w = c.randn(*shape, scale=0.05)
        codes, scales = converter.quantize(w)
        c.expect(f"{P}{stem}.weight", converter.dequantize(codes, scales, output_dtype=F32))
        layers |= {f"{P}{stem}.weight": codes, f"{P}{stem}.weight_scale": scales.view(torch.uint8),
                   f"{P}{stem}.comfy_quant": create_comfy_quant_tensor("mxfp8")}
    with tempfile.TemporaryDirectory() as tmp:
        save_file(layers, f"{tmp}/in.safetensors")
        convert_to_hybrid_mxfp8(f"{tmp}/in.safetensors", f"{tmp}/out.safetensors")
        c.add(load_file(f"{tmp}/out.safetensors"))
    assert any(name.endswith(".weight_scalar") for name in c.tensors)
    c.keep(f"{P}norm.weight", c.randn(8).to(BF16))
    c.write()


if __name__ == "__main__":
    shutil.rmtree(DATA / "comfy_squares", ignore_errors=True)
    case("markers", False)
    case("metadata", True)
    hybrid()
    total("comfy_squares")

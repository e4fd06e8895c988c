"""Golden FP-Quant layers: quantized by the exporter of FP-Quant and by fp_quant 0.3.2's own kernels, decoded by qutlass's reference.

Run: `TRITON_INTERPRET=1 python fp_quant_cases.py FP-QUANT QUTLASS`, with checkouts of both repositories (see ../README.md).

Codes and scales come from FP-Quant's `Quantizer` and `pack_fp4_to_uint8`, rotated weights in floats from fp_quant's Triton
kernels, which the interpreter runs. The values of codes are those of `_dq_fp4` of qutlass's tests, in F64; they are multiplied
by the stored matrix and divided by the global scale in F64, and rounded once. `library-f32.safetensors` is what a layer computes of single inputs, rotated, in F32.
"""

import ast
import importlib
import sys
import types
from pathlib import Path

import fp_quant.module.pseudoquant_linear_fns as pseudo
import torch
from fp_quant import FPQuantDtype
from fp_quant.module.linear import get_gsr_matrix, get_hadamard_matrix, get_identity_matrix
from fp_quant.module.triton import mxfp4, nvfp4
from safetensors.torch import save_file

from modelcase import BF16, F16, F32, ModelCase, total

MATRICES = {"hadamard": get_hadamard_matrix, "gsr": get_gsr_matrix, "identity": get_identity_matrix}
BLOCKS = {"mxfp4": 32, "nvfp4": 16}
DTYPES = {"mxfp4": torch.float8_e8m0fnu, "nvfp4": torch.float8_e4m3fn}


class Untuned:
    """A kernel with one block size: the interpreter has no clock to tune others by."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, _):
        def run(**arguments):
            blocks = -(-arguments["n_elements"] // 1024)
            self.kernel[(blocks,)](**arguments, BLOCK_SIZE=1024)

        return run


class Case(ModelCase):
    def __init__(self, name, forward, init="hadamard", size=32, method="abs_max", config=True, **flags):
        settings = {
            "quant_method": "fp_quant", "forward_dtype": forward, "forward_method": method, "backward_dtype": "bf16",
            "hadamard_group_size": size, "transform_init": init, "modules_to_not_convert": ["lm_head"],
            "store_master_weights": False, "pseudoquantization": False, **flags,
        }
        super().__init__("fp_quant", name, {"model_type": "llama", "quantization_config": settings} if config else None)
        self.forward, self.matrix, self.size, self.library = forward, MATRICES[init], size, {}
        self.method = method

    def parts(self, name, scale, dtype):
        matrix = self.matrix(self.size, dtype, "cpu")
        self.add({
            f"{name}.forward_hadamard_matrix": matrix, f"{name}.backward_hadamard_matrix": matrix.clone(),
            f"{name}.weight_global_scale": scale, f"{name}.act_global_scale": scale.clone(),
        })
        return matrix

    def decoded(self, name, rotated, matrix, scale):
        """The weight of a layer that multiplies inputs, times the matrix, by `rotated`, and divides by `scale`."""
        groups = rotated.double().unflatten(1, (-1, self.size))
        self.expect(f"{name}.weight", ((groups @ matrix.double().T).flatten(1) / scale.double()).float())
        inputs = torch.eye(rotated.shape[1]).unflatten(1, (-1, self.size)) @ matrix.float()
        outputs = torch.nn.functional.linear(inputs.flatten(1), rotated.float()) * (1.0 / scale.float())
        self.library[f"{name}.weight"] = outputs.T.contiguous()

    def layer(self, name, n, k, dtype=BF16, padded=0, scale=None, hostile=False):
        block = BLOCKS[self.forward]
        weight = self.randn(n, k) * (0.05 + torch.rand(n, 1, generator=self.rng))
        matrix = self.matrix(self.size, dtype, "cpu")
        weight = (weight.unflatten(1, (-1, self.size)) @ matrix.float()).flatten(1)
        precision = {"mxfp4": "e8m0", "nvfp4": "e4m3"}[self.forward]
        format = {"mxfp4": "mxfp", "nvfp4": "nvfp"}[self.forward]
        quantizer = Quantizer(4, format=format, granularity="group", group_size=block, scale_precision=precision)
        scales, zeros = quantizer.get_quantization_params(weight)
        codes = ops.pack_fp4_to_uint8(quantizer.quantize(weight, scales, zeros))
        if scale is None:
            scale = quantizer.global_scale
        stored = ops.cast_scales_to_eXmY(scales * quantizer.global_scale, precision)
        if hostile:
            codes = self.all_bytes(n, k // 2)
            flat = stored.flatten()
            odd = {"mxfp4": [0, 1, 254, 253, 255], "nvfp4": [0, 1, 7, 8, 0x7E, 0x7F, 0x80, 0xFE, 0xFF]}[self.forward]
            flat[: len(odd)] = torch.tensor(odd, dtype=torch.uint8)
        self.add({f"{name}.qweight": codes, f"{name}.scales": torch.cat([stored, self.bytes(padded, k // block)])})
        self.parts(name, scale.to(F32 if scale.dtype == F32 else dtype), dtype)
        dq, _, _ = dequantize[self.forward](codes, stored.view(DTYPES[self.forward]), 1.0)
        self.decoded(name, dq, matrix, scale)
        if hostile:
            del self.library[f"{name}.weight"]

    def pseudo(self, name, n, k, dtype):
        value = {("mxfp4", "quest"): 1.0, ("mxfp4", "abs_max"): 3.0}.get((self.forward, self.method), 10.0)
        matrix = self.parts(name, torch.tensor([value], dtype=dtype), dtype)
        weight = self.randn(n, k).to(F32)
        kind = {"mxfp4": FPQuantDtype.MXFP4, "nvfp4": FPQuantDtype.NVFP4}[self.forward]
        scale = torch.tensor([value])
        dq, _ = pseudo.forward_pseudoquantize(weight, matrix.float(), scale, kind, self.method)
        dq = dq.to(dtype)
        self.add({f"{name}.dqweight": dq})
        self.decoded(name, dq, matrix, torch.ones(1))

    def write(self):
        super().write()
        if self.library:
            save_file(self.library, self.dir / "library-f32.safetensors", {"format": "pt"})


def function(file, name):
    tree = ast.parse(Path(file).read_text())
    nodes = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    found = {"torch": torch}
    exec(compile(ast.Module(nodes, []), str(file), "exec"), found)
    return found[name]


def main(exporter, qutlass):
    global Quantizer, ops, dequantize
    for name in ["src", "src.quantization"]:  # without what their `__init__` imports, which needs GPUs
        module = types.ModuleType(name)
        module.__path__ = [str(Path(exporter) / name.replace(".", "/"))]
        sys.modules[name] = module
    ops = importlib.import_module("src.quantization.quant_ops")
    Quantizer = importlib.import_module("src.quantization.quantizer").Quantizer
    tests = Path(qutlass) / "tests"
    dequantize = {forward: function(tests / f"{forward}_test.py", "_dq_fp4") for forward in BLOCKS}
    for module in [mxfp4, nvfp4]:
        name = f"{module.__name__.rsplit('.')[-1]}_forward_kernel"
        setattr(module, name, Untuned(getattr(module, name).fn))

    case = Case("mxfp4", "mxfp4")
    case.layer("model.layers.0.self_attn.q_proj", 24, 96)
    case.layer("model.layers.0.mlp.down_proj", 8, 160, F16)
    case.keep("model.layers.0.self_attn.q_proj.bias", case.randn(24, scale=0.02).to(BF16))
    case.keep("lm_head.weight", case.randn(8, 16).to(BF16))
    case.write()

    case = Case("mxfp4_quest_gsr", "mxfp4", "gsr", 128, "quest")
    case.layer("l.up_proj", 20, 128, padded=108, scale=torch.ones(1, dtype=BF16))
    case.write()

    case = Case("nvfp4", "nvfp4", size=16)
    case.layer("l.up_proj", 24, 80)
    case.layer("l.gate_proj", 16, 48, scale=torch.tensor([10.0], dtype=BF16))
    case.write()

    case = Case("nvfp4_gsr", "nvfp4", "gsr", 64, config=False)
    case.layer("l.up_proj", 12, 128, F32)
    case.write()

    case = Case("nvfp4_identity", "nvfp4", "identity", 16)
    case.layer("l.up_proj", 16, 64)
    case.write()

    case = Case("mxfp4_hostile", "mxfp4")
    case.layer("l.up_proj", 12, 128, hostile=True)
    case.write()

    case = Case("nvfp4_hostile", "nvfp4", "gsr", 32)
    case.layer("l.up_proj", 12, 128, hostile=True)
    case.write()

    case = Case("pseudo_mxfp4", "mxfp4", "gsr", 32, "quest", pseudoquantization=True)
    case.pseudo("l.up_proj", 16, 96, BF16)
    case.write()

    case = Case("pseudo_nvfp4", "nvfp4", size=64, pseudoquantization=True)
    case.pseudo("l.up_proj", 8, 192, F16)
    case.write()

    case = Case("master", "mxfp4", store_master_weights=True)
    case.parts("l.up_proj", torch.ones(1, dtype=BF16), BF16)
    case.keep("l.up_proj.weight", case.randn(8, 64).to(BF16))
    case.write()
    total("fp_quant")


if __name__ == "__main__":
    main(*sys.argv[1:])

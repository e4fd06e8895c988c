"""Golden HIGGS layers: quantized by transformers' `quantize_with_higgs`, packed by FLUTE's own functions, which are plain torch.

Run: `python higgs_cases.py FLUTE`, with a checkout of FLUTE (see ../README.md). Only the choice of a kernel, which takes times on a
GPU, is replaced: `tune_and_pack` packs for the template that a case names. The values of codes are those of
`vector_dequantize_higgs` of FLUTE's tests, in F32; rows are multiplied by the Hadamard matrix over the root of its size in F64, and
rounded once.
"""

import ast
import importlib.util
import sys
import types
from pathlib import Path

import torch
import transformers.integrations.higgs as higgs

from gptq import HOSTILE
from modelcase import BF16, F16, F32, ModelCase, total

MULTIPROCESSORS = 108


def hadamard(values, scale):
    """`hadamard_transform` of fast_hadamard_transform, which runs on GPUs alone: its reference multiplies by this matrix."""
    matrix = torch.ones(1, 1, dtype=values.dtype)
    while matrix.shape[0] < values.shape[-1]:
        matrix = torch.kron(torch.tensor([[1, 1], [1, -1]], dtype=values.dtype), matrix)
    return values @ matrix * scale


class Case(ModelCase):
    def __init__(self, name, bits, p, size, group, **settings):
        self.settings = {
            "quant_method": "higgs", "bits": bits, "p": p, "hadamard_size": size, "group_size": group,
            "modules_to_not_convert": ["lm_head"], "tune_metadata": {}, **settings,
        }
        super().__init__("higgs", name, {"model_type": "llama", "quantization_config": self.settings})

    def layer(self, name, n, k, template, dtype=F16, hostile=False, bias=False):
        given = {}

        def tune_and_pack(inputs, weight, num_bits, group_size, check_correctness):
            packed = flute.utils.pack(weight, num_bits, [template], MULTIPROCESSORS)
            given["metadata"] = {
                "M": inputs.shape[0], "N": weight.shape[1], "K": weight.shape[0], "num_bits": num_bits, "group_size": group_size,
                "num_sms": MULTIPROCESSORS, "dtype": str(inputs.dtype), "device": "cuda:0", "template_id": template,
            }
            return packed, types.SimpleNamespace(to_dict=lambda: given["metadata"])

        def prepare(codes, scales, grid, **options):
            # Groups of a block have scales of their own, as a quantizer may give them that looks for better ones.
            scales = scales * (1 + torch.rand(scales.shape, generator=self.rng)).to(scales.dtype)
            if hostile:
                numbers = torch.tensor(HOSTILE[F16]).to(torch.int16).view(F16)
                scales.view(-1)[: len(numbers)] = numbers
                codes = self.all_bytes(*codes.shape)
            given.update(codes=codes, scales=scales, grid=grid)
            return flute.integrations.higgs.prepare_data_transposed(codes, scales, grid, **options)

        flute.tune.tune_and_pack = tune_and_pack
        higgs.prepare_data_transposed, higgs.hadamard_transform = prepare, hadamard
        weight = (self.randn(n, k) * (0.05 + torch.rand(n, 1, generator=self.rng))).to(dtype)
        size = self.settings["hadamard_size"]
        stored = higgs.quantize_with_higgs(weight, self.settings["bits"], self.settings["p"], self.settings["group_size"], size)
        self.settings["tune_metadata"][name] = stored.pop("tune_metadata").to_dict()
        self.add({f"{name}.{key}": value for key, value in stored.items()})
        rotated = dequantize(given["codes"].int(), given["scales"].to(F32), given["grid"].to(F32))
        blocks = rotated.double().unflatten(1, (-1, size))
        self.expect(f"{name}.weight", hadamard(blocks, size**-0.5).flatten(1).float())
        if not hostile:
            found = self.expected[f"{name}.weight"]
            assert torch.cosine_similarity(found.flatten(), weight.to(F32).flatten(), 0) > 0.85
        if bias:
            self.keep(f"{name}.bias", self.randn(n).to(dtype))


def function(file, name):
    tree = ast.parse(file.read_text())
    found = {"torch": torch}
    nodes = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    exec(compile(ast.Module(nodes, []), str(file), "exec"), found)
    return found[name]


def load_flute(root):
    """FLUTE's modules without its compiled ones."""
    def package(name):
        sys.modules[name] = types.ModuleType(name)
        return sys.modules[name]

    def module(name, file):
        spec = importlib.util.spec_from_file_location(name, Path(root) / file)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
        return sys.modules[name]

    flute = package("flute")
    flute.__path__ = []
    flute.qgemm = None
    flute.TEMPLATE_CONFIGS = torch.load(Path(root) / "flute/data/qgemm_kernel_raw_generated_configs.pth", weights_only=True)
    flute.tune = package("flute.tune")
    flute.tune.TuneMetaData = None
    flute.packbits_utils = module("flute.packbits_utils", "flute/packbits_utils.py")
    flute.utils = module("flute.utils", "flute/utils.py")
    flute.integrations = package("flute.integrations")
    flute.integrations.__path__ = []
    flute.integrations.higgs = module("flute.integrations.higgs", "flute/integrations/higgs.py")
    for (bits, template), config in flute.TEMPLATE_CONFIGS.items():  # what src/scheme/higgs.rs has as a formula
        tile = template // (16 if bits == 4 else 4) % 3
        assert config["TileP"] == (64 if tile == 0 else 32), (bits, template)
    return flute


def main(root):
    global flute, dequantize
    flute = load_flute(root)
    dequantize = function(Path(root) / "tests/higgs.py", "vector_dequantize_higgs")

    case = Case("4bit", 4, 2, 128, 64)
    case.shards = 2
    case.layer("model.layers.0.self_attn.q_proj", 128, 128, 16, bias=True)
    case.norm(128)
    case.keep("lm_head.weight", case.randn(8, 16).to(F16))
    case.write()
    case = Case("4bit_wide", 4, 2, 64, 64)
    case.layer("l.up_proj", 256, 64, 48, BF16)
    case.write()
    case = Case("4bit_single", 4, 1, 64, 64)
    case.layer("l.up_proj", 256, 64, 143)  # two tiles of rows
    case.write()
    case = Case("3bit", 3, 2, 64, 64)
    case.layer("l.up_proj", 1024, 64, 35)  # two tiles of rows
    case.write()
    case = Case("2bit", 2, 2, 64, 64)
    case.layer("l.up_proj", 256, 64, 4)
    case.write()
    case = Case("hostile", 4, 2, 64, 64)
    case.layer("l.up_proj", 128, 128, 35, hostile=True)
    case.write()
    total("higgs")


if __name__ == "__main__":
    main(*sys.argv[1:])

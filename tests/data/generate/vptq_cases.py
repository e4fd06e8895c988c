"""Golden VPTQ layers, decoded in F32 by two libraries on CPU: vptq's `dequant` and gptqmodel's `VPTQLinear.dequantize`.

Run: `python vptq_cases.py <unpacked wheel of vptq 0.0.5.post1> gptqmodel-7.7.0` (see ../README.md). Both libraries import much
that decoding does not need: their files are loaded alone, and what they import besides is empty.

vptq's own unpacking has the mask of codes for those of the second codebook, too, and loses bits if those have more. Such a
layer is decoded by gptqmodel alone.
"""

import importlib.util
import math
import sys
import types
from pathlib import Path

import torch

from gptq import HOSTILE
from modelcase import BF16, F16, F32, ModelCase, total


class Anything(types.ModuleType):
    """A module every name of which is an empty class."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), dict.fromkeys("VPTQ VPTQ_TORCH ALL".split()))


class Base(torch.nn.Module):
    """What `WeightOnlyQuantLinear` keeps of its arguments."""

    def __init__(self, **kwargs):
        super().__init__()
        self.bits, self.in_features, self.out_features = (kwargs[key] for key in ("bits", "in_features", "out_features"))


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_libraries(vptq, gptqmodel):
    global pack_index, dequant, VPTQLinear, pack_vptq_indices
    for name in ["accelerate", "tqdm", "sentence_transformers", "sentence_transformers.SentenceTransformer", "vptq", "vptq.utils"]:
        sys.modules[name] = Anything(name)
    pack_index = load("vptq.utils.pack", Path(vptq) / "vptq/utils/pack.py").pack_index
    dequant = load("vptq.ops.quant_gemm", Path(vptq) / "vptq/ops/quant_gemm.py").dequant
    for name in ["", ".adapter", ".adapter.adapter", ".models", ".models._const", ".quantization", ".utils", ".utils.backend",
                 ".utils.logger", ".utils.torch", ".nn_modules", ".nn_modules.qlinear"]:
        sys.modules["gptqmodel" + name] = Anything("gptqmodel" + name)
    sys.modules["gptqmodel.nn_modules.qlinear"].WeightOnlyQuantLinear = Base
    sys.modules["gptqmodel.utils.logger"].setup_logger = lambda: None
    source = Path(gptqmodel) / "gptqmodel"
    pack_vptq_indices = load("gptqmodel.utils.vptq", source / "utils/vptq.py").pack_vptq_indices
    path = source / "nn_modules/qlinear/vptq_torch.py"
    VPTQLinear = load("gptqmodel.nn_modules.qlinear.vptq_torch", path).VPTQLinear


class Case(ModelCase):
    def __init__(self, name, config):
        super().__init__("vptq", name, config)

    def numbers(self, *shape, hostile=False, dtype=F16):
        values = self.randn(*shape, scale=0.1).to(dtype)
        if hostile:
            found = torch.tensor(HOSTILE[F16]).to(torch.int16).view(F16)
            flat = values.view(-1)
            places = torch.randint(0, len(flat), (len(flat) // 8 + 9,), generator=self.rng)
            flat[places] = found[torch.randint(0, len(found), (len(places),), generator=self.rng)].to(dtype)
        return values

    def choose(self, count, *shape):
        codes = torch.randint(0, count, shape, generator=self.rng)
        codes.view(-1)[0], codes.view(-1)[-1] = count - 1, count // 2
        return codes

    def vptq(self, name, n, k, vector, entries, residual=-1, groups=1, outliers=0, outlier_entries=0, perm=True, norm=True,
             hostile=False):
        """A layer as Microsoft's library stores it; returns its part of the config."""
        size, down = (k - outliers) // groups, -(-n // vector)
        assert outliers + groups * size == k
        numbers = lambda *shape: self.numbers(*shape, hostile=hostile)
        codes = self.choose(entries, groups, down, size).to(torch.uint16)
        second = self.choose(residual, groups, down, size).to(torch.uint16) if residual > 0 else None
        bits, more = int(math.log2(entries)), int(math.log2(residual)) if residual > 0 else 0
        assert more <= bits
        parts = {"indices": pack_index(codes, bits, second, more), "centroids.weight": numbers(groups, entries * vector)}
        if residual > 0:
            parts["res_centroids.weight"] = numbers(groups, residual * vector)
        if outliers:
            parts["outlier_indices"] = self.choose(outlier_entries, 1, down, outliers).to(torch.uint16).view(torch.int16)
            parts["outlier_centroids.weight"] = numbers(1, outlier_entries * vector)
        if perm:
            parts["perm"] = torch.randperm(k, generator=self.rng).to(torch.uint16).view(torch.int16)
        if norm:
            parts |= {"weight_scale": numbers(k), "weight_bias": numbers(k)}
        self.add({f"{name}.{part}": tensor for part, tensor in parts.items()})
        wide = lambda part, *shape: parts[part].to(F32).view(shape) if part in parts else None
        weight = dequant(
            indices=parts["indices"], centroids=wide("centroids.weight", groups, entries, vector),
            outlier_indices=parts.get("outlier_indices"),
            outlier_centroids=wide("outlier_centroids.weight", 1, outlier_entries, vector), res_indices=None,
            res_centroids=wide("res_centroids.weight", groups, residual, vector), perm=parts.get("perm"),
            weight_scale=wide("weight_scale", k), weight_bias=wide("weight_bias", k), is_indice_packed=True,
            enable_outlier=outliers > 0, enable_residual=residual > 0, enable_perm=perm, enable_norm=norm,
            num_centroids=entries, num_outlier_centroids=outlier_entries, num_res_centroids=residual, padding=-n % vector,
            outlier_padding=-n % vector, num_codebooks=groups, group_size=size, outlier_size=outliers, vector_len=vector,
            outlier_vector_len=vector)
        assert weight.shape == (n, k) and weight.dtype == F32
        self.expect(f"{name}.weight", weight.contiguous())
        return {"bias": False, "enable_norm": norm, "enable_perm": perm, "group_num": groups, "group_size": size,
                "in_features": k, "indices_as_float": False, "is_indice_packed": True,
                "num_centroids": [outlier_entries or -1, entries], "num_res_centroids": [-1, residual], "out_features": n,
                "outlier_size": outliers, "vector_lens": [vector if outliers else -1, vector]}

    def gptqmodel(self, name, n, k, settings, dtype=F16):
        library = VPTQLinear(bits=2, in_features=k, out_features=n, dtype=dtype, **settings)
        for part in [part for part in library.state_dict() if part.endswith("centroids.weight")]:
            table = library.get_submodule(part.rpartition(".")[0])
            table.weight.data = self.numbers(*table.weight.shape, dtype=dtype)
        shape = (library.group_num, library.num_indices, library.group_size)
        codes = self.choose(library.num_centroids, *shape)
        more = {}
        if library.enable_residual:
            more = {"res_indices": self.choose(library.num_res_centroids, *shape), "res_bits": library.res_index_bits}
        library.indices = pack_vptq_indices(codes, library.index_bits, **more)
        if library.enable_outlier:
            chosen = self.choose(library.outlier_num_centroids, *library.outlier_indices.shape)
            library.outlier_indices = chosen.to(torch.int32)
        if library.enable_norm:
            size = library.weight_scale.shape
            library.weight_scale, library.weight_bias = self.numbers(*size, dtype=dtype), self.numbers(*size, dtype=dtype)
        if library.enable_perm:
            library.perm = torch.randperm(k, generator=self.rng).to(torch.int32)
        library._validate_loaded_state()
        parts = {f"{name}.{part}": tensor.clone() for part, tensor in library.state_dict().items()}
        self.add(parts)
        # The library computes in the dtype of the codebooks.
        for tensor in [*library.parameters(), *library.buffers()]:
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(F32)
        weight = library.dequantize()
        assert weight.shape == (n, k) and weight.dtype == F32
        self.expect(f"{name}.weight", weight.contiguous())


def model(quantization, **sizes):
    return {"model_type": "llama", **sizes, "quantization_config": {"quant_method": "vptq", **quantization}}


def of_gptqmodel(settings):
    return {"bits": 2, "quant_method": "vptq", "checkpoint_format": "vptq", "desc_act": False, "sym": True, **settings}


def main():
    case = Case("layers", None)
    case.shards = 2
    q_proj, down_proj, o_proj = (f"model.layers.0.{path}" for path in ("self_attn.q_proj", "mlp.down_proj", "self_attn.o_proj"))
    layers = {q_proj: case.vptq(q_proj, 44, 72, 8, 256, 64), down_proj: case.vptq(down_proj, 24, 56, 8, 512, norm=False),
              o_proj: case.vptq(o_proj, 20, 48, 6, 64, 64, groups=3, perm=False)}
    case.norm(72)
    case.config = model({"config_for_layers": layers})
    case.write()

    case = Case("outliers", None)
    shared = {"k_proj": case.vptq("model.layers.0.self_attn.k_proj", 30, 40, 4, 128, 16, groups=2, outliers=6, outlier_entries=50),
              "v_proj": case.vptq("model.layers.0.self_attn.v_proj", 16, 40, 16, 64, outliers=4, outlier_entries=16, norm=False)}
    case.config = model({"config_for_layers": {}, "shared_layer_config": shared})
    case.write()

    case = Case("hostile", None)
    case.config = model({"config_for_layers": {"l.0": case.vptq("l.0", 40, 64, 8, 256, 256, hostile=True)}})
    case.write()

    # The second codebook has more vectors; the last group has fewer inputs; a factor for each output.
    settings = {"vector_lens": [8, 8], "num_centroids": [32, 16], "num_res_centroids": [-1, 128], "group_size": 24, "group_num": -1,
                "npercent": 5.0, "enable_norm": True, "norm_dim": 0, "enable_perm": True}
    case = Case("gptqmodel", model(of_gptqmodel(settings)))
    case.gptqmodel("model.layers.0.self_attn.q_proj", 40, 64, settings)
    case.write()

    settings = {"vector_lens": [-1, 8], "num_centroids": [-1, 64], "num_res_centroids": [-1, -1], "group_size": -1, "group_num": -1,
                "npercent": 0, "enable_norm": True, "norm_dim": 1, "enable_perm": False}
    case = Case("gptqmodel_rows", model(of_gptqmodel(settings), hidden_size=44, num_attention_heads=4, intermediate_size=56))
    case.gptqmodel("model.layers.0.mlp.down_proj", 44, 56, settings, dtype=BF16)
    case.write()
    total("vptq")


if __name__ == "__main__":
    load_libraries(*sys.argv[1:])
    main()

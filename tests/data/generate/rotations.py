"""Golden models whose inputs are rotated when they run, by auto-round 0.16.1 and quark 0.13 (CPU), and gptqmodel 7.7.

Run: `python rotations.py` (see ../README.md). It rewrites `../rotations`.

The rotation R of a layer is what the library's hook makes of the identity. It must be, to F32, the matrix in F64 with which the
decoded weight is multiplied: a layer that computes `W (x R)` becomes `W Rᵀ`.
"""

import importlib.util
import math
import sys
import types

from dirs import DirCase
from fp8 import BF16, F16, F32

import torch

F64 = torch.float64


def hadamard(n):
    h = torch.ones(1, 1, dtype=F64)
    while h.shape[0] < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h


def blocks(matrix, k):
    """The matrix of all k inputs."""
    return torch.block_diag(*[matrix] * (k // matrix.shape[0]))


def rotated(c, name, weight, matrix, factor, hook=None):
    """Expects `weight` Rᵀ, R = factor matrix. `hook` rotates inputs as the library does."""
    k = weight.shape[1]
    if hook is not None:
        library = hook(torch.eye(k)).double()
        assert torch.allclose(library, blocks(matrix, k) * factor, atol=1e-6), (c.dir.name, name)
    # Sums of entries of 1 and -1 are exact before the factor. The sign of a zero depends on the order of sums: +0 here.
    value = (weight.double().unflatten(1, (-1, matrix.shape[0])) @ matrix.mT).flatten(1) * factor
    c.expect(name, value.float() + 0.0)


def config(method, **more):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": {"quant_method": method} | more}


# AutoRound.

MX = {"data_type": "mx_fp", "bits": 4, "group_size": 32, "sym": True, "packing_format": "auto_round:llm_compressor", "autoround_version": "0.16.1"}


def mxfp4(c, name, n, k):
    """[n, k] of codes and exponents as `qlinear_fp.QuantLinear.pack` stores them, and their values."""
    from auto_round.experimental import qmodules
    from auto_round.schemes import QuantizationScheme

    packed, exponents = c.bytes(n, k // 2), torch.randint(118, 130, (n, k // 32), generator=c.rng, dtype=torch.uint8)
    c.add({f"{name}.weight_packed": packed, f"{name}.weight_scale": exponents})
    act = {"act_bits": 4, "act_data_type": "mx_fp4", "act_group_size": 32, "act_sym": True, "act_dynamic": True}
    module = qmodules.MXFP4QuantLinear(k, n, QuantizationScheme(bits=4, group_size=32, sym=True, data_type="mx_fp4", **act))
    module.weight_packed, module.weight_scale = packed, exponents
    return module.dequant_weight_online().float()


def input_hook(layer, rotation):
    """What auto-round's hook makes of inputs of `layer`."""
    from auto_round.algorithms.transforms.hadamard.apply import _apply_input_transform
    from auto_round.algorithms.transforms.hadamard.config import RotationConfig

    before = set(layer._forward_pre_hooks)
    _apply_input_transform(layer, RotationConfig(block_size=rotation["block_size"], hadamard_type=rotation["hadamard_type"]), "nv_fp")
    (hook,) = [h for i, h in layer._forward_pre_hooks.items() if i not in before]
    return lambda x: hook(layer, (x,))


def auto_round_hadamard(name, block, kind="hadamard"):
    from auto_round.algorithms.transforms.hadamard.config import RotationConfig
    from auto_round.algorithms.transforms.hadamard.transforms import build_hadamard_transform

    rotation = RotationConfig(block_size=block, hadamard_type=kind).model_dump()
    c = DirCase("rotations", name, config("auto-round", rotation_config=rotation, **MX))
    for module, n, k in (("model.layers.0.mlp.up_proj", 8, 64), ("model.layers.0.mlp.down_proj", 4, 96)):
        weight = mxfp4(c, module, n, k)
        layer = torch.nn.Linear(k, n, bias=False)
        size = block or 32
        if kind == "hadamard":
            matrix, factor = hadamard(size), 1 / math.sqrt(size)
        else:
            torch.manual_seed(c.rng.initial_seed() % 2**31)
            made = build_hadamard_transform(**rotation, location="weight", device="cpu", precision=F32)
            layer.hadamard_matrix = made.weight.data
            c.add({f"{module}.hadamard_matrix": made.weight.data})
            matrix, factor = made.weight.data.double().mT, 1.0
        rotated(c, f"{module}.weight", weight, matrix, factor, input_hook(layer, rotation))
    c.keep("lm_head.weight", c.randn(8, 8).to(BF16))
    c.norm(8)
    c.write()


def words(c, name, n, k, group=32):
    """GPTQ's words of 4 bits, with zero points of 8."""
    q = torch.randint(0, 16, (n, k), generator=c.rng)
    scales = c.scales(k // group, n).half()
    shifts = torch.arange(0, 32, 4)
    qweight = (q.T.reshape(k // 8, 8, n) << shifts[None, :, None]).sum(1)
    zeros = torch.full((k // group, n // 8), 0x77777777, dtype=torch.int32)
    c.add({f"{name}.qweight": qweight.to(torch.int64).to(torch.uint32).view(torch.int32) if False else torch.from_numpy(
        qweight.numpy().astype("uint32").view("int32")), f"{name}.qzeros": zeros, f"{name}.scales": scales})
    return (q - 8).float() * scales.T.float().repeat_interleave(group, 1)


def spinquant():
    from auto_round.algorithms.transforms.spinquant import serialize
    from auto_round.algorithms.transforms.spinquant.rotation_utils import random_hadamard_matrix

    spin = {"algorithm": "spinquant", "r1": True, "r2": True, "r3": False, "r4": True, "online_r1_rotation": True, "rotation_size": None}
    more = {"bits": 4, "group_size": 32, "sym": True, "data_type": "int", "packing_format": "auto_round:auto_gptq", "autoround_version": "0.16.1"}
    c = DirCase("rotations", "ar_spinquant", config("auto-round", spinquant_config=spin, **more))
    torch.manual_seed(11)
    random = random_hadamard_matrix(32, device="cpu")
    trained = torch.linalg.qr(torch.randn(16, 16, dtype=F64))[0]
    layers = {
        "self_attn.q_proj": ("spinquant_r1", 64, False, False, None),
        "self_attn.k_proj": ("spinquant_r1", 32, True, False, random),
        "self_attn.v_proj": ("spinquant_r1", 16, False, True, trained),
        "mlp.gate_proj": ("spinquant_r1", 32, False, False, None),
        "mlp.up_proj": ("spinquant_r1", 64, False, False, None),
        "mlp.down_proj": ("spinquant_r4", 64, False, False, None),
        "self_attn.o_proj": None,
    }
    for name, spec in layers.items():
        module, n, k = f"model.layers.0.{name}", 8, 64
        weight = words(c, module, n, k)
        if spec is None:
            c.expect(f"{module}.weight", weight)
            continue
        prefix, size, is_random, is_trained, given = spec
        layer = torch.nn.Linear(k, n, bias=False)
        serialize._inject_rotation_buffers(layer, prefix, size, is_random, is_trained, given)
        c.add({f"{module}.{b}": t for b, t in layer.named_buffers()})
        matrix, factor = hadamard(size), 1 / math.sqrt(size)
        if is_random:
            matrix = layer.get_buffer(f"{prefix}_matrix").double()
        elif is_trained:
            matrix, factor = layer.get_buffer(f"{prefix}_matrix").double(), 1.0
        rotated(c, f"{module}.weight", weight, matrix, factor, lambda x: serialize._apply_rotation_from_buffer(layer, x, prefix))
    c.norm(8)
    c.write()


# Quark. Its package builds kernels when it is imported; the files of rotations need none.


def quark_rotations():
    root = importlib.util.find_spec("quark").submodule_search_locations[0] + "/torch/algorithm/rotation/"
    names = ["quark.torch", "quark.torch.algorithm", "quark.torch.algorithm.rotation", "quark.torch.algorithm.rotation.monkeypatch",
             "quark.torch.algorithm.utils", "quark.torch.algorithm.utils.utils"]
    for name in names:
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules[names[3]].add_wrapper_after_function_call_in_method = None
    sys.modules[names[5]].get_model_type_norm_constant = None
    for name in ("hadamard", "rotation_utils"):
        spec = importlib.util.spec_from_file_location(f"quark.torch.algorithm.rotation.{name}", root + name + ".py")
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def quark():
    lib = quark_rotations()
    algo = [{"name": "rotation", "r1": True, "r2": True, "r3": False, "r4": True, "online_r1_rotation": True, "rotation_size": None,
             "trainable": False}]
    fp8 = {"dtype": "fp8_e4m3", "is_dynamic": False, "qscheme": "per_tensor", "ch_axis": None, "group_size": None, "symmetric": True}
    more = {"algo_config": algo, "global_quant_config": {"weight": fp8}, "export": {"kv_cache_group": [], "pack_method": "reorder",
            "weight_format": "real_quantized"}, "quant_mode": "eager_mode"}
    c = DirCase("rotations", "quark", config("quark", **more))
    layers = {"self_attn.q_proj": (16, None), "self_attn.k_proj": (12, None), "mlp.up_proj": (48, None), "mlp.gate_proj": (8, F64),
              "mlp.down_proj": (16, BF16), "self_attn.o_proj": None}
    for name, spec in layers.items():
        module, n, k = f"model.layers.0.{name}", 8, 48
        codes, scale = c.randn(n, k, scale=30).to(torch.float8_e4m3fn), c.scales(1)[0].clone()
        c.add({f"{module}.weight": codes, f"{module}.weight_scale": scale})
        weight = codes.float() * scale
        if spec is None:
            c.expect(f"{module}.weight", weight)
            continue
        layer, (size, dtype) = torch.nn.Linear(k, n, bias=False), spec
        if dtype is None:
            wrapper = lib.InputRotationWrapperHadamard(layer, rotation_size=size)
        else:
            trained = torch.linalg.qr(c.randn(size, size).double())[0]
            wrapper = lib.InputRotationWrapperOrthogonal(layer, trained.to(dtype))
        c.add({f"{module}.input_rotation": wrapper.input_rotation})
        matrix = wrapper.input_rotation.double()
        rotated(c, f"{module}.weight", weight, matrix, 1 / math.sqrt(size) if dtype is None else 1.0, wrapper.transform)
    c.norm(8)
    c.write()


def gptqmodel():
    """`_setup_rotation_online_had` has `matmul_hadU` rotate all inputs of `mlp.down_proj`: Sylvester's matrix, of powers of two."""
    c = DirCase("rotations", "gptqmodel", config("gptq", bits=4, group_size=32, sym=True, desc_act=False, rotation="hadamard",
                                                 meta={"quantizer": ["gptqmodel:7.7.0"]}, checkpoint_format="gptq"))
    for name in ("self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"):
        module = f"model.layers.0.{name}"
        weight = words(c, module, 8, 64)
        if name == "mlp.down_proj":
            rotated(c, f"{module}.weight", weight, hadamard(64), 1 / 8)
        else:
            c.expect(f"{module}.weight", weight)
    c.norm(8)
    c.write()


def main():
    auto_round_hadamard("ar_hadamard", 32)
    auto_round_hadamard("ar_hadamard_default", None)
    auto_round_hadamard("ar_random_hadamard", 32, "random_hadamard")
    spinquant()
    quark()
    gptqmodel()


if __name__ == "__main__":
    main()

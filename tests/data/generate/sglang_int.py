"""Golden sglang checkpoints: blockwise INT8 and W4AFP8, decoded by sglang's own functions on CPU.

Run: `python sglang_int.py PATH`, with PATH the `sglang` of the wheel of 0.5.23 (see ../README.md). Its modules import kernels
of GPUs, so the functions are compiled alone.
"""

import ast
import sys
from pathlib import Path

import torch

from modelcase import BF16, F32, ModelCase, total

E4M3 = torch.float8_e4m3fn


def function(file, name):
    """A function of a module, without the module."""
    tree = ast.parse(Path(file).read_text())
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    names = {"torch": torch, "List": list, "Tuple": tuple}
    exec(compile(ast.Module([node], []), str(file), "exec"), names)
    return names[name]


def pack(codes):
    """Two's complement, low nibble first. sglang has its packer in a test alone (`test_cutlass_w4a8_moe_mm.py`,
    `pack_int4_values_to_int8`); it loads these bytes into the multiplication as they are."""
    return ((codes[..., 1::2] << 4) | (codes[..., 0::2] & 15)).to(torch.int8)


class Case(ModelCase):
    def int8(self, name, n, k, block, scale=None):
        codes = torch.randint(-128, 128, (n, k), generator=self.rng, dtype=torch.int8)
        tiles = [-(-n // block[0]), -(-k // block[1])]
        scale = self.scales(*tiles) if scale is None else scale
        self.add({f"{name}.weight": codes, f"{name}.weight_scale_inv": scale})
        self.expect(f"{name}.weight", block_dequant(codes, scale, block))

    def fp8(self, name, n, k):
        codes = self.all_bytes(n, k).view(E4M3)
        scale = self.scales(-(-n // 128), -(-k // 128))
        self.add({f"{name}.weight": codes, f"{name}.weight_scale_inv": scale})
        self.expect(f"{name}.weight", block_dequant(codes, scale, [128, 128]))

    def int4(self, name, n, k, lead=(), scale=None):
        codes = torch.randint(-8, 8, (*lead, n, k), generator=self.rng, dtype=torch.int8)
        codes.view(-1)[:16] = torch.arange(-8, 8, dtype=torch.int8)
        scale = self.scales(*lead, n, k // 128) if scale is None else scale
        self.add({f"{name}.weight": pack(codes), f"{name}.weight_scale_inv": scale})
        # As sglang's test refers to it, in F32.
        self.expect(f"{name}.weight", codes.to(F32) * scale.to(F32).repeat_interleave(128, dim=-1))

    def input_scale(self, name):
        self.add({f"{name}.input_scale": self.scales(1).to(BF16)})


def config(method, **more):
    return {"model_type": "deepseek_v3", "quantization_config": {"quant_method": method, "activation_scheme": "dynamic", **more}}


def hostile(*shape):
    values = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 3.4e38, -3.4e38, float("inf"), -float("inf"), float("nan"), 6e-8, 1 / 3])
    n = torch.tensor(shape).prod()
    return values.repeat(-(-n // len(values)))[:n].reshape(shape)


def main(sglang):
    global block_dequant
    block_dequant = function(Path(sglang) / "srt/layers/quantization/int8_utils.py", "block_dequant")
    blocks = {"weight_block_size": [128, 128]}

    case = Case("sglang", "int8_128", config("blockwise_int8", **blocks), shards=2)
    case.int8("model.layers.0.self_attn.kv_a_proj_with_mqa", 200, 256, [128, 128])
    case.int8("model.layers.0.mlp.experts.1.gate_proj", 128, 384, [128, 128])
    case.int8("model.layers.0.mlp.experts.1.down_proj", 256, 128, [128, 128])
    case.keep("model.layers.0.mlp.gate.weight", case.randn(4, 256).to(BF16))
    case.norm(256)
    case.write()

    case = Case("sglang", "int8_ragged", config("blockwise_int8", weight_block_size=[64, 32]))
    case.int8("lm_head", 100, 70, [64, 32])
    case.bias(100)
    case.write()

    case = Case("sglang", "int8_no_config")
    case.int8("l.q_proj", 300, 260, [128, 128])
    case.write()

    case = Case("sglang", "int8_hostile", config("blockwise_int8", weight_block_size=[16, 16]))
    case.int8("l.q_proj", 160, 48, [16, 16], hostile(10, 3))
    case.write()

    case = Case("sglang", "w4afp8", config("w4afp8"), shards=2)
    case.fp8("model.layers.0.self_attn.q_proj", 256, 128)
    for i in range(2):
        for name, n, k in (("gate_proj", 24, 256), ("up_proj", 24, 256), ("down_proj", 7, 128)):
            case.int4(f"model.layers.0.mlp.experts.{i}.{name}", n, k)
            case.input_scale(f"model.layers.0.mlp.experts.{i}.{name}")
    case.norm(256)
    case.write()

    case = Case("sglang", "w4afp8_hostile", config("w4afp8"))
    case.int4("l.experts.0.up_proj", 11, 384, scale=hostile(11, 3))
    case.int4("l.experts.1.up_proj", 5, 128, lead=(3,), scale=case.scales(3, 5, 1).to(BF16))
    case.write()
    total("sglang")


if __name__ == "__main__":
    main(sys.argv[1])

"""Golden encodings to FP8, MXFP4, MXFP8 and NVFP4, by the libraries that make such models.

    pip install torch==2.15.0 transformers==5.23.0 compressed-tensors==0.20.0 torchao==0.18.0 safetensors==0.8.0
    pip install --no-deps llmcompressor==0.14.0.1 nvidia-modelopt==0.47.0 comfy-kitchen==0.2.40
    python fp_encode.py [directory, and the number of random values in each of its cases]

It rewrites ../fp_encode/*.safetensors. A file has `weights` (the input, in BF16, F16 or F32), every tensor that is
stored of it, and in its metadata the `method` and the `name` of the weight. ggml's rule is `quantize_row_mxfp4_ref`
of the shared library GGML_ORACLE. Seeds are the CRC-32 of the case's name.

compressed-tensors' scales are those of llm-compressor's observer `memoryless_minmax`.
"""

import ctypes
import os
import sys
import zlib
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parent.parent / "fp_encode"
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


# Encoders: a matrix and the name of its tensor become what is stored.

def transformers(scale_fmt, block):
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    config = FineGrainedFP8Config(scale_fmt=scale_fmt)
    config.weight_block_size = block

    class Quantizer:
        quantization_config = config

    def encode(w, name):
        out = Fp8Quantize(Quantizer).convert({name: w})
        assert len(out) == 2, "the library leaves it as it is"
        return out

    return encode


def transformers_ragged(scale_fmt, block):
    """The tensor, padded with zeros to whole blocks: that is how their own files have edge blocks."""
    whole = transformers(scale_fmt, block)

    def encode(w, name):
        rows, cols = w.shape
        out = whole(torch.nn.functional.pad(w, (0, -cols % block[1], 0, -rows % block[0])), name)
        out[name] = out[name][:rows, :cols].contiguous()
        return out

    return encode


def compressed_tensors(preset, **weights):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.format import infer_module_format
    from compressed_tensors.quantization import preset_name_to_scheme
    from llmcompressor.observers import Observer

    def encode(w, name):
        scheme = preset_name_to_scheme(preset, ["Linear"])
        for key, value in weights.items():
            setattr(scheme.weights, key, value)
        observer = Observer.load_from_registry("memoryless_minmax", base_name="weight", args=scheme.weights)
        found = observer(w).get_qparams()
        # Parameters have the type of the weight, but for the scale of the tensor.
        state = {"weight": w.clone(), "weight_scale": found["scale"].to(w.dtype), "weight_zero_point": found["zero_point"]}
        if found["global_scale"] is not None:
            state["weight_global_scale"] = found["global_scale"]
        format = infer_module_format(torch.nn.Linear, scheme)
        out = BaseCompressor.get_value_from_registry(getattr(format, "value", format)).compress(state, scheme)
        return {name.removesuffix("weight") + key: value for key, value in out.items()}

    return encode


def comfy(dtype):
    from comfy_kitchen.tensor.fp8 import TensorCoreFP8Layout

    def encode(w, name):
        data, params = TensorCoreFP8Layout.quantize(w, dtype=dtype)
        text = '{"format": "%s"}' % str(dtype).removeprefix("torch.")
        description = torch.tensor(list(text.encode()), dtype=torch.uint8)
        return {name: data, name + "_scale": params.scale, name.removesuffix("weight") + "comfy_quant": description}

    return encode


def comfy_blocks(format):
    from comfy_kitchen.tensor.mxfp8 import TensorCoreMXFP8Layout
    from comfy_kitchen.tensor.nvfp4 import TensorCoreNVFP4Layout

    layout = {"nvfp4": TensorCoreNVFP4Layout, "mxfp8": TensorCoreMXFP8Layout}[format]

    def encode(w, name):
        data, params = layout.quantize(w)
        out = {name + end: tensor for end, tensor in layout.state_dict_tensors(data, params).items()}
        if format == "mxfp8":
            # Values under an exponent of 0, which decodes to 0: the library divides by 0, and has infinity and NaN.
            scale = w.float().abs().reshape(w.shape[0], -1, 32).amax(-1) / 448
            data.view(torch.uint8).reshape(w.shape[0], -1, 32)[scale <= 2.0**-127] = 0
        text = list(('{"format": "%s"}' % format).encode())
        out[name.removesuffix("weight") + "comfy_quant"] = torch.tensor(text, dtype=torch.uint8)
        return out

    return encode


def modelopt_nvfp4(w, name):
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    codes, scale, scale_2 = NVFP4QTensor.quantize(w.clone(), 16)
    return {name: codes._quantized_data, name + "_scale": scale, name + "_scale_2": scale_2}


def modelopt_mx(kind):
    def encode(w):
        from modelopt.torch.quantization.qtensor import MXFP4QTensor, MXFP8QTensor

        if kind == "mxfp4":
            codes, scale = MXFP4QTensor.quantize(w.clone(), 32)
        else:
            codes, scale = MXFP8QTensor.quantize(w.clone())
        return codes._quantized_data, scale.reshape(w.shape[0], -1)

    return encode


def torchao(kind, mode):
    def encode(w):
        from torchao.prototype.mx_formats.config import ScaleCalculationMode
        from torchao.prototype.mx_formats.mx_tensor import to_mx

        # It does not take F16; what it computes is F32.
        w = w.float() if w.dtype == torch.float16 else w
        element = torch.float4_e2m1fn_x2 if kind == "mxfp4" else torch.float8_e4m3fn
        scale, codes = to_mx(w.contiguous(), element, 32, getattr(ScaleCalculationMode, mode.upper()))
        return codes.view(torch.uint8) if kind == "mxfp4" else codes, scale.view(torch.uint8)

    return encode


GGML = None


def ggml(w):
    """Codes in the order of the row; ggml's own is that of halves of a block."""
    global GGML
    if GGML is None:
        GGML = ctypes.CDLL(os.environ["GGML_ORACLE"])
    w = w.float().contiguous()
    out = torch.empty(w.numel() // 32, 17, dtype=torch.uint8)
    GGML.quantize_row_mxfp4_ref(ctypes.c_void_p(w.data_ptr()), ctypes.c_void_p(out.data_ptr()), ctypes.c_int64(w.numel()))
    codes = torch.cat([out[:, 1:] & 15, out[:, 1:] >> 4], dim=1)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return packed.reshape(w.shape[0], -1), out[:, 0].reshape(w.shape[0], -1)


RULES = {
    kind: {"model_opt": modelopt_mx(kind)} | {m: torchao(kind, m) for m in ("floor", "ceil", "even", "rceil")}
    for kind in ("mxfp4", "mxfp8")
}
RULES["mxfp4"]["ggml"] = ggml


def named(kind, rule):
    """In compressed-tensors' layout, whoever found the exponents."""
    def encode(w, name):
        codes, scale = RULES[kind][rule](w)
        return {name + ("_packed" if kind == "mxfp4" else ""): codes, name + "_scale": scale}

    return encode


def modelopt_named(kind):
    def encode(w, name):
        codes, scale = RULES[kind]["model_opt"](w)
        return {name: codes, name + "_scale": scale}

    return encode


def gpt_oss(rule):
    """A stack of matrices whose columns are the rows of the library's."""
    def encode(w, name):
        experts, inputs, outputs = w.shape
        codes, scale = RULES["mxfp4"][rule](w.transpose(1, 2).reshape(-1, inputs))
        return {
            name + "_blocks": codes.reshape(experts, outputs, inputs // 32, 16),
            name + "_scales": scale.reshape(experts, outputs, inputs // 32),
        }

    return encode


# Method, encoder, the shape of goldens, and whether one largest value decides about all.
METHODS = [
    ("fp8 transformers float 32x48", transformers("float", (32, 48)), (32, 96), False),
    ("fp8 transformers ue8m0 32x48", transformers("ue8m0", (32, 48)), (32, 96), False),
    ("fp8 transformers ue8m0 1x32", transformers("ue8m0", (1, 32)), (32, 96), False),
    ("fp8 transformers float tensor", transformers("float", None), (32, 96), True),
    ("fp8 transformers ue8m0 tensor", transformers("ue8m0", None), (32, 96), True),
    ("fp8 transformers ragged 32x40", transformers_ragged("float", (32, 40)), (70, 50), False),
    ("fp8 compressed_tensors tensor", compressed_tensors("FP8_DYNAMIC", strategy="tensor"), (35, 61), True),
    ("fp8 compressed_tensors channel", compressed_tensors("FP8_DYNAMIC"), (35, 61), False),
    ("fp8 compressed_tensors 32x40", compressed_tensors("FP8_BLOCK", block_structure=[32, 40]), (70, 50), False),
    ("fp8 comfy e4m3", comfy(torch.float8_e4m3fn), (35, 61), True),
    ("fp8 comfy e5m2", comfy(torch.float8_e5m2), (35, 61), True),
    ("nvfp4 comfy", comfy_blocks("nvfp4"), (144, 80), True),
    ("mxfp8 comfy own", comfy_blocks("mxfp8"), (32, 160), False),
    ("nvfp4 model_opt", modelopt_nvfp4, (32, 96), True),
    ("nvfp4 compressed_tensors", compressed_tensors("NVFP4A16"), (32, 96), True),
    ("mxfp4 compressed_tensors own", compressed_tensors("MXFP4A16"), (32, 96), False),
    ("mxfp8 compressed_tensors own", compressed_tensors("MXFP8A16"), (32, 96), False),
    ("mxfp6 compressed_tensors own", compressed_tensors("MXFP6A16"), (32, 96), False),
    ("mxfp4 model_opt own", modelopt_named("mxfp4"), (32, 96), False),
    ("mxfp8 model_opt own", modelopt_named("mxfp8"), (32, 96), False),
    ("mxfp4 gpt_oss own", gpt_oss("rceil"), (2, 64, 20), False),
]
METHODS += [
    (f"{kind} compressed_tensors {rule}", named(kind, rule), (32, 96), False)
    for kind in RULES for rule in RULES[kind] if rule != "model_opt"
]


# Values.

def special(dtype):
    """Rows of 32 values of which each tries something, as one long row."""
    info = torch.finfo(dtype)
    tiny = {torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24, torch.float32: 2.0**-149}[dtype]
    rows = []
    add = lambda values: rows.append((list(values) * 32)[:32])
    add([0.0])
    add([-0.0])
    add([0.0, -0.0, 1.0])
    add([1e-3, -1e-3] * 15 + [1e-3, 3e4])
    add([tiny, -tiny, 0.0])
    add([k * tiny for k in range(1, 33)])
    add([info.tiny, -info.tiny, info.tiny * 0.75, tiny])
    add([info.tiny * k / 8 for k in range(1, 65, 2)])
    add([info.max, -info.max, info.max / 2, 1.0, -1.0, tiny])
    add([info.max * 0.75, -info.max * 0.25, 0.0])
    add([-2.5])
    add([6.0, 0.25, -0.25, 0.75, -0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0, 4.999, 5.001, -0.2499, 0.2501, -0.0, 0.0])
    add([448.0, 1.0625, -1.0625, 1.1875, 2.0**-10, -(2.0**-10), 3 * 2.0**-10, 2.0**-11, 432.0, 440.0, 464.0 / 2])
    add([6.0 * 448.0, 6.0, 1.0, -3.0, 0.1, 100.0])
    # The largest value just at, above and below what changes an exponent.
    around = lambda x: [x, x * (1 + 2 * info.eps), x * (1 - info.eps), x * (1 + 12 * info.eps), x * (1 - 24 * info.eps)]
    powers = (-14, -9, -5, -1, 0, 1, 6, 13) if dtype == torch.float16 else (-126, -100, -65, -33, -9, -1, 0, 5, 34, 66, 124)
    for power in powers:
        for top in around(1.0) + around(1.5) + around(1.75):
            add([top * 2.0**power, -0.3 * 2.0**power, 0.1 * 2.0**power, -(2.0**power)])
    return torch.tensor(rows, dtype=torch.float64).clamp(info.min, info.max).to(dtype).flatten()


def filled(shape, values):
    """As many of `values` as fit, from the first on again."""
    n = int(torch.tensor(shape).prod())
    return values.repeat(-(-n // values.numel()))[:n].reshape(shape).contiguous()


def random(shape, dtype, generator):
    """Rows of several distributions and scales."""
    n = int(torch.tensor(shape).prod())
    lines = torch.randn(-(-n // 32), 32, generator=generator, dtype=torch.float64)
    kind = torch.arange(lines.shape[0]) % 4
    uniform = torch.rand(lines.shape, generator=generator, dtype=torch.float64) * 2 - 1
    lines = torch.where((kind == 1)[:, None], uniform, lines)
    lines = torch.where((kind == 2)[:, None], lines / uniform.abs().clamp(min=1e-3), lines)
    spread = torch.randn(lines.shape[0], 1, generator=generator, dtype=torch.float64)
    lines = torch.where((kind == 3)[:, None], lines * torch.exp(2 * spread), lines) * 0.02
    return lines.flatten()[:n].reshape(shape).to(dtype)


def inputs(shape, dtype, whole, seed, big):
    """Name and tensor of each input of a method."""
    generator = torch.Generator().manual_seed(seed)
    values = special(dtype)
    if not big:
        mixed = random(shape, dtype, generator)
        if whole:
            yield "normal", mixed
            return
        n = min(values.numel(), mixed.numel() * 3 // 4 // 32 * 32)
        mixed.view(-1)[:n] = values[torch.arange(n)] if seed % 2 else values[-n:]
        yield "mixed", mixed
        return
    info = torch.finfo(dtype)
    yield "normal", random(shape, dtype, generator)
    yield "special", filled(shape, values)
    yield "heavy", random(shape, torch.float64, generator).mul(60).clamp(info.min, info.max).to(dtype)
    if dtype != torch.float16:
        yield "wide", (random(shape, torch.float64, generator) * torch.exp2(
            torch.randint(-120, 120, shape, generator=generator).double())).clamp(info.min, info.max).to(dtype)
        yield "wide_blocks", (random(shape, torch.float64, generator) * torch.exp2(
            torch.randint(-120, 120, shape[:-1] + (1,), generator=generator).double())).clamp(info.min, info.max).to(dtype)
    if whole:
        small = tuple(min(n, 96) for n in shape)
        yield "outlier", filled(small, values.clamp(-8, 8)).index_put((torch.tensor(3),) * len(small), torch.tensor(3e4, dtype=dtype))
        yield "constant", torch.full(small, -0.37, dtype=dtype)
        yield "small", (random(small, torch.float64, generator) * 1e-3).to(dtype)
        yield "tiny", (random(small, torch.float64, generator) * info.tiny * 100).to(dtype)
        yield "subnormal", (random(small, torch.float64, generator) * info.tiny).to(dtype)
        yield "huge", (random(small, torch.float64, generator) * info.max * 8).clamp(info.min, info.max).to(dtype)
        for i, top in enumerate(values.abs()[::23].unique().tolist()):
            if top > 0:
                one = random(small, torch.float64, generator)
                one = one.div(one.abs().max()).mul(top).to(dtype)
                one.view(-1)[5] = top
                yield f"top{i}", one


def larger(shape, n):
    """A shape of about `n` values, with the same remainders."""
    while torch.tensor(shape).prod() < n:
        rows, cols = shape[-2:]
        shape = shape[:-2] + ((rows + 32 * 20, cols) if rows < cols else (rows, cols + 32 * 15 * 2))
    return shape


def own(method):
    """Whether the library computes in the type of the weight; else F16 is no other case than BF16."""
    library, rule = method.split()[1], method.split()[-1]
    return library == "comfy" or library == "compressed_tensors" and rule not in ("floor", "ceil", "even", "rceil", "ggml")


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    big = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    out.mkdir(exist_ok=True)
    for file in out.glob("*.safetensors"):
        file.unlink()
    for method, encode, shape, whole in METHODS:
        name = "l.experts.gate_up_proj" if "gpt_oss" in method else "l.proj.weight"
        for label, dtype in DTYPES.items():
            case = f"{method.replace(' ', '-')}-{label}"
            seed = zlib.crc32(case.encode())
            if label == "f16" and not big and not own(method):
                continue
            size = larger(shape, big) if big else shape
            for kind, w in inputs(size, dtype, whole, seed, big):
                stored = {key: value.contiguous().clone() for key, value in encode(w, name).items()}
                assert "weights" not in stored
                file = out / (f"{case}-{kind}.safetensors" if big else f"{case}.safetensors")
                save_file({"weights": w, **stored}, file, {"method": method, "name": name})
        print(method, flush=True)


if __name__ == "__main__":
    main()

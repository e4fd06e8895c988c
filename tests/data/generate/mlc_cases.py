"""Models of MLC: `mlc/` (directories that mlc_llm's `convert_weight` writes, and the weights that its quantization decodes).

    pip install apache-tvm==0.26.0 torch==2.15.0 safetensors==0.8.0 transformers==5.24.0 numpy==2.4.6 ml_dtypes==0.6.0 pydantic tqdm
    git clone https://github.com/mlc-ai/mlc-llm && git -C mlc-llm checkout 79d603f085f50500e9509fa01785ffa7ecfaaa93
    cd tests/data/generate && python -P mlc_cases.py MLC_LLM

No package has mlc_llm's own library, which serves models; its Python code for weights needs TVM alone.
`mlc-chat-config.json` has those keys of `gen_config` that say something of the weights.
"""

import dataclasses
import functools
import json
import os
import shutil
import sys
import types
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

os.environ["SKIP_LOADING_MLCLLM_SO"] = "1"
package = types.ModuleType("mlc_llm")
package.__path__ = [f"{sys.argv[1]}/python/mlc_llm"]
sys.modules["mlc_llm"] = package

import tvm  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.contrib import tvmjs  # noqa: E402

from mlc_llm.interface import convert_weight as converter  # noqa: E402
from mlc_llm.model import MODELS  # noqa: E402
from mlc_llm.quantization import QUANTIZATION, per_tensor_quantization  # noqa: E402

HERE = Path(__file__).resolve().parent.parent / "mlc"
WORK = Path("/tmp/mlc_cases")
BASE = dict(num_hidden_layers=1, rms_norm_eps=1e-5, max_position_embeddings=64, torch_dtype="float32")
# 16 and 24 inputs are padded to the same whole groups: the config and the name of the layer tell them apart.
LLAMA = dict(BASE, model_type="llama", hidden_size=48, intermediate_size=24, num_attention_heads=1, num_key_value_heads=1, head_dim=16, vocab_size=10)
MIXTRAL = dict(BASE, model_type="mixtral", hidden_size=32, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=16, vocab_size=8,
               num_local_experts=3, num_experts_per_tok=2, rope_theta=1e4)  # fmt: skip


def source(name, config, tensors):
    path = WORK / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_torch(tensors, str(path / "model.safetensors"))
    return path


def random(shapes):
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(*shape, generator=generator) * 0.1 for name, shape in shapes.items()}


def attention(c):
    p, heads = "model.layers.0.", c["head_dim"]
    q, kv = c["num_attention_heads"] * heads, c["num_key_value_heads"] * heads
    h, v = c["hidden_size"], c["vocab_size"]
    return {
        "model.embed_tokens.weight": (v, h), "model.norm.weight": (h,), "lm_head.weight": (v, h),
        f"{p}input_layernorm.weight": (h,), f"{p}post_attention_layernorm.weight": (h,),
        f"{p}self_attn.q_proj.weight": (q, h), f"{p}self_attn.k_proj.weight": (kv, h), f"{p}self_attn.v_proj.weight": (kv, h),
        f"{p}self_attn.o_proj.weight": (h, q),
    }  # fmt: skip


def llama():
    h, i, p = LLAMA["hidden_size"], LLAMA["intermediate_size"], "model.layers.0.mlp."
    mlp = {f"{p}gate_proj.weight": (i, h), f"{p}up_proj.weight": (i, h), f"{p}down_proj.weight": (h, i)}
    tensors = random(attention(LLAMA) | mlp)
    # Its scale as FP8 is a subnormal number of F16.
    tensors[f"{p}down_proj.weight"] *= 0.01
    return source("llama", LLAMA, tensors)


def mixtral():
    h, i, p = MIXTRAL["hidden_size"], MIXTRAL["intermediate_size"], "model.layers.0.block_sparse_moe."
    moe = {f"{p}gate.weight": (MIXTRAL["num_local_experts"], h)}
    for e in range(MIXTRAL["num_local_experts"]):
        moe |= {f"{p}experts.{e}.w1.weight": (i, h), f"{p}experts.{e}.w2.weight": (h, i), f"{p}experts.{e}.w3.weight": (i, h)}
    return source("mixtral", MIXTRAL, random(attention(MIXTRAL) | moe))


def awq(out):
    """One layer, which `convert_weight` takes as AutoAWQ has stored it: a model whose layers all have groups of 128 is large."""
    config, (n, k), rng = QUANTIZATION["q4f16_autoawq"], (16, 256), np.random.default_rng(2)
    words = lambda *shape: rng.integers(0, 2**32, shape, dtype=np.uint32)
    base = "model.layers.0.mlp.down_proj"
    scales = (rng.random((k // config.group_size, n)) * 0.1).astype(np.float16)
    tensors = {f"{base}.qweight": words(k, n // 8), f"{base}.qzeros": words(k // config.group_size, n // 8), f"{base}.scales": scales}
    DUMP(tensors, str(out), meta_data={"ParamSize": 3})
    chat = {"version": "0.1.0", "model_type": "llama", "quantization": config.name, "model_config": dict(LLAMA, intermediate_size=k), "vocab_size": 10}
    (out / "mlc-chat-config.json").write_text(json.dumps(chat, indent=1) + "\n")
    return chat["model_config"]


def convert(path, config, quantization, out, cap=32):
    """Converts as `mlc_llm convert_weight` does; returns the model's config as `gen_config` writes it."""
    model = MODELS[config["model_type"]]
    converter.tvmjs.dump_tensor_cache = functools.partial(DUMP, shard_cap_mb=cap)
    converter.convert_weight(path / "config.json", QUANTIZATION[quantization], model, tvm.cpu(), path / "model.safetensors", "huggingface-safetensor", out)
    sizes = model.config.from_file(path / "config.json").asdict()
    chat = {"version": "0.1.0", "model_type": model.name, "quantization": quantization, "model_config": sizes, "vocab_size": sizes["vocab_size"]}
    (out / "mlc-chat-config.json").write_text(json.dumps(chat, indent=1) + "\n")
    return sizes


DUMP = tvmjs.dump_tensor_cache
# The scale of activations before calibration is whatever the memory has.
ONES = types.SimpleNamespace(empty=lambda shape, dtype: tvm.runtime.tensor(np.ones(shape, dtype)))


def run(function, arrays):
    """What a tensor expression of mlc_llm gives for `arrays`."""
    arrays = [tvm.runtime.tensor(a) for a in arrays]
    variables = [relax.Var(f"v{i}", relax.TensorType(a.shape, a.dtype)) for i, a in enumerate(arrays)]
    builder = relax.BlockBuilder()
    with builder.function(name="main", params=variables):
        with builder.dataflow():
            out = builder.emit_output(builder.emit_te(function, *variables))
        builder.emit_func_output(out)
    module = relax.transform.LegalizeOps()(builder.finalize())
    return relax.VirtualMachine(relax.build(module, target="llvm"), tvm.cpu())["main"](*arrays).numpy()


def inputs(name, sizes):
    for end, n in {"o_proj": sizes["num_attention_heads"] * sizes["head_dim"], "down_proj": sizes["intermediate_size"], ".e2": sizes["intermediate_size"]}.items():
        if name.endswith(end):
            return n
    return sizes["hidden_size"]


def grouped(config, base, codes, scale, sizes):
    """A weight in F32, and in the model's dtype as the library has it."""
    k = inputs(base, sizes)
    is_kn = config.linear_weight_layout == "KN" and "embed" not in base
    axis, shape = (0, [k, codes.shape[1]]) if is_kn else (codes.ndim - 1, [*codes.shape[:-1], k])
    values = []
    for dtype in ["float32", config.model_dtype]:
        own = dataclasses.replace(config, model_dtype=dtype)
        wide = scale.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        values.append(run(lambda w, s: own._dequantize(w, s, axis, list(shape)), [codes, wide]))
    return [v.T if is_kn else v for v in values]


def decode(config, tensors, sizes):
    """The weights of a model, by name, in F32; tensors that are not quantized as they are."""
    out = {}
    for name, t in tensors.items():
        base, _, end = name.rpartition(".")
        if end in ["q_scale", "q_calibration_scale", "qzeros", "scales"]:
            continue
        if end == "qweight":
            zeros, scales = tensors[f"{base}.qzeros"], tensors[f"{base}.scales"]
            n, k = t.shape[1] * 8, t.shape[0]
            wide = dataclasses.replace(config, model_dtype="float32")
            out[f"{base}.weight"] = run(lambda w, z, s: wide._dequantize(w, z, s, [n, k]), [t, zeros, scales.astype(np.float32)])
        elif end != "q_weight":
            out[name] = t
        elif t.dtype == np.uint32:
            wide, own = grouped(config, base, t, tensors[f"{base}.q_scale"], sizes)
            assert np.array_equal(wide.astype(own.dtype), own), name
            out[f"{base}.weight"] = wide
        else:
            scale = tensors.get(f"{base}.q_scale")
            wide = dataclasses.replace(config, model_dtype="float32")
            # The library rounds the scale to F16, whatever small numbers lose by that.
            rounded = [] if scale is None else [scale.astype(np.float16).astype(np.float32)]
            by_tvm = run(lambda w, *s: wide._dequantize(w, *s), [t, *rounded])
            own = run(lambda w, *s: config._dequantize(w, *s), [t] if scale is None else [t, scale.astype(np.float32)])
            # TVM's cast on CPUs takes zeros and subnormal numbers for normal ones; that of GPUs and of ml_dtypes does not.
            values = t.astype(np.float32)
            is_normal = np.abs(values) >= float(ml_dtypes.finfo(t.dtype).smallest_normal)
            for scale in rounded:
                values = values * scale
            assert np.array_equal(values[is_normal], by_tvm[is_normal]), name
            assert np.array_equal(values.astype(np.float16)[is_normal], own[is_normal]), name
            out[f"{base}.weight"] = values
    return out


def loaded(path):
    """The tensors of a model, by TVM; F32 that is stored as BF16 as that."""
    tensors, _ = tvmjs.load_tensor_cache(str(path / "tensor-cache.json"), tvm.cpu())
    records = {r["name"]: r for shard in json.loads((path / "tensor-cache.json").read_text())["records"] for r in shard["records"]}
    out = {}
    for name, t in tensors.items():
        value, record = t.numpy(), records[name]
        if str(t.dtype) == "bfloat16" and value.dtype == np.uint16:
            value = value.view(ml_dtypes.bfloat16)
        if record["dtype"] == "float32" and record["format"] == "f32-to-bf16":
            assert np.array_equal(value.astype(ml_dtypes.bfloat16).astype(np.float32), value)
            value = value.astype(ml_dtypes.bfloat16)
        out[name] = value
    return out


def case(name, quantization, path, config, **options):
    out = HERE / name / "model"
    sizes = convert(path, config, quantization, out, **options) if path else awq(out)
    expected = decode(QUANTIZATION[quantization], loaded(out), sizes)
    save_file({name: np.ascontiguousarray(t) for name, t in expected.items()}, str(HERE / name / "expected-f32.safetensors"))
    return out


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    shutil.rmtree(WORK, ignore_errors=True)
    per_tensor_quantization.runtime = ONES
    plain, experts = llama(), mixtral()
    for quantization in ["q4f16_0", "q4f16_1", "q4f16_2", "q4f32_1", "q4bf16_1", "q3f16_0", "q3f16_1", "q0f16", "q0bf16", "q0f32", "e4m3_e4m3_f16", "e5m2_e5m2_f16"]:
        case(quantization, quantization, plain, LLAMA)
    # This version of TVM does not compile layers of experts; of the compiled model only names and shapes of parameters are used.
    tvm.relax.frontend.nn.Module.export_tvm = lambda self, spec, **_: (None, list(self.named_parameters()), None)
    case("experts", "q4f16_1", experts, MIXTRAL)
    case("experts_q3", "q3f16_1", experts, MIXTRAL)
    case("awq", "q4f16_autoawq", None, None)
    # 4 KiB instead of 32 MiB, and the name of the list before 2025.
    out = case("shards", "q4f16_1", plain, LLAMA, cap=4 / 1024)
    (out / "tensor-cache.json").rename(out / "ndarray-cache.json")


main()

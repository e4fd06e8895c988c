"""Loads what `amn forget` writes with the libraries that it is for, and compares their weights with ours.

    python check_forget.py AMN [--search] [SCHEME…]

Makes a tiny Llama in BF16 (transformers), encodes it with AMN into each scheme, loads the result and compares every weight
with `amn remember` of the same output, bit for bit; with --search, scales are searched. transformers 5.24, bitsandbytes 0.50.2,
compressed-tensors 0.20, gguf 0.19.0; MLX 0.32.4 and mlx-lm 0.32.2 for the schemes of MLX, which are left out where they cannot be imported.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

SCHEMES = [
    "nf4", "nf4-dq", "fp4", "fp4-dq", "int8", "fp8-block", "fp8-tensor", "fp8-block-ue8m0", "fp8", "fp8-channel", "fp8-block-ct",
    "w4a16", "w4a16-asym", "w8a16", "w8a16-channel", "w8a8", "nvfp4-ct", "mxfp4", "mxfp6", "mxfp8", "hqq", "hqq-8bit", "hqq-3bit", "hqq-2bit",
    "sdnq-int8", "sdnq-int7", "sdnq-int6", "sdnq-int4", "sdnq-uint8", "sdnq-uint5", "sdnq-uint4", "sdnq-uint3", "sdnq-uint2", "sdnq-fp8", "mlx-4bit", "mlx-8bit", "mlx-mxfp4",
    "gguf:q8_0", "gguf:q4_k_m", "gguf:q6_k", "gguf:iq4_xs", "gguf:q4_0", "gpt-oss",
]


def make(directory):
    torch.manual_seed(5)
    config = LlamaConfig(
        hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=512, max_position_embeddings=128, tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(directory)


def amn(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def ours(directory):
    weights = {}
    for file in sorted(Path(directory).glob("*.safetensors")):
        weights.update(load_file(file))
    return weights


def dequantized(scheme, directory):
    """The library's own weights, by name."""
    if scheme in ("nf4", "nf4-dq", "fp4", "fp4-dq", "int8"):
        import bitsandbytes as bnb

        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16, device_map="cpu")
        weights = {}
        for name, module in model.named_modules():
            if isinstance(module, bnb.nn.Linear4bit):
                state = module.weight.quant_state
                weights[name + ".weight"] = bnb.functional.dequantize_4bit(module.weight.data, state)
            elif isinstance(module, bnb.nn.Linear8bitLt):
                scb = module.weight.SCB if module.weight.SCB is not None else module.state.SCB
                codes = module.weight.CB if module.weight.CB is not None else module.weight.data
                weights[name + ".weight"] = bnb.functional.int8_vectorwise_dequant(codes, scb).to(torch.bfloat16)
        return weights
    if scheme.startswith("hqq"):
        from hqq.core.quantize import HQQLinear

        stored, weights = ours(directory), {}
        for name in [key.removesuffix(".W_q") for key in stored if key.endswith(".W_q")]:
            layer = HQQLinear(None, None, compute_dtype=torch.bfloat16, device="cpu", initialize=False)
            state = {k.removeprefix(name + "."): v for k, v in stored.items() if k.startswith(name + ".")}
            layer.load_state_dict(state)
            weights[name + ".weight"] = layer.dequantize()
        return weights
    if scheme.startswith("sdnq"):
        from sdnq.loader import load_sdnq_model
        from sdnq.utils import get_sdnq_params

        weights = None
        for model in (AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16), load_sdnq_model(str(directory), dtype=torch.bfloat16)):
            layers = {name: module for name, module in model.named_modules() if hasattr(module, "sdnq_dequantizer")}
            found = {f"{name}.weight": layer.sdnq_dequantizer(**get_sdnq_params(layer), dtype=torch.bfloat16) for name, layer in layers.items()}
            assert weights is None or all(torch.equal(weights[name], value) for name, value in found.items())
            weights = found
        return weights
    if scheme.startswith("fp8-") and not scheme.endswith("ct") and scheme != "fp8-channel":
        from transformers import FineGrainedFP8Config

        text = json.loads((Path(directory) / "config.json").read_text())["quantization_config"]
        size = text.get("weight_block_size")
        config = FineGrainedFP8Config(dequantize=True, weight_block_size=tuple(size) if size else None)
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16, quantization_config=config)
        return {k: v.to(torch.bfloat16) for k, v in model.state_dict().items()}
    from transformers import CompressedTensorsConfig

    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16, quantization_config=CompressedTensorsConfig(run_compressed=False)
    )
    return {k: v for k, v in model.state_dict().items() if k.endswith("weight")}


def compare(scheme, theirs, mine):
    compared = 0
    for name, tensor in theirs.items():
        if name not in mine:
            continue
        a, b = tensor.detach().to(torch.float32).reshape(-1), mine[name].to(torch.float32).reshape(-1)
        if not torch.equal(a, b):
            n = (a != b).sum().item()
            raise AssertionError(f"{name}: {n} of {a.numel()} differ, e.g. {a[a != b][:3]} and {b[a != b][:3]}")
        compared += 1
    return compared


def check_gguf(program, scheme, model, work):
    import gguf

    out = work / "out.gguf"
    amn(program, "forget", model, "--to", scheme, "-o", out)
    back = work / "back.safetensors"
    amn(program, "remember", out, "--to", "f32", "-o", back)
    mine = load_file(back)
    reader = gguf.GGUFReader(out)
    for t in reader.tensors:
        values = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(-1)
        if not np.array_equal(values, mine[t.name].to(torch.float32).numpy().reshape(-1)):
            raise AssertionError(t.name)
    return len(reader.tensors)


def check_mlx(program, scheme, model, work, search):
    import mlx.core as mx
    from mlx_lm.utils import load_model

    out = work / "out"
    amn(program, "forget", model, "--to", scheme, *search, "-o", out)
    back = work / "back"
    amn(program, "remember", out, "-o", back)
    mine = ours(back)
    loaded, _ = load_model(out)
    compared = 0
    for name, module in loaded.named_modules():
        if hasattr(module, "scales") and hasattr(module, "bits"):
            biases = module.biases if "biases" in module else None
            w = mx.dequantize(module.weight, module.scales, biases, module.group_size, module.bits, mode=module.mode)
            a = np.array(w.astype(mx.float32))
            if not np.array_equal(a, mine[name + ".weight"].to(torch.float32).numpy()):
                raise AssertionError(name)
            compared += 1
    return compared


def check_gpt_oss(program, work):
    """Stacks of gpt-oss, whose codes move to MLX's layout, of which mlx-lm makes its own."""
    import mlx.core as mx
    from mlx_lm.utils import load_model
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(7)
    config = GptOssConfig(
        hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, vocab_size=256, num_local_experts=3, num_experts_per_tok=2,
    )
    GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(work / "plain")
    stacks = ["--include", r"re:.*experts\..*_proj$"]
    amn(program, "forget", work / "plain", "--to", "mxfp4-gpt-oss", *stacks, "-o", work / "codes")
    said = amn(program, "forget", work / "codes", "--to", "mlx-mxfp4", *stacks, "--json", "-o", work / "moved")
    if said.count("(codes moved)") != 4:
        raise AssertionError(said)
    amn(program, "remember", work / "codes", "-o", work / "back")
    mine, (loaded, _) = ours(work / "back"), load_model(work / "moved")
    for i, layer in enumerate(loaded.model.layers):
        for name, of, rows in [("gate_proj", "gate_up_proj", slice(0, None, 2)), ("up_proj", "gate_up_proj", slice(1, None, 2)),
                               ("down_proj", "down_proj", slice(None))]:
            m = getattr(layer.mlp.experts, name)
            w = mx.dequantize(m.weight, m.scales, None, m.group_size, m.bits, mode=m.mode)
            stack = mine[f"model.layers.{i}.mlp.experts.{of}"].to(torch.float32).numpy()
            if not np.array_equal(np.array(w.astype(mx.float32)), stack.transpose(0, 2, 1)[:, rows]):
                raise AssertionError(f"{i} {name}")
    return 6


def main():
    program, search = sys.argv[1], [option for option in sys.argv[2:] if option == "--search"]
    schemes = sys.argv[2 + len(search) :] or SCHEMES
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        model = Path(work) / "tiny"
        make(model)
        for scheme in schemes:
            here = Path(tempfile.mkdtemp(dir=work))
            try:
                if scheme == "gpt-oss":
                    n = check_gpt_oss(program, here)
                elif scheme.startswith("gguf:"):
                    n = check_gguf(program, scheme, model, here)
                elif scheme.startswith("mlx"):
                    n = check_mlx(program, scheme, model, here, search)
                else:
                    out, back = here / "out", here / "back"
                    amn(program, "forget", model, "--to", scheme, *search, "-o", out)
                    amn(program, "remember", out, "-o", back)
                    n = compare(scheme, dequantized(scheme, out), ours(back))
                print(f"{scheme}: {n} tensors equal")
                failed += n == 0
            except ImportError as e:
                print(f"{scheme}: left out ({e})")
            except Exception as e:  # whatever a library says
                failed += 1
                print(f"{scheme}: FAILED: {type(e).__name__}: {str(e)[:400]}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()

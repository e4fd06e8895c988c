"""Errors of the scales that auto-round 0.15.1 and llm-compressor 0.14.0.1 search, group by group.

Usage: see ../README.md. Writes ../searched/weights.safetensors (normal and heavy-tailed values, and rows of MiniLM-L6, given as
an argument) and ../searched/errors.safetensors: `SCHEME/RULE/WEIGHT` [rows, groups], sums of squared errors, multiplied with
the importances of the columns if RULE says `weighted`. Only rules without chance are here, on the CPU.
"""

import sys
from pathlib import Path

import torch
from auto_round.data_type.int import quant_tensor_opt_rtn_sym
from auto_round.data_type.mxfp import quant_mx_opt_rtn
from auto_round.data_type.nvfp import opt_rtn_fast_nvfp4
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle import fake_quantize
from llmcompressor.observers.base import Observer
from safetensors import safe_open
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parent.parent / "searched"
ROWS, COLS = 32, 128
# As tests/common/forget.rs makes its matrix.
IMPORTANCE = torch.tensor([0.5 + (i * 37 % 101) / 16 for i in range(COLS)])


def weights(minilm):
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(ROWS, COLS, generator=generator)
    heavy = torch.randn(ROWS, COLS, generator=generator)
    heavy = heavy / (torch.randn(5, ROWS, COLS, generator=generator).square().mean(0)).sqrt()
    with safe_open(minilm, "pt") as f:
        real = f.get_slice("encoder.layer.3.intermediate.dense.weight")[:ROWS, :COLS]
    names = ("self_attn.q_proj", "mlp.up_proj", "mlp.down_proj")
    return {f"model.layers.0.{n}.weight": w.to(torch.bfloat16) for n, w in zip(names, (normal, heavy, real))}


def auto_round(bits, group):
    return lambda w, imatrix: quant_tensor_opt_rtn_sym(w, bits, group, imatrix=imatrix)[0]


def compressor(observer, imatrix, **args):
    def run(w, importance):
        quantization = QuantizationArgs(**args, observer=observer)
        found = Observer.load_from_registry(observer, base_name="weight", args=quantization)
        if importance is not None:
            found._imatrix_sum, found._imatrix_count = importance.clone(), torch.tensor(1)
        parameters = found(w).get_qparams()
        return fake_quantize(w, parameters["scale"], parameters["zero_point"], quantization, global_scale=parameters["global_scale"])

    return run


def rules():
    """(scheme, group, rule, weighted, values of a matrix that the library stores)."""
    for weighted in (False, True):
        for bits, scheme in ((4, "gptq"), (3, "gptq-int3"), (2, "gptq-int2")):
            for group in (32, 128):
                yield scheme, group, "auto-round", weighted, auto_round(bits, group)
        yield "nvfp4-ct", 16, "auto-round", weighted, lambda w, m: opt_rtn_fast_nvfp4(w, imatrix=1.0 if m is None else m)[0]
        yield "mxfp4", 32, "auto-round", weighted, lambda w, m: quant_mx_opt_rtn(w, 4, 32, data_type="mx_fp4", imatrix=m)[0]
        for symmetric, scheme in ((True, "w4a16"), (False, "w4a16-asym")):
            for group in (32, 128):
                for norm in (2.0, None):
                    observer = "imatrix_mse" if weighted else "memoryless_mse"
                    kwargs = {} if norm is None else dict(observer_kwargs=dict(norm=norm))
                    rule = compressor(observer, weighted, num_bits=4, type="int", symmetric=symmetric, strategy="group", group_size=group, **kwargs)
                    yield scheme, group, f"{observer}{'' if norm is None else '-squares'}", weighted, rule
        observer = "nvfp4_expanded_imatrix" if weighted else "nvfp4_expanded_mse"
        rule = compressor(observer, weighted, num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn)
        yield "nvfp4-ct", 16, observer, weighted, rule


def main():
    OUT.mkdir(exist_ok=True)
    matrices = weights(sys.argv[1])
    save_file(matrices, OUT / "weights.safetensors")
    errors = {}
    for scheme, group, rule, weighted, run in rules():
        for name, w in matrices.items():
            w = w.float()
            stored = run(w.clone(), IMPORTANCE if weighted else None).reshape(w.shape).double()
            error = (stored - w.double()).square() * (IMPORTANCE if weighted else 1)
            key = f"{scheme}/{group}/{rule}/{'weighted' if weighted else 'plain'}/{name}"
            errors[key] = error.reshape(ROWS, -1, group).sum(-1).float().contiguous()
    save_file(errors, OUT / "errors.safetensors")


if __name__ == "__main__":
    main()

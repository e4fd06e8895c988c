"""Times `amn` beside the Python libraries: whole processes with the same input and equal outputs. Prints Markdown tables.

python3 benches/against_python.py AMN DIR [FILTER] [--tensors 4] [--rounds 3]

AMN is a release build. DIR is a folder with room for 2 GB, best on tmpfs. FILTER is a part of a row's name. Each row makes its
input, the same in every run; runs both programs in turn; and compares what they wrote. A Python process says how long it works
after its imports: it loads, converts and saves as a short script would. Times are the median and the least of all rounds, speeds
MB of output in the least time, and the last columns the library's least work, time and CPU time divided by `amn`'s.

pip install torch safetensors numpy gguf bitsandbytes transformers
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path

SIDE = 4096
HERE = Path(__file__).resolve()


# Decoders of PyTorch: a function that imports what it needs and returns one from the stored parts of a weight to BF16.


def fp8_block(torch):
    """The arithmetic of transformers' `Fp8Dequantize`, whose import alone takes seconds."""

    def decode(p):
        blocks = p["weight"].float().view(SIDE // 128, 128, SIDE // 128, 128)
        return (blocks * p["weight_scale_inv"][:, None, :, None]).view(SIDE, SIDE).bfloat16()

    return decode


def fp8_tensor(torch):
    return lambda p: (p["weight"].float() * p["weight_scale"]).bfloat16()


def nibbles(torch, packed, order):
    """The codes in the last dimension of packed words, in I8."""
    shifts = torch.tensor(order, dtype=packed.dtype) * 4
    return (packed.unsqueeze(-1) >> shifts & 15).to(torch.int8).flatten(-2)


def gptq(torch):
    """The arithmetic of gptqmodel's `TorchLinear.dequantize_weight`, with scales in F32."""

    def decode(p):
        codes = nibbles(torch, p["qweight"].t(), range(8)).t()
        zeros = nibbles(torch, p["qzeros"], range(8)) + 1
        group = p["g_idx"].long()
        return (p["scales"].float()[group] * (codes - zeros[group])).t().bfloat16().contiguous()

    return decode


def awq(torch):
    """The arithmetic of autoawq's `dequantize_gemm`, with scales in F32."""
    order = (0, 4, 1, 5, 2, 6, 3, 7)

    def decode(p):
        each = SIDE // p["scales"].shape[0]
        zeros = nibbles(torch, p["qzeros"], order).repeat_interleave(each, 0)
        scales = p["scales"].float().repeat_interleave(each, 0)
        return ((nibbles(torch, p["qweight"], order) - zeros) * scales).t().bfloat16().contiguous()

    return decode


def nf4(torch):
    from bitsandbytes.functional import QuantState, dequantize_4bit

    def decode(p):
        state = {f"weight.{name}": part for name, part in p.items() if name != "weight"}
        return dequantize_4bit(p["weight"], QuantState.from_dict(state, "cpu"))

    return decode


def llm_int8(torch):
    from bitsandbytes.functional import int8_vectorwise_dequant

    return lambda p: int8_vectorwise_dequant(p["weight"], p["SCB"]).bfloat16()


def mxfp4(torch):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    return lambda p: convert_moe_packed_tensors(p["blocks"], p["scales"]).contiguous()


def nvfp4(torch):
    """The arithmetic of modelopt's `NVFP4QTensor.dequantize`."""
    table = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])

    def decode(p):
        codes = torch.stack([p["weight"] & 15, p["weight"] >> 4], -1)
        scales = p["weight_scale"].float() * p["weight_scale_2"]
        return (table[codes.int()].view(SIDE, -1, 16) * scales.unsqueeze(-1)).view(SIDE, SIDE).bfloat16()

    return decode


def decode_with_torch(make):
    import torch
    from safetensors.torch import load_file, save_file

    decode = make(torch)

    def work(source, out):
        parts, weights = {}, {}
        for name, tensor in load_file(source).items():
            weight, _, part = name.replace("_proj_", "_proj.").partition("_proj.")
            parts.setdefault(weight, {})[part.removeprefix("weight.")] = tensor
        for weight, p in parts.items():
            weights[weight + ("_proj" if "blocks" in p else "_proj.weight")] = decode(p)
        save_file(weights, out)

    return work


def decode_with_gguf():
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.numpy import save_file

    return lambda source, out: save_file({t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(source).tensors}, out)


# Conversions: functions that import what they need and return one that reads a path, or that writes tensors to a path.


def load_npz():
    import numpy as np

    return lambda path: dict(np.load(path))


def load_pth():
    import torch

    return lambda path: torch.load(path, mmap=True)


def load_safetensors():
    import torch
    from safetensors.torch import load_file

    return load_file


def save_safetensors(source):
    if source == "npz":
        from safetensors.numpy import save_file
    else:
        from safetensors.torch import save_file
    return save_file


def save_gguf(source):
    from gguf import GGMLQuantizationType, GGUFWriter

    def add(writer, name, tensor):
        if source == "npz":
            return writer.add_tensor(name, tensor)
        import torch

        writer.add_tensor(name, tensor.view(torch.uint8).numpy(), raw_dtype=GGMLQuantizationType.BF16)

    def save(tensors, path):
        writer = GGUFWriter(path, "llama")
        for name, tensor in tensors.items():
            add(writer, name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    return save


def save_nf4(source):
    import torch
    from bitsandbytes.functional import quantize_4bit
    from safetensors.torch import save_file

    def save(tensors, path):
        found = {}
        for name, weight in tensors.items():
            packed, state = quantize_4bit(torch.as_tensor(weight), quant_type="nf4")
            found |= {name: packed} | {f"{name}.{k}": v for k, v in state.as_dict(packed=True).items()}
        save_file(found, path)

    return save


LOAD = {"npz": load_npz, "pth": load_pth, "safetensors": load_safetensors}
SAVE = {"safetensors": save_safetensors, "gguf": save_gguf, "nf4": save_nf4}


def convert(source, target):
    load, save = LOAD[source](), SAVE[target](source)
    return lambda path, out: save(load(path), out)


# Rows: a name; packages; the input; arguments of `amn`; a function that imports them and returns one from input to output.
BF16, F32, NF4 = ["remember", "--to", "bf16"], ["remember", "--to", "f32"], ["forget", "--to", "nf4"]
ROWS = {
    name: (packages, kind, BF16, partial(decode_with_torch, make))
    for name, packages, kind, make in [
        ("FP8, 128x128 blocks", "torch", "fp8-block", fp8_block),
        ("FP8, one scale", "torch", "fp8-tensor", fp8_tensor),
        ("GPTQ, 4 bits", "torch", "gptq4", gptq),
        ("AWQ, 4 bits", "torch", "awq", awq),
        ("NF4", "bitsandbytes", "nf4", nf4),
        ("LLM.int8()", "bitsandbytes", "int8", llm_int8),
        ("MXFP4 of gpt-oss", "transformers", "gpt-oss", mxfp4),
        ("NVFP4", "torch", "nvfp4", nvfp4),
    ]
}
ROWS |= {f"GGUF {kind}": ("gguf", kind, F32, decode_with_gguf) for kind in ["Q8_0", "Q4_K"]}
ROWS |= {
    f"{source} to {target}": (packages, source, arguments, partial(convert, source, target))
    for source, target, packages, arguments in [
        ("npz", "safetensors", "numpy", ["convert", "--to", "safetensors"]),
        ("npz", "gguf", "numpy gguf", ["convert", "--to", "gguf"]),
        ("npz", "nf4", "numpy bitsandbytes", NF4),
        ("pth", "safetensors", "torch", ["convert", "--to", "safetensors"]),
        ("pth", "gguf", "torch gguf", ["convert", "--to", "gguf"]),
        ("pth", "nf4", "torch bitsandbytes", NF4),
        ("safetensors", "gguf", "safetensors gguf", ["convert", "--to", "gguf"]),
        ("safetensors", "nf4", "safetensors bitsandbytes", NF4),
    ]
}


def make_input(kind, path, count):
    """Random values: F32 in arrays, else BF16; or codes of a quantized model."""
    if kind not in LOAD:
        command = [sys.executable, HERE.parent / "make_model.py", kind, path, str(count)]
        return subprocess.run(command, check=True)
    import numpy as np
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    tensors = {f"layers.{i}.weight": torch.randn(SIDE, SIDE) * 0.02 for i in range(count)}
    if kind == "npz":
        return np.savez(path, **{name: t.numpy() for name, t in tensors.items()})
    tensors = {name: t.bfloat16() for name, t in tensors.items()}
    torch.save(tensors, path) if kind == "pth" else save_file(tensors, path)


def contents(path):
    """Name, type, shape and bytes of each tensor."""
    if path.suffix == ".gguf":
        from gguf import GGUFReader

        return {t.name: (t.tensor_type, t.shape.tolist(), t.data.tobytes()) for t in GGUFReader(path).tensors}
    from safetensors import deserialize

    return {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in deserialize(path.read_bytes())}


def run(command):
    """Wall time and CPU time of a process, and what it printed."""
    start = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE)
    printed = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status:
        sys.exit(f"{command}: status {status}")
    return wall, used.ru_utime + used.ru_stime, printed


def measure(name, arguments, options):
    """The output's MB; of each program the runs: wall time, CPU time, and of Python the seconds after its imports."""
    _, kind, _, _ = ROWS[name]
    ending = "gguf" if kind in ("Q8_0", "Q4_K") else kind if kind in ("npz", "pth") else "safetensors"
    source = options.dir / f"in.{ending}"
    ours, theirs = (options.dir / f"{who}.{'gguf' if 'to gguf' in name else 'safetensors'}" for who in ("ours", "theirs"))
    make_input(kind, source, options.tensors)
    runs = [], []
    for _ in range(options.rounds):
        ours.unlink(missing_ok=True)
        runs[0].append(run([options.amn, arguments[0], source, "-o", ours, *arguments[1:], "-q"]))
        theirs.unlink(missing_ok=True)
        *times, printed = run([sys.executable, HERE, "--row", name, source, theirs])
        runs[1].append((*times, float(printed)))
    if contents(ours) != contents(theirs):
        sys.exit(f"{name}: the outputs differ: {ours}, {theirs}")
    size = ours.stat().st_size / 1e6
    for path in (source, ours, theirs):
        path.unlink()
    return size, *runs


def speed(value):
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def row(name, options):
    size, ours, theirs = measure(name, ROWS[name][2], options)
    both = lambda values: f"{statistics.median(values):.2f}, {min(values):.2f}"
    least = lambda runs, at: min(r[at] for r in runs)
    work = least(theirs, 2)
    cells = [name, ROWS[name][0].replace(" ", ", ")]
    for runs in (ours, theirs):
        wall, cpu = ([r[at] for r in runs] for at in (0, 1))
        cells += [both(wall), both(cpu), speed(size / min(wall))]
    cells += [speed(size / work), f"{work / least(ours, 0):.1f}"]
    cells += [f"{least(theirs, at) / least(ours, at):.1f}" for at in (0, 1)]
    print("| " + " | ".join(cells) + " |", flush=True)


def child(name, source, out):
    """One conversion by the libraries; prints the seconds that it takes after the imports."""
    work = ROWS[name][3]()
    start = time.perf_counter()
    work(source, out)
    print(time.perf_counter() - start)


def main():
    if sys.argv[1:2] == ["--row"]:
        return child(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("amn")
    parser.add_argument("dir", type=Path)
    parser.add_argument("filter", nargs="?", default="")
    parser.add_argument("--tensors", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    packages = ["torch", "safetensors", "numpy", "gguf", "bitsandbytes", "transformers"]
    print(", ".join(f"{p} {version(p)}" for p in packages) + f"; {os.cpu_count()} cores\n")
    head = ["", "library", "`amn`: s", "CPU s", "MB/s", "library: s", "CPU s", "MB/s", "its work, MB/s", "work", "time", "CPU time"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    for name in ROWS:
        if options.filter in name:
            row(name, options)


if __name__ == "__main__":
    main()

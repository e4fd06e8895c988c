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
        bad = [name for name in want.keys() | have.keys() if want.get(name) != have.get(name)]
        wrong += len(bad)
        print(f"{model}: {len(want)} tensors, {len(bad)} differ {bad[:4] or ''}")
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1], sys.argv[2:]) else 0)

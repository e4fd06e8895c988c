"""Compares what the program decodes of LiteRT, OpenVINO, Core ML and TensorFlow with what their own runtimes make of each tensor.

    python check_containers.py AMN MODEL…

AMN is the program, models are `.tflite`, `.xml`, `.mlpackage`, `.mlmodel` and `.index`. Needs what `tflite_cases.py`,
`openvino_cases.py`, `coreml_cases.py` and `tensorflow_cases.py` need.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from check_onnx import data


def expected(path):
    if path.suffix == ".tflite":
        from tflite_runtime import expected

        return expected(path.read_bytes())
    if path.suffix == ".xml":
        from openvino_runtime import expected

        return expected(path)
    if path.suffix in (".mlpackage", ".mlmodel"):
        from coreml_runtime import expected

        return expected(path)
    from tensorflow_cases import expected

    prefix = path.parent / path.name.removesuffix(".index")
    if path.name != ".index":
        return expected(prefix)
    # TensorFlow takes a checkpoint without a name for a directory.
    with tempfile.TemporaryDirectory() as folder:
        for file in path.parent.glob(".[id]*"):
            (Path(folder) / f"model{file.name}").symlink_to(file.resolve())
        return list(expected(Path(folder) / "model"))


def main(program, models):
    wrong = 0
    for model in models:
        want = {name: tuple(rest) for name, *rest in expected(Path(model))}
        want = {name: (dtype, list(shape), bytes_) for name, (dtype, shape, bytes_) in want.items()}
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.safetensors"
            command = [program, "remember", model, "-o", str(out), "--dtype", "f32", "--skip-unsupported"]
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

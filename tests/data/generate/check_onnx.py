"""Compares what the program reads of ONNX models with what `onnx.numpy_helper` reads.

    python check_onnx.py AMN MODEL.onnx…

AMN is the program. Names: those of the tensors, with the nodes before them where several graphs have the same;
a weight whose name the exporter has lost is looked for by its transposed values. Quantized models are compared
by `onnx_cases.py`.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, numpy_helper
from safetensors import safe_open

NARROW = {onnx.TensorProto.INT4, onnx.TensorProto.UINT4, onnx.TensorProto.INT2, onnx.TensorProto.UINT2}
LEFT_OUT = {onnx.TensorProto.STRING, onnx.TensorProto.COMPLEX128}


def dense(sparse, base):
    values = numpy_helper.to_array(sparse.values, base)
    indices = numpy_helper.to_array(sparse.indices, base)
    out = np.zeros(list(sparse.dims), values.dtype)
    for i, value in zip(indices, values):
        if indices.ndim == 1:
            out.reshape(-1)[i] = value
        else:
            out[tuple(i)] = value
    return out


def constants(node, base):
    for a in node.attribute:
        value = {
            "value": lambda: a.t,
            "value_float": lambda: np.float32(a.f),
            "value_floats": lambda: np.array(a.floats, np.float32),
            "value_int": lambda: np.int64(a.i),
            "value_ints": lambda: np.array(a.ints, np.int64),
            "sparse_value": lambda: dense(a.sparse_tensor, base),
        }.get(a.name)
        if value and not a.ref_attr_name:
            yield node.output[0], value()


def arrays(nodes, base, graph=None):
    """Names and arrays of a graph and of those in it; texts are left out."""
    for t in graph.initializer if graph else []:
        yield t.name, t
    for s in graph.sparse_initializer if graph else []:
        yield s.values.name, dense(s, base)
    for node in nodes:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            yield from constants(node, base)
            continue
        for a in node.attribute:
            for inner in [a.g] * (a.type == AttributeProto.GRAPH) + list(a.graphs):
                yield from arrays(inner.node, base, inner)


def expected(path):
    model, base = onnx.load(path, load_external_data=False), str(Path(path).parent)
    found = list(arrays(model.graph.node, base, model.graph))
    for function in model.functions:
        found += arrays(function.node, base)
    for name, t in found:
        if isinstance(t, onnx.TensorProto):
            if t.data_type in LEFT_OUT:
                continue
            t = numpy_helper.to_array(t, base)
        yield name, np.asarray(t)


def stored(path):
    with safe_open(path, "np") as file:
        for name in file.keys():
            t = file.get_slice(name)
            yield name, t.get_dtype(), tuple(t.get_shape())


def data(path):
    raw = Path(path).read_bytes()
    import json

    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + n])
    for name, t in header.items():
        if name != "__metadata__":
            start, end = t["data_offsets"]
            yield name, t["dtype"], tuple(t["shape"]), raw[8 + n + start : 8 + n + end]


def main(program, models):
    wrong = 0
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.safetensors"
            run = subprocess.run([program, "convert", model, "-o", str(out)], capture_output=True, text=True)
            try:
                want = list(expected(model))
            except Exception as error:  # what ONNX itself cannot read
                print(f"{model}: onnx: {error}; amn: {run.stderr.strip()[:200]}")
                continue
            if run.returncode:
                print(f"{model}: {run.stderr.strip()[:300]} ({len(want)} arrays)")
                continue
            have = {}
            for name, _, shape, bytes_ in data(out):
                have[name] = (shape, bytes_)
            names = [name for name, _ in want]
            bad = []
            for name, array in want:
                same = [k for k in have if k == name or k.endswith("." + name)]
                array = np.ascontiguousarray(array).reshape(array.shape)
                turned = np.ascontiguousarray(array.T)
                if any(have[k] == (array.shape, array.tobytes()) for k in same):
                    continue
                if name.startswith("onnx::MatMul_") and (turned.shape, turned.tobytes()) in have.values():
                    continue
                bad.append(name)
            if len(have) != len(names):
                bad.append(f"{len(have)} tensors, {len(names)} expected")
            wrong += len(bad)
            print(f"{model}: {len(names)} arrays, {len(bad)} differ {bad[:4] or ''}")
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1], sys.argv[2:]) else 0)

"""Times `amn convert --to safetensors` for containers of plain data beside `cp` of the output, and `amn ls` of a large ONNX model.

python3 benches/containers.py AMN DIR [FILTER] [--tensors 32] [--rounds 5]

AMN is a release build. DIR is a folder with room for 2 GB, best on tmpfs. FILTER is a part of a container's name. The model has
matrices of 2048 x 2048 in F32. Runs of both programs alternate; times are medians. Containers that
`amn` writes are written by it, the others by their library or, where the layout is simple, by hand. CPU times are those of user and
system together, the least of all rounds: on a machine that is not quiet they are what can be compared.

pip install numpy safetensors onnx h5py ai-edge-litert coremltools executorch torch tensorflow-cpu
"""

import argparse
import json
import os
import resource
import statistics
import struct
import subprocess
import time
from pathlib import Path

SIDE = 2048


def tensors(count):
    import numpy as np

    rng = np.random.default_rng(1)
    return {f"layer_{i}": rng.random((SIDE, SIDE), np.float32) for i in range(count)}


def onnx_model(values, path, external):
    import onnx
    from onnx import helper, numpy_helper

    initializers = [numpy_helper.from_array(t, name) for name, t in values.items()]
    graph = helper.make_graph([helper.make_node("Identity", ["layer_0"], ["y"])], "g", [], [], initializers)
    onnx.save(helper.make_model(graph), str(path), save_as_external_data=external, location=path.name + "_data" if external else None)


def large_onnx(path):
    """128 tensors whose data is in a sparse file."""
    import onnx
    from onnx import TensorProto, helper

    initializers, size = [], 4 * SIDE * SIDE
    for i in range(128):
        t = TensorProto(name=f"layer_{i}", data_type=TensorProto.FLOAT, dims=[SIDE, SIDE], data_location=TensorProto.EXTERNAL)
        for key, value in {"location": f"{path.name}_data", "offset": i * size, "length": size}.items():
            t.external_data.add(key=key, value=str(value))
        initializers.append(t)
    graph = helper.make_graph([helper.make_node("Identity", ["layer_0"], ["y"])], "g", [], [], initializers)
    path.write_bytes(helper.make_model(graph).SerializeToString())
    os.truncate(f"{path}_data", 128 * size)


def hdf5(values, path):
    import h5py

    with h5py.File(path, "w") as file:
        for name, t in values.items():
            file[name] = t


def varint(n):
    out = b""
    while n > 127:
        n, out = n >> 7, out + bytes([n & 127 | 128])
    return out + bytes([n])


def mindspore(values, path):
    field = lambda number, content: bytes([number << 3 | 2]) + varint(len(content)) + content  # noqa: E731
    with open(path, "wb") as file:
        for name, t in values.items():
            sizes = b"".join(b"\x08" + varint(n) for n in t.shape)
            tensor = sizes + field(2, b"Float32") + field(3, t.tobytes())
            file.write(field(1, field(1, name.encode()) + field(2, tensor)))


def ggml(values, path):
    with open(path, "wb") as file:
        file.write(struct.pack("9i", 0x67676A74, 1, 2048, SIDE, 1, 1, 1, 1, 0) + bytes(8) * 2048)
        for i, t in enumerate(values.values()):
            name = b"tok_embeddings.weight" if i == 0 else b"layers.%d.w.weight" % i
            file.write(struct.pack("5i", 2, len(name), 0, SIDE, SIDE) + name)
            file.write(bytes(-file.tell() % 32) + t.tobytes())


def openvino(values, path):
    layers, at = [], 0
    with open(path.with_suffix(".bin"), "wb") as file:
        for i, (name, t) in enumerate(values.items()):
            file.write(t.tobytes())
            data = f'<data element_type="f32" shape="{SIDE},{SIDE}" offset="{at}" size="{t.nbytes}"/>'
            port = f'<output><port id="0" precision="FP32"><dim>{SIDE}</dim><dim>{SIDE}</dim></port></output>'
            layers.append(f'<layer id="{i}" name="{name}" type="Const" version="opset1">{data}{port}</layer>')
            at += t.nbytes
    path.write_text(f'<?xml version="1.0"?><net name="m" version="11"><layers>{"".join(layers)}</layers><edges/></net>')


def mlc(values, path):
    path.mkdir(exist_ok=True)
    shards = []
    for i, (name, t) in enumerate(values.items()):
        (path / f"params_shard_{i}.bin").write_bytes(t.tobytes())
        record = {"name": name, "shape": t.shape, "dtype": "float32", "format": "raw", "nbytes": t.nbytes, "byteOffset": 0}
        shards.append({"dataPath": f"params_shard_{i}.bin", "format": "raw-shard", "nbytes": t.nbytes, "records": [record]})
    (path / "tensor-cache.json").write_text(json.dumps({"metadata": {"ParamSize": len(values)}, "records": shards}))
    (path / "mlc-chat-config.json").write_text('{"quantization": "q0f32", "model_config": {}}')


def tflite(values, path):
    import flatbuffers
    import numpy as np
    from ai_edge_litert import schema_py_generated as schema

    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.subgraphs, model.buffers, graph.tensors = 3, [graph], [schema.BufferT()], []
    for i, (name, t) in enumerate(values.items()):
        tensor, buffer = schema.TensorT(), schema.BufferT()
        tensor.name, tensor.type, tensor.shape, tensor.buffer = name, schema.TensorType.FLOAT32, list(t.shape), i + 1
        buffer.data = t.reshape(-1).view(np.uint8)
        graph.tensors.append(tensor)
        model.buffers.append(buffer)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(builder.Output())


def coreml(values, path):
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb

    @mb.program(input_specs=[mb.TensorSpec(shape=(1,))], opset_version=ct.target.iOS16)
    def program(x):
        return (mb.identity(x=x, name="out"), *(mb.identity(x=mb.const(val=t, name=name)) for name, t in values.items()))

    plain = {"pass_pipeline": ct.PassPipeline.EMPTY, "compute_precision": ct.precision.FLOAT32}
    ct.convert(program, minimum_deployment_target=ct.target.iOS16, skip_model_load=True, **plain).save(str(path))


def executorch(values, path):
    import torch
    from executorch.exir import ExecutorchBackendConfig, to_edge

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, t in values.items():
                self.register_parameter(name, torch.nn.Parameter(torch.from_numpy(t)))

        def forward(self, x):
            return [x * w for w in self.parameters()]

    edge = to_edge(torch.export.export(Layers(), (torch.ones(1),)))
    program = edge.to_executorch(ExecutorchBackendConfig(external_constants=path.suffix == ".ptd"))
    if path.suffix == ".ptd":
        folder = path.with_suffix(".d")
        folder.mkdir(exist_ok=True)
        program.write_tensor_data_to_file(str(folder))
        next(folder.iterdir()).rename(path)
        folder.rmdir()
    else:
        path.write_bytes(program.buffer)


def tensorflow(values, path):
    import tensorflow as tf

    module = tf.Module()
    for name, t in values.items():
        setattr(module, name, tf.Variable(t))
    if path.suffix == ".index":
        tf.train.Checkpoint(model=module).write(str(path.with_suffix("")))
    else:
        tf.saved_model.save(module, str(path))


def zarr(values, path):
    path.mkdir(exist_ok=True)
    for name, t in values.items():
        (path / name).mkdir(exist_ok=True)
        what = {"zarr_format": 2, "shape": t.shape, "chunks": t.shape, "dtype": "<f4", "compressor": None, "fill_value": 0, "order": "C", "filters": None}
        (path / name / ".zarray").write_text(json.dumps(what))
        (path / name / "0.0").write_bytes(t.tobytes())
    (path / ".zgroup").write_text('{"zarr_format": 2}')


MAKERS = {
    "model.onnx": lambda v, p: onnx_model(v, p, False), "external.onnx": lambda v, p: onnx_model(v, p, True), "model.h5": hdf5,
    "model.ckpt": mindspore, "model.bin": ggml, "graph.xml": openvino, "arrays.zarr": zarr, "mlc": mlc, "model.tflite": tflite,
    "model.mlpackage": coreml, "model.pte": executorch, "model.ptd": executorch, "checkpoint.index": tensorflow, "saved_model": tensorflow,
}  # fmt: skip
WRITTEN = ["model.gguf", "model.npz", "model.pth", "model.msgpack", "model.bpk"]


def timed(command):
    """Seconds by the clock, and of CPU time."""
    cpu = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])  # noqa: E731
    start, used = time.perf_counter(), cpu()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return time.perf_counter() - start, cpu() - used


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("amn")
    parser.add_argument("directory", type=Path)
    parser.add_argument("filter", nargs="?", default="")
    parser.add_argument("--tensors", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    args.directory.mkdir(exist_ok=True)
    values, plain = tensors(args.tensors), args.directory / "plain.safetensors"
    from safetensors.numpy import save_file

    save_file(values, plain)
    out, copy = args.directory / "out.safetensors", args.directory / "copy.safetensors"
    print("| input | `amn`: time, CPU time | `cp` of the output | ratios |\n|---|---|---|---|")
    for name in [*MAKERS, *WRITTEN]:
        if args.filter not in name:
            continue
        path = args.directory / name
        if name in MAKERS:
            MAKERS[name](values, path)
        else:
            subprocess.run([args.amn, "convert", plain, "-o", path, "--force", "--quiet", "--tensors-only"], check=True)
        times = ([], [])
        for _ in range(args.rounds):
            times[0].append(timed([args.amn, "convert", path, "--to", "safetensors", "-o", out, "--force", "--quiet"]))
            times[1].append(timed(["cp", out, copy]))
            copy.unlink()
        (ours, our_cpu), (theirs, their_cpu) = ((statistics.median(t for t, _ in runs), min(t for _, t in runs)) for runs in times)
        ratios = f"{ours / theirs:.2f}, {our_cpu / their_cpu:.2f}"
        print(f"| `{name}` | {ours:.2f} s, {our_cpu:.2f} s | {theirs:.2f} s, {their_cpu:.2f} s | {ratios} |", flush=True)
        if name == "external.onnx":
            large_onnx(path)
            listed = statistics.median(timed([args.amn, "ls", path])[0] for _ in range(args.rounds))
            print(f"| `{name}`, `ls` of 2.1 GB | {listed:.3f} s | | |", flush=True)
        subprocess.run(["rm", "-rf", path, out, *args.directory.glob(path.stem + ".[bd]*"), *args.directory.glob("*_data")], check=True)
    os.remove(plain)


main()

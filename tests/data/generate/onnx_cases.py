"""ONNX models: `onnx/` (files, and the tensors in each of them), `onnx_external/` (with data in other files) and
`onnx_quantized/` (quantized weights, and what onnxruntime decodes them to).

    pip install onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0
    cd tests/data/generate && python onnx_cases.py
"""

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

HERE = Path(__file__).parent.parent
RNG = np.random.default_rng(7)
DTYPES = {
    TensorProto.FLOAT: "F32", TensorProto.UINT8: "U8", TensorProto.INT8: "I8", TensorProto.UINT16: "U16",
    TensorProto.INT16: "I16", TensorProto.INT32: "I32", TensorProto.INT64: "I64", TensorProto.BOOL: "BOOL",
    TensorProto.FLOAT16: "F16", TensorProto.DOUBLE: "F64", TensorProto.UINT32: "U32", TensorProto.UINT64: "U64",
    TensorProto.COMPLEX64: "C64", TensorProto.BFLOAT16: "BF16", TensorProto.FLOAT8E4M3FN: "F8_E4M3",
    TensorProto.FLOAT8E4M3FNUZ: "F8_E4M3FNUZ", TensorProto.FLOAT8E5M2: "F8_E5M2",
    TensorProto.FLOAT8E5M2FNUZ: "F8_E5M2FNUZ", TensorProto.FLOAT8E8M0: "F8_E8M0", TensorProto.FLOAT4E2M1: "F4",
}  # fmt: skip


def safetensors(tensors, metadata=None):
    """A file of `(name, dtype, shape, bytes)`; the library knows no FP8 of NumPy."""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(t[3] for t in tensors)


def read(t, base=""):
    """Dtype, shape and bytes of a tensor, as ONNX's own functions read it."""
    array = numpy_helper.to_array(t, base)
    data = np.ascontiguousarray(array).tobytes()
    if t.data_type == TensorProto.FLOAT4E2M1:
        codes = array.view(np.uint8).reshape(-1)
        data = (codes[::2] | codes[1::2] << 4).tobytes()
    return DTYPES[t.data_type], array.shape, data


def model(nodes=(), initializers=(), sparse=(), functions=(), **keys):
    graph = helper.make_graph(list(nodes), "g", [], [], list(initializers), sparse_initializer=list(sparse))
    made = helper.make_model(graph, functions=list(functions), producer_name="test", **keys)
    return made


def some(data_type, shape, raw):
    """A tensor of random elements, as bytes or as numbers."""
    n = int(np.prod(shape, dtype=int))
    if data_type == TensorProto.BOOL:
        array = RNG.integers(0, 2, n).astype(bool)
    elif data_type == TensorProto.COMPLEX64:
        array = (RNG.standard_normal(n) + 1j * RNG.standard_normal(n)).astype(np.complex64)
    else:
        numpy_type = np.dtype(helper.tensor_dtype_to_np_dtype(data_type))
        if numpy_type.kind in "iu":
            info = np.iinfo(numpy_type)
            array = RNG.integers(info.min, info.max, n, numpy_type, endpoint=True)
        else:
            array = RNG.standard_normal(n).astype(np.float32).astype(numpy_type)
    name = f"{DTYPES[data_type].lower()}_{'raw' if raw else 'typed'}"
    array = array.reshape(shape)
    if raw:
        return numpy_helper.from_array(array, name)
    t = TensorProto(name=name, data_type=data_type, dims=shape)
    flat = array.reshape(-1)
    if data_type in (TensorProto.FLOAT,):
        t.float_data.extend(flat.tolist())
    elif data_type == TensorProto.COMPLEX64:
        t.float_data.extend(flat.view(np.float32).tolist())
    elif data_type == TensorProto.DOUBLE:
        t.double_data.extend(flat.tolist())
    elif data_type == TensorProto.INT64:
        t.int64_data.extend(flat.tolist())
    elif data_type in (TensorProto.UINT32, TensorProto.UINT64):
        t.uint64_data.extend(flat.tolist())
    elif data_type == TensorProto.FLOAT4E2M1:
        codes = flat.view(np.uint8)
        t.int32_data.extend((codes[::2] | codes[1::2] << 4).tolist())
    elif flat.dtype.kind in "iu":
        t.int32_data.extend(flat.tolist())
    elif data_type == TensorProto.BOOL:
        t.int32_data.extend(flat.astype(int).tolist())
    else:
        t.int32_data.extend(flat.view(f"u{flat.itemsize}").tolist())
    return t


def field(number, content):
    """A field of Protocol Buffers: a number, or bytes."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(n):
    out, n = b"", n % (1 << 64)
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


F32 = numpy_helper.from_array


def floats(name, *shape):
    return F32(RNG.standard_normal(shape).astype(np.float32), name)


def constant(output, **value):
    return helper.make_node("Constant", [], [output], **value)


def body(name, nodes=(), initializers=()):
    return helper.make_graph(list(nodes), name, [], [], list(initializers))


def plain_cases():
    """Name, model, and the tensors that are expected: messages, or names with these or arrays."""
    raw = [some(dtype, [2, 4], True) for dtype in DTYPES if dtype != TensorProto.COMPLEX64]
    yield "types_raw", model([], raw), raw
    typed = [some(dtype, [2, 4], False) for dtype in DTYPES]
    yield "types_typed", model([], typed), typed
    shapes = [floats("scalar"), floats("empty", 3, 0), floats("one", 1), floats("many", 1, 2, 1, 3, 1)]
    shapes.append(TensorProto(name="empty_typed", data_type=TensorProto.INT8, dims=[0]))
    yield "shapes", model([], shapes), shapes
    # More numbers than there are between two places that the reader notes.
    long = TensorProto(name="long", data_type=TensorProto.INT32, dims=[9000])
    long.int32_data.extend((np.arange(9000) % 257 - 128).tolist())
    yield "long", model([], [long]), [long]
    values = {
        "value": F32(np.arange(6, dtype=np.float16).reshape(2, 3), ""), "value_float": 2.5, "value_floats": [1.0, -2.0, 3.5],
        "value_int": -7, "value_ints": [1, -1, 1 << 40],
    }  # fmt: skip
    nodes = [constant(f"c_{key}", **{key: value}) for key, value in values.items()]
    nodes += [constant("text", value_string="a"), constant("c_texts", value_strings=["a", "b"]), constant("", value_int=1)]
    expected = [
        ("c_value", values["value"]), ("c_value_float", np.float32(2.5)), ("c_value_floats", np.array([1, -2, 3.5], np.float32)),
        ("c_value_int", np.int64(-7)), ("c_value_ints", np.array([1, -1, 1 << 40])),
    ]  # fmt: skip
    yield "constants", model(nodes), expected
    yield "subgraphs", *subgraphs()
    yield "sparse", *sparse()
    inner = constant("k", value=floats("", 2))
    function = helper.make_function("custom", "Fn", ["x"], ["k"], [inner], [helper.make_opsetid("", 21)])
    k = floats("k", 3)
    yield "function", model([], [k], functions=[function]), [k, ("Fn.k", inner.attribute[0].t)]
    yield "names", *lost_names()
    yield "order", *other_orders()


def subgraphs():
    a, b, c, d = floats("w", 2), floats("w", 3), floats("own", 4), floats("w", 5)
    deep = helper.make_node("If", ["c"], ["o"], name="deep", then_branch=body("t", [], [d]), else_branch=body("e"))
    node = helper.make_node("If", ["c"], ["out"], then_branch=body("t", [], [a]), else_branch=body("e", [deep], [b, c]))
    made = model([node], [floats("main", 1)])
    # A node without a name is called like its output.
    named = [("out.then_branch.w", a), ("out.else_branch.w", b), c, ("out.else_branch.deep.then_branch.w", d)]
    return made, [made.graph.initializer[0], *named]


def sparse():
    def made(name, values, indices, dims):
        values = F32(np.array(values, np.float32), name)
        return helper.make_sparse_tensor(values, F32(np.array(indices, np.int64), ""), dims)

    linear = made("linear", [1.5, -2, 3], [0, 5, 11], [3, 4])
    places = made("places", [1, 2, 3], [[0, 1], [1, 0], [2, 3]], [3, 4])
    zeros = np.zeros((2, 3, 4), np.float32)
    zeros[0].reshape(-1)[[0, 5, 11]] = [1.5, -2, 3]
    zeros[1][[0, 1, 2], [1, 0, 3]] = [1, 2, 3]
    value = made("", [7], [2], [4])
    node = constant("c", sparse_value=value)
    return model([node], sparse=[linear, places]), [
        ("linear", zeros[0]), ("places", zeros[1]), ("c", np.array([0, 0, 7, 0], np.float32)),
    ]  # fmt: skip


def lost_names():
    def matmul(name, weight):
        return helper.make_node("MatMul", ["x", weight], [name + "_out"], name=name)

    weights = {n: floats(f"onnx::MatMul_{n}", 2, 3) for n in (1, 2, 3, 4, 5, 6)}
    taken = floats("taken.weight", 3, 2)
    nodes = [
        matmul("/encoder/layer.0/query/MatMul", "onnx::MatMul_1"),
        matmul("/blocks/blocks.1/fc/MatMul", "onnx::MatMul_2"),
        # Two uses, another product of the module, a name that is taken, and a first input.
        matmul("/a/MatMul", "onnx::MatMul_3"), matmul("/b/MatMul", "onnx::MatMul_3"),
        matmul("/c/MatMul_1", "onnx::MatMul_4"), matmul("/taken/MatMul", "onnx::MatMul_5"),
        helper.make_node("MatMul", ["onnx::MatMul_6", "x"], ["o"], name="/d/MatMul"),
    ]  # fmt: skip
    turned = {n: numpy_helper.to_array(t).T for n, t in weights.items()}
    expected = [("encoder.layer.0.query.weight", turned[1]), ("blocks.1.fc.weight", turned[2])]
    return model(nodes, [*weights.values(), taken]), expected + [weights[n] for n in (3, 4, 5, 6)] + [taken]


def other_orders():
    """The graph before the version; a node's attribute before its operator; numbers of a tensor one by one."""
    t = TensorProto(name="t", data_type=TensorProto.INT8, dims=[2, 2])
    t.int32_data.extend([1, -2, 3, -128])
    numbers = b"".join(field(5, n) for n in (1, -2)) + field(5, varint(3) + varint(-128))
    tensor = numbers + field(8, b"t") + field(2, TensorProto.INT8) + field(1, 2) + field(1, 2)
    value = F32(np.ones(2, np.float32), "")
    attribute = field(20, 4) + field(5, value.SerializeToString()) + field(1, b"value")
    node = field(5, attribute) + field(4, b"Constant") + field(2, b"c")
    graph = field(5, tensor) + field(1, node) + field(2, b"g")
    return field(7, graph) + field(8, field(2, 21)) + field(1, 10), [t, ("c", value)]


def skipped_cases():
    """Files with arrays that no tensor can hold; the others are read."""
    w = floats("w", 2)
    text = helper.make_tensor("text", TensorProto.STRING, [2], [b"a", b"b"])
    yield "text", model([], [w, text]), [w]
    wide = helper.make_tensor("wide", TensorProto.COMPLEX128, [1], [1 + 2j])
    yield "complex128", model([], [wide, w]), [w]
    yield "unknown_type", model([], [TensorProto(name="new", data_type=99, dims=[1], raw_data=b"1"), w]), [w]


def refused_cases():
    """Files that are refused, and why."""
    w = floats("w", 2)

    def tensor(**keys):
        return model([], [TensorProto(**{"name": "w", "data_type": 1, "dims": [2], "raw_data": b"12345678", **keys})])

    yield "negative_dim", tensor(dims=[-1, 2]), "negative"
    yield "huge_dims", tensor(dims=[1 << 40, 1 << 40]), "overflow"
    yield "zero_hides_huge", tensor(dims=[1 << 60, 1 << 60, 0], raw_data=b""), "overflow"
    yield "short_data", tensor(raw_data=b"1234"), "4 bytes"
    yield "long_data", tensor(raw_data=b"1234567890"), "10 bytes"
    yield "no_data", model([], [TensorProto(name="w", data_type=1, dims=[2])]), "0 bytes"
    numbers = TensorProto(name="w", data_type=TensorProto.INT8, dims=[2], int32_data=[1, 300])
    yield "number_too_large", model([], [numbers]), "does not fit"
    yield "segment", tensor(segment=TensorProto.Segment(begin=0, end=1)), "segments"
    yield "no_name", tensor(name=""), "no name"
    yield "twice", model([], [w, w]), "two tensors"
    two = helper.make_node("If", ["c"], ["o"], name="n", then_branch=body("t", [], [w, w]))
    yield "twice_inside", model([two]), "two tensors"
    path = "../secret"
    yield "outside", external(path, ("location", path)), path
    yield "absolute", external("/etc/passwd", ("location", "/etc/passwd")), "path"
    yield "no_location", external("", ("offset", "0")), "not named"
    whole = model([], [w]).SerializeToString()
    yield "truncated", whole[:-20], "within a field"
    yield "two_graphs", whole + field(7, field(2, b"g")), "two graphs"
    yield "no_graph", field(1, 8) + field(2, b"pytorch"), "no graph"
    deep = field(2, b"g")
    for _ in range(40):
        deep = field(1, field(5, field(1, b"b") + field(6, deep)) + field(4, b"If"))
    yield "deep", field(1, 8) + field(7, deep), "graphs inside"
    twice = field(5, field(1, b"value_int") + field(3, 1))
    node = field(2, b"c") + field(4, b"Constant") + twice + twice
    yield "two_values", field(1, 8) + field(2, b"x") + field(7, field(1, node)), "two values"
    for name, indices in [("sparse_order", [1, 1]), ("sparse_outside", [0, 4])]:
        values = F32(np.ones(2, np.float32), "s")
        made = model(sparse=[helper.make_sparse_tensor(values, F32(np.array(indices), ""), [4])])
        yield name, made, "ind"
    values = F32(np.ones(1, np.float32), "s")
    yield "sparse_huge", model(sparse=[helper.make_sparse_tensor(values, F32(np.array([1]), ""), [1 << 40])]), "limit"


def external(location, *entries, dims=(2,), name="w"):
    t = TensorProto(name=name, data_type=1, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in entries:
        t.external_data.add(key=key, value=value)
    return model([], [t])


def write_plain():
    folder = HERE / "onnx"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    index, files, tensors = [], [], []

    def write(name, made):
        data = made if isinstance(made, bytes) else made.SerializeToString()
        (folder / f"{name}.onnx").write_bytes(data)

    for kind, cases in [("ok", plain_cases()), ("skips", skipped_cases())]:
        for name, made, expected in cases:
            write(name, made)
            files.append(name)
            index.append({"file": f"{name}.onnx", "expect": kind, "detail": name.replace("_", " ")})
            for item in expected:
                named, item = item if isinstance(item, tuple) else (item.name, item)
                if not isinstance(item, TensorProto):
                    item = F32(np.array(item), "")
                tensors.append((f"{name}/{named}", *read(item)))
    for name, made, detail in refused_cases():
        write(name, made)
        index.append({"file": f"{name}.onnx", "expect": "error", "detail": detail})
    (folder / "index.json").write_text(json.dumps(index, indent=0) + "\n")
    (folder / "expected.safetensors").write_bytes(safetensors(tensors, {"files": json.dumps(files)}))


def write_external():
    folder = HERE / "onnx_external"
    shutil.rmtree(folder, ignore_errors=True)
    expected, tensors = [], {}
    for case in ("one", "many", "tied"):
        (folder / case).mkdir(parents=True)
    data = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in [("a", (3, 4)), ("b", (5,))]}
    made = model([], [F32(array, name) for name, array in data.items()])
    keys = {"save_as_external_data": True, "size_threshold": 0}
    onnx.save(made, folder / "one/model.onnx", all_tensors_to_one_file=True, location="model.onnx_data", **keys)
    (folder / "one/config.json").write_text('{"model_type": "test"}\n')
    made = model([], [F32(array, name) for name, array in data.items()])
    onnx.save(made, folder / "many/model.onnx", all_tensors_to_one_file=False, **keys)
    # Two tensors with the same bytes, in a folder below, without a length.
    made = external("", ("location", "data/weights.bin"), ("offset", "4"), name="a")
    other = external("", ("location", "data/weights.bin"), ("offset", "4"), ("length", "8"), ("checksum", "x"), name="b")
    made.graph.initializer.extend(other.graph.initializer)
    (folder / "tied/data").mkdir()
    onnx.save(made, folder / "tied/model.onnx")
    (folder / "tied/data/weights.bin").write_bytes(RNG.standard_normal(3).astype(np.float32).tobytes())
    for case in ("one", "many", "tied"):
        path = folder / case / "model.onnx"
        loaded = onnx.load(path, load_external_data=False)
        tensors = [(t.name, *read(t, str(path.parent))) for t in loaded.graph.initializer]
        (folder / case / "expected.safetensors").write_bytes(safetensors(tensors))


def run(nodes, initializers, outputs, opset=None, inputs=None):
    """What onnxruntime computes."""
    values = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs.items()]
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for name, a in (inputs or {}).items()
    ]
    graph = helper.make_graph(nodes, "g", given, values, initializers)
    opsets = [helper.make_opsetid("", opset or 23), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=11, producer_name="test")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"])
    return made, session.run(list(outputs), inputs or {})


def codes_of(data_type, shape):
    numpy_type = np.dtype(helper.tensor_dtype_to_np_dtype(data_type))
    if numpy_type.name.startswith("float"):
        return RNG.standard_normal(shape).astype(np.float32).astype(numpy_type)
    info = ml_dtypes.iinfo(numpy_type)
    if data_type == TensorProto.INT32:
        return RNG.integers(-(1 << 30), 1 << 30, shape).astype(numpy_type)
    return RNG.integers(int(info.min), int(info.max) + 1, shape).astype(numpy_type)


def linear_cases():
    """Name, type of codes, shape, shape of scales, attributes, whether there are zero points, type of scales."""
    half, single = np.float16, np.float32
    u8, i8, u4, i4 = TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT4, TensorProto.INT4
    yield "tensor_u8", u8, (3, 5), (), {}, True, single
    yield "tensor_i8", i8, (7,), (1,), {}, False, single
    yield "axis0_i8", i8, (4, 6), (4,), {"axis": 0}, True, single
    yield "axis1_u8", u8, (4, 6), (6,), {}, True, single
    yield "axis_negative", i8, (2, 3, 4), (3,), {"axis": -2}, True, single
    yield "conv_axis0", i8, (4, 3, 2, 2), (4,), {"axis": 0}, True, single
    yield "conv_axis1", u8, (2, 3, 2, 2), (3,), {"axis": 1}, True, single
    yield "u4_odd", u4, (3, 5), (3,), {"axis": 0}, True, single
    yield "i4_tensor", i4, (3, 3), (), {}, True, single
    yield "i4_blocks_rows", i4, (4, 70), (4, 3), {"axis": 1, "block_size": 32}, True, single
    yield "u4_blocks_columns", u4, (70, 6), (3, 6), {"axis": 0, "block_size": 32}, True, single
    yield "i4_blocks_stack", i4, (2, 64, 6), (2, 2, 6), {"axis": 1, "block_size": 32}, True, single
    yield "i8_blocks_half", i8, (4, 64), (4, 4), {"axis": 1, "block_size": 16}, False, half
    yield "u8_half", u8, (8, 8), (8,), {"axis": 0}, True, half
    yield "u16", TensorProto.UINT16, (3, 4), (), {}, True, single
    yield "i16", TensorProto.INT16, (3, 4), (4,), {}, True, single
    yield "i32", TensorProto.INT32, (9,), (9,), {"axis": 0}, False, single
    yield "e4m3", TensorProto.FLOAT8E4M3FN, (4, 8), (), {}, False, single
    yield "e5m2", TensorProto.FLOAT8E5M2, (4, 8), (8,), {}, False, single
    yield "e4m3_fnuz", TensorProto.FLOAT8E4M3FNUZ, (4, 8), (), {}, False, single
    yield "e5m2_fnuz", TensorProto.FLOAT8E5M2FNUZ, (4, 8), (), {}, False, single
    yield "u2_blocks", TensorProto.UINT2, (3, 40), (3, 3), {"axis": 1, "block_size": 16}, True, single


def write_case(name, made, weight, values, others=()):
    folder = HERE / "onnx_quantized" / name
    folder.mkdir(parents=True)
    # What onnxruntime needs to run the model is not needed to read it.
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    kind = {np.dtype(np.float32): ("F32", "f32"), np.dtype(np.float16): ("F16", "f16")}[values.dtype]
    files = [(kind, values)]
    if kind[0] == "F16":
        files.append((("F32", "f32"), WIDE[name]))
    for (dtype, end), array in files:
        plain = [(t.name, *read(t)) for t in others]
        data = safetensors([(weight, dtype, array.shape, np.ascontiguousarray(array).tobytes()), *plain])
        (folder / f"expected-{end}.safetensors").write_bytes(data)


# Of weights with scales in F16 the same decoded with these in F32: other outputs than F16 are rounded once.
WIDE = {}


def write_linear():
    for name, dtype, shape, scales, attributes, has_zero, scale_type in linear_cases():
        codes = codes_of(dtype, shape)
        scale = (RNG.uniform(0.5, 1.5, scales) / 64).astype(scale_type)
        tensors = [F32(codes, "layer.weight_quantized"), F32(scale, "layer.weight_scale")]
        inputs = [t.name for t in tensors]
        if has_zero:
            tensors.append(F32(codes_of(dtype, scales), "layer.weight_zero_point"))
            inputs.append(tensors[-1].name)
        node = helper.make_node("DequantizeLinear", inputs, ["w"], **attributes)
        if scale_type is np.float16:
            wide = [F32(scale.astype(np.float32), t.name) if t.name.endswith("scale") else t for t in tensors]
            WIDE[name] = run([node], wide, {"w": TensorProto.FLOAT}, opset=25)[1][0]
        out = helper.np_dtype_to_tensor_dtype(np.dtype(scale_type))
        made, (values,) = run([node], tensors, {"w": out}, opset=25)
        write_case(name, made, "layer.weight", values)


def n_bits_cases():
    """Name, bits, N, K, block, kind of zero points, type of scales."""
    yield "n_bits_4", 4, 5, 64, 32, None, np.float32
    yield "n_bits_4_zeros", 4, 5, 96, 32, "packed", np.float32
    yield "n_bits_4_tail", 4, 3, 70, 32, "packed", np.float32
    yield "n_bits_8", 8, 3, 64, 16, "packed", np.float32
    yield "n_bits_8_plain", 8, 3, 64, 32, None, np.float32
    yield "n_bits_2", 2, 4, 128, 32, "packed", np.float32
    yield "n_bits_2_plain", 2, 4, 64, 32, None, np.float32


def write_n_bits():
    for name, bits, n, k, block, zeros, scale_type in n_bits_cases():
        blocks = -(-k // block)
        tensors = [
            F32(RNG.integers(0, 256, (n, blocks, block * bits // 8), np.uint8), "fc.weight_Q4"),
            F32((RNG.uniform(0.5, 1.5, (n * blocks,)) / 8).astype(scale_type), "fc.weight_scales"),
        ]
        if zeros == "packed":
            packed = RNG.integers(0, 256, (n * -(-blocks * bits // 8),), np.uint8)
            tensors.append(F32(packed, "fc.weight_zero_points"))
        attributes = {"N": n, "K": k, "bits": bits, "block_size": block}
        node = helper.make_node("MatMulNBits", ["x", *(t.name for t in tensors)], ["y"], domain="com.microsoft", **attributes)
        # The product with one: every value once, and zeros.
        made, (values,) = run([node], tensors, {"y": TensorProto.FLOAT}, inputs={"x": np.eye(k, dtype=np.float32)})
        write_case(name, made, "fc.weight", np.ascontiguousarray(values.T))


def write_bnb4():
    for name, kind in [("bnb4_fp4", 0), ("bnb4_nf4", 1)]:
        codes = RNG.integers(0, 256, 5 * 24 // 2, np.uint8)
        # FP4's code 8 is -0, which a product does not show.
        codes[(codes & 15 == 8) | (codes >> 4 == 8)] = 0x9A
        tensors = [F32(codes, "fc.weight_Bnb4"), F32(RNG.uniform(0.5, 1.5, -(-5 * 24 // 16)).astype(np.float32), "fc.weight_absmax")]
        attributes = {"N": 5, "K": 24, "block_size": 16, "quant_type": kind}
        node = helper.make_node("MatMulBnb4", ["x", *(t.name for t in tensors)], ["y"], domain="com.microsoft", **attributes)
        made, (values,) = run([node], tensors, {"y": TensorProto.FLOAT}, inputs={"x": np.eye(24, dtype=np.float32)})
        write_case(name, made, "fc.weight", np.ascontiguousarray(values.T))


def gather_cases():
    """Name, type of codes, bits, shape, block, whether there are zero points."""
    yield "gather_u4", TensorProto.UINT4, 4, (5, 64), 32, True
    yield "gather_i4", TensorProto.INT4, 4, (5, 48), 16, True
    yield "gather_i4_plain", TensorProto.INT4, 4, (5, 32), 16, False
    yield "gather_bytes_4", TensorProto.UINT8, 4, (5, 96), 32, True
    yield "gather_bytes_4_plain", TensorProto.UINT8, 4, (5, 64), 32, False
    yield "gather_bytes_8", TensorProto.UINT8, 8, (5, 64), 32, True


def write_gather():
    for name, dtype, bits, (rows, cols), block, has_zero in gather_cases():
        blocks = cols // block
        packed = dtype == TensorProto.UINT8
        codes = codes_of(dtype, (rows, cols * bits // 8 if packed else cols))
        scale = (RNG.uniform(0.5, 1.5, (rows, blocks)) / 8).astype(np.float32)
        tensors = [F32(codes, "embed.weight_Q4"), F32(scale, "embed.weight_scales")]
        if has_zero:
            tensors.append(F32(codes_of(dtype, (rows, -(-blocks * bits // 8) if packed else blocks)), "embed.weight_zero_points"))
        attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": block, **({"bits": bits} if packed else {})}
        inputs = [tensors[0].name, "x", *(t.name for t in tensors[1:])]
        node = helper.make_node("GatherBlockQuantized", inputs, ["y"], domain="com.microsoft", **attributes)
        made, (values,) = run([node], tensors, {"y": TensorProto.FLOAT}, inputs={"x": np.arange(rows)})
        write_case(name, made, "embed.weight", values)


def write_moved():
    """Codes that reach their operator through others."""
    tensors = [
        F32(codes_of(TensorProto.UINT8, (5, 4)), "embed_quantized"), F32(np.float32(0.03125), "embed_scale"),
        F32(np.uint8(7), "embed_zero_point"),
    ]  # fmt: skip
    gather = helper.make_node("Gather", [tensors[0].name, "x"], ["g"])
    linear = helper.make_node("DequantizeLinear", ["g", tensors[1].name, tensors[2].name], ["y"])
    made, (values,) = run([gather, linear], tensors, {"y": TensorProto.FLOAT}, inputs={"x": np.arange(5)})
    write_case("moved", made, "embed", values)


def write_shared():
    """An embedding that is also the output layer, as onnxruntime-genai writes it."""
    rows, cols, block = 6, 64, 32
    codes = RNG.integers(0, 256, (rows, cols // block, block // 2), np.uint8)
    scale = (RNG.uniform(0.5, 1.5, (rows, cols // block)) / 8).astype(np.float32)
    tensors = [F32(codes, "head.weight_Q4"), F32(scale, "head.weight_scales"), F32(np.array([rows, cols // 2]), "shape")]
    nodes = [
        helper.make_node("Reshape", ["head.weight_Q4", "shape"], ["table"]),
        helper.make_node("GatherBlockQuantized", ["table", "ids", "head.weight_scales"], ["e"], domain="com.microsoft",
                         gather_axis=0, quantize_axis=1, block_size=block, bits=4),
        helper.make_node("MatMulNBits", ["x", "head.weight_Q4", "head.weight_scales"], ["y"], domain="com.microsoft",
                         N=rows, K=cols, bits=4, block_size=block),
    ]  # fmt: skip
    inputs = {"x": np.eye(cols, dtype=np.float32), "ids": np.arange(rows)}
    made, (values, table) = run(nodes, tensors, {"y": TensorProto.FLOAT, "e": TensorProto.FLOAT}, inputs=inputs)
    assert np.array_equal(values.T, table)
    write_case("shared", made, "head.weight", np.ascontiguousarray(table), [tensors[2]])


def write_mx():
    """Types of microscaling formats, which onnxruntime does not run: by ONNX's own evaluator."""
    f4, f8 = TensorProto.FLOAT4E2M1, TensorProto.FLOAT8E4M3FN
    powers = np.exp2(RNG.integers(-6, 6, (4, 2))).astype(ml_dtypes.float8_e8m0fnu)
    floats8 = RNG.uniform(1, 400, (4, 2)).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    linear = {"axis": -1, "block_size": 32}
    for name, dtype, scale in [("mxfp4", f4, powers), ("mxfp8", f8, powers), ("fp4_blocks", f4, powers.astype(np.float32) / 3)]:
        tensors = [F32(codes_of(dtype, (4, 64)), "w_quantized"), F32(scale, "w_scale")]
        node = helper.make_node("DequantizeLinear", [t.name for t in tensors], ["w"], output_dtype=TensorProto.FLOAT, **linear)
        write_evaluated(name, [node], tensors)
    # Two levels of scales, as ModelOpt writes NVFP4.
    tensors = [F32(codes_of(f4, (4, 64)), "w_quantized"), F32(floats8, "w_scale"), F32(np.float32(0.0123), "w_scale_2")]
    inner = helper.make_node("DequantizeLinear", ["w_scale", "w_scale_2"], ["s"])
    outer = helper.make_node("DequantizeLinear", ["w_quantized", "s"], ["w"], **linear)
    write_evaluated("nvfp4", [inner, outer], tensors)


def write_evaluated(name, nodes, tensors):
    graph = helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("w", TensorProto.FLOAT, None)], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], producer_name="test")
    (values,) = ReferenceEvaluator(made).run(None, {})
    write_case(name, made, "w", values.astype(np.float32))


def dequantized(codes, scale, zero_point, axis):
    """What onnxruntime's operator makes of initializers."""
    tensors = [F32(codes, "c"), F32(scale, "s"), *([] if zero_point is None else [F32(zero_point, "z")])]
    node = helper.make_node("DequantizeLinear", [t.name for t in tensors], ["w"], axis=axis)
    return run([node], tensors, {"w": TensorProto.FLOAT})[1][0]


def write_tools():
    """A small model as onnxruntime's tools quantize it."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.inputs = iter([{"x": RNG.standard_normal((1, 1, 4, 4)).astype(np.float32)} for _ in range(3)])

        def get_next(self):
            return next(self.inputs, None)

    nodes = [
        helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["c"], kernel_shape=[3, 3], pads=[1] * 4, name="conv"),
        helper.make_node("Reshape", ["c", "shape"], ["r"], name="reshape"),
        helper.make_node("MatMul", ["r", "fc.weight"], ["m"], name="fc"),
        helper.make_node("Gemm", ["m", "fc2.weight", "fc2.bias"], ["y"], transB=1, name="fc2"),
    ]
    tensors = [floats("conv.weight", 4, 1, 3, 3), floats("conv.bias", 4), floats("fc.weight", 64, 6), floats("fc2.weight", 8, 6)]
    tensors += [floats("fc2.bias", 8), F32(np.array([1, 64]), "shape")]
    x, y = helper.make_tensor_value_info("x", 1, [1, 1, 4, 4]), helper.make_tensor_value_info("y", 1, [1, 8])
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    folder = HERE / "onnx_quantized"
    float_model = folder / "float.onnx"
    onnx.save(made, float_model)
    for name, options in {
        "tool_dynamic": None, "tool_dynamic_channels": None, "tool_qdq": QuantFormat.QDQ,
        "tool_qdq_channels": QuantFormat.QDQ, "tool_operators": QuantFormat.QOperator,
        "tool_operators_channels": QuantFormat.QOperator,
    }.items():  # fmt: skip
        (folder / name).mkdir()
        path, per_channel = folder / name / "model.onnx", name.endswith("channels")
        if options is None:
            quantize_dynamic(float_model, path, weight_type=QuantType.QInt8, per_channel=per_channel)
        else:
            quantize_static(float_model, path, Reader(), quant_format=options, per_channel=per_channel)
        write_tool_values(folder / name, onnx.load(path))
    # A weight that torch's exporter has transposed, so that its name is lost.
    made.graph.initializer[2].name = made.graph.node[2].input[1] = "onnx::MatMul_12"
    made.graph.node[2].name = "/encoder/fc/MatMul"
    onnx.save(made, float_model)
    for name, per_channel in [("tool_lost", False), ("tool_lost_channels", True)]:
        (folder / name).mkdir()
        path = folder / name / "model.onnx"
        quantize_dynamic(float_model, path, weight_type=QuantType.QInt8, per_channel=per_channel)
        write_tool_values(folder / name, onnx.load(path), {"onnx::MatMul_12": "encoder.fc.weight"})
    float_model.unlink()


# The axis of the scales of each weight, by the operator.
AXES = {"QLinearConv": 0, "ConvInteger": 0, "QGemm": 0, "QLinearMatMul": 1, "MatMulInteger": 1}
# The weights of operators that quantize their input themselves: codes, scale, zero point.
DYNAMIC = {"DynamicQuantizeLSTM": [(1, 8, 9), (2, 10, 11)], "QAttention": [(1, 4, 7)]}


def dynamic(op, codes, scale, zero_point):
    """The values of a weight: an LSTM has one for each direction, with one scale or one for each column."""
    if op == "QAttention" or scale.ndim == 1:
        return dequantized(codes, scale, zero_point, 1 if op == "QAttention" else 0)
    return np.stack([dequantized(*parts, 1) for parts in zip(codes, scale, zero_point)])


def write_dynamic():
    """Recurrent layers and attention, as onnxruntime's `quantize_dynamic` leaves them."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    rng = np.random.default_rng(11)
    f = lambda name, *shape: F32(rng.standard_normal(shape).astype(np.float32), name)
    lstm = lambda directions: (
        [helper.make_node("LSTM", ["x", "W", "R", "B"], ["y"], hidden_size=3, name="lstm",
                          direction="bidirectional" if directions == 2 else "forward")],
        [f("W", directions, 12, 5), f("R", directions, 12, 3), f("B", directions, 24)], [2, 1, 5], [],
    )  # fmt: skip
    attention = (
        [helper.make_node("Attention", ["x", "W", "B"], ["y"], num_heads=2, domain="com.microsoft", name="attention")],
        [f("W", 8, 24), f("B", 24)], [1, 2, 8], [helper.make_opsetid("com.microsoft", 1)],
    )  # fmt: skip
    cases = {
        "lstm": (lstm(2), False), "lstm_channels": (lstm(2), True), "lstm_one": (lstm(1), False),
        "attention": (attention, False), "attention_channels": (attention, True),
    }  # fmt: skip
    for name, ((nodes, initializers, shape, opsets), per_channel) in cases.items():
        folder = HERE / "onnx_quantized" / f"tool_{name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], initializers,
        )  # fmt: skip
        made = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21), *opsets])
        onnx.save(made, folder / "float.onnx")
        path = folder / "model.onnx"
        quantize_dynamic(folder / "float.onnx", path, weight_type=QuantType.QInt8, per_channel=per_channel)
        (folder / "float.onnx").unlink()
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        write_tool_values(folder, onnx.load(path))


def tool_values(made, lost={}):
    """Name, dtype, shape and bytes of the weights of a model of onnxruntime's tools, as it decodes them."""
    arrays = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    codes, parts = {}, set()
    for node in made.graph.node:
        attributes = {a.name: a.i for a in node.attribute}
        get = lambda i: arrays.get(node.input[i]) if i < len(node.input) else None
        if node.op_type == "DequantizeLinear":
            names = node.input[:3]
            if names[0] in arrays:
                codes[names[0]] = dequantized(get(0), get(1), get(2), attributes.get("axis", 1))
            parts.update(names[1:])
        elif node.op_type == "QuantizeLinear":
            parts.update(node.input[1:3])
        elif node.op_type in ("MatMulInteger", "ConvInteger"):
            scale = node.input[1].replace("_quantized", "_scale")
            codes[node.input[1]] = dequantized(get(1), arrays[scale], get(3), AXES[node.op_type])
            parts.update([scale, node.input[3]])
        elif node.op_type in DYNAMIC:
            for inputs in DYNAMIC[node.op_type]:
                codes[node.input[inputs[0]]] = dynamic(node.op_type, *map(get, inputs))
                parts.update(node.input[i] for i in inputs[1:])
        elif node.op_type in AXES:
            codes[node.input[3]] = dequantized(get(3), get(4), get(5), AXES[node.op_type])
            parts.update(node.input[i] for i in (1, 2, 4, 5, -2, -1))
            bias = {"QLinearConv": 8, "QGemm": 6}.get(node.op_type)
            if bias:
                codes[node.input[bias]] = dequantized(get(bias), np.float32(get(1) * get(4)), None, 0)
                parts.update(node.input[6:8] if node.op_type == "QLinearConv" else node.input[7:9])
                parts.discard(node.input[bias])
    out = []
    for name, array in arrays.items():
        if name in codes:
            array = codes[name]
            name = name.removesuffix("_quantized")
            if name in lost:
                name, array = lost[name], np.ascontiguousarray(array.T)
        elif name in parts:
            continue
        out.append((name, *read(F32(np.array(array), name))))
    return out


def write_tool_values(folder, made, lost={}):
    (folder / "expected-f32.safetensors").write_bytes(safetensors(tool_values(made, lost)))


if __name__ == "__main__":
    write_plain()
    write_external()
    shutil.rmtree(HERE / "onnx_quantized", ignore_errors=True)
    write_linear()
    write_n_bits()
    write_gather()
    write_moved()
    write_shared()
    write_mx()
    write_bnb4()
    write_tools()
    write_dynamic()

"""LiteRT models: `tflite/` (files, and the tensors in each of them) and `tflite_quantized/` (quantized weights, and what
LiteRT's interpreter decodes them to). Bundles of LiteRT-LM are in `tflite/`, too.

    pip install ai-edge-litert==2.3.0 litert-lm-builder==0.18.1 ai-edge-quantizer==0.10.0 flatbuffers==25.12.19 tensorflow-cpu==2.21.0 \
        numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0 onnx==1.23.2
    cd tests/data/generate && python tflite_cases.py
"""

import json
import shutil
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from litert_lm_builder import litertlm_builder, litertlm_core
from onnx_cases import safetensors
from tflite_runtime import T, expected, graph, model, pack, schema, tensor

HERE = Path(__file__).parent.parent
RNG = np.random.default_rng(11)
DETAILS = schema.QuantizationDetails


def integers(low, high, n, dtype):
    return RNG.integers(low, high, n).astype(dtype)


def nibbles(codes, bits=4):
    """Codes of less than a byte, the first in the lowest bits."""
    each = 8 // bits
    codes = np.concatenate([codes, np.zeros(-len(codes) % each, codes.dtype)]).astype(np.uint8) & (1 << bits) - 1
    out = np.zeros(len(codes) // each, np.uint8)
    for i in range(each):
        out |= codes[i::each] << (bits * i)
    return out.tobytes()


def of(tensors):
    """A model of tensors with their data; those without are activations."""
    buffers = []
    for t, data in tensors:
        if data is not None:
            buffers.append(data)
            t.buffer = len(buffers)
    return model([graph([t for t, _ in tensors])], buffers)


def plain_types():
    kinds = [
        ("f32", T.FLOAT32, 4), ("f16", T.FLOAT16, 2), ("i32", T.INT32, 4), ("u8", T.UINT8, 1), ("i64", T.INT64, 8),
        ("i16", T.INT16, 2), ("c64", T.COMPLEX64, 8), ("i8", T.INT8, 1), ("f64", T.FLOAT64, 8), ("u64", T.UINT64, 8),
        ("u32", T.UINT32, 4), ("u16", T.UINT16, 2), ("bf16", T.BFLOAT16, 2), ("e4m3", T.FLOAT8_E4M3FN, 1),
        ("e5m2", T.FLOAT8_E5M2, 1),
    ]  # fmt: skip
    tensors = [(tensor(name, kind, [2, 3]), RNG.bytes(6 * size)) for name, kind, size in kinds]
    tensors.append((tensor("bool", T.BOOL, [4]), bytes([0, 1, 1, 0])))
    tensors.append((tensor("scalar", T.FLOAT32, []), np.float32(3).tobytes()))
    tensors.append((tensor("activation", T.FLOAT32, [1, 3]), None))
    return pack(of(tensors))


def graphs(is_quantized=False):
    """Names that several tensors have, none, and data that subgraphs share."""
    f32 = lambda *numbers: np.array(numbers, np.float32).tobytes()  # noqa: E731
    t = lambda name, buffer: tensor(name, T.FLOAT32, [2], buffer)  # noqa: E731
    codes = lambda name, scale: tensor(name, T.INT8, [2], 5, [scale] if is_quantized else None)  # noqa: E731
    first = graph([t("w", 1), t("same", 2), t("same", 3), t("", 4), t("x", 0), codes("q", 0.5)], "main")
    second = graph([t("w", 1), t("w", 2), t("v", 3), t("own", 4), codes("q", 0.5), codes("r", 0.25)], "decode")
    third = graph([t("same", 6), t("tied", 6), t("y", 0)], "")
    return pack(model([first, second, third], [f32(1, 2), f32(3, 4), f32(5, 6), f32(7, 8), b"\x01\x02", f32(9, 10)]))


def behind(is_quantized=False):
    """Data behind the FlatBuffer, as in models of more than 2 GB."""
    tensors = [tensor("a", T.FLOAT32, [3], 1), tensor("b", T.INT8, [2, 2], 2, [0.5, 0.25] if is_quantized else None)]
    data = [np.arange(3, dtype=np.float32).tobytes(), bytes([1, 2, 3, 255])]
    m = model([graph(tensors)], data)
    for b in m.buffers[1:]:
        b.data, b.size = None, 0
    at = len(packed_with(m, [1 << 40, 1 << 40], data))
    at += -at % 16
    return packed_with(m, [at, at + 16], data).ljust(at, b"\0") + data[0].ljust(16, b"\0") + data[1]


def packed_with(m, offsets, data):
    for b, offset, bytes_ in zip(m.buffers[1:], offsets, data):
        b.offset, b.size = offset, len(bytes_)
    return pack(m)


def sparse(t, dense, levels, order=None, blocks=()):
    """Sets the sparsity of `t`. `levels` are sizes, or segments and indices with the number of their type."""
    s = t.sparsity = schema.SparsityParametersT()
    s.traversalOrder = list(order or range(len(levels)))
    s.blockMap = list(blocks)
    s.dimMetadata = []
    for level in levels:
        d = schema.DimensionMetadataT()
        if isinstance(level, int):
            d.format, d.denseSize = 0, level
        else:
            kind, segments, indices = level
            make = {1: schema.Int32VectorT, 2: schema.Uint16VectorT, 3: schema.Uint8VectorT}[kind]
            d.format, d.arraySegmentsType, d.arrayIndicesType = 1, kind, kind
            d.arraySegments, d.arrayIndices = make(), make()
            d.arraySegments.values, d.arrayIndices.values = segments, indices
        s.dimMetadata.append(d)
    return t, dense


def some_sparse():
    f32 = tensor("rows", T.FLOAT32, [3, 5])
    f16 = tensor("columns", T.FLOAT16, [2, 2, 3])
    i8 = tensor("blocks", T.INT8, [2, 8])
    plain = tensor("plain", T.INT8, [2, 4])
    return pack(of([
        sparse(f32, np.arange(1, 5, dtype=np.float32).tobytes(), [3, (1, [0, 2, 2, 4], [1, 4, 0, 2])]),
        sparse(f16, np.arange(1, 4, dtype=np.float16).tobytes(), [2, (2, [0, 1, 2], [1, 0]), (3, [0, 2, 3], [0, 2, 1])]),
        # Blocks of four columns.
        sparse(i8, bytes(range(1, 13)), [2, (3, [0, 1, 3], [1, 0, 1]), 4], blocks=[1]),
        sparse(plain, bytes([5, 6]), [2, (3, [0, 1, 2], [3, 0])]),
    ]))  # fmt: skip


def sparse_blocks_of_rows():
    """Blocks of two rows: the values lie in another order than in the dense tensor."""
    t = tensor("w", T.FLOAT32, [4, 2])
    levels = [2, (1, [0, 2, 3], [0, 1, 1]), 2]
    return pack(of([sparse(t, np.arange(6, dtype=np.float32).tobytes(), levels, blocks=[0])]))


def texts():
    strings = b"\x01\0\0\0\x0c\0\0\0\x0d\0\0\0a"
    return pack(of([(tensor("text", T.STRING, [1]), strings), (tensor("w", T.FLOAT32, [1]), b"\0\0\x80?")]))


def malformed():
    yield "short", pack(of([(tensor("w", T.FLOAT32, [3]), bytes(8))])), "8 bytes of data where 12 are needed"
    yield "negative", pack(of([(tensor("w", T.FLOAT32, [-1, 2]), bytes(8))])), "a negative dimension"
    yield "buffer", pack(model([graph([tensor("w", T.FLOAT32, [2], 7)])], [bytes(8)])), "a buffer that is not there"
    m = of([(tensor("w", T.FLOAT32, [2]), bytes(8))])
    m.buffers[1].data, m.buffers[1].offset, m.buffers[1].size = None, 1 << 20, 8
    yield "outside", pack(m), "data behind the end of the file"
    m = of([(tensor("w", T.FLOAT32, [2]), bytes(8))])
    m.subgraphs[0].tensors[0].externalBuffer = 1
    yield "external", pack(m), "data in another file"
    t = tensor("w", T.INT8, [2], scale=[1.0])
    t.quantization.details, t.quantization.detailsType = schema.CustomQuantizationT(), DETAILS.CustomQuantization
    yield "custom", pack(of([(t, bytes(2))])), "a quantization of its own"
    yield "scales", pack(of([(tensor("w", T.INT8, [2, 3], scale=[1.0] * 2, axis=1), bytes(6))])), "two scales for three"
    zeros = tensor("w", T.INT8, [2, 3], scale=[1.0] * 2, zero_point=[1])
    yield "zero_points", pack(of([(zeros, bytes(6))])), "one zero point for two scales"
    yield "zero_point", pack(of([(tensor("w", T.INT8, [2], scale=[1.0], zero_point=[1 << 40]), bytes(2))])), "2^40"
    yield "no_graph", pack(model([], [])), "no graph"


def litertlm(path, models):
    """A bundle of LiteRT-LM: models with their types, and sections that are none."""
    litertlm_core.BLOCK_SIZE = 64  # Sections begin at multiples of 16 KiB otherwise.
    builder = litertlm_builder.LitertLmFileBuilder()
    text = litertlm_builder.DType.STRING
    builder.add_system_metadata(litertlm_builder.Metadata("Authors", "nobody", text))
    builder.add_system_metadata(litertlm_builder.Metadata("number", 7, litertlm_builder.DType.INT32))
    with tempfile.TemporaryDirectory() as place:
        tokenizer = Path(place) / "tokenizer.json"
        tokenizer.write_text("{}")
        builder.add_hf_tokenizer(str(tokenizer))
        for model, kind in models:
            builder.add_tflite_model(str(model), kind, backend_constraint="cpu")
        builder.add_generic_binary_data(str(tokenizer))
        with open(path, "wb") as f:
            builder.build(f)
    # Time and a random number are in the header.
    content = path.read_bytes()
    for entry in builder._system_metadata:
        if entry.key in ("uuid", "creation_timestamp"):
            content = content.replace(entry.value.encode(), b"0" * len(entry.value))
    path.write_bytes(content)


def write_litertlm(folder):
    kinds = litertlm_builder.TfLiteModelType
    bundles = {
        "lm": [("types", kinds.PREFILL_DECODE)],
        "lm_several": [("types", kinds.PREFILL_DECODE), ("graphs", kinds.EMBEDDER), ("behind", kinds.AUX),
                       ("sparse", kinds.AUX)],
    }  # fmt: skip
    # The models are sections 1 to 4.
    before = {"lm": [""], "lm_several": ["tf_lite_prefill_decode.", "tf_lite_embedder.", "tf_lite_aux_3.", "tf_lite_aux_4."]}
    for name, models in bundles.items():
        models = [(folder / f"{model}.tflite", kind) for model, kind in models]
        litertlm(folder / f"{name}.litertlm", models)
        tensors = []
        for (model, _), names in zip(models, before[name]):
            for tensor_name, *rest in expected(model.read_bytes()):
                tensors.append((f"{name}/{names}{tensor_name}", *rest))
        yield name, tensors


def write_plain():
    folder = HERE / "tflite"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    index, tensors, files = [], [], []
    good = [("types", plain_types()), ("graphs", graphs()), ("behind", behind()), ("sparse", some_sparse())]
    for name, content in good + [("text", texts())]:
        (folder / f"{name}.tflite").write_bytes(content)
        skips = name == "text"
        index.append({"file": f"{name}.tflite", "expect": "skips" if skips else "ok", "detail": ""})
        files.append(name)
        for tensor_name, dtype, shape, data in expected(content):
            tensors.append((f"{name}/{tensor_name}", dtype, shape, data))
    bundle = folder / "bundle.task"
    with zipfile.ZipFile(bundle, "w") as archive:
        for name in ["types", "behind"]:
            archive.writestr(zipfile.ZipInfo(f"{name}.tflite"), (folder / f"{name}.tflite").read_bytes())
            for tensor_name, dtype, shape, data in expected((folder / f"{name}.tflite").read_bytes()):
                tensors.append((f"bundle/{name}.{tensor_name}", dtype, shape, data))
    index.append({"file": "bundle.task", "expect": "ok", "detail": ""})
    files.append("bundle")
    for name, more in write_litertlm(folder):
        tensors += more
        index.append({"file": f"{name}.litertlm", "expect": "ok", "detail": ""})
        files.append(name)
    bad = [("sparse_blocks_of_rows", sparse_blocks_of_rows(), "the order of its values")]
    for name, content, what in bad + list(malformed()):
        (folder / f"{name}.tflite").write_bytes(content)
        index.append({"file": f"{name}.tflite", "expect": "error", "detail": what})
    (folder / "expected.safetensors").write_bytes(safetensors(tensors, {"files": json.dumps(files)}))
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def scales(n):
    return (RNG.random(n).astype(np.float32) + 0.01) / 64


def quantized():
    i8 = integers(-128, 128, 24, np.int8).tobytes()
    u8 = integers(0, 256, 24, np.uint8).tobytes()
    i16 = integers(-32768, 32768, 24, np.int16).tobytes()
    odd = integers(-8, 8, 15, np.int8)
    yield "i8", [(tensor("w", T.INT8, [4, 6], scale=scales(1)), i8)]
    yield "i8_zero", [(tensor("w", T.INT8, [4, 6], scale=scales(1), zero_point=[-17]), i8)]
    yield "i8_rows", [(tensor("w", T.INT8, [4, 6], scale=scales(4)), i8)]
    yield "i8_rows_zero", [(tensor("w", T.INT8, [4, 6], scale=scales(4), zero_point=[3, -4, 0, 127]), i8)]
    yield "i8_conv", [(tensor("w", T.INT8, [2, 2, 2, 3], scale=scales(2)), i8)]
    yield "i8_depthwise", [(tensor("w", T.INT8, [1, 2, 4, 3], scale=scales(3), axis=3), i8)]
    yield "i8_middle", [(tensor("w", T.INT8, [2, 4, 3], scale=scales(4), axis=1), i8)]
    yield "u8_zero", [(tensor("w", T.UINT8, [4, 6], scale=scales(1), zero_point=[131]), u8)]
    yield "i16", [(tensor("w", T.INT16, [4, 6], scale=scales(1)), i16)]
    yield "i16_rows", [(tensor("w", T.INT16, [4, 6], scale=scales(4)), i16)]
    yield "i4", [(tensor("w", T.INT4, [3, 5], scale=scales(1)), nibbles(odd))]
    yield "i4_rows", [(tensor("w", T.INT4, [3, 5], scale=scales(3)), nibbles(odd))]
    yield "i4_columns", [(tensor("w", T.INT4, [3, 5], scale=scales(5), axis=1), nibbles(odd))]
    yield "i4_scalar", [(tensor("w", T.INT4, [1], scale=scales(1)), nibbles(odd[:1]))]
    yield "u4_rows", [(tensor("w", T.UINT4, [3, 5], scale=scales(3), zero_point=[8, 7, 0]), nibbles(odd & 15))]
    yield "i2_rows", [(tensor("w", T.INT2, [3, 5], scale=scales(3)), nibbles(integers(-2, 2, 15, np.int8), 2))]
    i32 = integers(-(1 << 24), 1 << 24, 4, np.int32)
    yield "biases", [
        (tensor("b32", T.INT32, [4], scale=scales(4)), i32.tobytes()),
        (tensor("b64", T.INT64, [4], scale=scales(4)), i32.astype(np.int64).tobytes()),
        (tensor("one", T.INT32, [4], scale=scales(1)), i32.tobytes()),
        (tensor("scalar", T.INT8, [], scale=scales(1)), b"\xff"),
        (tensor("plain", T.FLOAT16, [2]), np.float16([1, 2]).tobytes()),
    ]
    yield "i8_sparse", [sparse(
        tensor("w", T.INT8, [2, 8], scale=[0.5, 0.25]), bytes(range(120, 132)), [2, (3, [0, 1, 3], [1, 0, 1]), 4],
        blocks=[1],
    )]  # fmt: skip
    yield "blocks", blocks(2, 64, 32, T.INT4)
    yield "blocks_i8", blocks(3, 64, 16, T.INT8)
    yield "blocks_i2", blocks(3, 64, 32, T.INT2)


def blocks(rows_, cols, block, kind):
    w = tensor("w", kind, [rows_, cols])
    q = w.quantization = schema.QuantizationParametersT()
    q.detailsType, q.details = DETAILS.BlockwiseQuantization, schema.BlockwiseQuantizationT()
    q.details.scales, q.details.zeroPoints, q.details.blockSize = 1, -1, block
    bits = {T.INT4: 4, T.INT8: 8, T.INT2: 2}[kind]
    half = 1 << bits - 1
    data = nibbles(integers(-half, half, rows_ * cols, np.int8), bits)
    s = tensor("w_scales", T.FLOAT16, [rows_, cols // block])
    return [(w, data), (s, scales(rows_ * cols // block).astype(np.float16).tobytes())]


def converted():
    """A small network by TensorFlow's converter and AI Edge Quantizer."""
    import os

    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")
    import tensorflow as tf

    tf.keras.utils.set_random_seed(5)
    layers = tf.keras.layers
    net = tf.keras.Sequential([
        layers.Input((6, 6, 2)), layers.Conv2D(4, 3, activation="relu"), layers.DepthwiseConv2D(2), layers.Flatten(),
        layers.Dense(8, activation="relu"), layers.Dense(3),
    ])  # fmt: skip
    lite = tf.lite

    def convert(set_up):
        converter = lite.TFLiteConverter.from_keras_model(net)
        set_up(converter)
        return converter.convert()

    samples = [RNG.standard_normal((1, 6, 6, 2)).astype(np.float32) for _ in range(8)]

    def int8(converter, *kinds):
        converter.optimizations = [lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([s] for s in samples)
        converter.target_spec.supported_ops = list(kinds)

    def f16(converter):
        converter.optimizations = [lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = [tf.float16]

    yield "tool_f32", convert(lambda converter: None)
    yield "tool_f16", convert(f16)
    yield "tool_dynamic", convert(lambda converter: setattr(converter, "optimizations", [lite.Optimize.DEFAULT]))
    yield "tool_int8", convert(lambda converter: int8(converter, lite.OpsSet.TFLITE_BUILTINS_INT8))
    sixteen = lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
    yield "tool_int16x8", convert(lambda converter: int8(converter, sixteen))


def write_quantized():
    folder = HERE / "tflite_quantized"
    shutil.rmtree(folder, ignore_errors=True)
    made = [(name, pack(of(tensors))) for name, tensors in quantized()]
    made += [("graphs", graphs(True)), ("behind", behind(True))]
    for name, content in made + list(converted()):
        case = folder / name
        case.mkdir(parents=True)
        (case / "model.tflite").write_bytes(content)
        (case / "expected-f32.safetensors").write_bytes(safetensors(list(expected(content))))


if __name__ == "__main__":
    write_plain()
    write_quantized()

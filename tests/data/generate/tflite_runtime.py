"""Models of LiteRT made by its schema, and what its interpreter makes of single tensors."""

import copy

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

T = schema.TensorType
BITS = {T.INT4: 4, T.UINT4: 4, T.INT2: 2}


def pack(model):
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def tensor(name, kind, shape, buffer=0, scale=None, zero_point=None, axis=0):
    t = schema.TensorT()
    t.name, t.type, t.shape, t.buffer = name, kind, list(shape), buffer
    if scale is not None:
        q = t.quantization = schema.QuantizationParametersT()
        q.scale, q.quantizedDimension = [float(s) for s in scale], axis
        q.zeroPoint = [int(z) for z in (zero_point if zero_point is not None else [0] * len(scale))]
    return t


def graph(tensors, name="main", operators=(), inputs=(), outputs=()):
    g = schema.SubGraphT()
    g.tensors, g.name, g.operators = list(tensors), name, list(operators)
    g.inputs, g.outputs = list(inputs), list(outputs)
    return g


def model(graphs, buffers, codes=(), description="test"):
    """`buffers` are bytes, of which number 0 is not among them: it is the empty one."""
    m = schema.ModelT()
    m.version, m.description, m.subgraphs = 3, description, list(graphs)
    m.buffers = [schema.BufferT()]
    for data in buffers:
        b = schema.BufferT()
        b.data = np.frombuffer(data, np.uint8)
        m.buffers.append(b)
    m.operatorCodes = list(codes)
    return m


def code(builtin, version):
    c = schema.OperatorCodeT()
    c.deprecatedBuiltinCode = c.builtinCode = builtin
    c.version = version
    return c


def operator(inputs, outputs):
    op = schema.OperatorT()
    op.opcodeIndex, op.inputs, op.outputs = 0, inputs, outputs
    return op


def run(t, data, kind, builtin, version):
    """What an operator makes of the tensor `t` with `data`: a model of these alone."""
    t.buffer = 1
    out = tensor("out", kind, t.shape)
    g = graph([t, out], operators=[operator([0], [1])], outputs=[1])
    # The reference operators: others multiply zero point and scale first, which rounds twice.
    plain = OpResolverType.BUILTIN_REF
    content = pack(model([g], [data], [code(builtin, version)]))
    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=plain)
    interpreter.allocate_tensors()
    interpreter.invoke()
    return interpreter.get_tensor(1)


def dequantized(t, data):
    """The values of a quantized tensor, as the operator DEQUANTIZE makes them."""
    return run(t, data, T.FLOAT32, schema.BuiltinOperator.DEQUANTIZE, 6)


def dense(t, data):
    """A sparse tensor as the operator DENSIFY makes it."""
    return run(t, data, t.type, schema.BuiltinOperator.DENSIFY, 1)


NAMES = {
    T.FLOAT32: "F32", T.FLOAT16: "F16", T.INT32: "I32", T.UINT8: "U8", T.INT64: "I64", T.BOOL: "BOOL", T.INT16: "I16",
    T.COMPLEX64: "C64", T.INT8: "I8", T.FLOAT64: "F64", T.UINT64: "U64", T.UINT32: "U32", T.UINT16: "U16",
    T.BFLOAT16: "BF16", T.FLOAT8_E4M3FN: "F8_E4M3", T.FLOAT8_E5M2: "F8_E5M2",
}  # fmt: skip


def unpacked(t, data):
    """The integers of a quantized tensor."""
    bits = BITS.get(t.type)
    if bits:
        each = np.arange(0, 8, bits, dtype=np.uint8)
        codes = (np.frombuffer(data, np.uint8)[:, None] >> each & (1 << bits) - 1).reshape(-1)
        codes = codes[: int(np.prod(t.shape))].astype(np.int8)
        if t.type != T.UINT4:
            codes = (codes ^ 1 << bits - 1) - (1 << bits - 1)
    else:
        codes = np.frombuffer(data, NAMES[t.type].replace("I", "<i").replace("U", "<u").replace("8", "1")
                              .replace("16", "2").replace("32", "4").replace("64", "8"))  # fmt: skip
    return codes.reshape(t.shape)


def by_formula(t, data, scale, zero_point, block):
    """As AI Edge Quantizer dequantizes, where the interpreter has no operator for the type."""
    from ai_edge_quantizer import qtyping
    from ai_edge_quantizer.algorithms.uniform_quantize.uniform_quantize_tensor import uniform_dequantize

    codes, axis = unpacked(t, data), t.quantization.quantizedDimension
    params = qtyping.UniformQuantParams(
        num_bits=8, quantized_dimension=axis if block or len(scale) > 1 else None, scale=np.array(scale, np.float32),
        zero_point=np.array(zero_point, np.int64), symmetric=True, block_size=block,
    )  # fmt: skip
    return uniform_dequantize(codes, params).astype(np.float32)


def data_of(m, content, t):
    """The stored bytes of a tensor; None if it has none."""
    b = m.buffers[t.buffer]
    if t.buffer and b.data is not None and len(b.data):
        return bytes(bytearray(b.data))
    if t.buffer and b.offset > 1:
        return content[b.offset : b.offset + b.size]
    return None


def value(m, content, g, t, data):
    """Dtype, shape and bytes of a tensor as it is decoded; None if no tensor can hold it."""
    shape = [] if t.shape is None else [int(n) for n in t.shape]
    t = copy.deepcopy(t)
    t.shape = shape
    if t.sparsity is not None:
        kept = t.quantization
        t.quantization = None
        data, t.sparsity = dense(t, data).tobytes(), None
        t.quantization = kept
    q = t.quantization
    is_integer = NAMES.get(t.type, "I")[0] in "IU"
    if q is not None and is_integer and q.details is not None:
        scales = g.tensors[q.details.scales]
        scale = np.frombuffer(data_of(m, content, scales), np.float16).astype(np.float32)
        values = by_formula(t, data, scale, np.zeros(scales.shape), q.details.blockSize)
    elif q is not None and is_integer and q.scale is not None and len(q.scale):
        zero = q.zeroPoint if q.zeroPoint is not None and len(q.zeroPoint) else np.zeros(len(q.scale), int)
        wide = t.type in (T.INT32, T.INT64) or t.type == T.INT16 and len(q.scale) > 1
        values = by_formula(t, data, q.scale, zero, 0) if wide else dequantized(t, data)
    elif t.type in NAMES:
        return NAMES[t.type], shape, data
    else:
        return None
    return "F32", shape, np.ascontiguousarray(values, np.float32).tobytes()


def expected(content):
    """Name, dtype, shape and bytes of the weights of a model, as they are decoded."""
    m = schema.ModelT.InitFromPackedBuf(content, 0)
    found, first = [], {}
    for i, g in enumerate(m.subgraphs):
        scales = {t.quantization.details.scales for t in g.tensors
                  if t.quantization is not None and hasattr(t.quantization.details, "scales")}  # fmt: skip
        for n, t in enumerate(g.tensors):
            data = data_of(m, content, t)
            if data is None:
                continue
            q = t.quantization
            shape = () if t.shape is None else tuple(int(n) for n in t.shape)
            key = (t.buffer, t.type, shape)
            params = None if q is None or q.scale is None else (tuple(q.scale), tuple(q.zeroPoint))
            if key in first and first[key][0] < i and first[key][1] == params:
                continue
            first.setdefault(key, (i, params))
            found.append((i, g, n, t, data, n in scales))
    alone = [(t.name or b"").decode() or f"tensor_{n}" for _, _, n, t, _, _ in found]
    longer = [f"{(g.name or b'').decode() or f'subgraph_{i}'}.{name}" for (i, g, *_), name in zip(found, alone)]
    for k, (i, g, n, t, data, is_scale) in enumerate(found):
        name = alone[k]
        if alone.count(name) > 1:
            name = longer[k] if longer.count(longer[k]) == 1 else f"{longer[k]}.{n}"
        made = None if is_scale else value(m, content, g, t, data)
        if made:
            yield name, *made

"""What coremltools makes of the constants of a model of Core ML."""

import numpy as np
from coremltools import proto
from coremltools.converters.mil.frontend.milproto.load import load
from coremltools.models.neural_network.quantization_utils import _dequantize_nn_spec
from coremltools.optimize import _utils

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
ADDED = ["_palettized_pcs", "_palettized", "_quantized", "_sparsified", "_to_fp16", "_to_fp32"]
# Weights of layers that are not called `weights` and `bias`, by kind.
FIELDS = {
    "gru": [f"{g}Gate{part}" for part in ("WeightMatrix", "RecursionMatrix", "BiasVector") for g in ("update", "reset", "output")],
    "batchnorm": ["gamma", "beta", "mean", "variance"], "scale": ["scale", "bias"], "bias": ["bias"],
    "loadConstant": ["data"], "loadConstantND": ["data"], "layerNormalization": ["gamma", "beta"],
    "simpleRecurrent": ["weightMatrix", "recursionMatrix", "biasVector"],
}  # fmt: skip


def spec_of(path):
    spec = proto.Model_pb2.Model()
    spec.ParseFromString((path / "Data/com.apple.CoreML/model.mlmodel" if path.is_dir() else path).read_bytes())
    return spec


def plain_name(name):
    while added := next((end for end in ADDED if name.endswith(end)), None):
        name = name.removesuffix(added)
    return name


def of_operation(op, is_wide):
    """The values of an operation, with scales as they are or in F32."""
    value = lambda name: op.inputs[name].val if name in op.inputs and op.inputs[name] is not None else None  # noqa: E731
    kind = op.op_type
    if kind == "const":
        return op.val.val
    if kind == "constexpr_cast":
        return op.source_val.val
    if kind == "constexpr_affine_dequantize":
        scale = value("scale").astype(np.float32) if is_wide else value("scale")
        return _utils.dequantize_by_scale_and_zp(value("quantized_data"), scale, value("zero_point"), value("axis"))
    if kind == "constexpr_blockwise_shift_scale":
        data = value("data")
        if data is None:
            data = of_operation(op.data.op, is_wide)
        scale = value("scale").astype(np.float32) if is_wide else value("scale")
        return op.decompress(data, scale, value("offset"))
    if kind == "constexpr_lut_to_dense" and op.lut.val is None:
        return op.decompress(op.indices.val, of_operation(op.lut.op, is_wide), op.vector_axis.val if op.vector_axis else None)
    if kind == "constexpr_sparse_to_dense" and op.nonzero_data.op.op_type == "constexpr_sparse_blockwise_shift_scale":
        inner = op.nonzero_data.op
        data, mask = inner.nonzero_data.val, inner.data_mask.val
        if data is None:
            mask, data = inner.nonzero_data.op.materialized_val_inference()
        scale = inner.scale.val.astype(np.float32) if is_wide else inner.scale.val
        mask, data = inner.decompress(mask, data, scale, inner.offset.val if inner.offset is not None else None)
        return op.decompress(data, mask)
    return op.materialized_val_inference()


def is_decoded(op):
    """Whether the values of a constant are made of codes."""
    if op.op_type == "constexpr_sparse_to_dense":
        return op.nonzero_data.op.op_type != "const"
    return op.op_type not in ("const", "constexpr_cast")


def operations(block):
    for op in block.operations:
        yield op
        for inner in op.blocks:
            yield from operations(inner)


def is_part(op):
    """Whether an operation is there for constants that are made of it alone."""
    users = [user for output in op.outputs for user in output.child_ops]
    return bool(users) and all(user.op_type.startswith("constexpr_") for user in users)


def of_program(spec, weights, before, is_wide):
    program = load(spec, spec.specificationVersion, str(weights))
    for function, block in sorted(program.functions.items()):
        inner = f"{before}{function}." if len(program.functions) > 1 else before
        found = [op for op in operations(block) if op.op_type == "const" or op.op_type.startswith("constexpr_")]
        # The reader makes a constant for each block, which no operation takes.
        is_own = lambda op: op.outputs[0].name.startswith("const_") and not op.outputs[0].child_ops  # noqa: E731
        found = [op for op in found if not is_part(op) and not is_own(op)]
        names = [op.outputs[-1].name for op in found]
        plain = [plain_name(name) for name in names]
        for op, name, own in zip(found, names, plain):
            value = of_operation(op, is_wide)
            if isinstance(value, str) or value is None or np.asarray(value).dtype.kind in "UO":
                continue
            value = np.asarray(value)
            if is_decoded(op) and value.dtype != np.float32:
                value = value.astype(np.float32 if is_wide else np.float16)
            is_free = plain.count(own) + sum(n == own != p for n, p in zip(names, plain)) == 1
            yield inner + (own if is_free else name), value


def of_network(network, before):
    for layer in network.layers:
        kind = layer.WhichOneof("layer")
        params, name = getattr(layer, kind), before + layer.name
        if kind in ("branch", "loop"):
            for field, inner in params.ListFields():
                if field.message_type is not None:
                    yield from of_network(inner, f"{name}.{field.name}.")
        elif kind == "custom":
            every = [(i, weight) for i, weight in enumerate(params.weights) if values(weight).size]
            for i, weight in every:
                yield f"{name}.weights" + (f".{i}" if len(params.weights) > 1 else ""), values(weight), None
        elif kind == "uniDirectionalLSTM" or kind == "biDirectionalLSTM":
            every = [params.weightParams] if kind == "uniDirectionalLSTM" else params.weightParams
            for i, weights in enumerate(every):
                for field, weight in weights.ListFields():
                    end = f".{i}" if len(every) > 1 else ""
                    yield f"{name}.{field.name}{end}", values(weight), shape_of(kind, params, field.name)
        else:
            for field in FIELDS.get(kind, ["weights", "bias"]):
                if kind == "activation":
                    if params.HasField("PReLU"):
                        yield f"{name}.alpha", values(params.PReLU.alpha), None
                    break
                if hasattr(params, field) and params.HasField(field):
                    yield f"{name}.{field}", values(getattr(params, field)), shape_of(kind, params, field)


def values(weight):
    if weight.float16Value:
        return np.frombuffer(weight.float16Value, np.float16)
    return np.array(weight.floatValue, np.float32)


def shape_of(kind, params, field):
    """The dimensions of a weight by `NeuralNetwork.proto`; None: one."""
    if kind == "convolution" and field == "weights":
        sizes = [params.outputChannels, params.kernelChannels]
        if params.isDeconvolution:
            sizes = [params.kernelChannels, params.outputChannels // params.nGroups]
        return sizes + list(params.kernelSize)
    if kind == "innerProduct" and field == "weights":
        return [params.outputChannels, params.inputChannels]
    if kind == "embedding" and field == "weights":
        return [params.outputChannels, params.inputDim]
    if kind == "embeddingND" and field == "weights":
        return [params.embeddingSize, params.vocabSize]
    if kind == "batchedMatmul" and field == "weights":
        return [params.weightMatrixSecondDimension, params.weightMatrixFirstDimension]
    if kind in ("loadConstant", "loadConstantND", "bias"):
        return list(params.shape)
    if kind == "scale":
        return list(params.shapeScale if field == "scale" else params.shapeBias)
    if kind == "layerNormalization":
        return list(params.normalizedShape)
    if "eightMatrix" in field:
        return [params.outputVectorSize, params.inputVectorSize]
    if "ecursionMatrix" in field:
        return [params.outputVectorSize, params.outputVectorSize]
    return None


def of_model(spec, weights, before, is_wide):
    kind = spec.WhichOneof("Type")
    if kind == "mlProgram":
        yield from of_program(spec, weights, before, is_wide)
    elif kind.startswith("neuralNetwork"):
        # The function takes no weights in F16.
        if "rawValue" in str(spec):
            _dequantize_nn_spec(getattr(spec, kind))
        for name, array, shape in of_network(getattr(spec, kind), before):
            yield name, array.reshape(shape) if shape else array
    elif kind.startswith("pipeline"):
        pipeline = getattr(spec, kind) if kind == "pipeline" else getattr(spec, kind).pipeline
        for i, model in enumerate(pipeline.models):
            name = pipeline.names[i] if i < len(pipeline.names) else i
            yield from of_model(model, weights, f"{before}{name}.", is_wide)


def expected(path, is_wide=True):
    """Name, dtype, shape and bytes of each constant; of codes the values, with scales as they are or in F32."""
    root = path / "Data/com.apple.CoreML" if path.is_dir() else path.parent
    for name, array in of_model(spec_of(path), root / "weights", "", is_wide):
        yield name, DTYPES[array.dtype.name], array.shape, np.ascontiguousarray(array).tobytes()

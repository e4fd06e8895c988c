"""Models of Core ML: `coreml/` (models, and the tensors in each of them) and `coreml_quantized/` (compressed weights, and what
coremltools makes of them).

    pip install coremltools==9.0 numpy==2.4.6 scikit-learn safetensors==0.8.0 onnx==1.23.2
    cd tests/data/generate && python coreml_cases.py
"""

import itertools
import json
import shutil
from pathlib import Path

import coremltools as ct
import coremltools.optimize.coreml as co
import numpy as np
from coreml_runtime import expected, spec_of
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from coremltools.models import datatypes
from coremltools.models.neural_network import NeuralNetworkBuilder, quantization_utils
from onnx_cases import safetensors

HERE = Path(__file__).parent.parent
RNG = np.random.default_rng(17)
IOS16, IOS18 = ct.target.iOS16, ct.target.iOS18


def floats(*shape, dtype=np.float16):
    return RNG.standard_normal(shape).astype(dtype)


def scales(*shape, dtype=np.float16):
    return ((RNG.random(shape) + 0.01) / 64).astype(dtype)


def integers(kind, *shape):
    """Integers of a type of MIL."""
    np_type = types.nptype_from_builtin(types.string_to_builtin(kind))
    bits = types.string_to_builtin(kind).get_bitwidth()
    low, high = (0, 1 << bits) if kind.startswith("u") else (-(1 << bits - 1), 1 << bits - 1)
    return RNG.integers(low, high, shape).astype(np_type)


def program(target, build):
    """A model whose constants are what `build` returns by name; nothing is optimised."""

    @mb.program(input_specs=[mb.TensorSpec(shape=(1,))], opset_version=target)
    def prog(x):
        return (mb.identity(x=x, name="out"), *(mb.identity(x=value) for value in build()))

    return ct.convert(
        prog, minimum_deployment_target=target, pass_pipeline=ct.PassPipeline.EMPTY, compute_precision=ct.precision.FLOAT32
    )


def affine():
    make = mb.constexpr_affine_dequantize
    u8, i8 = lambda *s: integers("uint8", *s), lambda *s: integers("int8", *s)  # noqa: E731
    yield make(quantized_data=i8(4, 6), zero_point=i8(4), scale=scales(4), axis=0, name="rows")
    yield make(quantized_data=u8(4, 6), zero_point=u8(6), scale=scales(6), axis=-1, name="columns")
    yield make(quantized_data=i8(4, 6), zero_point=np.int8(-3), scale=np.float16(0.03), axis=0, name="tensor")
    yield make(quantized_data=u8(3, 2, 2, 2), zero_point=np.uint8(128), scale=scales(3), axis=0, name="conv")
    yield make(quantized_data=i8(2, 3, 2, 2), zero_point=i8(3), scale=scales(3), axis=1, name="middle")
    yield make(quantized_data=i8(4, 6), zero_point=i8(4), scale=scales(4, dtype=np.float32), axis=0, name="f32")
    yield make(quantized_data=u8(4, 6), zero_point=floats(4, dtype=np.float32), scale=scales(4), axis=0, name="float_zero")


def tables16():
    for bits, dtype in [(1, np.float16), (2, np.float16), (4, np.float32), (6, np.float16), (8, np.float16)]:
        n = -(-35 * bits // 8)
        codes = integers("uint8", n)
        if 35 * bits % 8:
            codes[-1] &= (1 << 35 * bits % 8) - 1
        yield mb.constexpr_lut_to_dense(
            indices=codes, lut=floats(1 << bits, dtype=dtype), shape=np.uint32([5, 7]), name=f"u{bits}"
        )
    mask = np.packbits(RNG.random(45) < 0.5, bitorder="little")
    n = int(np.unpackbits(mask).sum())
    yield mb.constexpr_sparse_to_dense(nonzero_data=floats(n), mask=mask, shape=np.uint32([5, 9]), name="sparse")
    yield mb.constexpr_cast(source_val=floats(2, 3), output_dtype="fp32", name="cast")


def blocks():
    make = mb.constexpr_blockwise_shift_scale
    yield make(data=integers("int4", 3, 16), scale=scales(3, 4), name="groups")
    yield make(data=integers("uint4", 3, 16), scale=scales(3, 2), offset=integers("uint4", 3, 2), name="zero")
    yield make(data=integers("int8", 4, 6), scale=scales(4, 1, dtype=np.float32), name="rows")
    yield make(data=integers("int8", 4, 6), scale=scales(1, 6), offset=integers("int8", 1, 6), name="columns")
    yield make(data=integers("int8", 4, 6), scale=scales(1, 1), name="tensor")
    yield make(data=integers("int4", 8, 3), scale=scales(2, 3), name="down")
    yield make(data=integers("int4", 8, 6), scale=scales(4, 2), offset=integers("int4", 4, 2), name="both")
    yield make(data=integers("int4", 3, 8, 3, 3), scale=scales(3, 2, 1, 1), name="conv")
    yield make(data=integers("uint8", 2, 3, 2, 2), scale=scales(1, 3, 1, 1), offset=integers("uint8", 1, 3, 1, 1), name="middle")
    wide = scales(4, 2, dtype=np.float32)
    yield make(data=integers("uint8", 4, 6), scale=wide, offset=floats(4, 2, dtype=np.float32), name="float_zero")
    yield make(data=integers("int4", 5, 3), scale=scales(5, 1), name="odd")


def tables18():
    make = mb.constexpr_lut_to_dense
    for bits in [1, 2, 3, 4, 6, 8]:
        yield make(indices=integers(f"uint{bits}", 5, 7), lut=floats(1, 1, 1 << bits, 1), name=f"u{bits}")
    yield make(indices=integers("uint4", 6, 4), lut=floats(3, 1, 16, 1), name="rows")
    yield make(indices=integers("uint2", 6, 8), lut=floats(1, 4, 4, 1), name="columns")
    yield make(indices=integers("uint3", 4, 6), lut=floats(2, 3, 8, 1), name="both")
    yield make(indices=integers("uint2", 4, 3, 2, 2), lut=floats(2, 1, 1, 1, 4, 1), name="conv")
    yield make(indices=integers("uint2", 3, 5), lut=floats(1, 1, 4, 2), vector_axis=0, name="pairs_of_rows")
    yield make(indices=integers("uint3", 3, 5), lut=floats(1, 1, 8, 4), vector_axis=-1, name="of_columns")
    yield make(indices=integers("uint2", 2, 3, 2), lut=floats(1, 3, 2, 4, 2), vector_axis=1, name="vectors_in_groups")
    yield make(indices=integers("uint4", 4, 4), lut=integers("int8", 1, 1, 16, 1), name="i8")
    # Rows take one of two large tables by turns.
    yield make(indices=integers("uint8", 24, 2, 2), lut=integers("int8", 1, 2, 1, 256, 4), vector_axis=2, name="by_turns")
    lut = make(indices=integers("uint4", 4, 6), lut=integers("int8", 2, 1, 16, 1), name="codes")
    yield mb.constexpr_blockwise_shift_scale(data=lut, scale=scales(4, 1), offset=integers("int8", 4, 1), name="scaled")


def scaled_tables():
    """Tables that are codes themselves."""
    of_all = mb.constexpr_blockwise_shift_scale(data=integers("int8", 1, 1, 16, 1), scale=scales(1, 1, 1, 1))
    yield mb.constexpr_lut_to_dense(indices=integers("uint4", 4, 6), lut=of_all, name="of_all")
    lut = integers("uint8", 2, 3, 4, 2)
    of_each = mb.constexpr_blockwise_shift_scale(data=lut, scale=scales(2, 3, 1, 1), offset=integers("uint8", 2, 3, 1, 1))
    yield mb.constexpr_lut_to_dense(indices=integers("uint2", 4, 6), lut=of_each, vector_axis=1, name="of_each")


def sparse():
    mask = lambda *s: (RNG.random(s) < 0.4).astype(types.nptype_from_builtin(types.uint1))  # noqa: E731
    count = lambda m: int(np.count_nonzero(m))  # noqa: E731
    m = mask(5, 7)
    yield mb.constexpr_sparse_to_dense(nonzero_data=floats(count(m)), mask=m, name="plain")
    m = mask(64, 70)
    yield mb.constexpr_sparse_to_dense(nonzero_data=integers("int8", count(m)), mask=m, name="i8")
    m = mask(6, 8)
    part = mb.constexpr_sparse_blockwise_shift_scale(data_mask=m, nonzero_data=integers("int4", count(m)), scale=scales(6, 2))
    yield mb.constexpr_sparse_to_dense(nonzero_data=part[1], mask=part[0], name="scaled")
    for bits, groups in [(1, 1), (3, 2), (8, 1)]:
        m = mask(6, 9)
        part = mb.constexpr_lut_to_sparse(
            indices_mask=m, indices_nonzero_data=integers(f"uint{bits}", count(m)), lut=floats(groups, 1, 1 << bits, 1)
        )
        yield mb.constexpr_sparse_to_dense(nonzero_data=part[1], mask=part[0], name=f"u{bits}")
    m = mask(4, 5)
    part = mb.constexpr_lut_to_sparse(
        indices_mask=m, indices_nonzero_data=integers("uint2", count(m)), lut=floats(1, 1, 4, 2), vector_axis=0
    )
    yield mb.constexpr_sparse_to_dense(nonzero_data=part[1], mask=part[0], name="vectors")


def refused():
    """An element that is not stored is zero, and its code is the offset of its block."""
    m = (RNG.random((6, 8)) < 0.4).astype(types.nptype_from_builtin(types.uint1))
    part = mb.constexpr_sparse_blockwise_shift_scale(
        data_mask=m, nonzero_data=integers("int8", int(np.count_nonzero(m))), scale=scales(6, 1), offset=integers("int8", 6, 1)
    )
    yield mb.constexpr_sparse_to_dense(nonzero_data=part[1], mask=part[0], name="w")


def plain_types():
    for kind in ["fp16", "fp32", "int32", "int16", "uint16", "int8", "uint8", "bool"]:
        np_type = types.nptype_from_builtin(types.string_to_builtin(kind))
        for n in (2, 12):
            array = floats(n, 3, dtype=np.float32) * 40
            array = array.astype(np_type) if kind != "bool" else array > 0
            yield mb.const(val=array, name=f"{kind}_{n}")
    yield mb.const(val=np.float32(3), name="scalar")
    yield mb.const(val=np.zeros((2, 0), np.float32), name="empty")
    # A name that coremltools could have made of another's.
    yield mb.const(val=floats(2), name="w")
    yield mb.const(val=floats(2), name="w_to_fp16")
    yield mb.const(val=floats(2), name="only_to_fp16_quantized")


def with_blocks():
    """Constants of a condition's blocks."""

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 3)), mb.TensorSpec(shape=(1,))], opset_version=IOS18)
    def prog(x, c):
        yes = lambda: mb.add(x=x, y=mb.const(val=floats(1, 3, dtype=np.float32), name="yes"))  # noqa: E731
        no = lambda: mb.add(x=x, y=mb.const(val=floats(1, 3, dtype=np.float32), name="no"))  # noqa: E731
        return mb.cond(pred=mb.squeeze(x=mb.cast(x=c, dtype="bool")), _true_fn=yes, _false_fn=no, name="out")

    return ct.convert(
        prog, minimum_deployment_target=IOS18, pass_pipeline=ct.PassPipeline.EMPTY, compute_precision=ct.precision.FLOAT32
    )


def small(target):
    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 32))], opset_version=target)
    def prog(x):
        w = mb.const(val=floats(16, 32, dtype=np.float32), name="fc1_weight")
        x = mb.relu(x=mb.linear(x=x, weight=w, bias=mb.const(val=floats(16, dtype=np.float32), name="fc1_bias")))
        return mb.linear(x=x, weight=mb.const(val=floats(8, 16, dtype=np.float32), name="fc2_weight"), name="fc2")

    return ct.convert(prog, minimum_deployment_target=target)


def tools():
    """Networks by coremltools' compression, alone and one upon the other."""
    config = lambda c: co.OptimizationConfig(global_config=c)  # noqa: E731
    linear = lambda m, joint=False, **k: co.linear_quantize_weights(  # noqa: E731
        m, config(co.OpLinearQuantizerConfig(weight_threshold=0, **k)), joint_compression=joint
    )
    palette = lambda m, joint=False, **k: co.palettize_weights(  # noqa: E731
        m, config(co.OpPalettizerConfig(weight_threshold=0, **k)), joint_compression=joint
    )
    prune = lambda m, **k: co.prune_weights(m, config(co.OpMagnitudePrunerConfig(weight_threshold=0, **k)))  # noqa: E731
    yield "tool_affine", linear(small(IOS16), mode="linear")
    yield "tool_table", palette(small(IOS16), mode="uniform", nbits=4)
    yield "tool_pruned", prune(small(IOS16), target_sparsity=0.6)
    yield "tool_int4", linear(small(IOS18), mode="linear", dtype="int4", granularity="per_block", block_size=8)
    grouped = {"granularity": "per_grouped_channel", "group_size": 4}
    yield "tool_groups", palette(small(IOS18), mode="uniform", nbits=3, **grouped)
    yield "tool_table_int8", linear(palette(small(IOS18), mode="uniform", nbits=4), True, mode="linear_symmetric", granularity="per_tensor")
    pruned = prune(small(IOS18), target_sparsity=0.6)
    yield "tool_pruned_int8", linear(pruned, True, mode="linear_symmetric")
    yield "tool_pruned_table", palette(pruned, True, mode="uniform", nbits=4)


def convolution(b):
    w = lambda *s: floats(*s, dtype=np.float32)  # noqa: E731
    b.add_convolution(
        name="conv", kernel_channels=3, output_channels=4, height=2, width=3, stride_height=1, stride_width=1, border_mode="valid",
        groups=1, W=w(2, 3, 3, 4), b=w(4), has_bias=True, input_name="x", output_name="a",
    )  # fmt: skip


def network():
    """A network of layers with weights of every kind."""
    array = datatypes.Array
    b = NeuralNetworkBuilder([("x", array(3, 8, 8))], [("y", array(1))], disable_rank5_shape_mapping=False)
    w = lambda *s: floats(*s, dtype=np.float32)  # noqa: E731
    convolution(b)
    b.add_convolution(
        name="deconv", kernel_channels=4, output_channels=6, height=2, width=2, stride_height=1, stride_width=1,
        border_mode="valid", groups=2, W=w(2, 2, 4, 3), b=None, has_bias=False, is_deconv=True, input_name="a", output_name="d",
    )  # fmt: skip
    b.add_batchnorm(name="norm", channels=6, gamma=w(6), beta=w(6), mean=w(6), variance=np.abs(w(6)), input_name="d", output_name="e")
    b.add_scale(name="scale", W=w(6), b=w(1), has_bias=True, input_name="e", output_name="f", shape_scale=[6], shape_bias=[1])
    b.add_bias(name="bias", b=w(6, 1, 1).reshape(-1), input_name="f", output_name="g", shape_bias=[6, 1, 1])
    b.add_inner_product(name="fc", W=w(5, 12), b=w(5), input_channels=12, output_channels=5, has_bias=True, input_name="g", output_name="h")
    b.add_embedding(name="words", W=w(4, 7), b=None, input_dim=7, output_channels=4, has_bias=False, input_name="h", output_name="i")
    b.add_load_constant(name="constant", output_name="j", constant_value=w(2, 3, 4).reshape(-1), shape=[2, 3, 4])
    b.add_activation(name="prelu", non_linearity="PRELU", input_name="j", output_name="k", params=w(2))
    lists = lambda: [w(3, 5) for _ in range(4)]  # noqa: E731
    squares = lambda: [w(3, 3) for _ in range(4)]  # noqa: E731
    vectors = lambda n=4: [w(3) for _ in range(n)]  # noqa: E731
    b.add_unilstm(name="lstm", W_h=squares(), W_x=lists(), b=vectors(), hidden_size=3, input_size=5,
                  input_names=["k", "h0", "c0"], output_names=["l", "h1", "c1"], peep=vectors(3))  # fmt: skip
    b.add_bidirlstm(name="both", W_h=squares(), W_x=lists(), b=vectors(), W_h_back=squares(), W_x_back=lists(), b_back=vectors(),
                    hidden_size=3, input_size=5, input_names=["l", "h2", "c2", "h3", "c3"],
                    output_names=["m", "h4", "c4", "h5", "c5"])  # fmt: skip
    b.add_gru(name="gru", W_h=squares()[:3], W_x=lists()[:3], b=vectors(3), hidden_size=3, input_size=5,
              input_names=["m", "h6"], output_names=["n", "h7"])  # fmt: skip
    b.add_simple_rnn(name="rnn", W_h=w(3, 3), W_x=w(3, 5), b=w(3), hidden_size=3, input_size=5, activation="TANH",
                     input_names=["n", "h8"], output_names=["y", "h9"])  # fmt: skip
    return b.spec


def matrices():
    """Layers without a batch of their own, in a loop."""
    b = NeuralNetworkBuilder([("x", datatypes.Array(4))], [("y", datatypes.Array(3))], disable_rank5_shape_mapping=True)
    w = lambda *s: floats(*s, dtype=np.float32)  # noqa: E731
    b.add_batched_mat_mul(name="product", input_names=["x"], output_name="a", weight_matrix_rows=4, weight_matrix_columns=3,
                          W=w(4, 3), bias=w(3))  # fmt: skip
    b.add_layer_normalization(name="norm", input_name="a", output_name="b", normalized_shape=[3], gamma=w(3), beta=w(3))
    b.add_embedding_nd(name="words", input_name="b", output_name="c", vocab_size=5, embedding_size=3, W=w(3, 5), b=w(3))
    b.add_load_constant_nd(name="constant", output_name="y", constant_value=w(2, 3), shape=[2, 3])
    loop = b.add_loop(name="loop", max_iterations=2)
    inner = NeuralNetworkBuilder(nn_spec=loop.loop.bodyNetwork, disable_rank5_shape_mapping=True)
    inner.add_load_constant_nd(name="inner", output_name="z", constant_value=w(3), shape=[3])
    return b.spec


def layers():
    """Layers whose weights coremltools quantizes."""
    b = NeuralNetworkBuilder([("x", datatypes.Array(3, 8, 8))], [("y", datatypes.Array(1))])
    w = lambda *s: floats(*s, dtype=np.float32)  # noqa: E731
    convolution(b)
    b.add_convolution(
        name="deconv", kernel_channels=4, output_channels=6, height=2, width=2, stride_height=1, stride_width=1,
        border_mode="valid", groups=1, W=w(2, 2, 4, 6), b=None, has_bias=False, is_deconv=True, input_name="a", output_name="d",
    )  # fmt: skip
    b.add_inner_product(name="fc", W=w(5, 12), b=w(5), input_channels=12, output_channels=5, has_bias=True, input_name="d", output_name="h")
    b.add_embedding(name="words", W=w(4, 7), b=None, input_dim=7, output_channels=4, has_bias=False, input_name="h", output_name="y")
    return b.spec


def quantized_networks():
    modes = {"linear": "_linear_quantization", "symmetric": "_linear_quantization_symmetric",
             "table": "_lookup_table_quantization_linear", "custom": "_lookup_table_quantization_custom"}  # fmt: skip
    any_table = lambda bits, wp: (np.linspace(-1, 1.5, 1 << bits, dtype=np.float32), RNG.integers(0, 1 << bits, len(wp.flatten())))  # noqa: E731
    for mode, bits in [("linear", 8), ("linear", 4), ("linear", 3), ("symmetric", 8), ("table", 6), ("custom", 2), ("custom", 1)]:
        spec = layers()
        quantization_utils._quantize_nn_spec(spec.neuralNetwork, bits, modes[mode], lut_function=any_table)
        yield f"network_{mode}_{bits}", spec


def halves():
    spec = layers()
    quantization_utils._quantize_nn_spec(spec.neuralNetwork, 16, "_linear_quantization")
    return spec


def package(model, folder):
    """Writes a package, with names that are the same each time."""
    shutil.rmtree(folder, ignore_errors=True)
    model.save(str(folder))
    manifest = json.loads((folder / "Manifest.json").read_text())
    names = {entry["name"]: id_ for id_, entry in manifest["itemInfoEntries"].items()}
    text = (folder / "Manifest.json").read_text()
    for i, name in enumerate(sorted(names)):
        text = text.replace(names[name], f"00000000-0000-4000-8000-{i:012}")
    fixed = json.loads(text)
    fixed["itemInfoEntries"] = dict(sorted(fixed["itemInfoEntries"].items()))
    (folder / "Manifest.json").write_text(json.dumps(fixed, indent=4))
    inner = folder / "Data/com.apple.CoreML/model.mlmodel"
    inner.write_bytes(spec_of(folder).SerializeToString(deterministic=True))


def golden(path, out, own=False):
    out.write_bytes(safetensors(list(expected(path, not own))))


def main():
    for name in ("coreml", "coreml_quantized"):
        shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / name).mkdir()
    plain = HERE / "coreml"
    programs = {"types": program(IOS18, lambda: list(plain_types())), "blocks": with_blocks(), "refused": program(IOS18, lambda: list(refused()))}
    for name, model in programs.items():
        package(model, plain / f"{name}.mlpackage")
    functions = ct.utils.MultiFunctionDescriptor()
    package(program(IOS18, lambda: [mb.const(val=floats(4, 3), name="w")]), plain / "part.mlpackage")
    for name in ("first", "second"):
        functions.add_function(str(plain / "part.mlpackage"), "main", name)
    functions.default_function_name = "first"
    made = plain / "made.mlpackage"
    ct.utils.save_multifunction(functions, str(made))
    package(ct.models.MLModel(str(made), skip_model_load=True), plain / "functions.mlpackage")
    shutil.rmtree(made)
    shutil.rmtree(plain / "part.mlpackage")
    pipeline = ct.proto.Model_pb2.Model()
    pipeline.specificationVersion = 4
    pipeline.description.CopyFrom(network().description)
    pipeline.pipeline.models.extend([network(), matrices()])
    pipeline.pipeline.names.extend(["first", "second"])
    for name, spec in {"network": network(), "matrices": matrices(), "halves": halves(), "pipeline": pipeline}.items():
        (plain / f"{name}.mlmodel").write_bytes(spec.SerializeToString(deterministic=True))
    for path in sorted(plain.iterdir()):
        if path.name != "refused.mlpackage":
            golden(path, plain / f"{path.stem}.safetensors", own=True)
    cases = [("affine", IOS16, affine), ("tables16", IOS16, tables16), ("blocks", IOS18, blocks), ("tables18", IOS18, tables18),
             ("sparse", IOS18, sparse), ("scaled_tables", IOS18, scaled_tables)]  # fmt: skip
    made = [(name, program(target, lambda build=build: list(build()))) for name, target, build in cases]
    for name, model in itertools.chain(made, tools()):
        folder = HERE / "coreml_quantized" / name
        package(model, folder / "made.mlpackage")
        inner = folder / "made.mlpackage/Data/com.apple.CoreML"
        (inner / "model.mlmodel").rename(folder / "model.mlmodel")
        (inner / "weights").rename(folder / "weights")
        shutil.rmtree(folder / "made.mlpackage")
        golden(folder / "model.mlmodel", folder / "expected-f32.safetensors")
        narrow = [(n, "F16", s, np.frombuffer(d, np.float32).astype(np.float16).tobytes()) if k == "F32" else (n, k, s, d)
                  for n, k, s, d in expected(folder / "model.mlmodel", False)]  # fmt: skip
        (folder / "expected-f16.safetensors").write_bytes(safetensors(narrow))
    for name, spec in quantized_networks():
        folder = HERE / "coreml_quantized" / name
        folder.mkdir()
        (folder / "model.mlmodel").write_bytes(spec.SerializeToString(deterministic=True))
        golden(folder / "model.mlmodel", folder / "expected-f32.safetensors")


if __name__ == "__main__":
    main()

"""Models of OpenVINO: `openvino/` (models, and the tensors in each of them) and `openvino_quantized/` (quantized weights, and
what OpenVINO folds them to).

    pip install openvino==2026.4.1 nncf==3.4.0 numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0 onnx==1.23.2
    cd tests/data/generate && python openvino_cases.py
"""

import shutil
from pathlib import Path

import numpy as np
import openvino as ov
from onnx_cases import safetensors
from openvino import opset15 as op
from openvino_runtime import expected

HERE = Path(__file__).parent.parent
RNG = np.random.default_rng(13)


def constant(kind, shape, data, name):
    """A constant of any type from its bytes."""
    tensor = ov.Tensor(kind, ov.Shape(list(shape)))
    view = tensor.data.reshape(-1).view(np.uint8)
    view[:] = np.frombuffer(data, np.uint8)
    node = op.constant(tensor)
    node.set_friendly_name(name)
    return node


def of(nodes):
    """A model whose results are `nodes`."""
    return ov.Model([op.result(n) for n in nodes], [], "net")


def used(node):
    """What keeps a constant from being a result by itself, which converters do not write."""
    return op.convert(node, "f32") if node.get_element_type() != ov.Type.f32 else op.relu(node)


def plain_types():
    kinds = [("f64", 8), ("f32", 4), ("f16", 2), ("bf16", 2), ("i64", 8), ("i32", 4), ("i16", 2), ("i8", 1), ("u64", 8),
             ("u32", 4), ("u16", 2), ("u8", 1), ("f8e4m3", 1), ("f8e5m2", 1)]  # fmt: skip
    nodes = [used(constant(getattr(ov.Type, k), (2, 3), RNG.bytes(6 * n), k)) for k, n in kinds]
    nodes.append(used(constant(ov.Type.boolean, (4,), bytes([0, 1, 1, 0]), "boolean")))
    nodes.append(used(constant(ov.Type.f32, (), np.float32(3).tobytes(), "scalar <&\">")))
    nodes.append(used(constant(ov.Type.f32, (1,), np.float32(3).tobytes(), "same")))
    nodes.append(used(constant(ov.Type.f32, (1,), np.float32(4).tobytes(), "same")))
    return of(nodes)


def bodies():
    """Constants in the bodies of a condition."""
    x = op.parameter([2], np.float32, name="x")
    inner = op.parameter([2], np.float32)
    other = op.parameter([2], np.float32)
    w = lambda name, *v: constant(ov.Type.f32, (2,), np.array(v, np.float32).tobytes(), name)  # noqa: E731
    yes = ov.Model([op.result(op.add(inner, w("w", 1, 2)))], [inner], "yes")
    no = ov.Model([op.result(op.add(other, w("w", 3, 4)))], [other], "no")
    choice = op.if_op(op.parameter([], np.bool_, name="c").output(0))
    choice.set_friendly_name("choice")
    choice.set_then_body(yes)
    choice.set_else_body(no)
    choice.set_input(x.output(0), inner, other)
    out = choice.set_output(yes.get_results()[0], no.get_results()[0])
    condition = choice.input(0).get_source_output().get_node()
    return ov.Model([op.result(op.add(out, w("w", 5, 6)))], [condition, x], "net")


def weight(kind, shape, data, scale, zero=None, name="w", reshape=None, to=np.float16):
    """The layers that decode a weight. Constants of scales and zero points are nodes or arrays."""
    value = op.convert(constant(kind, shape, data, name), to)
    if zero is not None:
        value = op.subtract(value, op.convert(zero, to) if zero.get_element_type() not in (ov.Type.f16, ov.Type.f32) else zero)
    if isinstance(scale, np.ndarray):
        scale = op.constant(scale)
    scale.set_friendly_name(f"{name}/scale")
    of_scale = scale if scale.get_element_type() in (ov.Type.f16, ov.Type.f32) else op.convert(scale, to)
    value = op.multiply(value, of_scale)
    if reshape:
        value = op.reshape(value, op.constant(np.array(reshape)), False)
    return op.convert(value, np.float32) if to is np.float16 else value


def scales(*shape, dtype=np.float16):
    return ((RNG.random(shape) + 0.01) / 64).astype(dtype)


def zeros(kind, shape, data):
    return constant(kind, shape, data, f"zero_{kind.get_type_name()}")


def quantized():
    t = ov.Type
    byte = RNG.bytes
    yield "i8", [weight(t.i8, (4, 6), byte(24), scales(1, 1))]
    yield "i8_f32", [weight(t.i8, (4, 6), byte(24), scales(4, 1, dtype=np.float32), to=np.float32)]
    yield "u8_scalar_zero", [weight(t.u8, (4, 6), byte(24), scales(4, 1), zeros(t.u8, (), b"\x80"))]
    yield "u8_float_zero", [weight(t.u8, (4, 6), byte(24), scales(4, 1), op.constant(np.full((4, 1), 99.5, np.float16)))]
    yield "i8_conv", [weight(t.i8, (3, 2, 2, 2), byte(24), scales(3, 1, 1, 1))]
    yield "i8_group_conv", [weight(t.i8, (2, 3, 2, 2), byte(24), scales(2, 3, 1, 1))]
    yield "i8_middle", [weight(t.i8, (2, 3, 2, 2), byte(24), scales(1, 3, 1, 1), zeros(t.i8, (1, 3, 1, 1), byte(3)))]
    yield "i8_columns", [weight(t.i8, (4, 6), byte(24), scales(1, 6), zeros(t.i8, (1, 6), byte(6)))]
    yield "u4_groups", [weight(t.u4, (3, 2, 8), byte(24), scales(3, 2, 1), zeros(t.u4, (3, 2, 1), byte(3)), reshape=[3, 16])]
    yield "u4_scalar_zero", [weight(t.u4, (3, 2, 8), byte(24), scales(3, 2, 1), zeros(t.u4, (1,), b"\x08"), reshape=[3, 16])]
    yield "u4_u8_zero", [weight(t.u4, (3, 2, 8), byte(24), scales(3, 2, 1), zeros(t.u8, (3, 2, 1), bytes(range(6))))]
    yield "i4_rows", [weight(t.i4, (3, 5), byte(8), scales(3, 1))]
    yield "i4_down", [weight(t.i4, (2, 8, 3), byte(24), scales(2, 1, 3), reshape=[16, 3])]
    yield "u2_groups", [weight(t.u2, (3, 2, 8), byte(12), scales(3, 2, 1), zeros(t.u2, (3, 2, 1), byte(2)), reshape=[3, 16])]
    yield "nf4_down", [weight(t.nf4, (2, 8, 3), byte(24), scales(2, 1, 3), reshape=[16, 3])]
    finite = (np.frombuffer(byte(24), np.uint8) & 0xBF).tobytes()
    yield "e5m2", [weight(t.f8e5m2, (4, 6), finite, scales(4, 1))]
    exponents = constant(t.f8e8m0, (3, 2, 1), bytes([120, 121, 126, 127, 128, 118]), "e")
    yield "mx", [weight(t.f4e2m1, (3, 2, 8), byte(24), exponents, reshape=[3, 16])]
    shared = weight(t.i8, (4, 6), byte(24), scales(4, 1))
    plain = constant(t.f16, (4,), scales(4).tobytes(), "bias")
    yield "beside", [op.relu(shared), op.sigmoid(shared), used(plain), op.gather(shared, op.constant([0, 1]), op.constant(0))]


def compressed():
    """A small network by NNCF."""
    import nncf

    x = op.parameter([1, 64], np.float32, name="x")
    normal = lambda *shape: RNG.standard_normal(shape).astype(np.float32)  # noqa: E731
    fc = op.matmul(x, op.constant(normal(8, 64), name="fc.weight"), False, True, name="fc")
    down = op.matmul(x, op.constant(normal(64, 4), name="down.weight"), False, False, name="down")
    net = ov.Model([op.result(fc), op.result(down)], [x], "net")
    sizes = {"INT8_ASYM": -1, "INT8_SYM": -1, "INT4_SYM": 32, "INT4_ASYM": 32, "NF4": 32, "MXFP4": 32, "MXFP8_E4M3": 32,
             "FP8_E4M3": 64, "FP4": 16, "NVFP4": 16, "CB4": 16}  # fmt: skip
    for mode, size in sizes.items():
        keys = {} if size < 0 else {"group_size": size, "ratio": 1.0, "all_layers": True}
        mode = getattr(nncf.CompressWeightsMode, mode)
        yield f"nncf_{mode.value}", nncf.compress_weights(net.clone(), mode=mode, **keys)


def save(model, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ov.save_model(model, folder / "model.xml", compress_to_fp16=False)
    text = (folder / "model.xml").read_text()
    # What the library says of the machine.
    start = text.find("\t<rt_info>")
    end = text.find("</rt_info>\n", text.rfind("</edges>")) + len("</rt_info>\n")
    if start > text.rfind("</edges>") > 0:
        (folder / "model.xml").write_text(text[:start] + text[end:])


def main():
    for name, model in [("types", plain_types()), ("bodies", bodies())]:
        folder = HERE / "openvino" / name
        save(model, folder)
        (folder / "expected.safetensors").write_bytes(safetensors(list(expected(folder / "model.xml"))))
    cases = [(name, of(nodes)) for name, nodes in quantized()] + list(compressed())
    for name, model in cases:
        if name == "nncf_nvfp4":
            # Its scales are computed: refused.
            save(model, HERE / "openvino" / name)
            continue
        folder = HERE / "openvino_quantized" / name
        save(model, folder)
        (folder / "expected-f32.safetensors").write_bytes(safetensors(list(expected(folder / "model.xml"))))
        own = list(expected(folder / "model.xml", False))
        if any(t[1] == "F16" for t in own):
            (folder / "expected-f16.safetensors").write_bytes(safetensors(own))


if __name__ == "__main__":
    main()

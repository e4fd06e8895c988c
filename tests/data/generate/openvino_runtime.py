"""What OpenVINO makes of the constants of a model in its intermediate representation."""

import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset15 as op
from openvino.passes import ConstantFolding, Manager

DTYPES = {
    "f64": "F64", "f32": "F32", "f16": "F16", "bf16": "BF16", "f8e4m3": "F8_E4M3", "f8e5m2": "F8_E5M2",
    "f8e8m0": "F8_E8M0", "i64": "I64", "i32": "I32", "i16": "I16", "i8": "I8", "u64": "U64", "u32": "U32", "u16": "U16",
    "u8": "U8", "boolean": "BOOL", "f4e2m1": "F4",
}  # fmt: skip
CODES = {"u8", "i8", "u4", "i4", "u2", "nf4", "f4e2m1", "f8e4m3", "f8e5m2"}
BODIES = ("body", "then_body", "else_body")


def folded(node):
    """The values of a node of constants alone, as OpenVINO computes them."""
    model = ov.Model([op.result(node.output(0))], [], "part")
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(model)
    end = model.get_results()[0].input(0).get_source_output().get_node()
    if end.get_type_name() == "Constant":
        return np.array(end.data).reshape(tuple(node.get_output_shape(0)))
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(list(compiled({}).values())[0])


def source(node, i):
    return node.input(i).get_source_output().get_node()


def constant_of(node):
    while node.get_type_name() == "Convert":
        node = source(node, 0)
    return node if node.get_type_name() == "Constant" else None


def only_user(node):
    users = list(node.output(0).get_target_inputs())
    return (users[0].get_node(), users[0].get_index()) if len(users) == 1 else (None, 0)


def decoded(node):
    """Values of codes in F32 and as the graph computes them, and the names of their companions; None: no codes."""
    # What is added to the graph counts as a user, so the layers come first.
    f32, layer, steps = np.float32, node, []
    while not steps or steps[-1][0] != "Multiply":
        layer, i = only_user(layer)
        kind = layer.get_type_name() if layer else ""
        if kind == "Convert":
            continue
        is_codebook = kind == "Gather" and i == 1
        if kind not in ("Subtract", "Multiply") and not is_codebook:
            return None
        other = constant_of(source(layer, 0 if is_codebook else 1 - i))
        if other is None:
            return None
        steps.append((kind, other))
    end, next_ = layer, only_user(layer)[0]
    if next_ is not None and next_.get_type_name() == "Reshape":
        end = next_
    as_it_is = folded(end)
    value = op.convert(op.convert(node, np.float16), f32)
    for kind, other in steps:
        wide = op.convert(other, f32) if other.get_element_type() != ov.Type.f32 else other
        if kind == "Gather":
            value = op.gather(wide, op.convert(node, np.uint8), op.constant(0))
        else:
            value = op.subtract(value, wide) if kind == "Subtract" else op.multiply(value, wide)
    if end is not layer:
        value = op.reshape(value, source(end, 1), False)
    return folded(value), as_it_is, [other.get_friendly_name() for _, other in steps]


def constants(net, before=""):
    """Name, number and the attributes of the data of each constant of a graph and of those in its layers."""
    for layer in net.find("layers"):
        for body in [b for tag in BODIES for b in layer.findall(tag)]:
            yield from constants(body, f"{before}{layer.get('name')}.{body.tag}.")
        if layer.get("type") == "Const":
            yield before + layer.get("name"), layer.get("id"), layer.find("data").attrib


def expected(path, widened=True):
    """Name, dtype, shape and bytes of the weights of a model, as they are decoded: in F32, or as the graph computes."""
    path = Path(path)
    data = path.with_suffix(".bin").read_bytes()
    found = list(constants(ElementTree.parse(path).getroot()))
    counts = Counter(name for name, *_ in found)
    # Nodes know of their users as long as the model lives.
    model = ov.Core().read_model(path)
    nodes = {n.get_friendly_name(): n for n in model.get_ops() if n.get_type_name() == "Constant"}
    values, companions = {}, set()
    for name, _, a in found:
        shape = tuple(int(n) for n in a["shape"].split(",") if n.strip())
        made = decoded(nodes[name]) if a["element_type"] in CODES and name in nodes and np.prod(shape) > 1 else None
        if made:
            values[name] = made
            companions |= set(made[2])
    for name, number, a in found:
        shape = [int(n) for n in a["shape"].split(",") if n.strip()]
        unique = name if counts[name] == 1 else f"{name}.{number}"
        if name in values:
            array = values[name][0 if widened else 1]
            dtype = {"float32": "F32", "float16": "F16"}[array.dtype.name]
            yield unique, dtype, list(array.shape), np.ascontiguousarray(array).tobytes()
        elif name not in companions and a["element_type"] in DTYPES:
            start = int(a["offset"])
            yield unique, DTYPES[a["element_type"]], shape, data[start : start + int(a["size"])]

"""Programs of ExecuTorch: `executorch/` (files, and the tensors in each of them) and `executorch_quantized/` (quantized
weights, and what torch and torchao decode them to).

    pip install executorch==1.5.1 torch==2.15.0 torchao==0.18.0 numpy==2.4.6
    cd tests/data/generate && python executorch_cases.py
"""

import copy
import hashlib
import json
import operator
import shutil
import tempfile
from pathlib import Path

import executorch.kernels.quantized  # noqa: F401  Operators of quantized tensors.
import torch
import torchao.quantization as ao
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import (
    EdgeCompileConfig,
    ExecutorchBackendConfig,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir._serialize._flatbuffer_program import _program_to_flatbuffer
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.exir.schema import Tensor
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

HERE = Path(__file__).parent.parent
NAMES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int8: "I8",
    torch.uint8: "U8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64", torch.bool: "BOOL",
}  # fmt: skip
UNCHECKED = EdgeCompileConfig(_check_ir_validity=False)


def raw(t):
    t = t.detach().contiguous().cpu()
    return t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def safetensors(tensors, metadata=None):
    header, at, data = {"__metadata__": metadata} if metadata else {}, 0, b""
    for name, t in tensors:
        part = raw(t)
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(part)]}
        at, data = at + len(part), data + part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


class Types(torch.nn.Module):
    """Uses a constant of each type."""

    def __init__(self):
        super().__init__()
        for i, dtype in enumerate(NAMES):
            values = torch.arange(6).reshape(2, 3) + i
            self.register_buffer(f"b{i}", values.to(dtype) if dtype != torch.bool else values % 2 == 0)
        image = torch.arange(24, dtype=torch.float32).reshape(1, 2, 3, 4)
        self.register_buffer("image", image.to(memory_format=torch.channels_last))

    def forward(self, x):
        return [x * getattr(self, f"b{i}") for i in range(len(NAMES))], x.sum() + self.image


class Net(torch.nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.conv, self.fc = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(64, 8, bias)
        self.deep = torch.nn.Conv2d(4, 4, 3, groups=4, padding=1)

    def forward(self, x):
        return self.fc(self.deep(self.conv(x)).flatten(1))


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 32), torch.nn.Linear(32, 64, bias=False)

    def forward(self, x):
        return self.second(self.first(x))


class State(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)
        self.register_buffer("state", torch.tensor([1.5, -2.0]))

    def forward(self, x):
        self.state.add_(1.0)
        return self.fc(x) + self.state


IMAGE = (torch.ones(1, 3, 6, 6),)
VECTOR = (torch.ones(1, 64),)


def constants(data, names):
    """Constants of a program, as its own reader gives them, by the names of `names` or their numbers."""
    program = deserialize_pte_binary(data).program
    seen = set()
    for plan in program.execution_plan:
        for value in plan.values:
            t = value.val
            if not isinstance(t, Tensor) or t.data_buffer_idx == 0 or t.allocation_info is not None:
                continue
            if t.data_buffer_idx in seen or t.extra_tensor_info and int(t.extra_tensor_info.location) == 1:
                continue
            seen.add(t.data_buffer_idx)
            dtype = {0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16,
                     6: torch.float32, 7: torch.float64, 11: torch.bool, 15: torch.bfloat16}[int(t.scalar_type)]  # fmt: skip
            stored = bytearray(program.constant_buffer[t.data_buffer_idx].storage)
            inner = [t.sizes[d] for d in t.dim_order]
            n = dtype.itemsize
            for size in inner:
                n *= size
            values = torch.frombuffer(stored[:n], dtype=dtype).reshape(inner)
            values = values.permute([t.dim_order.index(d) for d in range(len(inner))])
            yield names.get(t.data_buffer_idx, f"constant_{t.data_buffer_idx}"), values


def write_plain():
    folder = HERE / "executorch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    index, files, tensors = [], [], []

    def add(name, ending, data, found, expect="ok", detail=""):
        (folder / f"{name}.{ending}").write_bytes(data)
        index.append({"file": f"{name}.{ending}", "expect": expect, "detail": detail})
        if expect != "error":
            files.append(name)
            tensors.extend((f"{name}/{key}", t) for key, t in found)

    torch.manual_seed(1)
    types = to_edge(torch.export.export(Types(), (torch.ones(2, 3),)), compile_config=UNCHECKED).to_executorch().buffer
    add("types", "pte", types, constants(types, {}))

    torch.manual_seed(2)
    net = Net().eval()
    exported = torch.export.export(net, IMAGE)
    plain = to_edge(exported).to_executorch().buffer
    add("net", "pte", plain, constants(plain, {}))
    # As programs were before segments.
    inline = deserialize_pte_binary(plain).program
    inline.segments, inline.constant_segment, inline.named_data = [], None, None
    inline = bytes(_program_to_flatbuffer(inline).data)
    add("inline", "pte", inline, constants(plain, {}))

    apart = to_edge(exported).to_executorch(ExecutorchBackendConfig(external_constants=True))
    with tempfile.TemporaryDirectory() as place:
        apart.write_tensor_data_to_file(place)
        [data] = Path(place).iterdir()
        add("data", "ptd", data.read_bytes(), sorted(net.state_dict().items()))
    add("apart", "pte", apart.buffer, constants(apart.buffer, {}), "skips", "in a .ptd")

    torch.manual_seed(3)
    state = State().eval()
    config = ExecutorchBackendConfig(passes=[InitializedMutableBufferPass(["state"])], emit_mutable_buffer_names=True)
    mutable = to_edge(torch.export.export(state, (torch.ones(1, 3),))).to_executorch(config).buffer
    found = list(constants(mutable, {})) + [("state", torch.tensor([1.5, -2.0]))]
    add("state", "pte", mutable, found)

    for name, net, example in [("xnnpack_f32", Net().eval(), IMAGE), ("xnnpack_f16", Two().eval().half(), (VECTOR[0].half(),)),
                               ("xnnpack_bf16", Two().eval().bfloat16(), (VECTOR[0].bfloat16(),))]:  # fmt: skip
        data = lowered(net, example)
        add(name, "pte", data, weights(data, net.state_dict().values()))

    cut = plain[: len(plain) - 1]
    add("cut", "pte", cut, [], "error", "its last byte is missing")
    add("no_header", "ptd", b"\0\0\0\0FT01" + bytes(56), [], "error", "no header")
    (folder / "expected.safetensors").write_bytes(safetensors(tensors, {"files": json.dumps(files)}))
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def lowered(net, example):
    return to_edge_transform_and_lower(torch.export.export(net, example), partitioner=[XnnpackPartitioner()]).to_executorch().buffer


def stored_forms(t):
    """How XNNPACK's exporter may lay out a weight: as it is, channels last, and depthwise."""
    yield t
    if t.dim() == 4:
        yield t.permute(0, 2, 3, 1).contiguous()
        yield t.permute(1, 2, 3, 0).contiguous()


def weights(data, candidates):
    """The named data of a program, found by what it is the hash of."""
    named = deserialize_pte_binary(data).named_data
    keys = set(named.pte_data if named else ())
    found = {}
    for t in candidates:
        for t in [t, t.float()]:
            for form in stored_forms(t):
                found.setdefault(hashlib.sha256(raw(form)).hexdigest(), form)
    yield from constants(data, {})
    missing = [key for key in keys if key not in found]
    assert not missing, missing
    yield from ((key, found[key]) for key in sorted(keys))


def packed(codes):
    """Codes of four bits, as the exporter packs them."""
    codes = (codes.to(torch.int16) + 8).to(torch.uint8).reshape(-1)
    return codes[1::2] << 4 | codes[::2]


def quantized(data, weights, plain):
    """Tensors of a program: `weights` are pairs of codes, as they are stored, and values."""
    keys = {key for key in deserialize_pte_binary(data).named_data.pte_data if not key.startswith("scale_")}
    found = {}
    for codes, values in weights:
        for form, value in zip(stored_forms(codes), stored_forms(values)):
            found[hashlib.sha256(raw(form)).hexdigest()] = value
    for t in plain:
        found[hashlib.sha256(raw(t)).hexdigest()] = t
    yield from constants(data, {})
    missing = [key for key in keys if key not in found]
    assert not missing, missing
    yield from ((key, found[key].float()) for key in sorted(keys))


def by_torchao(weight_dtype, granularity):
    torch.manual_seed(5)
    net = Two().eval()
    config = ao.Int8DynamicActivationIntxWeightConfig(weight_dtype=weight_dtype, weight_granularity=granularity)
    ao.quantize_(net, config)
    pairs = []
    for layer in [net.first, net.second]:
        w = layer.weight
        codes, scale = w.qdata, w.scale
        if weight_dtype == torch.int4:
            # XNNPACK has such scales as BF16, and a row as one group.
            w = copy.deepcopy(w)
            w.scale = scale.bfloat16().float()
        values = w.dequantize()
        pairs.append((packed(codes) if weight_dtype == torch.int4 else codes, values))
    data = lowered(net, VECTOR)
    plain = [net.first.bias]
    return data, list(quantized(data, pairs, plain))


def converted(net, example, is_per_channel, is_dynamic):
    torch.manual_seed(6)
    net = torch.export.export(net, example).module()
    config = get_symmetric_quantization_config(is_per_channel=is_per_channel, is_dynamic=is_dynamic)
    net = prepare_pt2e(net, XNNPACKQuantizer().set_global(config))
    for _ in range(4):
        net(torch.randn_like(example[0]))
    return convert_pt2e(net)


def quantized_bias(get, inputs, weight, bias):
    """Codes and values of a bias, whose scale is that of the activations times that of the weight."""
    ops, limits = torch.ops.quantized_decomposed, (-(2**31), 2**31 - 1)
    x, w = inputs.args[1], weight.args[1]
    if isinstance(w, float):
        codes = ops.quantize_per_tensor(get(bias), x * w, 0, *limits, torch.int32)
        return codes, ops.dequantize_per_tensor(codes, x * w, 0, *limits, torch.int32)
    scale = get(w) * x
    zeros = torch.zeros_like(scale, dtype=torch.int64)
    codes = ops.quantize_per_channel(get(bias), scale, zeros, 0, *limits, torch.int32)
    return codes, ops.dequantize_per_channel(codes, scale, zeros, 0, *limits, torch.int32)


def weights_of(net):
    """Codes and values of weights in a converted graph, and its other parameters."""
    ops, pairs, used = torch.ops.quantized_decomposed, [], set()
    get = lambda node: operator.attrgetter(node.target)(net)
    for node in net.graph.nodes:
        if node.op != "call_function" or not node.args or getattr(node.args[0], "op", "") != "get_attr":
            continue
        args = [get(a) if getattr(a, "op", "") == "get_attr" else a for a in node.args]
        if node.target in (ops.dequantize_per_channel.default, ops.dequantize_per_tensor.default):
            pairs.append((args[0], node.target(*args)))
            used.add(node.args[0].target)
    for node in net.graph.nodes:
        if str(node.target) in ("aten.conv2d.default", "aten.linear.default"):
            # The scale of activations that are quantized while the model runs is not known.
            if len(node.args) > 2 and isinstance(node.args[0].args[1], float):
                pairs.append(quantized_bias(get, *node.args[:3]))
    rest = [t for name, t in list(net.named_parameters()) + list(net.named_buffers()) if name not in used]
    return pairs, rest


def by_pt2e(net, example, *options):
    net = converted(net, example, *options)
    pairs, rest = weights_of(net)
    data = lowered(net, example)
    return data, list(quantized(data, pairs, rest))


def portable():
    """Operators of quantized tensors without a backend."""
    net = converted(Two().eval(), VECTOR, True, False)
    pairs, _ = weights_of(net)
    data = to_edge(torch.export.export(net, VECTOR), compile_config=UNCHECKED).to_executorch().buffer
    out = []
    for name, t in constants(data, {}):
        same = [value for codes, value in pairs if codes.dtype == t.dtype and raw(codes) == raw(t)]
        out.append((name, same[0] if same else t, bool(same)))
    companions = {raw(t) for node in net.graph.nodes if "dequantize_per_channel" in str(node.target)
                  for t in [operator.attrgetter(a.target)(net) for a in node.args[1:3]]}  # fmt: skip
    return data, [(name, t) for name, t, is_code in out if is_code or raw(t) not in companions]


def write_quantized():
    folder = HERE / "executorch_quantized"
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(4)
    cases = {
        "a8w4_groups": by_torchao(torch.int4, ao.PerGroup(32)),
        "a8w4_channels": by_torchao(torch.int4, ao.PerAxis(0)),
        "a8w8": by_torchao(torch.int8, ao.PerAxis(0)),
        "pt2e_channels": by_pt2e(Net().eval(), IMAGE, True, False),
        "pt2e_tensor": by_pt2e(Net().eval(), IMAGE, False, False),
        "pt2e_dynamic": by_pt2e(Two().eval(), VECTOR, True, True),
        "portable": portable(),
    }
    for name, (data, tensors) in cases.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "model.pte").write_bytes(data)
        (folder / name / "expected-f32.safetensors").write_bytes(safetensors(tensors))


if __name__ == "__main__":
    write_plain()
    write_quantized()

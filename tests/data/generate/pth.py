"""Golden PyTorch files: written by torch.save where it still writes such a file, by hand where it does not.

    pip install torch==2.15.0 numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0
    python pth.py

It rewrites ../pth/*. Seeds are the CRC-32 of the case's name. It takes the first half of npz.py.

../pth/expected.safetensors holds, as <name>/<tensor>, the tensors that a reader must give for <name>.pt (.pth, .bin, .ckpt, .pkl):
the contiguous elements, little-endian. A name is the way to the tensor: keys of dicts as `str` gives them and indices
of lists and tuples, joined by dots. A tensor that is the root is named `tensor`. What is no tensor is left out.

../pth/index.json is as npz.py says. Instead of `numpy` there is

    torch       what `torch.load(weights_only=True)` did: `loads`, or why not. Where it loads, the script has compared
                the values with those expected, unless the entry says otherwise.
    torch_full  the same with `weights_only=False`, which runs what the file tells it to run. It is there for some of
                the files that this script has made itself and that are no attacks.
    shared      lists of names whose tensors have the same storage
    tied        lists of names whose tensors are the same: storage, offset, shape and strides

Files named attack_* call something they must not. The commands are harmless, and still nothing here executes them.
"""

import argparse
import collections
import io
import os
import pickle
import pickletools
import re
import struct
import sys
import tarfile
import tempfile
import types
import warnings
import zipfile

os.environ["TORCHDYNAMO_DISABLE"] = "1"
warnings.filterwarnings("ignore")

import numpy as np
import torch
from npz import TORCH, Family, from_bytes, member, seed, to_bytes

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
ELEMENT = {"Double": 8, "Float": 4, "Half": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
           "BFloat16": 2, "ComplexDouble": 16, "ComplexFloat": 8, "QInt8": 1, "QUInt8": 1, "QInt32": 4, "QUInt4x2": 1,
           "QUInt2x4": 1}

# ---------------------------------------------------------------- tensors


def rand(name, dtype, *shape):
    """Random bits. F4 is packed: `shape` has bytes in the last place."""
    dtype = dtype if isinstance(dtype, str) else next(k for k, v in TORCH.items() if v == dtype)
    size = torch.empty((), dtype=TORCH[dtype]).element_size()
    bits = np.random.default_rng(seed(name)).integers(0, 2 if dtype == "BOOL" else 256, int(np.prod(shape)) * size)
    return from_bytes(dtype, shape, bits.astype(np.uint8).tobytes())


def numbers(name, *shape):
    """Ordinary F32 numbers."""
    return torch.from_numpy(np.random.default_rng(seed(name)).integers(-99, 99, shape).astype(np.float32) / 8)


def fill(name, state):
    """Overwrites every float tensor in `state` with random bits, so that nothing depends on how torch computes."""
    with torch.no_grad():
        for key, t in flatten(state):
            if t.is_floating_point():
                t.copy_(rand(f"{name}/{key}", t.dtype, *t.shape))
    return state


def flatten(value, path=()):
    if isinstance(value, torch.Tensor):
        yield ".".join(path) if path else "tensor", value
    elif isinstance(value, dict):
        for k, v in value.items():
            yield from flatten(v, (*path, str(k)))
    elif isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            yield from flatten(v, (*path, str(i)))


def sharing(tensors):
    """Names of tensors that have the same storage, and of those that are the same tensor."""
    storages, same = collections.defaultdict(list), collections.defaultdict(list)
    for name, t in tensors.items():
        if t.numel():
            storage = t.untyped_storage().data_ptr()
            storages[storage].append(name)
            same[storage, t.dtype, t.storage_offset(), t.shape, t.stride()].append(name)
    groups = {"shared": storages, "tied": same}
    return {k: found for k, v in groups.items() if (found := [names for names in v.values() if len(names) > 1])}


# ---------------------------------------------------------------- containers


def save(obj, **options):
    f = io.BytesIO()
    torch.save(obj, f, **options)
    return f.getvalue()


def records(content):
    """The records of a zip, without the folder that they all are in."""
    with zipfile.ZipFile(io.BytesIO(content)) as z:
        return {name.split("/", 1)[1]: z.read(name) for name in z.namelist()}


def torch_zip(found):
    """What torch.save makes of these records. It adds `version` and `.data/serialization_id`."""
    f = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(f, True, 64)
    for name, content in found.items():
        if name not in ("version", ".data/serialization_id"):
            writer.write_record(name, bytes(content), len(content))
    writer.write_end_of_file()
    return f.getvalue()


def plain_zip(found, folder="archive", method=zipfile.ZIP_STORED):
    """What any zip program makes of these records: no alignment, no data descriptors."""
    f = io.BytesIO()
    with zipfile.ZipFile(f, "w") as z:
        for name, content in found.items():
            z.writestr(member(f"{folder}/{name}" if folder else name, method), bytes(content))
    return f.getvalue()


def respell(content, change):
    """A pickle with opcodes replaced: change(name, argument) gives bytes, or None to leave the opcode alone."""
    out, frame = b"", None
    ops = list(pickletools.genops(content))
    for (op, argument, at), end in zip(ops, [at for _, _, at in ops[1:]] + [len(content)]):
        if op.name == "FRAME":
            assert frame is None and at + 9 + argument == len(content)
            frame = at
        new = change(op.name, argument)
        out += content[at:end] if new is None else new
    return out if frame is None else out[: frame + 1] + struct.pack("<Q", len(out) - frame - 9) + out[frame + 9 :]


def binunicode(text):
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def pickles(content, count):
    """Splits off `count` pickles."""
    f, parts = io.BytesIO(content), []
    for _ in range(count):
        start = f.tell()
        for _ in pickletools.genops(f):
            pass
        parts.append(content[start : f.tell()])
    return parts, content[f.tell() :]


class Spy(pickle.Unpickler):
    """Finds the storages that a pickle of ours names, and calls nothing."""

    def __init__(self, content):
        super().__init__(io.BytesIO(content))
        self.found = {}
        self.load()

    def find_class(self, module, name):
        return type(name, (dict,), {"__init__": lambda *_: None, "__new__": lambda cls, *_: dict.__new__(cls),
                                    "__setstate__": lambda *_: None, "__hash__": lambda _: 0,
                                    "append": lambda *_: None, "extend": lambda *_: None})

    def persistent_load(self, pid):
        if pid[0] != "storage":
            return self.find_class("", "module")
        _, kind, key, _, numel, *_ = pid
        self.found.setdefault(key, (kind.__name__.removesuffix("Storage"), numel))
        return ()


def legacy(content, name):
    """A file of the legacy format with storage keys that are not addresses in memory."""
    parts, rest = pickles(content, 5)
    found = Spy(parts[3]).found
    data = {}
    for key in pickle.loads(parts[4]):
        (numel,) = struct.unpack_from("<q", rest)
        assert numel == found[key][1]
        end = 8 + numel * ELEMENT.get(found[key][0], 1)
        data[key], rest = rest[:end], rest[end:]
    assert not rest and set(data) == set(found)
    keys = {old: str(94000000000000 + seed(f"{name}/{i}")) for i, old in enumerate(found)}

    def rename(op, argument):
        if op in ("BINUNICODE", "SHORT_BINUNICODE") and argument in keys:
            text = keys[argument].encode()
            return b"\x8c" + bytes([len(text)]) + text if op.startswith("SHORT") else binunicode(keys[argument])

    protocol = parts[0][1]
    listed = sorted(keys.values())
    old = {v: k for k, v in keys.items()}
    return b"".join([*parts[:3], respell(parts[3], rename), pickle.dumps(listed, protocol)]
                    + [data[old[key]] for key in listed])


def save_legacy(obj, name, **options):
    return legacy(save(obj, _use_new_zipfile_serialization=False, **options), name)


class Pid:
    """A persistent id."""

    def __init__(self, *pid):
        self.pid = pid


class Call:
    """What pickles as the call of a function, and perhaps a state for BUILD."""

    def __init__(self, function, args, state=None):
        self.value = (function, args) if state is None else (function, args, state)

    def __reduce__(self):
        return self.value


def by_hand(obj, protocol=2):
    class Pickler(pickle._Pickler):
        def persistent_id(self, x):
            return (x.pid if len(x.pid) != 1 else x.pid[0]) if isinstance(x, Pid) else None

    f = io.BytesIO()
    Pickler(f, protocol).dump(obj)
    return f.getvalue()


def rebuild(pid, offset, size, stride, function=torch._utils._rebuild_tensor_v2, more=None):
    more = (False, collections.OrderedDict()) if more is None else more
    return Call(function, (pid, offset, size, stride, *more))


def cpu(key, numel, kind=torch.FloatStorage, *view):
    return Pid("storage", kind, key, "cpu", numel, *view)


def legacy_by_hand(obj, storages, sys_info=None, protocol=2):
    """storages: key -> (numel, bytes)."""
    sizes = {"short": 2, "int": 4, "long": 4}
    sys_info = sys_info or {"protocol_version": PROTOCOL, "little_endian": True, "type_sizes": sizes}
    parts = [pickle.dumps(x, protocol) for x in (MAGIC, PROTOCOL, sys_info)]
    parts += [by_hand(obj, protocol), pickle.dumps(sorted(storages), protocol)]
    return b"".join(parts) + b"".join(struct.pack("<q", storages[k][0]) + storages[k][1] for k in sorted(storages))


def tar_by_hand(obj, storages, views, tensors, stored=None):
    """The oldest format. storages: [(key, type, numel, bytes)], views: [(key, root, offset, numel)],
    tensors: [(key, storage key, type, size, stride, offset)]; persistent ids are the keys as text. `stored` is all of
    the member `storages` instead."""
    sys_info = {"protocol_version": 1000, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    if stored is None:
        stored = pickle.dumps(len(storages), 2)
        for key, kind, numel, content in storages:
            stored += pickle.dumps((key, "cpu", kind), 2) + struct.pack("<q", numel) + content
        stored += pickle.dumps(views, 2)
    metadata = pickle.dumps(len(tensors), 2)
    for key, storage, kind, size, stride, offset in tensors:
        metadata += pickle.dumps((key, storage, kind), 2)
        metadata += struct.pack(f"<q{2 * len(size) + 1}q", len(size), *size, *stride, offset)
    f = io.BytesIO()
    with tarfile.open(fileobj=f, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        for name, content in [("sys_info", pickle.dumps(sys_info, 2)), ("pickle", by_hand(obj)),
                              ("tensors", metadata), ("storages", stored)]:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return f.getvalue()


# ---------------------------------------------------------------- torch.load


def reason(e):
    """An exception in a few words that are the same everywhere."""
    text = re.sub("\x1b\\[[0-9;]*m", "", str(e))
    for pattern, words in [
        (r"Unsupported global: GLOBAL (\S+) was not", "refuses the global {}"),
        (r"load unsupported GLOBAL (\S+) whose module", "blocks the global {}"),
        (r"Unsupported operand (\d+)", "refuses the opcode {}"),
        (r"Cannot use ``weights_only=True`` with (.+?)\. In ", "refuses {}"),
    ]:
        if found := re.search(pattern, text):
            what = found[1]
            if "opcode" in words:
                what = next((op.name for op in pickletools.opcodes if ord(op.code) == int(what)), what)
            return words.format(what.strip())
    text = text.split("WeightsUnpickler error: ")[-1].strip().split("\n")[0]
    text = re.sub(r"INTERNAL ASSERT FAILED at \S+", "INTERNAL ASSERT FAILED", text)
    text = re.sub("0x[0-9a-f]+", "...", text)
    text = text if len(text) < 120 else text[:110] + "..."
    return f"{type(e).__name__}: {text}" if text else type(e).__name__


def torch_says(content, expected, weights_only=True, compare=True, extra=()):
    with tempfile.NamedTemporaryFile() as f:  # a real file: the oldest format needs one
        f.write(content)
        f.flush()
        try:
            loaded = torch.load(f.name, map_location="cpu", weights_only=weights_only)
        except Exception as e:
            return reason(e)
    if not compare:
        return "loads"
    got = dict(flatten(loaded))
    assert set(got) == set(expected) | set(extra), (set(got), set(expected), extra)
    differ = [k for k in expected if expected[k].dtype != got[k].dtype or expected[k].shape != got[k].shape
              or to_bytes(expected[k]) != to_bytes(got[k])]
    return f"loads, but with other values of {', '.join(differ)}" if differ else "loads"


def main():
    out = Family("pth")

    def add(file, content, detail, obj=None, full=False, compare=True, expect="ok", skipped=(), **more):
        """`obj`: what is in the file. Its tensors are expected, but for the skipped."""
        tensors = {k: t for k, t in flatten(obj) if k not in skipped}
        more |= sharing(tensors)
        says = {"torch": torch_says(content, tensors, compare=compare, extra=skipped)}
        if full:
            says["torch_full"] = torch_says(content, tensors, False, compare, skipped)
        out.add(file, content, detail, tensors, expect, skipped, **says, **more)

    # -- dtypes

    every = {k.lower(): rand(f"dtypes/{k}", k, 2, 4) for k in TORCH}
    add("dtypes.pt", save(every), "every dtype, [2, 4]; F4 is packed, [2, 4] bytes", every)
    old = {k: t for k, t in every.items() if t.dtype not in torch.storage._new_dtypes()}
    add("legacy_dtypes.pt", save_legacy(old, "legacy_dtypes"), "every dtype that the legacy format knows", old)
    new = {k: t for k, t in every.items() if k not in old}
    add("legacy_dtypes_untyped.pt", save_legacy(new, "legacy_dtypes_untyped"),
        "dtypes in untyped storages, _rebuild_tensor_v3: torch saves them in the legacy format and cannot load them",
        new, full=True, policy=True)
    bits = rand("dtypes_skipped", "U8", 2, 16)
    odd = {"before": rand("before", "F32", 3)}
    odd |= {str(d).split(".")[1]: bits.clone().view(d) for d in (
        torch.complex128, torch.complex32, torch.bcomplex32, torch.bits8, torch.bits16, torch.bits1x8, torch.bits2x4,
        torch.bits4x2)}
    odd["after"] = rand("after", "F16", 3)
    add("dtypes_skipped.pt", save(odd), "dtypes that safetensors does not have", odd, compare=False,
        expect="skips", skipped=[k for k in odd if k not in ("before", "after")])
    x = numbers("quantized", 3, 4)
    scales, zeros = torch.tensor([0.5, 0.25, 2.0], dtype=torch.float64), torch.tensor([0, 3, -4])
    quantized = {
        "qint8": torch.quantize_per_tensor(x, 0.5, -3, torch.qint8),
        "quint8": torch.quantize_per_tensor(x, 0.5, 100, torch.quint8),
        "qint32": torch.quantize_per_tensor(x, 0.5, 7, torch.qint32),
        "qint8_channels": torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8),
        "quint8_channels": torch.quantize_per_channel(x, scales, zeros + 9, 0, torch.quint8),
        "quint4x2_channels": torch.quantize_per_channel(x, scales.float(), zeros.float(), 0, torch.quint4x2),
        "plain": x,
    }
    for name, content in ("", save(quantized)), ("legacy_", save_legacy(quantized, "quantized")):
        add(f"{name}quantized.pt", content, "quantized tensors, _rebuild_qtensor; scales and zero points of channels "
            "are tensors in its arguments", quantized, compare=False, expect="skips",
            skipped=[k for k in quantized if k != "plain"])

    # -- views

    base, cube = rand("views/base", "F32", 5, 6), rand("views/cube", "I16", 2, 3, 4)
    views = {
        "slice": base[1:4, 2:5], "rows": base[3:], "step": base[::2, 1::3], "column": base[:, 4], "element": base[2, 3],
        "transposed": base.t(), "expanded": base[:, :1].expand(5, 3), "new_axis": base[0].expand(2, 3, 6),
        "overlapping": base.as_strided((3, 4), (2, 1), 5), "repeated": base.as_strided((2, 2), (0, 0), 7),
        "diagonal": base.diagonal(), "empty": base[5:],
        "permuted": cube.permute(2, 0, 1), "swapped": cube.transpose(0, 2), "inner": cube[1, 1:, ::3],
        "channels_last": rand("views/cl", "F16", 2, 3, 2, 2).to(memory_format=torch.channels_last),
        "gap": rand("views/gap", "U8", 64)[10:13],
    }
    add("views.pt", save(views), "views of three storages: offsets and strides of every kind", views)
    add("legacy_views.pt", save_legacy(views, "views"), "the same in the legacy format", views)
    shapes = {"scalar": rand("s", "F32"), "one": rand("one", "F32", 1), "0": rand("0", "F32", 0),
              "0x4": rand("0x4", "F32", 0, 4), "4x0x2": rand("4x0x2", "BF16", 4, 0, 2),
              "ones": rand("ones", "I8", 1, 1, 1, 1), "7d": rand("7d", "U8", 1, 2, 1, 2, 1, 2, 1),
              "scalar_of_more": rand("more", "I64", 4)[2], "empty_with_offset": rand("offset", "F64", 6)[4:4]}
    add("shapes.pt", save(shapes), "ranks from 0 to 7, no elements", shapes)
    z = torch.complex(numbers("re", 3), numbers("im", 3))
    lazy = {"conj": z.conj(), "neg": torch.complex(numbers("re2", 2), numbers("im2", 2)).conj().imag}
    add("conj_neg.pt", save(lazy), "_rebuild_tensor_v2 with a seventh argument, {'conj': True} or {'neg': True}: "
        "the storage has the values before conjugation or negation", lazy)
    add("legacy_conj_neg.pt", save_legacy(lazy, "conj_neg"), "the same in the legacy format", lazy)
    w = rand("tied", "BF16", 4, 3)
    tied = {"embed.weight": w, "lm_head.weight": w, "same_again": w.view(4, 3), "transposed": w.t(), "rows": w[1:3],
            "other": w.clone()}
    add("tied.pt", save(tied), "names that share a storage; the first two are one object", tied)
    add("legacy_tied.pt", save_legacy(tied, "tied"), "the same in the legacy format", tied)

    # -- parameters, buffers, attributes

    p, q = torch.nn.Parameter(rand("p", "F32", 2, 3)), torch.nn.Parameter(rand("q", "F16", 2), requires_grad=False)
    named = {"p": p, "frozen": q, "p_again": p, "grad": rand("g", "F32", 2).requires_grad_()}
    add("parameter.pt", save(named), "nn.Parameter: _rebuild_parameter around _rebuild_tensor_v2", named)
    add("legacy_parameter.pt", save_legacy(named, "parameter"), "the same in the legacy format", named)
    stateful = torch.nn.Parameter(rand("stateful", "F32", 2, 3))
    stateful.quantized, stateful.scale, stateful.label = True, rand("hidden", "F32", 2), "text"
    attributes = rand("attributes", "I32", 3)
    attributes.note = {"a": [1, 2.5]}
    held = {"parameter": stateful, "tensor": attributes, "buffer": torch.nn.Buffer(rand("buffer", "F32", 3))}
    add("attributes.pt", save(held), "_rebuild_parameter_with_state with a tensor in the state, which is no entry of "
        "its own; _rebuild_from_type_v2 of torch.Tensor, as nn.Buffer is saved", held)

    # -- checkpoints

    torch.manual_seed(0)
    model = torch.nn.Sequential(collections.OrderedDict(
        embed=torch.nn.Embedding(5, 2), norm=torch.nn.BatchNorm1d(2), head=torch.nn.Linear(2, 3)))
    fill("model", model.state_dict())
    state = model.state_dict()
    assert state._metadata
    add("state_dict.pth", save(state), "module.state_dict(): an OrderedDict with _metadata, which BUILD sets", state)
    add("legacy_state_dict.pth", save_legacy(state, "state_dict"), "the same in the legacy format", state)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    fill("model", model.state_dict())
    steps = optimizer.state_dict()
    fill("optimizer", steps)
    checkpoint = {
        "state_dict": model.state_dict(), "epoch": 3, "lr": 1e-4, "optimizer": steps,
        "args": {"a": [1, 2.5, None, True, "x", (1, 2)], "big": 2**70},
        "ema": [{"decay": 0.999, "shadow": (rand("ema/0", "F32", 2), rand("ema/1", "F32", 2))},
                rand("ema/2", "F64", 1)],
    }
    add("checkpoint.ckpt", save(checkpoint), "a checkpoint with an optimizer, whose keys are integers", checkpoint)
    add("legacy_checkpoint.ckpt", save_legacy(checkpoint, "checkpoint"), "the same in the legacy format", checkpoint)

    # -- roots

    a, b = rand("root/a", "F32", 2, 2), rand("root/b", "I64", 3)
    for name, root, detail in [
        ("tensor", a, "a lone tensor"), ("parameter", torch.nn.Parameter(a), "a lone parameter"),
        ("list", [a, 5, b, [b]], "a list"), ("tuple", (a, b), "a tuple"),
        ("tuple_4", (a, "x", None, b), "a tuple of four"),
        ("int_keys", {0: a, 17: b, -1: a, 2**40: b}, "integers as keys"), ("nothing", {}, "an empty dict"),
        ("number", 42, "no tensor at all"), ("none", None, "None"), ("empty_list", [], "an empty list"),
    ]:
        add(f"root_{name}.pt", save(root), f"the root: {detail}", root)
    add("legacy_root_tensor.pt", save_legacy(a, "root_tensor"), "a lone tensor in the legacy format", a)
    add("legacy_root_list.pt", save_legacy([a, {"b": b}], "root_list"), "a list in the legacy format", [a, {"b": b}])
    add("legacy_root_number.pt", save_legacy(42, "root_number"), "no storage in the legacy format", 42)

    # -- leaves and keys

    leaves = {
        "first": a, "set": {1, 2, 3}, "size": torch.Size([2, 3]),
        "dtypes": [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int4, torch.complex128],
        "device": torch.device("cuda:1"), "cpu": torch.device("cpu"), "bytes": b"\x00\xff",
        "bytearray": bytearray(b"\x01\x80"), "complex": 1.5 - 2j, "counter": collections.Counter("abca"),
        "ordered": collections.OrderedDict(x=1, y=b), "layout": torch.strided, "qscheme": torch.per_tensor_affine,
        "ints": [0, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -1, -(2**31), -(2**31) - 1, 2**70, -(2**70), 2**2000],
        "floats": [0.0, -0.0, 1e-308, float("nan"), float("inf"), float("-inf")], "bools": (True, False), "none": None,
        "strings": ["", "x" * 300, "\u00e9\U0001f600", "\ud800", "line\nbreak"],
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], "lists": [[], [1], [[[]]]], "empty": {}, "last": b,
    }
    add("leaves.pt", save(leaves), "values that weights_only allows and that are no tensors; one string is a lone "
        "surrogate", leaves)
    add("leaves_protocol_4.pt", save(leaves, pickle_protocol=4), "the same with protocol 4", leaves, full=True)
    add("leaves_no_bytes.pt", save({"none": b"", "t": a}), "b'' with protocol 2: a call of __builtin__.bytes, which "
        "weights_only refuses", {"t": a}, full=True, policy=True)
    storages = {"t": a, "untyped": rand("untyped", "U8", 5).untyped_storage(),
                "typed": rand("typed", "F32", 5)._typed_storage()}
    add("storages.pt", save(storages), "bare storages among the values: no tensors", storages)
    keys = {"a": a, "a b": a, "": b, "nested": {"": b, "x.y": a, "\u65e5\u672c": b}, "7": a, -7: b, "..": a, "/": b}
    add("keys.pt", save(keys), "keys: dots, spaces, unicode, empty, negative", keys)
    odd_keys = {True: a, 1.5: b, None: a, (1, 2): b, "plain": a, b"bytes": b}
    add("keys_odd.pt", save(odd_keys), "keys that are neither text nor integers; the expected names are str() of them",
        odd_keys, policy=True)
    add("error_keys_collide.pt", save({"a": {"b": a}, "a.b": b, "c": b}), "two ways lead to the name a.b",
        compare=False, expect="error")
    add("error_keys_collide_int.pt", save({1: a, "1": b}), "the keys 1 and '1'", compare=False, expect="error")
    inner = {"x": a, "y": [b]}
    both = {"one": inner, "two": inner, "again": [inner, inner["y"]]}
    add("containers_twice.pt", save(both), "a dict and a list that are in several places", both)
    cycle = {"t": a}
    cycle["self"] = cycle
    add("cycle.pt", save(cycle), "a dict that contains itself", {"t": a}, compare=False, expect="error", policy=True)
    laughs = [a]
    for _ in range(60):
        laughs = [laughs, laughs]
    add("doubling.pt", save(laughs), "60 lists, each twice in the next: 2^60 names of one tensor", expect="error",
        compare=False)
    deep = [a]
    for _ in range(150):
        deep = [deep]
    add("deep.pt", save(deep), "150 lists in each other", deep)
    names = [f"name {i}" for i in range(300)]
    memo = {"names": names, "first": a, "again": [a, names[299]], "second": {"x": b}, "more": b}
    add("memo_long.pt", save(memo), "more than 256 memo entries: LONG_BINPUT, LONG_BINGET", memo)
    lists, marks = b"]" * 20000 + b"a" * 19999, b"(" * 20000 + b"]" + b"e" * 20000
    for file, code, detail, more in [
        ("deep_20000.pt", lists, "20000 lists in each other, and no tensor", {"policy": True}),
        ("error_marks.pt", marks, "20000 marks, and APPENDS to what is no list", {}),
    ]:
        content = plain_zip({"data.pkl": b"\x80\x02" + code + b".", "version": b"3\n"}, method=zipfile.ZIP_DEFLATED)
        add(file, content, detail, compare=False, expect="error", **more)

    # -- protocols

    plain = {"weight": rand("protocol", "F32", 2, 3), "b": rand("protocol/b", "BF16", 2),
             "n": [1, 2**40, 2.5, "text", (1,)]}
    extra = plain | {"bytes": b"\x00\x80", "bytearray": bytearray(b"\x80"), "set": {1, 2}, "long": "x" * 300,
                     "many": list(range(300)), "big": 2**2100}
    for protocol in 2, 3, 4, 5:
        add(f"protocol_{protocol}.pt", save(plain, pickle_protocol=protocol), f"pickle protocol {protocol}", plain,
            full=protocol > 3)
        add(f"legacy_protocol_{protocol}.pt", save_legacy(plain, f"protocol_{protocol}", pickle_protocol=protocol),
            f"pickle protocol {protocol}, legacy format", plain, full=protocol > 3)
        add(f"protocol_{protocol}_more.pt", save(extra, pickle_protocol=protocol),
            f"pickle protocol {protocol} with bytes, a bytearray, a set and an integer of 263 bytes", extra, full=True)

    # -- zip

    found = records(save(plain))
    with tempfile.TemporaryDirectory() as scratch:
        for file, path in ("prefix.pth", "prefix.pth"), ("renamed.bin", "epoch=3-step=10.ckpt"):
            torch.save(plain, f"{scratch}/{path}")
            with open(f"{scratch}/{path}", "rb") as f:
                content = f.read()
            folder = zipfile.ZipFile(io.BytesIO(content)).namelist()[0].split("/")[0]
            add(file, content, f"saved to a path: the folder in the zip is {folder}", plain)
    torch_order = {k: v for k, v in found.items() if k not in ("version", ".data/serialization_id")}
    assert torch_zip(found) == save(plain)
    add("layout_old.bin", plain_zip({k: found[k] for k in ("data.pkl", "data/0", "data/1", "version")}, "model"),
        "as before torch 2.1: no byteorder, .format_version, .storage_alignment, .data/serialization_id", plain)
    renamed = {"0": "94361234567890", "1": "94361234567000"}
    address = {"data.pkl": respell(found["data.pkl"], lambda op, x: binunicode(renamed[x]) if op == "BINUNICODE"
                                   and x in renamed else None)}
    address |= {f"data/{renamed[k]}": found[f"data/{k}"] for k in renamed} | {"version": b"2\n"}
    add("layout_addresses.pt", plain_zip(address), "storages are named by addresses, as at first; version 2", plain)
    add("deflated.pt", plain_zip(found, method=zipfile.ZIP_DEFLATED), "packed again with a zip program: deflated",
        plain)
    half = io.BytesIO()
    with zipfile.ZipFile(half, "w") as z:
        for name, content in found.items():
            method = zipfile.ZIP_DEFLATED if name == "data/0" else zipfile.ZIP_STORED
            z.writestr(member(f"archive/{name}", method), content)
    add("deflated_storage.pt", half.getvalue(), "one storage deflated, the rest stored", plain)
    add("rezipped.pt", plain_zip(found), "packed again with a zip program: stored, not aligned", plain)
    other = dict(reversed(found.items())) | {"notes.txt": b"more", "data/unused": b"unused"}
    add("reordered.pt", plain_zip(other), "entries in another order, and some that nothing uses", plain)
    add("folders.pt", plain_zip({"": b"", "data/": b""} | found), "entries for folders", plain)
    add("no_folder.pt", plain_zip(found, ""), "no folder in the zip", plain, expect="error", policy=True)
    add("no_version.pt", plain_zip({k: v for k, v in found.items() if k != "version"}), "no version", plain,
        expect="error", policy=True)
    add("version_11.pt", plain_zip(found | {"version": b"11\n"}), "version 11; torch knows 1 to 10", plain,
        expect="error", policy=True)
    limits = zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT
    zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT = 0, 0
    try:
        add("zip64.pt", plain_zip(found), "ZIP64 fields in the central directory", plain)
    finally:
        zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT = limits
    aligned = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(aligned, False, 4096)
    for name, content in (torch_order | {".storage_alignment": b"4096"}).items():
        writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    add("aligned_4096_no_crc.pt", aligned.getvalue(), "records aligned to 4096 bytes; every CRC-32 is 0, as torch "
        "writes it after set_crc32_options(False)", plain, policy=True)
    flipped = bytearray(found["data/0"])
    flipped[0] ^= 1
    content = save(plain).replace(found["data/0"], flipped)
    add("crc_wrong.pt", content, "a bit of a storage is flipped: its CRC-32 is wrong, which torch does not look at",
        plain | {"weight": from_bytes("F32", (2, 3), bytes(flipped))}, expect="error", policy=True)
    add("storage_long.pt", plain_zip(found | {"data/0": found["data/0"] + bytes(8)}),
        "a record that is longer than its storage", plain, expect="error", policy=True)

    # -- byte order

    big = dict(records(save(old)))
    kinds = Spy(big["data.pkl"]).found
    for key, (kind, _) in kinds.items():
        size, content = ELEMENT[kind] // (2 if kind.startswith("Complex") else 1), big[f"data/{key}"]
        big[f"data/{key}"] = b"".join(content[i : i + size][::-1] for i in range(0, len(content), size))
    big["byteorder"] = b"big"
    add("big_endian.pt", torch_zip(big), "byteorder big; every dtype of a typed storage", old)
    wide = {k: t for k, t in new.items() if k.startswith(("u", "f8"))}
    big = dict(records(save(wide)))
    for key, t in enumerate(wide.values()):
        size, content = t.element_size(), big[f"data/{key}"]
        big[f"data/{key}"] = b"".join(content[i : i + size][::-1] for i in range(0, len(content), size))
    big["byteorder"] = b"big"
    add("big_endian_untyped.pt", torch_zip(big), "byteorder big; dtypes of untyped storages, as a big-endian machine "
        "has them in memory. torch takes such storages for bytes and does not swap them", wide, policy=True)
    add("error_byteorder.pt", torch_zip(found | {"byteorder": b"middle"}), "byteorder middle", expect="error")
    info = {"protocol_version": PROTOCOL, "little_endian": False, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    parts, rest = pickles(save_legacy(plain, "legacy_big"), 5)
    add("legacy_big_endian.pt", b"".join([*parts[:2], pickle.dumps(info, 2), *parts[3:], rest]),
        "little_endian False, as a big-endian machine writes it; the storages are little-endian all the same", plain)

    # -- devices

    def on_cuda(op, x):
        if op == "BINUNICODE" and x == "cpu":
            return binunicode("cuda:0")
        if op == "GLOBAL" and x.startswith("torch ") and x.endswith("Storage"):
            return f"ctorch.cuda\n{x.split()[1]}\n".encode()

    moved = respell(found["data.pkl"], lambda op, x: on_cuda(op, x) if op == "BINUNICODE" else None)
    add("cuda.pt", torch_zip(found | {"data.pkl": moved}), "storages that were on cuda:0", plain)
    parts, rest = pickles(save_legacy(plain, "cuda"), 5)
    add("legacy_cuda.pt", b"".join([*parts[:3], respell(parts[3], on_cuda), parts[4], rest]),
        "storages of the types torch.cuda.FloatStorage and torch.cuda.BFloat16Storage", plain)

    # -- older writers

    def python_2(op, x):
        if op == "BINUNICODE" and x.isascii() and len(x) < 256:
            return b"U" + bytes([len(x)]) + x.encode()

    parts, rest = pickles(save_legacy(plain, "python_2"), 5)
    add("legacy_python_2.pth", b"".join([*(respell(p, python_2) for p in parts), rest]),
        "as Python 2 wrote it: text is SHORT_BINSTRING, in persistent ids and storage keys too", plain)
    content = plain_zip(found | {"data.pkl": respell(found["data.pkl"], python_2)})
    add("python_2.pth", content, "the same in a zip", plain)
    store = rand("old/storage", "F32", 12)
    key, view = "94000000000001", "94000000000002"
    content = {key: (12, to_bytes(store))}
    whole, rebuild_v1 = cpu(key, 12, torch.FloatStorage, None), torch._utils._rebuild_tensor
    v1 = rebuild(whole, 2, (2, 3), (3, 1), rebuild_v1, ())
    want = {"v1": store[2:8].view(2, 3), "size": store[:4].view(2, 2)}
    sized = rebuild(whole, 0, torch.Size([2, 2]), [2, 1], rebuild_v1, ())
    add("legacy_rebuild_v1.pth", legacy_by_hand({"v1": v1, "size": sized}, content),
        "_rebuild_tensor, as torch 0.2 wrote it: four arguments; one has a torch.Size and a list for a tuple", want)
    parameter = Call(torch.nn.Parameter, (v1,), (True, False, collections.OrderedDict()))
    add("legacy_parameter_v1.pth", legacy_by_hand({"p": parameter}, content),
        "a parameter as torch 0.2 wrote it: Parameter of a tensor, then BUILD with (requires_grad, volatile, hooks)",
        {"p": torch.nn.Parameter(want["v1"])})
    viewed = {"whole": rebuild(whole, 0, (12,), (1,)),
              "view": rebuild(cpu(key, 12, torch.FloatStorage, (view, 4, 6)), 1, (5,), (1,)),
              "again": rebuild(cpu(key, 12, torch.FloatStorage, (view, 4, 6)), 0, (2, 3), (3, 1))}
    add("legacy_storage_view.pth", legacy_by_hand(viewed, content), "view_metadata (key, offset 4, numel 6) in the "
        "persistent id, as old versions wrote it: the tensor's offset is in the view",
        {"whole": store, "view": store[5:10], "again": store[4:10].view(2, 3)})
    wide = rand("tensor_objects/wide", "I64", 4)
    want = {"a": store[2:].as_strided((2, 3), (4, 1)), "t": store.view(3, 4).t(), "ids": [wide[1:]]}
    more = "objects of torch.FloatTensor and torch.LongTensor, to which BUILD gives a storage, made with "
    for made, change in ("REDUCE", lambda op, x: None), ("NEWOBJ", lambda op, x: b"\x81" if op == "REDUCE" else None):
        for form, no_view in ("zip.pt", ()), ("legacy.pth", (None,)):
            floats, longs = cpu("1", 12, torch.FloatStorage, *no_view), cpu("2", 4, torch.LongStorage, *no_view)
            held = {"a": Call(torch.FloatTensor, (), (floats, 2, (2, 3), (4, 1))),
                    "t": Call(torch.FloatTensor, (), (floats, 0, (4, 3), (1, 4))),
                    "ids": [Call(torch.LongTensor, (), (longs, 1, (3,), (1,)))]}
            program = respell(by_hand(held), change)
            content = torch_zip({"data.pkl": program, "data/1": to_bytes(store), "data/2": to_bytes(wide)})
            if no_view:
                stored = {"1": (12, to_bytes(store)), "2": (4, to_bytes(wide))}
                content = program.join(legacy_by_hand({}, stored).split(by_hand({}), 1))
            add(f"tensor_objects_{made.lower()}_{form}", content, more + made, want, full=True)
    floats = cpu("1", 12, torch.FloatStorage, None)
    aside = {"kept": rebuild(floats, 0, (3,), (1,)), "numbers": Call(torch.FloatTensor, ([1.5, 2.5],)),
             "none": Call(torch.FloatTensor, ()), "set": {rebuild(floats, 3, (3,), (1,))}}
    add("tensor_objects_skipped.pth", legacy_by_hand(aside, {"1": (12, to_bytes(store))}), "a tensor made of a list of "
        "numbers, one without data, one in a set", {"kept": store[:3], "numbers": torch.tensor([1.5, 2.5]),
        "none": torch.empty(0), "set": {"0": store[3:6]}}, compare=False, expect="skips",
        skipped=["numbers", "none", "set.0"])
    half = rand("tar/half", "I64", 3)
    roots = [(11, torch.FloatStorage, 12, to_bytes(store)), (12, torch.LongStorage, 3, to_bytes(half))]
    tensors = [(21, 11, torch.FloatTensor, (3, 4), (4, 1), 0), (22, 11, torch.FloatTensor, (4, 3), (1, 4), 0),
               (23, 13, torch.FloatTensor, (2,), (2,), 1), (24, 12, torch.LongTensor, (3,), (1,), 0),
               (25, 12, torch.LongTensor, (), (), 1)]
    obj = collections.OrderedDict([("a", Pid("21")), ("t", Pid("22")), ("view", Pid("23")),
                                   ("more", [Pid("24"), {"n": 5}]), ("again", Pid("21")), ("scalar", Pid("25"))])
    want = {"a": store.view(3, 4), "t": store.view(3, 4).t(), "view": store[5:8:2], "more": [half, {"n": 5}],
            "again": store.view(3, 4), "scalar": half[1]}
    content = tar_by_hand(obj, roots, [(13, 11, 4, 6)], tensors)
    assert len(content) == 10240
    add("tar.pth", content, "a tar, as before torch 0.1.10: a transposed tensor, a view of a storage, one tensor twice",
        want, full=True)

    # -- plain pickles

    def reduced(storage):
        f = io.BytesIO()
        torch.save(storage, f, _use_new_zipfile_serialization=False)
        return torch.storage._load_from_bytes, (legacy(f.getvalue(), "plain"),)

    one = {"weight": rand("plain", "F32", 2, 3), "half": rand("plain/half", "BF16", 4)[1:3]}
    kept = torch.storage.TypedStorage.__reduce__, torch.storage.UntypedStorage.__reduce__
    torch.storage.TypedStorage.__reduce__ = torch.storage.UntypedStorage.__reduce__ = reduced
    try:
        for protocol in 2, 4, 5:
            content = pickle.dumps(one, protocol)
            assert all(to_bytes(v) == to_bytes(one[k]) for k, v in pickle.loads(content).items())
            add(f"plain_torch_{protocol}.pkl", content, f"pickle.dump of torch tensors, protocol {protocol}: storages "
                "are legacy files in the arguments of torch.storage._load_from_bytes", one, expect="error", policy=True)
    finally:
        torch.storage.TypedStorage.__reduce__, torch.storage.UntypedStorage.__reduce__ = kept
    arrays = {"c": rand("numpy", "F32", 2, 3), "f": rand("numpy/f", "I64", 3, 2), "big": rand("numpy/big", "I32", 3),
              "scalar": rand("numpy/s", "F64")}
    there = {k: t.numpy() for k, t in arrays.items()}
    there["f"], there["big"] = np.asfortranarray(there["f"]), there["big"].astype(">i4")
    for protocol in 2, 4, 5:
        add(f"plain_numpy_{protocol}.pkl", pickle.dumps(there, protocol),
            f"pickle.dump of numpy arrays, protocol {protocol}", arrays, expect="error", policy=True)

    def numpy_1(op, x):
        if op == "GLOBAL":
            return b"c" + x.replace("numpy._core", "numpy.core").replace(" ", "\n").encode() + b"\n"

    older = respell(pickle.dumps(there, 2), numpy_1)
    add("plain_numpy_1.pkl", older, "the same as numpy 1 wrote it: numpy.core instead of numpy._core", arrays,
        expect="error", policy=True)
    add("plain_numbers.pkl", pickle.dumps({"a": [1, 2.5]}, 4), "a pickle without tensors, protocol 4", {},
        expect="error", policy=True)

    # -- refused by weights_only

    def refused(file, obj, detail, kept=None, **options):
        add(file, save(obj, **options), detail, kept, expect="error", policy=True)

    w = rand("refused", "F32", 2)
    for name, value, detail in [
        ("namespace", argparse.Namespace(lr=0.5), "an argparse.Namespace: NEWOBJ and BUILD"),
        ("defaultdict", collections.defaultdict(list, x=[1]), "a defaultdict"),
        ("numpy_scalar", np.float64(1.5), "a numpy scalar, numpy._core.multiarray.scalar"),
        ("numpy_array", np.arange(3.0), "a numpy array, numpy._core.multiarray._reconstruct"),
        ("numpy_dtype", np.dtype("f4"), "a numpy dtype"),
        ("frozenset", frozenset([1]), "a frozenset"), ("range", range(3), "a range"), ("slice", slice(1, 2), "a slice"),
        ("class", torch.nn.Linear, "a class"), ("function", torch.nn.functional.relu, "a function"),
    ]:
        expected = {"weight": w} | ({"value": torch.from_numpy(value)} if name == "numpy_array" else {})
        refused(f"refused_{name}.pt", {"value": value, "weight": w}, f"{detail}, beside a tensor", expected)
    linear = torch.nn.Linear(3, 2)
    fill("linear", linear.state_dict())
    refused("refused_module.pt", linear, "a whole nn.Linear", {k: v for k, v in linear.state_dict().items()})
    source = torch.serialization.get_source_lines_and_file
    lines = ["class Linear(Module):\n", "    pass\n"]
    torch.serialization.get_source_lines_and_file = lambda _: (lines, 1, "linear.py")
    try:
        content = save_legacy(linear, "module")
    finally:
        torch.serialization.get_source_lines_and_file = source
    add("legacy_refused_module.pt", content, "a whole nn.Linear: the persistent id ('module', class, file, source)",
        dict(linear.state_dict()), expect="error", policy=True)
    library = types.ModuleType("library")
    exec("import torch\nclass Special(torch.Tensor):\n    pass", library.__dict__)
    sys.modules["library"] = library
    refused("refused_subclass.pt", {"special": w.as_subclass(library.Special)},
            "a tensor of a class of its own: _rebuild_from_type_v2", {"special": w})
    del sys.modules["library"]
    ragged = torch.nested.nested_tensor([numbers("n0", 2), numbers("n1", 3)])
    refused("refused_nested.pt", {"nested": ragged, "weight": w}, "a nested tensor, _rebuild_nested_tensor",
            {"weight": w})
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    for name, value in (("coo", dense.to_sparse()), ("csr", dense.to_sparse_csr()), ("csc", dense.to_sparse_csc())):
        add(f"sparse_{name}.pt", save({"sparse": value, "weight": w}),
            "a sparse tensor, _rebuild_sparse_tensor, beside another", {"weight": w}, compare=False, expect="error",
            skipped=["sparse"], policy=True)
    add("meta.pt", save({"meta": torch.empty(2, 3, device="meta"), "weight": w}),
        "a tensor without data, _rebuild_meta_tensor_no_storage", {"weight": w}, expect="skips", skipped=["meta"],
        policy=True)

    # -- TorchScript; the debug files have paths of the machine

    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return x + self.weight

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2, 3))
            self.register_buffer("count", torch.tensor(3))
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x @ self.weight.t() * self.count)

    net = Net()
    fill("script", net.state_dict())
    traced = torch.jit.trace(net, torch.ones(1, 3), check_trace=False)
    for name, script in ("script", torch.jit.script(net)), ("trace", traced):
        f = io.BytesIO()
        torch.jit.save(script, f)
        inside = {k: v for k, v in records(f.getvalue()).items() if not k.endswith(".debug_pkl")}
        assert not any(b"pth.py" in v for v in inside.values())
        inside.pop(".data/serialization_id")
        content = plain_zip(inside)
        loaded = torch.jit.load(io.BytesIO(content)).state_dict()
        assert {k: to_bytes(v) for k, v in loaded.items()} == {k: to_bytes(v) for k, v in net.state_dict().items()}
        add(f"torchscript_{name}.pt", content, "a TorchScript archive: constants.pkl and code/ beside data.pkl",
            net.state_dict(), expect="error", policy=True)

    # -- attacks. No one loads these but torch.load(weights_only=True).

    command = "true"
    text = binunicode(command)
    short = b"\x8c\x04true"
    attacks = [
        ("global", b"cposix\nsystem\n" + text + b"\x85R", "GLOBAL posix.system, REDUCE"),
        ("os", b"cos\nsystem\n" + text + b"\x85R", "GLOBAL os.system, REDUCE"),
        ("nt", b"cnt\nsystem\n" + text + b"\x85R", "GLOBAL nt.system, REDUCE"),
        ("eval", b"cbuiltins\neval\n" + binunicode("1") + b"\x85R", "GLOBAL builtins.eval, REDUCE"),
        ("eval_2", b"c__builtin__\neval\n" + binunicode("1") + b"\x85R", "GLOBAL __builtin__.eval, REDUCE"),
        ("exec", b"cbuiltins\nexec\n" + binunicode("1") + b"\x85R", "GLOBAL builtins.exec, REDUCE"),
        ("getattr", b"cbuiltins\ngetattr\ncbuiltins\n__import__\n" + binunicode("x") + b"\x86R",
         "GLOBAL builtins.getattr"),
        ("inst", b"(" + text + b"iposix\nsystem\n", "INST posix.system"),
        ("obj", b"(cposix\nsystem\n" + text + b"o", "OBJ posix.system"),
        ("newobj", b"csubprocess\nPopen\n" + text + b"\x85\x81", "NEWOBJ subprocess.Popen"),
        ("newobj_ex", b"csubprocess\nPopen\n" + text + b"\x85}\x92", "NEWOBJ_EX subprocess.Popen"),
        ("stack_global", b"\x8c\x05posix\x8c\x06system\x93" + short + b"\x85R",
         "STACK_GLOBAL posix.system, protocol 4"),
        ("stack_global_2", b"X\x05\x00\x00\x00posixX\x06\x00\x00\x00system\x93" + text + b"\x85R",
         "STACK_GLOBAL posix.system in protocol 2"),
        ("nested_name", b"\x8c\x0ctorch._utils\x8c\x15_import_dotted_name.x\x93", "STACK_GLOBAL with a dotted name"),
        ("unused", b"cposix\nsystem\n0K\x01", "GLOBAL posix.system, then POP: never called"),
        ("ext", b"\x82\x01", "EXT1 1, a number for a global"),
        ("import", b"ctorch._utils\n_import_dotted_name\n" + binunicode("os.system") + b"\x85R",
         "_import_dotted_name of torch._utils, which is no rebuild function"),
        ("load_from_bytes", b"ctorch.storage\n_load_from_bytes\nC\x10" + b"\x80\x02cos\nsystem\n0N." + b"\x85R",
         "torch.storage._load_from_bytes of a pickle with os.system in it"),
        ("build", b"ccollections\nOrderedDict\n)R}" + binunicode("__class__") + b"cbuiltins\neval\nsb",
         "BUILD with builtins.eval in the state"),
        ("module_case", b"cPOSIX\nsystem\n" + text + b"\x85R", "a module that is not there"),
        ("newline", b"ctorch._utils\n_rebuild_tensor_v2\r\n" + b")R", "an allowed name and a carriage return"),
        ("string_opcodes", b"S'posix'\nS'system'\n\x93" + text + b"\x85R", "STACK_GLOBAL with strings of protocol 0"),
        ("memo", b"cposix\nsystem\nq\x00" + b"0h\x00" + text + b"\x85R", "posix.system through the memo"),
    ]
    start = respell(found["data.pkl"], lambda op, x: b"" if op == "STOP" else None)
    for name, code, detail in attacks:
        protocol = 4 if name == "stack_global" else 2
        content = torch_zip(found | {"data.pkl": bytes([0x80, protocol]) + code + b"."})
        add(f"attack_{name}.pt", content, detail, expect="error")
    code = attacks[0][1]
    call = b"\x80\x02" + code + b"."
    parts, rest = pickles(save_legacy(plain, "attack"), 5)
    for file, content, where in [
        ("after_tensors.pt", torch_zip(found | {"data.pkl": start + binunicode("z") + code + b"s."}),
         "in a dict after the tensors"),
        ("legacy.pt", b"".join([*parts[:3], call, parts[4], rest]), "in the legacy format"),
        ("legacy_magic.pt", call, "where the legacy format has its magic number"),
        ("legacy_sys_info.pt", b"".join([*parts[:2], call, *parts[3:], rest]), "for the legacy format's sys_info"),
        ("legacy_keys.pt", b"".join([*parts[:4], call, rest]), "where the legacy format has its list of keys"),
        ("plain.pkl", b"\x80\x04" + call[2:], "in a plain pickle"),
        ("tar.pth", tar_by_hand({}, [], [], [], pickle.dumps(1, 2) + call), "for a storage in a tar"),
    ]:
        add(f"attack_{file}", content, f"GLOBAL posix.system, REDUCE, {where}", expect="error")

    # -- broken

    def broken(name, content, detail, **more):
        add(f"error_{name}.pt", content, detail, expect="error", compare=False, **more)

    def edited(**changes):
        new = {k: v for k, v in found.items()}
        for k, v in changes.items():
            k = {"pkl": "data.pkl", "zero": "data/0"}[k]
            if v is None:
                del new[k]
            else:
                new[k] = v
        return torch_zip(new)

    def one_tensor(t, **files):
        return torch_zip({"data.pkl": by_hand({"t": t}), "byteorder": b"little", "data/0": bytes(range(24))} | files)

    broken("empty", b"", "an empty file")
    broken("text", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n", "a pointer of Git LFS")
    broken("no_pickle", edited(pkl=None), "no data.pkl")
    broken("no_storage", edited(zero=None), "a storage is missing")
    broken("storage_short", edited(zero=found["data/0"][:-1]), "a record is one byte shorter than its storage")
    broken("zip_cut", save(plain)[:-200], "a zip that is cut off")
    broken("bounds", one_tensor(rebuild(cpu("0", 6), 1, (2, 3), (3, 1))), "a tensor that ends after its storage")
    broken("bounds_stride", one_tensor(rebuild(cpu("0", 6), 0, (2, 2), (5, 1))), "a stride that leads out of it")
    broken("offset_negative", one_tensor(rebuild(cpu("0", 6), -1, (2,), (1,))), "a negative offset")
    broken("stride_negative", one_tensor(rebuild(cpu("0", 6), 5, (2,), (-1,))), "a negative stride")
    broken("size_negative", one_tensor(rebuild(cpu("0", 6), 0, (-2, -3), (3, 1))), "negative sizes")
    broken("size_huge", one_tensor(rebuild(cpu("0", 6), 0, (2**40, 2**40), (0, 0))), "2^80 elements of one")
    broken("size_large", one_tensor(rebuild(cpu("0", 6), 0, (2**36,), (0,))), "2^36 elements of one: 256 GiB from four "
           "bytes; torch makes a view")
    broken("size_bignum", one_tensor(rebuild(cpu("0", 6), 0, (2**70,), (1,))), "a size of 2^70")
    broken("ranks", one_tensor(rebuild(cpu("0", 6), 0, (2, 3), (1,))), "fewer strides than sizes")
    broken("numel_huge", one_tensor(rebuild(cpu("0", 2**62), 0, (2,), (1,))), "a storage of 2^62 elements")
    broken("numel_negative", one_tensor(rebuild(cpu("0", -6), 0, (2,), (1,))), "a storage of -6 elements")
    broken("size_text", one_tensor(rebuild(cpu("0", 6), 0, ("2", 3), (3, 1))), "a size that is text")
    broken("key_path", one_tensor(rebuild(cpu("../data.pkl", 6), 0, (2, 3), (3, 1))), "a storage key with a path")
    broken("pid_module", one_tensor(rebuild(Pid("module", torch.FloatStorage, "0", "cpu", 6), 0, (2, 3), (3, 1))),
           "a persistent id of another kind")
    broken("pid_short", one_tensor(rebuild(Pid("storage", torch.FloatStorage, "0", "cpu"), 0, (2, 3), (3, 1))),
           "a persistent id of four values")
    broken("pid_text", one_tensor(rebuild(Pid("storage"), 0, (2, 3), (3, 1))), "a persistent id that is text")
    broken("no_storage_type", one_tensor(rebuild(Pid("storage", torch.float32, "0", "cpu", 6), 0, (2, 3), (3, 1))),
           "a dtype for a storage type")
    broken("no_storage_argument", one_tensor(rebuild(7, 0, (2, 3), (3, 1))), "a number for a storage")
    broken("arguments", one_tensor(Call(torch._utils._rebuild_tensor_v2, (cpu("0", 6), 0))), "too few arguments")
    for name, code, detail in [
        ("memo", b"\x80\x02h\x05.", "BINGET of what was never put"),
        ("stack", b"\x80\x02R.", "REDUCE on an empty stack"),
        ("stack_mark", b"\x80\x02(\x85.", "TUPLE1 after a mark"), ("mark", b"\x80\x02t.", "TUPLE without a mark"),
        ("stop", b"\x80\x02K\x01", "no STOP"), ("stop_empty", b"\x80\x02.", "STOP on an empty stack"),
        ("opcode", b"\x80\x02\xff.", "an opcode that does not exist"), ("protocol", b"\x80\x09N.", "protocol 9"),
        ("string_cut", b"\x80\x02X\xff\xff\xff\xffabc.", "a string of 4 GiB"),
        ("utf8", b"\x80\x02X\x02\x00\x00\x00\xc3\x28.", "text that is not UTF-8"),
        ("bytes_huge", b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.", "BINBYTES8 of 2^63 - 1 bytes"),
        ("frame_huge", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.", "a FRAME of 2^63 - 1 bytes"),
        ("long_negative", b"\x80\x02\x8b\xff\xff\xff\xff.", "LONG4 of -1 bytes"),
        ("setitems_odd", b"\x80\x02}(K\x01K\x02K\x03u.", "SETITEMS with a key and no value"),
        ("setitem_list", b"\x80\x02]K\x00K\x01s.", "SETITEM on a list"),
        ("append_dict", b"\x80\x02}K\x01a.", "APPEND to a dict"),
        ("key_list", b"\x80\x02}]K\x01s.", "a list for a key"),
        ("reduce_no_tuple", b"\x80\x02ccollections\nOrderedDict\nK\x01R.", "REDUCE with a number for arguments"),
        ("reduce_number", b"\x80\x02K\x01)R.", "REDUCE of a number"),
        ("build_number", b"\x80\x02K\x01}b.", "BUILD of a number"),
        ("pid_unhashable", b"\x80\x02]Q.", "a list for a persistent id"),
        ("after_stop", b"\x80\x02N.cposix\nsystem\n.", "something after STOP"),
    ]:
        broken(f"pickle_{name}", torch_zip({"data.pkl": code, "byteorder": b"little"}), detail,
               **({"policy": True} if name in ("after_stop", "protocol", "frame_huge") else {}))
    content = save_legacy(plain, "broken")
    parts, rest = pickles(content, 5)
    broken("legacy_magic", pickle.dumps(MAGIC + 1, 2) + content[len(parts[0]):], "another magic number")
    broken("legacy_protocol", parts[0] + pickle.dumps(1002, 2) + b"".join(parts[2:]) + rest, "protocol version 1002")
    broken("legacy_cut", content[:-1], "one byte short")
    for name, numel in ("", 7), ("_huge", 2**62), ("_negative", -2):
        broken(f"legacy_numel{name}", content[: -len(rest)] + struct.pack("<q", numel) + rest[8:],
               f"the number of elements before a storage is {numel}")
    broken("legacy_keys", b"".join([*parts[:4], pickle.dumps(["1"], 2), rest]), "a key that nothing has named")
    broken("legacy_keys_missing", b"".join([*parts[:4], pickle.dumps([], 2)]), "no keys and no storages; "
           "torch leaves the memory uninitialized")
    view_out = {"t": rebuild(cpu("1", 6, torch.FloatStorage, ("2", 4, 6)), 0, (6,), (1,))}
    broken("legacy_view", legacy_by_hand(view_out, {"1": (6, bytes(24))}), "a view that ends after its storage")
    broken("tar_no_storages", tar_by_hand({}, [], [], [])[:1536] + bytes(8704), "a tar without tensors and storages")
    broken("tar_cut", tar_by_hand(obj, roots, [(13, 11, 4, 6)], tensors)[:4096], "a tar that is cut off")
    out.finish()


if __name__ == "__main__":
    main()

"""Single faults of a model: a field of a JSON file, a tensor, a key of a GGUF file. The tables say which are tried."""

import json
import re
import struct
from dataclasses import dataclass

from containers import LIST, SCALARS, TEXT, Gguf, Safetensors, sized

ABSENT = "(absent)"

# What a field becomes, by the type that it has. Fields of text get words of the same field in other models too.
WRONG = {
    "null": lambda _: [ABSENT, 0, 1, True, "unknown", {}],
    "truth": lambda x: [not x, ABSENT, None, 0, "unknown"],
    "integer": lambda x: [ABSENT, None, 0, x + 1, -1, [x], "unknown"],
    "number": lambda x: [ABSENT, None, 0, x + 1, -x, [x], "unknown"],
    "text": lambda x: [ABSENT, None, "", "unknown", 0, [x]],
    "list": lambda x: [ABSENT, None, [], x[:-1], x + x[-1:], 0, "unknown"],
    "object": lambda x: [ABSENT, None, {}, 0, [x], "unknown", {**x, "unknown": 1}],
}

# What a key of a GGUF file becomes: the number of its new type and its value. Every type has the first rows.
INT32, UINT32, FLOAT32, BOOL, UINT64 = 5, 4, 6, 7, 10
WRONG_KEYS = {
    "all": {
        "absent": lambda kind, x: None,
        "of type I32": lambda kind, x: (INT32, 1),
        "of type F32": lambda kind, x: (FLOAT32, 1.0),
        "text": lambda kind, x: (TEXT, "unknown"),
        "in a list": lambda kind, x: (LIST, (kind, [x, x])),
    },
    "truth": {"negated": lambda kind, x: (kind, not x)},
    "integer": {
        "0": lambda kind, x: (kind, 0),
        "one more": lambda kind, x: (kind, x + 1),
        "-1": lambda kind, x: (INT32, -1),
        "of type U64": lambda kind, x: (UINT64, max(x, 0)),
    },
    "number": {
        "0": lambda kind, x: (kind, 0.0),
        "one more": lambda kind, x: (kind, x + 1),
        "negative": lambda kind, x: (kind, -x),
        "not a number": lambda kind, x: (kind, float("nan")),
    },
    "text": {"empty": lambda kind, x: (kind, "")},
    "list": {
        "empty": lambda kind, x: (kind, (x[0], [])),
        "shorter": lambda kind, x: (kind, (x[0], x[1][:-1])),
        "longer": lambda kind, x: (kind, (x[0], x[1] + x[1][-1:])),
        "reversed": lambda kind, x: (kind, (x[0], x[1][::-1])),
        "first changed": lambda kind, x: (kind, (x[0], changed(x[1], 0))),
        "last changed": lambda kind, x: (kind, (x[0], changed(x[1], -1))),
        "its first": lambda kind, x: (x[0], x[1][0]),
        "of text": lambda kind, x: (kind, (TEXT, [str(v) for v in x[1]])),
    },
}

# A dtype of the same size, or of another one with as many bytes as it takes.
OTHER_DTYPE = {
    "BF16": "F16", "F16": "BF16", "F32": "I32", "I32": "F32", "U32": "I32", "U8": "I8", "I8": "U8", "F8_E4M3": "F8_E5M2",
    "F8_E5M2": "F8_E4M3", "F8_E8M0": "U8", "I64": "I32", "F64": "F32", "BOOL": "U8", "I16": "F16", "U16": "I16", "U64": "I64",
}
OTHER_SIZE = {"BF16": "F32", "F16": "F32", "F32": "BF16", "U8": "I32", "I32": "I64", "U32": "U8", "I8": "F32", "F8_E4M3": "F32"}
SAFETENSORS_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1,
}
# By the number of the type: F32 and I32, BF16 and F16, Q4_0 and IQ4_NL. Others become F16.
OTHER_TYPE = {0: 26, 26: 0, 30: 1, 1: 30, 2: 20, 20: 2}

INDEX = re.compile(r"\.safetensors\.index\.json$")


@dataclass(frozen=True)
class Fault:
    """What is changed where. Two faults of a model are of different places."""

    place: str
    what: str
    # A file of the model, and a function from its bytes to others.
    edits: tuple

    def __str__(self):
        return f"{self.place} {self.what}"


# ------------------------------------------------------------------------------------------------------------------------- JSON


def kind_of(value):
    kinds = [(bool, "truth"), (int, "integer"), (float, "number"), (str, "text"), (list, "list"), (dict, "object")]
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")


def fields(value, most, place=()):
    """Every field of a JSON value, with its place. Of objects with more than `most` fields, which are maps, and of lists the first and
    the last."""
    if isinstance(value, dict):
        keys = list(value) if len(value) <= most else [*value][:1] + [*value][-1:]
    else:
        keys = sorted({0, len(value) - 1}) if value else []
    for key in keys:
        yield (*place, key), value[key]
        if isinstance(value[key], (dict, list)):
            yield from fields(value[key], most, (*place, key))


def json_fault(file, place, value):
    def edit(data):
        whole = json.loads(data)
        inside = whole
        try:
            for key in place[:-1]:
                inside = inside[key]
            if value is not ABSENT:
                inside[place[-1]] = value
            else:
                del inside[place[-1]]
        except (KeyError, IndexError, TypeError):
            # Another fault took what this is in.
            pass
        return json.dumps(whole, ensure_ascii=False, indent=1).encode()

    shown = value if value is ABSENT else json.dumps(value, ensure_ascii=False)
    return Fault(f"{file}: {'.'.join(map(str, place))}", f"= {shown if len(shown) < 80 else shown[:60] + f'… ({len(shown)})'}", ((file, edit),))


# ---------------------------------------------------------------------------------------------------------------------- tensors


def resized(shape, data, at, by):
    """Another size of a dimension, with as many bytes as it takes."""
    new = [max(n + by, 0) if i == at else n for i, n in enumerate(shape)]
    # Of an empty tensor there is nothing to repeat.
    return new, sized(data, -(-len(data) * new[at] // shape[at]) if shape[at] else 0)


def safetensors_faults(file, name, dtype, shape, index):
    """The faults of a tensor. `index` is the file that lists the tensors of all files, or none."""
    place, last = f"{file}: {name}", max(len(shape) - 1, 0)

    def fault(what, edit, in_index=None):
        def edited(data):
            whole = Safetensors(data)
            if name in whole.tensors:
                edit(whole.tensors)
            return whole.bytes()

        return Fault(place, what, ((file, edited), *([(index, in_index)] if index and in_index else [])))

    def of_size(at, by):
        def edit(tensors):
            dtype, shape, data = tensors[name]
            tensors[name] = (dtype, *resized(shape, data, min(at, len(shape) - 1), by)) if shape else (dtype, [2], data * 2)

        return edit

    def filled(byte):
        return lambda t: t.update({name: (*t[name][:2], byte * len(t[name][2]))})

    def retyped(new):
        def edit(tensors):
            _, shape, data = tensors[name]
            tensors[name] = (new, shape, sized(data, len(data) * SAFETENSORS_BYTES[new] // SAFETENSORS_BYTES[dtype]))

        return edit

    other = name + "_unknown"
    yield fault("dropped", lambda t: t.pop(name), listed(name, None))
    yield fault(f"renamed {other}", lambda t: t.update({other: t.pop(name)}), listed(name, other))
    yield fault(f"copied to {other}", lambda t: t.update({other: t[name]}), listed(name, other, stays=True))
    yield fault("one longer", of_size(0, 1))
    yield fault("one shorter", of_size(0, -1))
    yield fault("all zeros", filled(b"\0"))
    yield fault("all ones", filled(b"\xff"))
    if last:
        yield fault("one wider", of_size(last, 1))
        yield fault("one narrower", of_size(last, -1))
        yield fault("transposed", lambda t: t.update({name: (t[name][0], t[name][1][::-1], t[name][2])}))
    for new in dict.fromkeys([OTHER_DTYPE.get(dtype), OTHER_SIZE.get(dtype)]):
        if new:
            yield fault(f"of dtype {new}", retyped(new))


def listed(name, other, stays=False):
    """The change of the index that goes with a tensor that is dropped, renamed or copied."""

    def edit(data):
        whole = json.loads(data)
        tensors = whole.get("weight_map", {})
        file = tensors.get(name)
        if not stays:
            tensors.pop(name, None)
        if other and file:
            tensors[other] = file
        return json.dumps(whole).encode()

    return edit


def gguf_tensor_faults(file, name, kind, shape):
    place, other = f"{file}: {name}", name + "_unknown"

    def fault(what, edit):
        def edited(data):
            whole = Gguf(data)
            if name in whole.tensors:
                edit(whole.tensors)
            return whole.bytes()

        return Fault(place, what, ((file, edited),))

    def of_size(at, by):
        return lambda t: t.update({name: (t[name][0], *resized(t[name][1], t[name][2], at, by))})

    def retyped(tensors):
        kind, shape, data = tensors[name]
        count = 1
        for n in shape:
            count *= n
        tensors[name] = (OTHER_TYPE[kind], shape, data) if kind in OTHER_TYPE else (1, shape, sized(data, 2 * count))

    yield fault("dropped", lambda t: t.pop(name))
    yield fault(f"renamed {other}", lambda t: t.update({other: t.pop(name)}))
    yield fault(f"copied to {other}", lambda t: t.update({other: t[name]}))
    yield fault(f"of type {OTHER_TYPE.get(kind, 1)}", retyped)
    yield fault("all ones", lambda t: t.update({name: (*t[name][:2], b"\xff" * len(t[name][2]))}))
    if shape:
        yield fault("one wider", of_size(0, 1))
        yield fault("one shorter", of_size(len(shape) - 1, -1))
    if len(shape) > 1:
        yield fault("one longer", of_size(len(shape) - 1, 1))


# ------------------------------------------------------------------------------------------------------------------------- keys


def changed(values, at):
    """A list with another value in one place."""
    new, value = list(values), values[at]
    new[at] = value + "x" if isinstance(value, str) else not value if isinstance(value, bool) else value + 1
    return new


def key_fault(file, key, what, change):
    """`change` makes a type and a value of a type and a value, or none."""

    def edit(data):
        whole = Gguf(data)
        if key not in whole.metadata:
            return data
        new = change(*whole.metadata[key])
        if new is None:
            del whole.metadata[key]
        else:
            whole.metadata[key] = new
        return whole.bytes()

    return Fault(f"{file}: {key}", what, ((file, edit),))


def foreign_key(file, key, kind, value):
    """A key of other models."""

    def edit(data):
        whole = Gguf(data)
        whole.metadata[key] = (kind, value)
        return whole.bytes()

    return Fault(f"{file}: {key}", f"= {value}", ((file, edit),))


def key_faults(file, key, kind, value, words):
    """The faults of a key. `words` are further texts for it."""
    of = {TEXT: "text", LIST: "list"}.get(kind) or kind_of(value)
    for what, change in {**WRONG_KEYS["all"], **WRONG_KEYS[of]}.items():
        try:
            packs(change(kind, value))
        except (IndexError, struct.error, OverflowError, TypeError, ValueError):
            # An empty list has no first, and one more than the largest is none of the type.
            continue
        yield key_fault(file, key, what, change)
    for word in words if of == "text" else []:
        yield key_fault(file, key, f"= {word}", lambda kind, x, word=word: (kind, word))


def packs(new):
    if new and new[0] in SCALARS:
        struct.pack(SCALARS[new[0]], new[1])
    elif new and new[0] == LIST and new[1][0] in SCALARS:
        struct.pack(f"<{len(new[1][1])}{SCALARS[new[1][0]][1]}", *new[1][1])

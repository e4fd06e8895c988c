"""GGUF files, by gguf-py."""

import copy
import struct
import zlib

import numpy as np
from gguf import gguf_reader
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from common import choose, edit_bytes, number

# The reader maps a path; here it gets the bytes.
gguf_reader.np = type("np", (), {**{k: getattr(np, k) for k in dir(np) if not k.startswith("__")},
                                 "memmap": staticmethod(lambda file, mode: np.frombuffer(file, np.uint8))})

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class Gguf:
    def __init__(self, keys, tensors):
        self.keys, self.tensors = keys, tensors
        self.magic, self.version, self.big, self.counts = b"GGUF", 3, False, {}
        self.align, self.pad, self.suffix = 32, None, b""

    def file(self):
        e = ">" if self.big else "<"
        size = "I" if self.version & 0xffff == 1 and self.version == 1 else "Q"
        self.n = lambda n: struct.pack(e + size, n & ((1 << 64 if size == "Q" else 1 << 32) - 1))
        self.e = e
        out = bytearray(self.magic + struct.pack(e + "I", self.version & 0xffffffff))
        out += self.n(self.counts.get("tensors", len(self.tensors))) + self.n(self.counts.get("keys", len(self.keys)))
        for key, type_id, value in self.keys:
            out += self.text(key) + struct.pack(e + "I", type_id & 0xffffffff) + self.value(type_id, value)
        at = 0
        for t in self.tensors:
            offset = at if t.get("offset") is None else t["offset"]
            out += self.text(t["name"]) + struct.pack(e + "I", t.get("rank", len(t["dims"])) & 0xffffffff) + b"".join(map(self.n, t["dims"]))
            out += struct.pack(e + "IQ", t["type"] & 0xffffffff, offset & (1 << 64) - 1)
            at += -(-len(t["data"]) // self.align) * self.align
        out += b"\0" * (-len(out) % self.align if self.pad is None else self.pad)
        for i, t in enumerate(self.tensors):
            out += t["data"]
            if i + 1 < len(self.tensors) or self.pad is None:
                out += b"\0" * (-len(t["data"]) % self.align)
        return bytes(out + self.suffix)

    def text(self, text):
        if isinstance(text, tuple):
            length, content = text
            return self.n(length) + content
        return self.n(len(text)) + text

    def value(self, type_id, value):
        if isinstance(value, bytes) and type_id != STRING:
            return value
        if type_id == STRING:
            is_text = isinstance(value, bytes) or isinstance(value, tuple) and isinstance(value[1], bytes)
            return self.text(value if is_text else b"x")
        if type_id == ARRAY and isinstance(value, tuple):
            item, items, *count = value
            head = struct.pack(self.e + "I", item & 0xffffffff) + self.n(count[0] if count else len(items))
            return head + b"".join(self.value(item, v) for v in items)
        code = SCALARS.get(type_id)
        try:
            return struct.pack(self.e + code, value) if code else b"\0\0\0\0"
        except (struct.error, TypeError, OverflowError):
            return b"\1" * struct.calcsize(code or "I")


def tensor(name, dims, type_id, salt=1):
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(type_id)]
    count = int(np.prod(dims, dtype=object)) * size // block
    return {"name": name, "dims": list(dims), "type": type_id, "data": bytes((i * 37 + salt) & 255 for i in range(count))}


def seeds():
    arch = (b"general.architecture", STRING, b"llama")
    keys = [arch, (b"general.alignment", 4, 32), (b"a.u8", 0, 255), (b"a.i8", 1, -1), (b"a.u16", 2, 65535), (b"a.i16", 3, -2), (b"a.i32", 5, -3),
            (b"a.f32", 6, 0.5), (b"a.bool", 7, True), (b"a.u64", 10, 1 << 40), (b"a.i64", 11, -(1 << 40)), (b"a.f64", 12, 1e300),
            (b"a.texts", ARRAY, (STRING, [b"x", b"", b"\xc3\xa4"])), (b"a.numbers", ARRAY, (5, [1, -2, 3])), (b"a.floats", ARRAY, (6, [0.0, -1.5])),
            (b"a.nested", ARRAY, (ARRAY, [(4, [1, 2]), (4, [3])])), (b"a.none", ARRAY, (4, []))]
    types = [0, 1, 2, 3, 6, 7, 8, 10, 12, 14, 20, 24, 25, 26, 27, 28, 30]
    files = [Gguf([arch], [tensor(b"w", (256, 2), t), tensor(b"v", (256,), 0)]) for t in types]
    files += [Gguf(keys, [tensor(b"a.weight", (4, 3), 0), tensor(b"b.weight", (8,), 1), tensor(b"c", (2, 2, 2, 2), 30)]), Gguf(keys, []),
              Gguf([arch], [tensor(b"one", (), 0)]), Gguf([arch], [tensor(b"e", (0, 4), 0), tensor(b"f", (4,), 24)]),
              Gguf([], [tensor(b"t%d" % i, (32,), 8, i) for i in range(5)])]
    wide = Gguf([arch, (b"general.alignment", 4, 64)], [tensor(b"x", (5,), 0), tensor(b"y", (7,), 0)])
    wide.align = 64
    big = copy.deepcopy(files[-3])
    big.big = True
    return files + [wide, big]


def mutate_key(rng, g):
    if not g.keys or rng.random() < 0.2:
        g.keys.insert(rng.randrange(len(g.keys) + 1), (choose(rng, [b"k", b"", b"general.alignment", b"general.architecture", b"\xff", b"K", b"a\0b", b"x" * 70]),
                                                     choose(rng, [0, 4, 5, 7, 8, 9, 10, 12, 13, 255]), choose(rng, [0, 1, b"text", (4, [1]), (8, [b"x"])])))
        return
    i = rng.randrange(len(g.keys))
    key, type_id, value = g.keys[i]
    kind = rng.randrange(10)
    if kind == 0:
        g.keys.append(choose(rng, [g.keys[i], (key, type_id, value), (key, 4, 7)]))
    elif kind == 1 and isinstance(key, bytes):
        key = choose(rng, [b"", key + b"\0", key.upper(), b"\xff\xfe", key[:-1], (number(rng, 64, [len(key)]), key), b"general.alignment"])
    elif kind == 2:
        type_id = choose(rng, [*range(15), 255, 1 << 31])
    elif kind == 3:
        key, type_id, value = b"general.alignment", choose(rng, [4, 4, 4, 5, 10, 0, 2, 6, 8, 9, 7]), choose(rng, [0, 1, 2, 4, 8, 16, 31, 32, 33, 64, 128, 4096, 1 << 20, 1 << 31])
        if rng.random() < 0.7 and isinstance(value, int) and value and not value & (value - 1) and value <= 4096:
            g.align = value
    elif kind == 4:
        value = (choose(rng, [4, 8, 9, 7, 13, 6]), choose(rng, [[], [1], [1, 2, 3], [b"x"], [(4, [1])], [(9, [(9, [(9, [(4, [1])])])])]]))
        type_id = ARRAY
    elif kind == 5:
        value = (choose(rng, [4, 8, 0]), [1, 2], number(rng, 64, [2]))
        type_id = ARRAY
    elif kind == 6:
        type_id, value = STRING, choose(rng, [b"", b"\xff", b"a\0b", b"\xed\xa0\x80", "ä€𝄞".encode(), b"x" * 300, (number(rng, 64), b"y")])
    elif kind == 7:
        type_id, value = 7, bytes([choose(rng, [0, 1, 2, 127, 255])])
    elif kind == 8:
        type_id, value = choose(rng, [(6, b"\0\0\xc0\x7f"), (12, b"\1\0\0\0\0\0\xf0\x7f"), (6, b"\0\0\x80\xff"), (ARRAY, (7, [True, b"\2", b"\xff"]))])
    else:
        del g.keys[i]
        return
    if i < len(g.keys):
        g.keys[i] = key, type_id, value


def mutate_tensor(rng, g):
    if not g.tensors:
        return
    i = rng.randrange(len(g.tensors))
    t, kind = g.tensors[i], rng.randrange(13)
    if kind == 0:
        t["name"] = choose(rng, [b"", t["name"] + b"\0", t["name"].upper(), b"\xff", b"x" * 64, b"y" * 200, choose(rng, g.tensors)["name"]])
    elif kind == 1:
        t["type"] = choose(rng, [*range(45), 97, 133, 152, 255, 1 << 31])
    elif kind == 2 and t["dims"]:
        j = rng.randrange(len(t["dims"]))
        t["dims"][j] = number(rng, 64, [t["dims"][j]])
    elif kind == 3:
        t["dims"].insert(rng.randrange(len(t["dims"]) + 1), choose(rng, [0, 1, 1, 2, 1 << 32, 1 << 63]))
    elif kind == 4:
        rng.shuffle(t["dims"])
    elif kind == 5:
        t["rank"] = number(rng, 32, [len(t["dims"])])
    elif kind == 6:
        t["offset"] = number(rng, 64, [0, 32, 64, 128])
    elif kind == 7:
        t["data"] = choose(rng, [t["data"][:-1], t["data"] + b"\0", t["data"] + b"\0" * 32, t["data"] * 2, b"", edit_bytes(rng, t["data"])])
    elif kind == 8:
        g.tensors.insert(rng.randrange(len(g.tensors) + 1), copy.deepcopy(t))
    elif kind == 9:
        rng.shuffle(g.tensors)
    elif kind == 10:
        del g.tensors[i]
    elif kind == 11:
        # Another type with the data that belongs to it.
        kept = choose(rng, [member.value for member in GGMLQuantizationType])
        dims = choose(rng, [(256,), (32, 2), (5,), (256, 0), (1, 1, 1, 1), (2, 2, 2, 2, 2), (32,) * 1 + (1,) * 7, (33,), (255, 2)])
        g.tensors[i] = {**tensor(t["name"], dims, kept)}
    else:
        # Two tensors change places in the data: offsets are not in order.
        other = choose(rng, g.tensors)
        at = 0
        for each in g.tensors:
            each["offset"] = at
            at += -(-len(each["data"]) // g.align) * g.align
        t["offset"], other["offset"] = other["offset"], t["offset"]


def mutant(rng, seeds):
    g = copy.deepcopy(choose(rng, seeds))
    for _ in range(choose(rng, [1, 1, 1, 2, 2, 3])):
        kind = rng.randrange(14)
        if kind < 6:
            mutate_key(rng, g)
        elif kind < 11:
            mutate_tensor(rng, g)
        elif kind == 11:
            g.counts[choose(rng, ["tensors", "keys"])] = number(rng, 64, [len(g.tensors), len(g.keys)])
        elif kind == 12:
            what = rng.randrange(4)
            if what == 0:
                g.version = choose(rng, [0, 1, 2, 3, 4, 1 << 16, 3 << 24, 1 << 31])
            elif what == 1:
                g.big = not g.big
            elif what == 2:
                g.magic = choose(rng, [b"GGUF", b"FUGG", b"gguf", b"GGML", b"GGLA"])
            else:
                g.align = choose(rng, [1, 8, 16, 32, 64])
        else:
            what = rng.randrange(3)
            if what == 0:
                g.suffix = choose(rng, [b"\0", b"\0" * 31, b"\0" * 32, b"junk" * 16, g.file()])
            elif what == 1:
                g.pad = rng.randrange(64)
            else:
                return edit_bytes(rng, g.file())
    file = g.file()
    return file[:rng.randrange(len(file))] if rng.random() < 0.02 else file


def canonical(field):
    """A value as `verdicts` says it."""
    main = field.types[0]

    def one(part, kind):
        if kind == GGUFValueType.STRING:
            return bytes(part).decode("utf8", "replace")
        if kind == GGUFValueType.FLOAT32:
            return int(part.astype("<f4").view("<u4")[0])
        if kind == GGUFValueType.FLOAT64:
            return int(part.astype("<f8").view("<u8")[0])
        return part.tolist()[0]

    if main == GGUFValueType.ARRAY:
        return [one(field.parts[i], field.types[-1]) for i in field.data]
    return one(field.parts[field.data[0]], main)


def read(file):
    reader = gguf_reader.GGUFReader(file)
    tensors = []
    for t in reader.tensors:
        data, dims = np.ascontiguousarray(t.data), [int(d) for d in reversed(t.shape)]
        if data.nbytes != t.n_bytes:
            raise ValueError(f"{data.nbytes} bytes of {t.n_bytes}")
        data = data.astype(data.dtype.newbyteorder("<"))
        tensors.append([t.name, t.tensor_type.name, dims, zlib.crc32(data.tobytes())])
    metadata = {name: canonical(field) for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return {"tensors": tensors, "skipped": [], "metadata": metadata}

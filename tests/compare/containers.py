"""Reads and writes the containers of which mutants are made. A mutant may contradict itself, so nothing is checked here."""

import json
import struct

# Formats of values of metadata by the number of their type. 8 is text, and 9 a list.
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
TEXT, LIST = 8, 9


def sized(data, size):
    """`size` bytes: the data, repeated or cut."""
    return (data * (size // max(len(data), 1) + 1))[:size] if data else bytes(size)


class Safetensors:
    """Tensors by name, in the order of the header: dtype, shape, data."""

    def __init__(self, data):
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        self.metadata = header.pop("__metadata__", None)
        self.tensors = {}
        for name, tensor in header.items():
            first, last = tensor["data_offsets"]
            self.tensors[name] = (tensor["dtype"], tensor["shape"], data[end + first : end + last])

    def bytes(self):
        header, at = {} if self.metadata is None else {"__metadata__": self.metadata}, 0
        for name, (dtype, shape, data) in self.tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return b"".join([len(text).to_bytes(8, "little"), text, *(data for _, _, data in self.tensors.values())])


class Gguf:
    """Metadata by key, as the number of a type and a value; tensors by name: type, dimensions, data. A list is the number of its
    elements' type and their values."""

    def __init__(self, data):
        self.data, self.at = data, 4
        self.version, tensors, keys = self.unpacked("<IQQ")
        self.metadata = {}
        for _ in range(keys):
            key, (kind,) = self.text(), self.unpacked("<I")
            self.metadata[key] = (kind, self.value(kind))
        listed = []
        for _ in range(tensors):
            name, (count,) = self.text(), self.unpacked("<I")
            listed.append((name, list(self.unpacked(f"<{count}Q")), *self.unpacked("<IQ")))
        # A fault of the alignment leaves the padding as it was, and may be no number.
        alignment = self.metadata.get("general.alignment", (4, 32))[1]
        self.alignment = alignment if isinstance(alignment, int) and alignment > 0 else 32
        # What lies between two tensors is padding, which is seen as data here.
        starts = sorted(at for _, _, _, at in listed)
        begin, end_of = self.at + -self.at % self.alignment, dict(zip(starts, starts[1:] + [len(data)]))
        self.tensors = {name: (kind, shape, data[begin + at : begin + end_of[at]]) for name, shape, kind, at in listed}

    def unpacked(self, form):
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values

    def text(self):
        (size,) = self.unpacked("<Q")
        self.at += size
        return self.data[self.at - size : self.at].decode("utf-8", "surrogateescape")

    def value(self, kind):
        if kind == TEXT:
            return self.text()
        if kind != LIST:
            return self.unpacked(SCALARS[kind])[0]
        of, count = self.unpacked("<IQ")
        if of in SCALARS:
            return of, list(self.unpacked(f"<{count}{SCALARS[of][1]}"))
        return of, [self.value(of) for _ in range(count)]

    def bytes(self):
        out = [b"GGUF", struct.pack("<IQQ", self.version, len(self.tensors), len(self.metadata))]
        for key, (kind, value) in self.metadata.items():
            out += [packed(TEXT, key), struct.pack("<I", kind), packed(kind, value)]
        at, parts = 0, []
        for name, (kind, shape, data) in self.tensors.items():
            out += [packed(TEXT, name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, at)]
            parts.append(data + bytes(-len(data) % self.alignment))
            at += len(parts[-1])
        header = b"".join(out)
        return b"".join([header, bytes(-len(header) % self.alignment), *parts])


def packed(kind, value):
    if kind == TEXT:
        text = value.encode("utf-8", "surrogateescape")
        return len(text).to_bytes(8, "little") + text
    if kind != LIST:
        return struct.pack(SCALARS[kind], value)
    of, values = value
    head = struct.pack("<IQ", of, len(values))
    if of in SCALARS:
        return head + struct.pack(f"<{len(values)}{SCALARS[of][1]}", *values)
    return head + b"".join(packed(of, v) for v in values)

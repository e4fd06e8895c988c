"""Single faults of archives: members of a ZIP, the header of an array of NumPy, opcodes of a pickle. Nothing is checked here."""

import ast
import io
import pickletools
import struct
import zipfile

from faults import Fault

# Opcodes of numbers and texts, which become others.
NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1")
TEXTS = ("BINUNICODE", "SHORT_BINUNICODE")

# Names of functions and classes, without and with a check of their own.
GLOBALS = ["torch HalfStorage", "torch DoubleStorage", "torch float16", "collections Counter", "os system"]

DESCRIPTIONS = ["<f2", ">f4", "<f8", "|u1", "<c8", "|O", "<U4", "<f3"]


def members(data):
    """The members of an archive by name, or none if it is a hostile one."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {info.filename: (archive.read(info), info.compress_type) for info in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError, ValueError):
        return {}


def joined(inside):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, (data, how) in inside.items():
            # Always the same bytes.
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, how)
    return out.getvalue()


def archive_faults(file, data):
    """The faults of an archive, those of a member or of a value in one list."""
    inside = members(data)
    for name, (content, _) in inside.items():
        yield list(member_faults(file, name))
        if content.startswith(b"\x93NUMPY\x01"):
            yield from (list(faults) for faults in array_faults(file, name, content))
        elif name.endswith(".pkl"):
            yield from (list(faults) for faults in pickle_faults(file, name, content))


def fault(file, name, what, edit, inner=None):
    """`edit` changes the members."""

    def edited(data):
        inside = members(data)
        if name in inside:
            edit(inside)
        return joined(inside)

    return Fault(f"{file}: {name}{f' {inner}' if inner is not None else ''}", what, ((file, edited),))


def member_faults(file, name):
    def replaced(change):
        return lambda inside: inside.update({name: (change(inside[name][0]), inside[name][1])})

    yield fault(file, name, "dropped", lambda inside: inside.pop(name))
    yield fault(file, name, "renamed", lambda inside: inside.update({name + "_unknown": inside.pop(name)}))
    yield fault(file, name, "one shorter", replaced(lambda data: data[:-1]))
    yield fault(file, name, "one longer", replaced(lambda data: data + b"\0"))
    yield fault(file, name, "half", replaced(lambda data: data[: len(data) // 2]))
    yield fault(file, name, "empty", replaced(lambda _: b""))
    yield fault(file, name, "all ones", replaced(lambda data: b"\xff" * len(data)))
    yield fault(file, name, "compressed", lambda inside: inside.update({name: (inside[name][0], zipfile.ZIP_DEFLATED)}))


def array_faults(file, name, content):
    """The faults of each field of the header, and of each dimension."""
    (size,) = struct.unpack_from("<H", content, 8)
    try:
        header = ast.literal_eval(content[10 : 10 + size].decode("latin-1"))
        fields = {key: header[key] for key in ("descr", "fortran_order", "shape")}
    except (ValueError, SyntaxError, KeyError, TypeError):
        return
    data = content[10 + size :]

    def of(what, **new):
        text = repr({key: value for key, value in {**fields, **new}.items() if value is not None}).encode("latin-1")
        text += b" " * (-(len(text) + 11) % 64) + b"\n"
        made = b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + data
        inner = " ".join(new)
        return fault(file, name, what, lambda inside: inside.update({name: (made, inside[name][1])}), inner)

    yield [of(f"= {descr}", descr=descr) for descr in DESCRIPTIONS if descr != fields["descr"]] + [of("(absent)", descr=None)]
    yield [of(f"= {new}", fortran_order=new) for new in (not fields["fortran_order"], 2, "yes")] + [of("(absent)", fortran_order=None)]
    shape = fields["shape"]
    shapes = [(), (*shape, 2), shape[1:], shape[::-1], (0, *shape[1:]), (2**62, *shape[1:]), (-1, *shape[1:])]
    shapes += [tuple(n + (i == at) for i, n in enumerate(shape)) for at in range(len(shape))]
    yield [of(f"= {new}", shape=new) for new in dict.fromkeys(shapes) if new != shape] + [of("(absent)", shape=None)]


def pickle_faults(file, name, content):
    """The faults of each number, text and global of a pickle."""
    try:
        opcodes = list(pickletools.genops(content))
    except (ValueError, EOFError, UnicodeDecodeError, struct.error):
        return
    # Lengths of frames would have to follow.
    if any(opcode.name == "FRAME" for opcode, _, _ in opcodes):
        return
    ends = [at for _, _, at in opcodes[1:]] + [len(content)]
    for (opcode, value, at), end in zip(opcodes, ends):

        def of(what, new, at=at, end=end):
            made = content[:at] + new + content[end:]
            return fault(file, name, what, lambda inside: inside.update({name: (made, inside[name][1])}), at)

        if opcode.name in NUMBERS:
            numbers = dict.fromkeys([0, value + 1, value - 1, -1, 2**31 - 1])
            yield [of(f"= {n}", b"J" + struct.pack("<i", n)) for n in numbers if n != value and -(2**31) <= n < 2**31] + [of("= None", b"N")]
        elif opcode.name in TEXTS:
            texts = ["", value.encode("utf-8", "replace").decode() + "x", "unknown"]
            yield [of(f"= `{t}`", b"X" + struct.pack("<I", len(t.encode())) + t.encode()) for t in texts if t != value] + [of("= 1", b"K\1")]
        elif opcode.name == "GLOBAL":
            yield [of(f"= {g}", b"c" + g.replace(" ", "\n").encode() + b"\n") for g in GLOBALS if g != value]
        elif opcode.name in ("BINPERSID", "REDUCE", "BUILD", "TUPLE", "TUPLE1", "TUPLE2", "SETITEM", "SETITEMS", "NEWTRUE", "NEWFALSE"):
            yield [of(f"without {opcode.name}", b"")]

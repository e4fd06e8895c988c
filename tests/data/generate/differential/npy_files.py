"""NPY arrays, whose headers are Python literals, by NumPy."""

import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np

from common import choose, edit_bytes, number

warnings.simplefilter("ignore")
DATA = Path(__file__).resolve().parent.parent.parent

DTYPES = {"b1": "BOOL", "u1": "U8", "i1": "I8", "u2": "U16", "i2": "I16", "u4": "U32", "i4": "I32", "u8": "U64", "i8": "I64", "f2": "F16",
          "f4": "F32", "f8": "F64", "c8": "C64", "V2": "BF16", "V1": "F8_E4M3"}

DESCRS = ["<f4", ">f4", "=f4", "|f4", "f4", "<f2", ">f2", "<f8", ">f8", "|b1", "<b1", "?", "b1", "|u1", "|i1", "<i1", "<u2", ">u2", "<i4", ">i8",
          "<c8", ">c8", "<c16", "|V1", "|V2", "<V2", ">V2", "V2", "|V3", "V", "|V0", "<f1", "f1", "float32", "<float32", "float", "int", "int64",
          "bool", "bool_", "half", "single", "double", "f", "d", "e", "F", "D", "g", "G", "B", "H", "I", "L", "Q", "b", "h", "i", "l", "q", "p",
          "P", "N", "n", "O", "|O", "|S3", "S", "<U2", "U0", "a5", "M8[ns]", "<M8", "m8[D]", "<m8[25s]", "f4,f4", "f4, i4", "(2,)f4", "2f4", "4f4",
          "(2,3)<f4", "f16", "<f16", "f10", "f12", "c32", "", " ", "<", ">", "<f", "<i", "<f40", "f04", "<f 4", " <f4", "<f4 ", "f4\0", "<f4\\n",
          "F4", "FLOAT32", "uint", "ulong", "long", "short", "intc", "intp", "byte", "ubyte", "object", "str", "bytes", "void", "unicode",
          "complex64", "complex", "longdouble", "float16", "bfloat16", "float8_e4m3fn", "<bfloat16", "uint8", "|uint8", ">uint8", ">b1", ">i1",
          ">V1", "<V1", "!f4", "@f4", "^f4", "<<f4", "|<f4", "i1,", ",f4", "i4:", "i3", "u16", "b", "b2", "b8", "?1", "e2", "h2", "T", "StringDType"]

LITERALS = ["True", "False", "None", "0", "1", "-1", "()", "(1,)", "[]", "{}", "''", "'True'", "1.0", "0x1", "...", "b'x'", "1j", "1+2j", "set()",
            "{1}", "True,", "(True)", "((True))", "+1", "not True", "[('a', '<f4')]", "[('a', '<f4'), ('b', '<i2')]", "[('', '<f4')]", "('<f4', (2,))",
            "[('a', '<f4', (2,))]", "('<f4',)", "['<f4']", "[('a','|V2'),('a','<f4')]", "('|V1', ())", "('<f4', ())", "('<f4', 2)", "(('<f4'))",
            "'<' 'f4'", "('<f4', {})", "[]", "[('a', [('b', '<f4')])]", "{'names': ['a'], 'formats': ['<f4']}"]

KEYS = ["descr", "fortran_order", "shape", "Descr", "descr ", "shape\\0", "extra", "", "sh\\x61pe", "desc\\162", "\\u0064escr", "\\N{LATIN SMALL LETTER D}escr"]

BLANKS = ["", " ", "  ", "\t", "\n", "\r", "\r\n", "\f", "\v", "\0", "#\n", "# comment\n", "\\\n", "\xa0", "\x85", "\x1c", ";", "\\"]


def integer(rng, n):
    forms = [str(n), f"{n}L", f"{n}l", f"0x{n:x}", f"0X{n:X}", f"0o{n:o}", f"0b{n:b}", f"0{n}", f"00{n}", f"+{n}", f"-{n}", f"--{n}", f"- {n}", f"-0", f"{n}.0",
             f"{n}e0", f"{n}_0", f"{n}_", f"_{n}", f"0x_{n:x}", f"0x{n:x}L", f"({n})", f"({n},)", f"[{n}]", f"'{n}'", f"{n}j", "True", "False", "None",
             f"{n}+0", f"{n}-0j", f"~{n}", f"0o{n:o}L", f"00", f"0_0", f"{n} L", f"{n}\xb2", f"0{n}L", f"0x", "0b2", "1__0", f"{n} {n}", f"{n} if 1 else 2", "..."]
    return choose(rng, forms)


def shape(rng, dims):
    """A shape as a literal, near `dims`."""
    dims = list(dims)
    kind = rng.randrange(10)
    if kind == 0:
        dims = [choose(rng, [0, 1, 2, 3, 4, 6, 12])] * rng.randrange(5)
    elif kind == 1 and dims:
        dims[rng.randrange(len(dims))] = number(rng, 64)
    elif kind == 2:
        dims = [1] * choose(rng, [31, 32, 33, 63, 64, 65]) + dims
    elif kind == 3:
        dims.insert(rng.randrange(len(dims) + 1), choose(rng, [0, 1]))
    elif kind == 4:
        rng.shuffle(dims)
    elif kind == 5 and len(dims) > 1:
        dims[0] = dims[0] * dims.pop()
    texts = [str(d) for d in dims]
    if kind >= 8 and texts:
        i = rng.randrange(len(texts))
        texts[i] = integer(rng, dims[i])
    inside = choose(rng, [", ", ",", " , ", ",\n", ",,"] if rng.random() < 0.1 else [", "]).join(texts)
    comma = "," if len(texts) == 1 else ""
    if rng.random() < 0.1:
        comma = choose(rng, ["", ",", ",,", ", "])
    if rng.random() < 0.1:
        return choose(rng, ["[%s]", "{%s}", "%s", "((%s))", "(%s", "%s)", "list((%s))"]) % (inside + comma)
    return f"({inside}{comma})"


def quoted(rng, text):
    """A string literal of `text`; mostly a plain one."""
    if rng.random() < 0.75:
        return f"'{text}'"
    forms = ['"%s"', "u'%s'", "U'%s'", "r'%s'", "R'%s'", "b'%s'", "f'%s'", "br'%s'", "ur'%s'", "rb'%s'", "'''%s'''", '"""%s"""', "'%s'''", "''\"%s\"", "('%s')",
             "'%s", "u '%s'", "t'%s'", "Rb'%s'", "fr'%s'"]
    if rng.random() < 0.4 and text:
        at = rng.randrange(len(text))
        c = text[at]
        escapes = [f"\\x{ord(c):02x}", f"\\{ord(c):o}", f"\\u{ord(c):04x}", f"\\U{ord(c):08x}", f"' '{c}", f"'\"{c}\"'", f"\\\n{c}", f"\\{c}", f"'\n'{c}", f"\\x{ord(c):X}",
                   f"' u'{c}", f"\\0{ord(c):o}", f"'#\n'{c}", f"\\400", f"\\ud800", f"\\x", f"\\q", f"{c}\\", f"'r'{c}", f"' b'{c}"]
        text = text[:at] + choose(rng, escapes) + text[at + 1:]
        return f"'{text}'"
    return choose(rng, forms) % text


def split(file):
    """Version, header as text, data. `None` if it is no NPY file."""
    if file[:6] != b"\x93NUMPY" or len(file) < 10:
        return None
    if file[6] == 1:
        n, at = struct.unpack_from("<H", file, 8)[0], 10
    elif len(file) >= 12:
        n, at = struct.unpack_from("<I", file, 8)[0], 12
    else:
        return None
    return file[6:8], file[at:at + n].decode("latin1"), file[at + n:]


def joined(version, header, data, length=None):
    try:
        content = header.encode("utf8" if version[0] == 3 else "latin1")
    except UnicodeEncodeError:
        content = header.encode("utf8")
    n = len(content) if length is None else length
    size = struct.pack("<H", n & 0xffff) if version[0] == 1 else struct.pack("<I", n & 0xffffffff)
    return b"\x93NUMPY" + version + size + content + data


def seeds():
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=">i2").reshape(2, 3, 2), np.arange(4, dtype=np.uint8),
              np.float64(3.5), np.zeros((0, 4), np.float16), np.asfortranarray(np.arange(6, dtype=np.int64).reshape(3, 2)), np.array([True, False]),
              np.arange(2, dtype=np.complex64), np.arange(4, dtype=np.uint16).view("V2"), np.arange(3, dtype=np.uint8).view("V1"), np.array(["ab", "c"]),
              np.zeros(2, [("a", "<f4"), ("b", "<i2")])]
    files = []
    for array in arrays:
        out = io.BytesIO()
        np.save(out, array)
        files.append(out.getvalue())
    files += [path.read_bytes() for path in sorted((DATA / "npz").glob("*.npy"))]
    return [file for file in files if len(file) < 2000 and split(file)]


def header(rng, dims, fortran):
    """A header from parts, each of which may be odd."""
    def odd(p=0.12):
        return rng.random() < p
    descr = choose(rng, LITERALS) if odd(0.08) else quoted(rng, choose(rng, DESCRS) if odd(0.5) else choose(rng, DESCRS[:20]))
    order = choose(rng, LITERALS) if odd(0.08) else str(fortran)
    dims = choose(rng, LITERALS) if odd(0.05) else shape(rng, dims) if odd(0.5) else str(tuple(dims))
    entries = [("descr", descr), ("fortran_order", order), ("shape", dims)]
    if odd():
        rng.shuffle(entries)
    if odd(0.05):
        entries.append(choose(rng, entries))
    if odd(0.03):
        entries.pop(rng.randrange(3))
    entries = [(quoted(rng, choose(rng, KEYS) if odd(0.03) else key), value) for key, value in entries]
    colon, comma = (choose(rng, [":", " : ", ": ", "=", ":\n"]) if odd(0.05) else ": "), (choose(rng, [",", ",,", " ,\n", ";"]) if odd(0.05) else ", ")
    text = "{" + comma.join(f"{key}{colon}{value}" for key, value in entries) + choose(rng, [", }", "}", ",}"])
    if odd(0.03):
        text = choose(rng, ["(%s)", "%s,", "[%s]", "dict(%s)", " %s", "\n%s", "\t%s", "%s%%", "%s;", "%s\n1", "(%s", "%s # x", "#\n%s", "\xef\xbb\xbf%s", "\ufeff%s"]).replace("%s", text)
    if odd():
        at = rng.randrange(len(text))
        text = text[:at] + choose(rng, BLANKS) + text[at:]
    return text


def mutant(rng, seeds):
    version, text, data = split(choose(rng, seeds))
    kind = rng.randrange(10)
    if kind < 6:
        dims = choose(rng, [(2, 3), (6,), (3, 2, 1), (), (1,), (0, 3), (12,), (2, 2)])
        text = header(rng, dims, rng.random() < 0.4)
        count = int(np.prod(dims, dtype=object))
        size = choose(rng, [4, 4, 4, 1, 2, 8])
        data = bytes(rng.randrange(256) for _ in range(count * size)) if rng.random() < 0.9 else data
        version = choose(rng, [b"\1\0", b"\1\0", b"\2\0", b"\3\0"])
    elif kind < 8:
        text = edit_bytes(rng, text.encode("latin1", "replace")).decode("latin1")
    end = rng.random()
    if end < 0.7:
        before = 12 if version[0] != 1 else 10
        text = text.rstrip(" \n") + " " * (-(len(text.rstrip(" \n")) + 1 + before) % 64) + "\n"
    elif end < 0.8:
        text = text.rstrip(" \n") + choose(rng, ["", "\n", "\n\n", "\0", " \0\0\n", "\r\n", " ", "\\\n", "#", "# x"])
    length = None
    if rng.random() < 0.05:
        length = len(text) + choose(rng, [-64, -8, -1, 1, 8, 64])
        if length < 0:
            length = 0
    if rng.random() < 0.05:
        version = bytes([choose(rng, [0, 1, 2, 3, 4, 255]), choose(rng, [0, 0, 1, 255])])
    if rng.random() < 0.06:
        data = choose(rng, [data[:-1], data + b"\0", data + data, data[:len(data) // 2], b"", data + choose(rng, seeds)])
    file = joined(version, text, data, length)
    return edit_bytes(rng, file) if rng.random() < 0.04 else file


def describe(array):
    """dtype, shape and CRC-32 as `verdicts` says them; `None` for what no tensor can hold."""
    dtype = DTYPES.get(array.dtype.str[1:])
    if dtype is None:
        return None
    array = np.ascontiguousarray(array) if array.ndim else array
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return dtype, list(array.shape), zlib.crc32(array.tobytes())


def read(file):
    array = np.load(io.BytesIO(file), allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("no array")
    said = describe(array)
    tensors = [["tensor", *said]] if said else []
    return {"tensors": tensors, "skipped": [] if said else ["tensor"]}

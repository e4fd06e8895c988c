"""Golden NPY and NPZ files: written by numpy, or by hand where numpy reads what it does not write.

    pip install numpy==2.4.6 ml_dtypes==0.6.0 torch==2.15.0 safetensors==0.8.0
    python npz.py

It rewrites ../npz/*. Seeds are the CRC-32 of the case's name. The first half is shared with pth.py.

../npz/expected.safetensors holds, as <name>/<tensor>, the tensors that a reader must give for <name>.npy or <name>.npz: elements
little-endian, in C order. The tensor of a lone .npy is named `tensor`; in an .npz the names are numpy's keys.
../npz/index.json has one entry per file:

    file
    expect      ok       all of it is tensors
                skips    the expected tensors are there, `skipped` are left out
                error    nothing is expected, unless `policy` is set
    tensors     how many are expected
    detail      what is special about it
    skipped     names of what is no tensor
    policy      true where the reader's author must decide. What is expected is then what is to be had, `expect` is
                a proposal.
    numpy       what `np.load(allow_pickle=False)` did: `reads`, or the exception. Where it reads, the script has
                compared the values with those expected.
"""

import io
import json
import pickle
import re
import shutil
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors.torch
import torch

DATA = Path(__file__).resolve().parent.parent

# ---------------------------------------------------------------- shared with pth.py

TORCH = {"BOOL": torch.bool, "U8": torch.uint8, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
         "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64, "F16": torch.float16,
         "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
         "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
         "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F4": torch.float4_e2m1fn_x2}


def seed(name):
    return zlib.crc32(name.encode())


def from_bytes(dtype, shape, content):
    """A torch tensor of a safetensors dtype. F4 is packed: `shape` has bytes in the last place."""
    if not content:
        return torch.empty(shape, dtype=TORCH[dtype])
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(TORCH[dtype]).reshape(shape)


def to_bytes(tensor):
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def member(name, compression=zipfile.ZIP_STORED):
    """An entry of a zip with a fixed date and fixed rights."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type, info.external_attr = compression, 0o600 << 16
    return info


class Pipe:
    """A file that zipfile can only append to: it must use data descriptors."""

    def __init__(self):
        self.content = bytearray()

    def write(self, data):
        self.content += data
        return len(data)

    def flush(self):
        pass

    def read(self):
        raise io.UnsupportedOperation("read")  # numpy asks whether it is there


class Family:
    """One directory: inputs, expected files and the index."""

    def __init__(self, name):
        self.name, self.dir, self.index, self.expected, self.read = name, DATA / name, [], {}, []
        shutil.rmtree(self.dir, ignore_errors=True)
        self.dir.mkdir(parents=True)

    def add(self, file, content, detail, tensors=(), expect="ok", skipped=(), **more):
        """`tensors`: name -> torch tensor."""
        stem = file.rsplit(".", 1)[0]
        assert all(e["file"].rsplit(".", 1)[0] != stem for e in self.index), file
        assert expect in ("ok", "skips", "error") and (expect == "skips") >= bool(skipped) or more.get("policy")
        (self.dir / file).write_bytes(content)
        tensors = dict(tensors)
        if expect != "error" or more.get("policy"):
            self.read.append(stem)
            self.expected |= {f"{stem}/{k}": v.detach().resolve_conj().resolve_neg().contiguous().clone() for k, v in tensors.items()}
        entry = {"file": file, "expect": expect, "tensors": len(tensors), "detail": detail}
        if skipped:
            entry["skipped"] = list(skipped)
        self.index.append(entry | more)

    def finish(self):
        lines = ",\n".join("  " + json.dumps(e, ensure_ascii=False) for e in self.index)
        (self.dir / "index.json").write_text(f"[\n{lines}\n]\n")
        # A file without tensors is in the list alone.
        content = safetensors.torch.save(self.expected, {"files": json.dumps(sorted(self.read))})
        (self.dir / "expected.safetensors").write_bytes(content)
        size = sum(f.stat().st_size for f in self.dir.iterdir())
        print(f"{self.name}: {len(self.index)} files, {size} bytes with what is expected of them")


# ---------------------------------------------------------------- numpy

NAMES = {"b1": "BOOL", "u1": "U8", "u2": "U16", "u4": "U32", "u8": "U64", "i1": "I8", "i2": "I16", "i4": "I32",
         "i8": "I64", "f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64"}
SHAPES = {"scalar": (), "0": (0,), "3": (3,), "2x3": (2, 3), "2x3x4": (2, 3, 4), "0x4": (0, 4)}


def array(name, code, shape):
    """Random bits, little-endian."""
    rng = np.random.default_rng(seed(name))
    dtype = np.dtype("<" + code)
    n = int(np.prod(shape, dtype=int)) * dtype.itemsize
    bits = rng.integers(0, 2 if code == "b1" else 256, n, dtype=np.uint8)
    return bits.view(dtype).reshape(shape)


def tensor(a):
    """The same array as a tensor."""
    code = a.dtype.str[1:]
    little = np.ascontiguousarray(a if a.dtype.itemsize == 1 else a.astype("<" + code))
    return from_bytes(NAMES[code], a.shape, little.tobytes())


def swapped(a):
    b = a.astype(a.dtype.newbyteorder(">"))
    assert b.tobytes() == a.byteswap().tobytes()
    return b


def saved(a, version=None):
    """What numpy writes."""
    f = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that old versions of numpy cannot read versions 2 and 3
        np.lib.format.write_array(f, a, version)
    return f.getvalue()


def by_hand(header, data=b"", version=(1, 0), align=64, end="\n"):
    """An .npy with this header."""
    text = header.encode("utf-8" if version >= (3, 0) else "latin-1")
    size = 2 if version < (2, 0) else 4
    if align:
        text += b" " * (-(8 + size + len(text) + len(end)) % align)
    text += end.encode()
    return b"\x93NUMPY" + bytes(version) + len(text).to_bytes(size, "little") + text + data


def numpy_says(content, expected):
    """What np.load does with a file; it must not disagree with `expected`."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got = np.load(io.BytesIO(content), allow_pickle=False)
            if isinstance(got, np.lib.npyio.NpzFile):
                for name, t in expected.items():
                    compare(got[name], t, content)
                dict(got.items())
            else:
                for t in expected.values():
                    compare(got, t, content)
    except AssertionError:
        raise
    except Exception as e:
        text = re.sub(" at 0x[0-9a-f]+", "", f"{type(e).__name__}: {e}").replace("\n", " ")
        return text if len(text) < 120 else text[:110] + "..."
    return "reads" + (", with a warning" if caught else "")


def compare(a, t, content):
    """What numpy read with what is expected. It makes void of BF16, and forgets the byte order."""
    if a.dtype.kind == "V":
        a = a.view(np.uint16).byteswap() if b"'>V2'" in content else a
    elif a.dtype.byteorder == ">":
        a = a.astype(a.dtype.newbyteorder("<"))
    assert tuple(a.shape) == tuple(t.shape) and np.ascontiguousarray(a).tobytes() == to_bytes(t)


def main():
    out = Family("npz")

    def add(file, content, detail, tensors=None, **more):
        tensors = tensors or {}
        out.add(file, content, detail, tensors, numpy=numpy_says(content, tensors), **more)

    # -- dtypes and byte orders

    for code in NAMES:
        for order in ("little",) if code[1] == "1" else ("little", "big"):
            file = f"dtype_{code}.npy" if code[1] == "1" else f"dtype_{code}_{order}.npy"
            a = array(file, code, (2, 3))
            b = swapped(a) if order == "big" else a
            add(file, saved(b), f"descr {b.dtype.str}", {"tensor": tensor(a)})

    # -- shapes and orders; numpy says fortran_order only where it makes a difference, readers must take it anywhere

    for label, shape in (SHAPES | {"1x2x1x3x1x2": (1, 2, 1, 3, 1, 2), "4x0": (4, 0), "1": (1,)}).items():
        for order in "cf":
            file = f"shape_{label}_{order}.npy"
            a = array(file, "f4", shape)
            content = saved(np.asfortranarray(a) if order == "f" else a)
            detail = f"shape {shape}, " + ("Fortran order" if order == "f" else "C order")
            if order == "f" and b"True" not in content[:128]:
                data = a.tobytes("F")
                content = by_hand(f"{{'descr': '<f4', 'fortran_order': True, 'shape': {shape!r}, }}", data)
                detail += ", by hand: both orders are the same"
            add(file, content, detail, {"tensor": tensor(a)})
    a = array("shape_2x3x4_f_big.npy", "i2", (2, 3, 4))
    add("shape_2x3x4_f_big.npy", saved(np.asfortranarray(swapped(a))), "Fortran order and big-endian",
        {"tensor": tensor(a)})
    a = array("not_contiguous.npy", "i4", (6, 4))
    add("not_contiguous.npy", saved(a[::2, ::-1]), "made from a view that has neither order; numpy writes C order",
        {"tensor": tensor(np.ascontiguousarray(a[::2, ::-1]))})

    # -- versions

    a = array("version", "f4", (2, 3))
    t, data, plain_file = {"tensor": tensor(a)}, a.tobytes(), saved(a)
    for major in 1, 2, 3:
        add(f"version_{major}.npy", saved(a, (major, 0)), f"version {major}.0", t)
    add("version_3_bf16_little.npy", saved(a.view(np.uint16).view(ml_dtypes.bfloat16), (3, 0)), "version 3.0 of '<V2'",
        {"tensor": from_bytes("BF16", (2, 6), data)})

    # -- headers that are legal Python

    plain = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
    for name, header, how, detail in [
        ("double_quotes", plain.replace("'", '"'), {}, "double quotes"),
        ("triple_quotes", plain.replace("'<f4'", "'''<f4'''"), {}, "a string in three quotes"),
        ("no_trailing_comma", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", {}, "no trailing comma"),
        ("shape_trailing_comma", plain.replace("(2, 3)", "(2, 3,)"), {}, "a trailing comma in the shape"),
        ("key_order", "{'shape': (2, 3), 'fortran_order': False, 'descr': '<f4'}", {}, "keys in another order"),
        ("compact", "{'descr':'<f4','fortran_order':False,'shape':(2,3)}", {}, "no spaces"),
        ("spaces", "  {  'descr'  :  '<f4' ,\n 'fortran_order' :\tFalse,\r\n\n'shape' : ( 2 ,\n 3 , ) , }  \n\n", {},
         "spaces, tabs and newlines everywhere"),
        ("comment", plain[:-1] + "# the end\n}", {}, "a Python comment"),
        ("align_16", plain, {"align": 16}, "padded to 16 bytes, as numpy did before 1.14"),
        ("unaligned", plain, {"align": 0, "end": ""}, "no padding and no newline at the end"),
        ("newline_only", plain, {"align": 0}, "no padding"),
        ("padded_zeros", plain, {"align": 4096}, "padded to 4096 bytes"),
        ("python2_unicode", "{u'descr': u'<f4', u'fortran_order': False, u'shape': (2, 3)}", {}, "Python 2's u''"),
        ("python2_long", "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }", {},
         "Python 2's long integers; version 1.0"),
        ("python2_long_v2", "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }", {"version": (2, 0)},
         "Python 2's long integers; version 2.0"),
        ("escapes", plain.replace("'<f4'", r"'\x3cf\64'"), {}, "escapes in a string"),
        ("joined", plain.replace("'<f4'", "'<' 'f4'"), {}, "adjacent strings, which Python joins"),
        ("raw", plain.replace("'<f4'", "r'<f4'"), {}, "a raw string"),
        ("numbers", plain.replace("(2, 3)", "(0x2, 0b11)"), {}, "hexadecimal and binary integers"),
        ("parentheses", plain.replace("(2, 3)", "((2), (3))").replace("False", "(False)"), {}, "needless parentheses"),
        ("twice", plain[:-1] + "'descr': '<f4', }", {}, "a key twice; numpy takes the last"),
        ("descr_native", plain.replace("<f4", "=f4"), {}, "descr =f4: native order of the reader"),
        ("descr_bare", plain.replace("<f4", "f4"), {}, "descr f4, no byte order"),
        ("descr_pipe", plain.replace("<f4", "|f4"), {}, "descr |f4"),
        ("descr_char", plain.replace("<f4", "<f"), {}, "descr <f: numpy's character code"),
        ("descr_name", plain.replace("<f4", "float32"), {}, "descr float32: numpy's name"),
    ]:
        odd = name in ("triple_quotes", "comment", "escapes", "joined", "raw", "numbers", "parentheses", "twice",
                       "descr_native", "descr_bare", "descr_pipe", "descr_char", "descr_name")
        add(f"header_{name}.npy", by_hand(header, data, **how), detail, t, **({"policy": True} if odd else {}),
            **({"expect": "error"} if name == "twice" else {}))
    for code, descr in ("b1", "<b1"), ("b1", "?"), ("u1", "<u1"), ("i1", ">i1"):
        a = array(descr, code, (2, 3))
        name = {"?": "char"}.get(descr, {"<": "little", ">": "big"}.get(descr[0]))
        header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': (2, 3), }}"
        add(f"header_descr_{code}_{name}.npy", by_hand(header, a.tobytes()), f"descr {descr}, where numpy writes |",
            {"tensor": tensor(a)}, **({"policy": True} if descr == "?" else {}))
    add("header_long.npy", by_hand(plain, data, (2, 0), align=16384),
        "a header of 16 KiB; numpy's limit is 10000 characters", t, expect="error", policy=True)
    add("trailing_bytes.npy", plain_file + b"more", "four bytes after the data", t, policy=True)

    # -- broken

    for name, content, detail in [
        ("empty", b"", "an empty file"),
        ("magic", b"\x93NUMPX" + by_hand(plain, data)[6:], "wrong magic"),
        ("version_0", by_hand(plain, data, (0, 0)), "version 0.0"),
        ("version_1_1", by_hand(plain, data, (1, 1)), "version 1.1"),
        ("version_4", by_hand(plain, data, (4, 0)), "version 4.0"),
        ("header_cut", by_hand(plain, data)[:60], "the file ends in the header"),
        ("length_cut", by_hand(plain, data, (2, 0))[:10], "the file ends in the length of the header"),
        ("data_cut", by_hand(plain, data)[:-1], "one byte short"),
        ("no_data", by_hand(plain), "no data"),
        ("key_missing", by_hand("{'descr': '<f4', 'shape': (2, 3), }", data), "no fortran_order"),
        ("key_more", by_hand(plain[:-1] + "'order': 'C', }", data), "a fourth key"),
        ("list", by_hand("['<f4', False, (2, 3)]", data), "no dictionary"),
        ("shape_list", by_hand(plain.replace("(2, 3)", "[2, 3]"), data), "the shape is a list"),
        ("shape_int", by_hand(plain.replace("(2, 3)", "(6)"), data), "the shape is a number, (6)"),
        ("shape_float", by_hand(plain.replace("(2, 3)", "(2.0, 3)"), data), "a float in the shape"),
        ("shape_negative", by_hand(plain.replace("(2, 3)", "(-2, 3)"), data), "a negative dimension"),
        ("shape_negatives", by_hand(plain.replace("(2, 3)", "(-2, -3)"), data), "two, with a positive product"),
        ("shape_huge", by_hand(plain.replace("(2, 3)", "(4611686018427387904, 4)"), data), "the product is 2^64"),
        ("shape_large", by_hand(plain.replace("(2, 3)", "(1099511627776,)"), data), "4 TiB"),
        ("shape_bignum", by_hand(plain.replace("(2, 3)", "(18446744073709551622,)"), data), "a dimension of 2^64 + 6"),
        ("fortran_int", by_hand(plain.replace("False", "0"), data), "fortran_order is 0"),
        ("long_v3", by_hand(plain.replace("(2, 3)", "(2L, 3L)"), data, (3, 0)), "Python 2's integers in version 3.0"),
        ("expression", by_hand(plain.replace("(2, 3)", "(1 + 1, 3)"), data), "an expression"),
        ("call", by_hand(plain.replace("(2, 3)", "tuple([2, 3])"), data), "a call"),
        ("unclosed", by_hand(plain.replace("}", ""), data), "the dictionary is not closed"),
        ("after", by_hand(plain + " {}", data), "something after the dictionary"),
        ("descr_unknown", by_hand(plain.replace("<f4", "<q4"), data), "descr <q4"),
        ("descr_empty", by_hand(plain.replace("<f4", ""), data), "an empty descr"),
        ("utf8", by_hand(plain.replace("<f4", "<f\u00e9"), data, (3, 0)).replace(b"\xc3\xa9", b"\xc3\x28"),
         "version 3.0, not UTF-8"),
        ("deep", by_hand("(" * 5000, data), "5000 open parentheses"),
    ]:
        add(f"error_{name}.npy", content, detail, expect="error")

    # -- ml_dtypes

    rng = np.random.default_rng(seed("ml_dtypes"))
    bits = rng.integers(0, 256, 12, dtype=np.uint8)
    bf16 = {"tensor": from_bytes("BF16", (2, 3), bits.tobytes())}
    little = bits.view(ml_dtypes.bfloat16).reshape(2, 3)
    big = bits.view(np.uint16).byteswap().view(ml_dtypes.bfloat16).reshape(2, 3).view(
        np.dtype(ml_dtypes.bfloat16).newbyteorder(">"))
    again = np.load(io.BytesIO(saved(little)))
    for file, a, detail in [
        ("bf16_little.npy", little, "ml_dtypes.bfloat16"),
        ("bf16_fortran.npy", np.asfortranarray(little), "ml_dtypes.bfloat16 in Fortran order"),
        ("bf16_big.npy", big, "ml_dtypes.bfloat16, big-endian"),
        ("bf16_again.npy", again, "ml_dtypes.bfloat16, loaded by numpy, which makes it void, and saved again"),
    ]:
        content = saved(a)
        descr = content[10:64].split(b"'")[3].decode()
        more = {"policy": True} if descr == "|V2" else {}
        add(file, content, f"{detail}: descr {descr}", bf16, **more)
    ambiguous = []
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3", "float8_e3m4", "float8_e4m3b11fnuz",
                 "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn",
                 "float4_e2m1fn", "int4", "uint4", "int2", "uint2", "int1", "uint1"):
        content = saved(bits[:6].view(getattr(ml_dtypes, name)).reshape(2, 3))
        descr = content[10:64].split(b"'")[3].decode()
        if descr == "<V1":
            ambiguous.append((name, content))
            continue
        assert (name, descr) == ("float8_e5m2", "<f1")
        add("f8_e5m2.npy", content, "ml_dtypes.float8_e5m2: descr <f1, which no other dtype has",
            {"tensor": from_bytes("F8_E5M2", (2, 3), bits[:6].tobytes())})
    assert len({content for _, content in ambiguous}) == 1
    add("v1_little.npy", ambiguous[0][1], "descr <V1, the same file for each of ml_dtypes."
        + ", ".join(name for name, _ in ambiguous), expect="skips", skipped=["tensor"], policy=True)
    add("v1_void.npy", saved(np.load(io.BytesIO(ambiguous[0][1]))),
        "descr |V1: void, or the same loaded and saved again", expect="skips", skipped=["tensor"], policy=True)
    complex32 = saved(bits.view(ml_dtypes.complex32).reshape(3))
    add("complex32.npy", complex32, "ml_dtypes.complex32: descr <W4, as has bcomplex32", expect="skips",
        skipped=["tensor"], policy=True)

    # -- what is no tensor

    bad = {
        "object": np.array([1, "two", None], dtype=object),
        "unicode": np.array(["ab", "cde"], dtype="<U5"),
        "unicode_big": np.array(["ab", "cde"], dtype=">U5"),
        "bytes": np.array([b"ab", b"cde"], dtype="S3"),
        "bytes_0": np.array([b"", b""], dtype="S0"),
        "datetime": np.array(["2001-02-03"], dtype="<M8[D]"),
        "timedelta": np.array([5], dtype="<m8[ns]"),
        "structured": np.array([(1, 2.5)], dtype=[("a", "<i4"), ("b", "<f8")]),
        "structured_padded": np.array([(1, 2.5)], dtype=np.dtype([("a", "<i1"), ("b", "<f8")], align=True)),
        "nested": np.zeros(2, dtype=[("a", "<i4", (2, 2)), ("b", [("c", "<f4"), ("d", "S2")])]),
        "one_field": np.array([(1.5,)], dtype=[("", "<f4")]),
        "void_3": np.array([b"abc"], dtype="V3"),
        "complex128": np.array([1 + 2j]),
        "complex128_big": np.array([1 + 2j], dtype=">c16"),
        "longdouble": np.array([1.5], dtype=np.longdouble),
        "clongdouble": np.array([1.5], dtype=np.clongdouble),
    }
    for name, a in bad.items():
        content = saved(a)
        descr = content[10:100].split(b"'descr': ")[1].split(b", 'fortran")[0].decode()
        if "long" in name:  # 80 bits in 16 bytes; the rest is whatever was in memory
            assert a.dtype.itemsize in (16, 32)
            at = len(content) - a.nbytes
            parts = [content[i : i + 10] + bytes(6) for i in range(at, len(content), 16)]
            content = content[:at] + b"".join(parts)
            bad[name] = np.load(io.BytesIO(content))
        add(f"no_tensor_{name}.npy", content, f"descr {descr}", expect="skips", skipped=["tensor"], policy=True)
    names = np.array([(1, 2)], dtype=[("\u03b1", "<i4"), ("\u65e5\u672c", "<i4")])
    add("no_tensor_structured_v3.npy", saved(names), "a field name that is not Latin-1: numpy writes version 3.0",
        expect="skips", skipped=["tensor"], policy=True)
    names = np.array([(1, 2)], dtype=[("\u00e9", "<i4"), ("it's \"{(\\", "<i4")])
    add("no_tensor_structured_latin1.npy", saved(names), "Latin-1, quotes, brackets and a backslash in field names",
        expect="skips", skipped=["tensor"], policy=True)
    add("no_tensor_subarray.npy", by_hand("{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (3,), }", data),
        "a subarray, descr ('<f4', (2,)), by hand: numpy writes none", expect="skips", skipped=["tensor"], policy=True)

    # -- .npz: everything, crossed

    for order in ("little", "big"):
        for layout in "cf":
            file = f"all_{order}_{layout}.npz"
            arrays, tensors = {}, {}
            for code in NAMES:
                for label, shape in SHAPES.items():
                    key = f"{code}_{label}"
                    a = array(f"{file}/{key}", code, shape)
                    tensors[key] = tensor(a)
                    a = swapped(a) if order == "big" else a
                    arrays[key] = np.asfortranarray(a).reshape(shape) if layout == "f" else a
            f = io.BytesIO()
            np.savez_compressed(f, **arrays)
            add(file, f.getvalue(), f"every dtype and shape, {order}-endian, "
                + ("Fortran" if layout == "f" else "C") + " order", tensors)

    # -- .npz: containers

    one, two = array("one", "f4", (2, 3)), array("two", "i8", (40,))
    two[:] = np.arange(40)
    both = {"one": tensor(one), "two": tensor(two)}

    def savez(write=np.savez, f=None, args=(), **arrays):
        f = f or io.BytesIO()
        write(f, *args, **arrays)
        return bytes(f.content) if isinstance(f, Pipe) else f.getvalue()

    def zipped(members, f=None, comment=b"", **options):
        """members: (name or ZipInfo, content). As zipfile does it by default, ZIP64 only where it must be."""
        f = f or io.BytesIO()
        with zipfile.ZipFile(f, "w") as z:
            for info, content in members:
                info = info if isinstance(info, zipfile.ZipInfo) else member(info)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that a name is there twice
                    with z.open(info, "w", **options) as out:
                        out.write(content)
            z.comment = comment
        return bytes(f.content) if isinstance(f, Pipe) else f.getvalue()

    add("stored.npz", savez(one=one, two=two), "np.savez: stored, ZIP64 fields in the local headers", both)
    add("compressed.npz", savez(np.savez_compressed, one=one, two=two), "np.savez_compressed: deflated", both)
    add("positional.npz", savez(args=(one, two)), "np.savez without names",
        {"arr_0": both["one"], "arr_1": both["two"]})
    add("empty.npz", savez(), "np.savez of nothing")
    pairs = [("one.npy", saved(one)), ("two.npy", saved(two))]
    deflated = [(member(name, zipfile.ZIP_DEFLATED), content) for name, content in pairs]
    add("mixed.npz", zipped([pairs[0], deflated[1]]), "one stored, two deflated; no ZIP64", both)
    add("empty_deflated.npz", zipped([(member("none.npy", zipfile.ZIP_DEFLATED), saved(one[:0]))]), "shape (0, 3)",
        {"none": tensor(one[:0])})
    add("streamed.npz", zipped(pairs, Pipe()), "written to a pipe: sizes only in data descriptors", both)
    add("streamed_deflated.npz", zipped(deflated, Pipe()), "written to a pipe and deflated", both)
    add("streamed_zip64.npz", savez(f=Pipe(), one=one, two=two), "np.savez to a pipe: data descriptors of ZIP64", both)
    add("comment.npz", zipped(pairs, comment=b"a comment " * 30), "a comment after the end record", both)
    limits = zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT
    zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT = 0, 0
    try:
        add("zip64.npz", zipped(pairs, force_zip64=True),
            "ZIP64 everywhere: local headers, central directory, end record and its locator", both)
    finally:
        zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT = limits
    extra = member("one.npy")
    extra.extra, extra.comment = struct.pack("<HH5s", 0x7075, 5, b"extra"), b"the comment of a member"
    add("extra.npz", zipped([(extra, pairs[0][1]), pairs[1]]), "an extra field and a comment on a member", both)
    unaligned = by_hand(plain.replace("(2, 3)", "(2,)"), data[:8], align=0)
    add("unaligned_data.npz", zipped([("o.npy", unaligned), pairs[1]]), "data at odd offsets",
        {"o": from_bytes("F32", (2,), data[:8]), "two": both["two"]})

    keys = ["a", "a/b", "a/b/c.d", "layers.0.weight", "with space", "gr\u00fc\u00df", "\u65e5\u672c\u8a9e/\U0001f600",
            "x.npy", "UPPER", "upper", "..", "../up", "/absolute", "back\\slash", "\"quoted\"", ""]
    arrays = {k: array(k, "u1", (3,)) for k in keys}
    f = savez(**arrays)
    assert zipfile.ZipFile(io.BytesIO(f)).namelist() == [k + ".npy" for k in keys]
    add("names.npz", f, "slashes, dots, unicode, `..`, an absolute path, an empty name",
        {k: tensor(a) for k, a in arrays.items()}, policy=True)
    f = zipped([("dir/", b""), ("dir/one.npy", pairs[0][1]), ("dir/sub/", b""), ("dir/sub/two.npy", pairs[1][1])])
    add("directories.npz", f, "entries for directories, as zip -r makes them",
        {"dir/one": both["one"], "dir/sub/two": both["two"]})
    f = zipped([("one", pairs[0][1]), pairs[1], ("read.me", b"no array"), ("short", b"\x93NUM")])
    add("without_npy.npz", f, "members without .npy: one is an array all the same, of the others numpy gives the bytes",
        both, skipped=["read.me", "short"], expect="skips")
    good = {"f2": array("f2", "f2", (3,)), "f4": one, "i8": two[:3]}
    order = []
    for i, name in enumerate(bad):
        order += [(f"good_{list(good)[i]}", list(good.values())[i])] if i < len(good) else []
        order.append((name, bad[name]))
    f = zipped([(k + ".npy", saved(a)) for k, a in order])
    add("no_tensors_among.npz", f, "arrays that cannot be tensors between arrays that can",
        {f"good_{k}": tensor(a) for k, a in good.items()}, expect="skips", skipped=list(bad))
    f = zipped([(k + ".npy", saved(bad[k])) for k in ("unicode", "complex128")])
    add("no_tensors_only.npz", f, "nothing that can be a tensor", expect="skips", skipped=["unicode", "complex128"],
        policy=True)
    tree = {"a": {"w": one, "b": [two, "text", one.T]}, "n": 3}
    in_tree = {"a.w": tensor(one), "a.b.0": tensor(two), "a.b.2": tensor(one.T)}
    only = np.array(tree, dtype=object)
    add("objects.npy", saved(only), "a dict of arrays, in an array of objects without dimensions", in_tree, policy=True)
    old = by_hand("{'descr': '|O', 'fortran_order': False, 'shape': (), }", pickle.dumps(only, protocol=2))
    add("objects_protocol2.npy", old, "the same, as NumPy for Python 2 writes it", in_tree, policy=True)
    several = np.empty(3, dtype=object)
    several[:] = [one, {"inner": np.array([two, None], dtype=object)}, "text"]
    add("objects_several.npy", saved(several), "a vector of objects, one with such a vector", {"0": tensor(one), "1.inner.0": tensor(two)}, policy=True)
    f = zipped([("plain.npy", saved(two)), ("tree.npy", saved(only)), ("vector.npy", saved(several))])
    among = {"plain": tensor(two), "vector.0": tensor(one), "vector.1.inner.0": tensor(two)}
    add("objects_among.npz", f, "arrays of objects among others", among | {f"tree.{k}": t for k, t in in_tree.items()}, policy=True)
    f = savez(np.savez_compressed, one=one, tree=only)
    in_both = {"one": tensor(one)} | {f"tree.{k}": t for k, t in in_tree.items()}
    add("objects_deflated.npz", f, "a compressed array of objects", in_both, policy=True)
    f = zipped([(member(name, zipfile.ZIP_DEFLATED), content) for name, content in (("one.npy", saved(one)), ("tree.npy", old))])
    add("objects_deflated_protocol2.npz", f, "the same, as NumPy for Python 2 writes it", in_both, policy=True)
    code = by_hand("{'descr': '|O', 'fortran_order': False, 'shape': (), }", pickle.dumps(np.array({"w": one, "f": print}, dtype=object)))
    add("objects_code.npy", code, "a function among the arrays", expect="skips", skipped=["tensor"], policy=True)
    small = {
        "f4": (saved(one), tensor(one)),
        "bf16": (saved(little), bf16["tensor"]),
        "bf16_big": (saved(big), bf16["tensor"]),
        "f8_e5m2": (saved(bits[:6].view(ml_dtypes.float8_e5m2)), from_bytes("F8_E5M2", (6,), bits[:6].tobytes())),
        "f8_e4m3": (ambiguous[0][1], None),
        "complex32": (complex32, None),
    }
    f = zipped([(k + ".npy", c) for k, (c, _) in small.items()])
    out.add("ml_dtypes.npz", f, "ml_dtypes among others: <V2, >V2, <f1; <V1 and <W4 are ambiguous",
            {k: v for k, (_, v) in small.items() if v is not None}, expect="skips", skipped=["f8_e4m3", "complex32"],
            numpy=numpy_says(f, {}))

    for name, method in ("bzip2", zipfile.ZIP_BZIP2), ("lzma", zipfile.ZIP_LZMA):
        add(f"method_{name}.npz", zipped([(member("two.npy", method), saved(two))]),
            f"compressed with {name}, which np.savez never does", {"two": both["two"]}, expect="error", policy=True)
    add("twice.npz", zipped([("one.npy", saved(one)), ("one.npy", saved(one + 1))]),
        "a name twice; numpy gives the last",
        {"one": tensor(one + 1)}, expect="error", policy=True)
    add("twice_key.npz", zipped([("one.npy", saved(one)), ("one", saved(one + 1))]),
        "one.npy and one: the same key; numpy gives the member that is called like the key",
        {"one": tensor(one + 1)}, expect="error", policy=True)

    good = zipped(pairs)
    at = good.index(saved(two)) + 128
    add("error_crc.npz", good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :], "a wrong CRC-32", expect="error")
    add("error_no_end.npz", good[:-30], "no end record", expect="error")
    add("error_member_cut.npz", zipped([("one.npy", saved(one)[:-1])]), "a member that is one byte short",
        expect="error")
    add("error_header.npz", zipped([pairs[0], ("two.npy", by_hand(plain.replace("False", "None"), data))]),
        "a broken header in one member", expect="error", policy=True, tensors={"one": both["one"]})
    flags = bytearray(good)
    flags[6] |= 1
    flags[good.index(b"PK\x01\x02") + 8] |= 1
    add("error_encrypted.npz", bytes(flags), "the flag of encryption on one member", expect="error")
    bomb = zipped([(member("two.npy", zipfile.ZIP_DEFLATED), saved(np.zeros(100, np.int64)))])
    info = bytearray(bomb)
    for at in (bomb.index(b"PK\x03\x04") + 22, bomb.index(b"PK\x01\x02") + 24):
        info[at : at + 4] = struct.pack("<I", 200)
    add("error_size.npz", bytes(info), "the inflated member is longer than its entry says", expect="error")
    out.finish()


if __name__ == "__main__":
    main()

"""Golden GGUF files: block types decoded by gguf-py and by ggml's C reference, and whole files for the reader.

    pip install gguf==0.19.0 torch==2.15.0 safetensors==0.8.0 ml_dtypes==0.6.0 numpy==2.4.6
    GGML_ORACLE=<shared library> python ggml.py

GGML_ORACLE has the scalar reference decoders of ggml 0.21.0 (commit d99724f2), without FMA, fast math and F16C, behind these functions:

    float oracle_f16(uint16_t half);                                          GGML_FP16_TO_FP32
    int oracle_block(int type, int64_t * elements, int64_t * bytes);          of a block; 0 for a type without blocks
    int oracle_dequantize(int type, const void * x, float * y, int64_t k);    dequantize_row_*; 0 for no such type

It rewrites ../gguf/* and ../gguf-files/*. Seeds are the CRC-32 of the case's name.

../gguf/<type>/ holds model.gguf and what it decodes to. The values are those of `gguf.quants.dequantize`, and ggml's
must have the same bits. gguf-py does not decode Q1_0, Q2_0, Q8_1 and Q8_K; those values are ggml's alone (and ggml has
no decoder for Q8_1: the library takes the one of Q8_0, which has the same codes and scale).

../gguf-files/<name>.json says what is in <name>.gguf:

    version, byte_order, alignment
    metadata    [key, type, value] in the file's order. Arrays are ARRAY[<type>]; in an ARRAY[ARRAY] each value is
                itself [type, value]. A FLOAT32 is written as the FLOAT64 of the same value. Numbers that JSON does not
                have are the strings nan, inf, -inf.
    tensors     [name, type, row-major shape, offset from the start of the file, bytes, SHA-256 of the data as they are
                in a little-endian file]

`gguf.GGUFReader` must read the same, where it can read the file.
"""

import builtins
import contextlib
import ctypes
import hashlib
import io
import json
import os
import shutil
import struct
import tempfile
import types
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent

import gguf
import ml_dtypes
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFEndian, GGUFReader, GGUFValueType, GGUFWriter
from gguf.scripts import gguf_convert_endian
from safetensors.torch import save_file

DATA = HERE.parent
TARGETS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
QUIET_NAN = {torch.float32: 0x7FC00000, torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}
BITS_OF = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}

IDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q8_1": 9, "Q2_K": 10, "Q3_K": 11,
       "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "Q8_K": 15, "IQ2_XXS": 16, "IQ2_XS": 17, "IQ3_XXS": 18, "IQ1_S": 19,
       "IQ4_NL": 20, "IQ3_S": 21, "IQ2_S": 22, "IQ4_XS": 23, "I8": 24, "I16": 25, "I32": 26, "I64": 27, "F64": 28,
       "IQ1_M": 29, "BF16": 30, "TQ1_0": 34, "TQ2_0": 35, "MXFP4": 39, "NVFP4": 40, "Q1_0": 41, "Q2_0": 42}
NUMPY = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
# gguf-py does not know Q2_0, and believes that a Q8_1 block has 40 bytes, as it had before ggml made d and s F16.
UNKNOWN_TO_GGUF_PY = ("Q8_1", "Q2_0")
NO_GGUF_PY_DECODER = ("Q1_0", "Q2_0", "Q8_1", "Q8_K")

# The block structs of ggml-common.h.
BLOCKS = {
    "Q4_0": [("d", "<u2"), ("qs", "u1", 16)],
    "Q4_1": [("d", "<u2"), ("m", "<u2"), ("qs", "u1", 16)],
    "Q5_0": [("d", "<u2"), ("qh", "u1", 4), ("qs", "u1", 16)],
    "Q5_1": [("d", "<u2"), ("m", "<u2"), ("qh", "u1", 4), ("qs", "u1", 16)],
    "Q8_0": [("d", "<u2"), ("qs", "u1", 32)],
    "Q8_1": [("d", "<u2"), ("s", "<u2"), ("qs", "u1", 32)],
    "Q2_K": [("scales", "u1", 16), ("qs", "u1", 64), ("d", "<u2"), ("dmin", "<u2")],
    "Q3_K": [("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<u2")],
    "Q4_K": [("d", "<u2"), ("dmin", "<u2"), ("scales", "u1", 12), ("qs", "u1", 128)],
    "Q5_K": [("d", "<u2"), ("dmin", "<u2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)],
    "Q6_K": [("ql", "u1", 128), ("qh", "u1", 64), ("scales", "u1", 16), ("d", "<u2")],
    "Q8_K": [("d", "<u4"), ("qs", "u1", 256), ("bsums", "<u2", 16)],
    "IQ2_XXS": [("d", "<u2"), ("qs", "<u4", (8, 2))],
    "IQ2_XS": [("d", "<u2"), ("qs", "<u2", 32), ("scales", "u1", 8)],
    "IQ2_S": [("d", "<u2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)],
    "IQ3_XXS": [("d", "<u2"), ("qs", "u1", 64), ("scales_and_signs", "<u4", 8)],
    "IQ3_S": [("d", "<u2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)],
    "IQ1_S": [("d", "<u2"), ("qs", "u1", 32), ("qh", "<u2", 8)],
    "IQ1_M": [("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)],
    "IQ4_NL": [("d", "<u2"), ("qs", "u1", 16)],
    "IQ4_XS": [("d", "<u2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)],
    "TQ1_0": [("qs", "u1", 48), ("qh", "u1", 4), ("d", "<u2")],
    "TQ2_0": [("qs", "u1", 64), ("d", "<u2")],
    "MXFP4": [("e", "u1"), ("qs", "u1", 16)],
    "NVFP4": [("d", "u1", 4), ("qs", "u1", 32)],
    "Q1_0": [("d", "<u2"), ("qs", "u1", 16)],
    "Q2_0": [("d", "<u2"), ("qs", "u1", 16)],
}
STRUCT = {name: np.dtype(fields) for name, fields in BLOCKS.items()}

HOSTILE_F16 = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00,
               0xFE00, 0x7C01, 0xFD55, 0x7FFF]
# d and dmin (or m): every pattern on both sides, then what meets inf - inf, 0 - 0 and cancellation.
HOSTILE_PAIRS = [(d, HOSTILE_F16[(5 * i + 3) % 17]) for i, d in enumerate(HOSTILE_F16)] + [
    (0x7C00, 0x7C00), (0xFC00, 0x7C00), (0x0000, 0x0000), (0x0000, 0x8000), (0x8000, 0x0000), (0x8000, 0x8000),
    (0x7BFF, 0x7BFF), (0xFBFF, 0x7BFF), (0x0001, 0x7BFF), (0x7BFF, 0x0001), (0x0000, 0x3C00), (0x3C00, 0x8000)]
HOSTILE_F32 = [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF,
               0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7C010204, 0x7B7FFFFF,
               0x3F808000, 0x3F801000, 0x33000001, 0x0040C0C1]


# ---------------------------------------------------------------- oracles


def open_ggml():
    ggml = ctypes.CDLL(os.environ["GGML_ORACLE"])
    ggml.oracle_f16.restype = ctypes.c_float
    ggml.oracle_f16.argtypes = [ctypes.c_uint16]
    ggml.oracle_dequantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    half = np.arange(65536, dtype=np.uint16)
    ours = np.array([ggml.oracle_f16(int(h)) for h in half], dtype=np.float32)
    assert same(ours, half.view(np.float16).astype(np.float32)), "F16 conversion"
    for name, dtype in STRUCT.items():
        elements, size = ctypes.c_int64(), ctypes.c_int64()
        assert ggml.oracle_block(IDS[name], ctypes.byref(elements), ctypes.byref(size))
        assert size.value == dtype.itemsize, name
        ELEMENTS[name] = elements.value
        if name not in UNKNOWN_TO_GGUF_PY:
            assert gguf.GGML_QUANT_SIZES[GGMLQuantizationType[name]] == (elements.value, size.value), name
    return ggml


ELEMENTS = {}  # of a block, as ggml has it


def same(a, b):
    """Bitwise equality; NaN equals NaN."""
    assert a.dtype == b.dtype == np.float32 and a.shape == b.shape
    nan = np.isnan(a)
    return bool((nan == np.isnan(b)).all() and (a.view(np.uint32)[~nan] == b.view(np.uint32)[~nan]).all())


def by_ggml(name, blocks):
    """f32 [blocks, elements of a block]"""
    blocks = np.ascontiguousarray(blocks)
    assert blocks.dtype == STRUCT[name]
    out = np.empty((blocks.size, ELEMENTS[name]), dtype=np.float32)
    assert GGML.oracle_dequantize(IDS[name], blocks.ctypes.data, out.ctypes.data, out.size)
    return out


def decode(name, blocks):
    ggml = by_ggml(name, blocks)
    if name in NO_GGUF_PY_DECODER:
        return ggml
    rows = blocks.view(np.uint8).reshape(blocks.size, -1)
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(rows, GGMLQuantizationType[name])
    assert same(values, ggml), f"{name}: gguf-py and ggml differ in {(values.view('u4') != ggml.view('u4')).sum()}"
    return values


# ---------------------------------------------------------------- the container


def scalar(value, kind):
    return struct.pack("<" + GGUFWriter._simple_value_packing[kind], value)


class File:
    """One GGUF file: a plain writer for what GGUFWriter cannot write, checked against it wherever it can."""

    def __init__(self, version=3, alignment=32):
        self.version, self.alignment, self.metadata, self.tensors = version, alignment, [], []
        self.add("general.architecture", "STRING", "llama")
        if alignment != 32:
            self.add("general.alignment", "UINT32", alignment)

    def add(self, key, kind, value):
        self.metadata.append((key, kind, value))

    def tensor(self, name, kind, shape, data):
        """`data`: the little-endian bytes; `shape`: row-major."""
        self.tensors.append((name, kind, tuple(int(n) for n in shape), bytes(data)))

    def numbers(self, name, kind, array):
        array = np.asarray(array, dtype=NUMPY[kind])
        self.tensor(name, kind, array.shape, array.tobytes())

    def blocks(self, name, kind, blocks, shape):
        assert np.prod(shape) == blocks.size * ELEMENTS[kind] and shape[-1] % ELEMENTS[kind] == 0
        self.tensor(name, kind, shape, blocks.tobytes())

    def count(self, n):
        return struct.pack("<I" if self.version == 1 else "<Q", n)

    def string(self, text):
        raw = text.encode()
        return self.count(len(raw)) + raw

    def value(self, kind, value):
        if kind == "STRING":
            return self.string(value)
        if kind.startswith("ARRAY"):
            items = kind[6:-1]
            head = struct.pack("<I", GGUFValueType["ARRAY" if items.startswith("ARRAY") else items])
            head += self.count(len(value))
            if items == "ARRAY":
                return head + b"".join(self.value(*item) for item in value)
            return head + b"".join(self.value(items, item) for item in value)
        return scalar(value, GGUFValueType[kind])

    def bytes(self):
        out = b"GGUF" + struct.pack("<I", self.version) + self.count(len(self.tensors)) + self.count(len(self.metadata))
        for key, kind, value in self.metadata:
            tag = GGUFValueType["ARRAY" if kind.startswith("ARRAY") else kind]
            out += self.string(key) + struct.pack("<I", tag) + self.value(kind, value)
        data, self.at = b"", []
        for name, kind, shape, raw in self.tensors:
            out += self.string(name) + struct.pack("<I", len(shape)) + b"".join(map(self.count, reversed(shape)))
            out += struct.pack("<IQ", IDS[kind], len(data))
            self.at.append(len(data))
            data += raw + bytes(-len(raw) % self.alignment)
        out += bytes(-len(out) % self.alignment)
        self.at = [len(out) + at for at in self.at]
        return out + data

    def write(self, path):
        path.write_bytes(self.bytes())

    def writer(self, path, endianess=GGUFEndian.LITTLE, **options):
        """The same file by GGUFWriter."""
        w = GGUFWriter(path, "llama", endianess=endianess, **options)
        if self.alignment != 32:
            w.add_custom_alignment(self.alignment)
        for key, kind, value in self.metadata:
            if key in ("general.architecture", "general.alignment") or key.startswith("split."):
                continue
            if kind.startswith("ARRAY"):
                w.add_key_value(key, value, GGUFValueType.ARRAY, GGUFValueType[kind[6:-1]])
            else:
                w.add_key_value(key, value, GGUFValueType[kind])
        for name, kind, shape, raw in self.tensors:
            if kind in NUMPY:
                w.add_tensor(name, np.frombuffer(raw, dtype=NUMPY[kind]).reshape(shape))
            else:
                qtype = GGMLQuantizationType[kind]
                byte_shape = gguf.quant_shape_to_byte_shape(shape, qtype)
                w.add_tensor(name, np.frombuffer(raw, dtype=np.uint8).reshape(byte_shape), raw_dtype=qtype)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()

    def check_writer(self):
        with tempfile.TemporaryDirectory() as tmp:
            self.writer(Path(tmp) / "model.gguf")
            assert (Path(tmp) / "model.gguf").read_bytes() == self.bytes(), "GGUFWriter writes something else"

    def description(self, byte_order="little"):
        """`<name>.json`"""
        self.bytes()
        return {
            "version": self.version,
            "byte_order": byte_order,
            "alignment": self.alignment,
            "metadata": [[key, kind, in_json(kind, value)] for key, kind, value in self.metadata],
            "tensors": [[name, kind, list(shape), at, len(raw), hashlib.sha256(raw).hexdigest()]
                        for (name, kind, shape, raw), at in zip(self.tensors, self.at)],
        }


def in_json(kind, value):
    if kind == "ARRAY[ARRAY]":
        return [[k, in_json(k, v)] for k, v in value]
    if kind.startswith("ARRAY"):
        return [in_json(kind[6:-1], v) for v in value]
    if kind == "FLOAT32":
        value = float(np.float32(value))
    if kind.startswith("FLOAT") and not np.isfinite(value):
        return str(value)
    return value


def check_reader(path, file, byte_order):
    r = GGUFReader(path)
    assert r.endianess.name.lower() == byte_order and r.alignment == file.alignment
    fields = list(r.fields.values())
    assert [f.name for f in fields[:3]] == ["GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"]
    assert [f.contents() for f in fields[:3]] == [file.version, len(file.tensors), len(file.metadata)]
    assert len(fields) == 3 + len(file.metadata)
    for f, (key, kind, value) in zip(fields[3:], file.metadata):
        assert f.name == key and f.types[0].name == kind[:5 if kind.startswith("ARRAY") else None]
        if not kind.startswith("ARRAY"):
            assert in_json(kind, f.contents()) == in_json(kind, value) and type(f.contents()) is type(value), key
        elif kind != "ARRAY[ARRAY]":  # which it has in one list
            assert [in_json(kind[6:-1], v) for v in f.contents()] == in_json(kind, value), key
    assert len(r.tensors) == len(file.tensors)
    for t, (name, kind, shape, raw), at in zip(r.tensors, file.tensors, file.at):
        assert (t.name, t.tensor_type.name, tuple(reversed(t.shape.tolist()))) == (name, kind, shape), name
        assert (t.data_offset, t.n_bytes) == (at, len(raw)), name
        if byte_order == "little":
            assert t.data.tobytes() == raw


# ---------------------------------------------------------------- cases: one directory a type


def sweep(rng, n, count):
    """`count` numbers below n, each as often as the others, in random order."""
    assert count % n == 0 or count > n
    runs = [rng.permutation(n) for _ in range(-(-count // n))]
    return np.concatenate(runs)[:count].astype(np.uint64)


def random_f16(rng, shape):
    """Both signs, 2^-12 to 2^3, every mantissa."""
    sign, exponent, mantissa = (rng.randint(0, n, shape) for n in (2, 15, 1024))
    return (sign << 15 | (exponent + 3) << 10 | mantissa).astype(np.uint16)


def random_blocks(rng, kind, n):
    return np.frombuffer(rng.bytes(n * STRUCT[kind].itemsize), dtype=STRUCT[kind]).copy()


def set_scales(kind, b, d, second=None):
    """Puts F16 bit patterns where the type has its scales."""
    if kind == "IQ1_M":  # four bits on top of each of the four words
        for i in range(4):
            b["scales"][:, i] = b["scales"][:, i] & 0x0FFF | ((d.astype(np.uint32) >> 4 * i & 0xF) << 12).astype("u2")
    else:
        b["d"] = d
    for field in ("m", "dmin", "s"):
        if field in b.dtype.names:
            b[field] = second


def join(parts, bits):
    """[..., k] numbers of `bits` bits into one, lowest first."""
    return sum(parts[..., i].astype(np.uint64) << np.uint64(bits * i) for i in range(parts.shape[-1]))


def pack_scales_k4(sc, m):
    """get_scale_min_k4 backwards: eight 6-bit scales and eight 6-bit minima in twelve bytes."""
    q = np.empty((len(sc), 12), dtype=np.uint64)
    q[:, 0:4] = sc[:, :4] | (sc[:, 4:] >> 4) << 6
    q[:, 4:8] = m[:, :4] | (m[:, 4:] >> 4) << 6
    q[:, 8:12] = sc[:, 4:] & 15 | (m[:, 4:] & 15) << 4
    return q


def covering_blocks(rng, kind):
    """Random blocks whose index, sign and scale fields together take every value."""
    n = {"Q4_0": 16, "Q4_1": 16, "Q5_0": 16, "Q5_1": 16, "Q8_0": 8, "Q8_1": 8, "Q2_K": 16, "Q3_K": 8, "Q4_K": 8,
         "Q5_K": 8, "Q6_K": 16, "Q8_K": 2, "IQ2_XXS": 8, "IQ2_XS": 16, "IQ2_S": 32, "IQ3_XXS": 8, "IQ3_S": 8,
         "IQ1_S": 64, "IQ1_M": 64, "IQ4_NL": 16, "IQ4_XS": 8, "TQ1_0": 16, "TQ2_0": 4, "MXFP4": 16, "NVFP4": 8,
         "Q1_0": 16, "Q2_0": 16}[kind]
    b = random_blocks(rng, kind, n)
    if kind == "Q8_K":
        b["d"] = (rng.uniform(0.001, 2.0, n) * rng.choice([-1, 1], n)).astype(np.float32).view(np.uint32)
    elif kind == "MXFP4":
        b["e"] = rng.randint(100, 140, n)
    elif kind == "NVFP4":
        b["d"] = rng.randint(1, 0x7F, (n, 4))
    else:
        set_scales(kind, b, random_f16(rng, n), random_f16(rng, n))

    def every(bits, *shape):
        return sweep(rng, 1 << bits, n * int(np.prod(shape))).reshape(n, *shape)

    if kind == "IQ2_XXS":
        b["qs"][:, :, 0] = join(every(8, 8, 4), 8)
        b["qs"][:, :, 1] = join(every(7, 8, 4), 7) | every(4, 8) << 28
    elif kind == "IQ2_XS":
        b["qs"] = every(9, 32) | every(7, 32) << 9
        b["scales"] = join(every(4, 8, 2), 4)
    elif kind == "IQ2_S":
        index = every(10, 32)
        b["qs"], b["qh"] = index & 255, join((index >> 8).reshape(n, 8, 4), 2)
        b["signs"], b["scales"] = every(8, 32), join(every(4, 8, 2), 4)
    elif kind == "IQ3_XXS":
        b["qs"] = every(8, 64)
        b["scales_and_signs"] = join(every(7, 8, 4), 7) | every(4, 8) << 28
    elif kind == "IQ3_S":
        index = every(9, 64)
        b["qs"], b["qh"] = index & 255, join((index >> 8).reshape(n, 8, 8), 1)
        b["signs"], b["scales"] = every(8, 32), join(every(4, 4, 2), 4)
    elif kind == "IQ1_S":
        index = every(11, 32)
        b["qs"] = index & 255
        b["qh"] = join((index >> 8).reshape(n, 8, 4), 3) | every(3, 8) << 12 | every(1, 8) << 15
    elif kind == "IQ1_M":
        index, delta = every(11, 32), every(1, 32)
        b["qs"] = index & 255
        b["qh"] = join((index >> 8 | delta << 3).reshape(n, 16, 2), 4)
        b["scales"] = b["scales"] & 0xF000 | join(every(3, 4, 4), 3)
    elif kind == "IQ4_XS":
        ls = every(6, 8)
        b["scales_l"], b["scales_h"] = join((ls & 15).reshape(n, 4, 2), 4), join(ls >> 4, 2)
    elif kind == "Q3_K":
        sc = every(6, 16)
        b["scales"][:, :8] = sc[:, :8] & 15 | (sc[:, 8:] & 15) << 4
        b["scales"][:, 8:] = join((sc >> 4).reshape(n, 4, 4).swapaxes(1, 2), 2)
    elif kind in ("Q4_K", "Q5_K"):
        b["scales"] = pack_scales_k4(every(6, 8), every(6, 8))
    elif kind in ("Q2_K", "Q6_K"):
        b["scales"] = every(8, 16)
    elif kind == "TQ1_0":
        b["qs"], b["qh"] = every(8, 48), sweep(rng, 256, 256)[:64].reshape(n, 4)
    if kind in ("Q8_0", "Q8_1", "Q8_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "TQ2_0", "MXFP4", "NVFP4", "Q1_0",
                "Q2_0"):
        b["qs"] = every(8, b["qs"].shape[1])
    check_coverage(kind, b)
    return b


# Fields held fixed (the value, or a mask) and the number of different values that the rest must then give.
CODES = {
    "Q4_0": ({}, 16), "Q4_1": ({}, 16), "Q5_0": ({}, 32), "Q5_1": ({}, 32), "Q8_0": ({}, 256), "Q8_1": ({}, 256),
    "Q8_K": ({}, 256), "IQ4_NL": ({}, 16), "TQ1_0": ({}, 3), "TQ2_0": ({}, 4), "Q1_0": ({}, 2), "Q2_0": ({}, 4),
    "MXFP4": ({}, 15), "NVFP4": ({}, 15),  # code 8 is +0
    "Q2_K": ({"scales": 1}, 4), "Q3_K": ({"scales": 0}, 8), "Q4_K": ({"scales": 1}, 16), "Q5_K": ({"scales": 1}, 32),
    "Q6_K": ({"scales": 1}, 64), "IQ4_XS": ({"scales_h": 0, "scales_l": 0}, 16),
}
SCALES = {"Q2_K": ({"qs": 0x55}, 16), "Q3_K": ({"qs": 255, "hmask": 255}, 64), "Q4_K": ({"qs": 0x11}, 64),
          "Q5_K": ({"qs": 0x11, "qh": 0}, 64), "Q6_K": ({"ql": 255, "qh": 255}, 256), "IQ4_XS": ({"qs": 0}, 64)}
GRIDS = {  # entries, elements of one, what leaves the index alone
    "IQ2_XXS": (256, 8, {"qs": np.array([0xFFFFFFFF, 0])}), "IQ2_XS": (512, 8, {"qs": 511, "scales": 0}),
    "IQ2_S": (1024, 8, {"signs": 0, "scales": 0}), "IQ3_XXS": (256, 4, {"scales_and_signs": 0}),
    "IQ3_S": (512, 4, {"signs": 0, "scales": 0}), "IQ1_S": (2048, 8, {"qh": 0x0FFF}),
    "IQ1_M": (2048, 8, {"qh": 0x77, "scales": 0xF000}),
}


def check_coverage(kind, blocks):
    """Counts ggml's values of these blocks under scales of one."""
    def values(fixed, mask=False, d=0x3C00, second=0):
        b = blocks.copy()
        if kind == "Q8_K":
            b["d"] = 0x3F800000
        elif kind == "MXFP4":
            b["e"] = 127
        elif kind == "NVFP4":
            b["d"] = 0x38
        else:
            set_scales(kind, b, np.full(b.size, d, dtype=np.uint16), second)
        for field, value in fixed.items():
            b[field] = b[field] & value if mask else value
        return by_ggml(kind, b)

    if kind in CODES:
        fixed, count = CODES[kind]
        assert len(np.unique(values(fixed).view(np.uint32))) == count, kind
    if kind in SCALES:
        fixed, count = SCALES[kind]
        assert len(np.unique(values(fixed))) == count, kind
    if "dmin" in STRUCT[kind].names:
        assert len(np.unique(values({}, d=0, second=0x3C00))) == count, kind
    if kind in GRIDS:
        count, width, masks = GRIDS[kind]
        assert len(np.unique(values(masks, mask=True).reshape(-1, width), axis=0)) == count, kind


def hostile_blocks(rng, kind):
    if kind == "MXFP4":
        b = random_blocks(rng, kind, 256)
        b["e"] = np.arange(256)
    elif kind == "NVFP4":
        b = random_blocks(rng, kind, 64)
        b["d"] = np.arange(256).reshape(64, 4)
    elif kind == "Q8_K":
        b = random_blocks(rng, kind, len(HOSTILE_F32))
        b["d"] = HOSTILE_F32
    elif {"m", "dmin", "s"} & set(STRUCT[kind].names):
        pairs = np.array(HOSTILE_PAIRS, dtype=np.uint16)
        b = random_blocks(rng, kind, len(pairs))
        set_scales(kind, b, pairs[:, 0], pairs[:, 1])
    else:
        b = random_blocks(rng, kind, len(HOSTILE_F16))
        set_scales(kind, b, np.array(HOSTILE_F16, dtype=np.uint16))
    return b


def rounded(f32):
    """One rounding to nearest even, by torch, checked against numpy and ml_dtypes; one NaN."""
    t, out = torch.from_numpy(f32), {}
    with np.errstate(all="ignore"):
        other = {"f32": f32, "f16": f32.astype(np.float16), "bf16": f32.astype(ml_dtypes.bfloat16)}
    for label, dtype in TARGETS.items():
        bits = t.to(dtype).clone().view(BITS_OF[dtype])
        nan = torch.isnan(t)
        twin = torch.from_numpy(other[label].view(np.int32 if label == "f32" else np.int16))
        assert torch.equal(bits[~nan], twin[~nan])
        bits[nan] = QUIET_NAN[dtype]
        out[label] = bits.view(dtype)
    return out


def as_torch(kind, shape, raw):
    dtype = {"BF16": torch.bfloat16}.get(kind) or torch.from_numpy(np.empty(0, NUMPY[kind])).dtype
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def save(path, tensors):
    save_file({name: t.contiguous() for name, t in tensors.items()}, str(path))
    path.chmod(0o644)


class Case:
    """One directory of tests/data/gguf: the file and what it must become."""

    def __init__(self, name):
        self.dir = DATA / "gguf" / name
        self.rng = np.random.RandomState(zlib.crc32(f"gguf/{name}".encode()))
        self.file, self.f32, self.companions = File(), {}, set()
        self.file.add("general.quantization_version", "UINT32", 2)

    def blocks(self, name, kind, blocks, shape):
        self.file.blocks(name, kind, blocks, shape)
        self.f32[name] = decode(kind, blocks).reshape(shape)

    def norm(self):
        bits = np.array([0x3F8CCCCD, 0x80000000, 0x7FC00000, 0xFF800001, 0x00000001], dtype=np.uint32)
        self.file.numbers("norm.weight", "F32", bits.view(np.float32))

    def write(self):
        shutil.rmtree(self.dir, ignore_errors=True)
        self.dir.mkdir(parents=True)
        self.file.write(self.dir / "model.gguf")
        if not any(kind in UNKNOWN_TO_GGUF_PY for _, kind, _, _ in self.file.tensors):
            self.file.check_writer()
            check_reader(self.dir / "model.gguf", self.file, "little")
        decoded = {name: rounded(values) for name, values in self.f32.items()}
        for label in TARGETS:
            out = {name: values[label] for name, values in decoded.items()}
            for name, kind, shape, raw in self.file.tensors:
                if name not in out and name not in self.companions:
                    out[name] = as_torch(kind, shape, raw)
            save(self.dir / f"expected-{label}.safetensors", out)
        size = sum(f.stat().st_size for f in self.dir.iterdir())
        print(f"gguf/{self.dir.name}: {len(self.f32)} dequantized, {size} bytes")


def type_case(kind):
    c, block = Case(kind.lower()), ELEMENTS[kind]
    blocks = covering_blocks(c.rng, kind)
    c.blocks("blk.0.random.weight", kind, blocks, [2, blocks.size // 2 * block])
    blocks = hostile_blocks(c.rng, kind)
    c.blocks("blk.0.hostile.weight", kind, blocks, [blocks.size, block])
    for name, shape in [("one.weight", [block]), ("stack.weight", [2, 3, block])]:
        blocks = random_blocks(c.rng, kind, int(np.prod(shape)) // block)
        if kind == "Q8_K":
            blocks["d"] = c.rng.uniform(0.001, 2.0, blocks.size).astype(np.float32).view(np.uint32)
        elif kind == "MXFP4":
            blocks["e"] = c.rng.randint(100, 140, blocks.size)
        elif kind != "NVFP4":
            set_scales(kind, blocks, random_f16(c.rng, blocks.size), random_f16(c.rng, blocks.size))
        c.blocks(name, kind, blocks, shape)
    c.norm()
    c.write()


def scale_case():
    """NVFP4 with the F32 scale of the whole tensor beside it: `<base>.scale` [1], or [experts] beside a stack.

    llama.cpp multiplies the product of the matrices by it; here it multiplies the weight, in F32. `.input_scale` is for
    activations and goes away. The name `<base>.weight.scale` is not llama.cpp's, but files have it.
    """
    c = Case("nvfp4_scale")

    def add(base, shape, scale_name, scales):
        blocks = random_blocks(c.rng, "NVFP4", int(np.prod(shape)) // 64)
        name = base + ".weight"
        c.blocks(name, "NVFP4", blocks, shape)
        scales = np.array(scales, dtype=np.float32)
        c.file.numbers(base + scale_name, "F32", scales)
        c.companions.add(base + scale_name)
        with np.errstate(all="ignore"):
            product = c.f32[name] * scales.reshape((-1,) + (1,) * (len(shape) - 1))
        assert product.dtype == np.float32
        both = torch.from_numpy(c.f32[name]) * torch.from_numpy(scales).reshape((-1,) + (1,) * (len(shape) - 1))
        assert same(product, both.numpy())
        c.f32[name] = product

    add("blk.0.x", [4, 128], ".scale", [0.00123456789])
    c.file.numbers("blk.0.x.input_scale", "F32", [0.0318])
    c.companions.add("blk.0.x.input_scale")
    add("blk.0.ffn_up_exps", [8, 2, 64], ".scale",
        [0.0123456789, 1.0, 3.0e36, 1.0e-41, -0.0, float("inf"), float("nan"), 0.1])
    c.file.numbers("blk.0.ffn_up_exps.input_scale", "F32", np.linspace(0.01, 0.08, 8))
    c.companions.add("blk.0.ffn_up_exps.input_scale")
    add("blk.1.y", [2, 64], ".weight.scale", [1.7320508])
    blocks = random_blocks(c.rng, "NVFP4", 2)
    c.blocks("blk.1.z.weight", "NVFP4", blocks, [2, 64])  # without one
    c.norm()
    c.write()


def unquantized_case():
    """Types without blocks: everything is kept."""
    c = Case("unquantized")
    for kind, dtype in NUMPY.items():
        c.file.tensor(f"{kind.lower()}.weight", kind, [3, 5], c.rng.bytes(15 * np.dtype(dtype).itemsize))
    c.file.tensor("bf16.weight", "BF16", [3, 5], c.rng.bytes(30))
    c.file.numbers("one.weight", "F16", [1.0])
    c.norm()
    c.write()


# ---------------------------------------------------------------- whole files

FILES = DATA / "gguf-files"


def write_json(path, value):
    """One entry a line."""
    lines = []
    for key, item in value.items():
        if isinstance(item, list):
            rows = ",\n".join("    " + json.dumps(row) for row in item)
            lines.append(f'  "{key}": [\n{rows}\n  ]' if item else f'  "{key}": []')
        else:
            lines.append(f'  "{key}": {json.dumps(item)}')
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    assert json.loads(text) == value
    path.write_text(text)


def publish(name, file, data=None, byte_order="little", reader=True):
    path = FILES / f"{name}.gguf"
    own = file.bytes()
    path.write_bytes(own if data is None else data)
    if reader:
        check_reader(path, file, byte_order)
    write_json(FILES / f"{name}.json", file.description(byte_order))
    assert path.stat().st_size < 20000
    print(f"gguf-files/{name}: {path.stat().st_size} bytes")


def blocks_of(rng, kind, n):
    b = random_blocks(rng, kind, n)
    if kind not in ("MXFP4", "NVFP4"):
        set_scales(kind, b, random_f16(rng, n), random_f16(rng, n))
    return b


SWAPPED = ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "NVFP4"]  # block types that gguf_convert_endian takes


def content(version, only_convertible=False):
    """Types up to 9 of metadata only, which version 1 has too."""
    rng = np.random.RandomState(zlib.crc32(b"gguf-files/content"))
    f = File(version)
    f.add("general.name", "STRING", "every container")
    f.add("general.quantization_version", "UINT32", 2)
    f.add("llama.block_count", "UINT32", 1)
    f.add("llama.attention.layer_norm_rms_epsilon", "FLOAT32", float(np.float32(1e-5)))
    f.add("tokenizer.ggml.add_bos_token", "BOOL", True)
    f.add("tokenizer.ggml.tokens", "ARRAY[STRING]", ["<s>", "", "\u2581the", "\u00e9"])
    f.add("tokenizer.ggml.scores", "ARRAY[FLOAT32]", [0.0, -1.5, -0.0, float(np.float32(0.1))])
    f.add("tokenizer.ggml.token_type", "ARRAY[INT32]", [1, 2, -3, 4])
    raw = {kind: rng.bytes(24 * np.dtype(dtype).itemsize) for kind, dtype in NUMPY.items()} | {"BF16": rng.bytes(48)}
    for kind in ("F32", "F16", "BF16", "I8", "I16", "I32", "I64", "F64"):
        f.tensor(f"{kind.lower()}.weight", kind, [2, 3, 4], raw[kind])
    for kind in SWAPPED + ["IQ4_XS"]:
        f.blocks(f"{kind.lower()}.weight", kind, blocks_of(rng, kind, 4), [2, 2 * ELEMENTS[kind]])
    if only_convertible:
        f.tensors = [t for t in f.tensors if t[1] in ["F32", "F16", "BF16"] + SWAPPED]
    return f


def big_endian(file):
    """The file with every number swapped.

    GGUFWriter with endianess=BIG swaps the header and the data of arrays with a dtype, and leaves the bytes of blocks
    and BF16 alone, so blocks are swapped before, by gguf_convert_endian's own functions.
    """
    out = File(file.version, file.alignment)
    out.metadata = file.metadata
    for name, kind, shape, raw in file.tensors:
        if kind == "BF16":
            raw = np.frombuffer(raw, "<u2").byteswap().tobytes()
        elif kind in SWAPPED:
            data, size = np.frombuffer(bytearray(raw), np.uint8), STRUCT[kind].itemsize
            swap = gguf_convert_endian.byteswap_tensors[GGMLQuantizationType[kind]]
            for at in range(0, len(raw), size):
                swap(types.SimpleNamespace(data=data), at)
            raw = data.tobytes()
        elif kind not in NUMPY:
            raise ValueError(kind)
        out.tensor(name, kind, shape, raw)
    with tempfile.TemporaryDirectory() as tmp:
        out.writer(Path(tmp) / "model.gguf", GGUFEndian.BIG)
        return (Path(tmp) / "model.gguf").read_bytes()


def converted(file):
    """The file by gguf_convert_endian, which refuses integers, F64 and the other block types."""
    with tempfile.TemporaryDirectory() as tmp:
        path = Path(tmp) / "model.gguf"
        file.write(path)
        ask, builtins.input = builtins.input, lambda *_: "YES"
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                reader = GGUFReader(path, "r+")
                gguf_convert_endian.convert_byteorder(reader, types.SimpleNamespace(order="big", dry_run=False))
                reader.data.flush()
        finally:
            builtins.input = ask
        return path.read_bytes()


def versions():
    little = content(3)
    little.check_writer()
    publish("v3-little", little)
    publish("v2", content(2))
    publish("v1", content(1), reader=False)  # nothing reads it any more; ggml did until 2023

    part = content(3, only_convertible=True)
    assert big_endian(part) == converted(part)
    little.tensors = [t for t in little.tensors if t[1] != "IQ4_XS"]
    publish("v3-big", little, big_endian(little), "big")


def all_kv():
    f = File(alignment=64)
    integers = [("UINT8", 0, 255), ("INT8", -128, 127), ("UINT16", 0, 65535), ("INT16", -32768, 32767),
                ("UINT32", 0, 2**32 - 1), ("INT32", -(2**31), 2**31 - 1), ("UINT64", 0, 2**64 - 1),
                ("INT64", -(2**63), 2**63 - 1)]
    inf, nan = float("inf"), float("nan")
    for kind, low, high in integers:
        f.add(f"low.{kind.lower()}", kind, low)
        f.add(f"high.{kind.lower()}", kind, high)
    for kind, odd in [("FLOAT32", 2.0**-149), ("FLOAT64", 5e-324)]:
        for name, value in [("zero", 0.0), ("minus_zero", -0.0), ("tenth", 0.1), ("least", odd), ("inf", inf),
                            ("minus_inf", -inf), ("nan", nan)]:
            value = float(np.float32(value)) if kind == "FLOAT32" else value
            f.add(f"{kind.lower()}.{name}", kind, value)
    f.add("bool.true", "BOOL", True)
    f.add("bool.false", "BOOL", False)
    f.add("string", "STRING", "plain")
    f.add("string.empty", "STRING", "")
    f.add("string.controls", "STRING", 'a\0b\nc\t"\\\u007f')
    f.add("string.unicode", "STRING", "\u00e9 \u2581 \u65e5\u672c\u8a9e \U0001f999 e\u0301 \ufeff\uffff")
    f.add("\u30ad\u30fc.\U0001f511", "STRING", "a key that is not ASCII")
    f.add("a key/with spaces=and.signs", "UINT32", 7)
    f.add("string.long", "STRING", "0123456789abcdef" * 40)
    for kind, low, high in integers:
        f.add(f"array.{kind.lower()}", f"ARRAY[{kind}]", [low, 1, high])
    f.add("array.float32", "ARRAY[FLOAT32]", [float(np.float32(0.1)), -0.0, inf, -inf, nan])
    f.add("array.float64", "ARRAY[FLOAT64]", [0.1, -0.0, inf, -inf, nan])
    f.add("array.bool", "ARRAY[BOOL]", [True, False, True])
    f.add("array.string", "ARRAY[STRING]", ["", "one", "\u4e8c", ""])
    f.add("array.one", "ARRAY[UINT32]", [5])
    for kind in ("UINT8", "INT32", "FLOAT64", "BOOL", "STRING", "ARRAY"):
        f.add(f"empty.{kind.lower()}", f"ARRAY[{kind}]", [])
    f.add("nested", "ARRAY[ARRAY]", [("ARRAY[INT32]", [1, 2]), ("ARRAY[INT32]", []), ("ARRAY[INT32]", [-3])])
    f.add("nested.mixed", "ARRAY[ARRAY]", [("ARRAY[STRING]", ["a", ""]), ("ARRAY[UINT8]", [255])])
    f.add("nested.deep", "ARRAY[ARRAY]",
          [("ARRAY[ARRAY]", [("ARRAY[UINT16]", [1]), ("ARRAY[UINT16]", [2, 3])]), ("ARRAY[ARRAY]", [])])
    f.add("after", "UINT32", 42)
    f.numbers("first.weight", "F32", [1.0, -2.0, 0.5])
    f.numbers("second.weight", "F16", [[1.0, 2.0], [3.0, 4.0]])
    f.numbers("third.weight", "I8", np.arange(65))
    publish("all-kv", f)


def shapes():
    """Every rank that ggml takes, sizes of one and of zero."""
    f = File()
    for shape in ([], [1], [7], [1, 7], [7, 1], [2, 3, 5], [2, 1, 3, 4], [1, 1, 1, 1], [0], [3, 0], [0, 3]):
        name = "x".join(map(str, shape)) or "scalar"
        f.numbers(f"shape.{name}", "F32", np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
    f.tensor("shape.0x32.q8_0", "Q8_0", [0, 32], b"")
    f.numbers("last", "I16", [1, 2, 3])
    publish("shapes", f)

    f = File()
    publish("no-tensors", f)
    f.metadata = []
    publish("nothing", f)  # 24 bytes of header and padding


def split():
    rng = np.random.RandomState(zlib.crc32(b"gguf-files/split"))
    f = File()
    f.add("general.name", "STRING", "in three pieces")
    f.add("llama.block_count", "UINT32", 2)
    f.add("tokenizer.ggml.tokens", "ARRAY[STRING]", ["a", "b"])
    f.numbers("token_embd.weight", "F32", rng.standard_normal((4, 32)))
    for i in range(2):
        f.blocks(f"blk.{i}.attn_q.weight", "Q8_0", blocks_of(rng, "Q8_0", 3), [3, 32])
        f.blocks(f"blk.{i}.ffn_up.weight", "Q4_K", blocks_of(rng, "Q4_K", 2), [2, 256])
    f.check_writer()
    publish("whole", f)
    # In the second set the first file has metadata alone.
    for stem, options in [("split", {"split_max_tensors": 2}),
                          ("split-header", {"split_max_tensors": 3, "small_first_shard": True})]:
        with tempfile.TemporaryDirectory() as tmp:
            f.writer(Path(tmp) / f"{stem}.gguf", **options)
            names = sorted(p.name for p in Path(tmp).iterdir())
            assert names == [f"{stem}-{i + 1:05}-of-00003.gguf" for i in range(3)], names
            rest = list(f.tensors)
            for i, name in enumerate(names):
                data, count = (Path(tmp) / name).read_bytes(), len(GGUFReader(Path(tmp) / name).tensors)
                piece = File()
                piece.metadata = list(f.metadata) if i == 0 else []
                piece.add("split.no", "UINT16", i)
                piece.add("split.count", "UINT16", 3)
                piece.add("split.tensors.count", "INT32", len(f.tensors))
                piece.tensors, rest = rest[:count], rest[count:]
                assert piece.bytes() == data, name
                publish(name.removesuffix(".gguf"), piece)
            assert not rest


def main():
    global GGML
    GGML = open_ggml()
    shutil.rmtree(DATA / "gguf", ignore_errors=True)
    for kind in BLOCKS:
        type_case(kind)
    scale_case()
    unquantized_case()
    shutil.rmtree(FILES, ignore_errors=True)
    FILES.mkdir()
    versions()
    all_kv()
    shapes()
    split()
    total = sum(p.stat().st_size for d in ("gguf", "gguf-files") for p in (DATA / d).rglob("*") if p.is_file())
    print(f"{total} bytes")


if __name__ == "__main__":
    main()

"""PyTorch checkpoints, by torch with `weights_only`; what its unpickler does not know goes to Python's, with the same globals allowed."""

import collections
import copy
import io
import pickle
import types
import warnings
import zipfile
import zlib

import torch
from torch import _weights_only_unpickler

import pickles
from archive import Archive, Member, mutant as mutated_archive
from common import choose, edit_bytes

warnings.simplefilter("ignore")
torch.set_num_threads(1)

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32",
          "int64": "I64", "uint16": "U16", "uint32": "U32", "uint64": "U64", "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
          "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ"}

ALLOWED = _weights_only_unpickler._get_allowed_globals()


class Restricted(pickle.Unpickler):
    """Python's unpickler, in C, with the globals that torch allows."""

    def find_class(self, module, name):
        found = ALLOWED.get(f"{module}.{name}")
        if found is None:
            raise pickle.UnpicklingError(f"global {module}.{name}")
        return found


RESTRICTED = types.SimpleNamespace(Unpickler=Restricted, load=lambda file, **options: Restricted(file, **options).load(), __name__="restricted",
                                   UnpicklingError=pickle.UnpicklingError)

UNKNOWN = ("Unsupported operand", "Unsupported class")


def objects():
    base = torch.arange(12, dtype=torch.float32)
    nested = {"model": collections.OrderedDict(w=base.reshape(3, 4), b=base[2:5].clone()), "step": 7, "lr": 0.5, "names": ["x", None, True], "pair": (base[:2].half(), 3)}
    return [{"a": base[:3].clone(), "b": torch.arange(4).reshape(2, 2)}, {"t": base.reshape(3, 4).t(), "view": base[3:7]}, base[:2].clone(), nested,
            [torch.ones(2, dtype=torch.bfloat16), torch.tensor(3, dtype=torch.uint8)], {"p": torch.nn.Parameter(base[:2].clone()), "e": torch.zeros(0, 3)},
            {"c": torch.zeros(2, dtype=torch.complex64), "f8": torch.zeros(4, dtype=torch.float8_e4m3fn), "u": torch.zeros(2, dtype=torch.uint16)},
            {1: base[:1].clone(), 2.5: base[:1].clone(), (1, "x"): base[:1].clone()}, {"buf": base[:2].clone(), "set": {1, 2}, "size": torch.Size([1, 2])}]


def saved(value, **options):
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def seeds():
    archives = []
    for value in objects():
        for protocol in (2, 4, 5, 0, 1):
            source = zipfile.ZipFile(io.BytesIO(saved(value, pickle_protocol=protocol)))
            members = [Member(name.encode(), source.read(name)) for name in source.namelist() if not name.endswith(("serialization_id", "alignment", "format_version"))]
            ops = pickles.opcodes(next(m.content for m in members if m.name.endswith(b"data.pkl")))
            archives.append((Archive(members), ops))
    return archives


def with_pickle(rng, archive, ops):
    archive = copy.deepcopy(archive)
    main = next(m for m in archive.members if m.name.endswith(b"data.pkl"))
    main.content = pickles.mutant(rng, ops)
    return archive


def mutant(rng, seeds):
    archive, ops = seeds[rng.randrange(len(seeds))] if rng.random() < 0.3 else choose(rng, seeds[::5])
    if rng.random() < 0.65:
        archive = with_pickle(rng, archive, ops)
        if rng.random() < 0.8:
            return archive.file()
    file = mutated_archive(rng, archive)
    return edit_bytes(rng, file) if rng.random() < 0.03 else file


def dtype_and_values(t):
    dtype = DTYPES.get(str(t.dtype).removeprefix("torch."))
    if dtype is None or t.layout != torch.strided or t.device.type != "cpu" or t.is_quantized:
        return None
    if t.numel() > 1 << 20:
        raise ValueError("a tensor of many values")
    t = t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    # The stride of one element may be any, and keeps its bytes from being viewed.
    t = t.as_strided((1,), (1,), t.storage_offset()) if t.numel() == 1 else t
    content = t.view(torch.uint8).numpy().tobytes() if t.numel() else b""
    return dtype, zlib.crc32(content)


def walk(value, name, out, depth=0):
    if depth > 60:
        raise ValueError("containers in each other")
    at = lambda key: f"{name}.{key}" if name else str(key)  # noqa: E731
    if isinstance(value, torch.Tensor):
        said = dtype_and_values(value)
        if said:
            out["tensors"].append([name, said[0], list(value.shape), said[1]])
        else:
            out["skipped"].append(name)
    elif isinstance(value, dict):
        for key, item in value.items():
            walk(item, at(key), out, depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            walk(item, at(i), out, depth + 1)
    elif isinstance(value, (set, frozenset)):
        for item in value:
            if isinstance(item, torch.Tensor):
                out["skipped"].append(name)


def has_directory_with_data(file):
    """Whether a member is marked as a directory of MS-DOS: torch then leaves the memory that it is read to as it was."""
    try:
        members = zipfile.ZipFile(io.BytesIO(file)).infolist()
    except Exception:  # noqa: BLE001
        return False
    return any(member.external_attr & 0x10 and member.file_size for member in members)


def read(file):
    if file[:2] == b"PK" and has_directory_with_data(file):
        raise ValueError("a directory with data")
    try:
        value = torch.load(io.BytesIO(file), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        if not any(text in str(error) for text in UNKNOWN):
            raise
        value = torch.load(io.BytesIO(file), weights_only=False, map_location="cpu", pickle_module=RESTRICTED)
    out = {"tensors": [], "skipped": []}
    walk(value, "", out)
    if len(out["tensors"]) == 1 and not out["skipped"] and not out["tensors"][0][0]:
        out["tensors"][0][0] = "tensor"
    if not out["tensors"] and not out["skipped"]:
        raise ValueError("no tensors")
    return out

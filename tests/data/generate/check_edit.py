"""Edits files of gguf's writer and of safetensors with `amn edit`, in place and as copies, and reads them with both
libraries: the wanted keys with their types, all others as they were, and the bytes of every tensor.

python check_edit.py AMN [N]        AMN: the program; N: edits of each kind. Needs gguf and safetensors; see ../README.md.
"""
import json, random, struct, subprocess, sys, tempfile
from pathlib import Path

import gguf
import numpy as np
from gguf import GGUFValueType as Type
from safetensors import safe_open
from safetensors.numpy import save_file

RANGES = {f"{sign}{bits}": (-(1 << bits - 1), 1 << bits - 1) if sign == "i" else (0, 1 << bits) for sign in "ui" for bits in (8, 16, 32, 64)}
TYPES = {
    "u8": Type.UINT8, "i8": Type.INT8, "u16": Type.UINT16, "i16": Type.INT16, "u32": Type.UINT32, "i32": Type.INT32, "u64": Type.UINT64,
    "i64": Type.INT64, "f32": Type.FLOAT32, "f64": Type.FLOAT64, "bool": Type.BOOL, "string": Type.STRING,
}


def text():
    return "".join(random.choice('abc äß→"\\\n') for _ in range(random.randrange(40)))


def value(kind):
    if kind.startswith("["):
        return [value(kind[1:-1]) for _ in range(random.randrange(1, 6))]
    if kind in RANGES:
        return random.randrange(*RANGES[kind])
    floats = float(np.float32(random.uniform(-10, 10)))
    return {"f32": floats, "f64": random.uniform(-1e9, 1e9), "bool": random.random() < 0.5, "string": text()}[kind]


def spelled(value):
    return value if isinstance(value, str) else json.dumps(value)


def write_gguf(path, endian, alignment):
    """Random keys and tensors; the keys with their types and values."""
    writer, keys = gguf.GGUFWriter(path, "llama", endianess=endian), {}
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for i in range(random.randrange(1, 12)):
        kind = random.choice(list(TYPES))
        kind = random.choice([kind, kind, f"[{kind}]"])
        keys[f"k.{i}"] = kind, value(kind)
    for key, (kind, v) in keys.items():
        item = TYPES[kind.strip("[]")]
        writer.add_key_value(key, v, *([Type.ARRAY] if kind[0] == "[" else [item]), **({"sub_type": item} if kind[0] == "[" else {}))
    for i in range(random.randrange(4)):
        writer.add_tensor(f"t{i}", np.arange(random.randrange(1, 50), dtype=np.float32) + i)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return keys


def edited_gguf(keys):
    """Random options, and what they make of `keys`."""
    options, names = [], random.sample(list(keys), min(len(keys), random.randrange(3)))
    for name in names:
        kind, now = keys.pop(name)
        match random.randrange(3):
            case 0:
                options += ["--unset", name]
            case 1:
                keys[f"{name}.new"] = kind, now
                options += ["--rename", f"{name}={name}.new"]
            case 2:
                keys[name] = kind, value(kind)
                options += ["--set", f"{name}={spelled(keys[name][1])}"]
    kind = random.choice(list(TYPES))
    keys["added"] = kind, value(kind)
    return options + ["--set", f"added:{kind}={spelled(keys['added'][1])}"]


def check_gguf(path, before, keys):
    reader, old = gguf.GGUFReader(path), gguf.GGUFReader(before)
    others = ("general.architecture", "general.alignment")
    found = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.") and name not in others}
    assert set(found) == set(keys), set(found) ^ set(keys)
    for name, (kind, wanted) in keys.items():
        types = [TYPES[kind]] if kind in TYPES else [Type.ARRAY, TYPES[kind.strip("[]")]]
        assert [found[name].types[0], found[name].types[-1]] == [types[0], types[-1]], name
        now = found[name].contents()
        assert np.allclose(now, wanted, rtol=1e-6) if "f" in kind else now == wanted, (name, now, wanted)
    of = lambda reader: [(t.name, t.tensor_type, t.data.tobytes()) for t in reader.tensors]
    assert of(reader) == of(old)


def write_safetensors(path):
    """Random tensors and texts, behind a header with or without padding; tensors and texts."""
    tensors = {f"t{i}": np.arange(random.randrange(50), dtype=random.choice([np.float32, np.int8])) for i in range(random.randrange(1, 4))}
    texts = random.choice([None, {f"k{i}": text() for i in range(random.randrange(1, 6))}])
    save_file(tensors, path, metadata=texts)
    stored = path.read_bytes()
    (n,) = struct.unpack("<Q", stored[:8])
    header = stored[8 : 8 + n].rstrip() + b" " * random.randrange(30)
    path.write_bytes(struct.pack("<Q", len(header)) + header + stored[8 + n :])
    return tensors, dict(texts or {})


def edited_texts(texts):
    options = []
    for name in random.sample(list(texts), min(len(texts), random.randrange(3))):
        now = texts.pop(name)
        match random.randrange(3):
            case 0:
                options += ["--unset", name]
            case 1:
                texts[f'{name}"ö'] = now
                options += ["--rename", f'{name}={name}"ö']
            case 2:
                texts[name] = text()
                options += ["--set", f"{name}={texts[name]}"]
    texts["added"] = text()
    return options + ["--set", f"added={texts['added']}"]


def check_safetensors(path, before, tensors, texts):
    with safe_open(path, "np") as file:
        assert (file.metadata() or {}) == texts
        assert {name: file.get_tensor(name).tobytes() for name in file.keys()} == {name: t.tobytes() for name, t in tensors.items()}
    old, new = before.read_bytes(), path.read_bytes()
    data = old[8 + struct.unpack("<Q", old[:8])[0] :]
    assert new[8 + struct.unpack("<Q", new[:8])[0] :] == data


def edit(amn, path, options):
    """Edits `path` in place, and checks that a copy is the same. The path of the old file."""
    before, copy = path.with_suffix(".old" + path.suffix), path.with_suffix(".copy" + path.suffix)
    before.write_bytes(path.read_bytes())
    for place in (["-o", copy, "--force"], ["--in-place"]):
        subprocess.run([amn, "edit", path, *options, *place], check=True, capture_output=True)
    assert path.read_bytes() == copy.read_bytes()
    return before


def main():
    amn, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100
    random.seed(7)
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(count):
            path = Path(directory) / "m.gguf"
            path.unlink(missing_ok=True)
            endian = random.choice(list(gguf.GGUFEndian))
            keys = write_gguf(path, endian, random.choice([32, 64, 128]))
            if endian == gguf.GGUFEndian.LITTLE and random.random() < 0.3:
                stored = path.read_bytes()
                path.write_bytes(stored[:4] + struct.pack("<I", 2) + stored[8:])  # version 2 has the same layout
            check_gguf(path, edit(amn, path, edited_gguf(keys)), keys)
            path = Path(directory) / "m.safetensors"
            tensors, texts = write_safetensors(path)
            check_safetensors(path, edit(amn, path, edited_texts(texts)), tensors, texts)
    print(f"{count} edits of each kind")


if __name__ == "__main__":
    main()

"""Writes every GGUF case anew with `amn convert` and reads both files with gguf's Python reader: equal metadata, types,
shapes and bytes.

python check_gguf.py AMN        AMN: the program. Needs gguf; see ../README.md.
"""
import subprocess, sys, tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader

DATA = Path(__file__).resolve().parent.parent


def fields(reader):
    skip = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "split.no", "split.count", "split.tensors.count"}
    return [(f.name, f.types, contents(f)) for f in reader.fields.values() if f.name not in skip]


def contents(field):
    try:
        return field.contents()
    except UnicodeDecodeError:  # arrays of arrays of different types
        return [part.tobytes() for part in field.parts]


def tensors(reader):
    return [(t.name, t.tensor_type, t.shape.tolist(), np.ascontiguousarray(t.data).tobytes()) for t in reader.tensors]


def main():
    amn, checked, unread = sys.argv[1], 0, []
    cases = sorted(DATA.glob("gguf/*/model.gguf")) + sorted(DATA.glob("gguf-files/*.gguf"))
    with tempfile.TemporaryDirectory() as directory:
        for case in cases:
            if "-of-" in case.stem and "00001-of" not in case.stem:
                continue
            out = Path(directory) / "out.gguf"
            subprocess.run([amn, "convert", case, "--to", "gguf", "-o", out, "--force"], check=True, capture_output=True)
            try:
                source = GGUFReader(case)
                written = GGUFReader(out)
            except (ValueError, KeyError) as error:
                unread.append(f"{case.relative_to(DATA)}: {error}")
                continue
            whole = "-of-" not in case.stem
            big = case.stem == "v3-big"
            assert repr(fields(source)) == repr(fields(written)), case
            if whole and not big:
                assert tensors(source) == tensors(written), case
            elif not big:
                assert tensors(GGUFReader(DATA / "gguf-files/whole.gguf")) == tensors(written), case
            else:
                assert tensors(written) == tensors(GGUFReader(DATA / "gguf-files/v3-little.gguf"))[: len(written.tensors)]
            checked += 1
        out = Path(directory) / "from.gguf"
        demo = DATA / "demo/model-fp8.safetensors"
        subprocess.run([amn, "convert", demo, "--to", "gguf", "-o", out, "--gguf-kv", "general.architecture=llama"], check=True, capture_output=True)
        (tensor,) = GGUFReader(out).tensors
        expected = (DATA / "demo/expected-bf16.safetensors").read_bytes()[-256 * 256 * 2 :]
        assert tensor.shape.tolist() == [256, 256] and tensor.data.tobytes() == expected
    print(f"{checked + 1} files are equal; gguf does not read {len(unread)}:", *unread, sep="\n  ")


main()

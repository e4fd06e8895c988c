"""GGUF files without the weights that `amn` writes bit for bit as llama.cpp's converter does.

    python sums.py FILE.gguf...
    python sums.py --restore AMN DATA [FILE.sums...]

The first replaces each FILE.gguf by FILE.sums: a line of JSON, the header of the GGUF file (all in front of its data, which begins
behind the padding), and the data of the tensors that are kept. The JSON has `header`, the number of bytes of the header, and `tensors`, a
list in the order of the data: name, number of bytes, and the SHA-256 of the data, its first 32 digits, or null for a tensor whose
data is kept. The script needs gguf 0.19.0 for that.

The second writes FILE.gguf again beside the sums, of all in the directory DATA by default (`whole`, `whole_prediction` or
`towers` of tests/data): the program AMN converts the directory `hf` beside the sums, and what it writes has to have them.
`tests/common/canonical.rs` does the same.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ALIGNMENT = 32

# What `amn` writes otherwise on purpose: decays of Mamba, in which torch's exp(x) is off by a bit of the last place now and then, and
# the router of a layer that predicts a further token, which llama.cpp's converter leaves in BF16.
KEPT = re.compile(r"\.ssm_a$|\.ffn_gate_inp\.weight$")


def align(size):
    return -size % ALIGNMENT


def digest(data):
    return hashlib.sha256(data).hexdigest()[:32]


def is_kept(tensor):
    if tensor.name.endswith(".ssm_a"):
        return len(tensor.shape) == 2 and tensor.shape[0] > 1
    return KEPT.search(tensor.name) and tensor.tensor_type.name == "BF16"


def reduce(path):
    """Replaces a GGUF file by its header and sums."""
    from gguf import GGUFReader

    reader, whole = GGUFReader(path), path.read_bytes()
    assert reader.alignment == ALIGNMENT
    end, listed, kept = reader.data_offset, [], b""
    header = whole[:end]
    for tensor in reader.tensors:
        assert tensor.data_offset == end, tensor.name
        data = whole[end : end + tensor.n_bytes]
        end += tensor.n_bytes + align(tensor.n_bytes)
        listed.append([tensor.name, tensor.n_bytes, None if is_kept(tensor) else digest(data)])
        kept += data if is_kept(tensor) else b""
    assert end == len(whole) or end - len(whole) < ALIGNMENT, path
    text = json.dumps({"header": len(header), "tensors": listed}, separators=(",", ":"))
    path.with_suffix(".sums").write_bytes(text.encode() + b"\n" + header + kept)
    path.unlink()


def converted(amn, sums):
    """The data of each tensor that `amn` writes for the model beside the sums."""
    options = ["--mmproj"] if sums.parent.parent.name == "towers" else []
    options += ["--out-dtype", sums.stem] if sums.stem in ("f16", "f32") else []
    if sums.stem == "q8_0":
        from gguf import GGUFReader

        with tempfile.TemporaryDirectory() as directory:
            gguf = Path(directory) / "out.gguf"
            command = ["forget", sums.parent / "hf", "--to", "gguf:q8_0", "-o", gguf, *options]
            subprocess.run([amn, *command], check=True, capture_output=True)
            return {tensor.name: tensor.data.tobytes() for tensor in GGUFReader(gguf).tensors}
    with tempfile.TemporaryDirectory() as directory:
        gguf, copy = Path(directory) / "out.gguf", Path(directory) / "out.safetensors"
        for command in [
            ["convert", sums.parent / "hf", "--to", "gguf", "-o", gguf, *options],
            ["convert", gguf, "--to", "safetensors", "--tensors-only", "-o", copy],
        ]:
            subprocess.run([amn, *command], check=True, capture_output=True)
        whole = copy.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    described = json.loads(whole[8:begin])
    spans = {name: tensor["data_offsets"] for name, tensor in described.items() if name != "__metadata__"}
    return {name: whole[begin + start : begin + end] for name, (start, end) in spans.items()}


def restored(amn, sums):
    """The bytes of the GGUF file."""
    text, rest = sums.read_bytes().split(b"\n", 1)
    described, found = json.loads(text), converted(amn, sums)
    whole, kept = rest[: described["header"]], rest[described["header"] :]
    for name, size, sum in described["tensors"]:
        if sum is None:
            data, kept = kept[:size], kept[size:]
        else:
            data = found.get(name, b"")
            assert digest(data) == sum, f"{sums}: {amn} writes other values of the tensor {name}"
        whole += data + bytes(align(size))
    return whole


def main():
    if sys.argv[1] != "--restore":
        for path in sys.argv[1:]:
            reduce(Path(path))
        return
    amn, data = sys.argv[2], Path(sys.argv[3])
    for sums in map(Path, sys.argv[4:]) if sys.argv[4:] else sorted(data.glob("*/*.sums")):
        sums.with_suffix(".gguf").write_bytes(restored(amn, sums))


if __name__ == "__main__":
    main()

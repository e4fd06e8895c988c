"""Files of ggml from before GGUF: `ggml_bin/` (`model.bin`, and what the programs' own readers and decoders make of it).

    pip install numpy==2.4.6 torch==2.15.0 gguf==0.19.0 openai-whisper==20250625 sentencepiece==0.2.3
    for v in 0.1.38 0.1.41 0.1.50 0.1.78; do pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==$v; done
    # Unpack these into OLD, and build OLD/llama_cpp_python-*/vendor/llama.cpp/libllama.so there:
    #   gcc -O1 -fPIC -D_GNU_SOURCE -DGGML_USE_K_QUANTS -c ggml.c [k_quants.c ggml-alloc.c]
    #   g++ -O1 -fPIC -DGGML_USE_K_QUANTS -include cstdint -c llama.cpp; g++ -shared -o libllama.so *.o
    # WHISPER is a checkout of whisper.cpp (233fe1f), QUANTIZE its built `whisper-quantize`.
    cd tests/data/generate && python -P ggml_before_gguf.py OLD WHISPER QUANTIZE
"""

import base64
import ctypes
import importlib.util
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from whisper.model import ModelDimensions, Whisper

HERE = Path(__file__).parent.parent / "ggml_bin"
OLD, WHISPER, QUANTIZE = (Path(arg).resolve() for arg in sys.argv[1:])
# Of April 2023, the first with Q4_3; of May 2023 before version 2 of GGJT; of versions 2 and 3.
V0, V1, V2, V3 = (OLD / f"llama_cpp_python-0.1.{v}/vendor/llama.cpp" for v in (38, 41, 50, 78))


def convert_py():
    spec = importlib.util.spec_from_file_location("convert", V3 / "convert.py")
    module = sys.modules["convert"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Vocab:
    def all_tokens(self):
        return [(b"", 0.0), (" é".encode(), -1.5), (b"\xff", -2.0)]


def llama(convert, path, f16):
    """A model of three tensors as llama.cpp's `convert.py` writes them."""
    rng = np.random.default_rng(1)
    of = convert.OutputFile(path)
    params = convert.Params(n_vocab=3, n_embd=256, n_mult=32, n_head=4, n_kv_head=None, n_layer=1)
    of.write_file_header(params, convert.GGMLFileType.MostlyF16 if f16 else convert.GGMLFileType.AllF32)
    of.write_vocab(Vocab())
    for name, shape in [
        ("tok_embeddings.weight", (3, 256)), ("norm.weight", (256,)), ("layers.0.attention.wq.weight", (2, 256)),
    ]:  # fmt: skip
        t = rng.standard_normal(shape).astype(np.float16 if f16 and len(shape) > 1 else np.float32)
        of.write_tensor_header(name, shape, convert.DT_F16 if t.dtype == np.float16 else convert.DT_F32)
        t.tofile(of.fout)
    of.fout.close()


# Values and bytes of a block before version 3.
OLD_BLOCKS = {2: (32, 20), 3: (32, 24), 4: (16, 10), 5: (16, 12), 6: (32, 22), 7: (32, 24), 8: (32, 36)}


def without_padding(source, path, scores):
    """The file as llama.cpp had it before, which `convert.py` reads: GGMF, and without scores GGML."""
    data, out = source.read_bytes(), bytearray(b"fmgg\1\0\0\0" if scores else b"lmgg")
    out += data[8:36]
    at = 36
    for _ in Vocab().all_tokens():
        (n,) = struct.unpack_from("i", data, at)
        out += data[at : at + 4 + n + 4 * scores]
        at += 8 + n
    while at < len(data):
        dims, n, ftype = struct.unpack_from("iii", data, at)
        head = 12 + 4 * dims + n
        shape = struct.unpack_from("i" * dims, data, at + 12)
        block, size = {0: (1, 4), 1: (1, 2), **OLD_BLOCKS}[ftype]
        size = int(np.prod(shape)) // block * size
        start = (at + head + 31) // 32 * 32
        out += data[at : at + head] + data[start : start + size]
        at = start + size
    path.write_bytes(out)


def quantized(directory, source, path, ftype):
    """`source` as a version of llama.cpp quantizes it."""
    lib = ctypes.CDLL(str(directory / "libllama.so"))
    names = [str(source).encode(), str(path).encode()]
    if directory == V3:

        class Params(ctypes.Structure):
            _fields_ = [("nthread", ctypes.c_int), ("ftype", ctypes.c_int), ("again", ctypes.c_bool), ("output", ctypes.c_bool)]

        assert lib.llama_model_quantize(*names, ctypes.byref(Params(1, ftype, False, True))) == 0
    else:
        assert lib.llama_model_quantize(*names, ftype, 1) == 0


def old_decoder(directory, ftype):
    class Functions(ctypes.Structure):
        _fields_ = [(f"f{i}", ctypes.c_void_p) for i in range(6)]

    class Memory(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]

    lib = ctypes.CDLL(str(directory / "libllama.so"))
    lib.ggml_internal_get_quantize_fn.restype = Functions
    # It makes the tables of halves.
    lib.ggml_init(Memory(1 << 20, None, False))
    row = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(lib.ggml_internal_get_quantize_fn(ftype).f0)

    def decode(data, shape):
        out = np.empty(shape, np.float32)
        row(data, out.ctypes.data_as(ctypes.c_void_p), out.size)
        return out

    return decode


def tensors(path, at, aligned, decode=None):
    """Tensors of a file, whose bytes gguf-py or `decode` decodes."""
    data, found = path.read_bytes(), {}
    while at < len(data):
        dims, n, ftype = struct.unpack_from("iii", data, at)
        shape = struct.unpack_from("i" * dims, data, at + 12)[::-1]
        at += 12 + 4 * dims
        name, at = data[at : at + n].decode(), at + n
        at = (at + 31) // 32 * 32 if aligned else at
        is_old = decode and ftype in OLD_BLOCKS
        block, size = OLD_BLOCKS[ftype] if is_old else gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(ftype)]
        raw = data[at : at + int(np.prod(shape)) // block * size]
        at += len(raw)
        if ftype < 2:
            found[name] = np.frombuffer(raw, (np.float32, np.float16)[ftype]).reshape(shape)
        elif decode:
            found[name] = decode(raw, shape)
        else:
            rows = np.frombuffer(raw, np.uint8).reshape(-1, shape[-1] // block * size)
            found[name] = gguf.dequantize(rows, gguf.GGMLQuantizationType(ftype)).reshape(shape)
    return found


def put(name, path, expected):
    from safetensors.numpy import save_file

    case = HERE / name
    case.mkdir(parents=True)
    shutil.copy(path, case / "model.bin")
    if expected:
        save_file({n: np.ascontiguousarray(t) for n, t in expected.items()}, case / "expected-f32.safetensors")


def llama_cases(scratch):
    convert = convert_py()
    starts = {"f16": None, "f32": None}
    for kind in starts:
        path = scratch / kind
        llama(convert, path, kind == "f16")
        starts[kind] = path
        for case, file in [("ggjt", path), ("ggmf", scratch / "ggmf"), ("ggml", scratch / "ggml")]:
            if case != "ggjt":
                without_padding(path, file, case == "ggmf")
            model = convert.lazy_load_file(file).model
            values = {n: t.load().to_ggml().ndarray for n, t in model.items()}
            if kind == "f16" or case == "ggjt":
                put(f"{case}_{kind}", file, values)
    header = 36 + sum(8 + len(text) for text, _ in Vocab().all_tokens())
    for name, ftype in [("q4_0", 2), ("q4_1", 3), ("q5_0", 8), ("q5_1", 9), ("q8_0", 7)]:
        quantized(V3, starts["f32"], scratch / name, ftype)
        put(f"ggjt3_{name}", scratch / name, tensors(scratch / name, header, True))
    types = {"q4_0": (2, 2), "q4_1": (3, 3), "q4_2": (5, 4), "q4_3": (6, 5), "q8_0": (7, 8), "q5_0": (8, 6), "q5_1": (9, 7)}
    for version, library, names in [
        ("ggjt1", V0, ["q4_3"]), ("ggjt1", V1, ["q4_0", "q4_1", "q4_2", "q5_0", "q5_1", "q8_0"]),
        ("ggjt2", V2, ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]),
    ]:  # fmt: skip
        for name in names:
            ftype, kind = types[name]
            quantized(library, starts["f32"], scratch / name, ftype)
            put(f"{version}_{name}", scratch / name, tensors(scratch / name, header, True, old_decoder(library, kind)))
    for name in ["q4_0", "q4_1"]:
        quantized(V1, starts["f32"], scratch / name, types[name][0])
        values = tensors(scratch / name, header, True, old_decoder(V1, types[name][1]))
        without_padding(scratch / name, scratch / "ggmf", True)
        put(f"ggmf_{name}", scratch / "ggmf", values)


def whisper_cases(scratch):
    torch.manual_seed(3)
    dims = dict(n_mels=4, n_audio_ctx=6, n_audio_state=256, n_audio_head=2, n_audio_layer=1, n_vocab=4,
                n_text_ctx=2, n_text_state=256, n_text_head=2, n_text_layer=1)  # fmt: skip
    names = ["encoder.conv1.bias", "decoder.token_embedding.weight", "decoder.positional_embedding", "decoder.ln.weight"]
    state = Whisper(ModelDimensions(**dims)).half().state_dict()
    torch.save({"dims": dims, "model_state_dict": {n: state[n] for n in names}}, scratch / "whisper.pt")
    assets = scratch / "whisper/assets"
    assets.mkdir(parents=True)
    np.savez(assets / "mel_filters.npz", mel_4=np.random.default_rng(4).random((4, 9), np.float32))
    (assets / "gpt2.tiktoken").write_bytes(b"".join(base64.b64encode(bytes([i])) + f" {i}\n".encode() for i in range(3)))
    script = WHISPER / "models/convert-pt-to-ggml.py"
    subprocess.run([sys.executable, script, scratch / "whisper.pt", scratch, scratch], check=True)
    header = 48 + 8 + 4 * 4 * 9 + 4 + 3 * 5
    file = scratch / "ggml-model.bin"
    put("whisper_f16", file, tensors(file, header, False))
    for name in ["q4_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]:
        subprocess.run([QUANTIZE, file, scratch / name, name], check=True)
        put(f"whisper_{name}", scratch / name, tensors(scratch / name, header, False))
    parakeet = WHISPER / "models/for-tests-ggml-parakeet-tdt.bin"
    data, at = parakeet.read_bytes(), 64
    for count in (2, 1):
        sizes = struct.unpack_from("i" * count, data, at)
        at += 4 * count + 4 * int(np.prod(sizes))
    at += 4 * 2
    (count,) = struct.unpack_from("i", data, at)
    at += 4
    for _ in range(count):
        at += 4 + struct.unpack_from("i", data, at)[0]
    put("parakeet", parakeet, tensors(parakeet, at, False))


shutil.rmtree(HERE, ignore_errors=True)
with tempfile.TemporaryDirectory() as scratch:
    llama_cases(Path(scratch))
    whisper_cases(Path(scratch))

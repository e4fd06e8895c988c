"""Matrices of which diffusers makes no layers of BitsAndBytes, for each class of transformer that its own tests
have a small config of.

Usage: python diffusers_modules.py CHECKOUT   (of github.com/huggingface/diffusers, beside the package)
"""

import importlib
import inspect
import json
import pathlib
import signal
import sys
import tempfile

import bitsandbytes as bnb
import torch
from diffusers import BitsAndBytesConfig
from diffusers.quantizers.bitsandbytes.bnb_quantizer import BnB4BitDiffusersQuantizer as Quantizer

CHECKOUT = pathlib.Path(sys.argv[1])
OUT = pathlib.Path(__file__).parent.parent / "diffusers_modules.json"
# Those of whose classes some matrices are not quantized.
FAMILIES = (
    "anyflow chronoedit cosmos3 dit_transformer2d glm_image helios hunyuan_1_5 hunyuan_dit joyimage minimax omnigen skyreels wan"
).split()
sys.path.insert(0, str(CHECKOUT))
# The library asks for a GPU before it quantizes on the CPU.
Quantizer.validate_environment = lambda *_, **__: None
Quantizer.update_device_map = lambda *_: {"": "cpu"}


def classes():
    """Each model class with the arguments of its tests."""
    found = {}
    for path in sorted((CHECKOUT / "tests/models").glob("transformers/test_*.py")):
        if not any(name in path.stem for name in FAMILIES):
            continue
        try:
            module = importlib.import_module(f"tests.models.{path.parent.name}.{path.stem}")
        except ImportError:
            continue
        testers = [t for t in inspect.getmembers(module, inspect.isclass) if t[1].__module__ == module.__name__]
        for _, tester in sorted(testers, key=lambda pair: "TesterConfig" not in pair[0]):
            try:
                tester = tester()
                model = tester.model_class
                if model.__name__ in found:
                    continue
                if hasattr(tester, "get_init_dict"):
                    found[model.__name__] = (model, tester.get_init_dict())
                else:
                    found[model.__name__] = (model, tester.prepare_init_args_and_inputs_for_common()[0])
            except Exception:
                continue
    return sorted(found.items())


def slow(*_):
    raise TimeoutError


def others(model, arguments):
    """Names of the matrices called `weight` that are not quantized."""
    with tempfile.TemporaryDirectory() as directory:
        plain = model(**arguments)
        plain.save_pretrained(directory)
        config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
        # Modules are kept in F32 only beside others that are not.
        quantized = model.from_pretrained(directory, torch_dtype=torch.bfloat16, quantization_config=config)
    layers = {name for name, module in quantized.named_modules() if isinstance(module, bnb.nn.Linear4bit)}
    names = {name.removesuffix(".weight") for name, t in plain.state_dict().items() if t.dim() == 2 and name.endswith(".weight")}
    return sorted(names - layers)


table = {}
signal.signal(signal.SIGALRM, slow)
for name, (model, arguments) in classes():
    signal.alarm(20)
    try:
        table[name] = others(model, arguments)
    except Exception as error:
        print(name, repr(error)[:100])
    signal.alarm(0)
OUT.write_text(json.dumps({name: names for name, names in table.items() if names}, indent=1) + "\n")

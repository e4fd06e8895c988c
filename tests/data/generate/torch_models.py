"""Golden files of PyTorch that are no plain state dictionaries: archives of torch.export, TorchScript, whole modules.

    pip install torch==2.15.0 numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0
    python torch_models.py

It rewrites ../pt2/*, ../torchscript/* and ../modules/*. The index and the expected tensors are as pth.py says. What is
expected is what torch's own function for the format loads: tensors of `torch.export.load`; `state_dict()`, attributes and
constants of TorchScript, whose constants have the names of its code, `CONSTANTS.c0`; `state_dict()` of modules. `torch`
tells whether it has loaded the very file. Graphs of torch.export are left out of the files: they are long and have paths
of the machine, as debug files of TorchScript have.
"""

import argparse
import collections
import io
import json
import os
import sys
import types
import warnings
import zipfile

# TorchScript writes sets, in the order of hashes.
if os.environ.get("PYTHONHASHSEED") != "0":
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"PYTHONHASHSEED": "0"})
os.environ["TORCHDYNAMO_DISABLE"] = "1"
warnings.filterwarnings("ignore")

import torch
from npz import TORCH, Family, to_bytes
from pth import fill, flatten, legacy, plain_zip, rand, reason, records, save, torch_zip
from torch.export.pt2_archive._package import load_pt2, package_pt2

# ---------------------------------------------------------------- torch.export


class Small(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.weight = torch.nn.Parameter(rand(name, "F32", 2))

    def forward(self, x):
        return x + self.weight


class Few(Small):
    """A parameter, buffers of three kinds, a constant."""

    def __init__(self):
        super().__init__("few")
        self.register_buffer("transposed", rand("transposed", "F32", 3, 2).t())
        self.register_buffer("view", rand("view", "F32", 10)[2:5])
        self.register_buffer("scalar", torch.tensor(7))
        self.constant = torch.tensor([1.5, 2.5])

    def forward(self, x):
        return super().forward(x) + self.transposed.sum() + self.view.sum() + self.scalar + self.constant


class Exported(torch.nn.Module):
    """Tied weights, views of a storage, transposed ones, buffers that are not persistent, constants."""

    def __init__(self, dtypes=()):
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
        fill("exported", self.state_dict())
        self.b.weight = self.a.weight
        self.small = Small("small")
        self.register_buffer("transposed", rand("transposed", "F32", 3, 2).t())
        self.register_buffer("view", rand("view", "F32", 10)[2:5])
        self.register_buffer("scalar", torch.tensor(7))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("lost", rand("lost", "F32", 3), persistent=False)
        self.constant = torch.tensor([1.5, 2.5])
        for name in dtypes:
            self.register_buffer(f"of_{name.lower()}", rand(name, name, 2, 3))

    def forward(self, x):
        y = self.b(x) + self.a(x) + self.transposed.sum() + self.view.sum() + self.scalar
        return self.small(y[:, :2]) + self.constant + self.lost.sum() + torch.tensor([0.5, -1.5])


def program(module, n=3):
    return torch.export.export(module, (torch.ones(1, n),))


def tensors_of(found):
    return dict(found.state_dict) | {k: v for k, v in found.constants.items() if isinstance(v, torch.Tensor)}


def without_graph(content):
    found = {k: v for k, v in records(content).items() if not k.startswith(("models/", ".data/", "data/sample_inputs/"))}
    return found | {"models/model.json": b"{}"}


def exported():
    out = Family("pt2")
    whole = program(Exported(["BOOL", "U8", "U16", "I16", "I64", "F16", "BF16", "F64", "C64", "F8_E4M3", "F8_E8M0"]))

    def says(content, expected, model="model"):
        try:
            found = tensors_of(load_pt2(io.BytesIO(content)).exported_programs[model])
        except Exception as e:
            return reason(e)
        assert {k: to_bytes(v) for k, v in found.items()} == {k: to_bytes(v) for k, v in expected.items()}
        return "loads"

    f = io.BytesIO()
    torch.export.save(whole, f)
    content, expected = f.getvalue(), tensors_of(whole)
    kept = without_graph(content)
    out.add("module.pt2", torch_zip(kept), "parameters, buffers and constants: tied, transposed, a part of a storage",
            expected, torch=says(content, expected))
    whole = program(Few(), 2)
    expected = tensors_of(whole)
    older = {k: v for k, v in kept.items() if not k.startswith("data/")}
    older |= {"data/weights/model.pt": save(dict(whole.state_dict)), "data/constants/model.pt": save(dict(whole.constants))}
    out.add("checkpoints.pt2", torch_zip(older), "checkpoints of all weights and of all constants", expected)
    oldest = {"serialized_exported_program.json": b"{}", "serialized_state_dict.pt": save(dict(whole.state_dict)),
              "serialized_constants.pt": save(dict(whole.constants)), "version": b"8.5"}
    out.add("torch_2_6.pt2", plain_zip(oldest, ""), "the archive of torch 2.6, which has no directory", expected)
    f = io.BytesIO()
    one, two = program(Small("one"), 2), program(Small("two"), 2)
    package_pt2(f, exported_programs={"first": one, "second": two})
    content = f.getvalue()
    for model, found in ("first", one), ("second", two):
        assert says(content, tensors_of(found), model) == "loads"
    expected = {f"{m}.{k}": v for m, found in (("first", one), ("second", two)) for k, v in tensors_of(found).items()}
    found = {k: v for k, v in without_graph(content).items()}
    out.add("two_models.pt2", torch_zip(found), "two models in one archive", expected, torch="loads")

    # What is not read; cases of what is wrong are in tests/formats/exported.rs.
    f = io.BytesIO()
    torch.export.save(whole, f)
    kept = without_graph(f.getvalue())
    config = json.loads(kept["data/weights/model_weights_config.json"])
    skipped = ["view", "transposed", "scalar"]
    config["config"]["view"]["use_pickle"] = True
    config["config"]["transposed"]["tensor_meta"]["layout"] = 1
    config["config"]["scalar"]["tensor_meta"]["dtype"] = 11
    content = torch_zip(kept | {"data/weights/model_weights_config.json": json.dumps(config).encode()})
    out.add("not_read.pt2", content, "a tensor of a class of its own, a sparse one, and one of complex128",
            {k: v for k, v in tensors_of(whole).items() if k not in skipped}, expect="skips", skipped=skipped)
    out.finish()



# ---------------------------------------------------------------- TorchScript


class Attributes(torch.nn.Module):
    """Parameters, buffers, and tensors in attributes of other types."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        fill("script", self.state_dict())
        self.b.weight = self.a.weight
        self.register_buffer("transposed", rand("transposed", "F32", 3, 2).t())
        self.register_buffer("lost", rand("lost", "F32", 3), persistent=False)
        self.register_buffer("counts", rand("counts", "I64", 2))
        self.list = [rand("list", "F32", 2), rand("list 1", "F32", 1)]
        self.dict = {"x": rand("dict", "F32", 2)}
        self.tuple = (1, rand("tuple", "F32", 3))
        self.layers = torch.nn.ModuleList([Small("layer 0"), Small("layer 1")])
        self.numbers, self.fractions, self.flags = [1, 2], [1.5], [True]
        self.device, self.nothing, self.complex = torch.device("cpu"), None, 1 + 2j

    def forward(self, x):
        y = self.b(self.a(x)) + self.transposed.sum() + self.lost + self.counts.sum() + self.list[0].sum() + self.dict["x"].sum()
        for layer in self.layers:
            y = y + layer(self.list[1]).sum()
        return y + self.tuple[1] + self.numbers[0] + self.fractions[0] + torch.tensor([0.5, 1.5, -1.5])


def constants_of(found):
    """The tensors of `constants.pkl`, as torch's unpickler of checkpoints reads them."""
    inside = {k.replace("constants/", "data/"): v for k, v in found.items() if k.startswith("constants/")}
    content = torch_zip({"data.pkl": found["constants.pkl"], "byteorder": b"little"} | inside)
    loaded = torch.load(io.BytesIO(content), weights_only=True)
    return {f"CONSTANTS.c{k}": v for k, v in flatten(loaded)}


def torchscript():
    out = Family("torchscript")

    def add(file, detail, write, attributes=(), skipped=()):
        f = io.BytesIO()
        write(f)
        found = {k: v for k, v in records(f.getvalue()).items() if not k.endswith(".debug_pkl") and k[:6] != ".data/"}
        assert not any(b"torch_models.py" in v for v in found.values())
        content = plain_zip(found)
        loaded = torch.jit.load(io.BytesIO(content))
        tensors = dict(loaded.state_dict()) if not skipped else {k: v for k, v in loaded.state_dict().items() if k[:2] != "0."}
        for name in attributes:
            tensors |= {f"{name}.{k}" if k != "tensor" else name: v for k, v in flatten(getattr(loaded, name))}
        out.add(file, content, detail, tensors | constants_of(found) | (more if skipped else {}), torch="loads",
                expect="skips" if skipped else "ok", skipped=skipped)

    net = Attributes().eval()
    scripted = torch.jit.script(net)
    add("script.pt", "a scripted module", lambda f: torch.jit.save(scripted, f), ["list", "dict", "tuple"])
    add("mobile.ptl", "a module for the interpreter of phones, with bytecode.pkl",
        lambda f: f.write(scripted._save_to_buffer_for_lite_interpreter()), ["list", "dict", "tuple"])
    traced = torch.jit.trace(net, torch.ones(1, 3), check_trace=False)
    add("trace.pt", "a traced module, with constants and the inputs", lambda f: torch.jit.save(traced, f))
    frozen = torch.jit.freeze(scripted)
    add("frozen.pt", "a frozen module, whose weights are constants", lambda f: torch.jit.save(frozen, f))
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), Small("quantized")).eval()
    fill("quantized", net.state_dict())
    quantized = torch.ao.quantization.quantize_dynamic(net, {torch.nn.Linear}, dtype=torch.qint8)
    more = {"0._packed_params._packed_params.1": quantized[0].bias().detach()}
    traced = torch.jit.trace(quantized, torch.ones(1, 3), check_trace=False)
    add("quantized.pt", "a quantized layer, which has packed parameters", lambda f: torch.jit.save(traced, f),
        skipped=["0._packed_params._packed_params.0"])
    out.finish()


# ---------------------------------------------------------------- whole modules

LIBRARY = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, 3))
        self.register_parameter("none", None)
        self.register_buffer("lost", torch.zeros(3), persistent=False)
        self.register_buffer("kept", torch.zeros(2))
        self.register_buffer("nothing", None)
        self.new = torch.nn.Buffer(torch.zeros(2))
        self.plain = torch.ones(4)
        self.activation = torch.nn.functional.relu

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.sequence = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 1, bias=False), torch.nn.BatchNorm1d(3), torch.nn.ReLU())
        self.params = torch.nn.ParameterList([torch.zeros(2), torch.zeros(1)])
        self.named = torch.nn.ParameterDict({"x": torch.zeros(2)})
        self.halves = torch.nn.Linear(2, 2).half()
        self.tied = torch.nn.Linear(2, 2, bias=False).half()
        self.tied.weight = self.halves.weight
        self.again = self.blocks[0]
        self.register_buffer("transposed", torch.zeros(3, 2).t())
        self.missing = None
        # What is an attribute of no module is no part of one.
        self.helper = Helper(self)

class Helper:
    def __init__(self, model):
        self.model, self.scale = model, torch.ones(1)

class Names(dict):
    pass
"""


def modules():
    out = Family("modules")
    library = types.ModuleType("library")
    sys.modules["library"] = library
    exec(LIBRARY, library.__dict__)
    net = library.Net()
    fill("modules", net.state_dict())
    state, block = dict(net.state_dict()), library.Block()
    fill("block", block.state_dict())

    def add(file, content, detail, obj, expected):
        state = (net if file in ("module.pt", "legacy.pt") else block).state_dict()
        loaded = torch.load(io.BytesIO(content), weights_only=False)
        assert {k: to_bytes(v) for k, v in obj(loaded).state_dict().items()} == {k: to_bytes(v) for k, v in state.items()}
        out.add(file, content, detail, expected, torch="loads")

    add("module.pt", save(net), "a whole module", lambda x: x, state)
    add("protocol_4.pt", save(block, pickle_protocol=4), "pickle protocol 4", lambda x: x, dict(block.state_dict()))
    source = torch.serialization.get_source_lines_and_file
    torch.serialization.get_source_lines_and_file = lambda _: (["class X(Module):\n", "    pass\n"], 1, "library.py")
    try:
        content = legacy(save(net, _use_new_zipfile_serialization=False), "modules")
    finally:
        torch.serialization.get_source_lines_and_file = source
    add("legacy.pt", content, "a stream with the source of each class: the persistent id ('module', class, file, source)",
        lambda x: x, state)
    names = library.Names(a=1)
    checkpoint = {"epoch": 3, "model": block, "ema": None, "args": argparse.Namespace(lr=0.5), "names": names,
                  "optimizer": {"state": {0: {"exp_avg": rand("exp_avg", "F32", 2)}}},
                  "default": collections.defaultdict(list, {"x": [torch.ones(1)]})}
    expected = {f"model.{k}": v for k, v in block.state_dict().items()}
    add("checkpoint.pt", save(checkpoint), "a module in a dict, beside an optimizer's state and objects of other classes",
        lambda x: x["model"], expected | {"optimizer.state.0.exp_avg": checkpoint["optimizer"]["state"][0]["exp_avg"]})
    add("attribute.pt", save(library.Helper(block)), "a module that is an attribute of an object", lambda x: x.model, expected)
    mixed = torch.nn.Sequential(torch.nn.Linear(3, 2), library.Block())
    fill("mixed", mixed.state_dict())
    quantized = torch.ao.quantization.quantize_dynamic(mixed, {torch.nn.Linear}, dtype=torch.qint8)
    out.add("quantized.pt", save(quantized), "a quantized layer, whose weight is in an attribute, beside another",
            {k: v for k, v in quantized.state_dict().items() if k[:2] == "1."}, expect="skips",
            skipped=["0._packed_params._packed_params.0.0"])
    del sys.modules["library"]
    out.finish()


if __name__ == "__main__":
    torchscript()
    modules()
    exported()

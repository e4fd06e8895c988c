"""Golden files of PyTorch that are no plain state dictionaries: archives of torch.export.

    pip install torch==2.15.0 numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0
    python torch_models.py

It rewrites ../pt2/*. The index and the expected tensors are as pth.py says; `torch` tells what torch's own function
for the format (`torch.export.load`) did. Graphs are left out of the files: they are long and have paths of the machine. What is expected is what torch
loads of the whole file.
"""

import io
import json
import os
import warnings
import zipfile

os.environ["TORCHDYNAMO_DISABLE"] = "1"
warnings.filterwarnings("ignore")

import torch
from npz import TORCH, Family, to_bytes
from pth import fill, plain_zip, rand, reason, records, save, torch_zip
from torch.export.pt2_archive._package import load_pt2, package_pt2

# ---------------------------------------------------------------- torch.export


class Small(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.weight = torch.nn.Parameter(rand(name, "F32", 2))

    def forward(self, x):
        return x + self.weight


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
    whole = program(Exported([name for name in TORCH if name != "F4"]))

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
    whole = program(Exported())
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


if __name__ == "__main__":
    exported()

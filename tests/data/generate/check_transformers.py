"""Loads what `amn remember` writes with transformers and compares it with a reference of the same configuration.

Run: `python check_transformers.py AMN CASE...`, where a CASE is a directory with `model/` and `expected-f32.safetensors`
beside it, of a whole model (the `tiny_*` cases). It runs `AMN remember CASE/model -o OUT --to bf16`, loads OUT in BF16 and wants
no missing, unexpected or mismatched keys. The reference is made of `expected-bf16.safetensors`, or else of
`expected-f32.safetensors` rounded. Parameters, buffers and logits must be equal, bit for bit.

`python check_transformers.py --reference CASE...` only loads the references, without AMN.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
warnings.filterwarnings("ignore")

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()
BF16 = torch.bfloat16
QUANTIZED = ("quantization_config", "quantization", "compression_config")


def unquantized(config):
    """The configuration without any mention of quantization, nested ones too."""
    return {k: unquantized(v) if isinstance(v, dict) else v for k, v in config.items() if k not in QUANTIZED}


def mentions(config):
    return any(k in QUANTIZED or isinstance(v, dict) and mentions(v) for k, v in config.items())


def load(directory):
    model, info = AutoModelForCausalLM.from_pretrained(directory, dtype=BF16, output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(what), f"{what}: {sorted(map(str, info[what]))}"
    return model.eval()


def reference(case, directory):
    """A directory with the expected tensors in BF16, as a saver of unquantized models would write it."""
    source = case / "expected-bf16.safetensors"
    if not source.exists():
        source = case / "expected-f32.safetensors"
    tensors = {k: v.to(BF16) if v.dtype.is_floating_point else v for k, v in load_file(source).items()}
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((case / "model" / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(unquantized(config)))
    return load(directory)


def logits(model):
    vocab = model.get_input_embeddings().weight.shape[0]
    ids = (torch.arange(24) * 7 + 3).remainder(vocab).reshape(2, 12)
    with torch.no_grad():
        return model(input_ids=ids).logits


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.contiguous().view(-1).view(torch.uint8),
                                                                     b.contiguous().view(-1).view(torch.uint8))


def compare(model, wanted):
    got, want = model.state_dict(), wanted.state_dict()
    assert got.keys() == want.keys(), f"different tensors: {sorted(got.keys() ^ want.keys())}"
    wrong = [k for k in want if not same(got[k], want[k])]
    assert not wrong, f"different values: {wrong}"
    a, b = logits(model), logits(wanted)
    assert torch.isfinite(b).all(), "the reference has logits that are not finite"
    assert same(a, b), f"logits differ by up to {(a.float() - b.float()).abs().max()}"
    return len(want)


def check(amn, case, scratch):
    wanted = reference(case, scratch / "reference")
    if amn is None:
        assert torch.isfinite(logits(wanted)).all()
        return f"the reference loads, {len(wanted.state_dict())} tensors"
    out = scratch / "out"
    run = subprocess.run([amn, "remember", str(case / "model"), "-o", str(out), "--to", "bf16"], capture_output=True, text=True)
    assert run.returncode == 0, f"exit code {run.returncode}\n{run.stdout}{run.stderr}"
    config = json.loads((out / "config.json").read_text())
    assert not mentions(config), "the configuration still says that the model is quantized"
    return f"{compare(load(out), wanted)} tensors and the logits are equal"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--reference", action="store_true", help="only load the references")
    parser.add_argument("arguments", nargs="+", metavar="[AMN] CASE")
    args = parser.parse_args()
    amn = None if args.reference else args.arguments.pop(0)
    failed = 0
    for case in map(Path, args.arguments):
        scratch = Path(tempfile.mkdtemp())
        try:
            print(f"{case}: {check(amn, case, scratch)}")
        except Exception as error:
            failed += 1
            print(f"{case}: FAILED: {type(error).__name__}: {error}")
        finally:
            shutil.rmtree(scratch)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

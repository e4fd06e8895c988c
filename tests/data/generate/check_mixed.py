"""Whether libraries load models of several schemes, and decode the values that `amn remember` decodes.

    AMN=amn python -P check_mixed.py DIR    transformers 5.24.0, compressed-tensors 0.20.1, mlx 0.32.4, mlx-lm 0.32.2

DIR is a Hugging Face directory of a small language model. Prints for each scheme how many tensors are equal.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

SCHEMES = {
    "w4a16": ["--group-size", "64", "--bits", "6"],
    "nvfp4-ct": ["--bits", "6"],
    "mlx-4bit": ["--bits", "4.5"],
    "mlx-nvfp4": ["--bits", "6"],
    "mlx-mixed-3-6": [],
}


def tensors(directory):
    return {name: value for file in sorted(Path(directory).glob("*.safetensors")) for name, value in load_file(file).items()}


def of_transformers(directory):
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    with torch.no_grad():
        model(torch.tensor([[1, 5, 77, 300]]))  # decompresses
    return model.state_dict()


def of_mlx(directory):
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.utils import dequantize_model, load_model

    model = dequantize_model(load_model(Path(directory))[0])
    return {name: torch.from_numpy(__import__("numpy").array(value.astype(mx.float32))) for name, value in tree_flatten(model.parameters())}


if __name__ == "__main__":
    for scheme, options in SCHEMES.items():
        with tempfile.TemporaryDirectory() as root:
            encoded, decoded = Path(root, "encoded"), Path(root, "decoded")
            run = lambda *arguments: subprocess.run([os.environ["AMN"], *arguments], check=True, stdout=subprocess.DEVNULL)
            run("forget", sys.argv[1], "--to", scheme, *options, "-o", encoded)
            run("remember", encoded, "-o", decoded)
            found, wanted = (of_mlx if scheme.startswith("mlx") else of_transformers)(encoded), tensors(decoded)
            same = [torch.equal(found[name].float(), value.float()) for name, value in wanted.items() if name in found]
            print(f"{scheme} {' '.join(options)}: {sum(same)} of {len(same)} equal, {len(wanted)} in all")

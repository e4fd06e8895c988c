"""The commands that run over tests/data as it is."""

import itertools
import os
import sys
from collections import Counter

from command import Command, crc, turns
from inputs import DATA, Inputs

# Inputs on which options are tried: all containers, single files and directories with and without shards, schemes of every
# way to store codes, models with experts, image towers and tokenizers of both kinds.
REPRESENTATIVE = """
    adapters/base awq/g128_quant_config bnb/fp4_double_quant cast/input.safetensors
    compressed_tensors/mixed_precision/model dcp/four deepspeed/stage1 demo/arrays.npz demo/checkpoint.pth demo/model-fp8.safetensors
    demo/model-q4_k.gguf fp8/block_128 gguf-files/split-header-00001-of-00003.gguf gguf/q6_k/model.gguf gptq/b4_v1_sym
    guide/TinyLlama llamafile/q8_0.llamafile mlx/b4_g64_bf16/model modelopt/tiny_llama_nvfp4/model mxfp4/tiny_gpt_oss/model
    npz/no_tensors_among.npz pth/refused_namespace.pt pth/state_dict.pth towers/gemma3/hf uqff/random whole/gemma3/hf whole/gpt_oss/hf
    whole/llama/canonical.gguf whole/llama/hf whole/qwen3_moe/hf
""".split()

# Of these every scheme is made in the default run. The others have no weights that a scheme takes, or are like these.
ENCODED = """
    bnb_encode/input.safetensors cast/input.safetensors fp8/block_128 guide/TinyLlama mxfp4/tiny_gpt_oss/model whole/llama/hf
    whole/qwen3_moe/hf
""".split()

CONTAINERS = ["safetensors", "gguf", "npz", "qnat"]
DTYPES = ["bf16", "f16", "f32"]
GGML_TYPES = """f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s
    iq4_nl iq4_xs tq1_0 tq2_0 mxfp4 nvfp4""".split()
SCALE_RULES = "compressed-tensors modelopt floor ceil even rceil ggml other".split()
LIMITS = [
    "--max-single-alloc 4KB", "--max-total-bytes 64KB", "--max-item-count 3", "--max-decompression-ratio 2",
    "--max-decompressed-bytes 1KB", "--allow-opaque argparse.Namespace",
]
VERBS = "parse ls show scan inspect remember forget convert merge diff check completions man".split()
SHELLS = "bash elvish fish powershell zsh".split()


class Plan:
    """All commands on inputs as they are, each once."""

    def __init__(self, schemes, is_full):
        self.inputs = Inputs()
        self.schemes = schemes
        self.is_full = is_full
        self.commands = {}

    def add(self, *steps, copies=(), files=()):
        command = Command(*steps, copies=copies, files=files)
        self.commands.setdefault(str(command), command)

    def turns(self, path, of, count, salt=""):
        """`count` of the items, which ones follows from the path; all of them in a full run."""
        return of if self.is_full else turns(of, count, salt + path)

    def make(self):
        self.texts()
        for path in REPRESENTATIVE + ENCODED:
            if path not in self.inputs.existing:
                sys.exit(f"{path}: listed as an input, and not there")
        for path in dict.fromkeys(self.inputs.main + REPRESENTATIVE):
            self.look(path)
            self.decode(path)
            self.encode(path)
            self.options(path)
        for path in self.inputs.parts:
            self.part(path)
        for path in self.inputs.goldens + self.inputs.others:
            if self.is_full or crc(path) % 8 == 0:
                self.add(f"inspect ../data/{path}", f"check --data ../data/{path}", f"scan -v ../data/{path}", f"remember ../data/{path} -o out")
        self.against_goldens()
        self.merges()
        self.families()
        self.damaged()
        self.named_models()
        self.tokenizers()
        return list(self.commands.values())

    def texts(self):
        """What depends on no input: help, manual pages, completions, and mistakes in arguments."""
        self.add("")
        for step in ["--help", "-h", "--version", "-V", "help", "forget --list", "man", "man nothing", "completions tcsh", "nothing"]:
            self.add(step)
        for verb in VERBS:
            for step in [f"{verb} --help", f"{verb} -h", f"help {verb}", f"man {verb}", verb, f"{verb} --nothing", f"{verb} nothing"]:
                self.add(step)
        for alias in ["list", "info", "dequantize", "quantize"]:
            self.add(f"{alias} --help")
        for shell in SHELLS:
            self.add(f"completions {shell}")
        for name in ["", "bf17", "q4", "gguf:", "gguf:q9", "int7", "NF4", "bnb_nf4", "nf44"]:
            for verb in ["remember", "forget", "convert", "merge"]:
                self.add([verb, "x", "--to", name])
        for mistake in ["-j 0", "--part 0/2", "--part 3/2", "--part-index 2/2", "--rename x", "--max-shard-size 1.5", "--max-shard-size 0",
                        "--max-shard-size 5XB", "--gguf-kv x", "--out-dtype i8", "--tensor-type x", "--allow-opaque x", "--progress sometimes",
                        "--saturate", "--part 1/2 --part-index 1/2", "--mmproj --tensors-only", "--include [ -o out", "--rename-file none",
                        "--gguf-metadata none", "--include re:( -o out"]:
            for verb in ["remember", "forget --to nf4", "convert --to gguf", "merge"]:
                self.add(f"{verb} ../data/demo/model-fp8.safetensors {mistake}")
        self.add("diff a b --tolerance -1")
        self.add("remember nothing.safetensors")

    def look(self, path):
        x = f"../data/{path}"
        self.add(f"inspect {x} --json")
        every = ["inspect", "inspect -v", "inspect --globals", "inspect --globals --json", "parse", "parse --json", "parse -v", "ls --meta", "ls --json --meta", "show", "show --json --stored",
                 "check --data", "check --json", "scan --json"]
        for step in self.turns(path, every, 2, "look"):
            self.add(f"{step} {x}")

    def decode(self, path):
        x = f"../data/{path}"
        self.add(f"remember {x} -o out")
        self.add(f"remember {x} -o out.safetensors --to f32 --json --sha256")
        self.add(f"remember {x} -o out --to f16 --cast --saturate -v -j1")

    def encode(self, path):
        """Schemes and containers."""
        x = f"../data/{path}"
        count = len(self.schemes) if path in ENCODED else 3
        is_whole = path.startswith(("whole", "guide", "towers", "tokenizer_hf"))
        for scheme in self.turns(path, self.schemes, count, "scheme"):
            # What has no config is no model that these programs would load.
            alone = " --tensors-only" if scheme.startswith(("gguf:", "mlx")) and not is_whole else ""
            self.add(f"forget {x} --to {scheme} -o out{alone}")
        every = [f"convert {x} --to {container} -o out" for container in CONTAINERS]
        every += [f"convert {x} --to {container} -o out.{container} --out-dtype {dtype}" for container in CONTAINERS for dtype in DTYPES]
        every += [f"convert {x} --to gguf:{kind} -o out.gguf --allow-requantize" for kind in GGML_TYPES]
        if is_whole:
            self.add(f"convert {x} --to gguf -o out.gguf")
        for step in self.turns(path, every, len(every) if path in ENCODED else 1, "container"):
            self.add(step)

    def options(self, path):
        """Every option of every command that reads a model: half of them on each representative input, two on others."""
        every = self.reading(path) + self.writing(path)
        for steps, rest in self.turns(path, every, len(every) // 2 if path in REPRESENTATIVE else 2, "option"):
            self.add(*steps, **rest)

    def reading(self, path):
        x = f"../data/{path}"
        steps = [f"parse {x} {o}" for o in ["", "--json", "-v", "-q", "--root state_dict", "--prefix model"]]
        steps += [f"ls {x} {o}" for o in [
            "'*weight' -v", "re:.*norm 'lm_head*'", "--include '*.0.*'", "--exclude '*weight*' --json", "--sort size", "--sort name --json",
            "--sort dtype", "--tree", "--tree --depth 2", "--tree --depth 1 --sort size '*weight*'", "--meta --json", "-q", "--root model",
            "[ --sort name",
        ]]
        steps += [f"list {x}", f"info {x} --globals -v", f"inspect {x} --root state_dict -q", f"inspect {x} --json"]
        steps += [f"show {x} {o}" for o in [
            "'*weight[0, :4]'", "'*[:2]' --stored", "--slice '[0]'", "--slice '[-1:]' --json", "--slice '[::2]' '*norm*'", "--bins 3 '*weight'",
            "--bins 0 --json", "--stored --json", "--csv", "--csv --stored", "'*q_proj*' --csv", "'*0*' --npy out.npy",
            "'*norm.weight' --npy out.npy --slice '[:3]'", "-j1 -v", "-q --root model", "--progress json --json", "--progress never nothing",
        ]]
        steps += [(f"show {x} --npy out.npy", f"show {x} --npy out.npy", f"show {x} --npy out.npy -f --stored")]
        steps += [f"scan {x} {o}" for o in ["", "--json", "-v", "-q"]]
        steps += [f"check {x} {o}" for o in ["", "-v", "-q", "--data -j1", "-r --json", "--progress json --data", "--manifest none"]]
        steps += [f"diff {x} {x} {o}" for o in ["", "--json --to bf16", "--values-only -v", "-q -j1 --include '*weight*'", "--exclude '*weight*'",
                                                "--progress json --tolerance 1e-6"]]
        steps += [f"{verb} {x} {limit}" for verb in ["parse", "ls", "show", "scan", "inspect", "check"] for limit in LIMITS]
        steps += [f"diff {x} {x} {limit}" for limit in LIMITS]
        return [((s,) if isinstance(s, str) else s, {}) for s in steps]

    def writing(self, path):
        x, name = f"../data/{path}", os.path.basename(path)
        out = []
        for verb, to in [("remember", "bf16"), ("forget", "nf4"), ("forget", "gguf:q4_k_m"), ("convert", "safetensors"), ("convert", "gguf")]:
            out += self.running(f"{verb} {x} --to {to}", name, path)
        add = lambda *steps, **rest: out.append((steps, rest))
        for option in ["--cast", "--cast --saturate", "--cast --to f16", "--cast --to f32"]:
            add(f"remember {x} -o out {option}")
            add(f"convert {x} --to gguf -o out {option.replace('--to', '--out-dtype')}")
        for part in ["--part", "--part-index"]:
            first = 1 if part == "--part" else 0
            for verb in ["remember", "forget --to fp8-block", "convert --to safetensors"]:
                steps = [f"{verb} {x} -o out {part} {i + first}/2" for i in range(2)]
                add(*steps, "remember out --finish")
                add(steps[1], steps[1], "remember out --finish", f"{verb} {x} -o out --resume", steps[0] + " --json", "remember out --finish --sha256")
        # A directory without its last file is what a run that was stopped leaves.
        add(f"remember {x} -o out --resume -v -j1", f"remember {x} -o out --resume")
        add(f"remember {x} {x} -o out", f"remember {x} ../data/demo/model-fp8.safetensors -o out --json")
        add(f"forget {x} ../data/demo/model-q4_k.gguf nothing --to int8 -o out -v -j1")
        add(f"convert {x} ../data/demo/arrays.npz --to npz -o out")
        add(f"dequantize {x} --to f32 -o out")
        add(f"quantize {x} --scheme fp8 -o out")
        add(f"remember {x} -o out", f"diff {x} out --to bf16 --values-only", f"diff {x} out --json", f"check out --data")
        add(f"remember {x} -o out --manifest SUMS", "check out --manifest SUMS", "check out.safetensors --manifest SUMS --json")
        for option in ["--out-dtype f16", "--out-dtype bf16 --group-size 64", "--group-size 32", "--group-size 7", f"--like {x}",
                       "--like ../data/fp8/block_128", "--pure", "--include '*proj*' --exclude '*down*'"]:
            for scheme in ["nf4", "w4a16", "mlx-4bit", "gguf:q4_k_m"]:
                add(f"forget {x} --to {scheme} -o out {option}")
        for rule in SCALE_RULES:
            for scheme in ["mxfp4", "mxfp8", "mxfp4-modelopt", "int8"]:
                add(f"forget {x} --to {scheme} -o out --scale-rule {rule}")
        for imatrix in ["legacy.dat", "matrix.gguf", "legacy_cut.dat", "legacy_bare.dat", "matrix_big.gguf", "expected.json"]:
            for kind in ["iq2_xxs", "q4_k_s"]:
                add(f"forget {x} --to gguf:{kind} -o out.gguf --imatrix ../data/imatrix/{imatrix}")
        for option in ["--tensor-type '*down*=q6_k' --tensor-type '*=q8_0'", "--tensor-type '*=mxfp4'", "--token-embedding-type q8_0",
                       "--output-tensor-type q6_k", "--allow-requantize", "--token-embedding-type iq2_s --output-tensor-type f16 --allow-requantize"]:
            add(f"forget {x} --to gguf:q4_0 -o out.gguf {option}")
            add(f"convert {x} --to gguf:q5_k_m -o out.gguf {option}")
            add(f"convert {x} --to gguf -o out.gguf {option}")
        adapter = "../data/adapters/plain"
        add(f"merge {x} {adapter} -o out")
        return out

    @staticmethod
    def running(command, name, path):
        """The options that all commands share that write a model."""
        out = [((f"{command} -o out {option}",), {}) for option in [
            "--force", "--sha256", "--manifest SUMS", "--max-shard-size 4KB", "--max-shard-size 40KB --json", "--tensors-only",
            "--mmproj", "--gguf-kv general.name=x --gguf-kv a.b:u8=3 --gguf-kv general.architecture=null", "--tokenizer-pre llama-bpe",
            "--tokenizer-pre other", "--include '*.0.*'", "--exclude '*weight*'", "--drop '*norm*' --drop 're:.*bias'", "--rename 'model.*=$1'",
            "--rename 're:layers\\.(\\d+)=blk.$1' --rename '*=x'", "--skip-unsupported", "--strict", "-j1 -v", "-j 3", "--uncached", "--dry-run",
            "--dry-run --json", "--resume", "-q", "--progress always", "--progress json", "--progress never", "--root model", "--prefix state_dict",
            "--json", *LIMITS,
        ]]
        add = lambda *steps, **rest: out.append((steps, rest))
        add(f"{command} -o -")
        add(f"{command} -o out", f"{command} -o out", f"{command} -o out -f --max-shard-size 8KB", f"{command} -o out -f")
        add(f"{command} -o out --rename-file names", files=[("names", "model.*=$1\nlm_head.weight=output.weight\n")])
        add(f"{command} -o out --rename-file names.json", files=[("names.json", '{"lm_head.*": "output.*"}')])
        add(f"{command} -o out --gguf-metadata kv.json", files=[
            ("kv.json", '{"general.name": "n", "x.y": {"type": "u8", "value": 3}, "general.file_type": null, "a": [1, 2]}')])
        # The output's own name, beside the input.
        add(command.replace(f"../data/{path}", name), copies=[(f"../data/{path}", name)])
        return out

    def part(self, path):
        """A file of a directory by itself, or a directory with more than a model."""
        x = f"../data/{path}"
        every = [f"inspect {x} --json", f"ls {x} --json", f"parse {x}", f"show {x} --stored --bins 0", f"check {x} --data", f"scan -v {x}"]
        every += [f"forget {x} --to {scheme} -o out" for scheme in self.turns(path, self.schemes, 2, "part")]
        for step in self.turns(path, every, 1, "part"):
            self.add(step)
        self.add(f"remember {x} -o out")

    def against_goldens(self):
        """Models and what they decode to."""
        for golden in self.inputs.goldens:
            directory, name = os.path.split(golden)
            beside = [p for p in self.inputs.main if p == directory or p == f"{directory}/model" or os.path.dirname(p) == directory
                      and os.path.basename(p).split(".")[0] == name.split(".")[0]]
            dtype = next((d for d in DTYPES if d in name), "f32")
            for path in beside[:1]:
                self.add(f"diff ../data/{path} ../data/{golden} --to {dtype}")
                for option in self.turns(golden, ["--values-only", "--json", "--tolerance 0.5 --values-only -v -j1"], 1):
                    self.add(f"diff ../data/{golden} ../data/{path} --to {dtype} {option}")
        for path in self.inputs.directories:
            canonical = os.path.join(os.path.dirname(path), "canonical.gguf")
            if canonical in self.inputs.existing:
                self.add(f"diff ../data/{path} ../data/{canonical}")
                self.add(f"convert ../data/{path} --to gguf -o out.gguf", f"diff out.gguf ../data/{canonical} --json")
                self.add(f"convert ../data/{canonical} --to safetensors -o out", f"diff out ../data/{path}")
                self.add(f"convert ../data/{path} --to gguf -o out.gguf --mmproj", f"forget ../data/{path} --to gguf:q8_0 -o mmproj.gguf --mmproj")

    def merges(self):
        """Adapters, with every base of their family."""
        common = [f"-o out {o}" for o in [
            "", "--to f32", "--to f16 --cast", "--to gguf", "--to gguf:q8_0", "--to nf4", "--cast --saturate --to bf16", "--json", "-v -j1",
            "--dry-run", "--sha256", "--manifest SUMS", "--max-shard-size 8KB", "--tensors-only", "--mmproj", "--gguf-kv general.name=x --to gguf",
            "--gguf-metadata none --to gguf", "--tokenizer-pre llama-bpe --to gguf", "--include '*q_proj*'", "--exclude '*q_proj*'",
            "--drop '*norm*'", "--rename 'model.*=$1'", "--rename-file none", "--skip-unsupported", "--strict", "-j 2", "--uncached", "--resume",
            "--part 1/2", "--part-index 1/2", "-q", "--progress json", "--force", *LIMITS]]
        for family in ["adapters", "adapters_tied"]:
            below = [p for p in self.inputs.main if p.startswith(family + "/")]
            bases = [p for p in below if "/base" in p]
            adapters = sorted(str(p.parent.relative_to(DATA)) for p in DATA.glob(f"{family}/*/adapter_config.json"))
            adapters += [p for p in below if p.endswith(".gguf") and "/base" not in p]
            for base, adapter in itertools.product(bases, adapters):
                pair = f"merge ../data/{base} ../data/{adapter}"
                self.add(f"{pair} -o out --to f32")
                for option in self.turns(pair, common, 1):
                    self.add(f"{pair} {option}")
            for base in bases:
                for option in common:
                    self.add(f"merge ../data/{base} ../data/{adapters[0]} {option}")
                self.add(f"merge ../data/{base} ../data/{adapters[0]}=0.5 ../data/{adapters[-1]}=-2 -o out --to f32")
                self.add(f"merge ../data/{base} ../data/{adapters[0]} -o -")
                self.add(f"diff ../data/{base} ../data/{bases[0]} --json")

    def families(self):
        """Whole directories, with all that is below them."""
        for family in self.inputs.families:
            self.add(f"scan ../data/{family} -v")
            self.add(f"check -r ../data/{family}")
        self.add("scan ../data --json")

    def damaged(self):
        """Files that are cut, or have changed bytes in their first part, where headers are."""
        seen = Counter()
        for path in self.inputs.files:
            kind = (path.split("/")[0], path.rsplit(".", 1)[-1])
            seen[kind] += 1
            if seen[kind] > (10**6 if self.is_full else 2):
                continue
            # A directory's config says what the codes mean, so the file stays in a copy of it.
            directory, name = os.path.split(path)
            alone = directory not in self.inputs.directories
            for how in ["cut-8", "cut-200", "cut-half", "cut-1", "flip-1", "flip-2", "flip-3", "flip-4", "flip-last"]:
                source = f"{path}#{how}"
                copies = [(f"../data/{source}", name)] if alone else [(f"../data/{directory}", "model"), (f"../data/{source}", f"model/{name}")]
                x = name if alone else "model"
                self.add(f"inspect {x}", f"check {x} --data", f"remember {x} -o out --to f32", f"scan -v {x}", copies=copies)

    def named_models(self):
        """Models by name, in the stores of other programs."""
        names = ["ollama:layers", "ollama:layers:latest", "ollama:other", "ollama:layers:other", "org/model", "org/other", "hf.co/org/model"]
        for name in names:
            for step in ["inspect", "ls", "check --data", "remember -o out", "convert --to safetensors -o out", "forget --to gguf:q4_0 -o out.gguf",
                         "forget --to nf4 -o out", "remember", "show", "scan"]:
                verb, *rest = step.split(" ", 1)
                self.add(f"{verb} {name} {''.join(rest)}")

    def tokenizers(self):
        """A model with each tokenizer, to GGUF."""
        base = "../data/whole/llama/hf"
        for path in self.inputs.tokenizers:
            copies = [(base, "model"), (f"../data/{path}", "model")]
            self.add("convert model --to gguf -o out.gguf", "inspect model", "ls out.gguf --meta --json", copies=copies)

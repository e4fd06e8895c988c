"""Commands on mutants: models of tests/data with one fault or two. Faults show which refusals a change has lost, and which model it now
reads otherwise; pairs of faults show in which order it refuses.

A mutant is a directory with links to the model's files, so that only what is changed is written.
"""

import json
import os
import random
import re
import struct
from collections import defaultdict
from dataclasses import dataclass, field

from command import Command, crc, turns
from containers import Gguf, Safetensors
from faults import WRONG, fields, gguf_tensor_faults, json_fault, key_faults, kind_of, safetensors_faults
from inputs import DATA, GOLDEN, Inputs

# Objects with more fields than this are maps, e.g. vocabularies, of which few are tried. In some files most are.
MOST_FIELDS = 48
MAPS = {"tokenizer.json": 8, ".index.json": 4, "index.json.meta.json": 4}

# Words of other models that a text becomes, and fields of other models that a config gets, by turns.
WORDS, FOREIGN_FIELDS = 3, 12

PAIRS = 2000

# Where a command may have a number of threads, which it has for one mutant in four.
THREADED = ("convert", "remember", "forget", "merge", "check")
THREADS = [" -j1", " -j8"] + [""] * 6


@dataclass
class Kind:
    """Models that are tried in one way. Of the faults of a place some are tried, and which ones goes by turns."""

    paths: str
    # Every mutant takes these steps, and one of the turns.
    steps: list
    turns: list = field(default_factory=lambda: [""])
    # The faults of each field of a config, or of a config's quantization if `of_quantization`; of each key; of each tensor.
    fields: int = 3
    tensors: int = 3
    of_quantization: bool = False
    # What tensors have in common of which one is tried at a time: all but numbers, or the last part of the name.
    role: str = r"(.*)"


ALL = 100

KINDS = [
    Kind(
        r"(whole.*|towers)/.*\.gguf",
        ["convert MODEL --to safetensors -o out"],
        ["convert MODEL --to safetensors -o out --tensors-only", "inspect MODEL --json", "convert MODEL --to gguf -o out.gguf",
         "forget MODEL --to gguf:q4_0 -o out.gguf --allow-requantize", "forget MODEL --to mlx-4bit -o out", "remember MODEL -o out"] + [""] * 6,
        fields=2, tensors=2,
    ),
    Kind(r".*\.gguf", ["inspect MODEL --json", "remember MODEL -o out"], fields=1, tensors=2),
    Kind(r"adapters.*", ["merge BASE MODEL -o out"], ["merge BASE MODEL -o out --to f32", "inspect MODEL --json"] + [""] * 4,
         fields=1, tensors=2),
    Kind(
        r"(whole|whole_prediction|guide)/.*",
        ["convert MODEL --to gguf -o out.gguf"],
        ["convert MODEL --to gguf -o out.gguf --tensors-only", "inspect MODEL --json", "forget MODEL --to mlx-4bit -o out",
         "forget MODEL --to gguf:q8_0 -o out.gguf", "remember MODEL -o out --to f32", "convert MODEL --to gguf -o out.gguf --mmproj",
         "forget MODEL --to nf4 -o out"] + [""] * 14,
        fields=ALL, tensors=3,
    ),
    Kind(
        r"towers/.*|mlx_towers/.*",
        ["convert MODEL --to gguf -o out.gguf --mmproj"],
        ["convert MODEL --to gguf -o out.gguf", "convert MODEL --to gguf -o out.gguf --mmproj --tensors-only", "inspect MODEL --json",
         "forget MODEL --to mlx-4bit -o out", "forget MODEL --to gguf:q8_0 -o out.gguf --mmproj"] + [""] * 5,
        fields=4, tensors=2,
    ),
    Kind(
        r".*",
        ["remember MODEL -o out"],
        ["check MODEL --data", "remember MODEL -o out.safetensors --to f16", "convert MODEL --to gguf -o out.gguf --tensors-only"]
        + ["inspect MODEL --json"] * 6 + [""] * 3,
        fields=1, tensors=3, of_quantization=True, role=r".*\.(.*)|(.*)",
    ),
]

# Faults of other fields: in files that say little about weights, beside the quantization in a config, elements of lists, and these,
# by which no weight is read otherwise.
OTHERS = 1
IDLE = """
    attention_dropout attention_probs_dropout_prob classifier_dropout hidden_dropout hidden_dropout_prob initializer_range
    output_router_logits pretraining_tp router_aux_loss_coef transformers_version use_cache
""".split()

# These have the same header as the file beside them.
SAME = re.compile(r"towers/.*/f(16|32)\.gguf$")

# Where a config says how weights are quantized.
QUANTIZATION = re.compile(r"quant|compression|bits|group_size|^modules_to_not|_dtype$|sdnq|torchao", re.IGNORECASE)


@dataclass
class Model:
    """A model of tests/data: its files by the name that they have in the mutant, and what it is called in commands."""

    path: str
    files: dict
    name: str
    base: str = ""


def models(inputs):
    """Every model of which mutants are made."""
    for directory in sorted({os.path.dirname(f) for f in inputs.files if "/" in f} | set(inputs.directories)):
        inside = sorted(p for p in (DATA / directory).iterdir() if p.is_file() and not GOLDEN.search(str(p.relative_to(DATA))))
        names = {p.name for p in inside}
        weights = [n for n in names if n.endswith(".safetensors")]
        if weights and (names & {"config.json", "model.safetensors", "adapter_config.json"} or len(weights) > 1 and "index.json" in " ".join(names)):
            yield Model(directory, {f"model/{p.name}": f"{directory}/{p.name}" for p in inside}, "model", base_of(directory))
        else:
            for name in sorted(weights):
                yield Model(f"{directory}/{name}", {name: f"{directory}/{name}"}, name)
    for path in sorted(f for f in inputs.files if f.endswith(".gguf") and not SAME.search(f)):
        name = os.path.basename(path)
        yield Model(path, {name: path}, name, base_of(path))


def base_of(path):
    """What an adapter is merged with."""
    return "../data/adapters_tied/base" if path.startswith("adapters_tied/") else "../data/adapters/base"


class Mutants:
    """All commands on mutants."""

    def __init__(self):
        self.inputs = Inputs()
        self.models = list(models(self.inputs))
        # The words and the fields that a place has in any config, by the last part of its name.
        self.words, self.foreign = defaultdict(set), {}
        for model in self.models:
            for file in model.files:
                self.learn(model, file)

    def learn(self, model, file):
        if file.endswith(".gguf") and (gguf := self.gguf(model, file)):
            for key, (_, inside) in gguf.metadata.items():
                if isinstance(inside, str):
                    self.words[key].add(inside)
        value = self.json(model, file)
        # Words of vocabularies, and names of tensors, are no words of a field.
        if value is None or os.path.basename(file) in ("tokenizer.json", "vocab.json") or file.endswith(".index.json"):
            return
        for place, inside in fields(value, MOST_FIELDS):
            if isinstance(inside, str):
                self.words[place[-1]].add(inside)
            if isinstance(place[-1], str) and inside is not None and os.path.basename(file) == "config.json":
                self.foreign.setdefault(place, inside)

    def json(self, model, file):
        if not file.endswith(".json"):
            return None
        try:
            value = json.loads((DATA / model.files[file]).read_bytes())
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    @staticmethod
    def gguf(model, file):
        """A GGUF file, of which the data may be missing, or none if it is one with other numbers or in another byte order."""
        path = DATA / model.files[file]
        try:
            return Gguf(path.read_bytes() if path.exists() else path.with_suffix(".sums").read_bytes().split(b"\n", 1)[1])
        except (struct.error, KeyError):
            return None

    def make(self):
        """The commands, each once."""
        commands = {}
        by_model = []
        for model in self.models:
            kind = next(k for k in KINDS if re.fullmatch(k.paths, model.path))
            single = list(self.faults(model, kind))
            by_model.append((model, kind, single))
            for fault in single:
                self.add(commands, model, kind, [fault])
        whole = [row for row in by_model if len(row[2]) > 1]
        for i in range(PAIRS):
            model, kind, single = whole[i % len(whole)]
            draw = random.Random(f"{model.path} {i}")
            pair = draw.sample(single, 2)
            if pair[0].place != pair[1].place:
                self.add(commands, model, kind, pair)
        return list(commands.values())

    @staticmethod
    def add(commands, model, kind, faults):
        salt = crc(model.path + "".join(map(str, faults)))
        steps = [*kind.steps, kind.turns[salt % len(kind.turns)]]
        threads = THREADS[salt // 64 % len(THREADS)]
        steps = [step.replace("MODEL", model.name).replace("BASE", model.base) for step in steps if step]
        steps = [step + threads if step.startswith(THREADED) else step for step in steps]
        command = Command(*steps, model=model, faults=faults)
        commands.setdefault(str(command), command)

    def faults(self, model, kind):
        for file in model.files:
            if file.endswith(".json") and (value := self.json(model, file)) is not None:
                yield from self.of_json(model, kind, file, value)
            elif file.endswith(".safetensors"):
                yield from self.of_safetensors(model, kind, file)
            elif file.endswith(".gguf"):
                yield from self.of_gguf(model, kind, file)

    def of_json(self, model, kind, file, value):
        is_config = os.path.basename(file) in ("config.json", "adapter_config.json")
        for place, inside in self.places(model, kind, file, value):
            is_said = is_config and not kind.of_quantization or any(QUANTIZATION.search(str(part)) for part in (file, *place))
            is_idle = place[-1] in IDLE or isinstance(place[-1], int)
            wrong = WRONG[kind_of(inside)](inside)
            if isinstance(inside, str):
                wrong += turns(sorted(self.words[place[-1]] - {inside}), WORDS, model.path + str(place))
            for new in turns(wrong, kind.fields if is_said and not is_idle else OTHERS, f"{model.path} {file} {place}"):
                yield json_fault(file, place, new)
        if is_config and kind.fields == ALL:
            others = [(place, inside) for place, inside in self.foreign.items() if self.fits(value, place)]
            for place, inside in turns(others, FOREIGN_FIELDS, model.path + "foreign"):
                yield json_fault(file, place, inside)

    @staticmethod
    def places(model, kind, file, value):
        """Fields, and of a scheme's config one of those at a time that have the last two parts of their names in common."""
        found = list(fields(value, next((most for end, most in MAPS.items() if file.endswith(end)), MOST_FIELDS)))
        if not kind.of_quantization:
            return found
        roles = defaultdict(list)
        for place, inside in found:
            roles[tuple(re.sub(r"\d+", "N", str(part)) for part in place[-2:])].append((place, inside))
        return [of[crc(f"{model.path} {role}") % len(of)] for role, of in roles.items()]

    @staticmethod
    def fits(value, place):
        """Whether a config lacks a field, and has what it would be in."""
        for key in place[:-1]:
            value = value.get(key) if isinstance(value, dict) else None
        return isinstance(value, dict) and place[-1] not in value

    def of_safetensors(self, model, kind, file):
        try:
            tensors = Safetensors((DATA / model.files[file]).read_bytes()).tensors
        except (ValueError, KeyError, TypeError, AttributeError):
            # A hostile file.
            return
        index = next((f for f in model.files if f.endswith(".safetensors.index.json")), None)
        for names in by_role(tensors, kind.role):
            of_role = [list(safetensors_faults(file, n, *tensors[n][:2], index)) for n in names]
            yield from self.of_tensors(of_role, kind, model.path + names[0])

    def of_gguf(self, model, kind, file):
        gguf = self.gguf(model, file)
        if gguf is None:
            return
        for key, (type_, value) in gguf.metadata.items():
            words = turns(sorted(self.words[key] - {value}), WORDS, model.path + key) if isinstance(value, str) else []
            yield from turns(list(key_faults(file, key, type_, value, words)), kind.fields, model.path + key)
        for names in by_role(gguf.tensors, kind.role):
            of_role = [list(gguf_tensor_faults(file, n, *gguf.tensors[n][:2])) for n in names]
            yield from self.of_tensors(of_role, kind, model.path + names[0])

    @staticmethod
    def of_tensors(of_role, kind, salt):
        """Each fault of one of the tensors that differ in numbers alone, and which one goes by turns."""
        by_turns = [of_role[crc(f"{salt} {i}") % len(of_role)][i] for i in range(min(map(len, of_role)))]
        return turns(by_turns, kind.tensors, salt)


def by_role(tensors, role):
    """The names of tensors, those together that have the same part `role` but for numbers."""
    roles = defaultdict(list)
    for name in tensors:
        common = re.fullmatch(role, name, re.DOTALL)
        roles[re.sub(r"\d+", "N", common[common.lastindex])].append(name)
    return roles.values()

"""Commands on mutants: models of tests/data with one fault or two. Faults show which refusals a change has lost, and which model it now
reads otherwise; pairs of faults show in which order it refuses.

A mutant is a directory with links to the model's files, so that only what is changed is written.
"""

import os
import random
import re
import zipfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from archives import archive_faults
from command import Command, crc, turns
from containers import TEXT
from faults import WRONG, fields, foreign_key, gguf_tensor_faults, json_fault, key_faults, kind_of, safetensors_faults
from inputs import DATA, Inputs
from models import by_role, models
from words import Source, keys_of_llama_cpp

# Members, fields and opcodes of an archive in which faults are tried.
MOST_PLACES = 40

# Objects with more fields than this are maps, e.g. vocabularies, of which few are tried. In some files most are.
MOST_FIELDS = 48
MAPS = {"tokenizer.json": 8, ".index.json": 4, "index.json.meta.json": 4}

# By turns: words that a text becomes, which other models have in the field, and which stand in a list with these in the program's source;
# fields and keys that a model gets, of other models, and named in the source with each of these values.
WORDS, LISTED, FOREIGN, NAMED = 3, 8, 12, 24
NAMED_VALUES = [2, True, "unknown"]

# Pairs of faults that are refused each by itself, if all mutants are tried, and how many are drawn for each: the one of these is
# taken of which the checks met least often so far.
PAIRS, DRAWS = 4000, 30

# Where a command may have a number of threads, which it has for one mutant in four.
THREADED = ("convert", "remember", "forget", "merge", "check")
THREADS = [" -j1", " -j8"] + [""] * 6


@dataclass
class Kind:
    """Models that are tried in one way. Of the faults of a place some are tried, and which ones goes by turns."""

    paths: str
    # Every mutant takes these steps, and one of `every` takes one of the turns too.
    steps: list
    turns: list = field(default_factory=list)
    every: int = 5
    # The faults of each field of a config, or of a config's quantization if `of_quantization`; of each key; of each tensor.
    fields: int = 3
    tensors: int = 3
    of_quantization: bool = False
    # Whether models get keys of others.
    foreign: bool = False
    # What tensors have in common of which one is tried at a time: all but numbers, or the last part of the name.
    role: str = r"(.*)"


ALL = 100

KINDS = [
    Kind(
        r"(whole.*|towers)/.*\.gguf",
        ["convert MODEL --to safetensors -o out"],
        ["convert MODEL --to safetensors -o out --tensors-only", "inspect MODEL --json", "convert MODEL --to gguf -o out.gguf",
         "forget MODEL --to gguf:q4_0 -o out.gguf --allow-requantize", "forget MODEL --to mlx-4bit -o out", "remember MODEL -o out"],
        fields=2, tensors=2, foreign=True,
    ),
    Kind(r".*\.gguf", ["inspect MODEL --json", "remember MODEL -o out"], fields=1, tensors=2),
    Kind(
        r".*\.(npz|pth|pt|ckpt|bin)",
        ["remember MODEL -o out"],
        ["inspect MODEL --json", "check MODEL --data", "convert MODEL --to safetensors -o out", "ls MODEL --json"],
        every=2,
    ),
    Kind(r"adapters.*", ["merge BASE MODEL -o out"], ["merge BASE MODEL -o out --to f32", "inspect MODEL --json"],
         fields=1, tensors=2),
    Kind(
        r"(whole|whole_prediction|guide)/.*",
        ["convert MODEL --to gguf -o out.gguf"],
        ["convert MODEL --to gguf -o out.gguf --tensors-only", "inspect MODEL --json", "forget MODEL --to mlx-4bit -o out",
         "forget MODEL --to gguf:q8_0 -o out.gguf", "remember MODEL -o out --to f32", "convert MODEL --to gguf -o out.gguf --mmproj",
         "forget MODEL --to nf4 -o out"],
        fields=ALL, tensors=3,
    ),
    Kind(
        r"towers/.*|mlx_towers/.*",
        ["convert MODEL --to gguf -o out.gguf --mmproj"],
        ["convert MODEL --to gguf -o out.gguf", "convert MODEL --to gguf -o out.gguf --mmproj --tensors-only", "inspect MODEL --json",
         "forget MODEL --to mlx-4bit -o out", "forget MODEL --to gguf:q8_0 -o out.gguf --mmproj"],
        fields=4, tensors=2,
    ),
    Kind(
        r".*",
        ["remember MODEL -o out"],
        ["check MODEL --data", "remember MODEL -o out.safetensors --to f16", "convert MODEL --to gguf -o out.gguf --tensors-only"]
        + ["inspect MODEL --json"] * 4,
        every=2, fields=1, tensors=2, of_quantization=True, role=r".*\.(.*)|(.*)",
    ),
]

# Faults of other fields: in files that say little about weights, beside the quantization in a config, elements of lists, and these,
# by which no weight is read otherwise.
OTHERS = 1
IDLE = """
    attention_dropout attention_probs_dropout_prob classifier_dropout hidden_dropout hidden_dropout_prob initializer_range
    output_router_logits pretraining_tp router_aux_loss_coef transformers_version use_cache
""".split()

# Of the fields beside the quantization one of as many.
REST = 4

# Where a config says how weights are quantized.
QUANTIZATION = re.compile(r"quant|compression|bits|group_size|^modules_to_not|_dtype$|sdnq|torchao", re.IGNORECASE)


def kind_of_model(model):
    return next(kind for kind in KINDS if re.fullmatch(kind.paths, model.path))


class Mutants:
    """All commands on mutants."""

    def __init__(self):
        self.inputs = Inputs()
        self.models = list(models(self.inputs))
        # The words that a field or a key has in any model, the fields of configs with their place, and the keys without architecture.
        self.words, self.fields, self.keys = defaultdict(set), {}, keys_of_llama_cpp()
        for model in self.models:
            for file in model.files:
                self.learn(model, file)
        self.source = Source()

    def learn(self, model, file):
        if file.endswith(".gguf") and (gguf := model.gguf(file)):
            architecture = str(gguf.metadata.get("general.architecture", (0, ""))[1])
            for key, (kind, inside) in gguf.metadata.items():
                if kind == TEXT:
                    self.words[key].add(inside)
                if key.startswith(architecture + "."):
                    self.keys[key[len(architecture) :]] = (kind, inside)
        value = model.json(file)
        # Words of vocabularies, and names of tensors, are no words of a field.
        if value is None or os.path.basename(file) in ("tokenizer.json", "vocab.json") or file.endswith(".index.json"):
            return
        for place, inside in fields(value, MOST_FIELDS):
            if isinstance(inside, str):
                self.words[place[-1]].add(inside)
            if isinstance(place[-1], str) and inside is not None and os.path.basename(file) == "config.json":
                self.fields.setdefault(place, inside)

    def make(self):
        """The commands on mutants with one fault, each once."""
        commands = {}
        for model in self.models:
            kind = kind_of_model(model)
            for fault in self.faults(model, kind):
                self.add(commands, model, kind, [fault])
        return list(commands.values())

    def pairs(self, refused, count):
        """The commands on mutants with two faults. `refused` has commands on those with one, each with the reason that was given. Both
        faults of a pair are refused by other checks, as far as messages tell, so that a pair shows which check comes first."""
        by_model = defaultdict(lambda: defaultdict(list))
        for command, reason in refused:
            check = re.sub(r"`[^`]*`|\"[^\"]*\"|[0-9]+|\S*/\S*", "_", reason)
            by_model[command.model.path][check].append(command)
        of_models = [by_check for _, by_check in sorted(by_model.items()) if len(by_check) > 1]
        weights = [len(by_check) ** 2 for by_check in of_models]
        commands, tried, draw = {}, Counter(), random.Random(0)
        for by_check in draw.choices(of_models, weights, k=count) if of_models else []:
            checks = [tuple(sorted(draw.sample(sorted(by_check), 2))) for _ in range(DRAWS)]
            checks = min(checks, key=lambda pair: tried[pair])
            tried[checks] += 1
            first, second = (draw.choice(sorted(by_check[check], key=str)) for check in checks)
            pair = [*first.faults, *second.faults]
            if pair[0].place != pair[1].place:
                self.add(commands, first.model, kind_of_model(first.model), pair)
        return list(commands.values())

    @staticmethod
    def add(commands, model, kind, faults):
        salt = crc(model.path + "".join(map(str, faults)))
        steps = list(kind.steps)
        if kind.turns and salt % kind.every == 0:
            steps.append(kind.turns[salt // kind.every % len(kind.turns)])
        threads = THREADS[salt // 1024 % len(THREADS)]
        steps = [step + threads if step.startswith(THREADED) else step for step in steps]
        steps = [[{"MODEL": model.name, "BASE": model.base}.get(word, word) for word in step.split()] for step in steps]
        command = Command(*steps, model=model, faults=faults)
        commands.setdefault(str(command), command)

    def faults(self, model, kind):
        for file in model.files:
            if file.endswith(".json") and (value := model.json(file)) is not None:
                yield from self.of_json(model, kind, file, value)
            elif file.endswith(".safetensors"):
                yield from self.of_safetensors(model, kind, file)
            elif file.endswith(".gguf"):
                yield from self.of_gguf(model, kind, file)
            elif zipfile.is_zipfile(DATA / model.files[file]):
                places = [faults for faults in archive_faults(file, (DATA / model.files[file]).read_bytes()) if faults]
                for faults in turns(places, MOST_PLACES, model.path):
                    yield from turns(faults, OTHERS, f"{model.path} {faults[0]}")

    def of_json(self, model, kind, file, value):
        is_config = os.path.basename(file) in ("config.json", "adapter_config.json")
        for place, inside in self.places(model, kind, file, value):
            is_said = is_config and not kind.of_quantization or any(QUANTIZATION.search(str(part)) for part in (file, *place))
            if kind.of_quantization and not is_said and crc(f"{model.path} {place}") % REST:
                continue
            is_idle = place[-1] in IDLE or isinstance(place[-1], int)
            wrong = WRONG[kind_of(inside)](inside)
            if isinstance(inside, str):
                wrong += self.other_words(place[-1], inside, model)
            for new in turns(wrong, kind.fields if is_said and not is_idle else OTHERS, f"{model.path} {file} {place}"):
                yield json_fault(file, place, new)
        if is_config and kind.fields == ALL:
            others = [(place, inside) for place, inside in self.fields.items() if self.fits(value, place)]
            for place, inside in turns(others, FOREIGN, model.path):
                yield json_fault(file, place, inside)
        for place, inside in [((), value), *fields(value, MOST_FIELDS)] if is_config else []:
            if isinstance(inside, dict) and (place or not kind.of_quantization):
                names = [name for name in self.source.names_for(set(inside)) if name not in inside]
                named = [((*place, name), new) for name in names for new in NAMED_VALUES]
                yield from (json_fault(file, *new) for new in turns(named, NAMED if kind.fields == ALL else NAMED // 8, f"{model.path} {place}"))

    def other_words(self, name, word, model):
        known = self.words[name] - {word}
        beside = set().union(*(self.source.beside.get(w, ()) for w in known | {word})) - known - {word}
        return turns(sorted(known), WORDS, f"{model.path} {name}") + turns(sorted(beside), LISTED, f"{model.path} {name}")

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
        tensors = model.safetensors(file)
        index = next((f for f in model.files if f.endswith(".safetensors.index.json")), None)
        for names in by_role(tensors, kind.role):
            of_role = [list(safetensors_faults(file, n, *tensors[n][:2], index)) for n in names]
            yield from self.of_tensors(of_role, kind, model.path + names[0])

    def of_gguf(self, model, kind, file):
        gguf = model.gguf(file)
        if gguf is None:
            return
        for key, (type_, value) in gguf.metadata.items():
            words = self.other_words(key, value, model) if type_ == TEXT else []
            yield from turns(list(key_faults(file, key, type_, value, words)), kind.fields, model.path + key)
        if kind.foreign:
            architecture = gguf.metadata.get("general.architecture", (0, ""))[1]
            others = [(f"{architecture}{key}", *new) for key, new in self.keys.items() if f"{architecture}{key}" not in gguf.metadata]
            for key, type_, value in turns(others, NAMED, model.path):
                yield foreign_key(file, key, type_, value)
        for names in by_role(gguf.tensors, kind.role):
            of_role = [list(gguf_tensor_faults(file, n, *gguf.tensors[n][:2])) for n in names]
            yield from self.of_tensors(of_role, kind, model.path + names[0])

    @staticmethod
    def of_tensors(of_role, kind, salt):
        """Each fault of one of the tensors that differ in numbers alone, and which one goes by turns."""
        by_turns = []
        for i in range(max(map(len, of_role))):
            having = [faults for faults in of_role if len(faults) > i]
            by_turns.append(having[crc(f"{salt} {i}") % len(having)][i])
        return turns(by_turns, kind.tensors, salt)

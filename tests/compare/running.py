"""Runs a command with two programs, and says what differs."""

import hashlib
import itertools
import os
import queue
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import costs
from command import crc
from inputs import DATA

sys.path.insert(0, str(DATA / "generate"))
import sums  # noqa: E402

# Seconds for one step of a command. One that takes longer differs, even if it takes as long in both programs.
TIMEOUT = 120

# Further runs of the old program after a difference.
RUNS = 8

# Values that no two runs share: times and rates.
VOLATILE = [
    (re.compile(rb'("(?:seconds|gb_per_second)": ?)[-+.0-9eE]+'), rb"\1_"),
    (re.compile(rb"(\[=* *\]) [0-9.]+s"), rb"\1 _s"),
    (re.compile(rb", [0-9.]+ [A-Z]?B/s, .* left"), rb", _ B/s, _ left"),
    (re.compile(rb"(Free space: *|; )[0-9.]+ [A-Z]?B( are free)?"), rb"\1_\2"),
    # Lines between the first and the last come by the clock.
    (re.compile(rb'(?m)^\{"event":"progress".*\n'), rb""),
]

# The directory in which the files of an output lie until all are there.
UNFINISHED = re.compile(r"(^|/)\.[^/]+\.partial(/|$)")


@dataclass
class Compared:
    """Lines that say what differs, the exit codes of the old program, whether its outcome is another in other runs, and the error of
    its first step."""

    differences: list
    codes: list
    varies: bool = False
    reason: str = ""


class Runner:
    """Runs commands in directories of its own, one for each worker."""

    def __init__(self, programs, root, jobs, costs=False, level=None):
        """With `costs`, what a run costs is compared too. With `level`, the second program runs at that level of the CPU."""
        self.programs = programs
        self.with_costs = costs
        self.root = root
        # Where very much differs, it does not vary.
        self.reruns = 100
        self.places = queue.Queue()
        for i in range(jobs):
            self.places.put(root / f"run-{i}")
        self.environment = {
            "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC", "COLUMNS": "100", "NO_COLOR": "1", "HOME": str(root / "home"),
            "TMPDIR": str(root / "tmp"), "OLLAMA_MODELS": str(root / "data/ollama/models"), "HF_HUB_CACHE": str(root / "hub"),
        }
        self.environments = [self.environment, {**self.environment, "ANAMNESIS_LEVEL": level} if level else self.environment]

    def prepare(self, commands):
        for name in ["home", "tmp"]:
            (self.root / name).mkdir()
        # Programs that are wrong must not write to the repository.
        shutil.copytree(DATA, self.root / "data", symlinks=True)
        # Mutants need no other models than their own.
        needed = {source for c in commands for source in c.model.files.values()} if all(c.model for c in commands) else None
        for path in sorted((self.root / "data").rglob("*.sums")):
            gguf = path.with_suffix(".gguf")
            if needed is None or str(gguf.relative_to(self.root / "data")) in needed:
                gguf.write_bytes(sums.restored(self.programs[0], path))
            path.unlink()
        snapshot = self.root / "hub/models--org--model/snapshots/0123456789abcdef0123456789abcdef01234567"
        shutil.copytree(DATA / "whole/llama/hf", snapshot)
        refs = self.root / "hub/models--org--model/refs"
        refs.mkdir()
        (refs / "main").write_text(snapshot.name)

    def compare(self, command):
        """What came of a command."""
        place = self.places.get()
        try:
            (codes, old, old_costs), (_, new, new_costs) = (self.run(which, command, place) for which in (0, 1))
            found = differences(old, new)
            if not found and any(isinstance(code, str) for code in codes):
                return Compared([f"neither program ends within {TIMEOUT} s"], codes)
            # Which of several errors comes first may depend on the threads. The new program may do what the old one does in some run.
            self.reruns -= bool(found)
            varies = bool(found) and self.reruns >= 0 and any(self.run(0, command, place)[1] == new for _ in range(RUNS))
            if self.with_costs and not found and costs.more(old_costs, new_costs):
                again = [[self.run(which, command, place)[2] for _ in range(costs.RUNS)] for which in (0, 1)]
                found = costs.more(*({name: min(run[name] for run in runs) for name in costs.MORE} for runs in again))
            reason = next((text for name, text in old.items() if name.startswith("stderr")), b"") if codes[0] else b""
            return Compared([] if varies else found, codes, varies, reason.decode("utf-8", "replace"))
        finally:
            self.places.put(place)

    def run(self, which, command, place):
        """The exit codes of a command, its outcome, which is what is compared by what it is called, and its costs."""
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for source, to in command.copies:
            self.copy(place, source, place / to)
        if command.model:
            self.link(command.model, command.faults, place)
        for name, text in command.files:
            (place / name).write_text(text)
        outcome, codes, spent = {}, [], costs.Costs()
        for i, step in enumerate(command.steps):
            of = f" of step {i + 1}" if len(command.steps) > 1 else ""
            code, stdout, stderr = self.step(which, step, place, spent)
            codes.append(code)
            outcome["exit code" + of] = code
            outcome["stdout" + of] = normalised(stdout)
            outcome["stderr" + of] = normalised(stderr)
        # What a directory that failed leaves for --resume depends on which thread was how far.
        is_cut = any(codes) and not any("-j1" in step for step in command.steps)
        outcome.update({name: what for name, what in tree(place).items() if not (is_cut and UNFINISHED.search(name))})
        shutil.rmtree(place, ignore_errors=True)
        return codes, outcome, spent

    def step(self, which, arguments, place, spent):
        program, environment = self.programs[which], self.environments[which]
        if self.with_costs:
            options = {"executable": program, "cwd": place, "env": environment, "close_fds": False}
            code, stdout, stderr, read, usage = costs.run(["amn", *arguments], TIMEOUT, **options)
            spent.add(read, usage)
            return (f"none after {TIMEOUT} s" if code == -9 else code), stdout, stderr
        try:
            # Messages have the name that a program is called by.
            done = subprocess.run(["amn", *arguments], executable=program, cwd=place, env=environment, stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=TIMEOUT, close_fds=False)
        except subprocess.TimeoutExpired:
            return f"none after {TIMEOUT} s", b"", b""
        return done.returncode, done.stdout, done.stderr

    def link(self, model, faults, place):
        """A model with faults: links to its files, and files in place of those that have changed."""
        # Another link changes the time of a file's last change, at which the program looks: no two workers share files.
        own = place.with_name(place.name + "-files")
        for to, source in model.files.items():
            if not (own / source).exists():
                (own / source).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.root / "data" / source, own / source)
            (place / to).parent.mkdir(exist_ok=True)
            os.link(own / source, place / to)
        for file, edit in itertools.chain.from_iterable(fault.edits for fault in faults):
            data = edit((place / file).read_bytes())
            (place / file).unlink()
            (place / file).write_bytes(data)

    @staticmethod
    def copy(place, source, to):
        path, _, how = source.partition("#")
        path = place / path
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, to, dirs_exist_ok=True)
        elif how:
            to.write_bytes(damage(path.read_bytes(), how))
        else:
            shutil.copyfile(path, to)


def normalised(output):
    for pattern, text in VOLATILE:
        output = pattern.sub(text, output)
    return output


def tree(place):
    """Every file below a directory, with what can be seen of it."""
    found = {}
    for directory, directories, files in os.walk(place):
        for name in directories + files:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            what = stat.filemode(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                what += f" -> {os.readlink(path)}"
            elif stat.S_ISREG(status.st_mode):
                data = Path(path).read_bytes()
                # These say how long something took, as the program's own output does.
                if len(data) < 1 << 16 and name.endswith(".json"):
                    data = normalised(data)
                what += f" {len(data)} bytes {hashlib.sha256(data).hexdigest()}"
            found[os.path.relpath(path, place)] = what
    return found


def differences(old, new):
    out = []
    for name in dict.fromkeys([*old, *new]):
        a, b = old.get(name, "absent"), new.get(name, "absent")
        if a == b:
            continue
        if isinstance(a, bytes) and isinstance(b, bytes):
            lines = itertools.zip_longest(a.split(b"\n"), b.split(b"\n"), fillvalue=b"(no line)")
            number, (a, b) = next((n, pair) for n, pair in enumerate(lines, 1) if pair[0] != pair[1])
            name += f", line {number}"
        out.append(f"{name}:\n      old {shown(a)}\n      new {shown(b)}")
    return out


def shown(value):
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) < 240 else text[:240] + "…"


def damage(data, how):
    """The bytes of a file, changed as the name says."""
    what, which = how.split("-")
    if what == "cut":
        end = {"8": 8, "200": 200, "half": len(data) // 2, "1": max(len(data) - 1, 0)}[which]
        return data[:end]
    changed = bytearray(data)
    if which == "last":
        changed[-40:] = bytes(b ^ 0xFF for b in changed[-40:])
    else:
        for i in range(int(which)):
            at = crc(f"{how}{i}{len(data)}") % min(len(data), 2000)
            changed[at] ^= 1 << (int(which) + i) % 8
    return bytes(changed)

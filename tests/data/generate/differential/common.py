"""What all targets share: the program that says what this crate makes of files, edits of bytes, and the comparison."""

import random
import re
import struct
import subprocess

NUMBERS = [0, 1, 2, 3, 4, 7, 8, 10, 16, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 1 << 15, (1 << 16) - 1, 1 << 16, (1 << 31) - 1,
           1 << 31, (1 << 32) - 1, 1 << 32, 1 << 53, (1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


class Verdicts:
    """The program `verdicts` of tests/fuzz/examples. Batches are sent before answers are read."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, files):
        batch = b"".join(struct.pack("<I", len(file)) + file for file in files)
        self.process.stdin.write(struct.pack("<I", len(batch)) + batch)
        self.process.stdin.flush()

    def lines(self, count):
        return [self.process.stdout.readline() for _ in range(count)]


def number(rng, bits, near=()):
    """A number that fits: an interesting one, or one near another."""
    if near and rng.random() < 0.5:
        n = rng.choice(near) + rng.choice([-64, -32, -8, -4, -2, -1, 1, 2, 4, 8, 32, 64])
    else:
        n = rng.choice(NUMBERS)
    return n & ((1 << bits) - 1)


def edit_bytes(rng, content):
    """A few bytes changed, inserted, removed, repeated or moved."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if not content:
            return b"\0"
        at, kind = rng.randrange(len(content)), rng.randrange(8)
        if kind == 0:
            content.insert(at, rng.randrange(256))
        elif kind == 1:
            del content[at:at + rng.choice([1, 1, 2, 4, 8])]
        elif kind == 2:
            content[at] = rng.randrange(256)
        elif kind == 3:
            content[at:at + 4] = struct.pack("<I", number(rng, 32))[:len(content[at:at + 4])]
        elif kind == 4:
            part = content[at:at + rng.randrange(1, 40)]
            to = rng.randrange(len(content))
            content[to:to] = part
        else:
            content[at] ^= 1 << rng.randrange(8)
    return bytes(content)


def plain(text):
    """A message without numbers and names, which classes of differences are told by."""
    text = re.sub(r"`[^`]*`", "`…`", str(text).split("\n")[0])
    text = re.sub(r"file in archive is not in a subdirectory.*", "file in archive is not in a subdirectory", text)
    text = re.sub(r"(failed retrieving file meta-data for|AssertionError: expected|can't decode byte).*", r"\1", text)
    text = re.sub(r"(Cannot parse header|valid dtype descriptor): ('[^']{0,16}'$)?.*", r"\1 \2", text)
    text = re.sub(r"(?<!descriptor )'[^']*'|\"[^\"]*\"", "'…'", text)
    text = re.sub(r"0x[0-9a-f]+|\d+", "N", text)
    return re.sub(r"\[[^\]]*\]|\([^()]*\)", "[…]", text)[:110]


def difference(theirs, ours):
    """What differs, as a class; `None` if nothing does. `theirs` is an exception or what was read, as `verdicts` says it."""
    refused = isinstance(theirs, BaseException)
    if not refused and theirs.get("failed") and "error" in ours:
        return None
    if refused or "error" in ours:
        if refused and "error" in ours:
            return "panic" if ours["kind"] == "panic" else None
        if refused:
            return f"{type(theirs).__name__}: {plain(theirs)} | {'read' if ours['tensors'] else 'left out'}"
        return f"read | {ours['kind']}: {plain(ours['error'])}"
    a = {name: (dtype, shape, crc) for name, dtype, shape, crc in theirs["tensors"]}
    b = {name: (dtype, shape, crc) for name, dtype, shape, crc in ours["tensors"]}
    if len(theirs["tensors"]) != len(a):
        return "read | read: theirs has a name twice"
    failed = theirs.get("failed", {})
    for name, error in failed.items():
        if name not in ours["skipped"]:
            return f"{type(error).__name__}: {plain(error)} | read"
    skipped = (set(theirs["skipped"]) ^ set(ours["skipped"])) - failed.keys()
    for name in a.keys() ^ b.keys():
        return f"read | read: tensor only in {'theirs' if name in a else 'ours'}{', skipped in one' if name in skipped else ''}"
    for name, said in a.items():
        for i, what in enumerate(["dtype", "shape", "values"]):
            if said[i] != b[name][i]:
                detail = f": {said[0]} {b[name][0]}" if i == 0 else f" of {said[0]}"
                return f"read | read: other {what}{detail}"
    if len(ours["tensors"]) != len(b):
        return "read | read: a name twice"
    if skipped:
        return "read | read: other arrays are skipped"
    if theirs.get("metadata") is not None and theirs["metadata"] != ours["metadata"]:
        a, b = theirs["metadata"], ours["metadata"]
        return "read | read: other metadata" + (" keys" if a.keys() != b.keys() else "")
    return None


def choose(rng, items):
    return items[rng.randrange(len(items))]


def generator(seed):
    return random.Random(seed)

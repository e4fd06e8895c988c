"""One command of a comparison."""

import itertools
import math
import shlex
import zlib


class Command:
    """Steps that run one after the other in one directory, and the files that lie there before: copies of tests/data, files with a
    text, or a model with faults."""

    def __init__(self, *steps, copies=(), files=(), model=None, faults=()):
        self.steps = [shlex.split(step) if isinstance(step, str) else list(step) for step in steps]
        self.copies = list(copies)
        self.files = list(files)
        self.model = model
        self.faults = list(faults)

    def __str__(self):
        made = [f"cp -r {source} {to}" for source, to in self.copies] + [f"… > {name}" for name, _ in self.files]
        made += [f"cp -r ../data/{self.model.path} {self.model.name}"] if self.model else []
        made += [f"<{fault}>" for fault in self.faults]
        return " && ".join(made + ["amn " + shlex.join(step) for step in self.steps])


def crc(text):
    return zlib.crc32(text.encode())


def turns(of, count, salt):
    """`count` of the items, or all if there are no more: which ones follows from `salt`."""
    if count >= len(of):
        return of
    first = crc(salt)
    # A stride that shares no factor with the length, or items would repeat.
    stride = next(s for s in itertools.count(1 + first // 7 % len(of)) if math.gcd(s, len(of)) == 1)
    return [of[(first + i * stride) % len(of)] for i in range(count)]

"""Checkpoints before ZIP archives: five pickles and the storages, by torch as in `torch_files`."""

import pickletools
import struct

import pickles
from common import choose, edit_bytes, number
from torch_files import objects, read, saved  # noqa: F401


def parts(file):
    """The opcodes of the five pickles, and what is behind them: lengths and data of storages."""
    found, rest = [], file
    for _ in range(5):
        end = [at for op, _, at in pickletools.genops(rest)][-1] + 1
        found.append(pickles.opcodes(rest[:end]))
        rest = rest[end:]
    return found, rest


def seeds():
    return [parts(saved(value, _use_new_zipfile_serialization=False, pickle_protocol=protocol)) for value in objects() for protocol in (2, 2, 2, 4, 0)]


def mutant(rng, seeds):
    found, rest = choose(rng, seeds)
    bodies = [b"".join(code for _, _, code in ops) for ops in found]
    kind = rng.random()
    if kind < 0.7:
        i = choose(rng, [0, 1, 2, 3, 3, 3, 3, 3, 3, 4, 4])
        bodies[i] = pickles.mutant(rng, found[i])
    elif kind < 0.8:
        i = rng.randrange(5)
        what = rng.randrange(4)
        if what == 0:
            bodies.insert(i, bodies[i])
        elif what == 1:
            del bodies[i]
        elif what == 2:
            bodies[i], bodies[-1] = bodies[-1], bodies[i]
        else:
            bodies[i] = b"".join(code for _, _, code in choose(rng, choose(rng, seeds)[0]))
    if kind > 0.75:
        rest = bytearray(rest)
        what = rng.randrange(5)
        if what == 0 and len(rest) >= 8:
            rest[:8] = struct.pack("<Q", number(rng, 64, [struct.unpack_from("<Q", rest)[0]]))
        elif what == 1:
            rest += choose(rng, [b"\0", bytes(rest), b"junk"])
        elif what == 2:
            del rest[rng.randrange(len(rest) + 1):]
        elif what == 3:
            rest = choose(rng, seeds)[1]
        else:
            rest = edit_bytes(rng, rest)
    file = b"".join(bodies) + bytes(rest)
    return edit_bytes(rng, file) if rng.random() < 0.03 else file

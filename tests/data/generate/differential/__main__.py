"""The same mutated bytes through other libraries and through this crate: who reads what, and the values.

    pip install numpy==2.4.6 torch==2.15.0 gguf==0.19.0
    cargo build --release --manifest-path tests/fuzz/Cargo.toml --example verdicts
    python tests/data/generate/differential TARGET --program tests/fuzz/target/release/examples/verdicts --seconds 60

Targets: npy, npz (NumPy), gguf (gguf-py), torch, legacy (torch with `weights_only`); the `safetensors` crate has a program of its own,
`cargo run --release --example safetensors_crate`. It prints how many inputs there were, how many both read and both refuse, and for each
class of difference how many there were and its reason, if `reasons.py` has one. Classes without a reason make it fail.
With `--keep DIRECTORY` the shortest input of each class is written there. With `--seeds` it rewrites tests/fuzz/differences/TARGET.zip, which
`tests/hostile/differences.rs` replays: for each reason the shortest inputs of some classes, and what this crate says of them.
"""

import argparse
import collections
import importlib
import json
import re
import resource
import signal
import sys
import time
import zipfile
import zlib
from pathlib import Path

from common import Verdicts, difference, generator
from reasons import REASONS

SEEDS = Path(__file__).resolve().parents[3] / "fuzz" / "differences"


def reason(target, said):
    for pattern, text in REASONS[target]:
        if re.search(pattern, said):
            return text
    return None


def late(*_):
    raise TimeoutError("no end")


def refer(target, file):
    """What the library reads, or its exception. gguf-py counts to any number that a file declares."""
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.1, 0.5)
        try:
            return target.read(file)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001: torch and NumPy raise anything
            return error
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except TimeoutError as error:
        return error


def limit_memory(more):
    """Lets the process grow by `more` bytes: Python's unpickler makes a memo of any size."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


class Counts:
    def __init__(self):
        self.inputs = self.read = self.refused = self.differing = self.late = 0
        self.classes, self.shortest = collections.Counter(), {}

    def add(self, file, theirs, ours):
        self.inputs += 1
        if isinstance(theirs, TimeoutError):
            self.late += 1
            return
        said = difference(theirs, ours)
        if said is None:
            self.read += "error" not in ours
            self.refused += "error" in ours
            return
        self.differing += 1
        self.classes[said] += 1
        kept = self.shortest.get(said)
        if kept is None or len(file) < len(kept[0]):
            self.shortest[said] = file, theirs, ours


def run(name, arguments):
    target, counts = importlib.import_module(f"{name}_files"), Counts()
    rng, verdicts = generator(arguments.seed), Verdicts(arguments.program)
    seeds, end = target.seeds(), time.time() + arguments.seconds
    limit_memory(2 << 30)
    while time.time() < end:
        files = [target.mutant(rng, seeds) for _ in range(arguments.batch)]
        verdicts.send(files)
        if arguments.last:
            Path(arguments.last).write_bytes(b"".join(len(f).to_bytes(4, "little") + f for f in files))
        theirs = [refer(target, file) for file in files]
        for file, theirs, line in zip(files, theirs, verdicts.lines(len(files))):
            counts.add(file, theirs, json.loads(line))
    return counts


def tell(name, counts, keep):
    print(f"{name}: {counts.inputs} inputs, {counts.read} read by both, {counts.refused} refused by both, {counts.differing} differ, {counts.late} without an end")
    by_reason, unknown = collections.Counter(), 0
    for said, count in counts.classes.most_common():
        why = reason(name, said)
        by_reason[why] += count
        if keep:
            file, theirs, ours = counts.shortest[said]
            stem = f"{name}-{zlib.crc32(said.encode()):08x}"
            (keep / stem).write_bytes(file)
            (keep / f"{stem}.txt").write_text(f"{said}\ntheirs: {theirs!r}\nours: {json.dumps(ours)}\n{file[:600]!r}\n")
        if why is None:
            unknown += 1
            print(f"  {count:8} WITHOUT A REASON {said}  {zlib.crc32(said.encode()):08x}")
    for why, count in by_reason.most_common():
        print(f"  {count:8} {why}")
    return unknown


def write_seeds(name, counts, most=4):
    """The shortest inputs of some classes for each reason, with what this crate says of them."""
    chosen, index = collections.Counter(), []
    out = zipfile.ZipFile(SEEDS / f"{name}.zip", "w", zipfile.ZIP_DEFLATED)
    for said, (file, _, ours) in sorted(counts.shortest.items(), key=lambda item: (len(item[1][0]), item[0])):
        why = reason(name, said)
        chosen[why] += 1
        if chosen[why] > most or len(file) > 4096 or why is None:
            continue
        index.append({"name": f"{len(index):03}", "class": said, "reason": why, "ours": ours})
        out.writestr(zipfile.ZipInfo(index[-1]["name"]), file, zipfile.ZIP_DEFLATED)
    out.writestr(zipfile.ZipInfo("index.json"), json.dumps(index, indent=1), zipfile.ZIP_DEFLATED)
    out.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="+")
    parser.add_argument("--program", required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--seeds", action="store_true")
    parser.add_argument("--last", help="file that gets each batch before it is read, for libraries that crash")
    arguments = parser.parse_args()
    signal.signal(signal.SIGVTALRM, late)
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    unknown = 0
    for name in arguments.target:
        counts = run(name, arguments)
        unknown += tell(name, counts, arguments.keep)
        if arguments.seeds:
            write_seeds(name, counts)
    sys.exit(unknown > 0)


main()

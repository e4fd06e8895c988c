"""Counts what `amn scan` and other scanners say of files that run a command and of harmless ones.

    python generate/check_scan.py AMN [DIRECTORY ...]

Each payload, a pickle that creates a file, is put into each wrapper. Each result is given to `pickle.load` in a loop (both
unpicklers of Python), `torch.load(weights_only=False)`, `numpy.load(allow_pickle=True)` and `joblib.load`, and so is what
it holds, unpacked with Python's own modules. A file whose command runs must not be graded safe. The kinds are those that
the tests of picklescan, modelscan and fickling have.

The files of each further DIRECTORY, in its folders `dangerous` and `harmless`, are graded as well; nothing loads them.
picklescan, modelscan and fickling are asked, too, where they are installed.
"""

import bz2, collections, datetime, decimal, gzip, io, json, logging, lzma, os, pickle, signal, struct, subprocess, sys, tarfile, tempfile, warnings, zipfile, zlib

import joblib
import numpy
import torch

warnings.simplefilter("ignore")
work = tempfile.mkdtemp()
canary = os.path.join(work, "canary")
command = f"touch {canary}"
line = command.encode()
short = bytes([len(line)]) + line
evaluated = f"__import__('os').system('{command}')".encode()
call = b"cos\nsystem\n(S'" + line + b"'\ntR."


class Command:
    def __reduce__(self):
        return os.system, (command,)


PAYLOADS = {
    "GLOBAL": call,
    "INST": b"(S'" + line + b"'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nU" + short + b"o.",
    "protocol 2": b"\x80\x02cposix\nsystem\nU" + short + b"\x85R.",
    "eval of Python 2": b"\x80\x02c__builtin__\neval\nX" + struct.pack("<I", len(evaluated)) + evaluated + b"\x85R.",
    **{f"pickle, protocol {n}": pickle.dumps(Command(), n) for n in range(6)},
    "escapes of strings": b"S'o\\x73'\nS'syst\\145m'\n\x93(S'" + line + b"'\ntR.",
    "escapes of Unicode": b"V\\u006fs\nVsyste\\u006d\n\x93(S'" + line + b"'\ntR.",
    "integer before": b"I1\n0" + pickle.dumps(Command(), 4),
    "hexadecimal before": b"I0x10\n0" + pickle.dumps(Command(), 4),
    "float before": b"F1_0.0\n0" + call,
    "string before": b"S'x'\n0" + call,
    "U and bytes before": b"U\x037zz0" + call,
    "MZ before": b"MZ\x000" + call,
    "bytes before": b"B" + struct.pack("<I", 300000) + b"x" * 300000 + b"0" + call,
    "underscore in PUT": b"\x80\x02X\x02\0\0\0osX\x06\0\0\0systemX\x01\0\0\0aX\x01\0\0\0bp1_0\np1_0\n00\x93(U" + short + b"tR.",
    "spaces in PUT and GET": b"cos\nsystem\np 7\n0g+0_7\n(S'" + line + b"'\ntR.",
    "place beyond 32 bits": b"cos\nsystem\np99999999999\n0g99999999999\n(S'" + line + b"'\ntR.",
    "second pickle": b"\x80\x02}." + call,
    "21st pickle": b"\x80\x04N." * 20 + pickle.dumps(Command(), 0),
    "frame too long": b"\x80\x04\x95" + struct.pack("<Q", 10**6) + pickle.dumps(Command(), 4)[11:],
    # Bytes that begin in a frame of 2 bytes: Python's unpickler in C drops the rest of the frame.
    "bytes beyond a frame": b"\x80\x05\x95\x02\0\0\0\0\0\0\0B\x07" + (b"\x01\0\0\0\x000" + call).ljust(266, b"N") + b".",
    "list of arguments": b"cos\nsystem\n(lS'" + line + b"'\naR.",
    "marks": b"((((0000" + call,
    "harmless call before": b"ccollections\nOrderedDict\n)R0" + call,
    "DUP and POP": b"cos\nsystem\n20(S'" + line + b"'\ntR.",
    "dict before": b"(I1\nI2\nd0" + call,
    "map in list": b"cbuiltins\nlist\n(cbuiltins\nmap\n(cos\nsystem\n(S'" + line + b"'\nltRtR.",
}


def zipped(name, data, method=zipfile.ZIP_DEFLATED, others=()):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for other in others:
            archive.writestr(*other)
        archive.writestr(name, data)
    return out.getvalue()


def tarred(name, data, kind=tarfile.REGTYPE, form=tarfile.PAX_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        info = tarfile.TarInfo(name)
        info.size, info.type = len(data), kind
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def checkpoint(data, name="archive/data.pkl", method=zipfile.ZIP_STORED):
    return zipped(name, data, method, [("archive/version", b"3\n"), ("archive/byteorder", b"little")])


def objects(data):
    out = io.BytesIO()
    numpy.save(out, numpy.array([None], dtype=object), allow_pickle=True)
    header = out.getvalue()
    return header[: 10 + int.from_bytes(header[8:10], "little")] + data


def behind_array(data):
    out = io.BytesIO()
    joblib.dump(numpy.arange(5.0), out)
    return out.getvalue()[:-1] + b"0" + data


def legacy(data):
    before = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}]
    return b"".join(pickle.dumps(value, 2) for value in before) + data + pickle.dumps([], 2)


empty = pickle.dumps({}, 2)
WRAPPERS = {
    "bare": lambda data: data,
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "gzip twice": lambda data: gzip.compress(gzip.compress(data)),
    "gzip, cut": lambda data: gzip.compress(data)[:-4],
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda data: lzma.compress(data, format=lzma.FORMAT_ALONE),
    "ZIP member": lambda data: zipped("model.pkl", data),
    "ZIP member without ending": lambda data: zipped("x", data),
    "ZIP member, bz2": lambda data: zipped("model.pkl", data, zipfile.ZIP_BZIP2),
    "ZIP in ZIP": lambda data: zipped("a.zip", zipped("x.pkl", data)),
    "tar in ZIP in gzip": lambda data: gzip.compress(zipped("a.tar", tarred("x.pkl", data))),
    "ZIP behind GGUF": lambda data: b"GGUF\x03\0\0\0" + b"\0" * 100 + zipped("x.pkl", data),
    "checkpoint": checkpoint,
    "checkpoint, deflated": lambda data: checkpoint(data, method=zipfile.ZIP_DEFLATED),
    "checkpoint, DATA.PKL": lambda data: checkpoint(data, "archive/DATA.PKL"),
    "constants.pkl": lambda data: zipped("a/constants.pkl", data, others=[("a/data.pkl", empty)]),
    "storage": lambda data: zipped("a/data/0", data, others=[("a/data.pkl", empty)]),
    "two archives": lambda data: checkpoint(empty) + checkpoint(data) + b"JUNK",
    "bytes behind the archive": lambda data: checkpoint(data) + b"JUNK",
    "tar": lambda data: tarred("x.pkl", data),
    "tar, contiguous": lambda data: tarred("pickle", data, tarfile.CONTTYPE),
    "tar, long name": lambda data: tarred("a" * 150, data, form=tarfile.GNU_FORMAT),
    "tar, unknown type": lambda data: tarred("x", data, b"9"),
    "tar.gz": lambda data: gzip.compress(tarred("x", data)),
    "npy": objects,
    "npz": lambda data: zipped("a.npy", objects(data)),
    "legacy checkpoint": legacy,
    "behind an array of joblib": behind_array,
    "behind another pickle": lambda data: pickle.dumps({"a": 1}, 4) + data,
}


def runs(data, depth=0):
    """Whether a loader runs the command in `data` or in what it holds."""

    def forever(load):
        while True:
            load()

    def arrays():
        found = numpy.load(io.BytesIO(data), allow_pickle=True)
        for name in getattr(found, "files", []):
            found[name]

    stream, other = io.BytesIO(data), io.BytesIO(data)
    loaders = [
        lambda: forever(lambda: pickle.load(stream)),
        lambda: forever(lambda: pickle._Unpickler(other).load()),
        lambda: torch.load(io.BytesIO(data), weights_only=False),
        arrays,
        lambda: joblib.load(io.BytesIO(data)),
    ]
    for load in loaders:
        try:
            load()
        except BaseException:
            pass
        if os.path.exists(canary):
            os.unlink(canary)
            return True
    held = []
    for unpack in (gzip.decompress, zlib.decompress, bz2.decompress, lzma.decompress):
        try:
            held.append(unpack(data))
        except Exception:
            pass
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        held += [archive.read(info) for info in archive.infolist()]
    except Exception:
        pass
    try:
        archive = tarfile.open(fileobj=io.BytesIO(data))
        held += [archive.extractfile(info).read() for info in archive]
    except Exception:
        pass
    return depth < 4 and any(runs(inner, depth + 1) for inner in held if inner != data)


def harmless(place):
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.LayerNorm(4))
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    torch.save(module.state_dict(), place("state.pt"))
    torch.save(module.state_dict(), place("legacy.pt"), _use_new_zipfile_serialization=False)
    torch.save(module, place("module.pt"))
    torch.save(optimizer.state_dict(), place("optimizer.pt"))
    torch.save({"numpy": numpy.random.get_state(), "cpu": torch.get_rng_state()}, place("rng_state.pth"))
    torch.jit.save(torch.jit.script(module), place("torchscript.pt"))
    plain = [collections.OrderedDict(a=1), collections.defaultdict(int), datetime.datetime(2020, 1, 1), decimal.Decimal(1), {2}, 10**30]
    for n in range(6):
        pickle.dump(plain, open(place(f"plain{n}.pkl"), "wb"), n)
        pickle.dump([numpy.arange(1000.0), numpy.float64(3)], open(place(f"numpy{n}.pkl"), "wb"), n)
    for method in ["zlib", "gzip", "bz2", "xz"]:
        joblib.dump({"a": numpy.arange(1e5), "o": numpy.array([1, "x"], dtype=object)}, place(f"{method}.joblib"), compress=(method, 3))
    joblib.dump({"a": numpy.arange(1e5), "o": numpy.array([1, "x"], dtype=object)}, place("plain.joblib"))
    numpy.save(place("objects.npy"), numpy.array([1, "x", {"a": 1}], dtype=object))
    numpy.save(place("records.npy"), numpy.zeros(3, dtype=[("a", "f4"), ("o", "O")]))
    numpy.savez_compressed(place("a.npz"), a=numpy.zeros((3000, 300)), o=numpy.array([[3], 1], dtype=object))
    open(place("README.md"), "w").write("# A model\n" * 100)
    json.dump({"model_type": "llama"}, open(place("config.json"), "w"))
    try:
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.linear_model import LogisticRegression

        data, labels = numpy.random.rand(50, 3), numpy.arange(50) % 2
        joblib.dump(LogisticRegression().fit(data, labels), place("logistic.joblib"))
        joblib.dump(RandomForestClassifier(3).fit(data, labels), place("forest.joblib"))
    except ImportError:
        pass


# Scanners that go by the names of files are given the usual ones.
ENDINGS = {
    "gzip": ".pkl.gz", "gzip twice": ".pkl.gz", "gzip, cut": ".pkl.gz", "zlib": ".pkl.z", "bz2": ".pkl.bz2", "xz": ".pkl.xz",
    "lzma": ".pkl.lzma", "tar.gz": ".tar.gz", "tar in ZIP in gzip": ".zip.gz", "npy": ".npy", "npz": ".npz",
    "behind an array of joblib": ".joblib", "ZIP behind GGUF": ".gguf",
    **dict.fromkeys(["tar", "tar, contiguous", "tar, long name", "tar, unknown type"], ".tar"),
    **dict.fromkeys(["ZIP member", "ZIP member without ending", "ZIP member, bz2", "ZIP in ZIP"], ".zip"),
    **dict.fromkeys(["checkpoint", "checkpoint, deflated", "checkpoint, DATA.PKL", "constants.pkl", "storage", "two archives"], ".pt"),
    **dict.fromkeys(["bytes behind the archive", "legacy checkpoint"], ".pt"),
}  # fmt: skip


def grades(amn, directory):
    found = json.loads(subprocess.run([amn, "scan", "--json", directory], capture_output=True).stdout)
    return {os.path.relpath(file["file"], directory): file["risk"] for file in found["files"]}


def by_picklescan():
    from picklescan.scanner import scan_file_path

    def grade(path):
        found = scan_file_path(path)
        return "found" if found.issues_count else "error" if found.scan_err else "nothing"

    return grade


def by_modelscan():
    from modelscan.modelscan import ModelScan

    def grade(path):
        found = ModelScan().scan(path)
        skipped = found["summary"]["skipped"]["total_skipped"]
        return "found" if found["issues"] else "error" if found["errors"] else "skipped" if skipped else "nothing"

    return grade


def by_fickling():
    from fickling.loader import scan_file, scan_zip_archive

    def grade(path):
        results = [scan_file(path, graceful=True)]
        if zipfile.is_zipfile(path):
            results = list(scan_zip_archive(path, graceful=True).values()) or results
        if any(inner.severity.value > type(inner.severity).LIKELY_SAFE.value for one in results for inner in one.results):
            return "found"
        return "error" if any(one.errors or not one.is_safe for one in results) else "nothing"

    return grade


def bounded(grade, path):
    """What a scanner says within 20 seconds."""

    def end(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, end)
    signal.alarm(20)
    try:
        return grade(path)
    except Exception:
        return "error"
    finally:
        signal.alarm(0)


def table(amn, name, directory, files):
    """Prints what each scanner says of `files` below `directory`."""
    graded = grades(amn, directory)
    print(name, len(files), "amn", dict(collections.Counter(graded[file] for file in files)))
    if name.startswith("harmless"):
        print("   not safe:", [file for file in files if graded[file] != "safe"])
    else:
        print("   safe:", [file for file in files if graded[file] == "safe"])
    for scanner, make in [("picklescan", by_picklescan), ("modelscan", by_modelscan), ("fickling", by_fickling)]:
        try:
            grade = make()
        except ImportError:
            continue
        counts = collections.Counter(bounded(grade, os.path.join(directory, file)) for file in files)
        print("  ", name, scanner, dict(counts), flush=True)


def files_below(directory):
    return sorted(os.path.relpath(os.path.join(at, name), directory) for at, _, names in os.walk(directory) for name in names)


def main(amn, *directories):
    logging.disable(logging.CRITICAL)
    bad, bare, good = (os.path.join(work, name) for name in ["bad", "bare", "good"])
    for directory in [bad, bare, good]:
        os.mkdir(directory)
    running = {}
    for wrapper, wrap in WRAPPERS.items():
        for payload, data in PAYLOADS.items():
            name = f"{wrapper}, {payload}" + ENDINGS.get(wrapper, ".pkl")
            data = wrap(data)
            for directory in [bad, bare]:
                open(os.path.join(directory, name if directory == bad else f"{wrapper}, {payload}"), "wb").write(data)
            running[name] = runs(data)
    harmless(lambda name: os.path.join(good, name))
    table(amn, "run a command", bad, [name for name, does in running.items() if does])
    table(amn, "run none", bad, [name for name, does in running.items() if not does])
    graded = collections.Counter(grades(amn, bare).values())
    print("without endings:", dict(graded))
    table(amn, "harmless, made here", good, files_below(good))
    for directory in directories:
        for kind in ["dangerous", "harmless"]:
            below = os.path.join(directory, kind)
            table(amn, f"{kind}, {os.path.basename(directory)}", below, files_below(below))


main(*sys.argv[1:])

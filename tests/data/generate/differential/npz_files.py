"""NPZ archives, by NumPy: every array is read."""

import io

import numpy as np

import npy_files
from archive import Archive, Member, mutant as mutated_archive
from common import choose


def seeds():
    def saved(array):
        out = io.BytesIO()
        np.save(out, array)
        return out.getvalue()
    small = [saved(np.arange(3, dtype=np.float32)), saved(np.arange(4, dtype=">i2").reshape(2, 2)), saved(np.array([True])),
             saved(np.zeros((0, 2), np.float16)), saved(np.array(["ab"])), saved(np.arange(200, dtype=np.int32))]
    lists = [[("a.npy", 0), ("b.npy", 1)], [("a.npy", 0)], [("a.npy", 5), ("B.npy", 2), ("c.npy", 4)], [("d/a.npy", 1), ("d/", None)],
             [("a", 0), ("readme.txt", None)], [("a.npy", 3), ("A.npy", 1)], []]
    archives = [Archive([Member(name.encode(), b"" if i is None else small[i], deflated) for name, i in members])
                for members in lists for deflated in (False, True)]
    return archives, npy_files.seeds()


def mutant(rng, seeds):
    archives, arrays = seeds
    if rng.random() < 0.15:
        members = [Member(b"%d.npy" % i, npy_files.mutant(rng, arrays) if rng.random() < 0.5 else choose(rng, arrays), rng.random() < 0.3)
                   for i in range(rng.randrange(1, 3))]
        file = Archive(members)
        return mutated_archive(rng, file) if rng.random() < 0.3 else file.file()
    return mutated_archive(rng, choose(rng, archives))


def read(file):
    arrays = np.load(io.BytesIO(file), allow_pickle=False)
    if isinstance(arrays, np.ndarray):
        raise ValueError("no archive")
    tensors, skipped, failed, names = [], [], {}, arrays.zip.namelist()
    for name in names:
        if name.endswith("/"):
            continue
        key = name.removesuffix(".npy")
        try:
            array = arrays[name]
        except Exception as error:  # noqa: BLE001
            failed[key] = error
            continue
        if not isinstance(array, np.ndarray):
            continue
        said = npy_files.describe(array)
        if said:
            tensors.append([key, *said])
        else:
            skipped.append(key)
    return {"tensors": tensors, "skipped": skipped, "failed": failed}

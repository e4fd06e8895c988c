"""HDF5 files of h5py, PyTables and Keras, and the arrays that h5py reads from them.

    pip install h5py==3.16.0 tables==3.11.1 numpy==2.4.6 ml_dtypes==0.6.0 torch==2.15.0 safetensors==0.8.0
    pip install --no-deps keras==3.15.1 && pip install absl-py rich namex optree
    KERAS_BACKEND=torch python hdf5_cases.py

It rewrites ../hdf5/*. The index and the expected tensors are as npz.py says.
"""

import io
import tempfile
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import tables
from npz import Family, array, from_bytes, swapped, tensor

CODES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]


def arrays(content):
    """Every dataset by its path, once for each hard link; groups under their first name."""
    found, seen = {}, set()

    def walk(group, prefix):
        address = h5py.h5o.get_info(group.id).addr
        if address in seen:
            return
        seen.add(address)
        for name in sorted(group):
            if group.get(name, getlink=True).__class__ is not h5py.HardLink:
                continue
            item, path = group[name], f"{prefix}/{name}".lstrip("/")
            if isinstance(item, h5py.Group):
                walk(item, path)
            elif isinstance(item, h5py.Dataset) and item.shape is not None:
                a = item[()]
                if item.dtype == np.dtype("V2") and item.attrs.get("dtype") == "bfloat16":
                    found[path] = from_bytes("BF16", item.shape, np.asarray(a).tobytes())
                elif item.dtype.kind in "biufc":
                    # PyTables has truth values as bits, which h5py reads as numbers.
                    is_bits = isinstance(item.id.get_type(), h5py.h5t.TypeBitfieldID)
                    found[path] = tensor(np.asarray(a, "?" if is_bits else None))

    with h5py.File(io.BytesIO(content), "r") as f:
        walk(f, "")
    return found


def made(fill, **options):
    f = io.BytesIO()
    with h5py.File(f, "w", **options) as h:
        fill(h)
    return f.getvalue()


def plain(h):
    for code in CODES:
        h[f"types/{code}"] = array(code, code, (2, 3))
        if code[1] != "1":
            h[f"big/{code}"] = swapped(array(code, code, (2, 3)))
    h["types/bool"] = np.array([True, False, True])
    h["types/c8"] = array("c8", "c8", (3,))
    h["scalar"], h["empty"] = np.float32(1.5), np.zeros((0, 3), "f4")
    h.create_dataset("never_written", (3, 2), "f4")
    h.create_dataset("fill", (3, 2), "i2", fillvalue=-7)


def chunked(h):
    a, b = array("chunks", "f4", (10, 7)), array("ints", "i2", (13,))
    h.create_dataset("plain", data=a, chunks=(4, 3))
    h.create_dataset("gzip", data=a, chunks=(4, 3), compression="gzip")
    h.create_dataset("all", data=a, chunks=(4, 7), compression="gzip", shuffle=True, fletcher32=True)
    h.create_dataset("checked", data=b, chunks=(5,), fletcher32=True)
    h.create_dataset("whole", data=a, chunks=(10, 7), shuffle=True)
    h.create_dataset("rank3", data=array("r3", "u1", (5, 4, 6)), chunks=(2, 4, 5), compression="gzip")
    some = h.create_dataset("some", (9, 4), "f4", chunks=(2, 2), fillvalue=0.5)
    some[4:6, 1:3] = 3
    grown = h.create_dataset("grown", (3,), "i4", chunks=(2,), maxshape=(None,))
    grown.resize((7,))
    grown[:] = np.arange(7)
    shrunk = h.create_dataset("shrunk", data=np.arange(20), chunks=(3,), maxshape=(None,))
    shrunk.resize((5,))


def latest_chunks(h):
    a = array("chunks", "f4", (10, 7))
    h.create_dataset("fixed", data=a, chunks=(4, 3))
    h.create_dataset("fixed_gzip", data=a, chunks=(4, 3), compression="gzip", shuffle=True)
    h.create_dataset("single", data=a, chunks=(10, 7))
    h.create_dataset("single_gzip", data=a, chunks=(10, 7), compression="gzip", fletcher32=True)
    h.create_dataset("tree", data=a, chunks=(4, 3), maxshape=(None, None))
    h.create_dataset("tree_gzip", data=a, chunks=(2, 2), maxshape=(None, None), compression="gzip")
    h.create_dataset("pages", data=array("pages", "u1", (3000,)), chunks=(1,))
    h.create_dataset("deep_tree", data=array("deep", "u1", (40, 40)), chunks=(1, 1), maxshape=(None, None))
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_chunk((4, 3))
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    d = h5py.h5d.create(h.id, b"implicit", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((10, 7)), early)
    d.write(h5py.h5s.ALL, h5py.h5s.ALL, a)


def growing(h):
    h.create_dataset("few", data=array("few", "i4", (9,)), chunks=(2,), maxshape=(None,))
    h.create_dataset("many", data=array("many", "u1", (700,)), chunks=(1,), maxshape=(None,))
    h.create_dataset("gzip", data=array("gzip", "f4", (40, 5)), chunks=(2, 3), maxshape=(None, 5), compression="gzip")
    h.create_dataset("second", data=array("second", "i2", (5, 13)), chunks=(2, 2), maxshape=(5, None))
    some = h.create_dataset("some", (300,), "u1", chunks=(2,), maxshape=(None,))
    some[200:203] = 7


def compact(h):
    for name, code in ("small", "f4"), ("other", "i8"):
        p = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        p.set_layout(h5py.h5d.COMPACT)
        a = array(name, code, (2, 3))
        d = h5py.h5d.create(h.id, name.encode(), h5py.h5t.py_create(a.dtype), h5py.h5s.create_simple(a.shape), p)
        d.write(h5py.h5s.ALL, h5py.h5s.ALL, a)


def links(n):
    def fill(h):
        for i in range(n):
            h[f"many/{i}"] = np.int8(i % 100)
        for i in range(3):
            h[f"layers/layer_{i}/w"] = np.float32(i)
        h["twice"] = h["many/0"]
        h["again"] = h["layers"]
        h["soft"] = h5py.SoftLink("/many/1")
        h["outside"] = h5py.ExternalLink("other.h5", "/x")
        h["layers/up"] = h["/"]
        h["named_type"] = np.dtype("f4")

    return fill


def others(h):
    h["x"] = np.arange(3.0)
    h["text"] = "words"
    h["bytes"] = np.bytes_(b"abc")
    h["records"] = np.zeros(2, [("a", "f4"), ("b", "i4")])
    h["opaque"] = np.zeros(2, "V5")
    h["none"] = h5py.Empty("f4")
    h.create_dataset("lzf", data=np.arange(9), chunks=(3,), compression="lzf")


def of_tables(directory):
    path = directory / "t.h5"
    with tables.open_file(path, "w") as f:
        f.create_array("/", "plain", array("plain", "f4", (3, 4)))
        f.create_array("/", "flags", np.array([True, False]))
        zlib = tables.Filters(5, "zlib", shuffle=True, fletcher32=True)
        f.create_carray("/group", "compressed", obj=array("carray", "i4", (20, 3)), filters=zlib, createparents=True)
        grown = f.create_earray("/group", "grown", tables.Float32Atom(), (0, 5), filters=zlib)
        for i in range(3):
            grown.append(array(str(i), "f4", (4, 5)))
    return path.read_bytes()


def of_keras(directory):
    keras.utils.set_random_seed(1)
    out = {}
    for dtype in "float32", "bfloat16":
        keras.config.set_dtype_policy(dtype)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="first"), keras.layers.BatchNormalization(), keras.layers.Dense(2)])
        model.build((None, 3))
        model.save_weights(directory / "m.weights.h5")
        out[f"keras_{dtype}.h5"] = (directory / "m.weights.h5").read_bytes()
        if dtype == "float32":
            model.save(directory / "m.h5")
            out["keras_legacy.h5"] = (directory / "m.h5").read_bytes()
        model.save(directory / "m.keras")
        out[f"keras_{dtype}_archive.keras"] = (directory / "m.keras").read_bytes()
    return out


def main():
    out = Family("hdf5")

    def add(file, content, detail, **more):
        weights = content
        if file.endswith(".keras"):
            weights = zipfile.ZipFile(io.BytesIO(content)).read("model.weights.h5")
        out.add(file, content, detail, arrays(weights), **more)

    for libver in "earliest", "latest":
        add(f"plain_{libver}.h5", made(plain, libver=libver), "types, orders, data that was never written")
        add(f"compact_{libver}.h5", made(compact, libver=libver), "data in headers")
    add("chunked.h5", made(chunked), "chunks and filters")
    add("latest_chunks.h5", made(latest_chunks, libver="latest"), "chunks with indexes of version 4")
    add("latest_grows.h5", made(growing, libver="latest"), "chunks in extensible arrays")
    grows = made(lambda h: h.create_dataset("x", data=np.arange(9), chunks=(2,), maxshape=(20,)), libver="latest")
    out.add("latest_may_grow.h5", grows, "chunks in an array of another length than the dataset", expect="error")
    for n, libver in (3, "earliest"), (300, "earliest"), (3, "latest"), (300, "latest"):
        add(f"links_{n}_{libver}.h5", made(links(n), libver=libver), "groups with few and many links, of all kinds")
    add("ordered.h5", made(lambda h: [h.create_dataset(f"z{9 - i}", data=i) for i in range(9)], track_order=True), "links in the order of their making")
    add("user_block.h5", made(plain, userblock_size=512), "a block of the user before it")
    names = ["text", "bytes", "records", "opaque", "none", "lzf"]
    content = made(others)
    kept = {k: v for k, v in arrays(content).items() if k == "x"}
    out.add("others.h5", content, "datasets that no tensor can hold", kept, expect="skips", skipped=names)
    with tempfile.TemporaryDirectory() as directory:
        add("tables.h5", of_tables(Path(directory)), "PyTables")
        for file, content in of_keras(Path(directory)).items():
            add(file, content, "Keras")
    out.finish()


if __name__ == "__main__":
    main()

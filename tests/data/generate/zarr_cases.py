"""Checkpoints of Orbax, and arrays of Zarr 2 and 3 in directories and in databases of OCDBT, with what the libraries read from them.

    pip install orbax-checkpoint==0.12.8 jax==0.10.2 tensorstore==0.1.86 zarr==3.1.6 ml_dtypes==0.6.0 numpy==2.4.6 safetensors==0.8.0
    JAX_PLATFORMS=cpu python zarr_cases.py

It rewrites ../zarr/*. Names of files and times in databases of OCDBT differ from run to run.
"""

import json
import shutil
import warnings
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
import zarr
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent / "zarr"
INDEX = []


def values(shape, dtype, seed=0):
    """Small numbers, which every dtype has."""
    n = np.prod(shape, dtype=int)
    return ((np.arange(n) * 7 + seed) % 11).reshape(shape).astype(dtype)


def expect(case, arrays, detail):
    """Writes what was read, by name."""
    arrays = {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in arrays.items()}
    save_file(arrays, ROOT / f"{case}.safetensors")
    INDEX.append({"case": case, "expect": "ok", "tensors": len(arrays), "detail": detail})


def refuse(case, words, detail):
    INDEX.append({"case": case, "expect": "error", "words": words, "detail": detail})


def flat(tree, prefix=""):
    if isinstance(tree, dict):
        found = {}
        for key, value in tree.items():
            found |= flat(value, f"{prefix}.{key}" if prefix else key)
        return found
    if isinstance(tree, list | tuple):
        return flat({str(i): value for i, value in enumerate(tree)}, prefix)
    return {} if tree is None else {prefix: np.asarray(tree)}


TREE = {
    "params": {"dense": {"kernel": jnp.asarray(values((40, 33), "f4")), "bias": jnp.asarray(values((33,), "f4"), jnp.bfloat16)},
               "layers": [jnp.asarray(values((3, 4), "i1")), np.arange(5)]},
    "step": 7, "rate": 0.5, "nothing": None,
}
NAMES = ["float16", "bfloat16", "float32", "int8", "uint8", "int16", "uint16", "int32", "uint32", "bool", "float8_e4m3fn", "float8_e5m2"]


def orbax():
    def save(case, tree, detail, **options):
        path = ROOT / case
        ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)).save(path, tree)
        read = ocp.PyTreeCheckpointer().restore(path)
        expect(case, flat(read), detail)

    save("orbax", TREE, "Orbax as it is by default: Zarr 2 in OCDBT, large values in files of the process")
    save("orbax_files", TREE, "the same in files", use_ocdbt=False)
    save("orbax_zarr3", TREE, "Zarr 3 in OCDBT", use_ocdbt=True, use_zarr3=True)
    save("orbax_zarr3_files", TREE, "the same in files", use_ocdbt=False, use_zarr3=True)
    types = {name: jnp.asarray(values((2, 5), "f4"), getattr(jnp, name)) for name in NAMES}
    save("orbax_types", types, "each dtype")
    save("orbax_types_zarr3", types, "each dtype in Zarr 3", use_zarr3=True)
    manager = ocp.CheckpointManager(ROOT / "manager")
    for step in (9, 10):
        manager.save(step, args=ocp.args.StandardSave({"w": jnp.asarray(values((4,), "f4", step))}))
    manager.wait_until_finished()
    expect("manager", {"w": values((4,), "f4", 10)}, "a manager's steps, of which the last is read")
    items = ocp.CheckpointManager(ROOT / "items", item_names=("params", "state"))
    save_args = {name: ocp.args.StandardSave({"w": jnp.ones(3)}) for name in ("params", "state")}
    items.save(1, args=ocp.args.Composite(**save_args))
    items.wait_until_finished()
    refuse("items", "which of 2 items", "several items of a step")


def write(case, name, array, spec, skip=()):
    """An array by TensorStore; `skip` are regions that are not written."""
    store = ts.open({**spec, "create": True}, dtype=array.dtype, shape=array.shape).result()
    if skip:
        for region in skip:
            store[region].write(array[region]).result()
    else:
        store.write(array).result()
    return np.asarray(store.read().result())


def files(case, name=""):
    return {"driver": "file", "path": f"{ROOT / case}/{name}"}


def zarr2():
    read = {}

    def add(name, array, skip=(), **metadata):
        spec = {"driver": "zarr", "kvstore": files("zarr2", f"{name}/"), "metadata": metadata}
        read[name] = write("zarr2", name, array, spec, skip)

    add("raw", values((5, 7), "f4"), chunks=[2, 3], compressor=None)
    add("whole", values((5, 7), "f4"), chunks=[5, 7], compressor=None)
    add("zlib", values((5, 7), "<i2"), chunks=[2, 3], compressor={"id": "zlib", "level": 5})
    add("gzip", values((9,), "<u8"), chunks=[4], compressor={"id": "gzip", "level": 5})
    add("zstd", values((5, 7), "f8"), chunks=[2, 7], compressor={"id": "zstd", "level": 3})
    add("fortran", values((5, 7, 3), "f4"), chunks=[2, 3, 3], compressor={"id": "zstd", "level": 3}, order="F")
    add("big", values((5, 7), ">f4"), chunks=[4, 4], compressor=None, dtype=">f4")
    add("slash", values((3, 3), "f2"), chunks=[2, 2], compressor=None, dimension_separator="/")
    part = [(slice(0, 2), slice(0, 3))]
    add("missing", values((5, 7), "f4"), part, chunks=[2, 3], compressor=None, dtype="<f4", fill_value="NaN")
    add("ones", values((5, 7), "i4"), part, chunks=[2, 3], compressor=None, dtype="<i4", fill_value=-1)
    add("complex", values((4,), "c8"), chunks=[3], compressor=None)
    expect("zarr2", read, "arrays of Zarr 2 in files: codecs, orders, missing chunks")
    write("alone", "", values((4,), "f4"), {"driver": "zarr", "kvstore": files("alone"), "metadata": {"chunks": [4], "compressor": None}})
    expect("alone", {"tensor": values((4,), "f4")}, "an array by itself")


def blosc():
    read, refused = {}, {}
    for cname in ("lz4", "lz4hc", "zlib", "zstd", "blosclz"):
        for shuffle in (0, 1, 2):
            for blocksize in (0, 1024) if cname in ("lz4", "zstd") else (0,):
                name, case = f"{cname}.{shuffle}.{blocksize}", "blosc" if cname != "blosclz" else "blosclz"
                compressor = {"id": "blosc", "cname": cname, "clevel": 5, "shuffle": shuffle, "blocksize": blocksize}
                spec = {"driver": "zarr", "kvstore": files(case, f"{name}/"), "metadata": {"chunks": [400], "compressor": compressor}}
                array = np.arange(500, dtype="f4" if blocksize else "f8") // 3
                if cname != "blosclz" or (shuffle, blocksize) == (1, 0):
                    (read if case == "blosc" else refused)[name] = write(case, name, array, spec)
    expect("blosc", read, "Blosc with each compressor, with and without shuffled bytes and bits, also in several blocks")
    refuse("blosclz", "besides lz4, zlib and zstd", "Blosc's own compressor")


def zarr3():
    read = {}

    def add(name, array, skip=(), chunk=(2, 3), codecs=(), **metadata):
        grid = {"name": "regular", "configuration": {"chunk_shape": list(chunk)}}
        metadata = {"chunk_grid": grid, "codecs": list(codecs), **metadata}
        read[name] = write("zarr3", name, array, {"driver": "zarr3", "kvstore": files("zarr3", f"{name}/"), "metadata": metadata}, skip)

    little, big = ({"name": "bytes", "configuration": {"endian": end}} for end in ("little", "big"))
    zstd, gzip = ({"name": name, "configuration": {"level": 3}} for name in ("zstd", "gzip"))

    def shards(chunk, codecs, **more):
        index = [little, {"name": "crc32c"}]
        return {"name": "sharding_indexed", "configuration": {"chunk_shape": chunk, "codecs": codecs, "index_codecs": index, **more}}

    add("raw", values((5, 7), "f4"), codecs=[little])
    add("gzip", values((5, 7), "f4"), codecs=[big, gzip])
    add("summed", values((5, 7), "f4"), codecs=[little, zstd, {"name": "crc32c"}])
    order = {"name": "transpose", "configuration": {"order": [2, 0, 1]}}
    add("transposed", values((5, 7, 3), "f4"), chunk=(2, 4, 3), codecs=[order, little, zstd])
    add("shards", values((9, 10), "f4"), chunk=(4, 6), codecs=[shards([2, 3], [little, zstd])])
    add("shards_first", values((9, 10), "i8"), [(slice(0, 3), slice(0, 4))], chunk=(4, 6), codecs=[shards([2, 2], [little], index_location="start")], fill_value=5, data_type="int64")
    add("keys", values((5, 7), "f4"), codecs=[little], chunk_key_encoding={"name": "v2", "configuration": {"separator": "."}})
    bf16 = values((4, 4), ml_dtypes.bfloat16)
    add("bf16", bf16, [(slice(0, 2), slice(0, 2))], chunk=(2, 2), codecs=[little], fill_value=1.5, data_type="bfloat16")
    expect("zarr3", read, "arrays of Zarr 3 in files: codecs, shards, orders, missing chunks")


def groups():
    for version in (2, 3):
        case = f"groups{version}"
        group = zarr.open_group(ROOT / case, mode="w", zarr_format=version)
        read = {}
        for name, array in {"a/w": values((4, 5), "f4"), "a/b/v": values((3,), "f8"), "n": values((), "i4")}.items():
            made = group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=array.shape and tuple(max(1, n // 2) for n in array.shape))
            made[...] = array
            read[name.replace("/", ".")] = np.asarray(made[...])
        expect(case, read, f"groups of zarr-python, version {version}")


def databases():
    """A database with inner nodes, of which only the last version counts."""
    read = {}
    base = {"driver": "ocdbt", "base": files("nodes"), "config": {"max_decoded_node_bytes": 1000, "max_inline_value_bytes": 40}}
    for i in range(24):
        for version in (1, 2):
            name = f"layers.{i}.weight"
            spec = {"driver": "zarr", "kvstore": {**base, "path": f"{name}/"}, "metadata": {"chunks": [4, 8], "compressor": None}}
            store = ts.open({**spec, "create": True, "delete_existing": version == 2}, dtype=ts.float32, shape=[8, 8]).result()
            store.write(values((8, 8), "f4", i * version)).result()
        read[name] = np.asarray(store.read().result())
    expect("nodes", read, "a tree of several nodes")
    plain = {"driver": "ocdbt", "base": files("plain_nodes"), "config": {"compression": None}}
    spec = {"driver": "zarr", "kvstore": {**plain, "path": "w/"}, "metadata": {"chunks": [600], "compressor": None}}
    array = write("plain_nodes", "w", values((700,), "f4"), spec)
    expect("plain_nodes", {"w": array}, "nodes that are not compressed")


def main():
    warnings.simplefilter("ignore")
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir()
    for part in (orbax, zarr2, blosc, zarr3, groups, databases):
        part()
    rows = ",\n".join(f"  {json.dumps(row)}" for row in INDEX)
    (ROOT / "index.json").write_text(f"[\n{rows}\n]\n")


main()

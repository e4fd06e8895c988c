"""Checkpoints of Flax in MessagePack, and the arrays that Flax restores from them.

    pip install flax==0.12.8 numpy==2.4.6 ml_dtypes==0.6.0 torch==2.15.0 safetensors==0.8.0
    python flax_cases.py

It rewrites ../flax/*. (A script called flax.py would hide the library.) The index and the expected tensors are as npz.py
says.
"""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import linen as nn
from flax import serialization
from npz import TORCH, Family, array, from_bytes, tensor

CODES = ["b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8"]
NARROW = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"}


def restored(tree, prefix=""):
    """What Flax restores, with names by path; Python's own numbers are no tensors."""
    if isinstance(tree, dict):
        found = {}
        for key, value in tree.items():
            found |= restored(value, f"{prefix}.{key}" if prefix else str(key))
        return found
    if not isinstance(tree, np.ndarray | np.generic | jax.Array):
        return {}
    a = np.asarray(tree)
    if a.dtype.name in NARROW:
        return {prefix or "tensor": from_bytes(NARROW[a.dtype.name], a.shape, a.tobytes())}
    return {prefix or "tensor": tensor(a)}


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(4)(x))
        return nn.BatchNorm(use_running_average=False)(nn.Dense(3)(x))


def main():
    out = Family("flax")

    def add(file, tree, detail, **more):
        content = serialization.msgpack_serialize(serialization.to_state_dict(tree))
        out.add(file, content, detail, restored(serialization.msgpack_restore(content)), **more)

    variables = Net().init(jax.random.key(0), jnp.ones((2, 5)))
    add("module.msgpack", variables, "parameters and statistics of a module")
    add("params.msgpack", variables["params"], "parameters alone")
    add("bf16.msgpack", jax.tree.map(lambda x: x.astype(jnp.bfloat16), variables), "the same in BF16")
    kinds = {code: array(code, code, (2, 3)) for code in CODES}
    kinds |= {name: array(name, "u1", (2, 3)).view(getattr(ml_dtypes, name)) for name in NARROW if name != "bfloat16"}
    kinds |= {"bfloat16": array("bf", "u2", (3,)).view(ml_dtypes.bfloat16), "empty": np.zeros((0, 3), "f4")}
    add("dtypes.msgpack", {"x": kinds}, "each dtype")
    add("values.msgpack", {"scalar": np.float32(1.5), "zero_d": jnp.float16(2.5), "step": 3, "lr": 0.5, "c": 1 + 2j, "none": None, "text": "a",
                           "bytes": b"ab", "flag": True, "below": -3, "list": [np.arange(3.0), [np.int8(3)]]}, "numbers and others")
    add("many.msgpack", {f"layer_{i}/kernel": array(str(i), "i1", (2,)) for i in range(40)}, "40 keys with slashes, as shards have them")
    skipped = {"x": np.arange(3.0), "narrow": np.arange(3).astype(ml_dtypes.int4)}
    content = serialization.msgpack_serialize(skipped)
    out.add("int4.msgpack", content, "INT4 in a byte each", {"x": tensor(skipped["x"])}, expect="skips", skipped=["narrow"])
    # Arrays of more than 1 GiB are in pieces.
    serialization.MAX_CHUNK_SIZE = 100
    add("chunks.msgpack", {"a": {"w": array("w", "f4", (7, 11))}, "b": array("b", "i1", (3,)), "c": array("c", "u1", (101,))}, "large arrays in pieces")
    add("chunked_root.msgpack", array("root", "f2", (9, 9)), "a large array by itself")
    out.finish()


if __name__ == "__main__":
    assert TORCH
    main()

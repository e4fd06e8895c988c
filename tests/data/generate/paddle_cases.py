"""Pickles of NumPy arrays as Paddle saves parameters, and the arrays that Paddle loads from them.

    pip install --no-deps paddlepaddle==3.3.1 && pip install httpx pillow protobuf networkx opt_einsum typing_extensions
    pip install numpy==2.4.6 torch==2.15.0 safetensors==0.8.0 ml_dtypes==0.6.0
    python paddle_cases.py

It rewrites ../paddle/*. (A script called paddle.py would hide the library.) The index and the expected tensors are as
npz.py says.
"""

import io
import warnings

import numpy as np

warnings.filterwarnings("ignore")

import paddle
from npz import Family, array, tensor
from paddle.framework import io_utils

CODES = ["b1", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8"]


def saved(obj, protocol=4):
    f = io.BytesIO()
    paddle.save(obj, f, protocol=protocol)
    return f.getvalue()


def arrays(obj, prefix=""):
    """What Paddle loads, with names by path."""
    if isinstance(obj, dict):
        items = obj.items()
    elif isinstance(obj, list | tuple):
        items = enumerate(obj)
    else:
        return {prefix: obj} if isinstance(obj, np.ndarray) else {}
    found = {}
    for key, value in items:
        found |= arrays(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def loaded(content):
    found = arrays(paddle.load(io.BytesIO(content), return_numpy=True))
    return {k or "tensor": tensor(v) for k, v in found.items()}


def main():
    paddle.device.set_device("cpu")
    out = Family("paddle")
    net = paddle.nn.Sequential(paddle.nn.Linear(3, 4), paddle.nn.BatchNorm1D(4))
    for p in net.parameters():
        p.set_value(array(p.name, "i1", p.shape).astype("f4"))
    sum(net(paddle.ones([2, 3])).flatten()).backward()
    optimizer = paddle.optimizer.Adam(parameters=net.parameters())
    optimizer.step()
    for protocol in 2, 3, 4:
        content = saved(net.state_dict(), protocol)
        out.add(f"state_{protocol}.pdparams", content, f"a state_dict, protocol {protocol}", loaded(content))
    content = saved(optimizer.state_dict())
    out.add("adam.pdopt", content, "the state of an optimizer", loaded(content))
    kinds = {code: paddle.to_tensor(array(code, code, (2, 3))) for code in CODES}
    kinds |= {"scalar": paddle.to_tensor(1.5), "empty": paddle.zeros([0, 3]), "bf16": paddle.ones([2]).astype("bfloat16")}
    for protocol in 2, 4:
        content = saved({"model": kinds, "list": [paddle.ones([2]), None], "epoch": 3, "lr": 0.5}, protocol)
        out.add(f"nested_{protocol}.pdparams", content, f"tensors in dicts and lists, protocol {protocol}; BF16 is U16", loaded(content))
    content = saved(paddle.to_tensor(array("alone", "f4", (2, 3))))
    out.add("alone.pdtensor", content, "a tensor by itself", loaded(content))
    # Slices of 1 GiB, of which the files would be too large here: the limit is a constant in a function.
    code = io_utils._unpack_saved_dict.__code__
    consts = tuple(200 if c == 2**30 - 1 else c for c in code.co_consts)
    assert consts != code.co_consts
    io_utils._unpack_saved_dict.__code__ = code.replace(co_consts=consts)
    big = {"a": array("a", "f4", (5, 40)), "b": array("b", "u1", (2, 3)), "c": array("c", "i1", (7, 33))}
    for protocol in 2, 3:
        content = saved({k: paddle.to_tensor(v) for k, v in big.items()}, protocol)
        assert b"UnpackBigParamInfor@@" in content
        out.add(f"slices_{protocol}.pdparams", content, f"large arrays in slices, protocol {protocol}", loaded(content))
    out.finish()


if __name__ == "__main__":
    main()

"""Checkpoints of TensorFlow: `tensorflow/`, with the variables in each of them as TensorFlow reads them.

    pip install tensorflow-cpu==2.21.0 numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0 onnx==1.23.2 onnxruntime==1.32.0
    cd tests/data/generate && python tensorflow_cases.py
"""

import os
import shutil
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from onnx_cases import safetensors  # noqa: E402

HERE = Path(__file__).parent.parent / "tensorflow"
RNG = np.random.default_rng(17)
NAMES = {
    "float32": "F32", "float64": "F64", "int32": "I32", "uint8": "U8", "int16": "I16", "int8": "I8", "complex64": "C64",
    "int64": "I64", "bool": "BOOL", "bfloat16": "BF16", "uint16": "U16", "float16": "F16", "uint32": "U32",
    "uint64": "U64", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3",
}  # fmt: skip


def some(dtype, *shape):
    """Random elements; of two-valued ones the lowest bit."""
    dtype = tf.as_dtype(dtype).as_numpy_dtype
    if dtype is np.bool_:
        return RNG.integers(0, 2, shape).astype(bool)
    return np.frombuffer(RNG.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)


def expected(prefix):
    """Name, dtype, shape and bytes of each variable that is no text."""
    reader = tf.train.load_checkpoint(str(prefix))
    for name, dtype in sorted(reader.get_variable_to_dtype_map().items()):
        if dtype != tf.string:
            array = np.asarray(reader.get_tensor(name))
            yield name, NAMES[dtype.name], array.shape, np.ascontiguousarray(array).tobytes()


def types(folder):
    values = {name: tf.Variable(some(name, 2, 3)) for name in NAMES}
    values |= {"scalar": tf.Variable(np.float32(3)), "empty": tf.Variable(np.zeros((0, 3), np.float32))}
    tf.train.Checkpoint(**values).write(str(folder / "types"))
    return folder / "types"


def text(folder):
    values = {"word": tf.Variable("abc"), "w": tf.Variable(np.float32([1, 2]))}
    return Path(tf.train.Checkpoint(**values).save(str(folder / "ckpt")))


def many(folder):
    """Names in several blocks of the index."""
    values = {f"layer_{i}": {"kernel": tf.Variable(np.float32([i])), "bias": tf.Variable(np.int32(i))} for i in range(60)}
    tf.train.Checkpoint(**values).write(str(folder / "many"))
    return folder / "many"


def parts(folder):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        def variable(name, values, *partition):
            def part(shape, dtype, partition_info):
                ends = [slice(start, start + n) for start, n in zip(partition_info.var_offset, shape)]
                return tf.constant(values[tuple(ends)])

            by = v1.fixed_size_partitioner(*partition) if partition else None
            v1.get_variable(name, values.shape, values.dtype, part if partition else lambda *_, **__: values, partitioner=by)

        variable("rows", some("int32", 200, 2), 3, 0)
        variable("scope/columns", some("int16", 3, 5), 2, 1)
        variable("whole", some("float32", 3))
        session.run(v1.global_variables_initializer())
        return Path(v1.train.Saver().save(session, str(folder / "model.ckpt"), write_meta_graph=False))


def shards(folder):
    """Files of data of two devices."""
    save = lambda prefix, **t: tf.raw_ops.SaveV2(  # noqa: E731
        prefix=str(folder / prefix), tensor_names=list(t), shape_and_slices=[""] * len(t), tensors=list(t.values())
    )
    save("a", a=tf.constant(some("float32", 4)), c=tf.constant(some("int8", 3)))
    save("b", b=tf.constant(some("float32", 2, 2)))
    merged = folder / "two"
    prefixes = [str(folder / p) for p in "ab"]
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=str(merged), delete_old_dirs=False)
    for path in [*folder.glob("a.*"), *folder.glob("b.*")]:
        path.unlink()
    return merged


def saved_model(folder):
    module = tf.Module()
    module.w, module.inner = tf.Variable(some("float32", 2, 3)), tf.Module()
    module.inner.b = tf.Variable(some("bfloat16", 3))
    tf.saved_model.save(module, str(folder))
    # The graph is not read.
    (folder / "saved_model.pb").write_bytes(b"\x08\x01\x12\x00")
    (folder / "fingerprint.pb").unlink(missing_ok=True)
    return folder / "variables/variables"


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    for case in [types, text, many, parts, shards, saved_model]:
        folder = HERE / case.__name__
        folder.mkdir(parents=True)
        prefix = case(folder)
        for path in [*folder.rglob("assets")]:
            path.rmdir()
        if case is parts:
            # It has the path of this directory.
            (folder / "checkpoint").unlink()
        (folder / "expected.safetensors").write_bytes(safetensors(list(expected(prefix))))


if __name__ == "__main__":
    main()

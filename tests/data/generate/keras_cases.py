"""Layers that Keras has quantized: `keras_quantized/` (models, and the kernels that the layers work with).

    pip install keras==3.15.1 torch==2.15.0 h5py==3.16.0 numpy==2.4.6
    cd tests/data/generate && python keras_cases.py
"""

import io
import os
import shutil
import zipfile
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import h5py
import keras
import numpy as np
from executorch_cases import safetensors
from keras import layers as L
from keras.quantizers import Int4QuantizationConfig, Int8QuantizationConfig
import torch

HERE = Path(__file__).parent.parent
RNG = np.random.default_rng(8)


def text():
    inputs = keras.Input((5,), dtype="int32")
    x = L.Embedding(11, 6, name="words")(inputs)
    x = L.EinsumDense("abc,cde->abde", output_shape=(5, 3, 4), bias_axes="de", name="heads")(x)
    x = L.EinsumDense("abde,dec->abc", output_shape=(5, 7), name="joined")(x)
    x = L.EinsumDense("abc,cd->abd", output_shape=(5, 7), bias_axes="d", name="square")(x)
    x = L.Dense(9, name="odd")(x)
    x = L.LayerNormalization(name="norm")(x)
    return keras.Model(inputs, L.Dense(8, use_bias=False, name="last")(x))


def nested():
    inner = keras.Sequential([keras.Input((6,)), L.Dense(10, name="first"), L.Dense(7, name="second")], name="inner")
    inputs = keras.Input((6,))
    return keras.Model(inputs, L.Dense(3, name="outer")(inner(inputs)))


def odd():
    inputs = keras.Input((5,), dtype="int32")
    return keras.Model(inputs, L.Dense(4, name="last")(L.Embedding(9, 7, name="words")(inputs)))


def layers_of(model):
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from layers_of(layer)
        else:
            yield layer


def kernel(layer):
    """The weight that a layer works with: what it makes of the rows of an identity matrix, without its bias."""
    if isinstance(layer, L.Embedding):
        return np.asarray(keras.ops.convert_to_numpy(layer(np.arange(layer.input_dim))))
    bias = layer.bias
    if bias is not None:
        kept = keras.ops.convert_to_numpy(bias)
        bias.assign(np.zeros_like(kept))
    shape = layer.get_build_config()["input_shape"]
    sizes = [n or 1 for n in shape[1:]]
    if isinstance(layer, L.Dense):
        made = layer(np.eye(sizes[-1], dtype=np.float32))
    else:
        inputs, rest = layer.equation.split(",")
        weight, _ = rest.split("->")
        summed = [c for c in weight if c in inputs]
        sizes = [shape[inputs.index(c)] for c in summed]
        n = int(np.prod(sizes))
        one = np.eye(n, dtype=np.float32).reshape(n, 1, *sizes)
        made = layer(one)
    made = np.asarray(keras.ops.convert_to_numpy(made.float()))
    if isinstance(layer, L.EinsumDense):
        made = made.reshape(*sizes, *made.shape[2:])
    if bias is not None:
        bias.assign(kept)
    return made


def stored(path):
    with zipfile.ZipFile(path) as archive:
        return h5py.File(io.BytesIO(archive.read("model.weights.h5")), "r")


def expected(model, path):
    """Tensors of a saved model by the paths of their datasets: kernels as they are, and whatever is no companion."""
    layers = {layer.name: layer for layer in layers_of(model)}
    found = []

    def visit(name, group):
        if not name.endswith("vars") or not isinstance(group, h5py.Group) or not len(group):
            return
        layer = layers[group.attrs["name"]]
        mode = getattr(layer, "quantization_mode", None)
        keys = sorted(group, key=int)
        if mode is None:
            found.extend((f"{name}/{key}", torch.tensor(np.asarray(group[key]))) for key in keys)
            return
        found.append((f"{name}/0", torch.tensor(kernel(layer))))
        if getattr(layer, "bias", None) is not None:
            found.append((f"{name}/1", torch.tensor(np.asarray(group["1"]))))

    stored(path).visititems(visit)
    return found


def settle(path):
    """Writes an archive again without the time, so that it is the same each time."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members:
            if name == "metadata.json":
                continue
            archive.writestr(zipfile.ZipInfo(name), content)


def make(build, mode, config):
    keras.utils.set_random_seed(3)
    model = build()
    for weight in model.weights:
        shape = tuple(weight.shape)
        weight.assign(RNG.standard_normal(shape).astype(np.float32) * (0.1 if len(shape) > 1 else 1.0))
    model.quantize(mode, config=config)
    return model


def main():
    folder = HERE / "keras_quantized"
    shutil.rmtree(folder, ignore_errors=True)
    plain8 = lambda: Int8QuantizationConfig(activation_quantizer=None)
    plain4 = lambda block: Int4QuantizationConfig(activation_quantizer=None, block_size=block)
    cases = {
        "int8": (text, "int8", plain8()), "int8_nested": (nested, "int8", plain8()), "int8_odd": (odd, "int8", plain8()),
        "int4": (text, "int4", plain4(-1)), "int4_nested": (nested, "int4", plain4(-1)), "int4_odd": (odd, "int4", plain4(-1)),
        "int4_blocks": (text, "int4", plain4(4)), "int4_nested_blocks": (nested, "int4", plain4(4)),
        "int4_odd_blocks": (odd, "int4", plain4(3)),
    }  # fmt: skip
    for name, (build, mode, config) in cases.items():
        model = make(build, mode, config)
        case = folder / name
        case.mkdir(parents=True)
        model.save(case / "model.keras")
        settle(case / "model.keras")
        (case / "expected-f32.safetensors").write_bytes(safetensors(expected(model, case / "model.keras")))


if __name__ == "__main__":
    main()

"""Layers that Keras has quantized: `keras_quantized/` (models, and the kernels that the layers work with).

    pip install keras==3.15.1 torch==2.15.0 h5py==3.16.0 numpy==2.4.6
    cd tests/data/generate && python keras_cases.py

Keras 3.11 to 3.13 put codes of four bits of two rows in a byte. Their cases are made by `python keras_cases.py paired` with
keras==3.12.3, and those of GPTQ by `python keras_cases.py gptq` with keras==3.13.2: later versions do not save its zero points.
"""

import io
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import h5py
import keras
import numpy as np
from keras import layers as L
import torch

HERE = Path(__file__).parent.parent
RNG = np.random.default_rng(8)


def safetensors(tensors):
    """A file of tensors in F32, in this order."""
    header, at, data = {}, 0, b""
    for name, t in tensors:
        part = t.numpy().astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + len(part)]}
        at, data = at + len(part), data + part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


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


def one():
    """Layers with one column, and an odd number of rows."""
    inputs = keras.Input((3, 5))
    x = L.EinsumDense("abc,cd->abd", output_shape=(3, 7), bias_axes="d", name="square")(inputs)
    return keras.Model(inputs, L.Dense(1, name="one")(L.Dense(9, name="odd")(x)))


def even():
    """Layers whose inputs are multiples of four, as GPTQ with groups of four asks for."""
    inputs = keras.Input((3, 8))
    x = L.EinsumDense("abc,cde->abde", output_shape=(3, 2, 6), bias_axes="de", name="heads")(inputs)
    x = L.EinsumDense("abde,dec->abc", output_shape=(3, 12), name="joined")(x)
    return keras.Model(inputs, L.Dense(7, name="odd")(x))


def reversible(is_tied):
    def build():
        inputs = keras.Input((5,), dtype="int32")
        words = L.ReversibleEmbedding(11, 6, tie_weights=is_tied, name="words")
        return keras.Model(inputs, words(words(inputs), reverse=True))

    return build


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
    if path.suffix == ".h5":
        return h5py.File(path, "r")
    with zipfile.ZipFile(path) as archive:
        return h5py.File(io.BytesIO(archive.read("model.weights.h5")), "r")


def back(layer):
    """The matrix of the way back of an embedding that has one of its own."""
    return np.asarray(keras.ops.convert_to_numpy(layer(np.eye(layer.output_dim, dtype=np.float32), reverse=True)))


def whole(model, path):
    """The tensors of a model in `.h5`, where variables have names."""
    found = []
    for layer in layers_of(model):
        name = f"model_weights/{layer.name}/{layer.name}"
        for weight in layer.weights:
            if weight.name in ("embeddings", "kernel"):
                found.append((f"{name}/{weight.name}", torch.tensor(kernel(layer))))
            elif weight.name in ("bias", "gamma", "beta"):
                found.append((f"{name}/{weight.name}", torch.tensor(np.asarray(stored(path)[f"{name}/{weight.name}"]))))
    return found


def expected(model, path):
    """Tensors of a saved model by the paths of their datasets: kernels as they are, and whatever is no companion."""
    layers = {layer.name: layer for layer in layers_of(model)}
    found = []

    def visit(name, group):
        if not name.endswith("vars") or not isinstance(group, h5py.Group) or not len(group):
            return
        layer = layers[group.attrs["name"]]
        mode = getattr(layer, "quantization_mode", None)
        first = int(mode in ("gptq", "awq") and layer.bias is not None)
        keys = sorted(group, key=int)
        if mode is None:
            found.extend((f"{name}/{key}", torch.tensor(np.asarray(group[key]))) for key in keys)
            return
        found.append((f"{name}/{first}", torch.tensor(kernel(layer))))
        if isinstance(layer, getattr(L, "ReversibleEmbedding", ())) and not layer.tie_weights:
            found.append((f"{name}/2", torch.tensor(back(layer))))
        if getattr(layer, "bias", None) is not None:
            found.append((f"{name}/{1 - first}", torch.tensor(np.asarray(group[f"{1 - first}"]))))

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
    if config is not None:
        model.quantize(mode, config=config)
        return model
    model.quantize(mode)
    for layer in layers_of(model):
        # Older versions always quantize inputs: those of an identity matrix stay what they are.
        layer.inputs_quantizer = lambda x, **_: (x.to(torch.int8), torch.ones([1] * x.ndim))
    return model


def make_indexed(build, options):
    """A model whose layers GPTQ has quantized, each by itself."""
    from keras.quantizers import GPTQConfig
    from keras.src.quantizers.gptq import GPTQ

    keras.utils.set_random_seed(3)
    model = build()
    for weight in model.weights:
        weight.assign(RNG.standard_normal(tuple(weight.shape)).astype(np.float32) * 0.1)
    for layer in layers_of(model):
        if not isinstance(layer, (L.Dense, L.EinsumDense)):
            continue
        config = GPTQConfig(dataset=None, tokenizer=None, **options)
        layer.quantize("gptq", config=config)
        by = GPTQ(layer, config)
        inputs = RNG.standard_normal((32, int(by.rows))) * (1 + np.arange(int(by.rows)) % 3)
        by.update_hessian_with_batch(keras.ops.convert_to_tensor(inputs.astype(np.float32)))
        by.quantize_and_correct_layer()
    return model


def save_archive(model, case):
    model.save(case / "model.keras")
    settle(case / "model.keras")
    return case / "model.keras"


def save_weights(model, case):
    """The weights alone, with the config beside them, as in an archive that was unpacked."""
    model.save_weights(case / "model.weights.h5")
    (case / "config.json").write_text(json.dumps(json.loads(model.to_json()), indent=1) + "\n")
    return case / "model.weights.h5"


def save_whole(model, case):
    model.save(case / "model.h5")
    return case / "model.h5"


def write(name, model, save):
    case = HERE / "keras_quantized" / name
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir(parents=True)
    path = save(model, case)
    found = whole(model, path) if save is save_whole else expected(model, path)
    (case / "expected-f32.safetensors").write_bytes(safetensors(found))


def paired():
    for name, build, save in [
        ("int4_paired", one, save_archive), ("int4_paired_odd", odd, save_archive), ("int4_paired_weights", one, save_weights),
    ]:  # fmt: skip
        write(name, make(build, "int4", None), save)


def indexed():
    cases = {
        "gptq": (even, {"weight_bits": 4, "group_size": 4}, save_archive),
        "gptq_order": (even, {"weight_bits": 4, "group_size": 4, "activation_order": True}, save_weights),
        "gptq_one_group": (one, {"weight_bits": 4, "group_size": -1}, save_archive),
        "gptq_8": (even, {"weight_bits": 8, "group_size": 4}, save_archive),
        "gptq_3": (one, {"weight_bits": 3, "group_size": -1}, save_archive),
    }  # fmt: skip
    for name, (build, options, save) in cases.items():
        write(name, make_indexed(build, options), save)


def main():
    from keras.quantizers import Int4QuantizationConfig, Int8QuantizationConfig

    plain8 = lambda: Int8QuantizationConfig(activation_quantizer=None)
    plain4 = lambda block: Int4QuantizationConfig(activation_quantizer=None, block_size=block)
    cases = {
        "int8": (text, "int8", plain8()), "int8_nested": (nested, "int8", plain8()), "int8_odd": (odd, "int8", plain8()),
        "int4": (text, "int4", plain4(-1)), "int4_nested": (nested, "int4", plain4(-1)), "int4_odd": (odd, "int4", plain4(-1)),
        "int4_blocks": (text, "int4", plain4(4)), "int4_nested_blocks": (nested, "int4", plain4(4)),
        "int4_odd_blocks": (odd, "int4", plain4(3)),
    }  # fmt: skip
    for name, (build, mode, config) in cases.items():
        write(name, make(build, mode, config), save_archive)
    more = {
        "int8_weights": (text, "int8", plain8(), save_weights), "int4_weights": (text, "int4", plain4(-1), save_weights),
        "int4_blocks_weights": (text, "int4", plain4(4), save_weights),
        "int8_whole": (text, "int8", plain8(), save_whole), "int4_whole": (odd, "int4", plain4(-1), save_whole),
        "int4_blocks_whole": (odd, "int4", plain4(3), save_whole),
        "int8_one": (one, "int8", plain8(), save_weights), "int4_one": (one, "int4", plain4(-1), save_weights),
        "int8_tied": (reversible(True), "int8", plain8(), save_archive),
        "int8_untied": (reversible(False), "int8", plain8(), save_archive),
        "int4_tied": (reversible(True), "int4", plain4(-1), save_archive),
    }  # fmt: skip
    for name, (build, mode, config, save) in more.items():
        write(name, make(build, mode, config), save)


if __name__ == "__main__":
    {"paired": paired, "gptq": indexed}.get("".join(sys.argv[1:]), main)()

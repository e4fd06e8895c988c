"""Layers that Keras has quantized: `keras_quantized/` (models, and the kernels that the layers work with).

    pip install keras==3.15.1 torch==2.15.0 h5py==3.16.0 numpy==2.4.6
    cd tests/data/generate && python keras_cases.py

Keras 3.11 to 3.13 put codes of four bits of two rows in a byte. Their cases are made by `python keras_cases.py paired` with
keras==3.12.3, and those of GPTQ by `python keras_cases.py gptq` with keras==3.13.2: later versions do not save its zero points.
Models of KerasHub are made by `python keras_cases.py hub` with keras-hub==0.32.0 and tensorflow-cpu==2.21.0 as well.
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


def attention(is_gated=True):
    """Layers inside of others, which the config does not have."""

    def build():
        queries, values = keras.Input((5, 9)), keras.Input((4, 6))
        x = L.MultiHeadAttention(2, 3, value_dim=5, name="cross")(queries, values)
        gate = {"use_gate": True} if is_gated else {}
        x = L.GroupQueryAttention(4, 4, 2, use_bias=False, name="self", **gate)(x, x)
        return keras.Model([queries, values], L.Dense(3, name="query")(x))

    return build


def even_attention():
    """The model's dimension is the largest, by which GPTQ tells a projection from an output."""
    inputs = keras.Input((5, 8))
    x = L.MultiHeadAttention(2, 4, name="cross")(inputs, inputs)
    x = L.GroupQueryAttention(4, 4, 2, use_bias=False, name="self")(x, x)
    return keras.Model(inputs, L.Dense(3, name="query")(x))


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
    activation, layer.activation = layer.activation, None
    shape = layer.get_build_config()["input_shape"]
    equation = "bc,cd->bd" if isinstance(layer, L.Dense) else layer.equation
    inputs, rest = equation.split(",")
    weight, output = rest.split("->")
    summed, kept_axes = [c for c in weight if c in inputs], [c for c in output if c in weight]
    sizes = shape[-len(summed) :]
    n = int(np.prod(sizes))
    one = np.eye(n, dtype=np.float32).reshape(n, *[1] * (len(shape) - 1 - len(summed)), *sizes)
    made = np.asarray(keras.ops.convert_to_numpy(layer(one).float()))
    made = made.reshape(*sizes, *made.shape[-len(kept_axes) :])
    axes = summed + kept_axes
    made = np.ascontiguousarray(made.transpose([axes.index(c) for c in weight]))
    layer.activation = activation
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


def by_path(model, names):
    """The layer inside of those that `names` begins with; models have no part in the paths of layers."""
    layers = {layer.path: layer for layer in model._flatten_layers()}
    paths = ("/".join(names[i:]) for i in range(len(names)))
    return next(layers[path] for path in paths if path in layers)


def whole(model, path):
    """The tensors of a model in `.h5`, where variables have names."""
    found = []

    def visit(name, data):
        if not isinstance(data, h5py.Dataset):
            return
        around, variable = name.rsplit("/", 1)
        layer = by_path(model, around.split("/")[2:])
        if variable in ("embeddings", "kernel"):
            found.append((name, torch.tensor(kernel(layer))))
        elif variable in ("bias", "gamma", "beta"):
            found.append((name, torch.tensor(np.asarray(data))))

    stored(path).visititems(visit)
    return found


def expected(model, path):
    """Tensors of a saved model by the paths of their datasets: kernels as they are, and whatever is no companion."""
    found, file = [], stored(path)

    def visit(name, group):
        if not name.endswith("vars") or not isinstance(group, h5py.Group) or not len(group):
            return
        parts = name.split("/")[:-1]
        around = ["/".join([*parts[: i + 1], "vars"]) for i in range(len(parts))]
        layer = by_path(model, [file[vars].attrs["name"] for vars in around if vars in file])
        mode = getattr(layer, "quantization_mode", None)
        keys = sorted(group, key=int)
        if mode is None:
            found.extend((f"{name}/{key}", torch.tensor(np.asarray(group[key]))) for key in keys)
            return
        bias = getattr(layer, "bias", None)
        first = int(mode in ("gptq", "awq") and bias is not None)
        found.append((f"{name}/{first}", torch.tensor(kernel(layer))))
        if isinstance(layer, getattr(L, "ReversibleEmbedding", ())) and not layer.tie_weights:
            found.append((f"{name}/{4 if len(keys) == 7 else 2}", torch.tensor(back(layer))))
        if bias is not None:
            found.append((f"{name}/{1 - first}", torch.tensor(np.asarray(group[f"{1 - first}"]))))

    file.visititems(visit)
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
    for layer in model._flatten_layers():
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
    for layer in model._flatten_layers():
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


def save_preset(model, case):
    """Weights and config of a model of KerasHub."""
    model.save_to_preset(str(case))
    (case / "metadata.json").unlink()
    return case / "model.weights.h5"


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
        ("int4_paired_attention", attention(False), save_archive),
    ]:  # fmt: skip
        write(name, make(build, "int4", None), save)


def indexed():
    cases = {
        "gptq": (even, {"weight_bits": 4, "group_size": 4}, save_archive),
        "gptq_order": (even, {"weight_bits": 4, "group_size": 4, "activation_order": True}, save_weights),
        "gptq_one_group": (one, {"weight_bits": 4, "group_size": -1}, save_archive),
        "gptq_8": (even, {"weight_bits": 8, "group_size": 4}, save_archive),
        "gptq_attention": (even_attention, {"weight_bits": 4, "group_size": 4}, save_archive),
        "gptq_3": (one, {"weight_bits": 3, "group_size": -1}, save_archive),
    }  # fmt: skip
    for name, (build, options, save) in cases.items():
        write(name, make_indexed(build, options), save)


def plain8():
    return keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)


def plain4(block):
    return keras.quantizers.Int4QuantizationConfig(activation_quantizer=None, block_size=block)


def hub():
    from keras_hub import models

    common = {"vocabulary_size": 11, "num_layers": 1, "hidden_dim": 8, "intermediate_dim": 6}
    grouped = {"num_query_heads": 4, "num_key_value_heads": 2, **common}
    gemma = lambda: models.GemmaBackbone(head_dim=4, **grouped)  # noqa: E731
    llama = lambda: models.LlamaBackbone(**grouped)  # noqa: E731
    neox = lambda: models.GPTNeoXBackbone(num_heads=2, max_sequence_length=6, **common)  # noqa: E731
    opt = lambda: models.OPTBackbone(num_heads=2, max_sequence_length=6, **common)  # noqa: E731
    cases = {
        "hub_gemma_int8": (gemma, "int8", plain8()), "hub_gemma_int4": (gemma, "int4", plain4(-1)),
        "hub_llama_int4_blocks": (llama, "int4", plain4(4)), "hub_neox_int4": (neox, "int4", plain4(-1)),
        "hub_opt_int8": (opt, "int8", plain8()),
    }  # fmt: skip
    for name, (build, mode, config) in cases.items():
        write(name, make(build, mode, config), save_preset)


def main():
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
        "int4_untied": (reversible(False), "int4", plain4(-1), save_archive),
        "int8_attention": (attention(), "int8", plain8(), save_archive),
        "int4_attention": (attention(), "int4", plain4(-1), save_weights),
        "int4_blocks_attention": (attention(), "int4", plain4(4), save_archive),
        "int4_blocks_attention_whole": (attention(), "int4", plain4(4), save_whole),
        "int8_attention_whole": (attention(), "int8", plain8(), save_whole),
    }  # fmt: skip
    for name, (build, mode, config, save) in more.items():
        write(name, make(build, mode, config), save)


if __name__ == "__main__":
    {"paired": paired, "gptq": indexed, "hub": hub}.get("".join(sys.argv[1:]), main)()

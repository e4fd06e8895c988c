"""Golden DFloat11 models: encoded by dfloat11's own encoder on CPU. What is decoded are the weights that were encoded.

Run: `python dfloat11_cases.py FILE`, with FILE the `dfloat11/dfloat11_utils.py` of https://github.com/LeanModels/DFloat11 at
457733886ce6ebc6d8dda1621fad1ffa2661e028 (see ../README.md). The package imports kernels of GPUs; this module needs dahuffman.
"""

import contextlib
import importlib.util
import io
import sys
import types

import torch

from modelcase import BF16, ModelCase, total


def load(file):
    sys.modules.setdefault("tqdm", types.SimpleNamespace(tqdm=lambda x, **_: x))
    spec = importlib.util.spec_from_file_location("dfloat11_utils", file)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class Case(ModelCase):
    """What `compress_model` stores of a module, with `threads` of a block."""

    def __init__(self, name, config, patterns, threads=512, **more):
        settings = {"version": "0.5.0", "threads_per_block": [threads], "bytes_per_thread": 8, "pattern_dict": patterns}
        super().__init__("dfloat11", name, {**config, "dfloat11_config": settings}, **more)
        self.threads = threads

    def module(self, module, weights):
        """`weights`: path below the module -> weight; the module's own under the empty path."""
        flat = [w.flatten() for w in weights.values()]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            _, counter = utils.get_codec(torch.cat(flat))
            codec, _, table = utils.get_32bit_codec(counter)
            luts = utils.get_luts(table)
            codes, rest, positions, gaps, splits = utils.encode_weights(flat, codec, 8, self.threads)
        self.notes.append(f"{module}: codes of up to {max(n for n, _ in table.values())} bits, {len(positions) - 1} chunks")
        parts = {"luts": luts, "encoded_exponent": codes, "sign_mantissa": rest, "output_positions": positions.view(torch.uint8),
                 "gaps": gaps, "split_positions": splits}
        self.add({f"{module}.{name}": t for name, t in parts.items()})
        for path, weight in weights.items():
            name = ".".join(part for part in (module, path, "weight") if part)
            self.expect(name, weight.float())

    def weight(self, n, k, scale=0.05):
        return self.randn(n, k, scale=scale).to(BF16)


LAYER = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
         "mlp.down_proj"]


def llama(case, hidden, kv, inter, vocab, layers):
    for i in range(layers):
        shapes = [(hidden, hidden), (kv, hidden), (kv, hidden), (hidden, hidden), (inter, hidden), (inter, hidden), (hidden, inter)]
        case.module(f"model.layers.{i}", {path: case.weight(*shape) for path, shape in zip(LAYER, shapes)})
        case.norm(hidden, f"model.layers.{i}.input_layernorm.weight")
    case.module("model.embed_tokens", {"": case.weight(vocab, hidden, 1.0)})
    case.module("lm_head", {"": case.weight(vocab, hidden)})
    case.norm(hidden)


PATTERNS = {r"lm_head": [], r"model\.embed_tokens": [], r"model\.layers\.\d+": LAYER}


def sizes(hidden, heads, kv_heads, inter, vocab):
    return {"model_type": "llama", "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "intermediate_size": inter, "vocab_size": vocab}


def main(file):
    global utils
    utils = load(file)

    case = Case("llama", sizes(64, 4, 2, 128, 96), PATTERNS, shards=2)
    llama(case, 64, 32, 128, 96, 2)
    case.write()

    # Chunks of 96 bytes, whose gaps do not begin with a byte.
    case = Case("short_chunks", sizes(24, 3, 1, 40, 17), PATTERNS, threads=12)
    llama(case, 24, 8, 40, 17, 1)
    case.write()

    # Names that config.json says nothing of: biases tell the shapes.
    case = Case("biases", {"_class_name": "Transformer"}, {r"transformer_blocks\.\d+": ["attn.to_q", "norm1.linear"]})
    case.module("transformer_blocks.3", {"attn.to_q": case.weight(33, 47), "norm1.linear": case.weight(90, 5, 1e-30)})
    case.keep("transformer_blocks.3.attn.to_q.bias", case.randn(33).to(BF16))
    case.keep("transformer_blocks.3.norm1.linear.bias", case.randn(90).to(BF16))
    case.write()

    # Exponents twice as frequent as the next: codes of 1 to 15 bits. Zeros, denormal numbers and the largest exponents that
    # the encoder knows are among them.
    case = Case("deep", sizes(257, 1, 1, 257, 255), PATTERNS)
    exponents = torch.cat([torch.full((2**i,), e, dtype=torch.int32) for i, e in enumerate(
        [239, 0, 1, 200, 238, 60, 128, 126, 120, 119, 118, 117, 116, 115, 114, 113])])
    exponents = exponents[torch.randperm(len(exponents), generator=case.rng)]
    rest = torch.randint(0, 256, exponents.shape, generator=case.rng, dtype=torch.int32)
    bits = (rest & 128) << 8 | exponents << 7 | rest & 127
    case.module("lm_head", {"": bits.to(torch.int16).view(BF16).reshape(255, 257)})
    case.write()

    case = Case("refused_shape", {"model_type": "other"}, PATTERNS)
    case.module("lm_head", {"": case.weight(12, 20)})
    case.refuse("lm_head.encoded_exponent", "nothing tells the shape")
    case.write()

    case = Case("refused_pattern", sizes(20, 1, 1, 20, 12), {r"model\.layers\.\d+": LAYER})
    case.module("lm_head", {"": case.weight(12, 20)})
    case.refuse("lm_head.encoded_exponent", "no pattern matches")
    case.write()
    total("dfloat11")


if __name__ == "__main__":
    main(sys.argv[1])

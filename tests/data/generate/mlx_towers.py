"""Golden MLX directories of models whose layers are wider than `hidden_size` says, or narrower.

Usage: see ../README.md. It writes `../mlx_towers`: models of mlx-audio, mlx-vlm and mlx-lm, quantized by `nn.quantize` and
decoded by mlx. Their configs name no module, so that only the default tells the widths.
"""

import shutil
import sys

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_audio.tts.models.sesame.sesame import SesameModel
from mlx_lm.models import phi3small
from mlx_vlm.speculative.drafters.eagle3 import config as eagle3_config, eagle3

from fp8 import DATA, F32
from layout import Layout
from mlx_affine import decode, to_torch

ENDS = ("weight", "scales", "biases")
LLAMA = {"model_type": "llama", "hidden_size": 128, "intermediate_size": 4, "num_attention_heads": 1, "num_key_value_heads": 1,
         "head_dim": 4, "num_hidden_layers": 1, "vocab_size": 6, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
         "rope_theta": 1e4}


def golden(name, model, config, bits, leave=()):
    """`model`, quantized with one default for all modules that it fits. Modules of `leave` are left out of the file."""
    quantization = {"group_size": 64, "bits": bits, "mode": "affine"}
    c = Layout("mlx_towers", name, config | {"quantization": quantization, "quantization_config": quantization}, "mlx")
    mx.random.seed(c.rng.initial_seed())
    model.set_dtype(mx.bfloat16)
    model.update(mx_map(model, lambda v: mx.random.normal(v.shape).astype(v.dtype) if v.dtype == mx.bfloat16 else v))
    fits = lambda path, m: hasattr(m, "to_quantized") and m.weight.shape[-1] % 64 == 0  # noqa: E731
    nn.quantize(model, 64, bits, class_predicate=fits)
    quantized = {path: m for path, m in model.named_modules() if "scales" in m}
    is_left = lambda path: any(module in path for module in leave)  # noqa: E731
    for path, value in tree_flatten(model.parameters()):
        module, _, end = path.rpartition(".")
        if is_left(path):
            continue
        if module in quantized and end in ENDS:
            c.add({path: to_torch(value)})
        else:
            c.keep(path, to_torch(value))
    for path, m in quantized.items():
        if is_left(path + "."):
            continue
        p = {end: to_torch(m[end]) for end in ENDS}
        c.decoded(f"{path}.weight", decode(p, 64, bits, dtype=F32), decode(p, 64, bits))
        assert to_torch(m.weight).shape[-1] * 32 // bits == c.expected[f"{path}.weight"].shape[-1]
    c.write()


def mx_map(model, f):
    from mlx.utils import tree_map

    return tree_map(f, model.parameters())


class Csm(nn.Module):
    """The backbone and its depth decoder, with the names that mlx-audio saves, and without the codec."""

    def __init__(self, config):
        super().__init__()
        self.model = SesameModel(config)


def csm(name, hidden, depth, bits):
    shared = LLAMA | {
        "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02, "mlp_bias": False,
        "use_cache": True, "num_codebooks": 2, "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 0.5, "low_freq_factor": 0.125, "original_max_position_embeddings": 1024,
            "rope_type": "llama3"}}
    decoder = shared | {"model_type": "csm_depth_decoder_model", "hidden_size": depth, "backbone_hidden_size": hidden}
    config = shared | {
        "model_type": "csm", "hidden_size": hidden, "backbone_flavor": "llama-1B", "decoder_flavor": "llama-100M",
        "text_vocab_size": 6, "audio_vocab_size": 3, "audio_num_codebooks": 2, "audio_eos_token_id": 1, "audio_token_id": 2,
        "bos_token_id": 3, "codebook_eos_token_id": 0, "codebook_pad_token_id": 5, "pad_token_id": 0,
        "tie_codebooks_embeddings": True, "tie_word_embeddings": False, "depth_decoder_config": decoder}
    golden(name, Csm(config), config, bits, (".projection.", "_embeddings.", "_head"))


def draft():
    """EAGLE-3: the first layer attends to two streams side by side."""
    config = LLAMA | {"hidden_size": 64, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 5}
    model = eagle3.Eagle3DraftModel(eagle3_config.Eagle3Config.from_dict(config | {"transformer_layer_config": config}))
    golden("eagle3", model, config, 4, ("fc.",))


def fused_gate():
    """Phi-3-small: `up_proj` has the gate too, and `down_proj` half as many inputs as that has outputs."""
    config = {"model_type": "phi3small", "hidden_size": 8, "dense_attention_every_n_layers": 2, "ff_intermediate_size": 64,
              "gegelu_limit": 20.0, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
              "layer_norm_epsilon": 1e-5, "vocab_size": 6, "mup_attn_multiplier": 1.0, "mup_use_scaling": True,
              "mup_embedding_multiplier": 10.0, "mup_width_multiplier": 8.0, "rope_embedding_base": 1e6,
              "blocksparse_block_size": 64, "blocksparse_num_local_blocks": 16, "blocksparse_vert_stride": 8}
    golden("phi3small", phi3small.Model(phi3small.ModelArgs.from_dict(config)), config, 8)


def main():
    shutil.rmtree(DATA / "mlx_towers", ignore_errors=True)
    csm("csm", 128, 64, 4)
    draft()
    fused_gate()


if __name__ == "__main__":
    sys.exit(main())

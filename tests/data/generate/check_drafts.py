"""Compares what drafts and layers that predict further tokens compute in llama.cpp, of files that `amn convert` makes, with their own classes.

    PYTHONPATH=SPECFORGE python -P check_drafts.py AMN WHOLE SCRATCH [NAME...]

transformers 5.24.0, torch 2.15.0; llama.cpp's C API, and the functions of llama-ext.h, of the wheel xllamacpp 2026.10.11549; SPECFORGE is the unpacked
wheel specforge 0.2.0. AMN is the program, WHOLE is tests/data/whole. Of each kind a small target and a draft with random weights are made and converted.
llama.cpp's context of the draft gets what its context of the target computes, as common/speculative.cpp passes it on, and predicts tokens one after the
other, each as it is chosen. The class gets the hidden states of transformers. Prints the largest relative square error of logits of a token, and how many
tokens both choose alike; exits with 1 above LIMIT.
"""

import ctypes
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))
import check_graphs  # noqa: E402
from whole_class_models import VOCAB  # noqa: E402

warnings.simplefilter("ignore")
AMN, WHOLE, SCRATCH = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
LIMIT = 3e-5
IDS = [5, 17, 100, 33, 260, 7, 40, 200, 41, 42, 90]  # and the token that is chosen behind them
DRAFTED = 3
HANDLE, FLOATS = ctypes.c_void_p, ctypes.POINTER(ctypes.c_float)
ENCODE, DECODE = 0, 1


class Rows(ctypes.Structure):
    """`llama_embd`."""
    _fields_ = [("data", HANDLE), ("rows", ctypes.c_size_t), ("width", ctypes.c_size_t)]


class Context:
    """A context of llama.cpp, of a file or of the model of another context."""

    api = check_graphs.library()

    def __init__(self, path, other=None, predicts=False):
        api = self.api
        api.llama_init_from_model.restype = api.llama_batch_ext_init.restype = api.llama_get_model.restype = HANDLE
        self.model = HANDLE(api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params()))
        assert self.model.value, f"llama.cpp does not load {path}"
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 64
        params.flash_attn_type, params.type_k, params.type_v, params.n_threads, params.n_threads_batch = 0, 0, 0, 1, 1
        params.ctx_type = int(predicts)
        params.ctx_other = other.handle.value if other else None
        self.handle = HANDLE(api.llama_init_from_model(self.model, params))
        assert self.handle.value, "llama.cpp makes no context"
        self.batch = HANDLE(api.llama_batch_ext_init(self.handle))
        self.width = api.llama_model_n_embd(self.model)
        api.llama_model_get_vocab.restype = HANDLE
        self.tokens = api.llama_vocab_n_tokens(HANDLE(api.llama_model_get_vocab(self.model)))

    def set_states(self, is_masked):
        """Has hidden states kept, of all entries or of those with an output."""
        self.api._Z26llama_set_embeddings_nextnP13llama_contextbb(self.handle, ctypes.c_bool(True), ctypes.c_bool(is_masked))

    def set_layers(self, layers):
        for layer in layers:
            self.api._Z34llama_set_embeddings_layer_inpP13llama_contextjb if False else None
            self.api._Z30llama_set_embeddings_layer_inpP13llama_contextjb(self.handle, ctypes.c_uint32(layer), ctypes.c_bool(True))

    def target_layers(self):
        get, count = self.api._Z28llama_model_target_layer_idsPK11llama_model, self.api._Z30llama_model_target_layer_ids_nPK11llama_model
        get.restype = ctypes.POINTER(ctypes.c_int32)
        return get(self.model)[: count(self.model)]

    def run(self, tokens, first, rows=None, outputs=True, kind=DECODE, positions=None):
        """Computes a batch of tokens, rows of numbers or both, whose positions begin with `first`."""
        api, keep = self.api, []
        api.llama_batch_ext_clear(self.batch)
        for at in range(len(tokens if tokens is not None else rows)):
            if rows is not None:
                row = np.ascontiguousarray(rows[at], np.float32)
                keep.append(row)
                row = Rows(row.ctypes.data, 1, row.size)
            if tokens is None:
                index = api.llama_batch_ext_add_embd(self.batch, 0, row)
            else:
                index = api.llama_batch_ext_add_token(self.batch, 0, int(tokens[at]))
                assert rows is None or api.llama_batch_ext_set_embd_token(self.batch, index, row) & 1
            assert index == at, index
            position = (ctypes.c_int32 * 4)(*[positions[at] if positions else first + at] * 4)
            api.llama_batch_ext_set_pos(self.batch, index, position)
            api.llama_batch_ext_set_output_logits(self.batch, index, ctypes.c_bool(outputs))
        assert api.llama_process(self.handle, kind, self.batch) == 0, "llama.cpp computes nothing"

    def array(self, function, shape, *arguments):
        function.restype = FLOATS
        found = function(self.handle, *arguments)
        assert found, "llama.cpp has no such numbers"
        return np.ctypeslib.as_array(found, shape).copy()

    def logits(self, at):
        return self.array(self.api.llama_get_logits_ith, (self.tokens,), ctypes.c_int32(at))

    def states(self, count, width=None):
        return self.array(self.api._Z26llama_get_embeddings_nextnP13llama_context, (count, width or self.width))

    def layer(self, layer, count):
        return self.array(self.api._Z30llama_get_embeddings_layer_inpP13llama_contextj, (count, self.width), ctypes.c_uint32(layer))

    def forget(self, first):
        self.api.llama_get_memory.restype = HANDLE
        memory = HANDLE(self.api.llama_get_memory(self.handle))
        self.api.llama_memory_seq_rm(memory, 0, first, -1)


def random_weights(model, seed=1):
    """Fills a model so that its numbers differ enough."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        p.data = 1 + 0.2 * noise if p.dim() == 1 and "norm" in name else 0.35 * noise
    return model.float().eval()


def write(directory, config, tensors, tokenizer=None):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({name: value.clone().contiguous() for name, value in tensors.items()}, directory / "model.safetensors", metadata={"format": "pt"})
    for path in (WHOLE / tokenizer / "hf").iterdir() if tokenizer else []:
        if not path.name.startswith(("config", "model", "generation_config")):
            shutil.copy(path, directory)


def convert(source, out, *options):
    out.unlink(missing_ok=True)
    done = subprocess.run([AMN, "convert", source, "--to", "gguf", "--out-dtype", "f32", *options, "-o", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


class Target:
    """A target in transformers, its directory and its file, hidden states and the next token."""

    def __init__(self, config, architecture, tokenizer):
        import transformers

        self.model = random_weights(getattr(transformers, architecture)(config))
        self.directory = SCRATCH / "target"
        state = {name: value for name, value in self.model.state_dict().items() if not (config.tie_word_embeddings and name == "lm_head.weight")}
        write(self.directory, config.to_dict() | dict(architectures=[architecture]), state, tokenizer)
        self.file = convert(self.directory, SCRATCH / "target.gguf")
        self.config = config
        with torch.no_grad():
            out = self.model(torch.tensor([IDS]), output_hidden_states=True)
        self.hidden = out.hidden_states
        self.next = int(out.logits[0, -1].argmax())
        self.logits = out.logits[0].numpy()


def error(got, want):
    """The relative square error, where a token of the draft has a number."""
    is_there = np.isfinite(want)
    assert np.array_equal(is_there, np.isfinite(got)), "other tokens have no logits"
    got, want = got[is_there], want[is_there]
    return float(((got - want) ** 2).sum() / ((want - want.mean()) ** 2).sum())


def target_in_llama_cpp(target, layers=(), has_states=False):
    context = Context(target.file)
    context.set_layers(layers)
    if has_states:
        context.set_states(is_masked=False)
    context.run(IDS, 0)
    got = error(context.logits(len(IDS) - 1), target.logits[-1])
    assert got < LIMIT, f"the target: {got}"
    return context


def of_llama(**more):
    from transformers import LlamaConfig
    return LlamaConfig(**dict(vocab_size=VOCAB, hidden_size=20, intermediate_size=24, num_hidden_layers=9, num_attention_heads=2, num_key_value_heads=1, head_dim=10, max_position_embeddings=64,
                              bos_token_id=0, eos_token_id=1, tie_word_embeddings=False) | more)


def of_qwen3(**more):
    from transformers import Qwen3Config
    return Qwen3Config(**dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=9, num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=64,
                              bos_token_id=0, eos_token_id=1, tie_word_embeddings=False) | more)


def eagle3(rope=None):
    """SpecForge's EAGLE-3: the states before three layers of the target, and half of its tokens."""
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3, prepare_decoder_attention_mask

    target = Target(of_llama(), "LlamaForCausalLM", "llama")
    config = of_llama(hidden_size=16, head_dim=8, num_hidden_layers=1, target_hidden_size=20, draft_vocab_size=VOCAB // 2, pad_token_id=0, **(rope or {}))
    model = random_weights(LlamaForCausalLMEagle3(config), 2)
    chosen = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))[: VOCAB // 2].sort().values
    model.d2t = chosen - torch.arange(VOCAB // 2)
    model.t2d = torch.isin(torch.arange(VOCAB), chosen)
    fields = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=64, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1,
                  tie_word_embeddings=False, architectures=["LlamaForCausalLMEagle3"], model_type="llama", rms_norm_eps=config.rms_norm_eps, rope_theta=10000.0, hidden_act="silu", draft_vocab_size=VOCAB // 2,
                  target_hidden_size=20) | (rope or {})
    write(SCRATCH / "draft", fields, model.state_dict())
    path = convert(SCRATCH / "draft", SCRATCH / "draft.gguf", "--base", target.directory)

    # Those of SpecForge are the outputs of layers 1, n / 2 - 1 and n - 4.
    features = torch.cat([target.hidden[at] for at in (2, 4, 6)], -1)
    tokens, states, want = IDS[1:] + [target.next], model.project_hidden_states(features), []
    with torch.no_grad():
        for _ in range(DRAFTED):
            count = len(tokens)
            mask = prepare_decoder_attention_mask(torch.ones(1, count, dtype=torch.bool), (1, count), states, 0)
            out = model.backbone(model.embed_input_ids(torch.tensor([tokens])), states, None, mask, torch.arange(count)[None])
            logits = torch.full((VOCAB,), -torch.inf)
            logits[chosen] = model.compute_logits(out[:, -1:])[0, 0]
            want.append(logits.numpy())
            tokens, states = tokens + [int(logits.argmax())], torch.cat([states, out[:, -1:]], 1)

    draft_layers = (2, 4, 6)
    over = target_in_llama_cpp(target, draft_layers)
    draft = Context(path, over)
    assert tuple(draft.target_layers()) == draft_layers, draft.target_layers()
    draft.set_states(is_masked=True)
    draft.run(None, 0, np.concatenate([over.layer(at, len(IDS)) for at in draft_layers], -1), kind=ENCODE)
    rows = draft.states(len(IDS))
    return want, chained(draft, IDS[1:] + [target.next], rows, 0)


def chained(draft, tokens, rows, first):
    """Logits of tokens that a draft predicts one after the other, each with its own state before."""
    draft.run(tokens, first, rows, outputs=False) if False else None
    got, first_of_next = [], first + len(tokens)
    draft.run(tokens[:-1], first, rows[:-1], outputs=False)
    tokens, rows = tokens[-1:], rows[-1:]
    for step in range(DRAFTED):
        draft.run(tokens, first_of_next - 1 + step, rows)
        logits, rows = draft.logits(0), draft.states(1)
        got.append(logits)
        tokens = [int(logits.argmax())]
    return got


LLAMA3 = dict(rope_theta=500000.0, rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32))


def dflash_model(kind, more, tokenizer="qwen3"):
    """A draft of SpecForge with the layers 1, 4 and 7 of a Qwen 3, the target, and its file."""
    from specforge.modeling.draft import DFlashDraftModel, DSparkDraftModel

    target = Target(of_qwen3(), "Qwen3ForCausalLM", tokenizer)
    config = of_qwen3(num_hidden_layers=2)
    config.num_target_layers, config.block_size = 9, DRAFTED + 1
    config.dflash_config = dict(mask_token_id=7, target_layer_ids=[1, 4, 7]) | more
    config._attn_implementation = "eager"
    model = random_weights({"DFlashDraftModel": DFlashDraftModel, "DSparkDraftModel": DSparkDraftModel}[kind](config), 2)
    fields = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=64, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1,
                  architectures=[kind], model_type="qwen3", rms_norm_eps=config.rms_norm_eps, rope_theta=10000.0, hidden_act="silu", attention_bias=False, num_target_layers=9, block_size=DRAFTED + 1,
                  dflash_config=config.dflash_config)
    write(SCRATCH / "draft", fields, model.state_dict())
    return target, model, convert(SCRATCH / "draft", SCRATCH / "draft.gguf", "--base", target.directory)


def block_in_llama_cpp(target, path, mask, layers, count):
    """Logits of a block of masks behind the next token, and of that."""
    over = target_in_llama_cpp(target, layers)
    draft = Context(path, over)
    assert tuple(draft.target_layers()) == tuple(layers), draft.target_layers()
    draft.set_states(is_masked=True)
    draft.api.llama_set_causal_attn(draft.handle, ctypes.c_bool(False))
    draft.run(None, 0, np.concatenate([over.layer(at, len(IDS)) for at in layers], -1), outputs=False)
    draft.run([target.next] + [mask] * (count - 1), len(IDS))
    return [draft.logits(at) for at in range(count)]


def block_of_specforge(target, model):
    """The hidden states of a block in SpecForge."""
    features = torch.cat([target.hidden[at + 1] for at in model.target_layer_ids], -1)
    block = torch.tensor([[target.next] + [model.mask_token_id] * (model.block_size - 1)])
    with torch.no_grad():
        return block, model(torch.arange(len(IDS) + model.block_size)[None], None, target.model.get_input_embeddings()(block), features)


def dflash():
    target, model, path = dflash_model("DFlashDraftModel", {})
    _, hidden = block_of_specforge(target, model)
    want = target.model.lm_head(hidden)[0, 1:].detach().numpy()
    return list(want), block_in_llama_cpp(target, path, 7, (2, 5, 8), DRAFTED + 1)[1:]


CASES = {"eagle3": eagle3, "eagle3_llama3": lambda: eagle3(LLAMA3), "dflash": dflash}


def main():
    is_wrong = False
    for name, case in CASES.items():
        if sys.argv[4:] and name not in sys.argv[4:]:
            continue
        want, got = case()
        worst = max(error(a, b) for a, b in zip(got, want, strict=True))
        alike = sum(int(a.argmax() == b.argmax()) for a, b in zip(got, want))
        print(f"{name}: {worst:.1g}, {alike} of {len(want)} tokens alike", flush=True)
        is_wrong |= not worst < LIMIT or alike < len(want)
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()

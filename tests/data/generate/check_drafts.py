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
import os
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
os.environ["GGML_NO_BACKTRACE"] = "1"
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
        api, self.predicts = self.api, predicts
        loading = api.llama_model_default_params()
        loading.flags[5] = predicts  # the layers that predict
        api.llama_init_from_model.restype = api.llama_batch_ext_init.restype = api.llama_get_model.restype = HANDLE
        self.model = HANDLE(api.llama_model_load_from_file(str(path).encode(), loading))
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
        """Has the states before these layers kept."""
        for layer in layers:
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
                set_row = api.llama_batch_ext_set_embd_state if self.predicts else api.llama_batch_ext_set_embd_token
                assert rows is None or set_row(self.batch, index, row) & 1
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


def target_in_llama_cpp(target, layers=(), has_states=False, before=lambda context: None):
    context = Context(target.file)
    before(context)
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


def block_in_llama_cpp(target, path, mask, layers, count, sure=None):
    """Logits of a block of masks behind the next token, and of that; with how sure the draft is of them, if it says."""
    over = target_in_llama_cpp(target, layers)
    draft = Context(path, over)
    assert tuple(draft.target_layers()) == tuple(layers), draft.target_layers()
    draft.set_states(is_masked=True)
    draft.api.llama_set_causal_attn(draft.handle, ctypes.c_bool(False))
    draft.run(None, 0, np.concatenate([over.layer(at, len(IDS)) for at in layers], -1), outputs=False)
    draft.run([target.next] + [mask] * (count - 1), len(IDS))
    if sure is not None:
        difference = abs(draft.states(count)[:, 0] - sure).max()
        assert difference < 1e-5, f"it is sure otherwise: {difference}"
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


def dspark():
    """SpecForge's DSpark. The token that begins the block has a token behind it, as in training."""
    target, model, path = dflash_model("DSparkDraftModel", dict(markov_rank=5, enable_confidence_head=True, confidence_head_with_markov=True))
    block, hidden = block_of_specforge(target, model)
    with torch.no_grad():
        base = target.model.lm_head(hidden)
        tokens, want = model.markov_head.sample_block_tokens(base, first_prev_token_ids=block[:, 0], hidden_states=hidden)
        sure = model.predict_confidence(hidden, prev_token_ids=torch.cat([block[:, :1], tokens[:, :-1]], 1)).sigmoid()
    got = block_in_llama_cpp(target, path, 7, (2, 5, 8), DRAFTED + 1, sure.flatten().numpy())
    return list(want[0].numpy()), got


def muse_glimmer():
    """transformers' draft of Muse Glimmer, with the states of a Llama of its width."""
    from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

    target = Target(of_llama(hidden_size=16, head_dim=8), "LlamaForCausalLM", "llama")
    fields = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8, rms_norm_eps=1e-5, max_position_embeddings=64, sliding_window=4,
                  rope_parameters=dict(rope_type="default", rope_theta=500000.0), layer_types=["sliding_attention", "full_attention"], hidden_act="silu", block_size=DRAFTED + 1, mask_token_id=7, target_layer_ids=[1, 4, 7])
    model = random_weights(MuseGlimmerAssistantModel(MuseGlimmerAssistantConfig(**fields)), 2)
    write(SCRATCH / "draft", fields | dict(architectures=["MuseGlimmerAssistantModel"], model_type="muse_glimmer_assistant"), model.state_dict())
    path = convert(SCRATCH / "draft", SCRATCH / "draft.gguf", "--base", target.directory)
    block = torch.tensor([[target.next] + [7] * DRAFTED])
    from transformers.cache_utils import DFlashCache
    cache = DFlashCache(config=model.config)
    cache.set_previous_accepted_tokens(len(IDS))
    with torch.no_grad():
        context = torch.cat([target.hidden[at + 1] for at in (1, 4, 7)], -1)
        hidden = model(target.model.get_input_embeddings()(block), context, cache=cache).last_hidden_state
        want = target.model.lm_head(hidden)[0, 1:].numpy()
    return list(want), block_in_llama_cpp(target, path, 7, (2, 5, 8), DRAFTED + 1)[1:]


def gemma4():
    """transformers' assistant of Gemma 4, which reads the keys and values of its target. No window ends within the tokens: of one, transformers reads its
    length and one more behind a prompt, and llama.cpp one less."""
    from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig

    tokens = VOCAB + 64
    fields = dict(hidden_size=20, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, global_head_dim=16, head_dim=8, sliding_window=32, vocab_size=tokens,
                  vocab_size_per_layer_input=tokens, hidden_size_per_layer_input=0, num_kv_shared_layers=0, final_logit_softcapping=30.0, bos_token_id=0, eos_token_id=1, pad_token_id=0, tie_word_embeddings=True)
    target = Target(Gemma4TextConfig(**fields, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2), "Gemma4ForCausalLM", "gemma4")
    text = Gemma4TextConfig(**fields | dict(hidden_size=16, num_hidden_layers=3, num_kv_shared_layers=3, vocab_size_per_layer_input=0, layer_types=["sliding_attention", "sliding_attention", "full_attention"], final_logit_softcapping=None))
    config = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=20)
    model = random_weights(Gemma4AssistantForCausalLM(config), 2)
    shutil.rmtree(SCRATCH / "draft", ignore_errors=True)
    model.save_pretrained(SCRATCH / "draft")
    path = convert(SCRATCH / "draft", SCRATCH / "draft.gguf", "--base", target.directory)
    with torch.no_grad():
        out = target.model(torch.tensor([IDS]), output_hidden_states=True, return_shared_kv_states=True)
        token, state, want = torch.tensor([[target.next]]), out.hidden_states[-1][:, -1:], []
        for _ in range(DRAFTED):
            inputs = torch.cat([target.model.get_input_embeddings()(token), state], -1)
            made = model(inputs_embeds=inputs, position_ids=torch.tensor([[len(IDS)]]), attention_mask=torch.ones(1, len(IDS)), shared_kv_states=out.shared_kv_states)
            token, state = made.logits.argmax(-1), made.last_hidden_state
            want.append(made.logits[0, 0].numpy())
    # The assistant shares the memory of its target from the beginning.
    drafts = []
    over = target_in_llama_cpp(target, has_states=True, before=lambda context: drafts.append(Context(path, context, predicts=True)))
    draft = drafts[0]
    draft.set_states(is_masked=True)
    got, tokens, rows = [], [target.next], over.states(len(IDS), 20)[-1:]
    for _ in range(DRAFTED):
        draft.run(tokens, len(IDS), rows)
        got.append(draft.logits(0))
        tokens, rows = [int(got[-1].argmax())], draft.array(draft.api._Z30llama_get_embeddings_nextn_ithP13llama_contexti, (1, 20), ctypes.c_int32(0))
    return want, got


def predicting(model_type, architecture, tokenizer, options, names):
    """transformers' MtpModel of a class: the layer behind the last one, and the same as a file of its own (`--mtp`). Each token but the first is predicted."""
    import transformers
    from transformers import CONFIG_MAPPING
    from transformers.modeling_layers import MtpModel

    layers = options["num_hidden_layers"]
    fields = dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=64, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1, pad_token_id=None,
                  tie_word_embeddings=False) | options
    make = CONFIG_MAPPING[model_type]
    more = dict(layer_types=options["layer_types"] + ["full_attention"]) if "layer_types" in options else {}
    large = random_weights(getattr(transformers, architecture)(make(**fields | dict(num_hidden_layers=layers + 1) | more)))
    config = make(**fields)
    config.num_mtp_layers, config.mtp_layer_types, config.mtp_mlp_layer_types = 1, ["full_attention"], ["sparse"]
    main = getattr(transformers, architecture)(config).float().eval()
    main.load_state_dict(large.state_dict(), strict=False)
    head = random_weights(MtpModel(main, 1), 2)
    head.tie_with_main_model(main)
    main.load_state_dict(large.state_dict(), strict=False)
    head.layers[0].mtp_block.load_state_dict(large.model.layers[layers].state_dict())

    source = SCRATCH / "target"
    shutil.rmtree(source, ignore_errors=True)
    large.save_pretrained(SCRATCH / "large", max_shard_size="1GB")
    from safetensors.torch import load_file
    state = {names["block"](key, layers): value for key, value in load_file(SCRATCH / "large/model.safetensors").items()}
    for ours, theirs in names["around"].items():
        state[theirs.format(layers)] = head.get_parameter(f"layers.0.{ours}").data
    saved = json.loads((SCRATCH / "large/config.json").read_text()) | names["fields"] | dict(num_hidden_layers=layers)
    if "layer_types" in saved:
        saved["layer_types"] = saved["layer_types"][:layers]
    if "mlp_layer_types" in saved:
        saved["mlp_layer_types"] = saved["mlp_layer_types"][:layers]
    write(source, saved, state, tokenizer)
    whole = convert(source, SCRATCH / "target.gguf")
    alone = convert(source, SCRATCH / "draft.gguf", "--mtp")

    with torch.no_grad():
        out = main(torch.tensor([IDS]), output_hidden_states=True)
        tokens = IDS[1:] + [int(out.logits[0, -1].argmax())]
        hidden = head.forward_layer(0, out.hidden_states[-1], torch.arange(1, len(IDS) + 1)[None], transformers.cache_utils.MtpCache(config=head.config), input_ids=torch.tensor([tokens]))
        want = list(main.lm_head(hidden)[0].numpy())
    target = type("", (), dict(file=whole, logits=out.logits[0].numpy()))
    over = target_in_llama_cpp(target, has_states=True)
    got = []
    for path in (whole, alone):
        draft = Context(path, over, predicts=True)
        draft.run(tokens, 1, over.states(len(IDS)))
        got += [draft.logits(at) for at in range(len(IDS))]
    return want * 2, got


AS_LAYER = dict(block=lambda key, layer: key, fields=dict(num_nextn_predict_layers=1),
                around={"enorm.weight": "model.layers.{}.enorm.weight", "hnorm.weight": "model.layers.{}.hnorm.weight", "eh_proj.weight": "model.layers.{}.eh_proj.weight", "post_norm.weight": "model.layers.{}.shared_head.norm.weight"})
AS_MTP = dict(block=lambda key, layer: key.replace(f"model.layers.{layer}.", "mtp.layers.0."), fields=dict(mtp_num_hidden_layers=1),
              around={"enorm.weight": "mtp.pre_fc_norm_embedding.weight", "hnorm.weight": "mtp.pre_fc_norm_hidden.weight", "eh_proj.weight": "mtp.fc.weight", "post_norm.weight": "mtp.norm.weight"})
EXPERTS = dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1, num_hidden_layers=2)
LATENT = EXPERTS | dict(num_key_value_heads=2, head_dim=4, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12)
LINEAR = dict(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=4, linear_value_head_dim=4)
ROPE = dict(rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.75, mrope_interleaved=True, mrope_section=[1, 1, 1]))
SPARSE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=12)
PREDICTING = {
    "mtp_glm4_moe": ("glm4_moe", "Glm4MoeForCausalLM", "glm4_moe_mtp", EXPERTS, AS_LAYER),
    "mtp_glm4_moe_lite": ("glm4_moe_lite", "Glm4MoeLiteForCausalLM", "glm4_moe_lite", LATENT, AS_LAYER),
    "mtp_qwen3_5": ("qwen3_5_text", "Qwen3_5ForCausalLM", "qwen3_5", LINEAR | ROPE, AS_MTP),
    "mtp_qwen3_5_moe": ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", "qwen3_5_moe", LINEAR | ROPE | SPARSE, AS_MTP),
    "mtp_qwen3_next": ("qwen3_next", "Qwen3NextForCausalLM", "qwen3_next", LINEAR | SPARSE | dict(rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.5)), AS_MTP),
}
CASES = {"eagle3": eagle3, "eagle3_llama3": lambda: eagle3(LLAMA3), "dflash": dflash, "dspark": dspark, "muse_glimmer": muse_glimmer, "gemma4": gemma4}
CASES |= {name: lambda case=case: predicting(*case) for name, case in PREDICTING.items()}


def main():
    is_wrong = False
    for name in sys.argv[4:] or CASES:
        if len(sys.argv) != 5:  # a process of its own for each, for llama.cpp aborts on some files
            is_wrong |= subprocess.run([sys.executable, "-P", *sys.argv[:4], name]).returncode != 0
            continue
        want, got = CASES[name]()
        worst = max(error(a, b) for a, b in zip(got, want, strict=True))
        alike = sum(int(a.argmax() == b.argmax()) for a, b in zip(got, want))
        print(f"{name}: {worst:.1g}, {alike} of {len(want)} tokens alike", flush=True)
        is_wrong |= not worst < LIMIT or alike < len(want)
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()

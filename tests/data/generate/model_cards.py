"""What llama.cpp's converter takes from model cards: `python model_cards.py` with gguf 0.19.0 and PyYAML 6.

`../model_cards.json` is a list of cards with the keys that `gguf.Metadata` gives a file, in their order, or null where this crate
leaves a card out that it cannot read for certain.
"""

import json
import tempfile
from pathlib import Path

import gguf

# Text of README.md, and whether the crate reads it.
FIELDS = """license: apache-2.0
license_name: my licence
license_link: https://example.org/a_b?c=d#e
language:
- en
- no
- zh-CN
tags:
  - text-generation
  - 4-bit
  - "12"
  - 'c: d'
  - 3d
pipeline_tag: text-generation
"""
OTHERS = """library_name: transformers  # which one
model-index:
- name: a
  results:
  - task: {type: text-generation, name: "x"}
    metrics: [1, 2]
    value: 0.5
widget:
  - text: Don't
    example: >
      license: mit
extra_gated_prompt: |
  license: mit
  - "open

license: [mit, "apache-2.0"]
languages: en
language: [de, fr]
inference: false
license_name:
license_link: ~
"""
READ = ["", "# A model\n", "---\nlicense: mit\n---", FIELDS, OTHERS, "---\n---\nlicense: mit\n", "license: mit\n---\n", " ---\nlicense: mit\n---\n",
        "tags:\n\n# none\n  - a\n\n  - b # c\nlicense: a#b\n", "tags: []\nlicense: other\n", "license: 'mit'\r\ntags:\r\n- a\r\n", "tags:\n-\ta\n",
        "license:   mit   \ntags: x, y\n", "license: a'b\"c\n", "license: 1a\nlicense_name: _1\n", "license_link: LICENSE\n"]
LEFT_OUT = ["license: yes\n", "license: 1.0\n", "license: 2024-01-01\n", "license: &a mit\n", "license: |\n  mit\n", "license: a\n  b\n", "license: mit\nlicense: mit\n",
            "tags:\n- a\n  b\n", "tags:\n- a: b\n", "tags:\n- [a]\n", "tags: [a, [b]]\n", "tags:\n-\n", "tags: [no]\n", "license_name: [a]\n", "\"license\": mit\n",
            "license: \"a\\n\"\n", "license: 'a''b'\n", "license: 0x1f\n", "license: .inf\n", "widget: [a,\nlicense: mit\n]\n", "widget:\n- \"a\nlicense: mit\"\n",
            "license: !!str mit\n", "<<: {license: mit}\n", "license: a\u2028b\n", "tags:\n  - a\n - b\n", "license: a- no\n", "license: 0777\n", "x: &a [\nlicense: mit\n]\n", "x:\n- ? [a,\nlicense: mit\n  ]\n"]


class Writer:
    """Keeps what is written."""

    def __init__(self):
        self.keys = {}

    def __getattr__(self, name):
        names = {"add_license": "general.license", "add_license_name": "general.license.name", "add_license_link": "general.license.link",
                 "add_tags": "general.tags", "add_languages": "general.languages"}

        def add(*values):
            # GGUFWriter leaves out arrays without a value.
            if name in names and values[0] != []:
                self.keys[names[name]] = values[0]

        return add


def whole(card):
    """A card of fields alone with the lines around it."""
    return card if not card or card[0] in "-# " or card.startswith("license: mit\n---") else f"---\n{card}---\n# A model\n"


def keys(card):
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "README.md").write_bytes(card.encode())
        writer = Writer()
        gguf.Metadata.load(None, Path(directory)).set_gguf_meta_model(writer)
    return list(writer.keys.items())


if __name__ == "__main__":
    rows = [[whole(card), keys(whole(card))] for card in READ] + [[whole(card), None] for card in LEFT_OUT]
    out = Path(__file__).parent.parent / "model_cards.json"
    out.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")

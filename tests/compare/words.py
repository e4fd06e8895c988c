"""Words that the program knows, and that no model of tests/data may have: from its source, and from a list of llama.cpp's keys."""

import json
import re
from collections import Counter, defaultdict

from containers import LIST, TEXT
from faults import BOOL, FLOAT32, UINT32
from inputs import DATA

SOURCE = DATA.parent.parent / "src"

# Words of Rust that are alternatives: `"a", "b"` or `"a" | "b"`.
WORD = r'"[A-Za-z][A-Za-z0-9_.-]*"'
ALTERNATIVES = re.compile(rf"{WORD}(?:\s*[,|]\s*{WORD})+")

# Names that an object gets, at most.
MOST_NAMES = 40


class Source:
    """Words in the program's source, without tests."""

    def __init__(self):
        # Words that stand in a list with a word, by the word, and the words of each file.
        self.beside, self.files = defaultdict(set), []
        for path in sorted(SOURCE.rglob("*.rs")):
            if "test" in str(path.relative_to(SOURCE)):
                continue
            text = path.read_text()
            for listed in ALTERNATIVES.findall(text):
                words = [word.strip('"') for word in re.findall(WORD, listed)]
                for word in words:
                    self.beside[word].update(words)
            self.files.append(set(re.findall(r'"([a-z][a-z0-9_]+)"', text)))

    def names_for(self, keys):
        """Names that stand in files with the keys of an object, those first that stand with most of them."""
        counts = Counter()
        for words in self.files:
            if found := len(words & keys):
                # Long files have words for many objects.
                counts.update(dict.fromkeys(words - keys, found / len(words)))
        return [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_NAMES]]


def keys_of_llama_cpp():
    """Keys behind the architecture, each with a type and a value that is not its default."""
    values = {"uint32": (UINT32, 3), "float32": (FLOAT32, 0.5), "bool": (BOOL, True), "string": (TEXT, "unknown"), "array": (LIST, (UINT32, [1, 2]))}
    listed = json.loads((DATA / "gguf_key_types.json").read_text())
    return {key.removeprefix("{arch}"): values[types[0]] for key, types in listed if key.startswith("{arch}") and types[0] in values}

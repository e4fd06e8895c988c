"""Types of GGUF metadata keys, as gguf-py's writer writes them: gguf_key_types.json.

Run: python tests/data/generate/gguf_key_types.py > tests/data/gguf_key_types.json
"""

import ast
import inspect
import json

from gguf import constants, gguf_writer


def key_of(node):
    """The key that an expression `Keys.A.B` or `Keys.A.B.format(…)` names; None for others."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return key_of(node.func.value)
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not (isinstance(node, ast.Name) and node.id == "Keys" and parts):
        return None
    found = constants.Keys
    for part in reversed(parts):
        found = getattr(found, part)
    return found if isinstance(found, str) else None


types = {}
for node in ast.walk(ast.parse(inspect.getsource(gguf_writer))):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.startswith("add_") and node.args:
        key = key_of(node.args[0])
        if key:
            types.setdefault(key, set()).add(node.func.attr.removeprefix("add_"))
rows = [json.dumps([key, sorted(types[key])]) for key in sorted(types)]
print("[\n" + ",\n".join(rows) + "\n]")

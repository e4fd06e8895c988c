"""Writes docs/images/terminal.svg: transcripts of the guides as a terminal shows them.

    python3 docs/images/terminal.py        (at the root of the repository; needs no package)

The tests keep the guides' transcripts true, and compare this picture with them.
"""

from html import escape
from pathlib import Path

# Page, first words of the command, and how many lines of it are shown.
SHOWN = [
    ("researcher.md", "amn show TinyLlama-NF4 \"model", 15),
    ("fine-tuning.md", "amn remember TinyLlama-FP8", 4),
    ("llama-cpp.md", "amn inspect TinyLlama-Q4_K_M.gguf", 10),
]
LINE, COLUMN = 18, 8.4


def transcript(page, command, most):
    text = Path("docs/guide", page).read_text()
    start = text.index("$ " + command)
    lines = text[start:].split("\n```")[0].split("\n$ ")[0].splitlines()
    return lines[:most]


lines = [line for row in SHOWN for line in [*transcript(*row), ""]][:-1]
width, height = COLUMN * max(map(len, lines)) + 40, LINE * len(lines) + 30
out = [
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" role="img">',
    "<title>amn in a terminal</title>",
    "<style>text{font:14px monospace;fill:#e6edf3;white-space:pre}.c{fill:#7ee787}</style>",
    '<rect width="100%" height="100%" rx="8" fill="#0d1117"/>',
]
for number, line in enumerate(lines):
    kind = ' class="c"' if line.startswith("$ ") else ""
    out.append(f'<text x="20" y="{28 + LINE * number}"{kind} xml:space="preserve">{escape(line, quote=False)}</text>')
Path("docs/images/terminal.svg").write_text("\n".join([*out, "</svg>"]) + "\n")

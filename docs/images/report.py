"""Writes docs/images/report.svg: the pictures of a page that `amn forget --html` has written.

    amn forget tests/data/guide/TinyLlama --to gguf:q4_k_m -o /tmp/tiny.gguf --html /tmp/loss.html
    python3 docs/images/report.py /tmp/loss.html        (at the root of the repository; needs no package)
"""

import re
import sys
from pathlib import Path

page = Path(sys.argv[1]).read_text()
style = page.split("<style>")[1].split("</style>")[0]
variables = re.findall(r"--[\w-]+: #\w+;", style.split("}")[0])
dark = re.findall(r"--[\w-]+: #\w+;", style.split("prefers-color-scheme: dark")[1].split("}")[0])
rules = [line for line in style.splitlines() if re.match(r"(\.c\d|\.more|\.bars|\.treemap text|svg text)", line)]

treemap = re.findall(r'<svg class="treemap".*?</svg>', page, re.S)[-1]
bars = re.findall(r'<svg class="bars".*?</svg>', page[page.index('id="errors"'):], re.S)[-1]
legend = re.findall(r'<ul class="legend">.*?</ul>', page, re.S)[-1]
entries = re.findall(r'<rect class="(c\d)".*?</svg>(.*?) <span>(.*?)</span>', legend)


def placed(svg, y):
    height = float(re.search(r'viewBox="0 0 \S+ (\S+)"', svg)[1])
    start = f'<svg x="20" y="{y:.0f}" width="960" height="{height * 0.96:.0f}" '
    return svg.replace("<svg ", start, 1), y + height * 0.96


out, y = [], 28
out.append(f'<text class="h" x="20" y="{y}">What takes the space</text>')
picture, y = placed(treemap, y + 10)
out.append(picture)
y += 16
x = 20
for color, name, rest in entries:
    out.append(f'<rect class="{color}" x="{x}" y="{y - 9:.0f}" width="10" height="10"/><text x="{x + 15}" y="{y:.0f}">{name}: {rest}</text>')
    y += 16
y += 18
out.append(f'<text class="h" x="20" y="{y:.0f}">Where the errors are: RMSE of each class of modules</text>')
picture, y = placed(bars, y + 10)
out.append(picture)
height = y + 10
css = "\n".join([
    ":root{" + "".join(variables) + "}",
    "@media (prefers-color-scheme: dark){:root{" + "".join(dark) + "}}",
    *rules,
    ".h{font-size:15px;font-weight:600}.page{fill:var(--card)}",
])
Path("docs/images/report.svg").write_text(
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 {height:.0f}" role="img">\n'
    f"<title>A report of amn</title>\n<style>\n{css}\n</style>\n"
    f'<rect class="page" width="100%" height="100%" rx="8"/>\n' + "\n".join(out) + "\n</svg>\n"
)

"""Follows docs/guide literally, with the real libraries: each page in an empty directory, commands and Python as they stand.

    python check_guides.py AMN [PAGE…]
        (torch 2.6.0, transformers 4.57.6, safetensors 0.8.0, numpy 2.4.6, llama-cpp-python 0.3.36, compressed-tensors)

Blocks of `sh` call programs that are not here (vLLM, Ollama, mlx-lm on a Mac) and are skipped. `ollama:` finds a store that
this script makes of the model of the guides.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
AMN = Path(sys.argv[1]).resolve()
BLOCK = re.compile(r"^```(text|python)\n(.*?)^```$", re.M | re.S)


def pull(home):
    """A store of Ollama's with one model."""
    store = home / ".ollama/models"
    (store / "blobs").mkdir(parents=True)
    manifest = store / "manifests/registry.ollama.ai/library/tinyllama/latest"
    manifest.parent.mkdir(parents=True)
    blob = store / "blobs/new.gguf"
    subprocess.run([AMN, "convert", ROOT / "tests/data/guide/TinyLlama", "--to", "gguf", "-o", blob], check=True)
    digest = hashlib.sha256(blob.read_bytes()).hexdigest()
    blob = blob.rename(blob.with_name(f"sha256-{digest}"))
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": blob.stat().st_size}
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))


def follow(page):
    text = page.read_text()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        Path("tests").symlink_to(ROOT / "tests")
        Path("bin").mkdir()
        Path("bin/amn").symlink_to(AMN)
        environment = {**os.environ, "HOME": directory, "PATH": f"{directory}/bin:{os.environ['PATH']}"}
        if "ollama:" in text:
            pull(Path(directory))
        names, commands, scripts = {}, 0, 0
        for kind, body in BLOCK.findall(text):
            if kind == "python":
                exec(compile(body, page.name, "exec"), names)
                scripts += 1
                continue
            for command in re.findall(r"^\$ (.*)$", body, re.M):
                subprocess.run(["sh", "-c", command], env=environment, capture_output=True)
                commands += 1
        print(f"{page.name}: {commands} commands, {scripts} pieces of Python", flush=True)


pages = sys.argv[2:] or sorted(path.name for path in (ROOT / "docs/guide").glob("*.md"))
for name in pages:
    follow(ROOT / "docs/guide" / name)

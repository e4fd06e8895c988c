"""Runs the workflows of docs/guide/ci.md in a repository with a good model, and again with a bad one.

    python check_ci.py AMN
        (pre-commit 4.7.0, sarif-tools 3.0.5)

Steps that install programs or need a code host are left out.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
AMN = Path(sys.argv[1]).resolve()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/guide/ci.md").read_text(), re.M | re.S)
GITHUB, GITLAB, HOOKS = BLOCKS
MODELS = {"good": "tests/data/demo/model-fp8.safetensors", "bad": "tests/data/pth/attack_eval.pt"}


def run(command, environment):
    return subprocess.run(["bash", "-ec", command], env=environment, capture_output=True, text=True)


def commands():
    """The workflow that each command is of, and whether it fails if a model is bad."""
    steps = yaml.safe_load(GITHUB)["jobs"]["models"]["steps"]
    for command in [step["run"] for step in steps if "run" in step and "install" not in step["run"]]:
        yield "GitHub", command, True
    job = yaml.safe_load(GITLAB)["models"]
    for command in job["script"]:
        yield "GitLab", command, True
    for command in job["after_script"]:
        yield "GitLab", command, False
    yield "pre-commit", "pre-commit run --all-files", True


for kind, model in MODELS.items():
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        Path("bin").mkdir()
        Path("bin/amn").symlink_to(AMN)
        Path("models").mkdir()
        source = ROOT / model
        Path("models", source.name).write_bytes(source.read_bytes())
        Path(".pre-commit-config.yaml").write_text(HOOKS)
        path = f"{directory}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "HOME": directory, "PATH": path}
        run("git init -q . && git add models .pre-commit-config.yaml", environment)
        for host, command, fails in commands():
            end = run(command, environment)
            is_expected = (end.returncode != 0) == (fails and kind == "bad")
            print(f"{host}, {kind} model: {command}: {end.returncode}", flush=True)
            assert is_expected, end.stdout + end.stderr
        for log in ["scan.sarif", "check.sarif"]:
            assert run(f"sarif summary {log}", environment).returncode == 0, log

"""What tests/data has to open."""

import os
import re
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data"

SUFFIXES = """bin ckpt dat distcp f32 gguf joblib llamafile metadata npy npz pkl pt pth qnat safetensors uqff""".split()

# What a model decodes to.
GOLDEN = re.compile(r"(^|/)expected-|\.expected\.|/library-f32|-expected")


class Inputs:
    """Paths below tests/data, sorted."""

    def __init__(self):
        files = sorted(str(p.relative_to(DATA)) for p in DATA.rglob("*") if p.is_file())
        # GGUF files of which the repository has the sums are made of the directories beside them.
        files = [re.sub(r"\.sums$", ".gguf", f) for f in files if not f.startswith("generate/")]
        weights = [f for f in files if f.rsplit(".", 1)[-1] in SUFFIXES]
        self.goldens = [f for f in weights if GOLDEN.search(f)]
        weights = [f for f in weights if not GOLDEN.search(f)]
        # A directory is an input if it has weights; single files of families that have no directories are.
        by_directory = {}
        for file in weights:
            by_directory.setdefault(os.path.dirname(file), []).append(file)
        with_goldens = {os.path.dirname(g) for g in self.goldens}
        collections = {d for d, inside in by_directory.items() if d in with_goldens or self.is_collection(d, inside)}
        self.directories = sorted(set(by_directory) - collections)
        self.directories += sorted(str(p.parent.relative_to(DATA)) for p in DATA.glob("deepspeed/*/latest"))
        # Bytes that a test gives a name and a shape: no models.
        bare = [f for f in weights if f.startswith(("ggml_encode/", "slices/")) and f.endswith((".bin", ".f32"))]
        weights = [f for f in weights if f not in set(bare)]
        self.files = weights
        # What is opened first: the directory where the files belong to it, else each file.
        self.main = self.directories + [f for f in weights if os.path.dirname(f) in collections]
        # The files of these directories by themselves, and directories with a model and its goldens.
        self.parts = [f for f in weights if os.path.dirname(f) not in collections]
        self.parts += [d for d in sorted(with_goldens & set(by_directory)) if "/" in d]
        self.tokenizers = sorted(str(p.relative_to(DATA)) for p in DATA.glob("models/tokenizers/*") if p.is_dir())
        self.families = sorted({f.split("/")[0] for f in files})
        self.existing = set(self.main + self.parts)
        self.others = bare + [f for f in files if f.endswith((".json", ".model", ".txt"))]

    @staticmethod
    def is_collection(directory, inside):
        """Whether the files of a directory are models each by itself."""
        if directory.count("/") == 0:
            return True
        names = [os.path.basename(f) for f in inside]
        return directory.startswith(("slices/", "ollama/models")) or any(n == "canonical.gguf" for n in names)

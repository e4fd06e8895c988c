"""A golden llamafile: an executable with a ZIP archive behind it, in which a GGUF file is stored at an aligned place.

Usage: see ../README.md. Written by Python's zipfile in the mode that appends to other files, whose offsets count from the beginning of
the executable, as those of llamafile's `zipalign` do. The GGUF file is the case `../gguf/q8_0`.
"""

import struct
import sys
import zipfile
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent
ALIGNMENT = 4096  # llamafile's is 65536, the largest page of any system
STAMP = (2026, 1, 1, 0, 0, 0)


def main():
    out = DATA / "llamafile" / "q8_0.llamafile"
    out.parent.mkdir(exist_ok=True)
    # The first bytes of an executable that runs on every system.
    out.write_bytes(b"MZqFpD='\n\n" + bytes(500))
    with zipfile.ZipFile(out, "a") as archive:
        args = zipfile.ZipInfo(".args", STAMP)
        archive.writestr(args, "-m\nq8_0.gguf\n-c\n0\n...\n", zipfile.ZIP_DEFLATED)
        model = zipfile.ZipInfo("q8_0.gguf", STAMP)
        archive.fp.flush()
        start = archive.fp.tell() + 30 + len("q8_0.gguf") + 4
        pad = -start % ALIGNMENT
        model.extra = struct.pack("<HH", 0xD935, pad) + bytes(pad)  # Android's and llamafile's field for padding
        archive.writestr(model, (DATA / "gguf" / "q8_0" / "model.gguf").read_bytes(), zipfile.ZIP_STORED)
    with zipfile.ZipFile(out) as archive:
        info = archive.getinfo("q8_0.gguf")
        header = out.read_bytes()[info.header_offset:]
        name, extra = struct.unpack("<HH", header[26:30])
        assert (info.header_offset + 30 + name + extra) % ALIGNMENT == 0


if __name__ == "__main__":
    sys.exit(main())

"""Times torch.load of a checkpoint beside benches/checkpoint.rs; makes the checkpoint if it is missing.

python3 benches/checkpoint.py /dev/shm/checkpoint.pth
"""

import statistics
import sys
import time
from pathlib import Path

import torch


def make(path):
    """300 F32 tensors in 296 MiB: 280 of 1 MiB each, and 20 views of one storage of 16 MiB."""
    torch.manual_seed(0)
    state = {f"layers.{i}.weight": torch.randn(512, 512) for i in range(280)}
    storage = torch.randn(4 << 20)
    for i in range(20):
        state[f"shared.{i}.weight"] = storage[i * 200_000 : (i + 1) * 200_000].view(400, 500)
    torch.save(state, path)


def median(f):
    times = []
    for _ in range(20):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


path = Path(sys.argv[1])
if not path.exists():
    make(path)
for mmap in (False, True):
    print(f"torch.load(mmap={mmap}): {median(lambda: torch.load(path, mmap=mmap)):.2f} ms")

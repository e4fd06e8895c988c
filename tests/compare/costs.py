"""What a run costs: the bytes that it reads and the memory that it touches."""

import os
import subprocess
import tempfile
import threading

# How much more of each the new program may take, as a factor and on top: pages depend on where the system puts things.
MORE = {"bytes read": (1.05, 64 << 10), "pages touched": (1.25, 1024)}

# Runs of each program after a difference, of which the least counts: with several threads it depends on the order.
RUNS = 3


class Costs(dict):
    """Sums over the steps of a command, by name."""

    def add(self, read, usage):
        self["bytes read"] = self.get("bytes read", 0) + read
        # Peaks of memory of a child begin with that of its parent, which is larger. Each page that is touched faults once.
        self["pages touched"] = self.get("pages touched", 0) + usage.ru_minflt + usage.ru_majflt


def run(arguments, timeout, **options):
    """Exit code, stdout, stderr, the bytes that were read, and the usage of resources."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=err, **options)
        timer = threading.Timer(timeout, child.kill)
        timer.start()
        # The counters are there until the process is waited for.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        timer.cancel()
        with open(f"/proc/{child.pid}/io") as counters:
            read = int(next(line for line in counters if line.startswith("rchar:")).split()[1])
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
        return child.returncode, *texts, read, usage


def more(old, new):
    """Lines that say what the new program takes more of."""
    lines = []
    for name, (factor, beside) in MORE.items():
        if new.get(name, 0) > old.get(name, 0) * factor + beside:
            lines.append(f"{name}: old {old.get(name, 0)}, new {new[name]}")
    return lines

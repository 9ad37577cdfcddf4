# SPDX-License-Identifier: BSL-1.0
"""The library beside the crate async-rdma, one operation at a time, in runs that take turns."""
import os
import select
import subprocess
import tempfile

KINDS = [(name, work, bytes_) for name, work in (("WRITE", "write"), ("READ", "read"), ("messages", "send"))
         for bytes_ in (64, 65536)]
LIMIT = 30  # seconds for an answer; a run takes a fraction of one


class Contestant:
    """A program that carries out runs on command."""

    def __init__(self, command, environment):
        self.errors = tempfile.TemporaryFile("w+")
        self.seconds = []
        self.said = None
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        env=environment, bufsize=0)

    def run(self, operations):
        """Seconds, or None for good."""
        if self.said is not None:
            return None
        try:
            self.process.stdin.write(b"%d\n" % operations)
            if not select.select([self.process.stdout], [], [], LIMIT)[0]:
                return self.fail(f"no end after {LIMIT} s")
            return float(self.process.stdout.readline())
        except (OSError, ValueError):
            return self.fail(f"ended with status {self.process.wait()}")

    def fail(self, how):
        self.errors.seek(0)
        # The text of a panic follows its location.
        lines = [line.strip() for line in self.errors if line.strip() and not line.startswith(("thread", "note:"))]
        self.said = (lines[0] + "; " if lines else "") + how
        self.end()

    def calibrate(self, seconds):
        """So many operations as take about so long."""
        n, t = 1, self.run(1)
        while t is not None and t < seconds / 4:
            n, t = 2 * n, self.run(2 * n)
        self.operations = max(1, int(n * seconds / t)) if t else None

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def compare(ours, theirs, work, bytes_, args):
    """Each loop's microseconds, and how many times as long as ours it takes: the median of neighbouring runs."""
    own = {"send": ["rate", "--messages", "--two-processes"]}.get(work, [work])
    command = [ours, *own, "--bytes", str(bytes_), "--window", "1", "--mode", "event", "--by", "coroutines", "--commanded"]
    other = [theirs, work, "--bytes", str(bytes_)]
    environment = {**os.environ, "RUST_BACKTRACE": "0"}
    loops = {"asio_rdma": Contestant(command, None), "default": Contestant(other, environment),
             "tuned": Contestant([*other, "--tuned"], environment)}
    for c in loops.values():
        c.calibrate(args.seconds)
    for _ in range(args.rounds):
        for c in loops.values():
            t = c.run(c.operations)
            if t is not None:
                c.seconds.append(t / c.operations)
    for c in loops.values():
        if c.said is None:
            c.end()
    return loops


def peers(ours, theirs, args, median):
    cases = []
    for name, work, bytes_ in KINDS:
        loops = compare(ours, theirs, work, bytes_, args)
        case = {"name": f"{name}, {'64 B' if bytes_ == 64 else '64 KiB'}", "work": work}
        own = loops["asio_rdma"].seconds
        for by, c in loops.items():
            entry = {"said": c.said, "seconds": c.seconds}
            if c.seconds and own:
                entry["microseconds"] = median(c.seconds) * 1e6
                entry["ratio"] = median([t / o for t, o in zip(c.seconds, own)])
            case[by] = entry
        cases.append(case)
    return cases

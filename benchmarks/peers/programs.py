# SPDX-License-Identifier: BSL-1.0
"""Programs of others that measure the same work, each end in a process. Every figure is in microseconds per operation."""
import os
import shutil
import subprocess
import time

LIMIT = 30  # seconds


def on_processor(which, command):
    """The command on the first (0) or the last (-1) of the processors, as bench_device has its two processes."""
    processors = sorted(os.sched_getaffinity(0))
    return ["taskset", "--cpu-list", str(processors[which]), *command]


def two_ends(server, client, figure, environment=None):
    """The figure that `figure` finds in the client's output, or None with what the client said. The server does not report when
    it begins to listen, so the client is started until it succeeds."""
    ends = {"stdin": subprocess.DEVNULL, "env": environment}
    server, client = on_processor(-1, server), on_processor(0, client)
    listening = subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **ends)
    try:
        for _ in range(30):
            time.sleep(0.1)
            run = subprocess.run(client, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT, **ends)
            if run.returncode == 0 or listening.poll() is not None:
                break
        value = figure(run.stdout)
        if 0 < value < 1e9:  # perftest's clock may give others
            return value, None
        return None, f"the figure {value}"
    except subprocess.TimeoutExpired:
        return None, f"no end after {LIMIT} s"
    except (IndexError, ValueError, ZeroDivisionError):
        return None, run.stdout.strip().replace("\n", "; ")[:200]
    finally:
        listening.kill()
        listening.wait()


def median_of(times, *arguments):
    """The median of the figures until the first failure, and what was said then."""
    figures, said = [], None
    while len(figures) < times and said is None:
        value, said = two_ends(*arguments)
        figures += [value] if said is None else []
    return (sorted(figures)[len(figures) // 2] if figures else None), said


def perftest(command, figure, options, device, address, megabyte):
    """`figure` takes the row of the table that perftest prints."""
    if not shutil.which(command[0]):
        return None
    iterations = "200" if "bw" in command[0] and megabyte in command else "2000"
    command = [*command, "-d", device, "-F", "-n", iterations, *options]

    def find(text):
        rows = [line.split() for line in text.splitlines()]
        return figure([row for row in rows if row and row[0] in (command[2], megabyte) and len(row) >= 5][-1])
    for _ in range(4):
        value, said = two_ends(command, [*command, address], find)
        if said is None:
            return value
    return None


def rstream(options, ways, address):
    """By rsockets, blocking. rstream's figure is for one way."""
    if not shutil.which("rstream"):
        return None, "not installed"
    command = ["rstream", "-T", "b", *options]
    return median_of(5, command, [*command, "-s", address], lambda text: ways * float(text.split()[-1]))


PORT = "24011"


def ucx(size, iterations, device, address, environment):
    """There and back, by tagged messages. Both ends poll."""
    if not shutil.which("ucx_perftest"):
        return None, "not installed"
    command = ["ucx_perftest", "-p", PORT, "-t", "tag_lat", "-s", str(size), "-n", str(iterations), "-w", "20"]
    return median_of(5, command, [*command, "-f", "-v", address], lambda text: 2 * float(text.split()[-1].split(",")[1]),
                     {**environment, "UCX_TLS": "rc,ud", "UCX_NET_DEVICES": f"{device}:1"})


def libfabric(size, iterations, address):
    """There and back, by messages of the provider verbs. Both ends poll."""
    if not shutil.which("fi_pingpong"):
        return None, "not installed"
    command = ["fi_pingpong", "-p", "verbs", "-e", "msg", "-S", str(size), "-I", str(iterations)]
    return median_of(5, [*command, "-B", PORT], [*command, "-P", PORT, address], lambda text: 2 * float(text.split()[-2]))

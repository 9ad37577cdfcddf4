# SPDX-License-Identifier: BSL-1.0
"""Runs bench_overhead under callgrind, and counts the instructions and the locks of an operation."""
import collections
import glob
import json
import os
import re
import subprocess


class Failed(Exception):
    pass


def locks_of(path, known={}):
    """The addresses of instructions that lock the bus: with the prefix, or xchg with memory."""
    if path not in known:
        listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, text=True).stdout
        known[path] = {int(m[1], 16) for m in re.finditer(r"^ *([0-9a-f]+):\t(?:lock |xchg .*\()", listing, re.M)}
    return known[path]


def short(function):
    """Without namespaces, template arguments and parameters."""
    function, before = function.replace("(anonymous namespace)", "anonymous"), None
    while before != function:
        before, function = function, re.sub(r"<[^<>]*>|\([^()]*\)( const)?( \[clone [^]]*\])*", "", function)
    return re.sub(r"'\d+$", "", function.split(" ")[-1]).removeprefix("asio_rdma::detail::").removeprefix("boost::asio::")


def profile(path):
    """The label of a profile, or nothing, its counts, and its instructions by function.
    https://valgrind.org/docs/manual/cl-format.html"""
    with open(path) as f:
        lines = f.read().split("\n")
    label, names, locks, is_call, function = None, {}, set(), False, None
    counts = {"instructions": 0, "locks": 0, "functions": collections.Counter()}
    for line in lines:
        if line.startswith("desc: Trigger: Client Request: "):
            label = line[len("desc: Trigger: Client Request: "):]
        elif line.startswith(("ob=", "cob=")):
            number, name = re.match(r"c?ob=(\(\d+\)) ?(.*)", line).groups()
            if name:
                names[number] = name
            if line.startswith("ob="):
                locks = locks_of(names[number])
        elif line.startswith(("fn=", "cfn=")):
            number, name = re.match(r"c?fn=(\(\d+\)) ?(.*)", line).groups()
            if name:
                names["fn" + number] = short(name)
            if line.startswith("fn="):
                function = names["fn" + number]
        elif line.startswith("calls="):
            is_call = True  # the next line has what the callee took, which is counted there
        elif line.startswith("0x"):
            if not is_call:
                address, _, cost = line.split()
                counts["instructions"] += int(cost)
                counts["functions"][function] += int(cost)
                if int(address, 16) in locks:
                    counts["locks"] += int(cost)
            is_call = False
    return label, counts


def run(program, path, prefix):
    """The results of the program, which it writes to `path`, with the counts per operation. `prefix`: of the profiles."""
    for old in glob.glob(prefix + "*"):
        os.remove(old)
    done = subprocess.run(["valgrind", "--tool=callgrind", "--dump-instr=yes", "--compress-pos=no",
                           f"--callgrind-out-file={prefix}", program, path],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise Failed(f"bench_overhead failed:\n{done.stdout}")
    with open(path) as f:
        results = json.load(f)
    counts = dict(profile(p) for p in glob.glob(prefix + ".*"))
    operations = results["operations"][1] - results["operations"][0]
    for name, case in results["cases"].items():
        for what in "instructions", "locks":
            case[what] = (counts[f"{name} 1"][what] - counts[f"{name} 0"][what]) / operations
        case["allocations"] /= operations
        first, second = (counts[f"{name} {i}"]["functions"] for i in range(2))
        case["functions"] = {f: (second[f] - first[f]) / operations for f in second if second[f] - first[f] >= operations}
    return results

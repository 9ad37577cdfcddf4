# SPDX-License-Identifier: BSL-1.0
"""Runs bench_overhead under callgrind, and counts the instructions and the locks of an operation."""
import collections
import glob
import json
import os
import re
import subprocess


ALLOCATING = ("malloc", "calloc", "realloc", "aligned_alloc", "memalign", "posix_memalign")


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
    label, names, locks, is_call, function, callee = None, {}, set(), False, None, None
    counts = {"instructions": 0, "locks": 0, "allocations": 0, "functions": collections.Counter()}
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
            else:
                callee = names["fn" + number]
        elif line.startswith("calls="):
            is_call = True  # the next line has what the callee took, which is counted there
            if callee in ALLOCATING:
                counts["allocations"] += int(line.split()[0][len("calls="):])
        elif line.startswith("0x"):
            if not is_call:
                address, _, cost = line.split()
                counts["instructions"] += int(cost)
                counts["functions"][function] += int(cost)
                if int(address, 16) in locks:
                    counts["locks"] += int(cost)
            is_call = False
    return label, counts


def valgrind(profile_path, command, before=()):
    done = subprocess.run([*before, "valgrind", "--tool=callgrind", "--dump-instr=yes", "--compress-pos=no",
                           f"--callgrind-out-file={profile_path}", *command],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(command)} failed:\n{done.stdout}")


def difference(first, second, operations, what):
    """The counts of an operation, of two profiles."""
    case = {w: (second[w] - first[w]) / operations for w in what}
    functions = [counts["functions"] for counts in (first, second)]
    case["functions"] = {f: (n - functions[0][f]) / operations for f, n in functions[1].items() if n - functions[0][f] >= operations}
    return case


def run(program, path, prefix):
    """The results of the program, which it writes to `path`, with the counts per operation. `prefix`: of the profiles."""
    for old in glob.glob(prefix + "*"):
        os.remove(old)
    valgrind(prefix, [program, path])
    with open(path) as f:
        results = json.load(f)
    counts = dict(profile(p) for p in glob.glob(prefix + ".*"))
    operations = results["operations"][1] - results["operations"][0]
    for name, case in results["cases"].items():
        case["allocations"] /= operations
        case |= difference(counts[f"{name} 0"], counts[f"{name} 1"], operations, ("instructions", "locks"))
    return results


def run_alone(before, command, lengths, path):
    """The counts of an operation of a program that runs a number of operations, which is the last argument. `before`: of valgrind."""
    counts = []
    for length in lengths:
        valgrind(path, [*command, str(length)], before)
        counts.append(profile(path)[1])
    return difference(*counts, lengths[1] - lengths[0], ("instructions", "locks", "allocations"))

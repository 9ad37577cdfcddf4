# SPDX-License-Identifier: BSL-1.0
"""Results of the benchmarks as tables and as a picture."""
import statistics

import costs

ALLOWED = 1.10
ALLOWED_NS = 100  # for a block of up to 64 KiB
LIBRARY = ("callbacks", "coroutines")


def grid(rows, markdown):
    """Rows of strings, the first being the head, the first column being names."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [[row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:]))] for row in rows]
    if not markdown:
        return "\n".join("  ".join(line).rstrip() for line in lines)
    lines.insert(1, ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value):
    return "–" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def calls(entry):
    counted = entry.get("system_calls")
    return "–" if counted is None else f"{sum(counted.values()):.2f}"


def blocks(results):
    """Of the pool and of malloc: by bytes, nanoseconds of CPU time to allocate and to return."""
    times = {case["name"]: case["cpu_time"] for case in results["benchmarks"]}
    return [(n, *(times[f"{of}/{n}"] for of in ("allocate_and_return", "malloc_and_free"))) for n in (64, 4096, 65536)]


def memory_rows(results):
    rows = [["ns to allocate and return", "memory_pool", "malloc"]]
    return rows + [[f"{n} bytes", number(pool), number(malloc)] for n, pool, malloc in blocks(results)]


def memory_missed(results):
    return [f"memory: {n} bytes allocated and returned in {pool:.0f} ns" for n, pool, _ in blocks(results)
            if pool > ALLOWED_NS]


def title(case):
    return f"{case['name']}, {case['mode']}"


def soft_figures(results):
    """Of the software device alone, by verbs: what it is, as measured, by TCP, a ratio or nothing, what is wanted, whether it is reached."""
    def time(of, loop):
        return statistics.median(results[of]["runs"][loop]["seconds"]) / results[of]["operations"]

    for of, words in (("rate", ""), ("rate_at_post", ", at the post")):
        rate = 1e-6 / time(of, "verbs")
        yield (f"64-byte SENDs in one process, window 32{words}, million a second", f"{rate:.2f}", "–", "–", "at least 5", rate >= 5)
    for of, words, wanted in (("small", "64 B there and back, two processes, µs", 1.3),
                              ("small_on_one", "the same on one processor, µs", 1.3), ("large", "1 MiB there and back, two processes, µs", 1.25),
                              ("one_way", "1 MiB one way, window 4, two processes, µs", 1.25)):
        runs = results[of]["runs"]
        of_tcp = statistics.median(ratios(runs["epoll"]["seconds"], runs["tcp"]["seconds"]))
        yield (words, *(number(1e6 * time(of, loop)) for loop in ("epoll", "tcp")), f"{of_tcp:.2f}", f"at most {wanted} times",
               of_tcp <= wanted)
    crowd = results["connections"]
    yield (f"{crowd['connections']} connections between two processes, s", f"{crowd['seconds']:.2f}", "–", "–", "at most 2",
           crowd["seconds"] <= 2)
    yield ("resident memory of a connection in each process, KiB", ", ".join(f"{b / 1024:.1f}" for b in crowd["bytes"]), "–", "–",
           "at most 16", max(crowd["bytes"]) <= 16 * 1024)


def soft_rows(results):
    return [["software device, by verbs", "measured", "TCP", "times", "wanted"], *(list(row[:-1]) for row in soft_figures(results))]


def soft_missed(results):
    return [f"soft0: {words}: {measured if times == '–' else f'{times} times as long as TCP'}, wanted {wanted}"
            for words, measured, _, times, wanted, reached in soft_figures(results) if not reached]


def rates_figures(results):
    """Of the library at an adapter's rate: the row, verbs and the library as measured, their ratio, what is wanted, whether it is reached."""
    def run(of, loop):
        return results[of]["runs"][loop]["seconds"]

    def micros(of, loop):
        return 1e6 * statistics.median(run(of, loop)) / results[of]["operations"]

    def row(words, verbs, library, ratio, wanted, reached, sign):
        return words, verbs, library, f"{ratio:.2f}", f"at {'most' if sign < 0 else 'least'} {wanted}", reached

    for loop, words, wanted in (("callbacks", "callbacks", 0.6), ("coroutines", "co_await of deferred", 0.45),
                                ("awaiters", "co_await of use_awaiter", 0.6)):
        ratio = statistics.median(ratios(run("sends", "verbs"), run("sends", loop)))
        yield row(f"SENDs of 64 bytes, {words}, million a second", *(f"{1 / micros('sends', x):.1f}" for x in ("verbs", loop)),
                  ratio, wanted, ratio >= wanted, 1)
    for of, verbs, loop, words, wanted in (("busy", "verbs", "callbacks", "SEND of 64 bytes there and back, busy, µs", 1.1),
                                           ("adaptive", "verbs", "callbacks", "the same, adaptive, beside polling", 1.2),
                                           ("event", "epoll", "callbacks", "the same, event, beside epoll", 1.05),
                                           ("busy", "verbs", "stream", "64 bytes of a stream there and back, busy, µs", 1.3)):
        ratio = statistics.median(ratios(run(of, loop), run(of, verbs)))
        yield row(words, *(f"{micros(of, x):.1f}" for x in (verbs, loop)), ratio, wanted, ratio <= wanted, -1)
    rate = 1 / micros("messages", "messages")
    yield ("messages of 64 bytes, window 64, million a second", f"{1 / micros('messages', 'verbs'):.1f}", f"{rate:.1f}", "–",
           "at least 1.5", rate >= 1.5)
    for of, verbs, loop, words, wanted in (("writes", "verbs", "stream", "registered, beside WRITEs", 0.9),
                                           ("bulk", "verbs", "stream", "registered, beside SENDs", None),
                                           ("bulk", "tcp", "plain", "plain, beside TCP", 0.9)):
        rates = [1e-3 * (1 << 20) / micros(*x) for x in ((of, verbs), ("bulk", loop))]
        ratio = rates[1] / rates[0]
        words = f"1 MiB written to a stream, {words}, GB/s"
        if wanted is None:
            yield words, *(f"{x:.1f}" for x in rates), f"{ratio:.2f}", "–", True
        else:
            yield row(words, *(f"{x:.1f}" for x in rates), ratio, wanted, ratio >= wanted, 1)
    runs = results["threads"]
    compared = [("two contexts, a thread each, beside one", "two contexts", "one thread", 1.9),
                ("one context with two threads and strands, beside one thread", "two threads on one context", "one thread, two connections", 1.0)]
    compared += [(f"{kind} in one context, beside one", kind, "one thread", 0.8) for kind in runs if kind.endswith("0 connections")]
    for words, kind, base, wanted in compared:
        ratio = statistics.median(ratios(runs[kind], runs[base]))
        yield row(f"SENDs of the library, {words}, million a second", *(f"{statistics.median(runs[x]):.1f}" for x in (base, kind)),
                  ratio, wanted, ratio >= wanted, 1)
    for words, kind, base in (("by verbs, two threads with a completion queue each, beside one", "two threads by verbs", "one thread by verbs"),
                              ("of the library, two contexts, a thread each, beside two threads by verbs", "two contexts", "two threads by verbs")):
        ratio = statistics.median(ratios(runs[kind], runs[base]))
        yield (f"SENDs {words}, million a second", *(f"{statistics.median(runs[x]):.1f}" for x in (base, kind)), f"{ratio:.2f}", "–", True)
    for kind in runs:
        if kind.endswith("0 connections"):
            base = f"{kind} by verbs"
            ratio = statistics.median(ratios(runs[kind], runs[base]))
            yield (f"SENDs of the library, {kind} in one context, beside as many by verbs",
                   *(f"{statistics.median(runs[x]):.1f}" for x in (base, kind)), f"{ratio:.2f}", "–", True)


def rates_rows(results):
    return [["at an adapter's rate or latency", "beside", "library", "ratio", "wanted"], *(list(row[:-1]) for row in rates_figures(results))]


def rates_missed(results):
    return [f"{words}: {library if ratio == '–' else ratio}, wanted {wanted}"
            for words, _, library, ratio, wanted, reached in rates_figures(results) if not reached]


def ratios(some, others):
    """Of runs that followed each other."""
    return [a / b for a, b in zip(some, others)]


def device_rows(results):
    rows = [["µs per operation", "verbs", "callbacks", "ratio", "coroutines", "ratio", "perftest",
             "system calls: verbs", "callbacks", "registrations"]]
    for case in results["cases"]:
        if case["failed"]:
            rows.append([title(case), "failed", *["–"] * 8])
            continue
        row = [title(case), number(case["verbs"]["microseconds"])]
        for loop in LIBRARY:
            row += [number(case[loop]["microseconds"]), f"{case[loop]['ratio']:.2f}"]
        rows.append(row + [number(case.get("perftest")), calls(case["verbs"]), calls(case["callbacks"]),
                           f"{case['callbacks']['registrations']:.2g}" if "registrations" in case["callbacks"] else "–"])
    return rows


def long_message_rows(results):
    """Messages that are read by the receiver, beside READs of registered memory: from the pool's memory, from memory that the program
    has registered and from a vector."""
    rows = [["µs per operation", "READ by verbs"]]
    for memory in "memory of the pool", "of a region", "plain":
        rows[0] += [memory, "ratio", "registrations"]
    for case in results["cases"]:
        if not case["failed"] and "own_messages" in case:
            row = [title(case), number(case["verbs"]["microseconds"])]
            for loop in ("callbacks", "own_messages", "plain_messages"):
                entry = case[loop]
                row += [number(entry["microseconds"]), f"{entry['ratio']:.2f}", f"{entry['registrations']:.2g}"]
            rows.append(row)
    return rows


def epoll_rows(results):
    """Where the hand-written loop was tried with epoll too."""
    rows = [["µs per operation", "verbs", "verbs with epoll", "callbacks", "of epoll", "coroutines", "of epoll",
             "system calls: verbs", "with epoll", "callbacks"]]
    for case in results["cases"]:
        if "of_epoll" in case.get("epoll", {}):
            e = case["epoll"]
            row = [title(case), number(case["verbs"]["microseconds"]), number(e["microseconds"])]
            for loop in LIBRARY:
                row += [number(case[loop]["microseconds"]), f"{case[loop]['of_epoll']:.2f}"]
            rows.append(row + [calls(case["verbs"]), calls(e), calls(case["callbacks"])])
    return rows


PEER = {"default": "async-rdma", "tuned": "tuned"}
WANTED = {"write": 3, "read": 3, "send": 10}


def peer_rows(results):
    rows = [["µs per operation, window 1", "asio_rdma", "async-rdma", "times", "tuned", "times", "wanted"]]
    for case in results.get("peers", []):
        row = [case["name"], number(case["asio_rdma"].get("microseconds"))]
        for by in PEER:
            ratio = case[by].get("ratio")
            row += [number(case[by].get("microseconds")), "–" if ratio is None else f"{ratio:.1f}"]
        rows.append([*row, str(WANTED[case["work"]])])
    return rows


def peers_said(results):
    whose = {}
    for case in results.get("peers", []):
        for by in PEER:
            if case[by]["said"]:
                whose.setdefault(case[by]["said"], []).append(f"{case['name']} ({PEER[by]})")
    for case in results.get("polling", []):
        for of in POLLING:
            if not case["failed"] and case[f"{of}_said"]:
                whose.setdefault(case[f"{of}_said"], []).append(f"{case['name']} ({of})")
    return [f"{'; '.join(names)}: {said}" for said, names in whose.items()]


POLLING = ("ucx", "libfabric")
POLLING_WANTED = 1  # times as long as the library's messages, at least


def beside_messages(case, of):
    return case[of] / case["messages"]["microseconds"]


def polling_rows(results):
    """Beside programs whose ends poll, so in mode busy."""
    rows = [["both ends poll, µs", "verbs", "messages", "of verbs", "stream", "of verbs", "UCX", "UCX / messages", "libfabric",
             "libfabric / messages"]]
    for case in results.get("polling", []):
        if case["failed"]:
            rows.append([case["name"], "failed", *["–"] * 8])
            continue
        cells = [number(case["verbs"]["microseconds"])]
        for loop in "messages", "stream":
            cells += [number(case[loop]["microseconds"]), f"{case[loop]['ratio']:.2f}"]
        for of in POLLING:
            cells += [number(case[of]), f"{beside_messages(case, of):.2f}" if case[of] else "–"]
        rows.append([case["name"], *cells])
    return rows


def polling_missed(results):
    for case in results.get("polling", []):
        for of in POLLING:
            if not case["failed"] and case[of] and beside_messages(case, of) < POLLING_WANTED:
                yield (f"{results['device']}: {case['name']}: {of} takes {beside_messages(case, of):.2f} times as long as messages, "
                       f"wanted {POLLING_WANTED:.2f}")


def global_rows(results):
    rows = [["µs per operation", "beside", "µs", "asio_rdma", "ratio", "allowed"]]
    for case in results.get("globals", []):
        beside, ours = case["loops"]
        if case["failed"]:
            rows.append([case["name"], beside, "failed", *["–"] * 3])
            continue
        rows.append([case["name"], beside, number(case[beside]["microseconds"]), number(case[ours]["microseconds"]),
                     f"{case[ours]['ratio']:.2f}", f"{case['allowed']:.2f}"])
    return rows


RIVALS = {"spin": "spinlock", "mcs": "MCS"}


def lock_rows(results):
    rows = [["µs per lock taken and given back", "alock", *(cell for rival in RIVALS.values() for cell in (rival, "times")), "wanted"]]
    for case in results.get("locks", []):
        if case["failed"]:
            rows.append([case["name"], "failed", *["–"] * 5])
            continue
        row = [case["name"], number(case["alock"]["microseconds"])]
        for rival in RIVALS:
            row += [number(case[rival]["microseconds"]), f"{case[rival]['ratio']:.2f}"]
        rows.append(row + ["–" if case["wanted"] is None else f"{case['wanted']:.2f}"])
    return rows


RSOCKET_WANTED = 1.2
PLAIN_WANTED = {"copying": 1.3, "tcp": 1.1, "nagle": 1.1}  # times as long, at most, with plain memory
SMALL_WRITE_WANTED = 5  # us of a 64-byte write one way, at most, in the lab


def times(case, loop, beside):
    """How many times as long: the median of the ratios of runs that followed each other."""
    return statistics.median(ratios(case[loop]["seconds"], case[beside]["seconds"]))


def stream_rows(results):
    """Tables: plain memory, its system calls, and registered memory."""
    rows = [["registered memory, µs per operation", "verbs", "messages", "stream", "of verbs", "of messages", "rstream", "rstream / stream"]]
    plain = [["plain memory, µs per operation", "verbs, copying", "messages", "of copying", "stream", "of copying", "TCP",
              "messages / TCP", "stream / TCP", "TCP, Nagle", "stream / Nagle"]]
    counts = [["plain memory, system calls per operation", "verbs, copying", "messages", "stream", "TCP"]]
    for case in results.get("streams", []):
        if case["failed"]:
            rows.append([case["name"], "failed", *["–"] * 6])
            plain.append([case["name"], "failed", *["–"] * 9])
            continue
        if not case["name"].endswith("at the post"):
            counts.append([case["name"], *(calls(case.get(loop, {})) for loop in ("copying", "plain_messages", "plain", "tcp"))])
        def of(loop, beside):
            return f"{times(case, loop, beside):.2f}" if beside in case else "–"

        def time(loop):
            return number(case[loop]["microseconds"] if loop in case else None)
        theirs = case.get("rstream")
        rows.append([case["name"], time("verbs"), time("messages"), time("stream"), of("stream", "verbs"), of("stream", "messages"),
                     number(theirs), f"{theirs / case['stream']['microseconds']:.2f}" if theirs else "–"])
        plain.append([case["name"], time("copying"), time("plain_messages"), of("plain_messages", "copying"), time("plain"),
                      of("plain", "copying"), time("tcp"), of("plain_messages", "tcp"), of("plain", "tcp"),
                      time("nagle"), of("plain", "nagle")])
    return plain, counts, rows


def rstream_said(results):
    return [f"{case['name']}: {case['rstream_said']}" for case in results.get("streams", []) if case.get("rstream_said")]


def missed(results):
    """One line for each case of this device beyond what is allowed."""
    lines = []
    for case in results.get("streams", []):
        if case["failed"]:
            lines.append(f"{results['device']}: stream: {case['name']}: failed")
        elif "verbs" in case and case["stream"]["ratio"] > case["allowed"]:
            low, high = case["stream"]["quartiles"]
            lines.append(f"{results['device']}: {case['name']}: the stream takes {case['stream']['ratio']:.2f} times as long as "
                         f"verbs, allowed {case['allowed']:.2f} (half of the runs {low:.2f} to {high:.2f})")
        for loop, beside in ((l, b) for l in ("plain", "plain_messages") for b in PLAIN_WANTED):
            if not case["failed"] and beside in case:
                ratio = times(case, loop, beside)
                if ratio > PLAIN_WANTED[beside]:
                    lines.append(f"{results['device']}: {case['name']}: {loop} takes {ratio:.2f} times as long as {beside}, "
                                 f"wanted {PLAIN_WANTED[beside]:.2f}")
        for loop in ("plain", "plain_messages"):
            if not case["failed"] and results["lab"] and case["name"].startswith("64 B after 64 B") and loop in case \
                    and case[loop]["microseconds"] > SMALL_WRITE_WANTED:
                lines.append(f"{results['device']}: {case['name']}: {loop} takes {case[loop]['microseconds']:.1f} us, "
                             f"wanted {SMALL_WRITE_WANTED:.0f}")
        if not case["failed"] and case.get("rstream") and case["rstream"] < RSOCKET_WANTED * case["stream"]["microseconds"]:
            lines.append(f"{results['device']}: {case['name']}: rstream takes {case['rstream'] / case['stream']['microseconds']:.2f} "
                         f"times as long as the stream, wanted {RSOCKET_WANTED:.2f}")
    for case in results.get("globals", []):
        beside, ours = case["loops"]
        if case["failed"]:
            lines.append(f"{results['device']}: global memory: {case['name']}: failed")
        elif case[ours]["ratio"] > case["allowed"]:
            low, high = case[ours]["quartiles"]
            lines.append(f"{results['device']}: global memory: {case['name']}: {case[ours]['ratio']:.2f} times as long as {beside}, "
                         f"allowed {case['allowed']:.2f} (half of the runs {low:.2f} to {high:.2f})")
    for case in results.get("locks", []):
        if case["failed"]:
            lines.append(f"{results['device']}: locks, {case['name']}: failed")
            continue
        for rival, its_name in RIVALS.items():
            if case["wanted"] is not None and case[rival]["ratio"] <= case["wanted"]:
                lines.append(f"{results['device']}: locks, {case['name']}: {its_name} takes {case[rival]['ratio']:.2f} times as long "
                             f"as alock, wanted more than {case['wanted']:.2f}")
    for case in results.get("peers", []):
        for by in PEER:
            ratio = case[by].get("ratio")
            if ratio is not None and ratio < WANTED[case["work"]]:
                lines.append(f"{results['device']}: {case['name']}: async-rdma{', tuned,' if by == 'tuned' else ''} takes {ratio:.1f} "
                             f"times as long, wanted {WANTED[case['work']]}")
    lines += polling_missed(results)
    for case in results["cases"]:
        if case["failed"]:
            lines.append(f"{results['device']}: {title(case)}: failed")
            continue
        if case.get("perftest") and case["perftest"] < case["callbacks"]["microseconds"]:
            lines.append(f"{results['device']}: {title(case)}: perftest takes {case['perftest'] / case['callbacks']['microseconds']:.2f} "
                         "times as long as callbacks, wanted 1.00")
        for loop in LIBRARY:
            entry = case[loop]
            if entry["ratio"] > case.get("allowed", ALLOWED):
                low, high = entry["quartiles"]
                lines.append(f"{results['device']}: {title(case)}: {loop} take {entry['ratio']:.2f} times as long as verbs, "
                             f"allowed {case.get('allowed', ALLOWED):.2f} (half of the runs {low:.2f} to {high:.2f})")
    return lines


def machine(results):
    where = "lab" if results["lab"] else "machine's own"
    return f"{where} kernel {results['kernel']}, {results['cpus']} CPU"


def markdown(overhead, memory, soft, rates, devices):
    parts = []
    if overhead:
        parts += [*(grid(table, True) for table in costs.tables(overhead)),
                  f"Calls of `ibv_post_send` per operation in a batch of 16: {overhead['batch_calls']:g}."]
    if memory:
        parts += [grid(memory_rows(memory), True)]
    if soft:
        parts += [grid(soft_rows(soft), True)]
    if rates:
        parts += [grid(rates_rows(rates), True)]
    for results in devices:
        parts += [f"`{results['device'].rstrip('0123456789')}` ({machine(results)}):", grid(device_rows(results), True)]
        for rows in (long_message_rows(results), epoll_rows(results)):
            if len(rows) > 1:
                parts += [grid(rows, True)]
        if results.get("streams"):
            parts += [grid(table, True) for table in stream_rows(results)]
        if results.get("globals"):
            parts += [grid(global_rows(results), True)]
        if results.get("locks"):
            parts += [grid(lock_rows(results), True)]
        if rstream_said(results):
            parts += ["Errors that rstream reported:", "\n".join(f"- {line}" for line in rstream_said(results))]
        if results.get("peers"):
            parts += [grid(peer_rows(results), True)]
        if results.get("polling"):
            parts += [grid(polling_rows(results), True)]
        if peers_said(results):
            parts += ["Errors that other programs reported:", "\n".join(f"- {line}" for line in peers_said(results))]
    lines = [*costs.beyond(overhead)] if overhead else []
    lines += (memory_missed(memory) if memory else []) + (soft_missed(soft) if soft else [])
    lines += rates_missed(rates) if rates else []
    lines += [line for results in devices for line in missed(results)]
    if lines:
        parts += ["Beyond what is allowed in this run:", "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join(parts) + "\n"

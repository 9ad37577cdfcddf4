# SPDX-License-Identifier: BSL-1.0
"""The instructions, the locks and the allocations of an operation: what is wanted, what may not grow, and the tables."""

POSTS = ["io_context::executor_type", "default concurrency hint", "any_io_executor", "use_awaitable"]
COUNTED = ["instructions", "locks", "allocations"]
GROWTH = 1.03  # what a count may grow by
# The instructions above a loop on verbs: the case of the program, the loop, and what is wanted.
OVERHEADS = [
    ("SEND, callback", "io_context::executor_type send", "bare send", 120),
    ("SEND, callback, any_io_executor", "any_io_executor send", "bare send", 120),
    ("SEND, use_awaitable", "use_awaitable send", "bare send", 520),
    ("SEND, co_await of deferred", "deferred send", "bare send", 320),
    ("the same in awaitable<void, io_context::executor_type>", "deferred, io_context::executor_type send", "bare send", 220),
    ("SEND, use_awaiter in a program's own coroutine", "use_awaiter send", "bare send", 125),
    ("SEND, when another thread has opened a queue pair of its queue", "send, after an open elsewhere", "bare send", 120),
    ("SEND in a batch of 16", "batch send", "bare batch", 70),
    ("the same, each batch outside of handlers", "batch send, outside of handlers", "bare batch", 70),
    ("SEND and RECEIVE", "send and receive", "bare send and receive", 240),
    ("message, window 8", "message", "bare send and receive", 600),
    ("message, one at a time, co_await of deferred", "message, deferred, one at a time", "bare send and receive", None),
    ("stream, a write and its read", "stream", "bare send and receive", 700),
]


def missed(results):
    cases, lines = results["cases"], []
    for kind in POSTS:
        send = cases[f"{kind} send"]
        if send["ratio_to_post"] > 1 and kind != "default concurrency hint":  # the default hint has no target
            lines.append(f"{kind}: more instructions than one asio::post")
    lines += [f"{name}: {case['allocations']:g} allocations per operation" for name, case in cases.items() if case["allocations"]]
    if results["batch_calls"] > 1 / 16:
        lines.append(f"batch of 16: {results['batch_calls']:g} calls of ibv_post_send per operation")
    return lines


def beyond(results):
    """The rows above what is wanted. They do not fail: `grown` keeps what has been reached."""
    for words, name, bare, wanted in OVERHEADS:
        above = results["cases"][name]["instructions"] - results["cases"][bare]["instructions"]
        if wanted is not None and above > wanted:
            yield f"{words}: {above:.0f} instructions above verbs, wanted {wanted}"


def grown(results, allowed):
    """The library's counts above those of `allowed`. A few instructions are glibc's choice by processor; half a lock is no growth."""
    lines = []
    for _, name, _, _ in OVERHEADS:
        case, before = results["cases"][name], allowed["cases"].get(name)
        if before is None:
            lines.append(f"{name}: no count to compare with (./dev bench overhead --accept)")
            continue
        slack = {"instructions": 10, "locks": 0.5, "allocations": 0}
        lines += [f"{name}: {case[what]:.1f} {what}, before {before[what]:g}" for what in COUNTED
                  if case[what] > max(before[what] * GROWTH, before[what] + slack[what])]
    return lines


def tables(results):
    """The cost of an operation above verbs, and beside `asio::post`."""
    cases = results["cases"]
    above = [["instructions of an operation of 64 bytes", "verbs", "above verbs", "wanted", "locks", "allocations"]]
    for title, name, bare, wanted in OVERHEADS:
        case, base = cases[name], cases[bare]["instructions"]
        above.append([title, f"{base:.0f}", f"{case['instructions'] - base:.0f}", "–" if wanted is None else str(wanted),
                      f"{case['locks']:.1f}", f"{case['allocations']:g}"])
    posts = [["instructions per 64-byte SEND", "asio_rdma", "asio::post", "ratio"]]
    for kind in POSTS:
        send, post = cases[f"{kind} send"], cases[f"{kind} post"]
        posts.append([kind, f"{send['instructions'] - cases['bare send']['instructions']:.0f}", f"{post['instructions']:.0f}",
                      f"{send['ratio_to_post']:.2f}"])
    return above, posts

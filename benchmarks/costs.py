# SPDX-License-Identifier: BSL-1.0
"""The instructions, the locks and the allocations of an operation: what is wanted, what may not grow, and the tables."""

POSTS = ["io_context::executor_type", "default concurrency hint", "any_io_executor", "use_awaitable"]
COUNTED = ["instructions", "locks", "allocations"]
GROWTH = 1.03  # what a count may grow by
# The instructions above a loop on verbs: the case of the program, the loop, and what is wanted, in instructions and in those that lock.
OVERHEADS = [
    ("SEND, callback", "io_context::executor_type send", "bare send", 120, 0),
    ("SEND, callback, any_io_executor", "any_io_executor send", "bare send", 120, 0),
    ("SEND, use_awaitable", "use_awaitable send", "bare send", 520, 0),
    ("SEND, co_await of deferred", "deferred send", "bare send", 320, 0),
    ("the same in awaitable<void, io_context::executor_type>", "deferred, io_context::executor_type send", "bare send", 220, 0),
    ("SEND, use_awaiter in a program's own coroutine", "use_awaiter send", "bare send", 125, 0),
    ("SEND, when another thread has opened a queue pair of its queue", "send, after an open elsewhere", "bare send", 120, 0),
    ("SEND in a batch of 16", "batch send", "bare batch", 70, 0),
    ("the same, each batch outside of handlers", "batch send, outside of handlers", "bare batch", 70, 0),
    ("SEND and RECEIVE", "send and receive", "bare send and receive", 240, 0),
    ("message, window 8", "message", "bare send and receive", 600, 0),
    ("message, one at a time, co_await of deferred", "message, deferred, one at a time", "bare send and receive", None, 0),
    ("stream, a write and its read", "stream", "bare send and receive", 700, 0),
    ("global_memory::async_read of 8 bytes, window 32, on soft", "global read", "bare read", 250, 0),
    ("SEND, callback, hint UNSAFE", "hint UNSAFE send", "bare send", 120, 0),
    ("SEND, callback, io_context()", "default concurrency hint send", "bare send", None, 2),
    ("SEND and RECEIVE, io_context()", "send and receive, default concurrency hint", "bare send and receive", None, 2),
    ("message, window 8, io_context()", "message, default concurrency hint", "bare send and receive", None, 2),
    ("stream, a write and its read, io_context()", "stream, default concurrency hint", "bare send and receive", None, 2),
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


def above(results, name, bare, what):
    return results["cases"][name][what] - results["cases"][bare][what]


def beyond(results):
    """The rows above what is wanted. They do not fail: `grown` keeps what has been reached."""
    for words, name, bare, *wanted in OVERHEADS:
        for what, most in zip(COUNTED, wanted):
            if most is not None and round(above(results, name, bare, what), 1) > most:
                said = "instructions" if what == "instructions" else "locked instructions"
                yield f"{words}: {above(results, name, bare, what):.3g} {said} above verbs, wanted {most}"


def grown(results, allowed):
    """The library's counts above those of `allowed`. A few instructions are glibc's choice by processor; half a lock is no growth."""
    lines = []
    for _, name, bare, *_ in OVERHEADS:
        if name not in allowed["cases"]:
            lines.append(f"{name}: no count to compare with (./dev bench overhead --accept)")
            continue
        slack = {"instructions": 10, "locks": 0.5, "allocations": 0}
        for what in COUNTED:
            now, before = above(results, name, bare, what), above(allowed, name, bare, what)
            if now > max(before * GROWTH, before + slack[what]):
                lines.append(f"{name}: {now:.1f} {what} above verbs, before {before:g}")
    return lines


def tables(results):
    """The cost of an operation above verbs, and beside `asio::post`."""
    cases = results["cases"]
    rows = [["instructions of an operation of 64 bytes", "verbs", "above verbs", "wanted", "locks above verbs", "wanted", "allocations"]]
    for title, name, bare, wanted, locks in OVERHEADS:
        rows.append([title, f"{cases[bare]['instructions']:.0f}", f"{above(results, name, bare, 'instructions'):.0f}",
                     "–" if wanted is None else str(wanted), f"{above(results, name, bare, 'locks'):.1f}", str(locks),
                     f"{cases[name]['allocations']:g}"])
    posts = [["instructions per 64-byte SEND", "asio_rdma", "asio::post", "ratio"]]
    for kind in POSTS:
        send, post = cases[f"{kind} send"], cases[f"{kind} post"]
        posts.append([kind, f"{send['instructions'] - cases['bare send']['instructions']:.0f}", f"{post['instructions']:.0f}",
                      f"{send['ratio_to_post']:.2f}"])
    return rows, posts

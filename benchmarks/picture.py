# SPDX-License-Identifier: BSL-1.0
"""The results of the benchmarks as bars beside bare verbs, which are a line at 1."""
import html

import costs
import report

DARK, OURS, ORANGE = "#2e3436", "#3465a4", "#f57900"
LEFT = 400  # where the bars begin


class Canvas:
    def __init__(self):
        self.parts = []

    def text(self, x, y, words, anchor="start", weight="normal"):
        self.parts.append(f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-weight="{weight}">{html.escape(words)}</text>')

    def bar(self, x, y, width, height, colour):
        self.parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}"/>')

    def ratio(self, x, y, value, most, width, height, colour):
        """A bar with its figure. One that is longer than `most` is cut, by two slanted lines."""
        end = x + min(value, most) * width / most
        self.bar(x, y, end - x, height, colour)
        if value > most:
            for shift in 8, 12:
                self.parts.append(f'<path d="M{end - shift - 3:.1f} {y + height + 1}l6 {-height - 2}" stroke="#fff" stroke-width="2"/>')
        self.text(end + 6, y + height - 1, f"{value:.2f}" if most < 3 else f"{value:.1f}")

    def line(self, path, more=""):
        self.parts.append(f'<path d="{path}" stroke="{DARK}"{more}/>')

    def svg(self, width, height):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
                f'font-size="11"><rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


class Rows:
    """Groups of rows with a bar for each of some kinds, and a line at 1."""
    BAR, GAP, WIDTH = 9, 8, 360

    def __init__(self, words, kinds, most):
        self.canvas, self.y, self.most = Canvas(), 48, most
        self.canvas.text(8, 16, words, weight="bold")
        for i, (kind, colour) in enumerate(kinds.items()):
            self.canvas.bar(LEFT + 100 * i, 26, 9, 9, colour)
            self.canvas.text(LEFT + 100 * i + 13, 34, kind)

    def begin(self, words):
        self.canvas.text(8, self.y + 10, words, weight="bold")
        self.y += 18
        self.top = self.y

    def row(self, words, bars):
        """`bars`: the colour, the ratio, and the middle half of the runs or None, of each bar."""
        self.canvas.text(LEFT - 8, self.y + self.BAR + 4, words, "end")
        for colour, value, middle in bars:
            if middle is not None:
                low, high = (LEFT + min(v, self.most) * self.WIDTH / self.most for v in middle)
                self.canvas.line(f"M{low:.1f} {self.y + self.BAR / 2}H{high:.1f}", ' stroke-opacity="0.6"')
            self.canvas.ratio(LEFT, self.y, value, self.most, self.WIDTH, self.BAR, colour)
            self.y += self.BAR + 1
        self.y += self.GAP

    def end(self, *marks):
        for mark, dash in marks:
            x = LEFT + mark * self.WIDTH / self.most
            self.canvas.line(f"M{x:.1f} {self.top - 4}V{self.y - self.GAP + 3}", f' stroke-dasharray="{dash}"' if dash else "")
        self.y += 8

    def svg(self):
        return self.canvas.svg(LEFT + self.WIDTH + 50, self.y)


def name_of(results):
    return results["device"].rstrip("0123456789")


def times(devices):
    """The ratios to verbs of the times on devices, with the middle half of the runs as whiskers."""
    kinds = {"callbacks": OURS, "coroutines": ORANGE}
    rows = Rows(f"time per operation, bare verbs = 1; dashed: {report.ALLOWED}", kinds, 1.6)
    for results in devices:
        rows.begin(name_of(results))
        for case in results["cases"]:
            if not case["failed"]:
                rows.row(report.title(case), [(colour, case[loop]["ratio"], case[loop]["quartiles"]) for loop, colour in kinds.items()])
        rows.end((1, ""), (report.ALLOWED, "3 3"))
    return rows.svg()


def streams(devices):
    """The times with plain memory and default options, beside a TCP socket of the same program."""
    kinds = {"stream": OURS, "connection": ORANGE}
    loops = {"stream": "plain", "connection": "plain_messages"}
    rows = Rows("plain memory and default options: time per operation, TCP socket = 1", kinds, 1.6)
    for results in devices:
        cases = [c for c in results.get("streams", []) if not c["failed"] and "tcp" in c and not c["name"].endswith("at the post")]
        if not cases:
            continue
        rows.begin(name_of(results))
        for case in cases:
            rows.row(case["name"], [(colour, report.times(case, loops[kind], "tcp"), None) for kind, colour in kinds.items() if loops[kind] in case])
        rows.end((1, ""))
    return rows.svg()


def instructions(overhead):
    """The instructions of an operation as multiples of those of verbs, a bar for each row. A short line: what is wanted."""
    bar, gap, width, most = 12, 8, 420, 8
    cases = overhead["cases"]
    canvas, y = Canvas(), 34
    canvas.text(8, 16, "instructions per operation of 64 bytes, bare verbs = 1; short line: wanted", weight="bold")
    for words, name, bare, wanted, _ in costs.OVERHEADS:
        verbs = cases[bare]["instructions"]
        canvas.text(LEFT - 8, y + bar - 2, words, "end")
        canvas.ratio(LEFT, y, cases[name]["instructions"] / verbs, most, width, bar, OURS)
        if wanted is not None:
            canvas.line(f"M{LEFT + (1 + wanted / verbs) * width / most:.1f} {y - 3}v{bar + 6}", ' stroke-width="2"')
        y += bar + gap
    canvas.line(f"M{LEFT + width / most:.1f} 26V{y}", ' stroke-dasharray="3 3"')
    return canvas.svg(LEFT + width + 50, y + 8)

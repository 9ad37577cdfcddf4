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

    def line(self, path, more=""):
        self.parts.append(f'<path d="{path}" stroke="{DARK}"{more}/>')

    def svg(self, width, height):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
                f'font-size="11"><rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


def times(devices):
    """The ratios to verbs of the times on devices, with the middle half of the runs as whiskers."""
    bar, gap, width, most = 9, 8, 360, 1.6
    colours = {"callbacks": OURS, "coroutines": ORANGE}
    canvas, y, scale = Canvas(), 34, width / most
    canvas.text(LEFT, 16, "time per operation, bare verbs = 1", weight="bold")
    for i, (loop, colour) in enumerate(colours.items()):
        canvas.bar(LEFT + 240 + 90 * i, 8, 9, 9, colour)
        canvas.text(LEFT + 253 + 90 * i, 16, loop)
    for results in devices:
        y += 8
        canvas.text(8, y + 10, results["device"].rstrip("0123456789"), weight="bold")
        y += 18
        top = y
        for case in results["cases"]:
            if case["failed"]:
                continue
            canvas.text(LEFT - 8, y + bar + 4, report.title(case), "end")
            for loop, colour in colours.items():
                entry = case[loop]
                low, high = (min(v, most) * scale for v in entry["quartiles"])
                canvas.bar(LEFT, y, min(entry["ratio"], most) * scale, bar, colour)
                canvas.line(f"M{LEFT + low:.1f} {y + bar / 2}H{LEFT + high:.1f}")
                canvas.text(LEFT + width + 6, y + bar, f'{entry["ratio"]:.2f}')
                y += bar + 1
            y += gap
        for mark, dash in (1.0, ""), (report.ALLOWED, ' stroke-dasharray="3 3"'):
            x = LEFT + mark * scale
            canvas.line(f"M{x:.1f} {top - 4}V{y - gap + 3}", dash)
    return canvas.svg(LEFT + width + 50, y + 8)


def instructions(overhead):
    """The instructions of an operation as multiples of those of verbs, a bar for each row. A short line: what is wanted."""
    bar, gap, width = 12, 8, 420
    cases = overhead["cases"]
    rows = [(words, cases[name]["instructions"] / cases[bare]["instructions"],
             None if wanted is None else 1 + wanted / cases[bare]["instructions"]) for words, name, bare, wanted, _ in costs.OVERHEADS]
    scale = width / max(ratio for _, ratio, _ in rows)
    canvas, y = Canvas(), 34
    canvas.text(LEFT, 16, "instructions per operation of 64 bytes, bare verbs = 1; short line: wanted", weight="bold")
    for words, ratio, wanted in rows:
        canvas.text(LEFT - 8, y + bar - 2, words, "end")
        canvas.bar(LEFT, y, ratio * scale, bar, OURS)
        if wanted is not None:
            canvas.line(f"M{LEFT + wanted * scale:.1f} {y - 3}v{bar + 6}", ' stroke-width="2"')
        canvas.text(LEFT + ratio * scale + 6, y + bar - 2, f"{ratio:.1f}")
        y += bar + gap
    canvas.line(f"M{LEFT + scale:.1f} 26V{y}", ' stroke-dasharray="3 3"')
    return canvas.svg(LEFT + width + 50, y + 8)

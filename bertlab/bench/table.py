"""The table of a benchmark's results, for the terminal and in Markdown."""

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bertlab.bench.compare import best_rival, rate, ratios

HEADINGS = (
    *("Workload", "Precision", "Ours", "Rival", "Ratio", "Target", "Model GFLOP/s", "Of ceiling"),
    *("Memory, MB", "Ready, s", "Padding"),
)


def cells(found: dict) -> list[str]:
    """One row: a workload's medians, with the lowest and the highest round."""
    sides, rival = found["sides"], best_rival(found["sides"])
    ours, failed = sides["ours"], {side: of["failed"] for side, of in sides.items() if "failed" in of}
    pairs = ratios(sides)
    megabytes = lambda side: f"{sides[side]['end']['peak_bytes'] / 1e6:,.0f}"
    ready = lambda side: f"{sides[side]['facts']['start_seconds']:.1f}"
    both = lambda value: " / ".join(value(side) for side in ("ours", rival) if side)
    flops = [of["flops"] / of["seconds"] for of in ours["rounds"] if of.get("flops")]
    top = max(of["facts"]["ceiling"] for of in sides.values() if "facts" in of)
    positions = sum(of.get("positions", 0) for of in ours["rounds"])
    padding = 1 - sum(of["tokens"] for of in ours["rounds"]) / positions if positions else None
    return [
        f"{found['what']} ({found['name']})",
        found["dtype"],
        shown(ours, found["kind"]),
        (f"{shown(sides[rival], found['kind'])} {rival}" if rival else "–") + "".join(f"; {side} failed" for side in failed),
        f"{statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})" if pairs else "–",
        target(found),
        f"{statistics.median(flops) / 1e9:,.0f}" if flops else "–",
        f"{100 * statistics.median(flops) / top:.0f} % of {top / 1e9:,.0f}" if flops and top else "–",
        both(megabytes),
        both(ready),
        f"{100 * padding:.1f} %" if padding is not None else "–",
    ]


def shown(side: dict, kind: str) -> str:
    """A side's median with its range: tokens a second, or seconds of a start."""
    if kind == "start":
        seconds = [of["seconds"] for of in side["rounds"]]
        return f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"
    rates = [rate(of) / 1000 for of in side["rounds"]]
    return f"{statistics.median(rates):.1f}k tok/s ({min(rates):.1f} to {max(rates):.1f})"


def target(found: dict) -> str:
    """What is aimed at, and whether it is reached."""
    pairs, sides = ratios(found["sides"]), found["sides"]
    if found["limit"]:
        reached = statistics.median(of["seconds"] for of in sides["ours"]["rounds"]) <= found["limit"]
        return f"{found['limit']:g} s: {'reached' if reached else 'missed'}"
    if not found["target"] or not pairs:
        return "–"
    return f"{found['target']:g}: {'reached' if statistics.median(pairs) >= found['target'] else 'missed'}"


def print_table(results: Sequence[dict]) -> None:
    """The results as a table on standard output."""
    table = Table()
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if i < 2 else "right")
    for found in results:
        table.add_row(*cells(found))
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


def markdown(results: Sequence[dict]) -> str:
    """The results as a table in Markdown."""
    lines = [HEADINGS, ("---", "---", *["--:"] * (len(HEADINGS) - 2)), *map(cells, results)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

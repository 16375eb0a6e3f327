"""The table of a benchmark's results, for the terminal and in Markdown."""

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bertlab.bench.compare import best_rival, rate, ratios

HEADINGS = (
    *("Workload", "Ours, k tokens/s", "Rival, k tokens/s", "Ratio", "Aim", "Model GFLOP/s, of ceiling"),
    *("Memory, GB", "Ready, s (compiling)", "Padding"),
)


def cells(found: dict) -> list[str]:
    """One row: medians with the lowest and the highest round; memory and time to be ready are ours / the rival's."""
    sides, kind = found["sides"], found["kind"]
    ours, rival, pairs = sides["ours"], best_rival(sides), ratios(sides)
    both = lambda value: " / ".join(value(sides[side]) for side in ("ours", rival) if side)
    positions = sum(of.get("positions", 0) for of in ours["rounds"])
    beside = [side for side in (rival, "gathered") if "rounds" in sides.get(side, {})]
    also = [f"{statistics.median(ratios(sides, side)):.3g} of {side}" for side in beside[1:]]
    return [
        found["name"],
        shown(ours, kind),
        "; ".join([*(f"{shown(sides[side], kind)} {side}" for side in beside), *failures(sides)]) or "–",
        "; ".join([spread(pairs), *also]) if pairs else "–",
        aim(found),
        products(sides),
        both(lambda side: f"{side['end']['peak_bytes'] / 1e9:.2f}"),
        both(ready),
        f"{100 * (1 - sum(of['tokens'] for of in ours['rounds']) / positions):.0f} %" if positions else "–",
    ]


def ready(side: dict) -> str:
    """Seconds from the start of its process to its first round, and how many of them it compiled."""
    compiling = side["facts"].get("compile_seconds")
    return f"{side['facts']['start_seconds']:.1f}" + (f" ({compiling:.1f})" if compiling else "")


def shown(side: dict, kind: str) -> str:
    """A side's thousands of tokens a second, or seconds of one whole."""
    if kind not in ("step", "rows", "rows-apart"):
        return f"{spread([of['seconds'] for of in side['rounds']])} s"
    return spread([rate(of) / 1000 for of in side["rounds"]])


def spread(values: Sequence[float]) -> str:
    """The median, and the lowest and the highest in brackets, with three digits."""
    digits = lambda value: f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{digits(statistics.median(values))} ({digits(min(values))} to {digits(max(values))})"


def failures(sides: dict) -> list[str]:
    """Rivals that could not do it."""
    return [f"{name} failed" for name, side in sides.items() if "failed" in side]


def products(sides: dict) -> str:
    """Model FLOPs a second, and their share of what a large matrix product reaches, on either side."""
    if not (share := share_of_ceiling(sides)):
        return "–"
    ceiling = _ceiling(sides)
    return f"{share * ceiling / 1e9:,.0f}, {100 * share:.0f} % of {ceiling / 1e9:,.0f}"


def share_of_ceiling(sides: dict) -> float:
    """Our model FLOPs a second over what a large matrix product reaches on either side; 0 where they are not counted."""
    flops = [of["flops"] / of["seconds"] for of in sides["ours"]["rounds"] if of.get("flops")]
    return statistics.median(flops) / _ceiling(sides) if flops else 0.0


def _ceiling(sides: dict) -> float:
    return max(side["facts"]["ceiling"] for side in sides.values() if "facts" in side)


def aim(found: dict) -> str:
    """What is aimed at, and whether it is reached."""
    said = lambda reached: "reached" if reached else "missed"
    pairs, rounds = ratios(found["sides"]), found["sides"]["ours"]["rounds"]
    more = ""
    if found["memory"]:
        more += f"; {found['memory'] / 1e9:g} GB, {said(found['sides']['ours']['end']['peak_bytes'] <= found['memory'])}"
    if found.get("of_ceiling"):
        reached = share_of_ceiling(found["sides"]) >= found["of_ceiling"]
        more += f"; {100 * found['of_ceiling']:.0f} % of the ceiling, {said(reached)}"
    if found["limit"]:
        return f"{found['limit']:g} s, {said(statistics.median(of['seconds'] for of in rounds) <= found['limit'])}"
    if found.get("positions"):
        each_second = statistics.median(of["positions"] / of["seconds"] for of in rounds)
        return f"{found['positions'] / 1000:.0f}k positions/s, {said(each_second >= found['positions'])}"
    if found["target"] and pairs:
        return f"{found['target']:g}, {said(statistics.median(pairs) >= found['target'])}{more}"
    return f"{found['target']:g}, not measured" if found["target"] else "–"


def print_table(results: Sequence[dict]) -> None:
    """The results as a table on standard output."""
    table = Table()
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if i else "left")
    for found in results:
        table.add_row(*cells(found))
    console = Console()
    console = console if console.is_terminal else Console(width=180)
    console.print(table)
    for found in results:
        for name, side in found["sides"].items():
            if "failed" in side:
                console.print(f"{found['name']}: {name} failed: {side['failed']}", markup=False, highlight=False)


def markdown(results: Sequence[dict]) -> str:
    """The results as a table in Markdown."""
    lines = [HEADINGS, ("---", *["--:"] * (len(HEADINGS) - 1)), *map(cells, results)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

"""The table of a benchmark's results, for the terminal and in Markdown."""

import statistics
from collections.abc import Sequence

from rich.table import Table

from bertlab.bench.workloads import RATES
from bertlab.console import Console

HEADINGS = (
    *("Workload", "Ours, k tokens/s", "Rival, k tokens/s", "Ratio", "Aim", "Model GFLOP/s, of ceiling"),
    *("Memory, GB", "Ready, s (compiling)", "Padding"),
)


STEP_HEADINGS = (
    *("Workload", "ms a step", "k tokens/s", "TFLOP/s", "Of peak", "Of a large product", "Plan's bound, ms", "Memory, GB"),
    *("Compiling, s", "PyTorch, k tokens/s", "Ratio"),
)
"""Of training steps on a device."""
CHOICE_HEADINGS = ("Workload", "Attention", "ms forward and backward", "Times as fast as xla", "Error", "Compiling, s")


def rate(of_round: dict, clock: str = "seconds") -> float:
    """Tokens per second without padding (clock "cpu_seconds": of CPU time); for rounds of the whole work, rounds per second."""
    return of_round.get("tokens", 1) / of_round[clock]


def best_rival(sides: dict) -> str | None:
    """The rival with the highest median rate, or None; "gathered" counts only if it was the only one requested."""
    asked = {side: of for side, of in sides.items() if side not in ("ours", "gathered")}
    asked = asked or {side: of for side, of in sides.items() if side == "gathered"}
    able = {side: of for side, of in asked.items() if "rounds" in of}
    return max(able, key=lambda side: statistics.median(map(rate, able[side]["rounds"])), default=None)


def ratios(sides: dict, rival: str | None = None, clock: str = "seconds") -> list[float]:
    """Our rate divided by a rival's (default: the best one's), round by round."""
    rival = rival or best_rival(sides)
    return [rate(a, clock) / rate(b, clock) for a, b in zip(sides["ours"]["rounds"], sides[rival]["rounds"])] if rival else []


def cells(found: dict) -> list[str]:
    """One row: medians with the lowest and highest round. Memory and start-up time are ours / the rival's.

    If each side has one core, the row also gives rates and ratio by CPU time, because other processes hardly change it.
    """
    sides, kind = found["sides"], found["kind"]
    ours, rival, pairs = sides["ours"], best_rival(sides), ratios(sides)
    both = lambda value: " / ".join(value(sides[side]) for side in ("ours", rival) if side)
    positions = sum(of.get("positions", 0) for of in ours["rounds"])
    beside = [side for side in dict.fromkeys((rival, "gathered")) if "rounds" in sides.get(side, {})]
    failed = [f"{side} failed" for side, of in sides.items() if "failed" in of]
    also = [f"{statistics.median(ratios(sides, side)):.3g} of {side}" for side in beside[1:]]
    one_core = found.get("cores") == 1
    if one_core and pairs:
        also.append(f"{statistics.median(ratios(sides, clock='cpu_seconds')):.3g} by CPU time")
    rates = lambda side: shown(side, kind) + (f"; {by_cpu_time(side):.3g} by CPU time" if one_core else "")
    return [
        found["name"],
        rates(ours),
        "; ".join([*(f"{rates(sides[side])} {side}" for side in beside), *failed]) or "–",
        "; ".join([spread(pairs), *also]) if pairs else "–",
        aim(found),
        products(sides),
        both(lambda side: f"{side['end']['peak_bytes'] / 1e9:.2f}"),
        both(ready),
        f"{100 * (1 - sum(of['tokens'] for of in ours['rounds']) / positions):.0f} %" if positions else "–",
    ]


def ready(side: dict) -> str:
    """Seconds from the start of the process to its first round, and how many of them went into compiling."""
    compiling = side["facts"].get("compile_seconds")
    return f"{side['facts']['start_seconds']:.1f}" + (f" ({compiling:.1f})" if compiling else "")


def shown(side: dict, kind: str) -> str:
    """A side's thousands of tokens per second, or the seconds of one round that does all of the work."""
    if kind not in RATES:
        return f"{spread([of['seconds'] for of in side['rounds']])} s"
    return spread([rate(of) / 1000 for of in side["rounds"]])


def by_cpu_time(side: dict) -> float:
    """The median of thousands of tokens per second of CPU time."""
    return statistics.median(rate(of, "cpu_seconds") for of in side["rounds"]) / 1000


def spread(values: Sequence[float]) -> str:
    """The median, with the lowest and highest value in brackets, to three digits."""
    digits = lambda value: f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{digits(statistics.median(values))} ({digits(min(values))} to {digits(max(values))})"


def products(sides: dict) -> str:
    """Our model FLOP/s, and their share of the best FLOP/s that either side reached in a large matrix product."""
    if not (share := share_of_ceiling(sides)):
        return "–"
    ceiling = _ceiling(sides)
    return f"{share * ceiling / 1e9:,.0f}, {100 * share:.0f} % of {ceiling / 1e9:,.0f}"


def share_of_ceiling(sides: dict) -> float:
    """Our model FLOP/s divided by the best of either side in a large matrix product; 0 if FLOPs are not counted."""
    flops = [of["flops"] / of["seconds"] for of in sides["ours"]["rounds"] if of.get("flops")]
    return statistics.median(flops) / _ceiling(sides) if flops else 0.0


def _ceiling(sides: dict) -> float:
    return max(side["facts"]["ceiling"] for side in sides.values() if "facts" in side)


def aim(found: dict) -> str:
    """The workload's aim, and whether it was reached."""
    said = lambda reached: "reached" if reached else "missed"
    pairs, rounds = ratios(found["sides"]), found["sides"]["ours"]["rounds"]
    more = ""
    if found["memory"]:
        more += f"; {found['memory'] / 1e9:g} GB, {said(found['sides']['ours']['end']['peak_bytes'] <= found['memory'])}"
    if found.get("of_ceiling"):
        reached = share_of_ceiling(found["sides"]) >= found["of_ceiling"]
        more += f"; {100 * found['of_ceiling']:.0f} % of the ceiling, {said(reached)}"
    if found.get("tokens"):
        median = statistics.median(map(rate, rounds))
        more += f"; {found['tokens'] / 1000:g}k tokens/s, {said(median >= found['tokens'])}"
    if found["limit"]:
        return f"{found['limit']:g} s, {said(statistics.median(of['seconds'] for of in rounds) <= found['limit'])}"
    if found.get("positions"):
        each_second = statistics.median(of["positions"] / of["seconds"] for of in rounds)
        return f"{found['positions'] / 1000:.0f}k positions/s, {said(each_second >= found['positions'])}"
    if found["target"] and pairs:
        return f"{found['target']:g}, {said(statistics.median(pairs) >= found['target'])}{more}"
    return f"{found['target']:g}, not measured{more}" if found["target"] else more.removeprefix("; ") or "–"


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


def device_tables(file: dict) -> str:
    """The file of a suite for a device in Markdown: its machine, training steps, attention, and what has no numbers and why."""
    device, steps, choices, without = file["device"], [], [], []
    for found in file["workloads"]:
        if "sides" not in found:
            without.append(f"- {found['name']}: {found.get('failed') or found['skipped']}")
        elif found["kind"] == "attention":
            choices += choice_rows(found)
        else:
            steps.append(step_row(found))
            failed = {side: of["failed"] for side, of in found["sides"].items() if "failed" in of}
            without += [f"- {found['name']}, {side}: {why}" for side, why in failed.items()]
    what = f"{device['number']} {device['kind']}, jax {device['jax']}, bertlab {file['bertlab']}"
    if file["rehearsal"]:
        what = f"A rehearsal with very small models: the numbers mean nothing. {what}"
    tables = [_lines(STEP_HEADINGS, steps), _lines(CHOICE_HEADINGS, choices)]
    reasons = "\n".join(["Without numbers:", "", *without]) if without else ""
    return "\n\n".join(part for part in (what, *tables, reasons) if part) + "\n"


def step_row(found: dict) -> list[str]:
    """Medians of one workload's training steps, and those of the rival."""
    ours, rival, pairs = found["sides"]["ours"], best_rival(found["sides"]), ratios(found["sides"])
    facts, median = ours["facts"], lambda value: statistics.median(map(value, ours["rounds"]))
    flops = median(lambda of: of["flops"] / of["seconds"])
    peak = facts.get("peak") if found["dtype"] == "bfloat16" else None
    beside = [side for side in dict.fromkeys((rival, "gathered")) if "rounds" in found["sides"].get(side, {})]
    memory = lambda side: f"{found['sides'][side]['end']['peak_bytes'] / 1e9:.2f}"
    return [
        found["name"],
        f"{1000 * median(lambda of: of['seconds'] / of['steps']):.3g}",
        spread([rate(of) / 1000 for of in ours["rounds"]]),
        f"{flops / 1e12:.3g}",
        f"{100 * flops / peak:.1f} %" if peak else "–",
        f"{100 * flops / facts['ceiling']:.1f} %",
        f"{1000 * facts['bound_seconds']:.3g}" if "bound_seconds" in facts else "–",
        " / ".join(map(memory, ("ours", *beside[:1]))),
        f"{facts['compile_seconds']:.1f}",
        "; ".join(f"{spread([rate(of) / 1000 for of in found['sides'][side]['rounds']])} {side}" for side in beside) or "–",
        "; ".join([spread(pairs), *(f"{statistics.median(ratios(found['sides'], side)):.3g} of {side}" for side in beside[1:])])
        if pairs
        else "–",
    ]


def choice_rows(found: dict) -> list[list[str]]:
    """A row for each implementation of attention; errors are of the largest value, against float32."""
    ours, rows = found["sides"]["ours"], []
    seconds = lambda name: statistics.median(of["choices"][name] for of in ours["rounds"])
    for name, facts in ours["facts"]["choices"].items():
        if "failed" in facts:
            rows.append([found["name"], name, f"failed: {facts['failed']}", "–", "–", "–"])
            continue
        faster = f"{seconds('xla') / seconds(name):.3g}" if "failed" not in ours["facts"]["choices"]["xla"] else "–"
        error = "–" if facts["error"] is None else f"{facts['error']:.2g}"
        rows.append([found["name"], name, f"{1000 * seconds(name):.3g}", faster, error, f"{facts['compile_seconds']:.1f}"])
    return rows


def _lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; none without rows."""
    lines = [headings, ("---", *["--:"] * (len(headings) - 1)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else ""


def markdown(results: Sequence[dict]) -> str:
    """The results as a table in Markdown."""
    return _lines(HEADINGS, [*map(cells, results)]) + "\n"

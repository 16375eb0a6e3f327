"""What docs/corrections.md says that configs have now, they have, and no longer what they had before."""

import re

import pytest

from bertlab.config import load_config
from tests.conftest import ROOT

GOLDEN = ROOT / "tests/studies"
ROWS = [
    [cell.strip().replace("`", "") for cell in line.strip("|\n").split("|")]
    for line in (ROOT / "docs/corrections.md").read_text().splitlines()
    if re.match(r"\| \d{4}-", line)
]


def at_paper(line: str) -> str:
    """A key's value at scale=paper: that of all scales, or the one behind the scale's name."""
    return line.rpartition("paper: ")[2]


def of_runs(text: str, key: str) -> dict[str, str]:
    """Run -> the key's value at scale=paper ("" without one), its own or that of the run which it is told to be like."""
    found, by_first_name = {}, {"": ""}
    for block in text.strip("\n").split("\n\n"):
        name, *lines = block.split("\n")
        name, _, like = name.partition(" <- ")
        own = [at_paper(line.partition(": ")[2]) for line in lines if line.startswith(f"  {key}: ")]
        first = re.match(r"[\w, ]+: (.*?) \| ", name)  # its name at the smallest scale
        found[at_paper(name)] = by_first_name[first[1] if first else name] = own[0] if own else by_first_name[like]
    return found


def golden_values(where: str, key: str) -> list[str]:
    """The key's values at scale=paper: of the run that a row names or else of all runs of a study; of a recipe, for a task."""
    if recipe := re.match(r"recipe (\w+)", where):
        text = re.search(rf"^{recipe[1]}\n(.*?)(\n\n|\Z)", (GOLDEN / "golden_recipes.txt").read_text(), re.M | re.S)[1]
        (line,) = re.findall(rf"^  {re.escape(key)}: (.*)$", text, re.M)
        if "SQuAD" not in where:
            return [line]
        task = "squad1" if "1.1" in where else "squad2"
        return re.findall(rf"([^,()]+) \([^)]*\b{task}\b", line)
    file, _, run = where.partition(", run ")
    found = of_runs((GOLDEN / "golden_configs" / file).read_text(), key)
    return [found[run]] if run else [*found.values()]


@pytest.mark.parametrize(("where", "key", "before", "now"), [row[1:5] for row in ROWS], ids=lambda cell: str(cell)[:30])
def test_a_corrected_value_is_there(where, key, before, now):
    if ".py:" in where:
        value = load_config(f"{ROOT}/experiments/pretrain/{where}")
        for name in key.split("."):
            value = value[name]
        values = [str(value)]
    else:
        values = [value.strip() for value in golden_values(where, key)]
    is_it = lambda value, said: value == said or value.startswith(f"{said} (")
    assert values and all(is_it(value, now) and not is_it(value, before) for value in values), values


def test_one_run_with_another_value_is_noticed():
    text = "tiny: a | paper: A\n  x: tiny: 1 | paper: 2\n\nb <- a\n  y: 3\n\nc <- b\n  x: 1\n"
    assert of_runs(text, "x") == {"A": "2", "b": "2", "c": "1"} and of_runs(text, "y") == {"A": "", "b": "3", "c": "3"}

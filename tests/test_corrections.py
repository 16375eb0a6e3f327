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


def golden_values(where: str, key: str) -> list[str]:
    """The key's values at scale=paper in a study's golden file, or in a recipe's part of that of the recipes."""
    if recipe := re.match(r"recipe (\w+)", where):
        text = re.search(rf"^{recipe[1]}\n(.*?)\n\n", (GOLDEN / "golden_recipes.txt").read_text(), re.M | re.S)[1]
        task = "squad1" if "1.1" in where else "squad2"
        (line,) = re.findall(rf"^  {re.escape(key)}: (.*)$", text, re.M)
        return re.findall(rf"([^,()]+) \([^)]*\b{task}\b", line)
    lines = re.findall(rf"^  {re.escape(key)}: (.*)$", (GOLDEN / "golden_configs" / where).read_text(), re.M)
    return [line.rpartition("paper: ")[2] for line in lines]


@pytest.mark.parametrize(("where", "key", "before", "now"), [row[1:5] for row in ROWS], ids=lambda cell: str(cell)[:30])
def test_a_corrected_value_is_there(where, key, before, now):
    if ".py:" in where:
        value = load_config(f"{ROOT}/experiments/pretrain/{where}")
        for name in key.split("."):
            value = value[name]
        values = [str(value)]
    else:
        values = [value.strip() for value in golden_values(where, key)]
    assert any(value == now or value.startswith(f"{now} (") for value in values), values
    assert before != now

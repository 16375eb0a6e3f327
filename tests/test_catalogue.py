"""`bertlab models`: every family and size, with the parameter counts of the published models."""

import contextlib
import io
import json
import re

import pytest

from bertlab.cli import main
from bertlab.models.presets import FAMILIES

# (family, size, V): body, and with the output and the objectives' heads; None where nothing is published.
PUBLISHED = {
    # From the definitions of google-research/bert modeling.py and run_pretraining.py, their pooler in the body.
    ("bert", "base", 30_522): (109_482_240, 110_106_428),
    ("bert", "tiny", 30_522): (None, 4_433_468),
    ("bert", "mini", 30_522): (None, 11_267_900),
    ("bert", "small", 30_522): (None, 29_058_876),
    ("bert", "medium", 30_522): (None, 41_668_412),
    ("bert", "large", 30_522): (335_141_888, 336_226_108),
    ("bert", "base", 28_996): (108_310_272, None),
    # openai/finetune-transformer-lm, params_shapes.json.
    ("gpt", "gpt1", 40_478): (116_534_784, 116_534_784),
    # transformers' GPT2LMHeadModel of these shapes.
    ("gpt", "gpt2", 50_257): (124_439_808, 124_439_808),
    ("gpt", "gpt2-medium", 50_257): (354_823_168, 354_823_168),
    ("gpt", "gpt2-large", 50_257): (774_030_080, 774_030_080),
    ("gpt", "gpt2-xl", 50_257): (1_557_611_200, 1_557_611_200),
    # allenai/bilm-tf: "93.6M", "28.0M" and "13.6M" without the softmax's 793,471 · (D + 1); 261 characters.
    ("elmo", "original", 793_471): (93_600_848, 93_600_848 + 793_471 * 513),
    ("elmo", "medium", 793_471): (28_027_744 - 16, None),  # published with the 262nd row of 16 of its character table
    ("elmo", "small", 793_471): (13_593_312 - 16, None),
    # salesforce/awd-lstm-lm: "24M" and "33M", the decoder's bias with them.
    ("awd_lstm", "original", 10_000): (None, 24_221_600),
    ("awd_lstm", "original", 33_278): (None, 33_556_078),
    ("awd_lstm", "original", 267_735): (None, 127_573_335),
}


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str, int], tuple[int, int]]:
    """What `bertlab models --json` prints: (family, size, V) to its two numbers."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["models", "--json"]) == 0
    rows = json.loads(printed.getvalue())["models"]
    found = {(row["family"], row["size"], row["vocab_size"]): (row["body"], row["all"]) for row in rows}
    assert len(found) == len(rows)
    return found


def test_every_family_and_size_is_printed(table):
    assert {row[:2] for row in table} == {(family, size) for family, kind in FAMILIES.items() for size in kind.sizes}
    assert all(0 < body <= total for body, total in table.values())


@pytest.mark.parametrize("model", PUBLISHED)
def test_numbers_are_those_of_the_published_models(model, table):
    for published, printed in zip(PUBLISHED[model], table[model], strict=True):
        assert published in (None, printed)


@pytest.mark.parametrize(("columns", "most_lines"), [(80, 80), (100, 55)])
def test_a_terminal_shows_every_name_and_number_whole(columns, most_lines, table, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert main(["models"]) == 0
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    lines = printed.splitlines()
    assert max(map(len, lines)) <= columns and len(lines) < most_lines and "…" not in printed
    for (_, size, vocab_size), (body, total) in table.items():
        assert len(re.findall(rf"\b{size} .* {vocab_size:,} +{body:,} +{total:,} *$", printed, re.MULTILINE)) == 1
    assert all(len(re.findall(rf"^{family} ", printed, re.MULTILINE)) == 1 for family in FAMILIES)

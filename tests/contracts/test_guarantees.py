"""docs/guarantees.md: each row of its tables names tests, and every test that it names is in the file that it links."""

import re

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "guarantees.md"
LINK = re.compile(r"\[[^]]*\]\(([^)#]+)[^)]*\)")


def test_every_test_that_is_named_exists():
    rows = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0] != "| Guarantee"]
    assert len(rows) > 20
    for row in rows:
        assert len(row) == 3 and row[1].strip(), row[0]
        named = 0
        for place, rest in re.findall(LINK.pattern + r"([^[]*)", row[2]):
            file = (PAGE.parent / place).resolve()
            names = re.findall(r"`(test_\w+)`", rest)
            assert [name for name in names if f"\ndef {name}(" not in file.read_text(encoding="utf-8")] == [], place
            named += len(names)
        assert named, row[0]


def test_every_link_leads_to_a_file():
    for page in (PAGE, ROOT / "docs" / "dependencies.md", ROOT / "SECURITY.md"):
        for place in LINK.findall(page.read_text(encoding="utf-8")):
            assert (page.parent / place).exists(), f"{page.name}: {place}"

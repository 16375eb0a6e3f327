"""Tests of the rebuilt rooms are slow ones until these rooms replace the old ones."""

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks what lies in this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("slow")

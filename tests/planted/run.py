"""Plants each bug of `bugs.py` in a copy of this checkout, and says which tests notice it.

    python tests/planted/run.py [NAME ...] [--tests=tests/contracts/test_leaks.py,...]

Without names it tries all bugs; `--tests` replaces the tests that each bug names. It exits with status 1 if a bug goes
unnoticed, or if the text that a bug replaces does not occur exactly once.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bugs import BUGS, Bug

ROOT = Path(__file__).parent.parent.parent
FAILED_TESTS = 1  # pytest's exit status; any other says that it could not run them


def main() -> int:
    """Tries the bugs that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="bugs to plant (default: all)")
    parser.add_argument("--tests", default="", help="comma-separated tests to run instead of those that a bug names")
    given = parser.parse_args()
    if unknown := set(given.names) - {bug.name for bug in BUGS}:
        parser.error(f"no bug is called {min(unknown)}; choose from {', '.join(bug.name for bug in BUGS)}")
    chosen = [bug for bug in BUGS if bug.name in (given.names or (bug.name,))]
    with tempfile.TemporaryDirectory(prefix="bertlab-planted-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__", "runs"))
        missed = [bug.name for bug in chosen if not is_noticed(bug, copy, given.tests.split(",") if given.tests else bug.tests)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} bugs noticed" + (f"; missed: {', '.join(missed)}" if missed else ""))
    return 1 if missed else 0


def is_noticed(bug: Bug, checkout: Path, tests: Sequence[str]) -> bool:
    """Whether a test fails once the bug is in the checkout; the checkout is as before afterwards."""
    file = checkout / bug.file
    text = file.read_text(encoding="utf-8")
    if (count := text.count(bug.old)) != 1:
        print(f"{bug.name}: the text to replace occurs {count} times in {bug.file}; mend it in tests/planted/bugs.py")
        return False
    file.write_text(text.replace(bug.old, bug.new), encoding="utf-8")
    try:
        found = run_tests(checkout, tests)
    finally:
        file.write_text(text, encoding="utf-8")
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", found.stdout, flags=re.MULTILINE)
    noticed = found.returncode == FAILED_TESTS and bool(failed)
    print(f"{bug.name}: {'noticed by ' + ', '.join(failed) if noticed else 'NOT NOTICED'}", flush=True)
    if found.returncode > FAILED_TESTS:
        print(found.stdout[-2000:], found.stderr[-2000:])
    return noticed


def run_tests(checkout: Path, tests: Sequence[str]) -> subprocess.CompletedProcess:
    """Runs tests of a checkout up to the first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *tests]
    settings = {"PYTHONPATH": str(checkout), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=checkout, env=os.environ | settings, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())

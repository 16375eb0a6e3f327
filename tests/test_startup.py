"""The command line starts without the libraries that only its commands need."""

import subprocess
import sys

HEAVY = (
    "jax",
    "flax",
    "grain",
    "matplotlib",
    "numpy",
    "pandas",
    "ray",
    "scipy",
    "sklearn",
    "tensorflow_datasets",
    "tokenizers",
)


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom bertlab.cli import main\n"
        "try:\n    main(['train', '--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"

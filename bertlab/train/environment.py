"""What a run's environment.json says of the software and hardware."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

PACKAGES = ("bertlab", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers")


def describe_environment() -> dict[str, Any]:
    """Versions, devices, commit and command of this process."""
    return {
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in jax.devices()],
        "processes": jax.process_count(),
        "git_commit": git("rev-parse", "HEAD"),
        "git_changed_files": git("status", "--porcelain", "--untracked-files=no").splitlines(),
        "command": " ".join(sys.argv),
    }


def git(*arguments: str) -> str:
    """Git's answer on the source tree; "" without a checkout or without git."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""

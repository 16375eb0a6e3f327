"""What a run's environment.json says about software and hardware."""

import contextlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

PACKAGES = ("bertlab", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers")


def describe_environment() -> dict[str, Any]:
    """Versions, devices, commit and command of this process."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    packages = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # not installed by pip
            packages[name] = importlib.metadata.version(name)
    has_git = shutil.which("git") is not None
    return {
        "python": platform.python_version(),
        "packages": packages,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in jax.devices()],
        "processes": jax.process_count(),
        "git_commit": git("rev-parse", "HEAD") if has_git else "",
        "git_changed_files": git("status", "--short", "-uno").splitlines() if has_git else [],
        "command": " ".join(sys.argv),
    }

"""The environment of a run: versions, devices, commit, command."""

import functools
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

from bertlab.machine import describe_machine
from bertlab.train.code import code_of

_PACKAGES = (
    *("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "array-record", "tensorflow-datasets", "protobuf"),
    *("ml-collections", "numpy", "sentencepiece", "tokenizers"),
)


def describe_environment(config: Any = None) -> dict:
    """A JSON-ready description of this process's software and hardware, and of a config's outside code ("code"), if any."""
    code = code_of(config) if config is not None else {}
    return {
        "python": platform.python_version(),
        **describe_machine(),
        "bertlab": importlib.metadata.version("bertlab"),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "backend": jax.default_backend(),
        "devices": [str(device.device_kind) for device in jax.devices()],
        "processes": jax.process_count(),
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changed_files": _git("status", "--porcelain", "--untracked-files=no").splitlines(),
        "command": " ".join(sys.argv),
        **({"code": code} if code else {}),
    }


@functools.cache
def _git(*arguments: str) -> str:
    """Git's output on the source tree at the first call; empty without a checkout or git."""
    try:
        done = subprocess.run(["git", "-C", str(Path(__file__).parent), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

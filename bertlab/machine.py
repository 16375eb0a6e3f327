"""What a result file says of the machine that made it."""

import contextlib
import platform
from pathlib import Path

from bertlab.data.parallel import available_cores, memory_of_machine


def describe_machine() -> dict:
    """This machine's processor, cores that the process may use, memory (10⁹ bytes) and platform; JSON-ready."""
    name = platform.processor()
    with contextlib.suppress(FileNotFoundError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return {
        "processor": name,
        "cores": available_cores(),
        "memory_gb": round(memory_of_machine() / 1e9),
        "platform": platform.platform(),
    }

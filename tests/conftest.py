"""Shared set-up: eight virtual CPU devices, and one cache a run of the suite."""

import os
import shutil
import tempfile

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)


def pytest_configure(config):
    """All worker processes of one run of the suite share its cache, of compiled programs too."""
    if hasattr(config, "workerinput"):
        return
    directory = tempfile.mkdtemp(prefix="bertlab-tests-")
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
    os.environ["BERTLAB_CACHE"] = directory
    settings = {"compilation_cache_dir": directory, "persistent_cache_min_compile_time_secs": 0}
    for name, value in settings.items():
        os.environ.setdefault(f"JAX_{name.upper()}", str(value))
        jax.config.update(f"jax_{name}", value)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What only a night runs is slow too."""
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker("slow")

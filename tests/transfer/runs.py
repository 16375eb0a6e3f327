"""Runs for tests that only read one."""

from pathlib import Path

from bertlab.interop.base import Imported, save_imported
from bertlab.train.build import build_pretraining
from tests.references import initial


def fresh_run(config, directory: Path) -> Path:
    """A run directory with fresh parameters: no training step is compiled."""
    experiment = build_pretraining(config)
    params = initial(experiment.program, experiment.evaluations["valid"][0])
    save_imported(Imported(config, params, experiment.tokenizer), directory, "huggingface", "nowhere")
    for name in ("imported.json", "files.json"):  # as if it had been trained here
        (directory / name).unlink()
    return directory

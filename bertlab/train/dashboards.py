"""Writers of the log for Weights & Biases, MLflow and Aim, each through its own client (`config.writers`).

Where they write, and under which account, is set as their own documentation says, by variables of the environment:
WANDB_MODE=offline and WANDB_PROJECT, MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME, or a folder with `aim init`. Metrics are
named split/metric; the run has the config too. The name by which the client knows the run is in RUN/dashboards, so a resumed
run goes on with it, and does not send again what it has sent.

What goes wrong at the start is an error of one sentence. Later a failure ends only the writer, with one line on standard error:
metrics.jsonl has everything.
"""

import abc
import os
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bertlab.config import flatten
from bertlab.errors import RunFailed, require
from bertlab.files import write_text
from bertlab.run import Run

PROJECT = "bertlab"


class Dashboard(abc.ABC):
    """A writer of the log.

    Args:
        directory: of the run.
        config: the run's, as a nested dict.
        sent: (step, split) of lines that a killed run has written and this one will write again.

    Raises:
        UserError: the client is not installed.
        RunFailed: the client cannot begin.
    """

    name: str

    def __init__(self, directory: Path, config: Mapping[str, Any], sent: Collection[tuple[int, str]]):
        self._client = require(self.name, self.name, f"config.writers={self.name}")
        kept = Run(directory).dashboards / f"{self.name}.txt"
        begun = kept.read_text(encoding="utf-8").strip() if kept.exists() else ""
        self._sent = {*sent} if begun else set()
        try:
            name = self._begin(directory, config, begun)
        except Exception as error:  # of a client: a missing login, no network
            said = " ".join(str(error).split())
            raise RunFailed(f"config.writers={self.name}: {said}; set it up, or take it out of config.writers") from error
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_text(kept, f"{name}\n")
        self._works = True

    def write(self, line: Mapping[str, Any]) -> None:
        """Sends every number of the line."""
        step, split = line["step"], line["split"]
        if not self._works or (step, split) in self._sent:
            return
        numbers = {k: v for k, v in line.items() if isinstance(v, (int, float)) and k != "step"}
        self._guarded(lambda: self._send(step, split, numbers))

    def close(self) -> None:
        """Ends the client."""
        if self._works:
            self._guarded(self._end)

    def _guarded(self, act) -> None:
        try:
            act()
        except Exception as error:
            self._works = False
            said = " ".join(str(error).split())
            print(f"warning: config.writers={self.name} writes no more ({said}); metrics.jsonl goes on", file=sys.stderr)

    @abc.abstractmethod
    def _begin(self, directory: Path, config: Mapping[str, Any], begun: str) -> str:
        """Opens the run that the client knows as `begun`, or a new one; returns its name there."""

    @abc.abstractmethod
    def _send(self, step: int, split: str, numbers: Mapping[str, float]) -> None: ...

    @abc.abstractmethod
    def _end(self) -> None: ...


class WandbWriter(Dashboard):
    """Weights & Biases; its files are in RUN/wandb."""

    name = "wandb"

    def _begin(self, directory: Path, config: Mapping[str, Any], begun: str) -> str:
        self._run = self._client.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=directory.name,
            dir=str(directory),
            id=begun or None,
            resume="allow" if begun else None,
            config=dict(config),
            settings=self._client.Settings(silent=True, console="off", disable_git=True),
        )
        self._run.define_metric("*", step_metric="step")
        return self._run.id

    def _send(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        self._run.log({"step": step} | {f"{split}/{name}": value for name, value in numbers.items()})

    def _end(self) -> None:
        self._run.finish()


class MlflowWriter(Dashboard):
    """MLflow; the config's keys are its parameters."""

    name = "mlflow"

    def _begin(self, directory: Path, config: Mapping[str, Any], begun: str) -> str:
        from mlflow.entities import Param

        self._tracking = self._client.MlflowClient()
        if begun:
            self._tracking.update_run(begun, status="RUNNING")
            self._id = begun
            return begun
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._tracking.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._tracking.create_experiment(name)
        self._id = self._tracking.create_run(number, run_name=directory.name).info.run_id
        params = [Param(key, str(value)) for key, value in flatten(config).items()]
        for start in range(0, len(params), 100):  # the most that it takes at a time
            self._tracking.log_batch(self._id, params=params[start : start + 100])
        return self._id

    def _send(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        self._tracking.log_batch(self._id, [Metric(f"{split}/{name}", value, now, step) for name, value in numbers.items()])

    def _end(self) -> None:
        self._tracking.set_terminated(self._id)


class AimWriter(Dashboard):
    """Aim; the split is a metric's context."""

    name = "aim"

    def _begin(self, directory: Path, config: Mapping[str, Any], begun: str) -> str:
        quiet = {"system_tracking_interval": None, "capture_terminal_logs": False}
        self._run = self._client.Run(begun or None, experiment=PROJECT, **quiet)
        self._run.name = directory.name
        self._run["config"] = {
            key: value if isinstance(value, (int, float)) else str(value) for key, value in flatten(config).items()
        }
        return self._run.hash

    def _send(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._run.track(value, name=name, step=step, context={"split": split})

    def _end(self) -> None:
        self._run.close()


DASHBOARDS = {kind.name: kind for kind in (WandbWriter, MlflowWriter, AimWriter)}

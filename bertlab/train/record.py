"""A run's totals and its log lines."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bertlab.errors import UserError
from bertlab.objectives.blame import whereabouts
from bertlab.train.build import Experiment, Phase
from bertlab.train.cost import step_flops, supervised_positions
from bertlab.train.metrics import MetricSums


class Diverged(UserError):
    """A loss, metric or gradient became NaN or infinite."""


@dataclasses.dataclass
class Progress:
    """Running totals of a run, saved with every checkpoint.

    Attributes:
        tokens: number of tokens without padding.
        supervised: number of supervised positions.
        flops: forward and backward model FLOPs, without recomputation.
        seconds: training time without compilation, evaluation and saving.
        sums: metric sums since the last log line.
        logged_tokens, logged_seconds: the totals at the last log line.
        evaluates: a signal came before the evaluation of this step had ended; the run that goes on begins with it.
    """

    tokens: int = 0
    supervised: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    sums: dict = dataclasses.field(default_factory=dict)
    logged_tokens: int = 0
    logged_seconds: float = 0.0
    evaluates: bool = False

    def axes(self) -> dict:
        """The values for the curves' horizontal axes."""
        return {k: getattr(self, k) for k in ("tokens", "supervised", "flops", "seconds")}


class Record:
    """A run's totals, and its log lines.

    Args:
        experiment: the run's experiment.
        rate: updates done -> the learning rate of the next update.
        writers: writers of the log lines.
        progress: the totals of a resumed run.
        last_good: the path of the last checkpoint, for messages.
        show: whether to print lines too.

    Attributes:
        progress: the totals.
        sums: metrics since the last log line.
    """

    def __init__(
        self,
        experiment: Experiment,
        rate: Callable[[int], float],
        writers: Sequence,
        progress: Progress,
        last_good: Callable[[], str],
        show: bool,
    ):
        self._experiment, self._rate, self._writers, self._last_good, self._show = experiment, rate, writers, last_good, show
        self.progress, self.sums = progress, MetricSums(progress.sums)
        self._tokens_per_second = 0.0  # of the last log window

    def add(self, phase: Phase, step: int, metrics: Mapping[str, Any], example_ids: np.ndarray, length: int) -> None:
        """Adds the results of a step of a phase over rows of `length` positions.

        Raises:
            Diverged: a metric is not finite; names it, and the batch's examples.
        """
        progress, metrics = self.progress, dict(metrics)
        progress.tokens += int(metrics.pop("tokens"))
        self._require_finite(metrics, step, example_ids)
        progress.supervised += int(supervised_positions(phase, metrics))
        progress.flops += step_flops(phase, metrics, length)
        self.sums.add(metrics)

    def log(self, step: int, data_hash: str) -> None:
        """Writes the mean metrics since the last log line."""
        progress, means = self.progress, self.sums.means(self._experiment.weights(step))
        tokens, seconds = progress.tokens - progress.logged_tokens, progress.seconds - progress.logged_seconds
        self._tokens_per_second = round(tokens / seconds, 1)
        self._write(step, "train", means, {"data_hash": data_hash})
        self.sums = MetricSums()
        progress.logged_tokens, progress.logged_seconds = progress.tokens, progress.seconds

    def evaluated(self, step: int, split: str, results: Sequence[tuple[Mapping, Mapping]]) -> dict[str, float]:
        """Writes mean metrics of a held-out split.

        Args:
            step: number of updates done.
            split: the split's name.
            results: (metrics, the objectives' outputs) of each batch.

        Raises:
            Diverged: as for `add`.
        """
        sums = MetricSums()
        for (metrics, _), batch in zip(results, self._experiment.evaluations[split], strict=True):
            self._require_finite(metrics, step, batch["example_id"])
            sums.add(metrics)
        means = sums.means(self._experiment.weights(step))
        if self._experiment.score is not None:
            means |= self._experiment.score(split, [outputs for _, outputs in results])
        self._write(step, split, means, {})
        return means

    def _require_finite(self, metrics: Mapping[str, tuple], step: int, example_ids: np.ndarray) -> None:
        objectives = self._experiment.program.objectives
        bad_weight = next((name for name, (_, weight) in metrics.items() if not 0 <= weight < math.inf), "")
        name, _, metric = bad_weight.partition("/")
        if name in objectives:
            where = whereabouts(objectives[name], "loss")
            raise Diverged(
                f"objective {name}: {where}: the weight of loss()['{metric}'] is not finite, or negative, at step {step}"
            )
        if bad := next((name for name, (total, _) in metrics.items() if not np.isfinite(total)), None):
            name = bad.partition("/")[0]
            where = f"objective {name}: {whereabouts(objectives[name], 'loss')}: " if name in objectives else ""
            todo = "lower config.optimizer.learning_rate, or look at these examples"
            # A packed row has several, followed by zeros.
            examples = np.unique(example_ids.reshape(-1, 2), axis=0).tolist()
            raise Diverged(
                f"{where}{bad} is not finite at step {step}; example ids (document, row) of the batch: {examples};"
                f" last good checkpoint: {self._last_good()};"
                f" {todo if step else 'look at this loss and these examples: nothing was trained yet'}"
            )

    def _write(self, step: int, split: str, means: dict, more: dict) -> None:
        rate = float(self._rate(max(step - 1, 0)))  # of the last update
        more = {"tokens_per_second": self._tokens_per_second, "learning_rate": rate, **more}
        line = {"step": step, "split": split, **means, **self.progress.axes(), **more}
        for writer in self._writers:
            writer.write(line)
        if not self._show:
            return
        steps = self._experiment.config.train.steps
        shown = {k: v for k, v in (means | more).items() if isinstance(v, float) and not k.endswith("_norm")}
        numbers = "  ".join(f"{k} {v:.4g}" for k, v in shown.items())
        print(f"step {step:>{len(str(steps))}}/{steps}  {split:5}  {numbers}", flush=True)

    def close(self) -> None:
        """Flushes all lines to disk."""
        for writer in self._writers:
            writer.close()

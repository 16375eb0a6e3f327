"""Phases of a run: curricula as differences between configs.

`config.train.phases` lists them in order, each with its share of the steps and its own keys:

    0.9 data.seq_len=128; 0.1 data.seq_len=512 data.batch_size=8     Devlin et al. 2018, section A.2
    0.25 objectives.mlm.weight=0; 0.75 objectives.prefix.weight=0    LTR, then MLM, on one body

An objective with weight 0 costs nothing in a phase, unless another one reads its view. All phases
share the run's optimiser, schedule and held-out batches.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from bertlab.config.load import override
from bertlab.errors import UserError
from bertlab.objectives.flops import step_costs
from bertlab.objectives.program import Program

KEYS = re.compile(
    r"data\.(seq_len|batch_size|pack_length|buckets)|objectives\.\w+\.(weight|final_weight)"
)

COUNTED = 32
"""How many batches per phase have their tokens counted for `config.train.tokens`."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run (often the whole) that trains one set of objectives on batches of one kind.

    Attributes:
        begin, end: Steps of the run that are done when the phase begins and ends.
        rows: Rows per batch, over all processes.
        program: The model and the objectives that it trains.
        weights: Objective name to weight in the loss at the run's first and last step.
        batches: Step of the run -> this process's rows of its batch.
        data_hash: Equal values mean equal batches.
        trains_body: Whether more than heads is trained.
    """

    begin: int
    end: int
    rows: int
    program: Program
    weights: Mapping[str, tuple[float, float]]
    batches: Callable[[int], Mapping[str, np.ndarray]]
    data_hash: str
    trains_body: bool = True

    def costs(self, sums: Mapping[str, tuple], length: int) -> tuple[float, float]:
        """(supervised positions, model FLOPs) of a step with these sums on rows of a length."""
        return step_costs(self.program, self.weights, sums, self.rows, length, self.trains_body)


def phase_configs(config: ConfigDict) -> list[tuple[int, ConfigDict]]:
    """(steps done at its end, its whole config) of each phase; without phases, the run's own."""
    text, steps = config.train.phases, config.train.steps
    if not text.strip():
        return [(steps, config)]
    phases, done = [], 0.0
    for part in map(str.strip, text.split(";")):
        share, *settings = part.split()
        phase = override(config.copy_and_resolve_references(), [f"--config.{s}" for s in settings])
        if other := [s for s in settings if not KEYS.fullmatch(s.partition("=")[0])]:
            raise UserError(f"config.train.phases: {part!r}: {other[0]} may not change in a run")
        if not any(any(weights_of(entry)) for entry in phase.objectives.values()):
            raise UserError(f"config.train.phases: {part!r} trains no objective")
        try:
            done += float(share)
        except ValueError as error:
            raise UserError(f"config.train.phases: {part!r}: {error}") from None
        phases.append((round(done * steps), phase))
    ends = [0, *(end for end, _ in phases)]
    if abs(done - 1) > 1e-6 or (steps and ends != sorted(set(ends))):
        raise UserError(
            f"config.train.phases={text!r}: the shares must add up to 1, and each be at least one"
            f" step of {steps}"
        )
    return phases


def trained_objectives(config: ConfigDict, step: int | None = None) -> list[str]:
    """The objectives with a weight in a phase that began before `step` updates (None: in any); the
    parameters of the others are untrained."""
    begin, trained = 0, set()
    for end, phase in phase_configs(config):
        if step is None or begin == 0 or begin < step:
            trained |= {name for name, entry in phase.objectives.items() if any(weights_of(entry))}
        begin = end
    return [name for name in config.objectives if name in trained]


def steps_within(tokens: float, phases: Sequence[Phase]) -> int:
    """The steps that read this many tokens, from the phases' shares of the steps and the tokens per
    step in the first batches of each: the schedule needs the steps in advance."""
    each = 0.0
    for phase in phases:
        batches = [phase.batches(phase.begin + index) for index in range(COUNTED)]
        share = (phase.end - phase.begin) / phases[-1].end
        each += share * np.mean([np.sum(batch["documents"] > 0) for batch in batches])
    return max(1, round(tokens / each))


def weights_of(entry) -> tuple[float, float]:
    """An objective's weight in the loss at the first and at the last step, from its entry in
    `config.objectives`."""
    last = entry.get("final_weight")
    return float(entry.weight), float(entry.weight if last is None else last)

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

# A phase: its share, and the keys that may change in a run.
PART = re.compile(
    r"[\d.e-]+"
    r"(\s+(data\.(seq_len|batch_size|pack_length|buckets)|objectives\.\w+\.(final_)?weight)=\S+)*"
)
COUNTED = 32  # batches per phase whose tokens are counted for `config.train.tokens`


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run (often all of it): one set of objectives, on batches of one kind."""

    begin: int  # steps of the run that are done when the phase begins
    end: int  # and when it ends
    rows: int  # rows per batch, over all processes
    program: Program  # the model and the objectives that it trains
    weights: Mapping[str, tuple[float, float]]  # in the loss at the run's first and last step
    batches: Callable[[int], Mapping[str, np.ndarray]]  # step -> this process's rows of its batch
    data_hash: str  # equal values mean equal batches
    trains_body: bool = True  # more than heads

    def costs(self, sums: Mapping[str, tuple], length: int) -> tuple[float, float]:
        """(supervised positions, model FLOPs) of a step with these sums on rows of a length."""
        return step_costs(self.program, self.weights, sums, self.rows, length, self.trains_body)


def phase_configs(config: ConfigDict) -> list[tuple[int, ConfigDict]]:
    """(steps done at its end, its whole config) of each phase; without phases, the run's own."""
    text, steps = config.train.get("phases", ""), config.train.steps
    if not text.strip():
        return [(steps, config)]
    phases, done = [], 0.0
    for part in map(str.strip, text.split(";")):
        if not PART.fullmatch(part):
            raise UserError(
                f"config.train.phases: {part!r} is not a share of the steps with KEY=VALUE of"
                " lengths, rows, buckets and weights, which alone may change in a run"
            )
        share, *settings = part.split()
        phase = override(config.copy_and_resolve_references(), [f"--config.{s}" for s in settings])
        done += float(share)
        phases.append((round(done * steps), phase))
    ends = [0, *(end for end, _ in phases)]
    shares = abs(done - 1) <= 1e-6 and (not steps or ends == sorted(set(ends)))
    trains = all(any(any(weights_of(x)) for x in p.objectives.values()) for _, p in phases)
    if not shares or not trains:
        raise UserError(
            f"config.train.phases={text!r}: the shares must add up to 1, each be at least one step"
            f" of {steps}, and each phase train an objective"
        )
    return phases


def trained_objectives(config: ConfigDict, step: int | None = None) -> list[str]:
    """The objectives with a weight in a phase that began before `step` updates (None: in any)."""
    begin, trained = 0, set()
    for end, phase in phase_configs(config):
        if step is None or begin == 0 or begin < step:
            trained |= {name for name, entry in phase.objectives.items() if any(weights_of(entry))}
        begin = end
    return [name for name in config.objectives if name in trained]


def steps_within(tokens: float, phases: Sequence[Phase]) -> int:
    """The steps that read this many tokens, by those in the first batches of each phase."""
    each = 0.0
    for phase in phases:
        batches = [phase.batches(phase.begin + index) for index in range(COUNTED)]
        share = (phase.end - phase.begin) / phases[-1].end
        each += share * np.mean([np.sum(batch["documents"] > 0) for batch in batches])
    return max(1, round(tokens / each))


def weights_of(entry) -> tuple[float, float]:
    """An objective's weight at the first and the last step, by its entry in the config."""
    last = entry.get("final_weight")
    return float(entry.weight), float(entry.weight if last is None else last)


def build_phases(config: ConfigDict, program: Program, batches) -> tuple[Phase, ...]:
    """The phases of `config.train.phases`, or a single one, with `batches` of their `config.data`.
    One continues where the previous one ended if its rows are the same, else from the start."""
    phases, begin, first, source = [], 0, 0, None
    for end, phase_config in phase_configs(config):
        made = batches(phase_config.data)
        if source is None or made.hash != source.hash:
            source, first = made, begin
        weights = {name: weights_of(entry) for name, entry in phase_config.objectives.items()}
        views = {program.objectives[name].shares for name, weight in weights.items() if any(weight)}
        used = {name: each for name, each in weights.items() if any(each) or name in views}
        objectives = {name: program.objectives[name] for name in used}
        phase = Phase(
            begin=begin,
            end=end,
            rows=phase_config.data.batch_size,
            program=dataclasses.replace(program, objectives=objectives),
            weights=used,
            batches=lambda step, source=source, first=first: source(step - first),
            data_hash=source.hash,
        )
        phases.append(phase)
        begin = end
    return tuple(phases)

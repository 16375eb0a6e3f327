"""Phases of a run: curricula such as LTR and then MLM, or rows of 128 and then of 512, as differences between configs.

`config.train.phases` lists them in order, each with its share of the steps and its own keys:

    0.9 data.seq_len=128; 0.1 data.seq_len=512 data.batch_size=8           BERT's (Devlin et al. 2018, section A.2)
    0.25 objectives.mlm.weight=0; 0.75 objectives.prefix.weight=0          LTR for a quarter, then MLM, on one body

An objective with weight 0 costs nothing in a phase, unless another one needs its view. All phases share the run's optimiser,
schedule and held-out batches. A phase with different batches reads the corpus from the start.
"""

import re

from ml_collections import ConfigDict

from bertlab import keys
from bertlab.config import parse_override, set_key
from bertlab.errors import UserError

_WEIGHT = re.compile(r"objectives\.[^.]+\.(weight|final_weight)")


def phase_configs(config: ConfigDict) -> list[tuple[int, ConfigDict]]:
    """(steps done at its end, its whole config) of each phase; without phases, the run's own.

    Raises:
        UserError: a share or a key is invalid, or a phase trains nothing.
    """
    text, steps = config.train.phases, config.train.steps
    if not text.strip():
        return [(steps, config)]
    phases, done = [], 0.0
    for part in text.split(";"):
        share, *settings = part.split() or [""]
        try:
            done += float(share)
        except ValueError:
            done = float("nan")
        if not 0 < done < 1 + 1e-6:
            raise _mistake(text, f"{part.strip()!r} must begin with its share of the steps, and shares sum to 1")
        of_phase = config.copy_and_resolve_references()
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals or not (keys.has("in_phases", key) or _WEIGHT.fullmatch(key)):
                known = ", ".join(f"{key.name}=" for key in keys.KEYS if key.in_phases)
                raise _mistake(text, f"{setting!r} must be {known} or objectives.NAME.weight=")
            try:
                set_key(of_phase, key, parse_override(config, key, value))  # a copy loses types
            except UserError as error:
                raise _mistake(text, str(error).removeprefix("--config.")) from None
        if not any(any(weights_of(entry)) for entry in of_phase.objectives.values()):
            raise _mistake(text, f"{part.strip()!r} leaves no objective with a weight")
        end = round(done * steps)
        if phases and steps and end <= phases[-1][0]:
            raise _mistake(text, f"{part.strip()!r} is less than one of the run's {steps} steps")
        phases.append((end, of_phase))
    if abs(done - 1) > 1e-6:
        raise _mistake(text, f"the shares sum to {done:g} instead of 1")
    return phases


def trained_objectives(config: ConfigDict, step: int | None = None) -> list[str]:
    """Names of the objectives that had a weight before a step, None: at any; the parameters of the others are untrained."""
    phases = phase_configs(config)
    begun = [True, *(step is None or end < step for end, _ in phases)]
    entries = [of_phase.objectives for (_, of_phase), has_begun in zip(phases, begun) if has_begun]
    return [name for name in config.objectives if any(any(weights_of(of[name])) for of in entries)]


def weights_of(entry) -> tuple[float, float]:
    """An objective's weight in the loss at the first step and at the last, from its entry in `config.objectives`."""
    last = entry.get("final_weight")
    return float(entry.weight), float(entry.weight if last is None else last)


def _mistake(text: str, what: str) -> UserError:
    return UserError(f"config.train.phases={text!r}: {what}; for example '0.9 data.seq_len=128; 0.1 data.seq_len=512'")

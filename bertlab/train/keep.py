"""Chooses the checkpoints of a run to keep in addition to the last ones: the points of a trajectory."""

from bertlab.errors import UserError

LOG = "log"


def kept_steps(keep: str, steps: int) -> list[int]:
    """The steps that `config.train.keep` names, in order; [] for "".

    Args:
        keep: "log" (10, 20, 50, 100, 200, 500, ... and the last step), or steps such as "100,1000,4000"; both may be joined:
            "log,1500".
        steps: Of the run.

    Raises:
        UserError: It is neither.
    """
    found = set()
    for part in filter(None, (part.strip() for part in keep.split(","))):
        if part == LOG:
            grid = (digit * 10**power for power in range(1, len(str(steps))) for digit in (1, 2, 5))
            found |= {step for step in grid if step < steps} | {steps}
        elif part.isdecimal() and len(part) < 19 and int(part):
            found.add(int(part))
        else:
            raise UserError(f"config.train.keep={keep!r}: {part!r} is no step; give log, or steps such as 100,1000,4000")
    return sorted(found)


def check_keep(train) -> None:
    """Refuses a `config.train` whose `keep` is no list of steps, or has a step after the run's last (unless a budget sets it).

    Raises:
        UserError: Names the step.
    """
    beyond = [step for step in kept_steps(train.keep, train.steps) if step > train.steps]
    if beyond and train.steps and not train.budget:
        raise UserError(
            f"config.train.keep={train.keep!r}: step {beyond[0]} is beyond config.train.steps={train.steps}; give steps up to"
            " that (a study adds those of finetune.init_step)"
        )

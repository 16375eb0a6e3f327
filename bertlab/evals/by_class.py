"""Functions of an objective, registered by its class from anywhere: scoring, guessing, floors.

@scoring.register
def _(objective: MyObjective) -> Scoring: ...
"""

import functools
from collections.abc import Callable

from bertlab.objectives.base import Objective

MEMBERS = ("view", "loss", "token_logits")


class by_class:
    """`functools.singledispatch`, but a function that is registered for a class also holds for a
    subclass only if that overrides none of `view`, `loss` and `token_logits`; otherwise the default
    holds. What is true of an objective need not be true of one that trains differently."""

    def __init__(self, default: Callable):
        self.dispatched = functools.singledispatch(default)
        self.register = self.dispatched.register
        functools.update_wrapper(self, default)

    def __call__(self, objective: Objective, *args, **settings):
        """Calls the function that holds for the objective's class."""
        kind = type(objective)
        for parent in kind.__mro__:
            if parent in self.dispatched.registry:
                if all(getattr(kind, name) is getattr(parent, name, None) for name in MEMBERS):
                    return self.dispatched.registry[parent](objective, *args, **settings)
                break
        return self.dispatched.registry[object](objective, *args, **settings)

"""Functions of an objective, registered for its class from anywhere: scoring, guessing, floors.

@scoring.register
def _(objective: MyObjective) -> Scoring: ...
"""

import functools
from collections.abc import Callable

from bertlab.objectives.base import Objective

MEMBERS = ("view", "loss", "token_logits")


def by_class(default: Callable) -> Callable:
    """`functools.singledispatch`, but a function that is registered for a class applies to a
    subclass only if that overrides none of `view`, `loss` and `token_logits`; otherwise the default
    applies. What is true of an objective need not be true of one that trains differently."""
    dispatched = functools.singledispatch(default)

    @functools.wraps(default)
    def function(objective: Objective, *args, **settings):
        kind, registry = type(objective), dispatched.registry
        parent = next(parent for parent in kind.__mro__ if parent in registry)
        same = all(getattr(kind, name) is getattr(parent, name, None) for name in MEMBERS)
        return registry[parent if same else object](objective, *args, **settings)

    function.register = dispatched.register
    return function

"""Reports mistakes in an objective from outside the package in one sentence with name, file and line."""

import contextlib
import inspect
import traceback

from bertlab.errors import UserError
from bertlab.objectives.base import NoFloor, Objective


@contextlib.contextmanager
def blamed(name: str, objective: Objective | type[Objective], method: str):
    """Turns an exception in a method of an objective from outside the package into a UserError."""
    kind = objective if isinstance(objective, type) else type(objective)
    try:
        yield
    except (UserError, NoFloor):
        raise
    except Exception as error:
        if kind.__module__.startswith("bertlab."):
            raise
        where = whereabouts(kind, method, error)
        raise UserError(f"objective {name}: {where}: {said(error)} ({type(error).__name__} in {method}())") from error


def whereabouts(objective: Objective | type[Objective], method: str, error: BaseException | None = None) -> str:
    """File and line of an objective's method (of its class if that is no function), or of the line that raised the error."""
    kind = objective if isinstance(objective, type) else type(objective)
    if code := getattr(inspect.unwrap(getattr(kind, method)), "__code__", None):
        file, first = code.co_filename, code.co_firstlineno
    else:
        file, first = inspect.getsourcefile(kind), inspect.getsourcelines(kind)[1]
    return f"{file}, line {line_in(file, error) or first}"


def line_in(file: str, error: BaseException | None) -> int | None:
    """The last line of a file that an error passed through."""
    frames = traceback.walk_tb(error.__traceback__ if error else None)
    return next((number for frame, number in reversed(list(frames)) if frame.f_code.co_filename == file), None)


def said(error: BaseException) -> str:
    """An exception's message on one line."""
    return f"there is no {error}" if isinstance(error, KeyError) else str(error).strip().partition("\n")[0]

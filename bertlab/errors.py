"""Errors written for the user."""

import difflib
import errno
import importlib
import os
from collections.abc import Collection, Iterator, Sequence
from types import ModuleType


class UserError(ValueError):
    """A mistake in the request: one sentence that names the key, file or line and says what to do.

    The command line prints it without a traceback and exits with status 2. What the sentence quotes from a file may hold line
    ends, or codes that steer a terminal: such characters are shown as Python spells them.
    """

    def __init__(self, said: str):
        super().__init__("".join(one if one.isprintable() else repr(one)[1:-1] for one in said))


def did_you_mean(name: str, known: Collection[str], otherwise: str | None = None) -> str:
    """What to say of a name that is not known: the nearest one that is, and what there is.

    Args:
        name: as it was given.
        known: the names that exist.
        otherwise: what there is, in words; None: all of them.
    """
    near = difflib.get_close_matches(name, known, n=1)
    choice = f"choose one of {', '.join(known)}" if otherwise is None else otherwise
    return f"did you mean {near[0]}?" + (f" If not, {choice}" if choice else "") if near else choice


def some(names: Sequence[str]) -> str:
    """The first twelve names of a list that may be long."""
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def similar_file(path: str | os.PathLike, root: str | os.PathLike = "") -> str:
    """What to add about a file missing in a root if a similar one is beside it; "" else."""
    folder, name = os.path.split(path)
    try:
        beside = [entry.name for entry in os.scandir(os.path.join(root, folder) or ".") if entry.is_file()]
    except OSError:
        return ""
    near = difflib.get_close_matches(name, beside, n=1)
    return f"; did you mean {os.path.join(folder, near[0])}?" if near else ""


class RunFailed(RuntimeError):
    """A run that ended through no mistake in the request: one sentence that names the file and says what to do.

    The command line prints it without a traceback and exits with status 1.
    """


_REMEDIES = {
    errno.ENOSPC: "free space",
    errno.EDQUOT: "free space, or raise your quota",
    errno.EFBIG: "raise the largest size of a file",
    errno.EROFS: "make the file system writable",
    errno.EACCES: "give yourself the right to write there",
    errno.EPERM: "give yourself the right to write there",
    errno.EIO: "check the disk",
    errno.ESTALE: "mount the file system again",
    errno.EMFILE: "raise the number of open files (ulimit -n)",
    errno.ENFILE: "raise the number of open files",
}


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, then the one behind it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def code_of(error: BaseException) -> int | None:
    """The system's number of what a full or broken disk or the like did; None if the error is of another kind.

    Libraries in other languages only quote the system's message; an error may have another one behind it.
    """
    for cause in causes(error):
        number, text = getattr(cause, "errno", None), str(cause).lower()
        for code in _REMEDIES:
            if number == code or (number is None and os.strerror(code).lower() in text):
                return code
    return None


def remedy_of(error: BaseException) -> str:
    """What to do after a file could not be written, in the imperative: "free space"."""
    return _REMEDIES.get(code_of(error), "make room or repair the disk")


def too_long_a_name(error: BaseException) -> str | None:
    """The sentence about a path that no file system takes; None if the error is of another kind."""
    if getattr(error, "errno", None) != errno.ENAMETOOLONG:
        return None
    name = str(getattr(error, "filename", None) or "a path")
    return f"{name if len(name) < 80 else name[:77] + '...'}: the name is too long for a file; choose a shorter one"


def memory_error_of(error: BaseException) -> BaseException | None:
    """The error, or the one behind it, that says that memory does not suffice, of this machine or of a device; or None."""
    of_memory = lambda cause: isinstance(cause, MemoryError) or str(cause).startswith("RESOURCE_EXHAUSTED")  # XLA's
    return next(filter(of_memory, causes(error)), None)


def reason_of(error: BaseException) -> str:
    """An error of a library in one line, with its kind: "ValueError: not a number"."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def failure_of_machine(error: BaseException, place: object = "") -> str | None:
    """The error's sentence, or one about what the machine did; None if the error is of another kind.

    Args:
        error: Any.
        place: Named if the error names no file.
    """
    if isinstance(error, RunFailed):
        return str(error)
    if (code := code_of(error)) is None:
        memory = memory_error_of(error)
        return memory and (
            f"the memory does not suffice ({reason_of(memory)[:200]}); lower the sizes that you set, such as"
            " config.data.batch_size, config.data.seq_len or config.model.width, then run the same command again"
        )
    file = getattr(error, "filename", None) or place
    return f"{f'{file}: ' if file else ''}{os.strerror(code)}; {_REMEDIES[code]}, then run the same command again"


def how_to_install(extra: str) -> str:
    """What installs an extra's packages; the package index has another project of that name."""
    return f"pip install -e '.[{extra}]' in the clone, or the wheel with [{extra}]"


def require(module: str, extra: str, wanted_by: str) -> ModuleType:
    """Imports an optional package.

    Raises:
      UserError: the package is not installed; the message names the extra to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"{wanted_by} needs the package {module}; install it: {how_to_install(extra)}") from None

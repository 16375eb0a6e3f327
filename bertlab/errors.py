"""Errors written for the user."""

import importlib
from types import ModuleType


class UserError(ValueError):
    """A mistake in the request: one sentence that names the key, file or line and says what to do.

    The command line prints it without a traceback and exits with status 2.
    """


def require(module: str, extra: str, wanted_by: str) -> ModuleType:
    """Imports an optional package.

    Raises:
      UserError: the package is not installed; the message names the extra to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"{wanted_by} needs the package {module}; install it with: pip install 'bertlab[{extra}]'") from None

"""Completion in the shell by argcomplete: the shell calls `bertlab`, which answers with commands, options and config keys.

    eval "$(bertlab completion bash)"      # in ~/.bashrc; zsh in ~/.zshrc
    bertlab completion fish | source       # in ~/.config/fish/config.fish

The answer comes from the parser itself, so it never differs from the commands. Nothing else is imported on the way.
"""

import argparse
import os
from collections.abc import Iterable

SHELLS = ("bash", "zsh", "fish")
_OVERRIDE = "--config."


def is_completing() -> bool:
    """Whether this process was started by a shell that wants completions."""
    return "_ARGCOMPLETE" in os.environ


def code_for(shell: str) -> str:
    """What one of SHELLS runs."""
    import argcomplete

    return argcomplete.shellcode(["bertlab"], shell=shell)


def complete(parser: argparse.ArgumentParser) -> None:
    """Prints the completions of the line that argcomplete's variables hold, and ends the process."""
    from argcomplete import CompletionFinder

    class Finder(CompletionFinder):
        """Completes `--config.KEY=` too, of commands that take it."""

        def collect_completions(self, active_parsers, parsed_args, cword_prefix) -> list[str]:
            found = super().collect_completions(active_parsers, parsed_args, cword_prefix)
            if not any(of.get_default("takes_overrides") for of in active_parsers):
                return found
            if cword_prefix.startswith(_OVERRIDE):
                return [*found, *(name for name in _overrides() if name.startswith(cword_prefix))]
            return [*found, _OVERRIDE] if cword_prefix.startswith("-") and _OVERRIDE.startswith(cword_prefix) else found

    Finder()(parser)


def _overrides() -> Iterable[str]:
    from bertlab.keys import KEYS

    return (f"{_OVERRIDE}{key.name}=" for key in KEYS)

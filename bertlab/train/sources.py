"""What a training reads and its config only names: its text, the run it starts from, a task's labelled examples.

Each has a digest, which a checkpoint keeps in its run.json and a finished run in its result.json. A training goes on with the
same ones only: all that it does afterwards would else belong to no config.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax

from bertlab import keys
from bertlab.config import base_config, flatten
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.train.processes import gather, is_first

CORPUS, INIT_FROM, VECTORS, EXAMPLES = "corpus", "init_from", "word_vectors", "examples"
INIT_STEP = "init_step"  # of a run that still trained; a run that has begun keeps its own

T = TypeVar("T")

_ATTEMPTS = 5  # to read a step before the run that saved it has removed it

# Settings that say where something is; what it is has a digest.
_PLACES = ("init_from.", "data.corpus.", "data.tokenizer.path.", "task.", "task_data.directory.", "task_data.pretraining.")

_SAID = {
    CORPUS: "the text or the tokenizer of config.data",
    INIT_FROM: "the run that config.init_from names",
    INIT_STEP: "the step of the unfinished run that config.init_from names",
    VECTORS: "the run of word vectors of {}",
    EXAMPLES: "the {} examples of task {}",
}


def digest(parts: Iterable[str]) -> str:
    """A digest of texts in this order."""
    found = hashlib.blake2b(digest_size=12)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        found.update(len(encoded).to_bytes(8, "little") + encoded)
    return found.hexdigest()


def of_pretrained(run: Run) -> str:
    """A digest of what decides a run's parameters: settings, code, tokenizer, text and other sources, imported weights.

    It is the same when the run has trained further, and wherever it and what it reads lie.
    """
    free = lambda name: f"{name}.".startswith(_PLACES) or name == "optimizer.warmup_steps" or keys.has("on_resume", name)
    default = flatten(base_config())  # a key that a later version adds changes nothing
    given = {name: value for name, value in flatten(run.config.read()).items() if value != default.get(name, ...)}
    settings = {name: value for name, value in given.items() if not free(name)}
    read = {CORPUS: run.data.get({}).get("corpus", {}).get("fingerprint"), **run.sources()}
    imported = {name: value for name, value in run.imported.get({}).items() if name != "source"}
    code = run.environment.get({}).get("code", {})
    files = sorted(path for path in run.tokenizer.glob("[!.]*") if path.is_file())
    tokenizer = [part for path in files for part in (path.name, path.read_bytes().hex())]
    return digest([json.dumps([settings, read, imported, list(code.values())], sort_keys=True), *tokenizer])


def of_start(config: Any) -> dict[str, str]:
    """The digest of the run in `config.init_from`; `read_start` says of its step."""
    return {INIT_FROM: of_pretrained(Run(Path(config.init_from).expanduser()))} if config.init_from else {}


def read_start(config: Any, read: Callable[[int | None], T]) -> tuple[T, dict[str, str]]:
    """What is read of the run in `config.init_from`, and the source that says of which step, if another one could have been.

    A run that still trains saves other steps meanwhile: it is asked once, by the first process for all, and asked again only if
    it has removed what was being read.

    Args:
        config: a whole config with `init_from`.
        read: reads a step; None: the last one of a run that trains no more.
    """
    run = Run(Path(config.init_from).expanduser())
    for attempts_left in reversed(range(_ATTEMPTS)):
        last = run.steps()[-1] if config.init_step is None and run.is_half_trained() else None
        if (last := gather(last)[0]) is None:
            return read(config.init_step), {}
        try:
            found = read(last)
            break
        except (UserError, FileNotFoundError):
            if last in run.steps() or not attempts_left or jax.process_count() > 1:
                raise
    if is_first():
        print(f"{run} is not finished; its step {last} is used", flush=True)
    return found, {INIT_STEP: str(last)}


def kept(before: Mapping[str, str] | None, now: Mapping[str, str]) -> dict[str, str]:
    """The sources of a run that goes on: those of now, but the step that it began with.

    A run of a version that kept none has none for ever: they are part of its own digest, by which other runs know it.
    """
    if before is None:
        return {}
    others = {name: value for name, value in now.items() if name != INIT_STEP}
    return others | {name: value for name, value in before.items() if name == INIT_STEP}


def of_tasks(tasks: Mapping[str, tuple[Any, Any]]) -> dict[str, str]:
    """The digests of tasks' examples and labels by split, wherever their files are.

    Args:
        tasks: by the name of each task's objective, the task and its `bertlab.transfer.tasks.base.TaskData`.
    """
    return {
        f"{EXAMPLES}/{name}/{split}": digest([*data.names, "", *(repr(_content(example)) for example in examples)])
        for name, (_, data) in tasks.items()
        for split, examples in data.examples.items()
    }


def _content(example: Any) -> dict[str, Any]:
    """What an example has, but for its place; a field that a later version adds changes nothing."""
    given = {field.name: (getattr(example, field.name), field.default) for field in dataclasses.fields(example)}
    return {name: value for name, (value, default) in given.items() if name not in ("where", "lines") and value != default}


def of_tests(sources: Mapping[str, str]) -> str:
    """The digests of a fine-tuning's test examples; "" if none is known."""
    return " ".join(value for name, value in sources.items() if name.startswith(f"{EXAMPLES}/") and name.endswith("/test"))


def require_same(run: Run, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuses to go on with a run that has read something else so far.

    Args:
        run: the run.
        before, now: digests by source; what has none on one side counts as the same.

    Raises:
        UserError: names the first that differs.
    """
    if what := changed(before, now):
        raise UserError(
            f"{what} changed since {run} was trained with it; put the same back, give another --workdir, or delete {run} and"
            " run the same command again: it starts over"
        )


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """The first source that is not as it was, in words; None if all are."""
    differ = (name for name, value in now.items() if name != INIT_STEP and before.get(name, value) != value)
    return next(map(in_words, differ), None)


def in_words(source: str) -> str:
    """What a source is, for a sentence."""
    kind, *which = source.split("/")
    return _SAID[kind].format(*reversed(which))

"""A run's or a study's directory on disk: the name of every file in it, and how each is read and written.

    run = Run("runs/mlm")
    run.config.read()["train"]["steps"]      # a UserError names the file if it is missing, empty or damaged
    run.result.get()                         # None if the run is not finished
    run.metrics.read()                       # the lines of metrics.jsonl
    run.stage("finetune", "sst2").result     # the result.json of a fine-tuning; it is a run as well

Nothing is read until you ask for it, and nothing is kept: a file that another process writes is read as it is now. Files are
replaced in one move, so a reader never sees half of one. A finished run and a study have files.json (`bertlab.checksums`), and
config.json and study.json the version of the format of all files of their directory.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from bertlab import checksums, keys
from bertlab.config import as_saved
from bertlab.errors import RunFailed, UserError
from bertlab.files import is_plain_name, misfit, parse_json, read_json, write_json, write_text

FORMAT = 1
"""Of the directories that this version writes. Those without a number were written before it existed and are read as well."""

AT_STEP = "run.json"
"""In a checkpoint's folder: what the run's other files were when it was saved (`bertlab.train.checkpoint.OfRun`)."""

BOUNDS = ("any-order",)
"""Kinds of score in evaluation.json whose bits per byte are an upper bound of a code length: they are written with ≤."""

# Two of these names make a run.
_MARKS = ("config.json", "environment.json", "metrics.jsonl", "result.json", "imported.json", "checkpoints", checksums.LIST)
_OF_RESULTS = ("config.json", "study.json", "job.json")  # a directory with one of them is a run's or a study's


class TextFile:
    """A UTF-8 text file that may be missing."""

    def __init__(self, path: Path):
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def exists(self) -> bool:
        """Whether the file is there."""
        return self.path.exists()

    def read(self) -> str:
        """The text. Raises: UserError: it is not UTF-8."""
        try:
            return self.path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            reason = f"byte {error.start}: {error.reason}"
            raise UserError(
                f"{self.path} is not UTF-8 text ({reason}); restore it, or delete it if you can regenerate it"
            ) from None

    def write(self, text: str) -> None:
        """Replaces the file in one move; makes its directory."""
        write_text(self.path, text)

    def delete(self) -> None:
        """Removes the file if it is there."""
        with checksums.renewed(self.path):
            self.path.unlink(missing_ok=True)


class JsonFile(TextFile):
    """A JSON object in a file.

    Args:
        path: Of the file.
        remedy: What to do if it is missing, for the error.
        form: What the object must have (`bertlab.files.misfit`).
    """

    def __init__(self, path: Path, remedy: str = "", form: Any = dict):
        super().__init__(path)
        self._form = form
        self._remedy = f"; {remedy}" if remedy else ""

    def read(self) -> dict[str, Any]:
        """The object.

        Raises:
            UserError: The file is missing, empty or damaged, or its object lacks what it must have.
        """
        value = read_json(self.path, self._remedy)
        if not isinstance(value, dict):
            raise UserError(f"{self.path}: expected a JSON object, found {type(value).__name__}; restore it, or delete it")
        if wrong := misfit(value, self._form):
            raise UserError(f"{self.path} is damaged: {wrong}; restore it, or delete it if you can regenerate it")
        return value

    def get(self, default: Any = None) -> Any:
        """The object, or the default if the file is missing.

        Raises:
            UserError: The file is there, but empty or damaged.
        """
        return self.read() if self.exists() else default

    def write(self, value: Any) -> None:
        """Replaces the file in one move; makes its directory."""
        with checksums.renewed(self.path):
            write_json(self.path, value)


class VersionedFile(JsonFile):
    """A JSON object whose file also has the version of its directory's format."""

    def read(self) -> dict[str, Any]:
        """The object; raises as `JsonFile.read`, and for the format of a newer version."""
        value = super().read()
        found = value.pop("format", 0)
        if not isinstance(found, int) or found > FORMAT:
            raise UserError(
                f"{self.path} has format {found}, and this version of bertlab reads formats up to {FORMAT}; use the newer"
                " version that wrote it"
            )
        return value

    def write(self, value: Any) -> None:
        """As `JsonFile.write`."""
        super().write({"format": FORMAT, **value})


class StudyFile(VersionedFile):
    """study.json; its directory has files.json from the start."""

    def read(self) -> dict[str, Any]:
        """The study; raises as `JsonFile.read`, and for a run or task whose name could lead out of the study's directory."""
        study = super().read()
        names = [name for search in study.get("searches", ()) for name in search["candidates"]]
        for run in study["runs"]:
            names += [run["name"], *run.get("downstream", ()), *run.get("shares", {}).values(), *run.get("averages", ())]
        if wrong := [name for name in names if not is_plain_name(name)]:
            raise UserError(f"{self.path} is damaged: {str(wrong[0])[:80]!r} is not the name of a run or a task; restore it")
        return study

    def write(self, value: Any) -> None:
        """As `JsonFile.write`."""
        if not (self.path.parent / checksums.LIST).exists():
            checksums.write_list(self.path.parent, ())
        super().write(value)


class ConfigFile(VersionedFile):
    """A run's config.json, read by `bertlab.config.as_saved`."""

    def __init__(self, path: Path, remedy: str):
        super().__init__(path, remedy, keys.form())

    def read(self) -> dict[str, Any]:
        """The config; raises as `JsonFile.read`."""
        config = super().read()
        if dotted := [key for key in _keys_of(config) if "." in key]:
            raise UserError(f"{self.path} is damaged: the key {dotted[0]!r} has a dot; restore it")
        for name in _own_objectives(config):
            if brought := _brought(name.partition(":")[0], self.path.parent):
                raise UserError(
                    f"{self.path} names the objective '{name}', whose code is {brought}, in the directory of results; results"
                    " run no code: move the file out of there if it is yours"
                )
        return as_saved(config)


def _own_objectives(config: Mapping[str, Any]) -> list[str]:
    """The objectives of a config that are not bertlab's, as module:Class."""
    names = [entry.get("implementation") or name for name, entry in config.get("objectives", {}).items()]
    return [name for name in names if ":" in name]


def _brought(module: str, directory: Path) -> str:
    """The file in a run's directory, or its study's, that would be imported as this module; "" if there is none.

    Nothing is imported to find out.
    """
    results = {
        directory,
        *(place for place in [*directory.parents][:3] if any((place / name).exists() for name in _OF_RESULTS)),
    }
    folders = [os.path.abspath(folder or ".") for folder in sys.path]
    for part in module.split("."):
        spec = PathFinder.find_spec(part, folders)
        if spec is None:
            return ""
        folders = [*(spec.submodule_search_locations or ())]
        # A folder without __init__.py has no origin, and no code of its own.
        if spec.origin and any(Path(spec.origin).resolve().is_relative_to(of.resolve()) for of in results):
            return spec.origin
    return ""


def _keys_of(value: Any) -> Iterator[str]:
    """The keys of an object and of the objects in it."""
    objects = [value]
    for one in objects:
        yield from one
        objects += [inner for inner in one.values() if isinstance(inner, dict)]


class MetricsFile(TextFile):
    """metrics.jsonl: one flat JSON object per line, with at least "step" and "split"; it may be growing.

    A number that was not finite (null in the file) is left out when a line is read: nothing was measured.
    """

    def read(self) -> list[dict[str, Any]]:
        """The lines in order of step; [] without a file. If a step was logged twice, the later line counts.

        An unfinished last line is omitted: its writer was killed, or is still writing.

        Raises:
            UserError: Another line is not a JSON object with "step" and "split".
        """
        lines = {(line["step"], line["split"]): line for _, line in self.lines()}
        return sorted(lines.values(), key=lambda line: line["step"])

    def lines(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yields each line as it stands, with its end, and its object, in the file's order; without blank lines.

        Raises:
            UserError: As `read`.
        """
        if not self.exists():
            return
        with open(self.path, "rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.strip():
                    continue
                try:
                    line = parse_json(raw.decode("utf-8"))
                    if wrong := misfit(line, {"step": int, "split": str, "data_hash?": str}) or _not_flat(line):
                        raise ValueError(wrong)
                except ValueError as error:
                    if not raw.endswith(b"\n"):
                        return
                    raise UserError(
                        f'{self.path}:{number}: not a JSON object with "step" and "split" ({error}); delete the line, '
                        "or delete the run's directory and run it again"
                    ) from error
                yield raw, {key: value for key, value in line.items() if value is not None}

    def last_step(self) -> int:
        """The step of the last whole line, from the end of the file only; 0 without one."""
        if not self.exists():
            return 0
        with open(self.path, "rb") as file:
            file.seek(max(0, self.path.stat().st_size - 65536))
            lines = file.read().split(b"\n")
        for line in reversed(lines[:-1]):
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return int(parse_json(line.decode("utf-8"))["step"])
        return 0


def _not_flat(line: dict[str, Any]) -> str:
    """What is no number in a line of metrics.jsonl."""
    numbers = {key: value for key, value in line.items() if key not in ("split", "data_hash")}
    return misfit(numbers, {str: (int, float, None)})


class Named:
    """A file or folder of a `Run` or a `StudyDirectory`; its object is made when it is asked for, as runs may be thousands.

    Args:
        name: In the directory.
        kind: Makes the object of the path, with the other arguments; None: it is the path.
    """

    def __init__(self, name: str, kind: Callable[..., Any] | None = None, *given: Any, **more: Any):
        self.name, self._kind, self._given, self._more = name, kind, given, more

    def __get__(self, of: Any, owner: type) -> Any:
        if of is None:
            return self
        path = of.directory / self.name
        return self._kind(path, *self._given, **self._more) if self._kind else path


def named(directory: "Run | StudyDirectory") -> dict[str, Any]:
    """Attribute -> the file or folder, of all that are in such a directory."""
    return {name: getattr(directory, name) for name, of in vars(type(directory)).items() if isinstance(of, Named)}


_NUMBER = (int, float, None)
_COSTS = {f"{axis}?": _NUMBER for axis in ("tokens", "supervised", "flops", "seconds")}
_SCORES = {str: {str: _NUMBER}}  # split -> metric -> number
_RUN = {"name": str, "labels?": {str: str}, "downstream?": (dict, list), "shares?": {str: str}, "averages?": list}
_CUT = {str: {str: {str: int}}}
_COUNTS = {"cut?": _CUT, "unseen_tags?": {str: {str: int}}}
_RESULT = {"step?": int, "metrics?": _SCORES, "data_hash?": (str, None), "sources?": {str: str}, **_COUNTS, **_COSTS}
_AT_STEP = {"metrics?": {"bytes": int, "blake2b": str}, "costs?": {str: dict}, "settings?": dict, "sources?": {str: str}}
_FLOOR = {"value": _NUMBER, "exact": bool, "above": _NUMBER, "above_standard_error": _NUMBER, "standard_error?": _NUMBER}
_STUDY = {
    "name": str,
    "searches?": [{"candidates": {str: object}}],
    "title?": str,
    "question?": str,
    "command?": str,
    "axes?": {str: [str]},
    "downstream?": [str],
}


class Run:
    """The directory of a pretraining, an adaptation, a fine-tuning or imported weights, or of a study's run.

    A study's run keeps its adaptations and fine-tunings in `stage` directories below; a pretraining that it shares with another
    run lies in that run's directory.

    Attributes:
        directory: The directory; it need not exist.
        config: The whole config.
        environment: Machine, packages, command, and digests of objectives and tasks from outside (`bertlab.train.code`).
        data: Facts about the prepared corpus (`bertlab.data.facts`).
        metrics: The log lines.
        result: The final metrics and costs. It is written last: a run that has it is finished.
        costs: Step of a checkpoint -> what training had cost up to it: tokens, supervised, flops, seconds.
        evaluation: What `bertlab evaluate` measured (`bertlab.transfer.evaluations`) at the last step.
        similarity: What `bertlab similarity` measured (`bertlab.transfer.similarity`) at the last step.
        probes: What `bertlab probe` measured (`bertlab.transfer.probe_task`) at the last step.
        measured: The measurements after pretraining that failed; written after the attempt.
        floor: Objective -> its exact floor on the synthetic language.
        imported: Where imported weights came from.
        classes: Task -> the names of its classes by number, for a fine-tuning.
        most_frequent: Split -> the score of always predicting the most frequent answer, for a fine-tuning.
        job: A sweep's instructions to its worker about the run.
        failed: Why the last sweep could not finish the run.
        diverged: Where its pretraining met a loss or a gradient that is not finite.
        store_key: The name of its pretraining in a store (`bertlab.studies.store`), from when it began.
        task_text: The texts that an adaptation reads, a JSON object a line.
        checkpoints: One folder a step (`bertlab.train.checkpoint`).
        tokenizer: For `bertlab.data.tokenizers.load_tokenizer`.
        files: The sizes and digests of the files of a finished run (`bertlab.checksums`).
        log: The output of the run's worker.
        alive: There while a worker is at work: its process and machine, rewritten every few seconds (`bertlab.alive`).
        lock: There while a process is at work on the run (`bertlab.locks`).
        profile, tensorboard, slurm: Folders of the tools that they are named after; W&B makes one called wandb.
        dashboards: The name of the run at each of its dashboards (`bertlab.train.dashboards`).
    """

    config = Named("config.json", ConfigFile, "give the --workdir of a `bertlab train` or `bertlab import`")
    environment = Named("environment.json", JsonFile, form={"code?": {str: str}})
    data = Named("data.json", JsonFile, form={"corpus?": dict, "batches?": {str: dict}, "objectives?": {str: {"asks": str}}})
    metrics = Named("metrics.jsonl", MetricsFile)
    result = Named("result.json", JsonFile, "let the run finish first", _RESULT)
    costs = Named("costs.json", JsonFile, form={str: _COSTS})
    evaluation = Named("evaluation.json", JsonFile)
    similarity = Named("similarity.json", JsonFile)
    probes = Named("probes.json", JsonFile)
    measured = Named("measured.json", JsonFile, form={str: (str, None)})
    floor = Named("floor.json", JsonFile, form={str: _FLOOR})
    imported = Named("imported.json", JsonFile)
    classes = Named("classes.json", JsonFile, form={str: [str]})
    most_frequent = Named("most_frequent.json", JsonFile, form=_SCORES)
    job = Named("job.json", JsonFile, form={"run?": _RUN})
    failed = Named("failed.txt", TextFile)
    alive = Named("alive.txt", TextFile)
    diverged = Named("diverged.txt", TextFile)
    store_key = Named("store_key.txt", TextFile)
    task_text = Named("task_text.jsonl", TextFile)
    checkpoints = Named("checkpoints")
    tokenizer = Named("tokenizer")
    files = Named(checksums.LIST)
    log = Named("log.txt")
    lock = Named("run.lock")
    profile = Named("profile")
    tensorboard = Named("tensorboard")
    slurm = Named("slurm")
    dashboards = Named("dashboards")

    def __init__(self, directory: str | os.PathLike):
        self.directory = Path(directory)

    def __str__(self) -> str:
        return str(self.directory)

    def begin(self, config: Mapping[str, Any]) -> None:
        """Writes the config; the run is not finished, so it has no files.json."""
        self.files.unlink(missing_ok=True)
        self.config.write(config)

    def model_config(self) -> dict[str, Any]:
        """The config of a run or an imported directory, which has a model, of whose files none is damaged.

        Raises:
            UserError: The directory is another one; says what to do if it is one of transformers, or has no more than a head
                over stored states. Or a file is damaged.
        """
        self.require_whole()
        config = self.config.read()
        if config.get("transfer", {}).get("features"):
            raise UserError(
                f"{self} has a head only (config.transfer.features=True keeps the body as it was); give the run that it"
                f" fine-tuned, {config['init_from']}"
            )
        if "model" in config and ("data" in config or "transfer" in config):
            return config
        if "model_type" in config:
            raise UserError(
                f"{self} is a directory of transformers; run `bertlab import --from=huggingface {self} --workdir=RUN` and give"
                " RUN"
            )
        raise UserError(
            f"{self.config} is not the config of a model; give the --workdir of a `bertlab train` or `bertlab import`"
        )

    def described(self) -> dict[Path, dict[str, Any]]:
        """The files that a training writes at its beginning and then leaves, with their entries of files.json."""
        written = (self.config.path, self.environment.path, self.data.path, self.classes.path, *self.tokenizer.glob("*"))
        return checksums.entries_of(filter(Path.is_file, written))

    def require_as_written(self, known: Mapping[Path, Mapping[str, Any]], only_sizes: bool = False) -> None:
        """Refuses to go on where files are no longer as this process wrote them.

        Args:
            known: The files with their entries.
            only_sizes: Do not read them.

        Raises:
            RunFailed: Names the first that was changed, or the directory if that is gone, and says what to do.
        """
        for path, entry in known.items():
            if not (wrong := checksums.damage_of(path, entry["bytes"], None if only_sizes else entry["blake2b"])):
                continue
            if not (self.config.exists() or self.environment.exists()):
                raise RunFailed(
                    f"{self} was removed or moved while its run was at work; put it back and run the same command again, or"
                    f" delete {self} and run it again: it starts over"
                )
            anew = path not in (self.config.path, self.metrics.path)
            todo = "run" if anew else f"restore it, or delete {self} to start over, and run"
            raise RunFailed(f"{path} was changed while its run was at work ({wrong}); {todo} the same command again")

    def finish(self, result: Mapping[str, Any], known: Mapping[Path, Mapping[str, Any]] | None = None) -> None:
        """Writes files.json and, as the last file, the result.

        Args:
            result: The content of result.json.
            known: What must still be as it was written.

        Raises:
            RunFailed: As `require_as_written`.
        """
        self.require_as_written(known or {})
        self.list_files()
        self.result.write(result)

    def list_files(self) -> None:
        """Writes files.json, of the files that there are now; those that are written later are added."""
        files = [of.path for of in named(self).values() if isinstance(of, (JsonFile, MetricsFile))]
        files += [*self.tokenizer.glob("*"), *(self.directory / "predictions").glob("*")]
        checksums.write_list(self.directory, filter(Path.is_file, files))

    def require_whole(self) -> None:
        """Refuses a finished run of whose files one is damaged or missing; not its checkpoints, which are checked when read.

        Raises:
            UserError: Names the file.
        """
        remedy = f"delete {self} and run the command that made it again; delete {self.files} if you changed it yourself"
        checksums.require_whole(self.directory, remedy)

    def beside(self, name: str) -> "Run":
        """Another run of the same study."""
        return Run(self.directory.parent / name)

    def stage(self, kind: str, task: str = "") -> "Run":
        """A part of a study's run: "adapt" or "finetune" with a task; "pretrain" is the run's own directory."""
        return Run(self.directory / kind / task) if task else self

    def tasks(self, kind: str) -> list[str]:
        """The tasks that have a directory of an adaptation or a fine-tuning, sorted."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.directory / kind) as found:
            return sorted(entry.name for entry in found if entry.is_dir())
        return []

    def stages(self) -> list[tuple[str, str]]:
        """(kind, task) for `stage` of all adaptations and fine-tunings that there are."""
        return [(kind, task) for kind in ("adapt", "finetune") for task in self.tasks(kind)]

    def predictions(self, split: str) -> TextFile:
        """A fine-tuning's predictions for a split, a JSON object an example."""
        return TextFile(self.directory / "predictions" / f"{split}.jsonl")

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        return sorted(int(path.name) for path in self.checkpoints.glob("*") if path.name.isdigit())

    def at_step(self, step: int) -> JsonFile:
        """`AT_STEP` of a checkpoint; an earlier version wrote none."""
        return JsonFile(self.checkpoints / str(step) / AT_STEP, form=_AT_STEP)

    def sources(self) -> Mapping[str, str]:
        """The digests of what the training so far has read (`bertlab.train.sources`); {}: not known.

        They are the same in all checkpoints and in the result; what is damaged, or removed meanwhile, is passed over.
        """
        for step in reversed(self.steps()):
            with contextlib.suppress(UserError):
                if found := self.at_step(step).get({}).get("sources"):
                    return found
        with contextlib.suppress(UserError):
            return self.result.get({}).get("sources", {})
        return {}

    def require_step(self, step: int | None) -> None:
        """Refuses a step without a checkpoint; None, the last one, is not checked.

        Raises:
            UserError: Names the steps that have one.
        """
        steps = self.steps()
        if step is not None and step not in steps:
            shown = [*map(str, steps)] if len(steps) < 12 else [*map(str, steps[:5]), "…", *map(str, steps[-5:])]
            there = f"it has {', '.join(shown)}" if steps else "it has none"
            raise UserError(f"{self} has no checkpoint of step {step}; {there} (config.train.keep says which steps stay)")

    def evaluation_at(self, step: int | None) -> JsonFile:
        """`evaluation`, or for another step than the last (None) of a finished run evaluation-STEP.json."""
        return self._at(self.evaluation, step)

    def similarity_at(self, step: int | None) -> JsonFile:
        """`similarity`, or for another step than the last (None) of a finished run similarity-STEP.json."""
        return self._at(self.similarity, step)

    def probes_at(self, step: int | None) -> JsonFile:
        """`probes`, or for another step than the last (None) of a finished run probes-STEP.json."""
        return self._at(self.probes, step)

    def _at(self, file: JsonFile, step: int | None) -> JsonFile:
        if step is None or step == self.result.get({}).get("step", 0):  # imported weights have only step 0
            return file
        return JsonFile(file.path.with_stem(f"{file.path.stem}-{step}"))

    def delete_pretraining(self) -> None:
        """Removes what a pretraining wrote; leaves the adaptations, the fine-tunings and what the sweep's workers wrote."""
        kept = {path.name for path in (self.job.path, self.log, self.alive.path, self.lock, self.slurm)} | {"adapt", "finetune"}
        for path in [path for path in self.directory.glob("*") if path.name not in kept]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def begun(self) -> bool:
        """Whether the directory itself holds a pretraining, an adaptation or a fine-tuning."""
        return self.config.exists() or self.metrics.exists()

    def is_half_trained(self) -> bool:
        """Whether it has a checkpoint, but is neither finished nor imported: it may save further ones."""
        return bool(self.steps()) and not (self.result.exists() or self.imported.exists())

    def is_there(self) -> bool:
        """Whether the directory holds a run, damaged perhaps, or imported weights; other tools have a config.json too."""
        return self.job.exists() or sum((self.directory / name).exists() for name in _MARKS) > 1


class StudyDirectory:
    """The directory that a sweep fills.

    Attributes:
        directory: The directory; it need not exist.
        study: The study and its runs.
        settled: Why a sweep stopped early (`bertlab.studies.ordering`).
        rule: Its stopping rule; fixed before its first look.
        lock: There while a sweep is at work (`bertlab.locks`).
        hosts: Folder of what several hosts say to each other during a sweep (`bertlab.studies.launchers.slice`).
        page: The report as one HTML page; a single run has one too.
        explore: The same numbers as an interactive page.
        report: Folder of the report's tables and figures.
    """

    study = Named("study.json", StudyFile, form={**_STUDY, "runs": [_RUN]})
    settled = Named("settled.json", JsonFile)
    rule = Named("until_decided.json", JsonFile)
    lock = Named("sweep.lock")
    hosts = Named("hosts")
    page = Named("report.html")
    explore = Named("explore.html")
    report = Named("report")

    def __init__(self, directory: str | os.PathLike):
        self.directory = Path(directory)

    def require_whole(self) -> None:
        """Refuses a study of whose own files, or a published study of whose files one is damaged or missing.

        Raises:
            UserError: Names the file.
        """
        swept, published = "delete it and run the same sweep again", "publish the study again, into a new folder"
        listed = checksums.listed(self.directory)
        again = published if any("/" in name for name in listed) else swept  # a sweep's list has no files of runs
        again = again if listed else f"{swept}, or {published}"
        own = f"delete {self.directory / checksums.LIST} if you changed it yourself"
        checksums.require_whole(self.directory, f"{again}; {own}")

    def is_there(self) -> bool:
        """Whether the directory holds a study, even one whose study.json was lost."""
        return self.study.exists() or self.study.path.name in checksums.listed(self.directory)

    def run(self, name: str) -> Run:
        """The directory of one of its runs."""
        return Run(self.directory / name)

    def runs(self) -> list[Run]:
        """The runs that study.json names, in its order."""
        return [self.run(run["name"]) for run in self.study.get({"runs": ()})["runs"]]

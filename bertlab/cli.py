"""The `bertlab` command: one function per subcommand, each a thin call into the package.

Only this module has slow imports inside functions, so `bertlab --help` and argument errors answer at once. A function returns
None, an exit status, or what its command found as a `Found`, which `--json` prints.
"""

import argparse
import contextlib
import difflib
import functools
import itertools
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

from bertlab import __version__, hosts
from bertlab.completion import SHELLS, is_completing
from bertlab.errors import UserError, failure_of_machine, how_to_install, require, too_long_a_name
from bertlab.interrupts import interruptible, waiting
from bertlab.transfer.recipes import RECIPES

HUGE_PAGES = "glibc.malloc.hugetlb=1"


class Found(NamedTuple):
    """What a command found, and its exit status.

    Attributes:
        value: a dict of what JSON can hold, of paths and of NumPy's numbers.
        status: of the process.
    """

    value: dict[str, Any]
    status: int = 0


def command() -> int:
    """The `bertlab` of the shell: `main`, in a process with the fastest settings."""
    if not (is_completing() or {"-h", "--help", "--version"} & {*sys.argv}):  # these compute nothing
        begin_with_huge_pages()
    _open_what_is_closed()
    try:
        status = main()
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        status = 128 + signal.SIGPIPE
    if status > 128:  # ended anywhere: an orderly exit under threads that are still at work may crash
        os._exit(status)
    return status


def _open_what_is_closed() -> None:
    """Of the standard files, as in `2>&-`: else a file of a command becomes one of them, and what is printed goes there."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")


def _reader_is_gone() -> bool:
    """Whether nobody reads standard output or error any more, as in `| head`; another pipe may be the broken one."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)  # errors are always told
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def begin_with_huge_pages() -> None:
    """On Linux, restarts this process with huge pages for large arrays, unless GLIBC_TUNABLES already sets them.

    They make a training step on a CPU about a fifth faster: fewer page faults, and fewer misses in the processor's table of
    pages. glibc (2.35 and later) reads this setting only when a process starts; other systems ignore it.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform == "linux" and HUGE_PAGES.partition("=")[0] not in tunables:
        os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (tunables, HUGE_PAGES)))
        with waiting():
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main(arguments: list[str] | None = None) -> int:
    """Runs `bertlab COMMAND ...`.

    Returns:
        0 on success, 1 if a run failed (a full disk, a run of a sweep) or the doctor found something, 2 for a mistake in the
        request, 130 after Ctrl-C and 143 after SIGTERM. A mistake and a failure of the machine are one line on stderr. The
        process ends with 141, silently, if what reads its output ends first, such as `head`.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    sys.path.insert(0, os.getcwd())  # your own objective in this directory can be imported, as with `python -m`
    parser = build_parser()
    if is_completing():
        from bertlab.completion import complete

        complete(parser)  # ends the process
    try:
        given, rest = parser.parse_known_args(arguments)
    except OSError as error:  # of --help and --version
        if (said := failure_of_machine(error)) is None:
            raise
        print(f"bertlab: {said}", file=sys.stderr)
        return 1
    for argument, value in itertools.pairwise(arguments):
        key = given.takes_overrides and argument in rest and argument.startswith("--config.") and "=" not in argument
        if key and value in rest and not value.startswith("--"):
            parser.error(f"write {argument}={value}")
    if unknown := [a for a in rest if not (given.takes_overrides and a.startswith("--config."))]:
        parser.error(f"{given.command} does not know {' '.join(unknown)}; see bertlab {given.command} --help")
    with interruptible() as signals:
        try:
            if given.processes == "one":
                hosts.refuse()
            _check_texts(given, rest, arguments)
            _check_places(given)
            _check_numbers(given)
            with _output(given) as out:
                found = given.function(given, rest)
                if isinstance(found, Found):
                    if given.json:
                        _print_json(found.value, out)
                    return found.status
                return found or 0
        except (KeyboardInterrupt, Exception) as error:
            status, said = 2, str(error) if isinstance(error, UserError) else too_long_a_name(error)
            if isinstance(error, KeyboardInterrupt) or signals.ends:
                status, said = signals.status, "interrupted; run the same command again to continue"
            if said is None:
                place = next(filter(None, (getattr(given, name, None) for name in _PLACES)), "")
                status, said = 1, failure_of_machine(error, place)
            if said is None:
                raise
    line = f"bertlab {given.command}: {' '.join(said.splitlines())}"
    if (processes := sys.modules.get("bertlab.train.processes")) and processes.have_joined():
        processes.leave(status, line)
    print(line, file=sys.stderr)
    return status


@contextlib.contextmanager
def _together(saves: bool = True) -> Iterator[bool]:
    """Joins the other processes that run this command, if there are any; yields whether this one is the first.

    Only the first prints; the others say on standard error what ends them.

    Args:
        saves: The command saves after SIGTERM.
    """
    from bertlab.progress import hidden
    from bertlab.train import processes

    several = hosts.are_several()  # joining may change the environment
    processes.join(saves)
    first = not several or processes.is_first()
    with processes.company(), contextlib.ExitStack() as stack:
        if not first:
            stack.enter_context(hidden())
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
        yield first


@contextlib.contextmanager
def _output(given: argparse.Namespace) -> Iterator[TextIO]:
    """Shows progress, and sends what is printed where it belongs; yields standard output.

    With --quiet nothing is shown but errors and what a command `prints`; with --json what is for people goes to standard error.
    """
    from bertlab.progress import hidden, shown

    out = sys.stdout
    with contextlib.ExitStack() as stack:
        stack.enter_context(hidden() if given.quiet else shown())
        if given.quiet and not (given.prints and not getattr(given, "out", None)):
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w", encoding="utf-8"))))
        elif given.json:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield out
        out.flush()  # what fails at the exit has no sentence


def _print_json(value: dict[str, Any], out: TextIO) -> None:
    """Prints one JSON object (`bertlab.files.json_text`); what JSON lacks becomes text."""
    from bertlab.files import json_text

    def plain(value):
        if isinstance(value, dict):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        value = value.item() if hasattr(value, "item") else value  # of NumPy
        return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)

    print(json_text(plain(value)), file=out, flush=True)


def _check_texts(given: argparse.Namespace, rest: list[str], arguments: list[str]) -> None:
    """Refuses text that is not UTF-8, and what is empty; a prompt and a config key may be empty."""
    for text in (*vars(given).values(), *rest):
        if isinstance(text, str) and any("\ud800" <= one <= "\udfff" for one in text):
            raise UserError(f"{text} is not UTF-8 text; convert it, for example with iconv -t utf-8")
    if given.command in ("mirror", "manifest"):
        arguments = arguments[: len(arguments) - len(given.words)]  # those of the command after -- are its own
    for before, argument in zip(["", *arguments], arguments):
        if not argument and not (before.startswith("-") and "=" not in before):
            raise UserError(f"the argument after {before} is empty; give a value, or omit it")
        option, _, value = argument.rpartition("=") if argument.startswith("--") else (before, "", argument)
        if not value and option.startswith("--") and "=" not in option and not option.startswith(("--config.", "--prompt")):
            raise UserError(f"{option}= is empty; give a value, or omit the option")


def _check_places(given: argparse.Namespace) -> None:
    """Refuses, before anything is computed, a place to write to that cannot be made or is a run's, and a file without end.

    That is a device, or a pipe that would wait for its writer. A finished run is only read. Pipes of the shell are below /dev.
    """
    several = ((name, value if isinstance(value, list) else [value]) for name, value in vars(given).items())
    for name, path in ((name, value) for name, values in several for value in values):
        if isinstance(path, Path) and name in _PLACES and re.match(r"[a-z][a-z0-9]+:/[^/]", str(path)):
            url = str(path).replace(":/", "://", 1)
            raise UserError(
                f"{_PLACES[name]}{url} cannot be written to a URL; write here, and keep it there with `bertlab mirror`"
            )
        if isinstance(path, Path) and path.is_fifo() and path.parts[:2] != ("/", "dev"):
            raise UserError(f"{path} is a pipe, which may never end; give a file")
        if isinstance(path, Path) and re.match(r"(gs|s3):/[^/]", str(path)):
            raise UserError(
                f"{str(path).replace(':/', '://')} is read by `text:` corpora, --store and `bertlab mirror` only; copy it here"
            )
        if isinstance(path, Path) and (path.is_char_device() or path.is_block_device()):
            raise UserError(f"{path} is a device, which may never end; give a file")
    places = [(getattr(given, name, None), shown) for name, shown in _PLACES.items()]
    if not any(path for path, _ in places):
        return
    from bertlab.files import refuse_unwritable
    from bertlab.places import require_free, require_json_name
    from bertlab.run import Run

    for path, shown in places:
        if not path or Run(path).result.exists():
            continue
        folder = shown != "--out=" or given.command == "tokenizer"
        require_free(path, f"{shown}{path}", folder=folder, but=_MEASURES.get(given.command, ""))
        if folder:
            refuse_unwritable(path, f"{shown}{path}")
        elif path.is_dir():
            raise UserError(f"{shown}{path} is a directory; give a file")
        else:
            refuse_unwritable(path.parent if not path.is_symlink() else path, f"{shown}{path}")
            if given.command != "embed":
                require_json_name(path)


# Command -> the attribute of `bertlab.run.Run` that it writes.
_MEASURES = {"evaluate": "evaluation", "similarity": "similarity", "probe": "probes"}
_PLACES = {"workdir": "--workdir=", "directory": "", "folder": "", "out": "--out="}
# Option -> the limits (`bertlab.keys.Key`) of a number.
_LIMITS = {
    "chips_per_host": {"least": 1, "most": 8},
    "contexts": {"least": 1},
    "epochs": {"above": 0, "most": 1e6},
    "jobs": {"least": 1, "most": 100_000},
    "length": {"least": 1, "most": 1_000_000},
    "limit": {"least": 0},
    "minutes": {"above": 0, "most": 1e6},
    "number": {"least": 1, "most": 1_000_000},
    "orders": {"least": 1, "most": 1_000_000},
    "restarts": {"least": 0, "most": 1_000_000},
    "rounds": {"least": 1, "most": 1_000_000},
    "sample_sentences": {"least": 1},
    "seconds": {"above": 0, "most": 1e6},
    "seed": {"least": 0},
    "step": {"least": 0},
    "steps": {"least": 1},
    "temperature": {"least": 0, "most": 1e6},
    "top_p": {"above": 0, "most": 1},
    "vocab_size": {"least": 6, "most": 10_000_000},
    "vocabulary": {"least": 0},
    "words": {"least": 1},
}


def _check_numbers(given: argparse.Namespace) -> None:
    """Refuses a number that an option cannot have."""
    numbers = {name: value for name, value in vars(given).items() if type(value) in (int, float)}
    if not numbers:
        return
    from bertlab.keys import Key

    for name, value in numbers.items():
        Key(name, value, "", **_LIMITS[name]).check(value, {}, "--")


class _Parser(argparse.ArgumentParser):
    """A parser that notices a help text which cannot be written, and suggests the choice that was meant."""

    def error(self, message: str) -> NoReturn:
        if wrong := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            known = re.findall(r"[\w-]+", wrong[2])
            if meant := difflib.get_close_matches(wrong[1], known, 1):
                message = message.replace(f" (choose from {wrong[2]})", f"; did you mean {meant[0]}?")
        super().error(message)

    def print_help(self, file: TextIO | None = None) -> None:
        print(self.format_help(), end="", file=file, flush=True)


class _Version(argparse.Action):
    """--version."""

    def __init__(self, option_strings, dest, help):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser, namespace, values, option_string=None):
        print(f"bertlab {__version__}", flush=True)
        parser.exit()


@functools.cache
def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands; each help text ends with an example."""
    parser = _Parser(
        prog="bertlab", description="Compare pretraining objectives under equal conditions.",
        epilog="example:\n  bertlab train --config=experiments/pretrain/bert.py:size=tiny --workdir=runs/x",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name, function, help, example, overrides=False, to=commands, finds=False, processes="any", prints=False):
        """Adds a command.

        Of `processes`: "several" work together, "one" refuses others, "any" takes no notice of others. `prints`: what it prints
        is its result, and not about it.
        """
        keys = "config keys:\n  --config.KEY=VALUE sets one, as often as you like; bertlab keys lists them\n\n" * overrides
        command = to.add_parser(
            name, help=help, description=help[0].upper() + help[1:] + ".", epilog=f"{keys}example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        )  # fmt: skip
        command.set_defaults(function=function, takes_overrides=overrides, json=False, processes=processes, prints=prints)
        output = command.add_argument_group("output")
        output.add_argument("--quiet", action="store_true", help=f"print nothing but {'the result and ' * prints}errors")
        if finds:
            output.add_argument("--json", action="store_true", help="print one JSON object; the rest goes to standard error")
        return command.add_argument

    _add_training(add)
    _add_studies(add)
    _add_measuring(add)
    _add_data(add, commands)
    _add_weights(add)
    _add_setting_up(add)
    return parser


_CONFIG_HELP = (
    "config file and its arguments, FILE.py:key=value,key=value, such as size, objectives, corpus and steps of"
    " experiments/pretrain/bert.py; an unknown key is answered with all that the file knows"
)
_STUDY_HELP = "run directory; with --seeds or --rates, study directory"
_ANY_RUN = "directory of a run or of imported weights"


def _add_training(add) -> None:
    train = add(
        "train", _train, "pretrain a model; run the same command again to resume",
        "bertlab train --config=experiments/pretrain/bert.py:size=tiny,objectives=mlm+nsp,corpus=pydocs"
        " --workdir=runs/x --config.train.steps=200 --config.seed=1", overrides=True, finds=True, processes="several",
    )  # fmt: skip
    train("--config", required=True, help=_CONFIG_HELP)
    train("--workdir", required=True, type=Path, help=_STUDY_HELP)
    _add_grid(train)

    tune = add(
        "finetune", _finetune, "fine-tune a pretrained run on a task: all of it, a part, or only the head",
        "bertlab finetune --run=runs/x --task=sst2 --recipe=bert --config.task_data.directory=glue"
        " --workdir=runs/x/finetune/sst2", overrides=True, finds=True, processes="several",
    )  # fmt: skip
    tune("--run", required=True, type=Path, help="directory of a pretrained, imported or fine-tuned run")
    tune("--task", required=True, help="a task's name, FILE.py with your own task, or several joined by +")
    tune("--recipe", default="small", help=f"{', '.join(RECIPES)} (default small)")
    tune("--workdir", required=True, type=Path, help=_STUDY_HELP)
    _add_step(tune)
    _add_grid(tune, " and selects the best on `valid`")

    adapt = add(
        "adapt", _adapt, "continue pretraining on a task's text, without its labels (ULMFiT's second stage)",
        "bertlab adapt --run=runs/awd --task=trec --recipe=ulmfit --config.task_data.directory=trec --workdir=runs/awd-trec",
        overrides=True, finds=True, processes="several",
    )  # fmt: skip
    adapt("--run", required=True, type=Path, help="directory of a pretrained or imported run")
    adapt("--task", required=True, help="a task's name, or FILE.py with your own task")
    adapt("--recipe", default="same", help="same (the optimizer of the run; default), ulmfit or fitlam")
    adapt("--epochs", type=float, default=1.0, help="passes over the text, unless --config.train.steps is set (default 1)")
    adapt("--workdir", required=True, type=Path, help="directory of the adapted run")

    average = add(
        "average", _average, "average the predictions of several fine-tunings on one task, such as several seeds",
        "bertlab average runs/forward/finetune/trec runs/backward/finetune/trec", finds=True, processes="one",
    )  # fmt: skip
    average("runs", nargs="+", type=Path, help="directories of finished fine-tunings")
    average("--split", default="test", choices=("valid", "test"), help="default test")
    average("--task", default="", help="FILE.py of the runs' task, if it is your own; runs that name one are refused without")


def _add_out_and_step(argument, name: str) -> None:
    """Of a command that measures a run: `name` is the file's, without its ending."""
    default = f"RUN/{name}.json; with another step than the last, RUN/{name}-STEP.json"
    argument("--out", type=Path, help=f"FILE.json to write (default: {default})")
    _add_step(argument)


def _add_step(argument) -> None:
    argument("--step", type=int, help="the step of the run's checkpoint (config.train.keep; default the last)")


def _place(text: str) -> Path | str:
    """A folder, or the URL of one; a Path would make one slash of two."""
    return text if "://" in text else Path(text)


def _add_command(argument) -> None:
    """The command that another one starts: all words after --, which is the last that the other one reads."""
    argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="after --: a command and its options")


def _words(given) -> list[str]:
    """The command after --.

    Raises:
        UserError: It begins with an option, which is one of the other command.
    """
    words = given.words[1:] if given.words[:1] == ["--"] else given.words
    if words and words[0].startswith("-"):
        raise UserError(f"{words[0]} comes too late: give {given.command}'s options first, and its command after --")
    return words


def _add_grid(argument, selection: str = "") -> None:
    argument("--seeds", help="several seeds, such as 1,2,3: runs a study and reports mean, deviation and interval")
    argument("--rates", help=f"several learning rates, such as 1e-4,3e-4: runs a study{selection}")
    argument("--jobs", type=int, default=1, help="number of runs of the study at a time (default 1)")


def _add_studies(add) -> None:
    sweep = add(
        "sweep", _sweep, "run all unfinished runs of a study",
        "bertlab sweep --study=experiments/ablations/objectives.py --workdir=runs/objectives --jobs=2", finds=True,
        processes="several",
    )  # fmt: skip
    sweep("--study", required=True, help="study file and its arguments, FILE.py:key=value,key=value")
    sweep("--workdir", required=True, type=Path, help="study directory; it holds one directory per run")
    sweep("--jobs", type=int, default=1, help="number of runs at a time; they share the cores or devices (default 1)")
    sweep("--dry_run", action="store_true", help="print the runs and their cost; start nothing")
    sweep(
        "--until_decided", nargs="?", const="all", default="", metavar="TASK",
        help="stop adding seeds once the variants' order on TASK is settled (without TASK: on all tasks)",
    )  # fmt: skip
    sweep("--published", type=Path, help="folder that `bertlab publish` wrote; its runs count as finished")
    sweep(
        "--store", type=_place, metavar="DIR|URL",
        help="folder, gs:// or s3:// of finished pretrainings: those of the same config and text are not trained again",
    )  # fmt: skip
    sweep(
        "--launcher",
        default="local",
        choices=("local", "slurm", "ray", "skypilot"),
        help="where the runs start (default local)",
    )
    sweep(
        "--launcher_options", default="",
        help="key=value,...; local: devices=0,1; slurm: submitit's, such as timeout_min=60,slurm_partition=gpu; ray: address=,"
        " num_gpus=; skypilot: mirror=gs://..., accelerators=, infra=",
    )  # fmt: skip

    mirror = add(
        "mirror", _mirror, "run a command whose folder is saved to an object store every minute, so that it goes on elsewhere;"
        " without a command, bring the folder here",
        "bertlab mirror runs/x gs://bucket/x -- bertlab train --config=experiments/pretrain/bert.py:size=base --workdir=runs/x",
    )  # fmt: skip
    mirror("folder", type=Path, help="where the command writes: a run, or a whole study")
    mirror("url", help="gs://BUCKET/PATH, s3://BUCKET/PATH or file:///PATH (a disk that both machines have) of its own")
    mirror("--seconds", type=float, default=60.0, help="between two snapshots (default 60)")
    _add_command(mirror)

    manifest = add(
        "manifest", _manifest, "print a JobSet for Google's Kubernetes, not run on a cloud yet: a command on a TPU slice, a"
        " process on each host",
        "bertlab manifest --name=x --topology=v5e:4x4 --image=IMAGE --claim=c -- bertlab train --config=F.py --workdir=/runs/x",
        prints=True,
    )  # fmt: skip
    manifest("--name", required=True, help="of the JobSet")
    manifest("--topology", required=True, help="the slice, as v5e:4x4, v6e:2x4 or v5p:2x2x2")
    manifest("--image", required=True, help="a container image with bertlab and JAX for TPUs")
    manifest("--claim", default="", help="a volume claim that all hosts can write to, mounted at /runs")
    manifest(
        "--mirror", default="", help="of one host, instead: gs://BUCKET/PATH or s3://BUCKET/PATH for snapshots of the --workdir"
    )
    manifest("--restarts", type=int, default=3, help="how often a command that fails begins again (default 3)")
    manifest("--spot", action="store_true", help="only on spot machines; when one is taken away, all begin again")
    manifest("--queue", default="", help="local queue of Kueue")
    manifest("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the container; several: repeat it")
    manifest("--service_account", default="", help="Kubernetes' account of the pods, which may read and write the bucket")
    manifest("--chips_per_host", type=int, help="of v5e:2x4 and v6e:2x4 on two hosts: 4 (default: as many as fit)")
    manifest("--out", type=Path, help="FILE.json to write (default: print)")
    _add_command(manifest)

    publish = add(
        "publish", _publish, "copy a study's results, without checkpoints, for others to read and go on from",
        "bertlab publish runs/table5 experiments/results/table5", finds=True, processes="one",
    )  # fmt: skip
    publish("path", type=Path, help="study directory")
    publish("folder", type=Path, help="target directory; results already there stay unchanged")

    evidence = add(
        "evidence", _evidence, "write the pages of published studies, and one of all published findings against ours",
        "bertlab evidence experiments/results --studies=experiments/ablations", finds=True,
    )  # fmt: skip
    evidence("folder", type=Path, help="directory with a folder per study, written by `bertlab publish`")
    evidence(
        "--studies",
        type=Path,
        required=True,
        help="directory of the study files; studies without results are listed as not run",
    )

    report = add(
        "report",
        _report,
        "write tables, curves and an HTML page for a study or a run",
        "bertlab report runs/objectives",
        finds=True,
    )
    report("path", type=Path, help="study or run directory")

    scaling = add(
        "scaling", _scaling, "fit each objective's loss against parameters and tokens, and draw isoFLOP curves",
        "bertlab scaling runs/scaling", finds=True,
    )  # fmt: skip
    scaling("path", type=Path, help="directory of a study with several sizes and budgets, such as ablations/scaling.py's")
    scaling(
        "--along", default="size,budget", metavar="AXIS,AXIS", help="the study's axes that change them (default size,budget)"
    )

    scaling(
        "--measure", choices=("loss", "bits_per_byte"), default="loss",
        help="what is fitted: each objective's own test loss, or bits per byte, code length or bound (default loss)",
    )  # fmt: skip

    compare = add(
        "compare", _compare, "show how two runs differ in config and results", "bertlab compare runs/x runs/y", finds=True
    )
    compare("runs", nargs=2, type=Path, metavar="RUN", help="run directory")

    doctor = add(
        "doctor", _doctor, "check a run's log for signs of trouble; the exit status is 1 if it finds any",
        "bertlab doctor runs/x", finds=True,
    )  # fmt: skip
    doctor("run", type=Path, help="run directory")
    _add_step(doctor)


def _add_measuring(add) -> None:
    evaluate = add(
        "evaluate", _evaluate, "score held-out text (bits per byte) or minimal pairs (accuracy) by a run's own likelihood",
        "bertlab evaluate --run=runs/x --minimal_pairs=blimp.jsonl --limit=20", finds=True, processes="several",
    )  # fmt: skip
    evaluate("--run", required=True, type=Path, help=_ANY_RUN)
    evaluate("--text", type=Path, help="UTF-8 file, one text per line (default: sentences of the run's test split)")
    evaluate("--minimal_pairs", type=Path, help="minimal pairs in BLiMP's format: .jsonl, .jsonl.gz or .jsonl.xz")
    evaluate("--suite", choices=("babylm",), help="a suite of tasks instead: BabyLM's zero-shot tasks, from --data")
    evaluate("--data", type=Path, help="folder of the suite's files: BabyLM's evaluation_data/full_eval or fast_eval")
    evaluate(
        "--special_tokens", choices=("pipeline", "bertlab"),
        help="with --suite: score a completion's pieces alone, as BabyLM's pipeline does (default), or the closing token too",
    )  # fmt: skip
    evaluate("--kinds", default="", help="left-to-right, pseudo, ..., joined by commas (default: all that the model supports)")
    evaluate("--orders", type=int, help="random orders of each text for the kind any-order (default 4)")
    evaluate(
        "--noclosing", action="store_true",
        help="do not score where a text ends: neither its closing token nor, for the kind any-order, its number of pieces",
    )  # fmt: skip
    evaluate("--limit", type=int, default=0, help="most texts, or pairs per paradigm (default: a whole file, or 200 sentences)")
    _add_out_and_step(evaluate, "evaluation")

    similarity = add(
        "similarity", _similarity, "compare cosines of words and sentences with human ratings, and answer analogies",
        "bertlab similarity --run=runs/x --words=EN-SIMLEX-999.txt,EN-MEN-TR-3k.txt --analogies=questions-words.txt",
        finds=True, processes="one",
    )  # fmt: skip
    similarity("--run", required=True, type=Path, help=_ANY_RUN)
    similarity("--words", default="", metavar="FILE,FILE", help="rated pairs of words: lines with two words and a number")
    similarity("--analogies", type=Path, help="questions in the format of word2vec's questions-words.txt")
    similarity("--sts", type=Path, help="rated pairs of sentences: GLUE's STS-B/dev.tsv")
    similarity(
        "--text", type=Path,
        help="UTF-8 file, one sentence per line: a contextual model's words get the mean over their occurrences too, only words"
        " of this text count, and the possible answers of analogies are its most frequent words",
    )  # fmt: skip
    similarity("--contexts", type=int, default=50, help="with --text: most occurrences of each word (default 50)")
    similarity(
        "--vocabulary", type=int, default=30_000,
        help="answers of analogies are sought among so many of the most frequent words (default 30000, word2vec's; 0: all)",
    )  # fmt: skip
    _add_out_and_step(similarity, "similarity")

    probe = add(
        "probe", _probe, "fit linear probes for a task's tags on every layer, with control tasks and code lengths",
        "bertlab probe --run=runs/x --task=ud --control --code --config.task_data.directory=ud", overrides=True, finds=True,
        processes="one",
    )  # fmt: skip
    probe("--run", required=True, type=Path, help=_ANY_RUN)
    probe(
        "--task", required=True, help="a tagging task's name, or FILE.py with your own; set its files with --config.task_data"
    )
    probe("--layers", default="all", help="all, or numbers such as 0,-1; 0 is the embeddings (default all)")
    probe("--words", type=int, default=10_000, help="most words of training and of test (default 10000)")
    probe("--control", action="store_true", help="also a control task: a random tag for each word type (Hewitt and Liang 2019)")
    probe("--code", action="store_true", help="also the code length of the tags given the states (Voita and Titov 2020)")
    probe("--variational", action="store_true", help="the same by the variational code, which sends the probe's weights")
    probe("--edges", action="store_true", help="with --task=ud: which word is each word's head, by a bilinear probe")
    probe("--seed", type=int, default=0, help="seed of the samples and of the control task (default 0)")
    _add_out_and_step(probe, "probes")

    sample = add(
        "sample", _sample, "draw texts from a run, left to right or by revealing hidden pieces in steps",
        "bertlab sample --run=runs/x --number=3 --length=40 --top_p=0.9", finds=True, processes="one",
    )  # fmt: skip
    sample("--run", required=True, type=Path, help=_ANY_RUN)
    sample("--number", type=int, default=1, help="how many texts (default 1)")
    sample("--length", type=int, default=32, help="pieces of a text with its prompt; left to right the most (default 32)")
    sample("--kind", choices=("left-to-right", "any-order"), help="how (default: the first that the model allows)")
    sample("--steps", type=int, help="of any-order, at most one for each piece (default: one for each)")
    sample("--prompt", default="", help="what the texts begin with")
    sample("--temperature", type=float, default=1.0, help="divides the logits; 0: the likeliest piece (default 1)")
    sample("--top_p", type=float, default=1.0, help="draw from the likeliest pieces of this total probability (default 1)")
    sample("--seed", type=int, default=0, help="the same seed gives the same texts (default 0)")
    _add_step(sample)

    floor = add(
        "floor", _floor, "compute the lowest possible loss of each objective on the synthetic language, and how far a run is"
        " above it; the exit status is 1 if no objective has a floor",
        "bertlab floor --config=experiments/pretrain/bert.py:objectives=mlm,corpus=synthetic",
        overrides=True, finds=True, processes="one",
    )  # fmt: skip
    floor("--config", default=None, help=_CONFIG_HELP)
    floor("--run", type=Path, help="run directory; gives the losses, and the config if you omit --config")

    plan = add(
        "plan", _plan, "compile the training step of each phase for a machine you do not have, and print its memory, FLOPs and"
        " communication: the compiler's figures, which no TPU has confirmed yet",
        "bertlab plan --config=experiments/pretrain/bert.py:size=large --topology=v5e:16x16 --config.data.batch_size=4096",
        overrides=True, finds=True, processes="one",
    )  # fmt: skip
    plan("--config", required=True, help=_CONFIG_HELP)
    plan("--topology", required=True, help="a TPU slice such as v5e:16x16, or virtual devices such as cpu:8")
    plan("--largest", action="store_true", help="find the largest batch that fits in every phase, by doubling or halving")
    plan("--out", type=Path, help="also write the plans to this JSON file")

    bench = add(
        "bench", _bench, "measure speed on named workloads, alternating with a rival that does the same work",
        "bertlab bench --suite=cpu --against=transformers --out=speed.json", finds=True, processes="one",
    )  # fmt: skip
    bench("--suite", default="cpu", choices=("cpu", "gpu", "tpu"), help="which workloads (default cpu)")
    bench(
        "--against", choices=("transformers", "none"),
        help="the rival: PyTorch with transformers (default, for gpu if it is installed;"
        f" {how_to_install('bench')}), or none (default for tpu)",
    )  # fmt: skip
    bench(
        "--minutes", type=float,
        help="begin no workload later; the same command goes on with the file (default: 10 for gpu and tpu, none for cpu)",
    )  # fmt: skip
    bench("--rehearse", action="store_true", help="run a suite for gpu or tpu here, very small: the numbers mean nothing")
    bench("--only", default="", metavar="NAME,NAME", help="run these workloads instead of a suite")
    bench("--rounds", type=int, help="rounds per side, after warm-up (default 5; with --quick, gpu and tpu 3)")
    bench("--seconds", type=float, help="length of a round (default 3; with --quick 1)")
    bench(
        "--quick", action="store_true",
        help="fewer and shorter rounds, and for training steps one rival only: 'gathered' for small-mlm, else 'compiled'"
        " (leaves out the eager rival, and the gathered one of other workloads)",
    )  # fmt: skip
    bench("--corpus", default="", help="text for the workloads, as config.data.corpus (default pydocs)")
    bench("--out", type=Path, help="FILE.json for every round, the machine and the versions (gpu, tpu: default bench-gpu.json)")

    race = add(
        "speedrun", _speedrun, "time an entry of the speed run until it reaches the held-out loss that all entries must reach",
        "bertlab speedrun bert --corpus='text:wiki/wiki-train-0*.jsonl.xz' --seeds=1,2,3", processes="one",
    )  # fmt: skip
    race("entry", nargs="?", default="", help="name of a file in FOLDER/entries, without .py")
    race("--corpus", default="", help="the speed run's text, as config.data.corpus; with another one no result is written")
    race("--seeds", default="1,2,3", help="seeds to measure (default 1,2,3); those that this machine has measured are left")
    race("--folder", type=Path, default=Path("experiments/speedrun"), help="default experiments/speedrun")
    race("--table", action="store_true", help="only write the table of FOLDER/README.md again, from the result files")


def _add_data(add, commands) -> None:
    prepare = add(
        "prepare", _prepare, "tokenize a corpus once, for all runs that use it",
        "bertlab prepare --corpus='text:books/*.txt.gz' --config.data.tokenizer.vocab_size=16000", overrides=True, finds=True,
    )  # fmt: skip
    prepare("--config", default=None, help=_CONFIG_HELP + " (default: the defaults)")
    prepare("--corpus", default=None, help="pydocs, text:GLOB, tfds:NAME or synthetic")
    prepare("--beam_runner", default="", help="use Apache Beam: DirectRunner, DataflowRunner, FlinkRunner, ...")
    prepare(
        "--beam_pipeline_options", default="",
        help="Beam's options as key=value,..., such as project=my-project,region=europe-west4 (as on TFDS's command line)",
    )  # fmt: skip

    tokenizer = commands.add_parser(
        "tokenizer", help="train a tokenizer, or encode and decode lines",
        epilog="example:\n  echo 'One sentence.' | bertlab tokenizer encode --tokenizer=runs/x/tokenizer --pieces",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    actions = tokenizer.add_subparsers(dest="action", required=True, metavar="ACTION")
    learn = add(
        "train", _tokenizer_train, "train a tokenizer on a corpus",
        "bertlab tokenizer train --corpus='text:books/*.txt' --kind=bpe --vocab_size=8000 --out=tokenizer",
        to=actions, finds=True, processes="one",
    )  # fmt: skip
    learn("--corpus", required=True, help="pydocs, text:GLOB or tfds:NAME")
    learn("--kind", default="unigram", help="unigram, bpe, wordpiece or words (default unigram)")
    learn("--vocab_size", type=int, default=4096, help="number of pieces, including special ones (default 4096)")
    learn("--lowercase", action="store_true", help="lowercase the text")
    learn("--seed", type=int, default=0, help="seed of the sample of sentences (default 0)")
    learn("--sample_sentences", type=int, default=1_000_000, help="number of training sentences (default 1,000,000)")
    learn("--out", required=True, type=Path, help="directory for the tokenizer")
    encode = add(
        "encode", _tokenizer_encode, "encode lines of standard input as ids or pieces",
        "echo 'One sentence.' | bertlab tokenizer encode --tokenizer=tokenizer", to=actions, prints=True,
    )  # fmt: skip
    encode("--pieces", action="store_true", help="print pieces instead of ids")
    decode = add(
        "decode", _tokenizer_decode, "decode lines of ids from standard input as text",
        "echo '17 20 3' | bertlab tokenizer decode --tokenizer=tokenizer", to=actions, prints=True,
    )  # fmt: skip
    for argument in (encode, decode):
        argument("--tokenizer", required=True, type=Path, help="RUN/tokenizer, another saved tokenizer, or vocab.txt")


def _add_weights(add) -> None:
    bring = add(
        "import", _import, "convert weights trained elsewhere into a run directory",
        "bertlab import --from=huggingface bert-base-uncased/ --workdir=runs/bert-base", processes="one",
    )  # fmt: skip
    bring("--from", required=True, dest="kind", help="huggingface, google, openai, elmo, fastai, word2vec or glove")
    bring("source", type=Path, help="directory or file; for ELMo, the directory with options.json")
    bring("--workdir", required=True, type=Path, help="new directory")

    export = add(
        "export", _export, "write a run's weights in the format of another tool",
        "bertlab export runs/x --to=huggingface exported/x", processes="one",
    )  # fmt: skip
    export("run", type=Path, help=_ANY_RUN)
    export("--to", required=True, dest="kind", help="huggingface, elmo, fastai, word2vec or glove")
    export("directory", type=Path, help="new directory")
    _add_step(export)

    embed = add(
        "embed", _embed, "write the hidden states of every line of a text",
        "bertlab embed --run=runs/x --text=lines.txt --layers=all --out=lines.npz", processes="several",
    )  # fmt: skip
    embed("--run", required=True, type=Path, help=_ANY_RUN)
    embed("--text", required=True, type=Path, help="UTF-8 file, one text per line")
    embed("--carry", action="store_true", help="a recurrent model carries its states from line to line, as ELMo's readers did")
    embed("--pretokenized", action="store_true", help="split words only at spaces; gives one vector per word")
    embed("--layers", default=None, help="all, or numbers such as 0,-1; 0 is the embeddings (default all; with --pooling, -1)")
    embed(
        "--pooling", default=None,
        help="one vector per line: mean, first ([CLS]), last, max or pooler; special tokens are included. paragraph, for runs"
        " of skip_gram and cbow: the vector that best predicts the line's words (Le and Mikolov 2014); zeros if it knows none",
    )  # fmt: skip
    _add_step(embed)
    embed("--special_tokens", action="store_true", help="keep [CLS], [SEP] and other special tokens")
    embed(
        "--out", required=True, type=Path,
        help="FILE.npz or FILE.safetensors: one array [layers, tokens, D] per line, named by its number from 0; with"
        ' --pooling, one array "vectors" [lines, D]. FILE.csv: a table',
    )  # fmt: skip

    keys = add("keys", _keys, "list config keys with default, values and meaning", "bertlab keys 'optimizer.*'", finds=True)
    keys("pattern", nargs="?", default="", help="a part of a name or meaning, a glob, or an objective module:Class")
    keys("--markdown", action="store_true", help="print the table of docs/keys.md")

    add("models", _models, "list the model families with their sizes and parameter counts", "bertlab models", finds=True)


def _add_setting_up(add) -> None:
    init = add(
        "init", _init, "write a project of your own: a config, an objective, a task, a study and a test", "bertlab init own"
    )
    init("directory", type=Path, help="new or empty directory")

    completion = add(
        "completion", _completion, "print what your shell runs to complete commands, options and config keys",
        "bertlab completion bash", prints=True,
    )  # fmt: skip
    completion(
        "shell", choices=SHELLS,
        help='put eval "$(bertlab completion bash)" into ~/.bashrc, the same with zsh into ~/.zshrc, and'
        " bertlab completion fish | source into fish's config.fish",
    )  # fmt: skip


def _asks_for_a_grid(given, overrides: list[str]) -> bool:
    """Whether the command names several seeds or rates.

    Raises:
        UserError: An option has no effect.
    """
    lists = {"seeds": ("seed", given.seeds), "rates": ("optimizer.learning_rate", given.rates)}
    for name, (key, values) in lists.items():
        if values is not None and any(a.startswith(f"--config.{key}=") for a in overrides):
            raise UserError(f"--{name}={values} and --config.{key} set the same key; omit one of them")
    if given.seeds is not None or given.rates is not None:
        return True
    if given.jobs != 1:
        raise UserError(f"--jobs={given.jobs} needs several runs; add --seeds=1,2,3 or --rates=1e-4,3e-4, or omit it")
    return False


def _grid(given, load: Callable[[], Any], work: Callable[[Any, Any], int]) -> Found | int:
    """Does `work` of a study over --seeds or --rates, on this machine or several; a host that follows has found nothing."""
    from bertlab.studies.launchers import Local

    if not hosts.are_several():
        return Found({"study": given.workdir}, work(load(), Local(given.jobs)))
    leads, status = _on_all_hosts(given, load, work)
    return Found({"study": given.workdir}, status) if leads else status


def _on_all_hosts(given, load: Callable, work: Callable[[Any, Any], int], dry_run: bool = False) -> tuple[bool, int]:
    """What several hosts do with a study: the first does `work`, with a launcher that starts each run on all of them.

    Args:
        given: The command's options.
        load: Makes the study. All hosts call it, so that all refuse a wrong one at once.
        work: Is given the study and the launcher.
        dry_run: No run starts.

    Returns:
        Whether this host is the first; and the exit status, which is the first's on all.

    Raises:
        UserError: The environment does not say which host this is, or an option is for runs side by side.
    """
    from bertlab.studies.launchers.slice import follow, lead

    if given.jobs != 1 or getattr(given, "launcher_options", None):
        raise UserError("on several hosts each run takes all of them, one after the other; omit --jobs and --launcher_options")
    index, count = hosts.position()
    study = load()
    if index:
        return False, 0 if dry_run else follow(given.workdir, index, count)
    if dry_run:
        return True, work(study, None)
    return True, lead(given.workdir, count, lambda started_by: work(study, started_by))


def _load_config(spec: str, overrides: list[str]):
    """The config of a file with its arguments and overrides; says what arguments bring."""
    return _config_and_remark(spec, overrides)[0]


def _config_and_remark(spec: str, overrides: list[str]):
    """As `_load_config`; and a line, perhaps empty, about what its paper does otherwise."""
    from bertlab.config import brought, load_config
    from bertlab.papers import remark

    config = load_config(spec, argv=overrides)
    if settings := brought(spec, config, overrides):
        print(f"{spec} sets " + ", ".join(f"{key}={value}" for key, value in settings.items()), flush=True)
    return config, remark(config, settings)


def _train(given, overrides: list[str]) -> Found | int | None:
    from bertlab.data.prepare import prepare
    from bertlab.run import Run
    from bertlab.train import processes
    from bertlab.train.build import begun_from
    from bertlab.train.checks import check_config, check_devices
    from bertlab.train.loop import finished
    from bertlab.transfer.pretrain import check_files, pretrain

    if _asks_for_a_grid(given, overrides):
        from bertlab.studies.grid import pretraining_grid
        from bertlab.studies.sweep import sweep

        def work(study, started_by):
            _, otherwise = _config_and_remark(given.config, overrides)
            status = sweep(study, given.workdir, started_by)
            if otherwise and not status:  # the last line of a failure is about the failure
                print(otherwise, flush=True)
            return status

        return _grid(given, lambda: pretraining_grid(given.config, given.seeds, given.rates, overrides), work)
    with _together() as first:
        config, otherwise = _config_and_remark(given.config, overrides)
        config = begun_from(config)
        if unfinished := finished(config, given.workdir) is None:
            check_config(config)
            check_devices(config)
            check_files(config, given.workdir)
        with processes.alone(given.workdir):
            if unfinished:  # all processes that share its cache
                with processes.first_before_others("prepared"):
                    prepare(config.data)
            if otherwise and not Run(given.workdir).config.exists():  # once, after all that can be wrong was checked
                print(otherwise, flush=True)
            result = pretrain(config, given.workdir)
        print(f"finished: {Run(given.workdir).result}; see it with: bertlab report {given.workdir}")
    return Found(result) if first else None


def _values(overrides: list[str]) -> dict[str, str]:
    """["--config.KEY=VALUE"] as {KEY: VALUE}."""
    pairs = (override.removeprefix("--config.").partition("=") for override in overrides)
    return {name: value for name, _, value in pairs}


def _finetune(given, overrides: list[str]) -> Found | int | None:
    from bertlab.run import Run
    from bertlab.transfer.finetune import finetune

    values = _values(overrides)
    if given.step is not None:
        if "init_step" in values:
            raise UserError(f"--step={given.step} and --config.init_step set the same key; omit one of them")
        values["init_step"] = str(given.step)
    steps, epochs = values.get("train.steps", "0"), values.get("transfer.epochs", "0")
    if steps != "0" and epochs != "0":
        raise UserError(
            f"--config.train.steps={steps} and --config.transfer.epochs={epochs} both say how long; omit one of them"
        )
    if _asks_for_a_grid(given, overrides):
        from bertlab.studies.grid import finetuning_grid
        from bertlab.studies.sweep import sweep

        load = lambda: finetuning_grid(given.run, given.task, given.seeds, given.rates, values, given.recipe)
        return _grid(given, load, lambda study, started_by: sweep(study, given.workdir, started_by))
    with _together() as first:
        result = finetune(given.run, given.task, given.workdir, values, given.recipe)
        scores = ", ".join(f"{k} {v:.4f}" for k, v in result["metrics"]["test"].items() if v is not None)
        print(f"finished: {Run(given.workdir).result}; test: {scores}")
    return Found(result) if first else None


def _adapt(given, overrides: list[str]) -> Found | None:
    from bertlab.run import Run
    from bertlab.transfer.adapt import adapt

    with _together() as first:
        result = adapt(given.run, given.task, given.workdir, _values(overrides), given.recipe, given.epochs)
        print(f"finished: {Run(given.workdir).result}; next: bertlab finetune --run={given.workdir} --task={given.task}")
    return Found(result) if first else None


def _average(given, _) -> Found:
    from bertlab.transfer.average import average

    found = average(given.runs, given.split, given.task)
    for name, scores in found.items():
        print(f"{name}: " + ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items()))
    return Found(found)


def _sweep(given, _) -> Found | int:
    from bertlab.run import StudyDirectory

    found: dict[str, Any] = {}
    leads, status = _run_sweep(given, found.update)
    if not leads:
        return status
    if given.json and not given.dry_run and StudyDirectory(given.workdir).study.exists():
        from bertlab.studies.measurements import load

        counts = load(given.workdir).runs["status"].value_counts()
        found = {"directory": given.workdir, **{of: counts.get(of, 0) for of in ("finished", "failed", "unfinished")}}
    return Found(found, status)


def _run_sweep(given, tell) -> tuple[bool, int]:
    """Whether this host leads a sweep, and its exit status. `tell` is given what a dry run found."""
    from bertlab.remote import require_lasting
    from bertlab.studies.launchers import launcher
    from bertlab.studies.study import load_study
    from bertlab.studies.sweep import sweep

    require_lasting(given.store)
    how = (given.dry_run, given.until_decided, given.published, given.store)
    load = lambda: load_study(given.study)
    work = lambda study, started_by: sweep(study, given.workdir, started_by, *how, tell=tell)
    if hosts.are_several() and given.launcher == "local":
        return _on_all_hosts(given, load, work, given.dry_run)
    started_by = launcher(given.launcher, given.jobs, given.launcher_options)
    return True, work(load(), started_by)


def _mirror(given, _) -> int:
    from bertlab.mirror import Mirror, attended, require_names

    words, mirror = _words(given), Mirror(given.url)
    mirror.require_place(given.folder)
    if not words:
        if mirror.take(given.folder) is None:
            raise UserError(f"{given.url} has no snapshot; check the URL")
        print(f"{given.folder} is as the newest snapshot in {given.url}")
        return 0
    if not any(str(given.folder) in word for word in words):
        raise UserError(
            f"the command does not name {given.folder}, of which snapshots are saved; give the folder that it writes"
        )
    if not shutil.which(words[0]):
        raise UserError(f"{words[0]} is no command here; write it after --, as in: -- bertlab train ...")
    require_names(given.folder)
    brought = mirror.begin(given.folder)
    given.folder.mkdir(parents=True, exist_ok=True)
    of = f"{given.folder} goes on from the newest snapshot in {given.url}"
    print(of if brought else f"{given.url} has no snapshot: {given.folder} begins it", flush=True)
    # Its own session: Ctrl-C reaches it once, from here. Its input closes when this process ends.
    start = lambda: subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    return attended(mirror, given.folder, start, given.seconds, functools.partial(print, flush=True))


def _manifest(given, _) -> None:
    from bertlab.files import json_text, write_json
    from bertlab.studies.manifest import jobset, require_manifest

    names = ("claim", "mirror", "restarts", "spot", "queue", "chips_per_host", "env", "service_account")
    how = {name: getattr(given, name) for name in names}
    manifest = jobset(given.name, given.topology, given.image, _words(given), **how)
    if given.out:
        require_manifest(given.out)
        write_json(given.out, manifest)
        print(f"{given.out}; start it with: kubectl apply -f {given.out}")
    else:
        print(json_text(manifest, indent=2))


def _evaluate(given, _) -> Found | None:
    from bertlab.config import split_list
    from bertlab.transfer.evaluate import evaluate

    kinds = split_list("--kinds", given.kinds, expected="kinds") if given.kinds else []
    if given.suite or given.data:
        if not (given.suite and given.data) or given.text or given.minimal_pairs or given.noclosing:
            raise UserError(
                "--suite=babylm goes with --data=DIR, without --text, --minimal_pairs and --noclosing (--special_tokens says"
                " what is scored)"
            )
        from bertlab.transfer.babylm import evaluate_babylm

        how = (kinds, given.limit, given.out, given.step, given.orders, given.special_tokens or "pipeline")
        with _together(saves=False) as first:
            found = {"babylm": evaluate_babylm(given.run, given.data, *how, together=True)}
        return Found(found) if first else None
    if given.special_tokens:
        raise UserError(f"--special_tokens={given.special_tokens} has no effect without --suite=babylm; omit it")
    how = (kinds, given.limit, given.out, given.step, given.orders, not given.noclosing)
    with _together(saves=False) as first:
        found = evaluate(given.run, given.text, given.minimal_pairs, *how, together=True)
    return Found(found) if first else None


def _similarity(given, _) -> Found:
    from bertlab.config import split_list
    from bertlab.transfer.similarity import similarity

    words = split_list("--words", given.words, Path, "files") if given.words else []
    names = ("analogies", "sts", "text", "contexts", "vocabulary", "out", "step")
    return Found(similarity(given.run, words, **{name: getattr(given, name) for name in names}))


def _probe(given, overrides: list[str]) -> Found:
    from bertlab.transfer.load import parse_layers
    from bertlab.transfer.probe_task import probe_task

    names = ("words", "control", "code", "variational", "edges", "seed", "out", "step")
    settings = {name: getattr(given, name) for name in names}
    return Found(probe_task(given.run, given.task, _values(overrides), parse_layers(given.layers), **settings))


def _sample(given, _) -> Found:
    from bertlab.transfer.sample import sample_run

    names = ("number", "length", "kind", "steps", "prompt", "temperature", "top_p", "seed")
    return Found({"texts": sample_run(given.run, given.step, **{name: getattr(given, name) for name in names})})


def _doctor(given, _) -> Found:
    from bertlab.studies.doctor import doctor

    found = doctor(given.run, step=given.step)
    return Found(found, status=int(len(found["findings"]) > 0))


def _floor(given, overrides: list[str]) -> Found:
    from bertlab.floors import print_floors

    if overrides and given.config is None:
        raise UserError(f"{overrides[0]}: give --config=FILE.py too; without it --run uses the run's own config")
    found = print_floors(_load_config(given.config, overrides) if given.config else None, given.run)
    return Found(found, status=int(not found["floors"]))


def _plan(given, overrides: list[str]) -> Found:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing runs, so leave accelerators alone
    from bertlab.train.chips import split_topology

    kind, count = split_topology(given.topology)
    if kind == "cpu":
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", count)
    from bertlab.train.plan import print_plan

    return Found(print_plan(_load_config(given.config, overrides), given.topology, given.largest, given.out))


def _bench(given, _) -> Found:
    from bertlab.bench.measure import MINUTES, bench

    settings, on_device = {"data.corpus": given.corpus} if given.corpus else {}, given.suite != "cpu"
    out = given.out or (Path(f"bench-{given.suite}.json") if on_device else None)
    minutes = MINUTES if given.minutes is None and on_device else given.minutes
    how = (given.only, given.rounds, given.seconds, settings, given.quick, minutes, given.rehearse)
    return Found({"workloads": bench(given.suite, given.against, out, *how)})


def _speedrun(given, _) -> None:
    from bertlab.bench.speedrun import Entry, speedrun, write_table
    from bertlab.studies.grid import numbers

    if given.table:
        return write_table(given.folder)
    example = "bertlab speedrun bert --corpus='text:wiki/*.jsonl.xz'"
    if not given.entry:
        raise UserError(f"name an entry and its text, as in: {example}; or --table")
    Entry(given.folder, given.entry).require()
    seeds = numbers("seeds", given.seeds, int)
    if not given.corpus:
        raise UserError(f"--corpus is missing; name the text, as in: {example}")
    speedrun(given.entry, given.corpus, seeds, given.folder)


def _publish(given, _) -> Found:
    from bertlab.studies.published import own_files, publish

    added, needed = publish(given.path, given.folder), own_files(given.folder)
    print(f"{given.folder}: {len(added)} added" + "".join(f"\n  {name}" for name in added))
    if needed:
        print(f"not copied, and others need them to go on from it: {', '.join(needed)}, with the files that these read")
    return Found({"folder": given.folder, "added": list(added), "needed": needed})


def _evidence(given, _) -> Found:
    from bertlab.studies.evidence import write_pages

    pages = list(write_pages(given.folder, given.studies))
    for page in pages:
        print(page)
    return Found({"pages": pages})


def _report(given, _) -> Found:
    from bertlab.studies.report import numbers, report

    page = report(given.path)
    return Found({"page": page, "table": numbers(given.path) if given.json else []})


def _scaling(given, _) -> Found:
    from bertlab.config import split_list
    from bertlab.studies.scaling import scaling

    return Found({"folder": scaling(given.path, split_list("--along", given.along, expected="axes"), given.measure)})


def _compare(given, _) -> Found:
    from bertlab.studies.two_runs import compare

    return Found(compare(*given.runs))


def _prepare(given, overrides: list[str]) -> Found:
    from bertlab.config import base_config, parse_override, set_key
    from bertlab.data.prepare import describe, prepare

    if given.config:
        config = _load_config(given.config, overrides)
    else:
        config = base_config()
        for name, value in _values(overrides).items():
            set_key(config, name, parse_override(config, name, value))
    if given.corpus:
        config.data.corpus = given.corpus
    backend = None
    if given.beam_runner or given.beam_pipeline_options:
        require("apache_beam", "beam", "--beam_runner")
        from bertlab.data.beam import beam_backend

        backend = beam_backend(given.beam_runner, given.beam_pipeline_options)
    prepared = prepare(config.data, backend=backend)
    print(describe(prepared))
    tokenizer = {"kind": prepared.tokenizer.kind, "pieces": prepared.tokenizer.vocab_size}
    return Found({"directory": prepared.directory, "tokenizer": tokenizer, "splits": prepared.statistics})


def _tokenizer_train(given, _) -> Found:
    from bertlab.data.corpora import open_corpus
    from bertlab.data.tokenizers import train_tokenizer
    from bertlab.files import whole_directory
    from bertlab.locks import alone
    from bertlab.progress import doing

    options = {"seed": given.seed, "lowercase": given.lowercase, "sample_sentences": given.sample_sentences}
    with alone(given.out), whole_directory(given.out) as folder:
        sentences = (s for document in open_corpus(given.corpus).documents() for s in document.sentences)
        with doing("training the tokenizer"):
            tokenizer = train_tokenizer(given.kind, sentences, given.vocab_size, **options)
        tokenizer.save(folder)
    print(f"{given.kind} tokenizer with {tokenizer.vocab_size} pieces saved in {given.out}")
    return Found({"directory": given.out, "kind": given.kind, "pieces": tokenizer.vocab_size})


def _tokenizer_encode(given, _) -> None:
    from bertlab.data.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(given.tokenizer)
    names = tokenizer.pieces()
    for _, line in _input_lines():
        print(" ".join(names[i] if given.pieces else str(i) for i in tokenizer.encode(line)))


def _tokenizer_decode(given, _) -> None:
    from bertlab.data.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(given.tokenizer)
    for number, line in _input_lines():
        try:
            ids = [int(word) for word in line.split()]
        except ValueError:
            raise UserError(f"standard input, line {number}: expected ids separated by spaces, got {line.strip()!r}") from None
        if bad := [i for i in ids if not 0 <= i < tokenizer.vocab_size]:
            raise UserError(f"standard input, line {number}: id {bad[0]} is not in 0..{tokenizer.vocab_size - 1}")
        print(tokenizer.decode(ids))


def _input_lines():
    """Yields (line number from 1, line without its end) of standard input, which is UTF-8 whatever the locale says."""
    if sys.stdin is None:
        raise UserError("standard input is closed; give it lines, for example those of a file with < FILE")
    offset = 0
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"standard input, line {number}: byte {offset + error.start} is not UTF-8 text; convert it, for example with "
                "iconv -t utf-8."
            ) from error
        offset += len(line)
        yield number, text.rstrip("\r\n")


def _import(given, _) -> None:
    from bertlab.interop import import_weights

    import_weights(given.kind, given.source, given.workdir)
    print(f"imported into {given.workdir}; use it with bertlab embed --run, finetune --run or --config.init_from")


def _export(given, _) -> None:
    from bertlab.interop import export_weights

    export_weights(given.kind, given.run, given.directory, given.step)
    print(f"exported {given.run} to {given.directory}")


def _embed(given, _) -> None:
    from bertlab.train import processes
    from bertlab.transfer.load import embed_file, parse_layers

    layers = parse_layers(given.layers or ("-1" if given.pooling else "all"))
    names = ("run", "text", "out", "pretokenized", "special_tokens", "pooling", "step", "carry")
    if given.carry:
        hosts.refuse("--carry reads each line after the one before it, so embed")
    with _together(saves=False), processes.alone_at(given.out):
        embed_file(layers=layers, together=True, **{name: getattr(given, name) for name in names})


def _keys(given, _) -> Found:
    from bertlab.catalogue import print_keys

    return Found({"keys": print_keys(given.pattern, given.markdown)})


def _models(given, _) -> Found:
    from bertlab.catalogue import print_models

    return Found({"models": print_models()})


def _init(given, _) -> None:
    from bertlab.own_project import write_project

    write_project(given.directory)


def _completion(given, _) -> None:
    from bertlab.completion import code_for

    print(code_for(given.shell))


if __name__ == "__main__":
    sys.exit(command())

"""Makes every call that changes a file fail once, over a short run: `python -m tests.faults.soak --seed=0 --minutes=30`.

The run is a preparation, trainings with checkpoints (of phases, a stream, two devices, two processes, every family, several
seeds), and what reads one and writes files. For each call in turn: the command with the fault ends within ten minutes with one
sentence and no traceback, or is killed there, and what stands under a final name is whole: as before, or as in the end. Then
the same command ends as if nothing had happened: the same files, with the same content but for times, and each files.json is
right.

Everything is imported once; each command runs in a fork, under `tests.faults.layer`. XLA starts in the forks only. Of the two
processes of a training each call may also be the last one of the process that makes it: the other ends too, and says why.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import pickle
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

from bertlab import checksums, cli
from bertlab.run import Run
from tests.faults.layer import FAULTS, KILLS, LOST, RANDOM, Layer, Point, libc

ROOT = Path(__file__).parents[2]
TIMES = ("seconds", "tokens_per_second")
SMALL = {
    "data.workers": 1, "data.tokenizer.vocab_size": 400, "data.valid_fraction": 0.1, "data.test_fraction": 0.1,
    "data.seq_len": 32, "data.batch_size": 8, "data.shuffle_window": 16, "mesh.data": 1, "model.width": 16, "model.layers": 1,
    "train.steps": 6, "train.log_every": 2, "train.eval_every": 3, "train.eval_batches": 1, "train.checkpoint_every": 2,
    "evaluate.sentences": 1,
}  # fmt: skip
CONFIG = f"{ROOT}/experiments/pretrain/bert.py:objectives=mlm,corpus=text:{{place}}/text.txt"


STUDY = """
from bertlab.studies.study import Study

def get_study(arguments=None):
    return Study(
        name="soaked", title="", question="?", config="{config}",
        axes={{"head": {{"A": {{}}, "B": {{"finetune.head.bilstm": 1}}}}, "seed": [1]}},
        overrides={overrides!r},
        downstream={{"trec": {{"task_data.directory": "{place}/task", "train.steps": 4, "data.batch_size": 4}}}},
    )
"""
OF_ONE = {
    **dict.fromkeys(("name", "title", "question", "command"), "s"),
    "axes": {},
    "downstream": [],
    "runs": [{"name": "a", "labels": {}, "downstream": {}}],
}
TAGS = """
from bertlab.transfer.tasks import table

TASK = table("number", train="tags.tsv", text="words", label="tags", kind="tagging")
"""


@dataclass(frozen=True)
class Stage:
    """A command: what it writes starts anew each time, from the undisturbed results of the stages before it.

    Attributes:
        name: its name.
        arguments: of the command, with {place} for the directory of all stages.
        writes: directory or file that it makes.
        devices: of the CPU.
        processes: that train one run together.
    """

    name: str
    arguments: Sequence[str]
    writes: str
    devices: int = 1
    processes: int = 1

    def faults(self, operation: str) -> Sequence[str]:
        """What can happen to an operation."""
        return FAULTS[operation] + ((LOST,) if self.processes > 1 else ())


def stages() -> list[Stage]:
    """The stages, each after those that it needs."""
    config = f"--config={CONFIG}"
    settings = [f"--config.{key}={value}" for key, value in SMALL.items()]
    cache = "--config.data.directory={place}/cache"
    of_text = [setting for setting in settings if setting.startswith("--config.data.")]
    phases = "--config.train.phases=0.5 data.seq_len=16; 0.5 data.seq_len=32"  # the second begins at step 3
    stream = [f"--config={ROOT}/experiments/pretrain/awd_lstm.py:corpus=text:{{place}}/text.txt", "--config.model.hidden=24"]
    recipes = {"elmo": "elmo.py:", "gpt": "gpt.py:", "modern": "modern.py:", "static": "static.py:objectives=skip_gram,"}
    of_family = {
        name: ["train", f"--config={ROOT}/experiments/pretrain/{recipe}corpus=text:{{place}}/text.txt", *settings, cache]
        for name, recipe in recipes.items()
    }
    of_family["static"] = [word for word in of_family["static"] if "model.layers" not in word]  # it has none
    families = [Stage(name, [*words, f"--workdir={{place}}/{name}/x"], name) for name, words in of_family.items()]
    seeds = ["--seeds=1,2", "--config.train.eval_every=0", "--workdir={place}/seeds"]
    two = ["--config.data.shards=2", "--config.mesh.data=2"]
    tokenizer = ["--kind=bpe", "--vocab_size=400", "--out={place}/tokenizer/x"]
    task = ["--run={place}/study/a", "--task=trec", "--config.task_data.directory={place}/task", "--config.train.steps=4"]
    task += ["--config.data.batch_size=4", "--config.train.checkpoint_every=2", "--config.train.eval_every=2"]
    return [
        Stage("prepare", ["prepare", "--corpus=text:{place}/text.txt", *of_text, cache], "cache"),
        Stage("train", ["train", config, *settings, cache, "--workdir={place}/study/a"], "study/a"),
        Stage("phases", ["train", config, *settings, cache, phases, "--workdir={place}/phased/x"], "phased"),
        Stage("stream", ["train", *stream, *settings, cache, "--workdir={place}/stream/x"], "stream"),
        Stage("mesh", ["train", config, *settings, cache, "--config.mesh.data=2", "--workdir={place}/mesh/x"], "mesh", 2),
        Stage("processes", ["train", config, *settings, cache, *two, "--workdir={place}/several/x"], "several", processes=2),
        *families,
        Stage("seeds", ["train", config, *settings, cache, *seeds], "seeds"),
        Stage("init", ["init", "{place}/own/project"], "own"),
        Stage("tokenizer", ["tokenizer", "train", "--corpus=text:{place}/text.txt", *tokenizer], "tokenizer"),
        Stage("export", ["export", "{place}/study/a", "--to=huggingface", "{place}/exported/x"], "exported"),
        Stage("import", ["import", "--from=huggingface", "{place}/exported/x", "--workdir={place}/imported/x"], "imported"),
        Stage("finetune", ["finetune", *task, "--recipe=bert", "--workdir={place}/tuned/x"], "tuned"),
        Stage("adapt", ["adapt", *task, "--recipe=same", "--workdir={place}/adapted/x"], "adapted"),
        Stage("evaluate", ["evaluate", "--run={place}/study/a", "--out={place}/scores/x.json"], "scores"),
        Stage("embed", ["embed", "--run={place}/study/a", "--text={place}/lines.txt", "--out={place}/e/x.npz"], "e"),
        Stage(
            "similarity",
            ["similarity", "--run={place}/study/a", "--words={place}/rated.txt", "--out={place}/rated/x.json"],
            "rated",
        ),
        Stage("probe", ["probe", "--run={place}/study/a", "--task={place}/tags.py", "--out={place}/probed/x.json"], "probed"),
        Stage("publish", ["publish", "{place}/of_one", "{place}/published"], "published"),
        Stage("evidence", ["evidence", "{place}/results", f"--studies={ROOT}/experiments/ablations"], "results"),
        Stage("report", ["report", "{place}/study/a"], "study/a"),
        Stage("sweep", ["sweep", "--study={place}/study.py", "--workdir={place}/swept"], "swept"),
        Stage(
            "adopt", ["sweep", "--study={place}/study.py", "--workdir={place}/adopted", "--published={place}/shared"], "adopted"
        ),
    ]


class Soak:
    """The undisturbed results of all stages in a directory, and the points of each."""

    def __init__(self, place: Path, names: Sequence[str] = ()):
        self.place, self.names = place, names
        self.points: dict[str, list[Point]] = {}
        self.before: dict[str, dict[str, str]] = {}
        self.whole: dict[str, dict[str, str]] = {}
        (place / "text.txt").write_text("\n\n".join(" ".join(topics[name].split()) for name in sorted(topics)[:40]))
        (place / "rated.txt").write_text("parser grammar 7\nfile text 5\nmodule number 2\n")
        (place / "tags.py").write_text(TAGS)
        (place / "tags.tsv").write_text(
            "words\ttags\n" + "".join(f"the file number {i} is read\tO N N O O O\n" for i in range(30))
        )
        (place / "lines.txt").write_text("a parser reads a file\nthe grammar\n")
        overrides = SMALL | {"data.directory": f"{place}/cache", "finetune.mesh.data": 1}
        (place / "study.py").write_text(STUDY.format(config=CONFIG.format(place=place), overrides=overrides, place=place))
        (place / "task").mkdir()
        for file, count in (("TREC.train.all", 24), ("TREC.test.all", 6)):
            lines = (f"{i % 2} {('What reads file', 'Who wrote module')[i % 2]} {i} ?\n" for i in range(count))
            (place / "task" / file).write_text("".join(lines))
        self.stages = [stage for stage in stages() if not names or stage.name in names]
        for stage in self.stages:
            if stage.name == "publish":  # a study of one run
                shutil.copytree(place / "study" / "a", place / "of_one" / "a")
                (place / "of_one" / "study.json").write_text(json.dumps(OF_ONE))
                (place / "of_one" / "a" / "job.json").write_text("{}")
            if stage.name == "adopt":
                from bertlab.studies.published import publish

                publish(place / "swept", place / "shared")
            if stage.name == "evidence":
                shutil.copytree(place / "published", place / "results" / "s")
            if (place / stage.writes).exists():
                shutil.copytree(place / stage.writes, self._before(stage))
            self.before[stage.name] = contents(place / stage.writes)
            layer = Layer([place / stage.writes])
            status, said = self.run(stage, layer)
            assert status == 0, f"{stage.name} undisturbed: {status}\n{said}"
            early = [path for path in layer.unsynchronised if "/checkpoints/" not in path]  # Orbax leaves small files to chance
            assert not early, f"{stage.name}: these got their name before they were on the disk: {early}"
            self.points[stage.name] = list(dict.fromkeys(layer.points))
            self.whole[stage.name] = self.state(stage)
            shutil.copytree(place / stage.writes, self._after(stage))

    def _before(self, stage: Stage) -> Path:
        return self.place / f"{stage.name}.before"

    def _after(self, stage: Stage) -> Path:
        return self.place / f"{stage.name}.after"

    def run(self, stage: Stage, layer: Layer) -> tuple[int | None, str]:
        """Runs a stage's command under a layer; its exit status and what it printed to both outputs."""
        said = self.place / "said.txt"

        def command() -> int:
            with said.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.chdir(self.place)
            arguments = [argument.format(place=self.place) for argument in stage.arguments]
            if stage.processes > 1:
                return together(arguments, stage.processes)
            if stage.devices > 1:
                import jax

                jax.config.update("jax_num_cpu_devices", stage.devices)
                jax.config.update("jax_enable_compilation_cache", False)  # jax 0.10 may hang when it loads such programs
            status = cli.main(arguments)
            sys.stdout.flush()
            return status

        return layer.run(command), said.read_text(errors="replace")

    def state(self, stage: Stage) -> dict[str, str]:
        """Names below what a stage wrote -> a digest of their content; of the last checkpoint, a digest of its arrays."""
        top = self.place / stage.writes
        found = contents(top)
        for steps in top.rglob("checkpoints"):
            found["arrays"] = in_fork(lambda steps=steps: arrays(steps))
        return found

    def restore(self, stage: Stage, after: bool = False) -> None:
        """Puts back what stood where a stage writes before it ran, or after."""
        top, source = self.place / stage.writes, self._after(stage) if after else self._before(stage)
        shutil.rmtree(top, ignore_errors=True)
        if source.exists():
            shutil.copytree(source, top)

    def attempt(self, stage: Stage, point: Point, fault: str) -> tuple[str, str]:
        """Makes a call fail, then runs the command again.

        Returns:
            "survived", or "not met" if the call did not happen, and "", or what is wrong. A command that ends with 0 in spite
            of the fault must have done all its work; else the same command again must.
        """
        self.restore(stage)
        try:
            layer = Layer([self.place / stage.writes], point, fault)
            status, said = self.run(stage, layer)
            if wrong := self._wrong(stage, status, said, fault):
                return "failed", f"{wrong}\n{said[-3000:]}"
            again, said = (0, said) if status == 0 else self.run(stage, Layer([]))
            # What appears in one move may have appeared before the fault; import, export and tokenizer training then refuse it.
            if again != 0 and not (again == 2 and "is not empty; name a new directory" in said):
                return "failed", f"the same command again ends with {again}\n{said[-3000:]}"
            state, whole = self.state(stage), self.whole[stage.name]
            if state != whole:
                differ = sorted(name for name in {**state, **whole} if state.get(name) != whole.get(name))
                return (
                    "failed",
                    f"after status {status}, the same command again leaves other files: {differ[:9]}\n{said[-900:]}",
                )
            if damage := listed_wrongly(self.place / stage.writes):
                return "failed", f"the same command again leaves {damage}"
            return ("survived" if layer.met else "not met"), ""
        finally:
            self.restore(stage, after=True)

    def _wrong(self, stage: Stage, status: int | None, said: str, fault: str) -> str:
        """What a command may not leave behind after a fault."""
        killed = fault in KILLS and status == -signal.SIGKILL
        if status not in (0, 1, 2) and not killed:
            return f"it ends with status {status}"
        if "Traceback" in said:
            return f"it ends with status {status} and a traceback"
        own = r"bertlab[: ]|\d+ of \d+ runs failed; run the same command again"  # a sweep's sentences are above its last line
        if status and not killed and not re.match(own, said.splitlines()[-1]):
            return "its last line is not its own sentence"
        # A process that is killed, or may write no more, cannot clean up.
        cleans_up = fault not in (*KILLS, LOST, "EROFS")
        return not_whole(self.place / stage.writes, (self.before[stage.name], self.whole[stage.name]), cleans_up)


# These change while a command is at work, or hold times; the log of a sweep's run has lines of each attempt.
PASSING = (".partial", "environment.json", "files.json", ".lock", "log.txt")
GROWING = ("/metrics.jsonl", "/costs.json", "/alive.txt", "/failed.txt")
REPLACED = ("/predictions/valid.jsonl",)  # by each evaluation, as a whole
UNNAMED = (
    "/.preparing",
    ".part/",
    "/.writable",
    "/adopting",
    "/tmp",
    ".orbax-checkpoint-tmp",
)  # folders that get their name later


def files_of(top: Path) -> Iterator[tuple[str, Path]]:
    """The files below a directory, each with a name without what is random."""
    for path in sorted(top.rglob("*")):
        name = f"/{path.relative_to(top)}"
        for pattern, plain in RANDOM:
            name = re.sub(pattern, plain, name)
        if path.is_file():
            yield name, path


def contents(top: Path) -> dict[str, str]:
    """Names below a directory -> a digest of their content, but for what passes; no digest of parts of checkpoints."""
    named = [(name, path) for name, path in files_of(top) if not name.endswith(PASSING)]
    return {name: "" if "/checkpoints/" in name else digest(path) for name, path in named}


def not_whole(top: Path, known: Sequence[dict[str, str]], cleans_up: bool) -> str:
    """What a command that was disturbed left half-written below a directory; "" if nothing.

    Args:
        top: the directory.
        known: the `contents` that it may have, each file one of them.
        cleans_up: the process could remove what it had begun.
    """
    for name, path in files_of(top):
        if cleans_up and name.endswith(".partial"):
            return f"{path} is left over"
        if any(part in name for part in UNNAMED) or "/checkpoints/" in name or name.endswith(".partial"):
            continue
        passes = name.endswith((*PASSING, *GROWING))
        try:
            if path.suffix == ".json":  # may change while a command is at work
                json.loads(path.read_text())
            elif name.endswith(REPLACED):
                digest(path)
            elif not passes and digest(path) not in [of.get(name) for of in known]:
                return f"{path} is neither as before nor as in the end"
        except ValueError:
            return f"{path} is not whole"
        except FileNotFoundError:  # removed by another process of the command
            continue
    return listed_wrongly(top)


def listed_wrongly(top: Path) -> str:
    """The file that is not as its folder's files.json says; "" if there is none.

    Of checkpoints only the newest counts: the removal of an older one may have been the call that failed.
    """
    lists = ((name, path) for name, path in files_of(top) if path.name == checksums.LIST)
    folders = {path.parent for name, path in lists if not any(part in name for part in ("/checkpoints/", *UNNAMED))}
    for steps in [path for path in top.rglob("checkpoints") if path.is_dir()]:
        folders |= {steps / str(step) for step in Run(steps.parent).steps()[-1:]}
    damage = next(filter(None, map(checksums.find_damage, sorted(folders))), None)
    return "{} is damaged ({})".format(*damage) if damage else ""


def digest(path: Path) -> str:
    """Of a file's content, without times."""
    content = path.read_bytes()
    if path.suffix in (".json", ".jsonl"):
        timeless = lambda pairs: {key: value for key, value in pairs if key not in TIMES}
        lines = [content] if path.suffix == ".json" else content.splitlines()
        values = [json.loads(line, object_pairs_hook=timeless) for line in lines]
        content = json.dumps(values, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def arrays(steps: Path) -> str:
    """A digest of the arrays of the last checkpoint."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    last = max((path for path in steps.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        saved = checkpointer.metadata(last / "state").item_metadata.tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), saved)  # whatever devices it was saved from
        tree = checkpointer.restore(last / "state", args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        found.update(jax.tree_util.keystr(path).encode() + np.asarray(leaf).tobytes())
    return f"{last.name} {found.hexdigest()}"


def together(arguments: Sequence[str], count: int) -> int:
    """Runs a command in several processes that train one run, and waits for all that they started.

    Returns:
        0 if all ended so; else the status of the first that ended otherwise and was not killed, 1 if there is none.
    """
    from bertlab.hosts import ADDRESS, COUNT, INDEX

    libc.prctl(36, 1, 0, 0, 0)  # what a killed process started becomes a child of this one
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    code = "import sys; from bertlab import cli; sys.exit(cli.main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), ADDRESS: address, COUNT: str(count)}
    environment["JAX_ENABLE_COMPILATION_CACHE"] = "0"  # as for several devices
    started = [
        subprocess.Popen([sys.executable, "-c", code, *arguments], env={**environment, INDEX: str(i)}) for i in range(count)
    ]
    ended = [process.wait() for process in started]
    with contextlib.suppress(ChildProcessError):  # those that print their last lines
        while True:
            os.wait()
    return 0 if not any(ended) else next((status for status in ended if status > 0), 1)


def in_fork(function: Callable[[], str]) -> str:
    """Calls a function in a fork, which may start XLA."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, pickle.dumps(function()))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        found = answer.read()
    os.waitpid(child, 0)
    return pickle.loads(found)


def turns(soak: Soak, seed: int) -> Iterator[tuple[Stage, Point, str]]:
    """The stages in turn, each with the next of its points and faults, until none has another."""
    orders = [_in_random_order(stage, soak.points[stage.name], random.Random(f"{seed} {stage.name}")) for stage in soak.stages]
    for each in itertools.zip_longest(*orders):
        yield from filter(None, each)


def _in_random_order(stage: Stage, points: Sequence[Point], generator: random.Random) -> Iterator[tuple[Stage, Point, str]]:
    """Every point of a stage once, with one of its faults; then every point with another, and so on."""
    calls = [(point, generator.sample(of := stage.faults(point.operation), len(of))) for point in points]
    for turn in range(max((len(order) for _, order in calls), default=0)):
        for point, order in generator.sample(calls, len(calls)):
            if turn < len(order):
                yield stage, point, order[turn]


def prepare_process() -> None:
    """Imports what the commands import, so that a fork starts at once."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import bertlab.data.prepare
    import bertlab.interop
    import bertlab.studies.published
    import bertlab.studies.report
    import bertlab.transfer.load
    import bertlab.transfer.pretrain  # noqa: F401


def main() -> int:
    """Prints a line for each failure, and counts by operation and fault; the exit status is 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the order (default 0)")
    parser.add_argument("--minutes", type=float, default=30, help="time budget (default 30)")
    parser.add_argument("--points", type=int, default=sys.maxsize, help="most faults (default: as the time allows)")
    parser.add_argument("--stages", default="", help="stages, joined by commas (default all)")
    parser.add_argument("--only", default="", help="a part, as a regular expression, of STAGE/OPERATION:FILE#NUMBER=FAULT")
    given = parser.parse_args()
    begun, counts, failures = time.monotonic(), Counter(), 0
    with tempfile.TemporaryDirectory(prefix="bertlab-soak-") as place:
        os.environ |= {"JAX_COMPILATION_CACHE_DIR": f"{place}/programs", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        prepare_process()
        soak = Soak(Path(place), [name for name in given.stages.split(",") if name])
        number = {stage.name: len(soak.points[stage.name]) for stage in soak.stages}
        print(f"{sum(number.values())} calls change a file: {number}, after {time.monotonic() - begun:.0f} s", flush=True)
        for stage, point, fault in turns(soak, given.seed):
            shown = f"{stage.name}/{point}={fault}"
            if not re.search(given.only, shown):
                continue
            if counts.total() >= given.points or time.monotonic() - begun > 60 * given.minutes:
                break
            outcome, wrong = soak.attempt(stage, point, fault)
            counts[point.operation, fault, outcome] += 1
            if outcome == "failed":
                failures += 1
                print(f"FAILED {shown}: {wrong}", flush=True)
    print(f"{'operation':<10}{'fault':<8}{'survived':>10}{'not met':>10}{'failed':>8}")
    for operation, fault in sorted({key[:2] for key in counts}):
        of = [counts[operation, fault, outcome] for outcome in ("survived", "not met", "failed")]
        print(f"{operation:<10}{fault:<8}{of[0]:>10}{of[1]:>10}{of[2]:>8}")
    print(f"{sum(counts.values())} faults in {time.monotonic() - begun:.0f} s with seed {given.seed}: {failures} failed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())

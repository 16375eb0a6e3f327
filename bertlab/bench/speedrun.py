"""The speed run: how soon does an encoder that predicts masked tokens reach a fixed held-out loss?

    bertlab speedrun bert --corpus='text:wiki/wiki-train-0*.jsonl.xz' --seeds=1,2,3

experiments/speedrun/README.md has the rules. The command sets text, tokenizer, evaluation and seeds (`TRACK`); an entry decides
everything else in its config. The clock runs while the entry trains, and stops while it compiles or is evaluated.
"""

import contextlib
import dataclasses
import datetime
import fnmatch
import hashlib
import json
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from bertlab import objectives
from bertlab.config import base_config, flatten, load_config, not_default, set_key
from bertlab.data.batches import eval_batches
from bertlab.data.formats import row_length
from bertlab.data.prepare import prepare
from bertlab.data.prepared import Prepared
from bertlab.errors import UserError
from bertlab.files import read_json, write_json, write_text
from bertlab.machine import describe_machine
from bertlab.models.presets import model_shape
from bertlab.objectives.choosing import at_positions
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.studies.evidence import markdown_table
from bertlab.studies.statistics import compare_variants
from bertlab.studies.text import count_text, p_text
from bertlab.train.build import Experiment, build_pretraining
from bertlab.train.checks import check_config, check_devices
from bertlab.train.choice import with_attention
from bertlab.train.environment import describe_environment
from bertlab.train.loop import Session, with_warmup
from bertlab.train.optimizers import evaluation_params
from bertlab.train.phases import weights_of
from bertlab.train.sharding import put_batch
from bertlab.transfer.likelihood import ways_of

FOLDER = Path("experiments/speedrun")
BASELINE = "bert"
# What the command decides, and an entry leaves alone.
FIXED = ("data.corpus", "data.tokenizer.*", "data.tfds.*", "data.synthetic.*", "data.characters", "data.directory", "data.seed")
FIXED += ("data.valid_fraction", "data.test_fraction", "train.eval_*", "train.budget", "train.checkpoint_every", "train.keep*")
FIXED += ("evaluate.*", "mesh.*", "init_*", "seed", "profile", "writers")
FIXED += ("optimizer.average_after", "objectives.*.implementation")  # held-out losses; code outside the config
# Every hidden token is [MASK]: nothing can be copied, so objectives with other corruptions are asked the same.
MASK = MaskedLanguageModel(rate=0.15, mask_share=1.0, random_share=0.0)
BEGIN, END = "<!-- table: made by `bertlab speedrun --table` -->", "<!-- end of table -->"


@dataclasses.dataclass(frozen=True)
class Track:
    """What all entries have in common.

    Attributes:
        settings: config keys of text, tokenizer and splits.
        text: `text_digest` of the prepared text; "" for any text.
        target: held-out loss in nats per hidden token.
        every: positions read (padding included) from one evaluation to the next.
        batches: held-out batches of 32 rows.
        length: positions of a held-out row.
        cores: of a CPU.
    """

    settings: Mapping[str, Any]
    text: str
    target: float
    every: int = 2**18
    batches: int = 32
    length: int = 128
    cores: int = 2


TRACK = Track(
    settings={"data.tokenizer.vocab_size": 2048, "data.valid_fraction": 0.1, "data.test_fraction": 0.1},
    text="4c26ab356ffdc79f",
    target=4.0,
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """An entry's file: `get_config()`, and a docstring whose first paragraph says what made it faster."""

    folder: Path
    name: str

    @property
    def file(self) -> Path:
        return self.folder / "entries" / f"{self.name}.py"

    def require(self) -> None:
        """Refuses an entry that does not exist. Raises: UserError: names its file and the entries that there are."""
        if not self.file.is_file():
            names = ", ".join(entry.name for entry in entries(self.folder))
            raise UserError(f"{self.name}: {self.file} is missing; write it, or choose one of {names or 'none'}")

    def config(self):
        """Its config. Raises: UserError: as `require`."""
        self.require()
        return load_config(str(self.file))

    @property
    def why(self) -> str:
        """What made it faster: the first paragraph of its docstring."""
        docstring = re.match(r'\s*"""(.*?)"""', self.file.read_text(encoding="utf-8"), re.S)
        return " ".join(docstring[1].strip().partition("\n\n")[0].split()) if docstring else ""

    def results(self) -> list[Path]:
        """Its result files."""
        return sorted((self.folder / "results" / self.name).glob("*.json"))


def entries(folder: Path) -> list[Entry]:
    """All entries, BERT's own recipe first."""
    names = sorted(path.stem for path in (folder / "entries").glob("*.py"))
    return [Entry(folder, name) for name in sorted(names, key=lambda name: name != BASELINE)]


def speedrun(name: str, corpus: str, seeds: Sequence[int], folder: Path = FOLDER, track: Track | None = None) -> list[dict]:
    """Measures an entry with each seed, and writes a result file for each and the table.

    Seeds that this machine has measured are left. With another text than the track's, nothing is written: it is a trial.

    Args:
        name: of the entry.
        corpus: as `config.data.corpus`.
        seeds: of initial values, masks and the order of the text.
        folder: with `entries` and `results`.
        track: None: `TRACK`.

    Returns:
        The new results.

    Raises:
        UserError: the entry breaks a rule, the machine is of another class, or earlier results are of another config.
    """
    entry, track = Entry(folder, name), track or TRACK
    config = entry.config()
    check_rules(config, track)
    here, digest = machine_class(track), config_digest(config)
    files = {seed: folder / "results" / name / f"{re.sub('[^a-z0-9]+', '-', here.lower())}-seed={seed}.json" for seed in seeds}
    for file in entry.results():
        check_result(file, digest, track)
    for key, value in {**track.settings, "data.corpus": corpus}.items():
        set_key(config, key, value)
    check_config(config)
    check_devices(config)
    prepared = prepare(config.data)
    counts = not track.text or text_digest(prepared) == track.text
    if not counts:
        print(f"--corpus={corpus} is not the speed run's text ({text_digest(prepared)}), so no result is written", flush=True)
    found = []
    for seed in [seed for seed, file in files.items() if not (counts and file.exists())]:
        config.seed = config.data.seed = seed
        print(f"{name}, seed {seed}, on {here}", flush=True)
        result = {"entry": name, "seed": seed, "machine": here, "date": datetime.date.today().isoformat(), "config": digest}
        result |= {"text": text_digest(prepared), **race(config, prepared, track), "environment": environment()}
        found.append(result)
        if counts:
            write_json(files[seed], result)
    if counts:
        write_table(folder, track)
    return found


def check_rules(config, track: Track) -> None:
    """Refuses an entry that changes what the command decides, or that predicts no masked tokens.

    Raises:
        UserError: names the key.
    """
    default = flatten(base_config())
    for key, value in flatten(config).items():
        if any(fnmatch.fnmatchcase(key, pattern) for pattern in FIXED) and value != default.get(key):
            raise UserError(f"config.{key}={value!r}: the speed run decides this; leave it at {default.get(key)!r}")
    if not config.train.steps:
        raise UserError("config.train.steps=0 trains nothing; set the most steps that the entry may take")
    way(config)
    shape = model_shape(config.model, vocab_size=1)
    if getattr(shape, "position_encoding", "") == "learned" and shape.max_positions < track.length:
        raise UserError(
            f"config.model.max_positions={shape.max_positions}: held-out rows have {track.length} positions; raise it"
        )


def way(config) -> tuple[str, str]:
    """The trained objective that predicts hidden tokens, and the way in which it does (`bertlab.objectives.base.WAYS`).

    Raises:
        UserError: there is none.
    """
    built = objectives.build(config.objectives)
    trained = ways_of({name: of for name, of in built.items() if any(weights_of(config.objectives[name]))})
    for found in ("at the mask", "before the mask"):
        if found in trained:
            return trained[found], found
    raise UserError(
        f"config.objectives={'+'.join(built) or 'none'}: the speed run asks for hidden tokens, and none of them predicts a"
        " token at [MASK] or before it; train one that does, such as mlm"
    )


def machine_class(track: Track) -> str:
    """The name of this machine's class: one GPU, or a CPU with the track's cores.

    Raises:
        UserError: the process may use more or fewer devices or cores.
    """
    if (backend := jax.default_backend()) != "cpu":
        if (count := jax.device_count()) != 1:
            raise UserError(f"the speed run takes one {backend}, and JAX found {count}; show it one: CUDA_VISIBLE_DEVICES=0")
        return jax.devices()[0].device_kind
    found = describe_machine()
    if found["cores"] != track.cores:
        raise UserError(
            f"the speed run takes {track.cores} cores, and this process may use {found['cores']}; start it with taskset -c"
            f" 0-{track.cores - 1}"
        )
    return f"{found['processor']}, {track.cores} cores"


def config_digest(config) -> str:
    """Of all that decides the training: the settings that are not at their defaults. New keys of bertlab change nothing."""
    return hashlib.blake2b(json.dumps(not_default(config), sort_keys=True).encode(), digest_size=8).hexdigest()


def text_digest(prepared: Prepared) -> str:
    """Of a text as all entries read it: its pieces, how often each occurs, and the sizes of the splits."""
    content = [prepared.tokenizer.pieces(), prepared.counts.tolist(), prepared.statistics]
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


def environment() -> dict:
    """Versions and commit."""
    found = describe_environment()
    packages = {name: found["packages"][name] for name in ("jax", "jaxlib", "flax", "optax", "numpy")}
    return {"packages": packages} | {key: found[key] for key in ("python", "git_commit", "git_changed_files")}


def race(config, prepared: Prepared, track: Track) -> dict:
    """Trains until the first evaluation at or below the target, or to the end of `train.steps`.

    Returns:
        `reached`; the `seconds` of training, `steps`, `positions`, `tokens`, `supervised` and `flops` until then; the `loss` on
        valid and `test_loss` there; the `target`; and the `curve` of [seconds, positions, loss] of every evaluation.
    """
    experiment = build_pretraining(config)
    name, how = way(config)
    rows = base_config().data
    rows.update(format="full_sentences", seq_len=track.length)
    held_out = {split: eval_batches(prepared, rows, split, track.batches) for split in ("valid", "test")}
    with tempfile.TemporaryDirectory() as folder:
        experiment = with_warmup(with_attention(experiment), Path(folder))
        with contextlib.closing(Session(experiment, Path(folder))) as session:
            measure = build_measure(experiment, session.mesh, name, how)
            curve, positions, train_steps = [], 0, session.compile_training()
            evaluate = lambda split: measure(evaluation_params(session.state.opt_state, session.state.params), held_out[split])
            session.start_clock()
            while not (curve and curve[-1][-1] <= track.target) and session.step < config.train.steps:
                session.advance(train_steps)
                positions += session.phase.data.batch_size * row_length(session.phase.data)
                due = positions // track.every > (curve[-1][1] if curve else 0) // track.every
                due, next_phase = due or session.step == config.train.steps, session.phase is not experiment.phase(session.step)
                if not (due or next_phase):
                    continue
                session.fetch()
                if due:
                    curve.append([round(session.record.progress.seconds, 3), positions, evaluate("valid")])
                    print("{:8.1f} s  {:>12,} positions  loss {:.4f}".format(*curve[-1]), flush=True)
                if next_phase:
                    session.enter(experiment.phase(session.step))
                    train_steps = session.compile_training()
                session.start_clock()
            reached = curve[-1][-1] <= track.target
            totals = {"steps": session.step, "positions": positions, **session.record.progress.axes()}
            losses = {"loss": curve[-1][-1], "test_loss": evaluate("test"), "target": track.target}
    return {"reached": reached, **totals, **losses, "curve": curve}


def build_measure(experiment: Experiment, mesh, name: str, how: str) -> Callable[[Any, Sequence[Mapping]], float]:
    """The held-out loss, (params, batches) -> nats per hidden token: the same tokens are hidden for every entry.

    Args:
        experiment: the entry's.
        mesh: of its devices.
        name, how: from `way`.
    """
    program, shift = experiment.program, int(how == "before the mask")

    @jax.jit
    def sums(params, batch, index):
        view = MASK.view(batch, jax.random.fold_in(jax.random.key(0), index), program.vocabulary, jnp.float32(1))
        logits = program.token_logits(params, view, name, "both").astype(jnp.float32)
        chosen = jax.nn.log_softmax(at_positions(logits, jnp.maximum(view["masked_positions"] - shift, 0)))
        nats = -jnp.take_along_axis(chosen, view["masked_labels"][..., None], axis=-1)[..., 0]
        return jnp.where(view["masked_weights"] > 0, nats, 0.0).sum(), (view["masked_weights"] > 0).sum()

    def measure(params, batches) -> float:
        with jax.set_mesh(mesh):
            found = [sums(params, put_batch(mesh, batch, whole=True), np.int32(i)) for i, batch in enumerate(batches)]
        total, count = np.sum(np.array(jax.device_get(found), float), axis=0)
        return float(total / count)

    return measure


def check_result(file: Path, digest: str, track: Track) -> dict:
    """A result file.

    Raises:
        UserError: it is of another config, text or target than the entry and the track have now, or its evaluations say another
            time or end.
    """
    result = read_json(file)
    expected = {"config": digest, "target": track.target, "text": track.text or result["text"]}
    for key, value in expected.items():
        if result[key] != value:
            raise UserError(f"{file}: its {key} is {result[key]!r}, and now it is {value!r}; delete the file and measure again")
    *before, (seconds, _, loss) = result["curve"]
    ends = {"seconds": round(result["seconds"], 3) == seconds, "loss": result["loss"] == loss}
    ends["reached"] = result["reached"] == (loss <= track.target) and all(of > track.target for *_, of in before)
    if wrong := [key for key, right in ends.items() if not right]:
        raise UserError(f"{file}: {wrong[0]} is not what the file's curve says; delete the file and measure again")
    return result


def write_table(folder: Path = FOLDER, track: Track | None = None) -> None:
    """Replaces the table in the folder's README.md by one of the committed result files.

    Raises:
        UserError: a result is not of its entry's config, or the README has no place for the table.
    """
    page = folder / "README.md"
    text = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"{page} has no lines {BEGIN} and {END}; add them where the table shall be")
    write_text(page, f"{before}{BEGIN}\n\n{table(folder, track or TRACK)}\n\n{END}{after}")


def table(folder: Path, track: Track) -> str:
    """A table for each machine, in the order of records, and the entries that were not measured."""
    known = entries(folder)
    found = [check_result(file, config_digest(entry.config()), track) for entry in known for file in entry.results()]
    for entry, machine in sorted({(result["entry"], result["machine"]) for result in found}):
        seeds = sorted(result["seed"] for result in found if (result["entry"], result["machine"]) == (entry, machine))
        if seeds != list(range(1, len(seeds) + 1)):
            raise UserError(f"{folder}: {entry} on {machine} has seeds {seeds}; measure 1, 2, 3 and so on, and leave none out")
    parts = [f"**{name}**\n\n{of_machine(name, found, known)}" for name in sorted({result["machine"] for result in found})]
    heads = ("Entry", "Time", "What made it faster")
    missing = [(entry.name, "not measured", entry.why) for entry in known if not entry.results()]
    return "\n\n".join(parts + ([markdown_table(pd.DataFrame(missing, columns=heads))] if missing else []))


def of_machine(name: str, results: Sequence[dict], known: Sequence[Entry]) -> str:
    """The table of one machine. Times are geometric means; p is Welch's on log time against the fastest entry above.

    The first entry that reaches the target is a record, and so is a faster one with p < 0.05. An entry that did not reach the
    target with every seed took longer than its runs: ">" marks a bound.
    """
    by_entry = {entry: [r for r in results if (r["entry"], r["machine"]) == (entry.name, name)] for entry in known}
    by_entry = {entry: of for entry, of in by_entry.items() if of}
    logs = {entry: np.log([r["seconds"] for r in of]) for entry, of in by_entry.items()}
    bound = {entry: "" if all(r["reached"] for r in of) else "> " for entry, of in by_entry.items()}
    dates = {entry: min(r["date"] for r in of) for entry, of in by_entry.items()}
    order = sorted(by_entry, key=lambda entry: (entry.name != BASELINE, dates[entry], -logs[entry].mean()))
    rows, fastest, first = [], None, order[0]
    for entry in order:
        of, mean, p = by_entry[entry], logs[entry].mean(), math.nan
        if fastest is not None and not bound[entry] and min(len(of), len(by_entry[fastest])) > 1:
            both = [pd.Series(logs[e], [f"{e.name} {r['seed']}" for r in by_entry[e]]) for e in (entry, fastest)]
            p = compare_variants(*both, (entry.name, fastest.name)).p
        faster = not bound[entry] and (fastest is None or mean < logs[fastest].mean())
        has_speed = first.name == BASELINE and not bound[entry]
        mean_of = lambda key, of=of: count_text(float(np.mean([r[key] for r in of])))
        rows.append(
            {
                "Entry": entry.name,
                "Time": f"{bound[entry]}{math.exp(mean):.1f} s",
                "Speed (BERT: 1)": f"{bound[first]}{math.exp(logs[first].mean() - mean):.2f}" if has_speed else "–",
                "Seeds": len(of),
                "p": p_text(p),
                "Record": "yes" if faster and (fastest is None or p < 0.05) else "",
                **{head: mean_of(head.lower()) for head in ("Steps", "Tokens", "FLOPs")},
                "Loss on test": f"{np.mean([r['test_loss'] for r in of]):.3f}",
                "Date": dates[entry],
                "What made it faster": entry.why,
            }
        )
        fastest = entry if faster else fastest
    return markdown_table(pd.DataFrame(rows))

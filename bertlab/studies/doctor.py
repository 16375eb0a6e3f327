"""`bertlab doctor RUN`: whether a run looks right, judged from its log and its files.

A check is a function of `Facts`, registered under the statement that holds if it finds nothing. It returns a `Finding` or None,
and raises `CannotTell` if the run did not record what it needs. Limits are chosen so that runs that did well stay silent.
"""

import bisect
import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from rich.table import Table
from rich.text import Text

from bertlab import checksums
from bertlab.console import Console
from bertlab.data.facts import constant_labels, unique_tokens
from bertlab.data.formats import FORMATS, Format
from bertlab.errors import UserError
from bertlab.models.presets import FAMILIES
from bertlab.run import Run, StudyDirectory
from bertlab.studies import held_out
from bertlab.train.phases import phase_configs, weights_of

# Before that many updates a model may be expected to know little: a tiny BERT leaves the unigram entropy after about 150.
MANY_STEPS = 300
PAIRS = 200  # the fewest of which an accuracy is judged: two standard errors are 0.07
PADDING = 0.3  # pairs of segments from short documents are padded by a fifth and more
DUPLICATES = {"documents": 0.01, "sentences": 0.1}  # Python's documentation has 0 and 0.035
UNKNOWN, UNKNOWN_WORDS = 0.01, 0.05  # the Penn Treebank of language models has 0.048 of its words unknown
APART, APART_NATS = 0.1, 0.1  # held-out above training loss: share and nats
RISE, RISE_NATS = 0.02, 0.02  # above the lowest held-out loss: share and nats
CLIPPED = 10  # times config.optimizer.clip_norm; two or three times are common in runs that do well
EXPLODED = 10  # times the median gradient norm
SLOWED = 3  # times slower than the median
LINES = 4  # the fewest log lines that show a trend


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that looks wrong.

    Attributes:
        seen: What was seen, with its numbers.
        advice: What to do.
    """

    seen: str
    advice: str

    def __str__(self) -> str:
        return f"{self.seen}; {self.advice}."


class CannotTell(Exception):
    """The run did not record what a check needs; the message says what, as a clause."""


Check = Callable[["Facts"], Finding | None]
CHECKS: dict[str, Check] = {}
"""Statement that holds if nothing is found -> its check."""


def check(statement: str) -> Callable[[Check], Check]:
    """Registers a check."""
    return lambda function: CHECKS.setdefault(statement, function)


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a run directory holds.

    Attributes:
        directory: The run's.
        config: config.json; {} without one.
        lines: Of metrics.jsonl, in order of step.
        result, data, floor: result.json, data.json and floor.json; None without one.
        failure: The last line of failed.txt, or of diverged.txt; "" without one.
        imported: Whether the weights were trained elsewhere.
        step: The step at which the run is judged; None for its last. Lines after it, results and floors are left out.
        damages: What is damaged in its files and checkpoints, named; None if it has no files.json.
    """

    directory: Path
    config: Mapping[str, Any]
    lines: list[dict[str, Any]]
    result: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    floor: Mapping[str, Mapping[str, Any]] | None = None
    failure: str = ""
    imported: bool = False
    step: int | None = None
    damages: Sequence[str] | None = None

    @functools.cached_property
    def train(self) -> list[dict[str, Any]]:
        """Log lines of training."""
        return [line for line in self.lines if line["split"] == "train"]

    @functools.cached_property
    def valid(self) -> list[dict[str, Any]]:
        """Log lines of the validation split."""
        return [line for line in self.lines if line["split"] == "valid"]

    @property
    def held_out(self) -> dict[str, Any]:
        """The last line of the validation split."""
        if not self.valid:
            raise CannotTell("metrics.jsonl has no line of the valid split")
        return self.valid[-1]

    @property
    def recorded(self) -> Mapping[str, Any]:
        """data.json."""
        if self.data is None:
            raise CannotTell("data.json is missing (`bertlab train` writes it when a run begins)")
        return self.data

    def setting(self, name: str, default: Any = None) -> Any:
        """A key of the config by its dotted name, such as "optimizer.clip_norm"."""
        value = self.config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return default if value is None else value

    @functools.cached_property
    def phases(self) -> list[tuple[int, dict[str, float]]]:
        """(steps done at its end, the weight that each objective ends with) of each phase; [] if not recorded."""
        if not self.config.get("objectives") or not self.config.get("train"):
            return []
        config = ConfigDict(self.config)
        config.train.phases = self.setting("train.phases", "")
        return [(end, {n: weights_of(e)[1] for n, e in phase.objectives.items()}) for end, phase in phase_configs(config)]

    @functools.cached_property
    def trained_since(self) -> dict[str, int]:
        """The objectives that are in the loss at the last held-out line -> the step since which they are.

        An objective that is no longer trained may be forgotten by design.
        """
        if not self.phases:
            return {key.removesuffix("/loss"): 0 for key in self.held_out if key.endswith("/loss")}
        begin, since = 0, {}
        for end, weights in self.phases:
            since = {name: since.get(name, begin) for name, weight in weights.items() if weight}
            begin = end
            if self.held_out["step"] <= end:
                break
        return since

    def judged(self, names: Iterable[str], long: bool = False) -> list[str]:
        """The objectives among `names` that are trained, or `long` enough that much can be expected.

        Raises:
            CannotTell: There is none.
        """
        step = self.held_out["step"]
        trained = [name for name in names if name in self.trained_since]
        if not trained:
            raise CannotTell(f"{' and '.join(names)} had no weight in the loss at step {step:,}")
        warmup = self.setting("optimizer.warmup_steps", 0)
        least = {name: max(self.trained_since[name] + MANY_STEPS, 2 * warmup) for name in trained}
        if not long:
            return trained
        if not (kept := [name for name in trained if step >= least[name]]):
            wait = f"little can be expected of {' and '.join(trained)} at step {step:,}, before step {min(least.values()):,}"
            raise CannotTell(wait)
        return kept

    @property
    def objectives(self) -> Mapping[str, Mapping[str, Any]]:
        """What data.json says of each objective: what it asks, its labels and its loss at guessing."""
        if "objectives" not in self.recorded:
            raise CannotTell("data.json is from an older version and says nothing about the objectives")
        return self.recorded["objectives"]

    def token_losses(self, long: bool = False) -> dict[str, float]:
        """Held-out loss by objective, of those that predict tokens and are `judged`."""
        losses = self.all_token_losses
        return {name: losses[name] for name in self.judged(losses, long)}

    @property
    def all_token_losses(self) -> dict[str, float]:
        """Held-out loss by objective, of those that predict tokens."""
        losses = held_out.token_losses(self.held_out, held_out.token_objectives(self.recorded))
        if not losses:
            raise CannotTell("data.json names no objective that predicts tokens")
        return losses

    @functools.cached_property
    def windows(self) -> list[tuple[int, dict[str, Any]]]:
        """Training lines with the step at which each begins, except those that the end of the run or a phase cut short."""
        begins = [0, *(line["step"] for line in self.train)]
        longest = max((line["step"] - begin for begin, line in zip(begins, self.train)), default=0)
        return [(begin, line) for begin, line in zip(begins, self.train) if line["step"] - begin >= longest / 2]

    def settled(self, key: str) -> list[list[tuple[int, dict[str, Any]]]]:
        """`windows` with a number, by phase, because phases cost and weigh differently.

        The first of a phase is left out: caches fill then, and gradients of untrained parts are large.
        """
        ends, phases = [end for end, _ in self.phases], {}
        for begin, line in self.windows:
            if key in line:
                phases.setdefault(bisect.bisect_left(ends, line["step"]), []).append((begin, line))
        enough = [lines[1:] for lines in phases.values() if len(lines) > LINES]
        if not enough:
            most = max(map(len, phases.values()), default=0)
            raise CannotTell(f"metrics.jsonl has {most} training line(s) of a phase with {key}, and {LINES + 1} are needed")
        return enough

    def course(self, key: str) -> list[float]:
        """A number of every training line."""
        values = [line[key] for line in self.train if key in line]
        if len(values) < LINES:
            raise CannotTell(f"metrics.jsonl has {len(values)} training line(s) with {key}, and {LINES} are needed")
        return values

    def best_loss(self, name: str) -> float:
        """The floor of an objective's loss in nats, 0 if unknown."""
        return (self.floor or {}).get(name, {}).get("value") or 0.0


def read_facts(directory: str | Path, step: int | None = None) -> Facts:
    """Reads a run directory, up to a step if one is given.

    Raises:
        UserError: It is none, has no checkpoint of that step, or one of its files is damaged.
    """
    directory = Path(directory)
    run = Run(directory)
    if study := StudyDirectory(directory).study.get():
        raise UserError(f"{directory} holds a study; give one of its runs, such as {directory / study['runs'][0]['name']}")
    if not run.begun():
        raise UserError(f"{directory} is not a run: it has neither config.json nor metrics.jsonl; give the --workdir of a run")
    run.require_step(step)
    lines = [line for line in run.metrics.read() if step is None or line["step"] <= step]
    result = run.result.get()
    step = None if result and result.get("step") == step else step
    failed = next((file for file in (run.failed, run.diverged) if file.exists()), None)
    reasons = failed.read().strip().splitlines() if failed else []
    return Facts(
        directory=directory,
        config=run.config.get({}),
        lines=lines,
        result=result if step is None else None,
        data=run.data.get(),
        floor=run.floor.get() if step is None else None,
        failure=(reasons or [f"{failed.path.name} is empty"])[-1].strip() if failed else "",
        imported=run.imported.exists(),
        step=step,
        damages=_damages(run),
    )


def _damages(run: Run) -> list[str] | None:
    if not run.files.exists():
        return None
    found = map(checksums.find_damage, (run.directory, *(run.checkpoints / str(step) for step in run.steps())))
    return ["{} is damaged ({})".format(*damage) for damage in found if damage]


@check("files are as they were written")
def _whole(facts: Facts) -> Finding | None:
    if facts.damages is None:
        raise CannotTell("files.json is missing: the run is not finished, or an earlier version wrote it")
    advice = "restore these files, or delete the run and run it again"
    return Finding("; ".join(facts.damages), advice) if facts.damages else None


@check("run finished")
def _finished(facts: Facts) -> Finding | None:
    if facts.imported:
        raise CannotTell("these weights were trained elsewhere")
    if facts.step is not None:
        raise CannotTell(f"the run is judged as it was at step {facts.step:,}")
    if facts.result is not None:
        return None
    step, steps = facts.lines[-1]["step"] if facts.lines else 0, facts.setting("train.steps")
    where = f"at step {step:,}" + (f" of {steps:,}" if steps else "")
    if facts.failure:
        return Finding(f"the run failed {where}: {facts.failure.rstrip('.')}", "fix that and run the same command again")
    return Finding(
        f"result.json is missing: the run is {where}",
        "if it is not still running, the same `bertlab train` command continues from its last checkpoint",
    )


@check("learned more than token frequencies")
def _unigram(facts: Facts) -> Finding | None:
    losses = facts.token_losses(long=True)
    guessing = {name: facts.objectives[name]["guessing"] for name in losses}
    if not any(guessing.values()):
        raise CannotTell(f"what guessing costs is not known of {' and '.join(losses)}")
    best = {name: facts.best_loss(name) for name in losses}
    stuck = held_out.near_guessing(losses, guessing, best, facts.setting("objectives", {}))
    if not stuck:
        return None
    family = FAMILIES.get(facts.setting("model.family"))
    narrow = "a larger config.model.init_stddev (the papers' 0.02 is small for narrow models), "
    stddev = narrow if family is None or "init_stddev" in family.values else ""
    return Finding(
        f"after {facts.held_out['step']:,} steps the held-out loss of {_values({name: losses[name] for name in stuck})} is no"
        f" better than guessing by token frequency, which costs {_costs(stuck)}: the model learned little else",
        f"try {stddev}another config.optimizer.learning_rate, or more steps",
    )


@check("pair labels learned beyond lengths")
def _pair_labels(facts: Facts) -> Finding | None:
    if constant := constant_labels(facts.recorded):
        seen = "; ".join(f"{name}'s label never varies: {said}" for name, said in constant.items())
        return Finding(seen, f"change the text or config.data, or leave {' and '.join(constant)} out")
    batches = facts.recorded["batches"]["valid"]
    of_pairs = {name: batches.get(of["labels"]) for name, of in facts.objectives.items() if of["asks"] == "pairs"}
    asked = {name: pairs for name, pairs in of_pairs.items() if pairs and f"{name}/accuracy" in facts.held_out}
    if not asked:
        raise CannotTell("no objective of this run predicts the label of a pair")
    asked = {name: asked[name] for name in facts.judged(asked, long=True)}
    if (fewest := min(pairs["rows"] for pairs in asked.values())) < PAIRS:
        raise CannotTell(f"{fewest} held-out pairs are too few; {PAIRS} are needed (config.train.eval_batches)")
    for name, pairs in asked.items():
        accuracy, rows, rule = facts.held_out[f"{name}/accuracy"], pairs["rows"], pairs["length_rule"]
        majority = max(pairs["share"], 1 - pairs["share"])
        # If even the best loss is that of a guess, nothing can be learned.
        if facts.best_loss(name) >= held_out.NEAR_GUESSING * _entropy(majority):
            continue
        seen = f"{name} has a held-out accuracy of {accuracy:.1%} on {rows:,} pairs"
        if accuracy <= majority + 2 * _standard_error(majority, rows):
            return Finding(
                f"{seen}, and always predicting the more frequent label scores {majority:.1%}: the model is at chance",
                f"train longer, raise config.objectives.{name}.weight, or leave {name} out",
            )
        if accuracy <= rule + 2 * _standard_error(rule, rows):
            return Finding(
                f"{seen}, and a table of the two segments' lengths scores {rule:.1%}: the model may use only lengths",
                "train longer, and make lengths less informative with config.data.segment_pair.force_random_if_single=False",
            )
    return None


@check("little padding")
def _padding(facts: Facts) -> Finding | None:
    batches = facts.recorded["batches"]["valid"]
    share = 1 - batches["tokens"] / batches["positions"]
    if share <= PADDING or facts.setting("data.buckets"):  # held-out rows are not cut to buckets
        return None
    if facts.setting("data.pack_length"):
        advice = "raise config.data.pack_examples, or config.data.pack_length: longer rows hold more examples and are fuller"
    elif FORMATS.get(facts.setting("data.format"), Format).crosses_documents:
        advice = "raise config.data.seq_len: whole sentences fill long rows better than short ones"
    else:
        advice = "set config.data.pack_length to pack several rows into one, or config.data.buckets, or lower seq_len"
    return Finding(
        f"{share:.0%} of the positions of held-out rows are padding and waste compute"
        f" (config.data.format={facts.setting('data.format')!r}, seq_len={facts.setting('data.seq_len')})",
        advice,
    )


@check("little repeated text")
def _duplicates(facts: Facts) -> Finding | None:
    if facts.setting("data.corpus") == "synthetic":
        raise CannotTell("short sentences of the synthetic language repeat by chance")
    for split, counts in facts.recorded["corpus"]["splits"].items():
        for unit, limit in DUPLICATES.items():
            for count, what in (
                (counts[f"duplicate_{unit}"], "repeat an earlier one"),
                (counts.get(f"{unit}_in_train", 0), "are in the train split too, so held-out numbers reward memory"),
            ):
                if count > limit * counts[unit]:
                    return Finding(
                        f"{count / counts[unit]:.1%} of the {counts[unit]:,} {unit} of the {split} split {what}",
                        f"remove repeated {unit} from the corpus before it is prepared",
                    )
    return None


@check("few unknown tokens")
def _unknown_tokens(facts: Facts) -> Finding | None:
    corpus = facts.recorded["corpus"]
    limit = UNKNOWN_WORDS if corpus["tokenizer"] == "words" else UNKNOWN
    shares = {split: counts["unknown"] / counts["tokens"] for split, counts in corpus["splits"].items() if counts["tokens"]}
    split = max(shares, key=shares.get)
    if shares[split] <= limit:
        return None
    advice = "raise config.data.tokenizer.vocab_size, or use kind='unigram' or 'bpe' (they know every byte)"
    if facts.setting("data.tokenizer.path"):
        advice = "the tokenizer of config.data.tokenizer.path does not fit this text; use another"
    return Finding(
        f"{shares[split]:.1%} of the tokens of the {split} split are [UNK], with {corpus['vocab_size']:,} pieces of kind"
        f" {corpus['tokenizer']!r}",
        advice,
    )


@check("loss not below its floor")
def _floor(facts: Facts) -> Finding | None:
    if facts.step is not None:
        raise CannotTell(f"losses on test were not measured at step {facts.step:,}")
    if facts.floor is None:
        raise CannotTell("floor.json is missing (only config.data.corpus='synthetic' has known floors)")
    above = {
        name: (entry["above"], held_out.standard_error(entry.get("above_standard_error"), entry.get("standard_error")))
        for name, entry in facts.floor.items()
        if entry.get("above") is not None
    }
    if not (found := held_out.below_floor(above)):
        return None
    listed = [f"{name} ({below:.4f} nats below, standard error {error:.4f})" for name, (below, error) in found.items()]
    return Finding(
        f"the test loss is below its floor for {', '.join(listed)}; no model can do that without seeing the answer",
        "look for a leak: the causal and document masks, the objective's view, and the positions at which it is scored",
    )


@check("loss not next to nothing")
def _no_loss(facts: Facts) -> Finding | None:
    if not (found := held_out.next_to_nothing(facts.all_token_losses)):
        return None
    return Finding(
        f"the held-out loss of {_values(found)} is almost zero; real text costs more",
        "look for a leak: a label among the inputs, a broken mask, or held-out text in the train split",
    )


@check("held-out loss near training loss")
def _train_and_held_out(facts: Facts) -> Finding | None:
    if FORMATS.get(facts.setting("data.format"), Format).is_word_pairs:
        raise CannotTell("held-out text is shorter, so words co-occur less often in it")
    held_out = facts.held_out
    # In a run that goes on, the last held-out line may be older than the last training line.
    lines = [line for _, line in facts.windows if line["step"] <= held_out["step"]]
    names = [key.removesuffix("/loss") for key in held_out if key.endswith("/loss") and lines and key in lines[-1]]
    if facts.result is None:
        # Held-out text is masked at the final rate from the beginning.
        names = [name for name in names if not facts.setting(f"objectives.{name}.final_rate")]
    if not names:
        raise CannotTell("metrics.jsonl has no training line to compare the last held-out one with")
    losses = {name: (held_out[f"{name}/loss"], lines[-1][f"{name}/loss"]) for name in facts.judged(names, long=True)}
    apart = [
        f"{name} {valid:.3f} against {train:.3f}"
        for name, (valid, train) in losses.items()
        if valid - train > max(APART_NATS, APART * train)
    ]
    if not apart:
        return None
    seen = f"held-out loss is well above training loss: {', '.join(apart)}"
    tokens = unique_tokens(facts.data or {})
    epochs = lines[-1].get("tokens", 0) / tokens if tokens else math.nan
    if epochs < 2:
        return Finding(
            f"{seen}, but the text was read only {epochs:.1f} times",
            "check whether the held-out documents differ in kind from the others (config.data.valid_fraction picks them)",
        )
    read = "" if math.isnan(epochs) else f", after {epochs:.1f} readings of the text"
    return Finding(seen + read, "use more text, fewer steps, a smaller model, or more config.model.dropout")


@check("held-out loss not rising")
def _rising(facts: Facts) -> Finding | None:
    courses = {
        name: {
            v["step"]: v[f"{name}/loss"] for v in facts.valid if v["step"] > facts.trained_since[name] and f"{name}/loss" in v
        }
        for name in facts.token_losses(long=True)
    }
    if (most := max(map(len, courses.values()))) < 3:
        raise CannotTell(f"{most} held-out measurement(s) after training began, and 3 are needed")
    for name, course in courses.items():
        best, last = min(course, key=course.get), facts.held_out[f"{name}/loss"]
        if len(course) >= 3 and last > course[best] + max(RISE_NATS, RISE * course[best]):
            return Finding(
                f"the held-out loss of {name} was {course[best]:.3f} at step {best:,} and rose to {last:.3f} by step"
                f" {max(course):,}",
                f"stop near step {best:,}, use more text, or lower config.optimizer.learning_rate",
            )
    return None


@check("learning rate past its warm-up")
def _warm_up(facts: Facts) -> Finding | None:
    rates = facts.course("learning_rate")
    if not max(rates):
        return Finding("the learning rate was 0 in every log line", "set config.optimizer.learning_rate")
    if facts.result is None or rates[-1] <= max(rates[:-1]):
        return None
    return Finding(
        f"the learning rate was still rising at the end (step {facts.train[-1]['step']:,}, {rates[-1]:.2g}), within"
        f" config.optimizer.warmup_steps={facts.setting('optimizer.warmup_steps')}",
        "lower warmup_steps to a tenth of the steps or less, or train longer",
    )


@check("gradients not always clipped")
def _clipping(facts: Facts) -> Finding | None:
    norms, clip_norm = facts.course("gradient_norm"), facts.setting("optimizer.clip_norm")
    if not clip_norm:
        raise CannotTell("gradients are not clipped (config.optimizer.clip_norm)")
    clip = clip_norm / (facts.setting("optimizer.gradient_scale") or 1.0)
    lowest = min(norms[len(norms) // 2 :])
    if lowest <= CLIPPED * clip:
        return None
    return Finding(
        f"in the second half of the run the gradient norm never fell below {lowest:.3g}, {lowest / clip:.0f} times what"
        f" config.optimizer.clip_norm={clip_norm} allows",
        "raise clip_norm, or lower config.optimizer.learning_rate and see whether the norm falls",
    )


@check("gradients not exploding")
def _exploding(facts: Facts) -> Finding | None:
    for lines in facts.settled("gradient_norm"):
        usual = statistics.median(line["gradient_norm"] for _, line in lines)
        _, worst = max(lines, key=lambda window: window[1]["gradient_norm"])
        if worst["gradient_norm"] > EXPLODED * usual:
            return Finding(
                f"the mean gradient norm was {worst['gradient_norm']:.3g} in the log line of step {worst['step']:,}, and"
                f" {usual:.3g} in the median line",
                "lower config.optimizer.learning_rate, lengthen warmup_steps, or look at the text of these batches",
            )
    return None


@check("steady throughput")
def _throughput(facts: Facts) -> Finding | None:
    for lines in facts.settled("tokens_per_second"):
        usual = statistics.median(line["tokens_per_second"] for _, line in lines)
        begin, slowest = min(lines, key=lambda window: window[1]["tokens_per_second"])
        rate = slowest["tokens_per_second"]
        if SLOWED * rate < usual:
            return Finding(
                f"between steps {begin:,} and {slowest['step']:,} training ran at {rate:,.0f} tokens a second,"
                f" and at {usual:,.0f} in the median line",
                "check what else ran on the machine, and whether reading the data keeps up",
            )
    return None


def examine(facts: Facts) -> dict[str, Finding | CannotTell | None]:
    """Statement of `CHECKS` -> what was found: None if it holds."""
    found: dict[str, Finding | CannotTell | None] = {}
    for statement, function in CHECKS.items():
        try:
            found[statement] = function(facts)
        except CannotTell as reason:
            found[statement] = reason
    return found


def doctor(directory: str | Path, console: Console | None = None, step: int | None = None) -> dict[str, Any]:
    """Examines a run and prints findings first, then the statements that hold, then what could not be checked.

    Args:
        directory: Of the run.
        console: Where to print; default the terminal.
        step: Judges the run as it was at this step, which must have a checkpoint; None: its last.

    Returns:
        {"findings": sentences, "passed": statements, "not_checked": {statement: why}}.

    Raises:
        UserError: `directory` is not a run, has no such checkpoint, or one of its files is damaged.
    """
    found = examine(read_facts(directory, step))
    if console is None:
        console = Console()
        console = console if console.is_terminal else Console(width=140)
    findings = [str(outcome) for outcome in found.values() if isinstance(outcome, Finding)]
    passed = [statement for statement, outcome in found.items() if outcome is None]
    reasons: dict[str, list[str]] = {}
    for statement, outcome in found.items():
        if isinstance(outcome, CannotTell):
            reasons.setdefault(str(outcome), []).append(statement)
    not_checked = [f"not checked, because {reason}: {', '.join(statements)}" for reason, statements in reasons.items()]
    table = Table.grid(padding=(0, 1))
    for mark, style, texts in (("✗", "bold red", findings), ("✓", "green", passed), ("–", "dim", not_checked)):
        for text in texts:
            table.add_row(Text(mark, style), Text(text, "dim" if style == "dim" else ""))
    console.print(table)
    console.print(
        f"{len(findings)} finding(s), {len(passed)} check(s) passed, {len(found) - len(findings) - len(passed)} not checked",
        highlight=False,
    )
    unknown = {statement: reason for reason, statements in reasons.items() for statement in statements}
    return {"findings": findings, "passed": passed, "not_checked": unknown}


def _values(losses: Mapping[str, float]) -> str:
    return ", ".join(f"{name} ({loss:.3f} nats)" for name, loss in losses.items())


def _costs(limits: Mapping[str, tuple[float, float]]) -> str:
    """Of guessing, by objective; two numbers where the model is shown some of the answers and may copy them."""
    return ", ".join(
        f"{most:.3f} nats"
        if least == most
        else f"{least:.3f} to {most:.3f} nats to a model that copies the tokens left as they are"
        for least, most in limits.values()
    )


def _entropy(share: float) -> float:
    """Of a label with that share, in nats."""
    return -sum(p * math.log(p) for p in (share, 1 - share) if p)


def _standard_error(share: float, rows: int) -> float:
    return math.sqrt(share * (1 - share) / rows)

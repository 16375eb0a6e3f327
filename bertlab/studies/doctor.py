"""What `bertlab doctor RUN` says: whether a run looks right, from its log and directory alone.

A check is a function of `Facts` that returns a `Finding` or None, and raises `CannotTell` where what it needs was not
recorded. A new one is written below and named in `CHECKS`. Limits are chosen so that runs which did well stay silent;
they are constants here, with what they were set against.
"""

import bisect
import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertlab.errors import UserError
from bertlab.files import read_json
from bertlab.studies.measurements import read_metrics
from bertlab.train.phases import phase_configs, weights_of

# Before that many updates a model may be expected to know little: a tiny BERT leaves the unigram entropy after about 150.
MANY_STEPS = 300
NEAR_UNIGRAM = 0.97  # of the unigram entropy
NO_LOSS = 0.01  # nats a token; real text costs more, and so does a language with any noise in it
STANDARD_ERRORS = 3
PAIRS = 200  # the fewest of which an accuracy is judged: two standard errors are 0.07
PADDING = 0.3  # pairs of segments from short documents are padded by a fifth and more
DUPLICATE_SENTENCES, DUPLICATE_DOCUMENTS = 0.1, 0.01  # Python's documentation has 0.035 and 0
UNKNOWN, UNKNOWN_WORDS = 0.01, 0.05  # the Penn Treebank of language models has 0.048 of its words unknown
APART, APART_NATS = 0.1, 0.1  # held-out above training loss: share and nats
RISE, RISE_NATS = 0.02, 0.02  # above the lowest held-out loss: share and nats
CLIPPED = 10  # times config.optimizer.clip_norm; two or three times are common in runs that do well
EXPLODED = 10  # times the median gradient norm
SLOWED = 3  # times slower than the median
# Of runs from before data.json.
_TOKEN_OBJECTIVES = ("mlm", "ltr", "rtl")
LINES = 4  # the fewest log lines of which a course can be read
_NOT_TRANSFORMERS = ("elmo", "awd_lstm", "static")


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that looks wrong.

    Attributes:
        seen: what was seen, with its numbers.
        advice: what to do.
    """

    seen: str
    advice: str

    def __str__(self) -> str:
        return f"{self.seen}; {self.advice}."


class CannotTell(Exception):
    """A check lacks what it needs; the message says what, as a clause."""


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a run directory holds.

    Attributes:
        directory: of the run.
        config: config.json, {} where there is none.
        lines: of metrics.jsonl, in order of step.
        result, data, floor: result.json, data.json and floor.json, None where there is none.
        failure: the last line of failed.txt, "" where there is none.
        imported: the weights were trained elsewhere.
    """

    directory: Path
    config: Mapping[str, Any]
    lines: list[dict[str, Any]]
    result: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    floor: Mapping[str, Mapping[str, Any]] | None = None
    failure: str = ""
    imported: bool = False

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
            raise CannotTell("there is no data.json, which `bertlab train` writes when a run begins")
        return self.data

    @functools.cached_property
    def phases(self) -> list[tuple[int, dict[str, float]]]:
        """(steps done at its end, the weight that each objective ends with) of each phase; [] where it was not recorded."""
        if not self.config.get("objectives") or not self.config.get("train"):
            return []
        config = ConfigDict(self.config)
        config.train.phases = self.config["train"].get("phases") or ""
        return [(end, {n: weights_of(e)[1] for n, e in phase.objectives.items()}) for end, phase in phase_configs(config)]

    @functools.cached_property
    def trained_since(self) -> dict[str, int]:
        """The objectives that are trained where the last held-out line stands, with the step since which they are.

        What is no longer trained may be forgotten by design.
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

    def trained(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Of values by objective, those of objectives that are trained; raises CannotTell where none is left."""
        kept = {name: value for name, value in values.items() if name in self.trained_since}
        if not kept:
            raise CannotTell(f"{_and(values)} had no weight in the loss at step {self.held_out['step']:,}")
        return kept

    def long_trained(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Of values by objective, those of which much may be expected; raises CannotTell where none is left."""
        step, warmup = self.held_out["step"], self.config.get("optimizer", {}).get("warmup_steps") or 0
        least = {name: max(self.trained_since[name] + MANY_STEPS, 2 * warmup) for name in self.trained(values)}
        kept = {name: values[name] for name in least if step >= least[name]}
        if not kept:
            raise CannotTell(f"little can be expected of {_and(least)} at step {step:,}, before step {min(least.values()):,}")
        return kept

    @property
    def token_losses(self) -> dict[str, float]:
        """Held-out loss by objective, of those that predict tokens and are trained."""
        names = _TOKEN_OBJECTIVES if self.data is None else self.data["token_objectives"]
        losses = {name: self.held_out[f"{name}/loss"] for name in names if f"{name}/loss" in self.held_out}
        if not losses:
            raise CannotTell("no objective of this run predicts tokens")
        return self.trained(losses)

    @functools.cached_property
    def windows(self) -> list[tuple[int, dict[str, Any]]]:
        """Training lines with the step at which each begins; without those cut short by the end of the run or of a phase."""
        begins = [0, *(line["step"] for line in self.train)]
        longest = max((line["step"] - begin for begin, line in zip(begins, self.train)), default=0)
        return [(begin, line) for begin, line in zip(begins, self.train) if line["step"] - begin >= longest / 2]

    def settled(self, key: str) -> list[list[tuple[int, dict[str, Any]]]]:
        """`windows` with a number, by phase, since phases cost and weigh differently.

        The first of a phase is left out: it holds caches that fill, and gradients of what was never trained.
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
        """The floor of an objective's loss in nats, 0 where it is not known."""
        return (self.floor or {}).get(name, {}).get("value") or 0.0


def read_facts(directory: str | Path) -> Facts:
    """Reads a run directory.

    Raises:
        UserError: it is none, or one of its files is damaged.
    """
    directory = Path(directory)
    if (directory / "study.json").exists():
        runs = [run["name"] for run in read_json(directory / "study.json")["runs"]]
        raise UserError(f"{directory} holds a study; give one of its runs, such as {directory / runs[0]}")
    if not any((directory / name).exists() for name in ("config.json", "metrics.jsonl")):
        raise UserError(f"{directory} is no run: it has neither config.json nor metrics.jsonl; give the --workdir of a run")

    def read(name):
        return read_json(directory / name) if (directory / name).exists() else None

    failed = directory / "failed.txt"
    reasons = failed.read_text(encoding="utf-8").strip().splitlines() if failed.exists() else []
    return Facts(
        directory=directory,
        config=read("config.json") or {},
        lines=read_metrics(directory / "metrics.jsonl"),
        result=read("result.json"),
        data=read("data.json"),
        floor=read("floor.json"),
        failure=(reasons or ["failed.txt is empty"])[-1].strip() if failed.exists() else "",
        imported=(directory / "imported.json").exists(),
    )


def finished(facts: Facts) -> Finding | None:
    """The run came to its end."""
    if facts.imported:
        raise CannotTell("these weights were trained elsewhere")
    if facts.result is not None:
        return None
    step = facts.lines[-1]["step"] if facts.lines else 0
    steps = facts.config.get("train", {}).get("steps")
    where = f"at step {step:,}" + (f" of {steps:,}" if steps else "")
    if facts.failure:
        return Finding(f"the run failed {where}: {facts.failure.rstrip('.')}", "mend that and run the same command again")
    return Finding(
        f"there is no result.json: the run stands {where}",
        "if it is not still running, the same `bertlab train` command goes on from its last checkpoint",
    )


def unigram(facts: Facts) -> Finding | None:
    """A loss at the entropy of the token frequencies: nothing else was learned."""
    entropy = facts.recorded["corpus"]["unigram_entropy"]
    losses, near = facts.long_trained(facts.token_losses), NEAR_UNIGRAM * entropy
    # Where even the best loss is so near, there is no more to learn.
    stuck = {name: loss for name, loss in losses.items() if loss >= near > facts.best_loss(name)}
    if not stuck:
        return None
    family = facts.config.get("model", {}).get("family")
    stddev = "a larger config.model.init_stddev (the papers' 0.02 is small for narrow models), "
    return Finding(
        f"after {facts.held_out['step']:,} steps the held-out loss of {_values(stuck)} is no better than the unigram entropy of"
        f" the training text, {entropy:.3f} nats: little but token frequencies was learned",
        f"try {'' if family in _NOT_TRANSFORMERS else stddev}another config.optimizer.learning_rate, or more steps",
    )


def pair_labels(facts: Facts) -> Finding | None:
    """NSP or SOP at chance, or no better than a look at the segments' lengths."""
    of_pairs = {name: facts.recorded["batches"]["valid"].get(name) for name in ("nsp", "sop")}
    asked = {name: pairs for name, pairs in of_pairs.items() if pairs and f"{name}/accuracy" in facts.held_out}
    if not asked:
        raise CannotTell("no objective of this run predicts the label of a pair")
    asked = facts.long_trained(asked)
    if (fewest := min(pairs["rows"] for pairs in asked.values())) < PAIRS:
        raise CannotTell(f"{fewest} held-out pairs are few, and {PAIRS} are needed (config.train.eval_batches)")
    for name, pairs in asked.items():
        accuracy, majority, rule = (
            facts.held_out[f"{name}/accuracy"],
            max(pairs["share"], 1 - pairs["share"]),
            pairs["length_rule"],
        )
        # Where even the best loss is that of a guess, there is nothing to learn.
        if facts.best_loss(name) >= NEAR_UNIGRAM * _entropy(majority):
            continue
        seen = f"{name} has a held-out accuracy of {accuracy:.1%} on {pairs['rows']:,} pairs, "
        if accuracy <= majority + 2 * _standard_error(majority, pairs["rows"]):
            return Finding(
                seen + f"and always saying the commoner label has {majority:.1%}: it is at chance",
                f"train longer, raise config.objectives.{name}.weight, or leave {name} out",
            )
        if accuracy <= rule + 2 * _standard_error(rule, pairs["rows"]):
            return Finding(
                seen + f"and a table of the two segments' lengths has {rule:.1%}: lengths may be all that it uses",
                "train longer, and let lengths say less with config.data.segment_pair.force_random_if_single=False",
            )
    return None


def padding(facts: Facts) -> Finding | None:
    """A large share of the positions is padding."""
    batches = facts.recorded["batches"]["valid"]
    share = 1 - batches["tokens"] / batches["positions"]
    data = facts.config.get("data", {})
    if share <= PADDING or data.get("buckets"):  # which held-out rows are not cut to
        return None
    if data.get("pack_length"):
        advice = "raise config.data.pack_examples, or config.data.pack_length: longer rows hold more examples, and fuller"
    elif data.get("format") == "full_sentences":
        advice = "raise config.data.seq_len: whole sentences fill long rows better than short ones"
    else:
        advice = "set config.data.pack_length, which packs several rows into one, or config.data.buckets, or lower seq_len"
    return Finding(
        f"{share:.0%} of the positions of held-out rows are padding, which is computed and teaches nothing"
        f" (config.data.format={data.get('format')!r}, seq_len={data.get('seq_len')})",
        advice,
    )


def duplicates(facts: Facts) -> Finding | None:
    """Text that occurs more than once."""
    if facts.config.get("data", {}).get("corpus") == "synthetic":
        raise CannotTell("short sentences of the synthetic language repeat by chance")
    for split, counts in facts.recorded["corpus"]["splits"].items():
        for unit, limit in (("documents", DUPLICATE_DOCUMENTS), ("sentences", DUPLICATE_SENTENCES)):
            if not counts[unit]:
                continue
            share = counts[f"duplicate_{unit}"] / counts[unit]
            if share > limit:
                return Finding(
                    f"{share:.1%} of the {counts[unit]:,} {unit} of the {split} split repeat an earlier one",
                    f"remove repeated {unit} from the corpus before it is prepared",
                )
            share = counts.get(f"{unit}_in_train", 0) / counts[unit]
            if share > limit:
                return Finding(
                    f"{share:.1%} of the {counts[unit]:,} {unit} of the {split} split stand in the train split too, so that"
                    " held-out numbers reward memory",
                    f"remove repeated {unit} from the corpus before it is prepared",
                )
    return None


def unknown_tokens(facts: Facts) -> Finding | None:
    """Many tokens are [UNK]."""
    corpus = facts.recorded["corpus"]
    limit = UNKNOWN_WORDS if corpus["tokenizer"] == "words" else UNKNOWN
    shares = {split: counts["unknown"] / counts["tokens"] for split, counts in corpus["splits"].items() if counts["tokens"]}
    split = max(shares, key=shares.get)
    if shares[split] <= limit:
        return None
    if facts.config.get("data", {}).get("tokenizer", {}).get("path"):
        advice = "take another tokenizer than that of config.data.tokenizer.path, which does not fit this text"
    else:
        advice = "raise config.data.tokenizer.vocab_size, or take kind='unigram' or 'bpe', which know every byte"
    return Finding(
        f"{shares[split]:.1%} of the tokens of the {split} split are [UNK], with {corpus['vocab_size']:,} pieces of kind"
        f" {corpus['tokenizer']!r}",
        advice,
    )


def floor(facts: Facts) -> Finding | None:
    """A loss below what any model can reach: something shows the answer."""
    if facts.floor is None:
        raise CannotTell("there is no floor.json; floors are known for config.data.corpus='synthetic' alone")
    leaks = {}
    for name, entry in facts.floor.items():
        above = entry.get("above")
        error = entry.get("above_standard_error") or entry.get("standard_error") or 0.0
        # The smallest number keeps rounding of an exact floor from looking like a leak.
        if above is not None and above < -max(STANDARD_ERRORS * error, 1e-4):
            leaks[name] = f"{name} ({-above:.4f} nats below, standard error {error:.4f})"
    if not leaks:
        return None
    return Finding(
        f"the test loss is below its floor for {', '.join(leaks.values())}, which no model can reach that sees only what it"
        " should",
        "look for a leak: the causal and document masks, the objective's view, and the positions that it is scored at",
    )


def no_loss(facts: Facts) -> Finding | None:
    """A loss of next to nothing."""
    losses = {name: loss for name, loss in facts.token_losses.items() if loss < NO_LOSS}
    if not losses:
        return None
    return Finding(
        f"the held-out loss of {_values(losses)} is next to nothing, which text does not allow",
        "look for a leak: a label among the inputs, a broken mask, or held-out text that stands in the train split",
    )


def train_and_held_out(facts: Facts) -> Finding | None:
    """Held-out loss well above training loss."""
    if facts.config.get("data", {}).get("format") == "cooccurrence":
        raise CannotTell("words stand together less often in held-out text, which is shorter")
    held_out = facts.held_out
    # The last held-out line of a run that goes on may be older than the last training line.
    lines = [line for _, line in facts.windows if line["step"] <= held_out["step"]]
    names = [key.removesuffix("/loss") for key in held_out if key.endswith("/loss") and lines and key in lines[-1]]
    if facts.result is None:
        # Held-out text is masked at the final rate from the beginning.
        names = [n for n in names if not facts.config.get("objectives", {}).get(n, {}).get("final_rate")]
    if not names:
        raise CannotTell("metrics.jsonl has no training line to set beside the last held-out one")
    last, apart = lines[-1], {}
    for name, loss in facts.long_trained({name: held_out[f"{name}/loss"] for name in names}).items():
        of_train = last[f"{name}/loss"]
        if loss - of_train > max(APART_NATS, APART * of_train):
            apart[name] = f"{loss:.3f} against {of_train:.3f}"
    if not apart:
        return None
    seen = "held-out loss is well above training loss: " + ", ".join(f"{name} {values}" for name, values in apart.items())
    tokens = facts.data and facts.data["corpus"]["splits"]["train"]["tokens"]
    epochs = last.get("tokens", 0) / tokens if tokens else math.nan
    if epochs < 2:
        return Finding(
            f"{seen}, though the text was read {epochs:.1f} times only",
            "see whether the held-out documents are of another kind than the others (config.data.valid_fraction picks them)",
        )
    read = "" if math.isnan(epochs) else f", after {epochs:.1f} readings of the text"
    return Finding(seen + read, "use more text, fewer steps, a smaller model, or more config.model.dropout")


def rising(facts: Facts) -> Finding | None:
    """Held-out loss that rose again before the end."""
    courses = {
        name: {
            v["step"]: v[f"{name}/loss"] for v in facts.valid if v["step"] > facts.trained_since[name] and f"{name}/loss" in v
        }
        for name in facts.long_trained(facts.token_losses)
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


def warm_up(facts: Facts) -> Finding | None:
    """A learning rate that never got past its warm-up, or was zero."""
    rates = facts.course("learning_rate")
    if not max(rates):
        return Finding("the learning rate was 0 in every log line", "set config.optimizer.learning_rate")
    if facts.result is None or rates[-1] <= max(rates[:-1]):
        return None
    warmup = facts.config.get("optimizer", {}).get("warmup_steps")
    return Finding(
        f"the learning rate was still rising at the end (step {facts.train[-1]['step']:,}, {rates[-1]:.2g}), in"
        f" config.optimizer.warmup_steps={warmup}",
        "lower warmup_steps to a tenth of the steps or less, or train longer",
    )


def clipping(facts: Facts) -> Finding | None:
    """Gradients far above the clipping norm all along."""
    norms, optimizer = facts.course("gradient_norm"), facts.config.get("optimizer", {})
    if not (clip := optimizer.get("clip_norm")):
        raise CannotTell("gradients are not clipped (config.optimizer.clip_norm)")
    clip /= optimizer.get("gradient_scale") or 1.0
    late = norms[len(norms) // 2 :]
    if min(late) <= CLIPPED * clip:
        return None
    return Finding(
        f"in the second half of the run the gradient norm never fell below {min(late):.3g}, {min(late) / clip:.0f} times what"
        f" config.optimizer.clip_norm={optimizer['clip_norm']} lets through",
        "raise clip_norm, or lower config.optimizer.learning_rate and see whether the norm falls",
    )


def exploding(facts: Facts) -> Finding | None:
    """A gradient norm that grew out of all proportion."""
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


def throughput(facts: Facts) -> Finding | None:
    """Training that went much slower for a while."""
    for lines in facts.settled("tokens_per_second"):
        usual = statistics.median(line["tokens_per_second"] for _, line in lines)
        begin, slowest = min(lines, key=lambda window: window[1]["tokens_per_second"])
        rate = slowest["tokens_per_second"]
        if SLOWED * rate < usual:
            return Finding(
                f"between steps {begin:,} and {slowest['step']:,} training went at {rate:,.0f} tokens a second,"
                f" and at {usual:,.0f} in the median line",
                "see what else ran on the machine, and whether reading the data keeps up",
            )
    return None


CHECKS: dict[str, Callable[[Facts], Finding | None]] = {
    "run finished": finished,
    "learned more than token frequencies": unigram,
    "pair labels learned beyond lengths": pair_labels,
    "little padding": padding,
    "little repeated text": duplicates,
    "few unknown tokens": unknown_tokens,
    "loss not below its floor": floor,
    "loss not next to nothing": no_loss,
    "held-out loss near training loss": train_and_held_out,
    "held-out loss not rising": rising,
    "learning rate past its warm-up": warm_up,
    "gradients not always clipped": clipping,
    "gradients not exploding": exploding,
    "steady throughput": throughput,
}
"""By what is so when nothing is found."""


def examine(facts: Facts) -> dict[str, Finding | CannotTell | None]:
    """What every check of `CHECKS` finds: None where all is well."""
    found: dict[str, Finding | CannotTell | None] = {}
    for title, check in CHECKS.items():
        try:
            found[title] = check(facts)
        except CannotTell as reason:
            found[title] = reason
    return found


def doctor(directory: str | Path, console=None) -> int:
    """Examines a run and prints what is found.

    Args:
        directory: of the run.
        console: a rich Console; default the terminal.

    Returns:
        The number of findings.

    Raises:
        UserError: `directory` is no run, or one of its files is damaged.
    """
    return print_examination(examine(read_facts(directory)), console)


def print_examination(found: Mapping[str, Finding | CannotTell | None], console=None) -> int:
    """Prints findings first, then what is right, then what cannot be told; returns the number of findings."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if console is None:
        console = Console()
        console = console if console.is_terminal else Console(width=140)
    findings = [str(outcome) for outcome in found.values() if isinstance(outcome, Finding)]
    passed = [title for title, outcome in found.items() if outcome is None]
    reasons: dict[str, list[str]] = {}
    for title, outcome in found.items():
        if isinstance(outcome, CannotTell):
            reasons.setdefault(str(outcome), []).append(title)
    not_checked = [f"not checked, since {reason}: {', '.join(titles)}" for reason, titles in reasons.items()]
    table = Table.grid(padding=(0, 1))
    for mark, style, texts in (("✗", "bold red", findings), ("✓", "green", passed), ("–", "dim", not_checked)):
        for text in texts:
            table.add_row(Text(mark, style), Text(text, "dim" if style == "dim" else ""))
    console.print(table)
    console.print(
        f"{len(findings)} finding(s), {len(passed)} check(s) passed, {len(found) - len(findings) - len(passed)} not checked",
        highlight=False,
    )
    return len(findings)


def _values(losses: Mapping[str, float]) -> str:
    return ", ".join(f"{name} ({loss:.3f} nats)" for name, loss in losses.items())


def _and(names: Mapping[str, Any]) -> str:
    return " and ".join(names)


def _entropy(share: float) -> float:
    """Of a label with that share, in nats."""
    return -sum(p * math.log(p) for p in (share, 1 - share) if p)


def _standard_error(share: float, rows: int) -> float:
    return math.sqrt(share * (1 - share) / rows)

"""What the studies of this folder share: arguments, scales, tasks with their data, claims."""

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import scales
from bertlab.config import base_config, load_config, papers, parse_arguments
from bertlab.errors import UserError
from bertlab.models.presets import FAMILIES
from bertlab.studies.study import (
    TASK_RATES,
    Claim,
    Point,
    Published,
    Study,
    axis,
    chain,
    product,
    rate_axis,
    stage_keys,
)
from bertlab.train.recipes import add_objectives
from bertlab.transfer.recipes import BERT_RATES, RECIPES
from bertlab.transfer.tasks import find_task
from published_tasks import LONG, LONG_ROWS, TASKS, config_name
from scales import FRESH_EMBEDDINGS, LAST_PIECE, ONE_LENGTH, SAME_ROWS, under

__all__ = ["TEXTS", "Setting", "claims", "claims_among", "table"]
# What the studies import from elsewhere.
__all__ += ["FRESH_EMBEDDINGS", "LAST_PIECE", "ONE_LENGTH", "SAME_ROWS", "under"]
__all__ += ["Claim", "Study", "axis", "chain", "papers", "product", "stage_keys"]

TEXTS = ("classification", "regression")  # kinds of task

# Arguments of every study, with their defaults; of a tuple the first, and no others are allowed.
ARGUMENTS = {"scale": scales.SCALES, "corpus": "pydocs", "seeds": 5, "draws": 1, "steps": 0}
ARGUMENTS |= {"rows": 0, "tasks": "package+code_spans", "data": "", "task_steps": 0}
ARGUMENTS |= dict.fromkeys(("task_rates", "select", "labels"), "")
ARGUMENTS |= {"use": ("study", "probe", "study+probe"), "body": ("today", "paper")}
ARGUMENTS |= {"dtype": "float32"}


class Setting:
    """What the arguments of a study ask for.

    Attributes:
        arguments: By name, the study's own among them.
        pretraining: Overrides for all models: rows, batches, steps; published ones at scale paper.
        adam: Further overrides of models trained with Adam: rate, warm-up, dropout.
        transformer: Further overrides of transformers: their body, rate and moments.
        finetune: Overrides of fine-tuning, with the prefix "finetune.".
        task_steps: Steps of fine-tuning from the arguments; 0: the scale's.
        labels: Numbers of labelled examples, 0 for all; empty: all, without a number in the name.
    """

    def __init__(
        self, arguments: str | None, paper: Mapping[str, Any] | None = None, **defaults: Any
    ):
        """Reads a study's arguments (experiments/README.md), with `defaults` and arguments of its
        own; `paper` has overrides at scale=paper that the recipe lacks."""
        choices = {**ARGUMENTS, **defaults}
        first = {name: of[0] if isinstance(of, tuple) else of for name, of in choices.items()}
        self.arguments = values = parse_arguments(arguments, **first)
        for name, allowed in choices.items():
            if isinstance(allowed, tuple) and values[name] not in allowed:
                raise UserError(f"{name}={values[name]}: choose one of {', '.join(allowed)}")
        self.tasks = [name for name in values["tasks"].split("+") if name]
        published = [name for name in self.tasks if name in TASKS]
        if published and not values["data"]:
            missing = f"{published[0]} has files; add data=DIRECTORY"
            raise UserError(f"tasks={values['tasks']}: {missing}")
        self.scale, self.task_steps = values["scale"], values["task_steps"]
        self.is_tiny = self.scale in ("tiny", "mini")
        self.is_large = self.scale in ("base", "paper")
        self.seeds = list(range(1, values["seeds"] + 1))
        select = values["select"] or ("on" if self.scale in scales.SELECTING else "off")
        named = {"on": scales.RATES, "off": []}
        self.rates = named[select] if select in named else numbers_in("select", select)
        self.task_rates = numbers_in("task_rates", values["task_rates"])
        self.labels = [int(x) for x in numbers_in("labels", values["labels"].replace("all", "0"))]
        self.pretraining, self.adam, finetune = _at_scale(values, paper or {})
        self.transformer = scales.BODIES[values["body"]] if self.is_tiny else {}
        self.finetune = under("finetune", finetune)
        self.overrides = {**self.pretraining, **self.adam, **self.finetune}
        self.on_transformer = {**self.overrides, **self.transformer}

    def study(
        self,
        axes: Mapping[str, Mapping[str, Any]] | Sequence[Point],
        seeds: Sequence[Point] = (),
        **fields: Any,
    ) -> Study:
        """A study of transformers at these rates and on these tasks, if `fields` has no others; its
        last axis is the seed's. Points may have rates of their own."""
        if isinstance(axes, Mapping):
            axes = product(*itertools.starmap(axis, axes.items()))
        own = {"name": "", "rates": self.rates, "overrides": self.on_transformer}
        own |= {} if "downstream" in fields else {"downstream": self.downstream()}
        grid = []  # the seed stays the last axis
        for point in product(axes, seeds or self.seeds_and_draws()):
            others = {name: point[name] for name in point if name != "seed"}
            grid += [{**others, **rate, **point} for rate in rate_axis(self.task_rates)]
        return Study(axes=grid, **own | fields)

    def rate_factors(self) -> list[Point]:
        """Each of the argument `factors` of the rates that a study's uses have."""
        factors = numbers_in("factors", self.arguments["factors"])
        rates = {
            f"{factor:.2g}": {"finetune.rate_factor": factor} if factor != 1 else {}
            for factor in factors
        }
        return axis(TASK_RATES, rates) or [{}]

    def seeds_and_draws(self) -> list[Point]:
        """The seeds; with `draws`, of each so many fine-tunings, whose own seeds and draws of the
        labels differ from seed to seed and are the same for all variants."""
        draws, points = self.arguments["draws"], []
        if draws == 1:
            return axis("seed", self.seeds)
        for seed, n in itertools.product(self.seeds, range(1, draws + 1)):
            draw = dict.fromkeys(("finetune.seed", "finetune.task_data.seed"), 10 * seed + n)
            points += product(axis("finetune.seed", {f"draw={n}": draw}), axis("seed", [seed]))
        return points

    @property
    def elmo_tokens(self) -> str:
        """What ELMo reads: the argument `elmo`, or characters, as published, at scale=paper."""
        default = "characters" if self.scale == "paper" else "subwords"
        tokens = self.arguments.get("elmo") or default
        if tokens == "characters" != default:
            raise UserError("elmo=characters needs scale=paper: other scales share their pieces")
        return tokens

    def steps(self, recipe: str) -> int:
        """Of pretraining: the arguments', the scale's or the study's, else the recipe's."""
        return self.pretraining.get("train.steps") or load_config(recipe).train.steps

    def recipe(self, family: str, **arguments: Any) -> str:
        """A family's recipe at the scale's size: "experiments/pretrain/bert.py:size=tiny,..."."""
        values = {"size": self.size(family), "corpus": self.arguments["corpus"]}
        if self.transformer == scales.BODIES["today"] and family in ("bert", "modern"):
            config = base_config()
            add_objectives(config, arguments.get("objectives", "mlm"))
            masks = any("rate" in entry for entry in config.objectives.values())
            values |= {"mask_rate": scales.MASK_RATE} if masks else {}
        values |= arguments
        listed = ",".join(f"{key}={value}" for key, value in values.items())
        return f"experiments/pretrain/{family}.py:{listed}"

    def bert(self, objectives: str) -> dict[str, str]:
        """The override to BERT's recipe with these objectives."""
        return {"config": self.recipe("bert", objectives=objectives)}

    def size(self, family: str) -> str:
        return scales.SIZES[family].get(self.scale, self.scale)

    def numbers(self, family: str) -> Mapping[str, Any]:
        """Layers, width, heads and so on of a family's size at this scale."""
        return FAMILIES[family].sizes[self.size(family)]

    def examples(self, small: Sequence[int], large: Sequence[int]) -> dict[str, dict[str, Any]]:
        """The labels of an axis of numbers of training examples: the arguments', or these and all
        at scales tiny and mini, or larger ones."""
        counts = self.labels or (*(small if self.is_tiny else large), 0)
        return {str(count or "all"): {"finetune.task_data.limit": count} for count in counts}

    def at_bert_rates(self, points: Sequence[Point]) -> list[Point]:
        """At scale=paper the points at each of the paper's rates, unless there are `task_rates`."""
        rates = BERT_RATES if self.scale == "paper" and not self.task_rates else ()
        return product(points, rate_axis(rates))

    def restarts(self) -> list[Point]:
        """The seeds; at scale=paper of fine-tuning alone, on one pretraining."""
        return axis("finetune.seed" if self.scale == "paper" else "seed", self.seeds)

    def features(self, layers: str) -> dict[str, Any]:
        """A frozen BERT's layers (named as in `LayerMix`) below a biLSTM of its width, with rows as
        in `in_documents`. Each direction is half as wide (Devlin et al. 2018, section 5.3, does not
        say which of the two its 768 are)."""
        rows = scales.LARGE_FEATURES | {"train.steps": self.task_steps} if self.is_large else {}
        rows |= scales.DOCUMENTS if self.scale == "paper" else {}
        width = self.numbers("bert")["width"] // 2
        own = {"recipe": "bert_features", "head.layers": layers, "head.hidden": width}
        return under("finetune", own | rows)

    def finetuning(self, recipe: str) -> dict[str, Any]:
        """Overrides for a recipe of fine-tuning, in the scale's rows, batches and steps; from
        scale=base on the recipe's own, if it counts passes."""
        if not self.is_large:
            names = ("data.batch_size", "train.steps", "train.eval_every")
            rows = {name: RECIPES["small"][name] for name in names} | scales.SMALL_ROWS
        else:
            rows = {} if "transfer.epochs" in RECIPES[recipe] else scales.LARGE_ROWS
        return {**under("finetune", rows), **self.finetune, "finetune.recipe": recipe}

    def downstream(
        self,
        kinds: Sequence[str] = (),
        long_rows: int = LONG_ROWS,
        labels: Sequence[int] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """`Study.downstream`: each task of these kinds (empty: all) for each number of `labels` and
        each of `use`, such as "package_100_probe". From scale=base on the tasks in LONG have rows
        of `long_rows` pieces (0: the recipe's)."""
        labels, found = self.labels if labels is None else labels, {}
        names = [n for n in self.tasks if not kinds or find_task(config_name(n)).kind in kinds]
        if self.tasks and not names:
            listed = " or ".join(kinds)
            raise UserError(f"tasks={self.arguments['tasks']}: this study needs one of {listed}")
        uses = self.arguments["use"].split("+")
        for name, count, use in itertools.product(names, labels or [0], uses):
            parts, settings = [Path(name).stem], {}
            parts += [str(count or "all")] if labels else []
            if use == "probe":
                parts.append("probe")
                settings |= scales.PROBE_RESETS | stage_keys("finetune", self.finetuning("probe"))
            folder = TASKS.get(name)
            if folder:
                settings["task_data.directory"] = f"{self.arguments['data']}/{folder}"
            if not self.is_large:
                settings |= scales.SMALL_ROWS
                settings |= scales.SMALL_WINDOWS if folder in ("squad", "triviaqa") else {}
            elif name in LONG and long_rows:
                settings["data.seq_len"] = long_rows
            if count:
                settings["task_data.limit"] = count
                if not self.is_tiny and not self.task_steps:
                    settings["train.steps"] = scales.FEW_STEPS
            task = config_name(name)
            found["_".join(parts)] = settings | ({} if parts == [task] else {"task": task})
        return found

    def in_documents(self) -> dict[str, dict[str, Any]]:
        """`downstream`; at scale=paper `ner` reads sentences in their documents (Devlin et al.
        2019, section 5.3)."""
        found = self.downstream()
        for name, settings in found.items():
            if self.scale == "paper" and settings.get("task", name) == "ner":
                settings |= {"transfer.document_context": True, **scales.DOCUMENTS}
        return found


def claims(source: str, *findings: tuple) -> list[Claim]:
    """Published findings of one source: (higher, lower, numbers), perhaps with kinds of task."""
    return [Claim(*finding[:3], source, *finding[3:]) for finding in findings]


def claims_among(found: Sequence[Claim], labels: Sequence[str]) -> list[Claim]:
    """The claims about variants whose first label is one of these."""
    firsts = [{name.partition(", ")[0] for name in (of.higher, of.lower)} for of in found]
    return [of for of, first in zip(found, firsts) if first <= set(labels)]


def table(
    source: str, columns: str, rows: Mapping[str, Sequence], *findings: tuple, note: str = ""
) -> dict[str, Any]:
    """A published table as the fields `published` and `claims` of a study.

    Args:
        source, rows, note: As `Published`'s.
        columns: "MNLI-m|SQuAD F1".
        *findings: (higher, lower, columns with the numbers), perhaps with kinds of task.
    """
    names, found = columns.split("|"), []
    for higher, lower, chosen, *kinds in findings:
        above, below = (dict(zip(names, rows[row])) for row in (higher, lower))
        numbers = ", ".join(f"{name} {above[name]} and {below[name]}" for name in chosen.split("|"))
        found.append(Claim(higher, lower, numbers, source, *kinds))
    published = {"published": Published(source, names, rows, note)}
    return published | ({"claims": found} if found else {})


def _at_scale(values: Mapping[str, Any], paper: Mapping[str, Any]) -> tuple[dict, dict, dict]:
    """The scale's overrides of pretraining, Adam and fine-tuning, with the arguments' steps."""
    scale = values["scale"]
    pretraining = dict(scales.SMALL_RUNS) if scale in ("tiny", "mini") else {}
    values_of_scale = zip(scales.KEYS, scales.VALUES[scale], strict=True)
    pretraining |= {key: value for key, value in values_of_scale if value is not None}
    pretraining |= paper if scale == "paper" else {}
    adam, finetune = dict(scales.ADAM[scale]), dict(scales.FINETUNING[scale])
    if values["rows"]:
        pretraining["data.batch_size"] = values["rows"]
    if values["dtype"] != "float32":
        pretraining["model.dtype"] = values["dtype"]
    if steps := values["steps"]:  # a short trial evaluates and warms up once
        for key in ("train.eval_every", "train.log_every"):
            pretraining[key] = min(pretraining[key], steps)
        pretraining["train.steps"] = steps
        warmed = pretraining if scale == "paper" else adam
        if "optimizer.warmup_steps" in warmed:
            warmed["optimizer.warmup_steps"] = min(warmed["optimizer.warmup_steps"], steps // 10)
        if steps < 100:  # too short for phases
            pretraining["train.phases"] = ""
    if values["task_steps"]:
        finetune["train.steps"] = values["task_steps"]
    return pretraining, adam, finetune


def numbers_in(name: str, text: str) -> list[float]:
    """The numbers in "1/3+1" or "3e-4+1e-3"."""
    try:
        numbers = [float(Fraction(part)) for part in text.split("+") if part]
    except (ValueError, ZeroDivisionError):
        raise UserError(f"{name}={text}: give numbers joined by +") from None
    if len(set(numbers)) < len(numbers) or min(numbers, default=0) < 0:
        raise UserError(f"{name}={text}: give positive numbers, each once")
    return numbers

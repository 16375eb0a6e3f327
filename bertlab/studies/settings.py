"""Shared by the studies in `experiments`: arguments, scales, and tasks with their data.

setting = read_setting(arguments, paper=PAPER)
Study(config=setting.recipe("bert", objectives="mlm"), overrides=setting.overrides, downstream=setting.downstream(), ...)
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from bertlab.config import add_objectives, base_config, load_config, parse_arguments, with_mask_rate
from bertlab.errors import UserError, did_you_mean
from bertlab.models.presets import FAMILIES
from bertlab.studies.axes import Point, axis, product
from bertlab.studies.study import rate_axis
from bertlab.transfer.kinds import KINDS, Kind
from bertlab.transfer.recipes import RECIPES, SMALL
from bertlab.transfer.tasks import find_task

PRETRAIN = "experiments/pretrain"
SCALES = ("tiny", "mini", "small", "base", "paper")
# Sizes of the families at each scale, unless the size has the scale's name.
SIZES: Mapping[str, Mapping[str, str]] = {
    "bert": {"paper": "base"},
    "gpt": {"base": "gpt1", "paper": "gpt1"},
    "modern": {"paper": "base"},
    "elmo": {"base": "medium", "paper": "original"},
    "awd_lstm": {"small": "original", "base": "original", "paper": "original"},
    "static": {"small": "original", "base": "original", "paper": "original"},
}
# Rows, batches and steps of every pretraining; None is the study's or else the recipe's. A run takes 17 to 23 minutes on one
# CPU core without other work at scale tiny; a night on two cores, or minutes on a GPU, at scale mini.
_KEYS = ("data.seq_len", "data.batch_size", "data.tokenizer.vocab_size", "train.steps")
_KEYS += ("train.eval_every", "train.log_every", "train.checkpoint_every")
_VALUES = {
    "tiny": (128, 32, 2048, 6000, 1000, 100, 2000),
    "mini": (128, 32, None, 40_000, 2000, 500, 2000),
    "small": (128, 128, 16_384, 100_000, 5000, 1000, 5000),
    "base": (128, 256, 30_522, 250_000, 10_000, 1000, 10_000),
    "paper": (None, None, None, None, 10_000, 1000, 10_000),
}
# Small checkpoints are kept along the way, so that trajectories and studies of single tables begin with the same pretrainings.
_SMALL = {"data.valid_fraction": 0.1, "data.test_fraction": 0.1, "train.keep": "log"}
PRETRAINING: Mapping[str, Mapping[str, Any]] = {
    scale: (_SMALL if scale in ("tiny", "mini") else {})
    | {key: value for key, value in zip(_KEYS, values, strict=True) if value is not None}
    for scale, values in _VALUES.items()
}
# Rows and pieces of the recipes' published sizes return to those that all models share below scale paper.
_SAME_TEXT = {"train.phases": "", "data.dupe_factor": 0, "data.tokenizer.kind": "unigram", "data.tokenizer.lowercase": False}
# For bodies trained with Adam: transformers, LSTMs and ELMo on subwords. The rate at tiny is from trials of ELMo: 1e-3, 3e-3
# and 1e-2 have 5.18, 4.80 and 4.78 nats on Wikipedia after 1.3 M tokens (one seed); at 1e-2 its directions are 0.3 apart.
ADAM: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"model.dropout": 0.0, "optimizer.learning_rate": 3e-3},
    "mini": {"model.dropout": 0.0, "optimizer.warmup_steps": 1000},
    "small": {"optimizer.learning_rate": 5e-4, "optimizer.warmup_steps": 5000},
    "base": {"optimizer.learning_rate": 1e-4, "optimizer.warmup_steps": 10_000, **_SAME_TEXT},
    "paper": {},
}
# Bodies of the transformers at small scales. With the papers' body and optimiser, a narrow masked model is still on the plateau
# of word frequencies after 4 M tokens; today's has left it (experiments/README.md has the trials). All objectives of a study
# have the same body; `body=paper` is the papers' with a larger initial deviation.
BODIES: Mapping[str, Mapping[str, Any]] = {
    "paper": {"model.init_stddev": 0.05, "optimizer.learning_rate": 1e-3},
    "today": {
        "model.init_stddev": 0.05,
        "model.position_encoding": "rotary",
        "model.norm": "rms_norm",
        "model.norm_placement": "pre",
        "model.final_norm": True,
        "model.use_bias": False,
        "optimizer.learning_rate": 6e-3,
        "optimizer.b2": 0.98,  # as RoBERTa
    },
}
# Share of masked tokens with today's body: the more are asked, the sooner a small model learns (Wettig et al. 2022: 40 %).
MASK_RATE = 0.3
# Factors of each variant's own pretraining rate, of which its validation loss selects one (`bertlab.studies.selection`). These
# scales do so unless `select=` says otherwise; the larger ones have published rates.
RATES = (1 / 3, 1.0, 3.0)
SELECTING = ("tiny", "mini", "small")
FINETUNING: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"finetune.recipe": "small"},
    "mini": {"finetune.recipe": "small", "finetune.train.steps": 1000},
    "small": {"finetune.recipe": "small", "finetune.train.steps": 0, "finetune.transfer.epochs": 3.0},
    "base": {"finetune.recipe": "bert"},
    "paper": {"finetune.recipe": "bert_paper"},
}
# Models after BERT have rows of one length from the first step, and new masks in each epoch.
ONE_LENGTH: Mapping[str, Any] = {"train.phases": "", "data.dupe_factor": 0}
# Pieces, rows and steps of models of different papers that are to read the same, so batches are not the papers'; rate, warm-up
# and optimiser are each recipe's (`bertlab.papers` has BERT's and GPT's; ELMo on subwords has Adam).
SAME_ROWS: Mapping[str, Any] = {
    "train.steps": 1_000_000,
    "data.seq_len": 512,
    "data.batch_size": 64,
    "data.tokenizer.kind": "wordpiece",
    "data.tokenizer.vocab_size": 30_522,
    "data.tokenizer.lowercase": True,
    **ONE_LENGTH,
}
# To compare models that read in different directions: a left-to-right model knows a word only at its last piece.
LAST_PIECE: Mapping[str, Any] = {"finetune.transfer.word_piece": "last"}
# Replaces a pretrained model's states by random embeddings that are trained with the task.
FRESH_EMBEDDINGS: Mapping[str, Any] = {
    "finetune.transfer.random": True,
    "finetune.optimizer.frozen": "",
    "finetune.head.layers": "layer:0",
}
# Rows, batches and steps of a fine-tuning: recipe small's at small scales, these at larger scales unless a recipe has its own.
# Features are read as often as recipe bert reads its examples.
_SMALL_ROWS = ("data.seq_len", "data.batch_size", "train.steps", "train.eval_every")
_LARGE_ROWS = {"data.seq_len": 128, "data.batch_size": 32, "train.steps": 0, "transfer.epochs": 10.0}
_LARGE_FEATURES = _LARGE_ROWS | {"transfer.epochs": 3.0}
# Rows for names in documents: as long as BERT reads, or shorter where a text is (Devlin et al. 2019, section 5.3, prints no
# length).
_DOCUMENTS = {"data.seq_len": 512, "data.buckets": [128, 256]}
# Steps of a fine-tuning on few labelled examples where a scale counts passes.
FEW_STEPS = 1000
# What a study's recipe may have set of optimiser and head, as recipe `probe` has it.
PROBE_RESETS: Mapping[str, Any] = {
    "optimizer.learning_rate": RECIPES["probe"]["optimizer.learning_rate"],
    "optimizer.frozen": RECIPES["probe"]["optimizer.frozen"],
    "optimizer.thaw": "all",
    "optimizer.thaw_steps": 0,
    "optimizer.thaw_stages": 0,
    "optimizer.thaw_restarts": False,
    "optimizer.layer_decay": 1.0,
    "head.layers": "last",
}
# Tasks from the Python documentation; they need no files. Value: pieces of a pair, 0 for the recipe's.
OWN_TASKS = {"package": 0, "code_spans": 0, "next_sentence": 64, "sentence_order": 64}
_EDGES = ("pos", "constituents", "dependencies", "entities", "srl", "coref", "spr1", "spr2", "dpr", "relations")
# Published tasks, all of them: folder below the argument `data`, pieces of a text, and other settings.
TASKS: Mapping[str, tuple[str, int, Mapping[str, Any]]] = {
    "sst2": ("glue", 32, {}),
    "cola": ("glue", 24, {}),
    "mrpc": ("glue", 96, {}),
    "qqp": ("glue", 64, {}),
    "stsb": ("glue", 64, {}),
    "mnli": ("glue", 96, {}),
    "mnli_mismatched": ("glue", 96, {}),
    "qnli": ("glue", 96, {}),
    "rte": ("glue", 96, {}),
    "wnli": ("glue", 96, {}),
    "boolq": ("superglue", 128, {}),
    "cb": ("superglue", 128, {}),
    "copa": ("superglue", 48, {}),
    "multirc": ("superglue", 128, {}),
    "record": ("superglue", 128, {}),
    "wic": ("superglue", 64, {}),
    "wsc": ("superglue", 96, {}),
    "babylm_boolq": ("glue_filtered", 128, {}),
    "babylm_mnli": ("glue_filtered", 96, {}),
    "babylm_mrpc": ("glue_filtered", 96, {}),
    "babylm_multirc": ("glue_filtered", 128, {}),
    "babylm_qqp": ("glue_filtered", 64, {}),
    "babylm_rte": ("glue_filtered", 96, {}),
    "babylm_wsc": ("glue_filtered", 96, {}),
    "snli": ("snli_1.0", 64, {}),
    "scitail": ("SciTailV1.1", 64, {}),
    "imdb": ("aclImdb", 128, {}),
    "ag_news": ("ag_news_csv", 96, {}),
    "dbpedia": ("dbpedia_csv", 96, {}),
    "yelp_polarity": ("yelp_review_polarity_csv", 128, {}),
    "yelp_full": ("yelp_review_full_csv", 128, {}),
    "sst5": ("trees", 48, {}),
    "sst5_phrases": ("trees", 48, {}),
    "sms_spam": ("sms_spam", 48, {}),
    "trec": ("sentences", 24, {}),
    "mr": ("sentences", 48, {}),
    "subj": ("sentences", 48, {}),
    "ud": ("ud_english_ewt", 48, {}),
    "ud_xpos": ("ud_english_ewt", 48, {}),
    "wsd": ("WSD_Evaluation_Framework", 64, {}),
    "coarse_wsd": ("CoarseWSD-20", 64, {}),
    "ner": ("conll2003", 64, {}),
    "wnut17": ("wnut17", 48, {}),
    "wikiann": ("wikiann_en", 48, {}),
    "squad1": ("squad", 128, {"transfer.doc_stride": 64, "transfer.max_query": 32}),
    "squad2": ("squad", 128, {"transfer.doc_stride": 64, "transfer.max_query": 32}),
    "triviaqa": ("triviaqa", 128, {"transfer.doc_stride": 64, "transfer.max_query": 32}),
    **{f"edges_{name}": ("edges", 64, {}) for name in _EDGES},
    "codah": ("codah", 32, {}),
    "swag": ("swag", 64, {}),
    "race": ("RACE", 128, {}),
    "story_cloze": ("story_cloze", 64, {}),
    "dprd": ("dprd", 48, {}),
}
# Tasks whose texts are longer than the recipes' rows of 128, and BERT's longest rows: RACE's published numbers were obtained
# with 512 positions (fairseq, examples/roberta/README.race.md), and the others are read as it is. SQuAD has windows.
LONG = ("boolq", "multirc", "record", "babylm_boolq", "babylm_multirc", "imdb", "yelp_polarity", "yelp_full", "race")
LONG_ROWS = 512


@dataclass(frozen=True)
class Setting:
    """What the arguments of a study ask for.

    Attributes:
        scale: One of SCALES.
        preset: The study's own preset given as the scale; "" for one of SCALES.
        corpus: As `config.data.corpus`.
        seeds: Seeds of pretraining: 1, 2, ...
        tasks: Their names.
        data: Directory with a folder per task.
        pretraining: Overrides of pretraining for all models: rows, batches, steps; the published ones at scale paper.
        adam: Further overrides for models trained with Adam: rate, warm-up, dropout.
        transformer: Further overrides for transformers only: their body, rate and moments.
        mask_rate: Share of tokens that masked objectives mask; 0: the recipe's.
        finetune: Overrides of fine-tuning, with the prefix "finetune.".
        task_steps: Steps of fine-tuning from the arguments; 0: the scale's.
        rates: For `Study.rates`: factors of the pretraining rate, of which one is selected; empty with select=off.
        task_rates: For `Study.task_rates`: rates of fine-tuning from the arguments; empty: the scale's.
        labels: Numbers of labelled examples, 0 for all; empty: all, without a number in the task's name.
        uses: How tasks use the pretrained model: "study" (as the study says), "probe" (a linear layer on frozen states).
        others: The study's own arguments.
    """

    scale: str
    preset: str
    corpus: str
    seeds: Sequence[int]
    tasks: Sequence[str]
    data: str
    pretraining: Mapping[str, Any]
    adam: Mapping[str, Any]
    transformer: Mapping[str, Any]
    mask_rate: float
    finetune: Mapping[str, Any]
    task_steps: int
    rates: Sequence[float]
    task_rates: Sequence[float]
    labels: Sequence[int]
    uses: Sequence[str]
    others: Mapping[str, Any]

    @property
    def overrides(self) -> dict[str, Any]:
        """The scale's overrides: rows, batches, steps, rate, fine-tuning; add `transformer` for transformers."""
        return {**self.pretraining, **self.adam, **self.finetune}

    @property
    def own_optimizer(self) -> dict[str, Any]:
        """`overrides` for recipes with their own optimiser and dropouts, unlike the transformers'."""
        return {**self.pretraining, **self.finetune}

    def steps(self, recipe: str) -> int:
        """Steps of pretraining with a recipe (from `recipe`): the arguments', the scale's or the study's, else the recipe's."""
        return self.pretraining.get("train.steps") or load_config(recipe).train.steps

    def recipe(self, family: str, **arguments: Any) -> str:
        """A family's recipe at the scale's size: "experiments/pretrain/bert.py:size=tiny,corpus=pydocs"."""
        given = {"size": self.size(family), "corpus": self.corpus}
        if self.mask_rate and family in ("bert", "modern"):
            config = base_config()
            add_objectives(config, arguments.get("objectives", "mlm"))
            given |= {"mask_rate": self.mask_rate} if with_mask_rate(config) else {}
        given |= arguments
        return f"{PRETRAIN}/{family}.py:" + ",".join(f"{key}={value}" for key, value in given.items())

    def size(self, family: str) -> str:
        """The name of a family's size at this scale."""
        return SIZES[family].get(self.scale, self.scale)

    def numbers(self, family: str) -> Mapping[str, Any]:
        """Layers, width, heads and so on of a family's size at this scale."""
        return FAMILIES[family].sizes[self.size(family)]

    def published_rates(self, rates: Sequence[float]) -> Sequence[float]:
        """`task_rates`, or at scale=paper those of which the paper's authors selected one, if the arguments give none."""
        return self.task_rates or (rates if self.scale == "paper" else ())

    def at_rates(self, points: Sequence[Point], rates: Sequence[float]) -> list[Point]:
        """At scale=paper the points at each of these rates, where not all of a study are (`Study.select` has the axis).

        Without rates, the points themselves.
        """
        return list(points) if self.task_rates or self.scale != "paper" or not rates else product(points, rate_axis(rates))

    def restarts(self) -> list[Point]:
        """The seeds; at scale=paper of fine-tuning alone, on one pretraining."""
        if self.scale != "paper":
            return axis("seed", self.seeds)
        return product(axis("seed", [1]), axis("finetune.seed", self.seeds))

    def features(self, layers: str) -> dict[str, Any]:
        """Overrides for feature-based use: a frozen BERT's layers, named as in `LayerMix`, below a biLSTM of its width.

        Each direction is half as wide (Devlin et al. 2018, section 5.3, does not say which of the two its 768 are).
        At scale=paper rows are as long as in `in_documents`.
        """
        rows = _LARGE_FEATURES | {"train.steps": self.task_steps} if self.scale in ("base", "paper") else {}
        rows |= _DOCUMENTS if self.scale == "paper" else {}
        return {
            "finetune.recipe": "bert_features",
            "finetune.head.layers": layers,
            "finetune.head.hidden": self.numbers("bert")["width"] // 2,
            **{f"finetune.{key}": value for key, value in rows.items()},
        }

    def finetuning(self, recipe: str) -> dict[str, Any]:
        """Overrides for fine-tuning with a recipe of `bertlab.transfer.recipes`, in the scale's rows, batches and steps.

        From scale=base on, the recipe's own apply if it has any; else rows of 128, batches of 32 and ten epochs.
        """
        if self.scale not in ("base", "paper"):
            rows = {key: SMALL[key] for key in _SMALL_ROWS}
        else:
            rows = {} if "transfer.epochs" in RECIPES[recipe] else _LARGE_ROWS
        return {**{f"finetune.{key}": value for key, value in rows.items()}, **self.finetune, "finetune.recipe": recipe}

    def downstream(self, suits: Callable[[Kind], bool] | None = None, long_rows: int = LONG_ROWS) -> dict[str, dict[str, Any]]:
        """`Study.downstream` of the requested tasks, perhaps none; with `suits`, only of tasks whose kind suits the study.

        A task is there once for each number of `labels` and each of `uses`: "package_100", "package_100_probe".

        Args:
            suits: Whether the study can use a kind of task.
            long_rows: Pieces of a row of the tasks in LONG at scale=base and paper; 0: the recipe's.

        Raises:
            UserError: No task suits.
        """
        names = [name for name in self.tasks if not suits or suits(find_task(name).kind)]
        if suits and not names:
            wanted = " or ".join(name for name, kind in KINDS.items() if suits(kind))
            raise UserError(f"tasks={'+'.join(self.tasks)}: this study needs a task of {wanted}; name one")
        found = {}
        for name, count, use in itertools.product(names, self.labels or [0], self.uses):
            parts = [Path(name).stem, *([str(count or "all")] if self.labels else []), *(["probe"] if use == "probe" else [])]
            settings = (self._probe() if use == "probe" else {}) | self._settings(name, long_rows) | self._few(count)
            found["_".join(parts)] = settings | ({"task": name} if parts != [name] else {})
        return found

    def in_documents(self) -> dict[str, dict[str, Any]]:
        """`downstream`; at scale=paper `ner` reads sentences in their documents (Devlin et al. 2019, section 5.3)."""
        found = self.downstream()
        for name, given in found.items():
            if self.scale == "paper" and given.get("task", name) == "ner":
                given |= {"transfer.document_context": True, **_DOCUMENTS}
        return found

    def _few(self, count: int) -> dict[str, Any]:
        """A task's settings with so many labelled examples; where the scale counts passes, they would be too few steps."""
        if not count:
            return {}
        counts_passes = self.scale not in ("tiny", "mini") and not self.task_steps
        return {"task_data.limit": count} | ({"train.steps": FEW_STEPS} if counts_passes else {})

    def _probe(self) -> dict[str, Any]:
        """A task's settings for recipe `probe`, whatever the study's recipe says of layers and rates."""
        given = {key.removeprefix("finetune."): value for key, value in self.finetuning("probe").items()}
        return {key: PROBE_RESETS[key] for key in PROBE_RESETS if key not in given} | given

    def _settings(self, name: str, long_rows: int) -> dict[str, Any]:
        folder, length, more = TASKS.get(name) or ("", OWN_TASKS.get(name, 0), {})
        if self.scale in ("base", "paper"):  # the recipe's lengths
            length, more = long_rows if name in LONG else 0, {}
        data = {"task_data.directory": f"{self.data}/{folder}"} if folder else {}
        return data | ({"data.seq_len": length} if length else {}) | dict(more)


def read_setting(
    arguments: str | None,
    paper: Mapping[str, Any] | None = None,
    tasks: Sequence[str] = ("package", "code_spans"),
    seeds: int = 5,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    least: Mapping[str, int] | None = None,
    body: str = "today",
    **others: Any,
) -> Setting:
    """Reads a study's arguments: those below, and its own.

    `scale`, `corpus`, `seeds`, `steps`, `tasks`, `data` and `task_steps` say how much is trained on what. `body=paper` gives
    transformers the papers' body. `dtype=bfloat16` computes in it. `select=on` selects each variant's pretraining rate, and is
    the default at tiny, mini and small; `select=1/3+1` selects it from these multiples of the variant's own rate.
    `task_rates=3e-4+1e-3` fine-tunes at each rate, and `valid` selects one. With
    `labels=100+1000+all` each task is trained on so many labelled examples. `use=study+probe` adds a linear probe to each task.

    Args:
        arguments: Text after the colon.
        paper: Overrides at scale=paper: published hyper-parameters that the recipe lacks.
        tasks, seeds, body: Defaults of these arguments. `body` is a key of BODIES and counts at tiny and mini; the larger
            scales have the papers' body.
        presets: Scales of the study beside SCALES: name -> the arguments it stands for, including `scale`.
        least: "steps" or "task_steps" -> the smallest value the study allows; default 1.
        **others: The study's own arguments with their defaults.

    Raises:
        UserError: An argument is unknown, of the wrong type or too small, the scale, a task or another name is unknown, or a
            task lacks `data`.
    """
    defaults = {"scale": "tiny", "corpus": "pydocs", "seeds": seeds, "steps": 0, "tasks": "+".join(tasks), "data": ""}
    defaults |= {"task_steps": 0, "task_rates": "", "select": "", "labels": "", "use": "study", "body": body}
    defaults |= {"dtype": "float32", **others}
    presets, values = presets or {}, parse_arguments(arguments, **defaults)
    preset = values["scale"] if values["scale"] in presets else ""
    if preset:  # arguments given explicitly take precedence
        values = parse_arguments(arguments, **defaults | presets[preset]) | {"scale": presets[preset]["scale"]}
    scale = values["scale"]
    if scale not in SCALES:
        raise UserError(f"scale={scale}: {did_you_mean(scale, (*presets, *SCALES))}")
    values["select"] = values["select"] or ("on" if scale in SELECTING else "off")
    _check_arguments(values, {"steps": 1, "task_steps": 1} | dict(least or {}))
    pretraining, adam, finetune = _of_scale(values, paper or {})
    small = scale in ("tiny", "mini")
    return Setting(
        scale=scale,
        preset=preset,
        corpus=values["corpus"],
        seeds=list(range(1, values["seeds"] + 1)),
        tasks=_named(values["tasks"]),
        data=values["data"],
        pretraining=pretraining,
        adam=adam,
        transformer=BODIES[values["body"]] if small else {},
        mask_rate=MASK_RATE if small and values["body"] == "today" else 0.0,
        finetune=finetune,
        task_steps=values["task_steps"],
        rates=_factors(values["select"]),
        task_rates=_task_rates(values["task_rates"]),
        labels=_label_counts(values["labels"]),
        uses=values["use"].split("+"),
        others={key: values[key] for key in others},
    )


def tasks_in(data: str, names: Iterable[str] = tuple(TASKS)) -> list[str]:
    """Those of these published tasks whose files are in the folder `data`, in their order."""
    return [name for name in names if find_task(name).is_in(Path(data, TASKS[name][0]).expanduser())]


def _check_arguments(values: Mapping[str, Any], least: Mapping[str, int]) -> None:
    """Refuses values that no study can have."""
    if values["seeds"] < 1:
        raise UserError(f"seeds={values['seeds']}: give at least 1")
    for name, fewest in least.items():
        if values[name] and values[name] < fewest:
            raise UserError(f"{name}={values[name]}: give at least {fewest} for this study, or 0 to use the scale's own")
    names, uses = _named(values["tasks"]), values["use"].split("+")
    if unknown := [name for name in names if not name.endswith(".py") and name not in (*OWN_TASKS, *TASKS)]:
        known = ", ".join((*OWN_TASKS, *TASKS))
        raise UserError(f"tasks={values['tasks']}: '{unknown[0]}' is neither the file of a task (mine.py) nor one of {known}")
    for name in names:
        if name.endswith(".py"):
            find_task(name)
    if not values["data"] and (published := [name for name in names if name in TASKS]):
        raise UserError(f"tasks={values['tasks']}: {published[0]} is read from files; add data=DIR with its folder")
    if values["body"] not in BODIES:
        raise UserError(f"body={values['body']}: {did_you_mean(values['body'], BODIES)}")
    if not set(uses) <= {"study", "probe"} or len(set(uses)) < len(uses):
        raise UserError(f"use={values['use']}: give study, probe or study+probe")


def _of_scale(values: Mapping[str, Any], paper: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The overrides of the scale for pretraining, for Adam and for fine-tuning, with the arguments' own steps and dtype."""
    scale = values["scale"]
    pretraining = {**PRETRAINING[scale], **(paper if scale == "paper" else {})}
    adam, finetune = dict(ADAM[scale]), dict(FINETUNING[scale])
    if values["dtype"] != "float32":
        pretraining["model.dtype"] = values["dtype"]
    if steps := values["steps"]:  # a short trial evaluates and warms up once
        every = {key: min(pretraining[key], steps) for key in ("train.eval_every", "train.log_every")}
        pretraining |= {"train.steps": steps, **every}
        warmed = pretraining if scale == "paper" else adam
        if "optimizer.warmup_steps" in warmed:
            warmed["optimizer.warmup_steps"] = min(warmed["optimizer.warmup_steps"], steps // 10)
        if steps < 100:  # too short for phases
            pretraining.pop("train.phases", None)
    if values["task_steps"]:
        finetune["finetune.train.steps"] = values["task_steps"]
    return pretraining, adam, finetune


def _named(tasks: str) -> list[str]:
    """The names in "sst2+ner"."""
    return [name for name in tasks.split("+") if name]


def _label_counts(text: str) -> list[int]:
    """The numbers in "100+1000+all", 0 for "all"."""
    counts = [0 if part == "all" else int(part) if part.isdecimal() else -1 for part in text.split("+") if part]
    if len(set(counts)) < len(counts) or any(count < 0 or part == "0" for count, part in zip(counts, text.split("+"))):
        raise UserError(f"labels={text}: give numbers of examples, each once, as in labels=100+1000+all")
    return counts


def _factors(select: str) -> Sequence[float]:
    """`Study.rates` of the argument `select`: those of "on", none of "off", or those in "1/3+1"."""
    if select in ("on", "off"):
        return RATES if select == "on" else ()
    try:
        return [float(Fraction(part)) for part in select.split("+")]
    except (ValueError, ZeroDivisionError):
        expected = "give on, off, or factors of each variant's own rate such as 1/3+1+3"
        raise UserError(f"select={select}: {expected}, or omit it to use the scale's own") from None


def _task_rates(text: str) -> list[float]:
    """The rates in "3e-4+1e-3"."""
    try:
        rates = [float(part) for part in text.split("+") if part]
    except ValueError:
        rates = [0.0]
    if len(set(rates)) < len(rates) or len(rates) == 1 or not all(0 < rate < 1 for rate in rates):
        raise UserError(f"task_rates={text}: give two or more rates between 0 and 1, each once, as in task_rates=3e-4+1e-3")
    return rates

"""The named workloads: each is a config of bertlab, and the same work for a rival.

Those for GPUs and TPUs need no text: their rows are made up. They stand in the order of importance.
"""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bertlab.config import SHIPPED, load_config, split_list
from bertlab.errors import UserError


@dataclasses.dataclass(frozen=True)
class Workload:
    """One row of the table.

    Attributes:
        name: as given to --only.
        what: a short description.
        suite: the machine it is for: "cpu", "gpu", "tpu", or "device" for both of these.
        kind: "step" (training steps of the loop), "replicas" (those of several models at once), "attention" (a layer's, in each
            implementation), "start" (a new process up to its first step), "rows" (the input pipeline), "rows-apart" (the same,
            with one process for each of `data.shards`), "prepare" (text to rows, up to the first batch), or "finetune" (eight
            seeds on a task).
        recipe: file under experiments/pretrain, with its arguments.
        settings: config keys that differ from the recipe.
        dtype: of the computation; if it is not float32, the rival uses autocast.
        target: our rate divided by the rival's; 0 for no target.
        limit: seconds per round; 0 for no limit.
        of_ceiling: share of the FLOP/s of a large matrix product; 0 for no aim.
        memory: bytes of our side; 0 for no limit.
        cores: CPU cores that each side has, the same ones in turns, as a worker of a sweep has; 0: all.
        rival: the only sides of the rival to measure, such as "compiled,gathered"; "": all that fit the kind.
        tokens: per second; 0 for no aim.
        positions: per second, for rows that the rival's model has no attention mask for; 0 for no aim.
    """

    name: str
    what: str
    suite: str
    kind: str
    recipe: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dtype: str = "float32"
    target: float = 0.0
    limit: float = 0.0
    of_ceiling: float = 0.0
    memory: float = 0.0
    cores: int = 0
    rival: str = ""
    tokens: float = 0.0
    positions: float = 0.0

    def config(self) -> ConfigDict:
        """Our side's config."""
        recipe, _, arguments = self.recipe.partition(":")
        path = f"{SHIPPED / 'experiments/pretrain' / recipe}:{arguments}"
        return load_config(path, {"model.dtype": self.dtype, "evaluate.sentences": 0, **self.settings})

    @property
    def made_up(self) -> bool:
        """Whether rows are random tokens, so that nothing is prepared."""
        return self.suite != "cpu"

    def rehearsal(self) -> dict[str, Any]:
        """Settings that make a workload for a device so small that a CPU does it in seconds."""
        small = {"data.tokenizer.vocab_size": 512, "data.batch_size": 4, "model.layers": 2, "model.hidden": 64}
        transformer = {"model.width": 128, "model.heads": 2, "data.seq_len": 128}  # as few as a kernel takes
        small |= transformer if self.recipe.startswith(("bert", "gpt")) else {"model.width": 32}
        small |= {name: 8 for name in self.settings if name.endswith(".max_predictions")}
        if self.settings.get("model.attention") == "pallas":  # a CPU interprets it, and lacks some products of bfloat16
            small |= {"model.dtype": "float32"}
        return small | ({"data.seq_len": 64, "data.pack_length": 128} if "data.pack_length" in self.settings else {})


class Runner(contextlib.ExitStack):
    """One side's work. `round(steps)` does it and returns what it counted; `close()` releases what it holds.

    Attributes:
        facts: what is known before the first round.
    """

    def __init__(self):
        super().__init__()
        self.facts: dict[str, float] = {}

    def round(self, steps: int) -> dict[str, float]:
        """Runs this many steps, or all of the work if its kind has no steps.

        Returns:
            Some of `tokens` (without padding), `positions`, `flops` and `score`; `seconds` if the runner has its own clock.
        """
        raise NotImplementedError


# The kinds measured in tokens per second; a round of the others does all of the work.
RATES = ("step", "replicas", "rows", "rows-apart")
# Of the fine-tunings, for both sides.
SEEDS, LEARNING_RATE = 8, 5e-4

# As many pieces as BERT's uncased vocabulary, learnt from this machine's Python documentation.
_BERT = {
    "data.tokenizer.kind": "wordpiece",
    "data.tokenizer.vocab_size": 30_522,
    "data.tokenizer.lowercase": True,
    "data.batch_size": 32,
    "data.seq_len": 128,
    "objectives.mlm.max_predictions": 20,
    "train.steps": 1_000_000,
    "train.phases": "",
    "data.dupe_factor": 0,
}
_LSTM = {"data.batch_size": 32, "train.steps": 1_000_000}
# Small models as sweeps train them: 2,048 positions a step, 2,048 words of the synthetic language, which is soon prepared.
_SMALL = {
    "data.corpus": "synthetic",
    "data.synthetic.documents": 2000,
    "data.synthetic.vocab_size": 2200,
    "data.tokenizer.kind": "words",
    "data.tokenizer.vocab_size": 2048,
    "data.format": "full_sentences",
    "data.batch_size": 32,
    "data.seq_len": 64,
    "model.dropout": 0.0,
    "train.steps": 1_000_000,
}
_SMALL_128 = _SMALL | {"data.batch_size": 16, "data.seq_len": 128}
_SMALL_MLM = "bert.py:size=tiny,objectives=mlm"
_SMALL_LTR = "bert.py:size=tiny,objectives=ltr"
_LEFT_TO_RIGHT = {"model.direction": "left-to-right"}
REPLICAS = 16
# One device, like the rival.
_DEVICE = {"mesh.data": 1, "train.steps": 1_000_000}
_PRETRAINING = _DEVICE | {"data.tokenizer.vocab_size": 30_522, "train.phases": ""}
_512 = _PRETRAINING | {"data.batch_size": 32, "data.seq_len": 512, "objectives.mlm.max_predictions": 77}
_GPT2 = _DEVICE | {"data.tokenizer.vocab_size": 50_257, "data.batch_size": 16, "data.seq_len": 1024}
_SMALLEST = _DEVICE | {name: _SMALL[name] for name in ("data.format", "data.batch_size", "data.seq_len", "model.dropout")}
_SMALLEST |= {"data.tokenizer.vocab_size": 2048}
_PACKED = {"data.seq_len": 256, "data.pack_length": 512, "data.pack_examples": 2}
_128 = {"data.batch_size": 256, "data.seq_len": 128, "objectives.mlm.max_predictions": 20}
# On a TPU these stay below the 15.75 GiB of a v5e (tests/parity/test_plan.py), and no choice of attention comes first.
_IN_A_KERNEL = {"model.attention": "pallas", "model.remat": "dots"}
_IN_PARTS = {"data.batch_size": 16, "train.micro_batches": 4}
_PAIRS = "bert.py:size={},objectives=mlm+nsp"

WORKLOADS = (
    Workload("bert-tiny", "BERT-Tiny, MLM+NSP", "cpu", "step", _PAIRS.format("tiny"), _BERT, target=8.0),
    Workload("bert-mini", "BERT-Mini, MLM+NSP", "cpu", "step", _PAIRS.format("mini"), _BERT, target=5.0),
    Workload("bert-tiny-bf16", "BERT-Tiny, MLM+NSP", "cpu", "step", _PAIRS.format("tiny"), _BERT, "bfloat16", target=5.0),
    Workload("bert-mini-bf16", "BERT-Mini, MLM+NSP", "cpu", "step", _PAIRS.format("mini"), _BERT, "bfloat16", target=2.5),
    *(
        Workload(
            f"small-{name}-{length}{'-bf16' if dtype == 'bfloat16' else ''}",
            f"BERT-Tiny of 2,048 words, {name.upper()}, rows of {length}, one core",
            "cpu", "step", recipe, settings, dtype, target=1.5, cores=1, rival=rival, tokens=30e3,
        )
        for dtype, length, sizes in (("float32", 64, _SMALL), ("float32", 128, _SMALL_128), ("bfloat16", 64, _SMALL))
        for name, recipe, settings, rival in (
            ("mlm", _SMALL_MLM, sizes, "gathered"),
            ("ltr", _SMALL_LTR, sizes | _LEFT_TO_RIGHT, "compiled"),
        )
    ),
    Workload(
        "awd-lstm-small",
        "AWD-LSTM, 2 layers of 512, width 256",
        "cpu",
        "step",
        "awd_lstm.py:size=tiny",
        _LSTM | {"model.width": 256, "model.hidden": 512, "data.stream.vary_length": False},
        target=1.2,
    ),
    Workload("elmo-small", "ELMo small, 2 layers of 1,024 to 128", "cpu", "step", "elmo.py:size=small", _LSTM, target=1.2),
    Workload("start", "import, compile, first step of BERT-Tiny", "cpu", "start", _PAIRS.format("tiny"), _BERT, limit=10.0),
    Workload(
        "start-cached", "the same, compiled before (persistent cache)", "cpu", "start", _PAIRS.format("tiny"), _BERT, limit=4.0
    ),
    Workload("rows", "rows of BERT-Tiny's batches, without training", "cpu", "rows", _PAIRS.format("tiny"), _BERT),
    Workload(
        "rows-4", "the same, each of four processes a quarter", "cpu", "rows-apart", _PAIRS.format("tiny"),
        _BERT | {"data.shards": 4},
    ),
    Workload(
        "prepare", "100 MB of text to rows, two processes", "cpu", "prepare", _PAIRS.format("tiny"),
        _BERT | {"data.workers": 2}, target=2.0, memory=500e6,
    ),
    Workload(
        "finetune", "BERT-Tiny on 2,500 examples, eight seeds", "cpu", "finetune", _PAIRS.format("tiny"),
        _BERT | {"train.steps": 0, "train.eval_batches": 1}, target=3.0,
    ),
    Workload(
        "bert-base-512", "BERT-Base, MLM+NSP, 32 rows of 512", "gpu", "step", _PAIRS.format("base"), _512, "bfloat16", 1.3,
        of_ceiling=0.45, rival="compiled,gathered",
    ),
    Workload(
        "bert-base-kernel", "BERT-Base, MLM+NSP, 32 rows of 512", "tpu", "step", _PAIRS.format("base"), _512 | _IN_A_KERNEL,
        "bfloat16", of_ceiling=0.45,
    ),
    Workload(
        "bert-large-512", "BERT-Large, MLM+NSP, 32 rows of 512", "gpu", "step", _PAIRS.format("large"), _512, "bfloat16",
        1.3, rival="gathered",
    ),
    Workload(
        "bert-large-kernel", "BERT-Large, MLM+NSP, 16 rows of 512 in 4 parts, as planned", "tpu", "step",
        _PAIRS.format("large"), _512 | _IN_A_KERNEL | _IN_PARTS, "bfloat16",
    ),
    Workload(
        "attention-512", "BERT-Large's attention, 32 rows of 512", "device", "attention", _PAIRS.format("large"), _512,
        "bfloat16",
    ),
    Workload(
        "gpt2-1024", "GPT-2 124M, 16 rows of 1,024", "gpu", "step", "gpt.py:size=gpt2", _GPT2, "bfloat16", 1.0,
        rival="compiled",
    ),
    Workload(
        "gpt2-kernel", "GPT-2 124M, 8 rows of 1,024, as planned", "tpu", "step", "gpt.py:size=gpt2",
        _GPT2 | _IN_A_KERNEL | {"data.batch_size": 8}, "bfloat16",
    ),
    Workload(
        "elmo-128", "ELMo on subword ids, 64 rows of 128", "device", "step", "elmo.py:size=original",
        _DEVICE | {"data.tokenizer.vocab_size": 30_522, "data.batch_size": 64, "data.seq_len": 128}, "bfloat16", 1.0,
        rival="eager",
    ),
    Workload("tiny-1", "one BERT-Tiny of 2,048 words", "device", "step", _SMALL_MLM, _SMALLEST, rival="gathered"),
    Workload(
        f"tiny-{REPLICAS}", f"{REPLICAS} of them in one program", "device", "replicas", _SMALL_MLM, _SMALLEST,
        rival="gathered",
    ),
    Workload(
        "bert-large-float8", "BERT-Large with products of float8, 32 rows of 512", "gpu", "step", _PAIRS.format("large"),
        _512 | {"model.products": "float8"}, "bfloat16", rival="gathered",
    ),
    Workload(
        "attention-1024", "GPT-2's attention, 16 rows of 1,024", "device", "attention", "gpt.py:size=gpt2", _GPT2, "bfloat16",
    ),
    Workload(
        "bert-large-packed", "BERT-Large, MLM+NSP, 32 rows of 512, two examples each", "gpu", "step", _PAIRS.format("large"),
        _512 | _PACKED, "bfloat16", positions=700 / 2 * 512,  # 700 examples a second
    ),
    Workload(
        "bert-large-packed-kernel", "BERT-Large, MLM+NSP, 16 rows of 512 in 4 parts, two examples each", "tpu", "step",
        _PAIRS.format("large"), _512 | _PACKED | _IN_A_KERNEL | _IN_PARTS, "bfloat16", positions=700 / 2 * 512,
    ),
    Workload(
        "bert-base-128", "BERT-Base, MLM+NSP, 256 rows of 128", "gpu", "step", _PAIRS.format("base"), _512 | _128, "bfloat16",
        1.3, of_ceiling=0.45, rival="gathered",
    ),
    Workload(
        "bert-base-128-kernel", "BERT-Base, MLM+NSP, 256 rows of 128 in 4 parts", "tpu", "step", _PAIRS.format("base"),
        _512 | _IN_A_KERNEL | _IN_PARTS | _128, "bfloat16", of_ceiling=0.45,
    ),
    Workload(
        "awd-lstm", "AWD-LSTM, 3 layers of 1,150", "device", "step", "awd_lstm.py:size=original",
        _DEVICE | {"data.stream.vary_length": False, "data.tokenizer.vocab_size": 33_278}, "float32", 1.0, rival="eager",
    ),
)  # fmt: skip


def chosen(suite: str, only: str = "") -> list[Workload]:
    """The workloads of a suite ("cpu", "gpu" or "tpu"; "": of all), or those in the comma-separated list `only`.

    Raises:
        UserError: the suite has no workload of one of the names.
    """
    suites = {"": ("cpu", "device", "gpu", "tpu"), "cpu": ("cpu",)}.get(suite, (suite, "device"))
    known = {workload.name: workload for workload in WORKLOADS if workload.suite in suites}
    names = split_list("--only", only, expected="workloads") if only else list(known)
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"--only={only}: {unknown[0]} is no workload of --suite={suite}; choose from {', '.join(known)}")
    return [known[name] for name in names]

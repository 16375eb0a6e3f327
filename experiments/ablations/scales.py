"""What each scale sets: sizes, rows, batches, steps, rates."""

from collections.abc import Mapping
from typing import Any

from bertlab.transfer.recipes import RECIPES


def under(group: str, settings: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Overrides with the dotted names of a group or stage: `under("optimizer", b2=0.98)` is
    {"optimizer.b2": 0.98}."""
    return {f"{group}.{key}": value for key, value in {**(settings or {}), **more}.items()}


SCALES = ("tiny", "mini", "small", "base", "paper")
# Sizes of the families at each scale, unless the size has the scale's name.
SIZES = {
    "bert": {"paper": "base"},
    "gpt": {"base": "gpt1", "paper": "gpt1"},
    "modern": {"paper": "base"},
    "elmo": {"base": "medium", "paper": "original"},
    "awd_lstm": {"small": "original", "base": "original", "paper": "original"},
    "static": {"small": "original", "base": "original", "paper": "original"},
}
# Rows, batches and steps of every pretraining; None is the study's or else the recipe's. A run
# takes 30 to 50 minutes of one CPU core at scale tiny, a night of two at mini.
KEYS = ("data.seq_len", "data.batch_size", "data.tokenizer.vocab_size", "train.steps")
KEYS += ("train.eval_every", "train.log_every", "train.checkpoint_every")
VALUES = {
    "tiny": (128, 32, 2048, 6000, 1000, 100, 2000),
    "mini": (128, 32, 8192, 40_000, 2000, 500, 2000),
    "small": (128, 128, 16_384, 100_000, 5000, 1000, 5000),
    "base": (128, 256, 30_522, 250_000, 10_000, 1000, 10_000),
    "paper": (None, None, None, None, 10_000, 1000, 10_000),
}
# Small checkpoints are kept along the way, so studies of single tables and of trajectories share
# their pretrainings.
SMALL_RUNS = {"data.valid_fraction": 0.1, "data.test_fraction": 0.1, "train.keep": "log"}
# Models after BERT have rows of one length from the first step, and new masks in each epoch.
ONE_LENGTH = {"train.phases": "", "data.dupe_factor": 0}
# Rows and pieces of the recipes' published sizes return to those that all models share below scale
# paper.
_SAME_TEXT = {**ONE_LENGTH, **under("data.tokenizer", kind="unigram", lowercase=False)}
# For bodies trained with Adam: transformers, and LSTMs on subwords. The rate at tiny is from trials
# of ELMo: 1e-3, 3e-3 and 1e-2 have 5.18, 4.80 and 4.78 nats on Wikipedia after 1.3 M tokens.
ADAM = {
    "tiny": {"model.dropout": 0.0, "optimizer.learning_rate": 3e-3},
    "mini": {"model.dropout": 0.0, "optimizer.warmup_steps": 1000},
    "small": {"optimizer.learning_rate": 5e-4, "optimizer.warmup_steps": 5000},
    "base": {"optimizer.learning_rate": 1e-4, "optimizer.warmup_steps": 10_000, **_SAME_TEXT},
    "paper": {},
}
# Bodies of transformers at small scales. With the papers' body and optimiser, a narrow masked model
# is still on the plateau of word frequencies after 4 M tokens; today's has left it
# (experiments/README.md has the trials). All objectives of a study have the same body.
BODIES = {
    "paper": {"model.init_stddev": 0.05, "optimizer.learning_rate": 1e-3},
    "today": {
        **under("model", init_stddev=0.05, position_encoding="rotary", use_bias=False),
        **under("model", norm="rms_norm", norm_placement="pre", final_norm=True),
        **under("optimizer", learning_rate=6e-3, b2=0.98),  # RoBERTa's β2
    },
}
# Share of masked tokens with today's body: the more are asked, the sooner a small model learns
# (Wettig et al. 2022: 40 %).
MASK_RATE = 0.3
# Factors of each variant's own pretraining rate, of which its validation loss selects one. Larger
# scales have published rates.
RATES = (1 / 3, 1.0, 3.0)
SELECTING = ("tiny", "mini", "small")
FINETUNING = {
    "tiny": {"recipe": "small"},
    "mini": {"recipe": "small", "train.steps": 1000},
    "small": {"recipe": "small", "train.steps": 0, "transfer.epochs": 3.0},
    "base": {"recipe": "bert"},
    "paper": {"recipe": "bert_paper"},
}
# Pieces, rows and steps of models of different papers that are to read the same, so batches are not
# the papers'; rate, warm-up and optimiser are each recipe's.
SAME_ROWS = {"train.steps": 1_000_000, "data.seq_len": 512, "data.batch_size": 64, **ONE_LENGTH}
SAME_ROWS |= under("data.tokenizer", kind="wordpiece", vocab_size=30_522, lowercase=True)
# To compare models that read in different directions: a left-to-right model has seen a whole word
# only at its last piece.
LAST_PIECE = {"finetune.transfer.word_piece": "last"}
# Replaces a pretrained model's states by random embeddings that are trained with the task.
FRESH_EMBEDDINGS = under(
    "finetune", {"transfer.random": True, "optimizer.frozen": "", "head.layers": "layer:0"}
)
# Rows of a task at small scales: buckets, so that short texts cost little and few are cut.
SMALL_ROWS = {"data.seq_len": 128, "data.buckets": (32, 64)}
SMALL_WINDOWS = {"transfer.doc_stride": 64, "transfer.max_query": 32}  # of SQuAD
# Rows, batches and passes of a fine-tuning at large scales, unless a recipe has its own. Features
# are read as often as recipe bert reads its examples.
LARGE_ROWS = {"data.seq_len": 128, "data.batch_size": 32}
LARGE_ROWS |= {"train.steps": 0, "transfer.epochs": 10.0}
LARGE_FEATURES = LARGE_ROWS | {"transfer.epochs": 3.0}
# Rows for names in documents: as long as BERT reads, or shorter where a text is (Devlin et al.
# 2019, section 5.3, prints no length).
DOCUMENTS = {"data.seq_len": 512, "data.buckets": (128, 256)}
FEW_STEPS = 1000  # of a fine-tuning on few labelled examples where a scale counts passes
# What a study's recipe may have set of optimiser and head, as recipe `probe` has it.
PROBE_RESETS = {
    **{key: RECIPES["probe"][key] for key in ("optimizer.learning_rate", "optimizer.frozen")},
    **under("optimizer", thaw="all", thaw_steps=0, thaw_stages=0, thaw_restarts=False),
    "optimizer.layer_decay": 1.0,
    "head.layers": "last",
}

"""Every key of a config in one table: default, meaning, range, and when it may change.

`base_config` (bertlab/config.py), the checks of single keys, `bertlab keys` and docs/keys.md are all made from it. Keys that
depend on each other are checked in `bertlab.train.checks`; an objective's own settings are the fields of its class.
"""

import dataclasses
import functools
import math
import operator
import re
from collections.abc import Mapping
from typing import Any

from bertlab.errors import UserError


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a config.

    Attributes:
        name: dotted, without the leading "config.".
        default: its value, or a type (int, float, bool, str, tuple) if it has none: then the family and size decide.
        meaning: what it sets.
        choices: all values it can have; () if they cannot be listed.
        least: smallest value; None for no bound.
        above: value that it must exceed; None for no bound.
        below: value that it must stay below; None for no bound.
        only_with: conditions such as "decay=constant" or "local_window>0" on keys of the same group. If one does not hold, the
            key has no effect, and any value but the default is refused.
        on_resume: it may change when a run is resumed: it changes nothing that is trained or logged.
        in_phases: it may differ between the phases of a run.
        own: with `init_from`, it may differ from the run that the parameters come from.
        of_shape: of config.model: it is a value of the body's shape.
    """

    name: str
    default: Any
    meaning: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    below: float | None = None
    only_with: tuple[str, ...] = ()
    on_resume: bool = False
    in_phases: bool = False
    own: bool = False
    of_shape: bool = True

    @property
    def group(self) -> str:
        """ "optimizer" of "optimizer.name"; "" at the top."""
        return self.name.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        """ "name" of "optimizer.name"."""
        return self.name.rpartition(".")[2]

    @property
    def unset(self) -> bool:
        """Whether it has no default of its own."""
        return isinstance(self.default, type)

    def values(self) -> str:
        """The values that it can have, in words."""
        if self.choices:
            return ", ".join(self.choices)
        kind = self.default if self.unset else type(self.default)
        word = {int: "whole number", float: "number", bool: "True or False", str: "text"}.get(kind, kind.__name__)
        return f"{word} {self.bounds()}".strip()

    def bounds(self) -> str:
        """The range of a number, in words."""
        known = [("at least", self.least), ("above", self.above), ("below", self.below)]
        return " and ".join(f"{how} {bound}" for how, bound in known if bound is not None)

    def check(self, value: Any, others: Mapping[str, Any]) -> None:
        """Refuses a value that the key cannot have.

        Args:
            value: None if it is not set.
            others: values of the same group, by leaf, for `only_with`.

        Raises:
            UserError: names the key, the value and the values that it can have.
        """
        shown = f"config.{self.name}={value!r}"
        if value is None:
            return
        if self.choices and value not in self.choices:
            raise UserError(f"{shown} is not known; choose one of {', '.join(self.choices)}")
        bounds = ((self.least, operator.ge), (self.above, operator.gt), (self.below, operator.lt))
        if any(bound is not None and not holds(value, bound) for bound, holds in bounds):
            raise UserError(f"{shown} must be {self.bounds()}")
        if self.only_with and (self.unset or value != self.default):
            for condition in self.only_with:
                if not _holds(condition, others):
                    raise UserError(
                        f"{shown} has no effect without {condition}; leave it {'unset' if self.unset else self.default}"
                    )


def _holds(condition: str, values: Mapping[str, Any]) -> bool:
    name, relation, wanted = re.fullmatch(r"(\w+)(=|>)(.+)", condition).groups()
    if values.get(name) is None:  # the family decides
        return True
    return values[name] > float(wanted) if relation == ">" else str(values[name]) in wanted.split(" or ")


_LEARNED, _ROTARY, _LOCAL = "position_encoding=learned", "position_encoding=rotary", "local_window>0"
_CHARACTERS, _STAGES = "token_encoder=characters", "thaw=gradual or chain"
_SHARE = dict(least=0, below=1)

KEYS = (
    Key("seed", 0, "seed of initial values, masks and dropout", least=-(2**31), below=2**31),
    # data
    Key("data.corpus", "pydocs", "pydocs, text:GLOB, tfds:NAME or synthetic"),
    Key("data.format", "segment_pair",
        "how documents become rows: segment_pair, sentence_pair, full_sentences, doc_sentences, stream or cooccurrence"),
    Key("data.seq_len", 128, "tokens per row", least=8, in_phases=True),
    Key("data.batch_size", 32, "rows per batch", least=1, in_phases=True),
    Key("data.seed", 0, "seed of the order of documents, apart from `seed`: a study's seeds can read the same tokens", least=0),
    Key("data.dupe_factor", 0, "readings of a document after which its random choices repeat (BERT: 10); 0: never", least=0),
    Key("data.directory", "", "directory of prepared corpora; empty: $BERTLAB_CACHE or ~/.cache/bertlab", on_resume=True),
    Key("data.workers", 0, "processes for preparation; 0: one per core", on_resume=True),
    Key("data.valid_fraction", 0.05, "share of documents (for long ones, of their sections) held out as valid"),
    Key("data.test_fraction", 0.05, "share of documents held out as test"),
    Key("data.shards", 0, "parts of the text read in parallel for each batch; 0: one per process"),
    Key("data.shuffle_window", 1024, "rows per shuffle window"),
    Key("data.pack_length", 0, "tokens of a packed row: several rows without their padding; 0: off", in_phases=True),
    Key("data.pack_examples", 8, "most rows in a packed row"),
    Key("data.buckets", (), "lengths such as (32, 64): each batch has rows of similar length, cut to one of these or seq_len",
        in_phases=True),
    Key("data.tokenizer.kind", "unigram", "unigram, bpe, wordpiece or words"),
    Key("data.tokenizer.vocab_size", 4096, "vocabulary size, including special tokens"),
    Key("data.tokenizer.path", "", "a saved tokenizer or a vocab.txt, instead of training one"),
    Key("data.tokenizer.lowercase", False, "lowercase the text"),
    Key("data.tokenizer.sample_sentences", 1_000_000, "sentences to train the tokenizer on"),
    Key("data.tokenizer.seed", 0, "seed of that sample"),
    Key("data.segment_pair.short_probability", 0.1, "share of rows with a shorter target length (BERT)"),
    Key("data.segment_pair.random_next_probability", 0.5, "share of negative pairs"),
    Key("data.segment_pair.force_random_if_single", True, "a chunk of one sentence always gets a random next segment (BERT)"),
    Key("data.segment_pair.own_document_retries", 10, "draws to find another document; after that it may be the same (BERT)"),
    Key("data.segment_pair.negatives", "random", "random: B from another document (nsp); swapped: B before A (sop)"),
    Key("data.sentence_pair.random_next_probability", 0.5, "share of negative pairs"),
    Key("data.sentence_pair.force_random_if_single", False, "a document of one sentence always gets a random next sentence"),
    Key("data.sentence_pair.own_document_retries", 10, "draws to find another document; after that it may be the same"),
    Key("data.sentence_pair.negatives", "random", "random: B from another document (nsp); swapped: B before A (sop)"),
    Key("data.full_sentences.attend_across_documents", False, "attention crosses document boundaries in a row"),
    Key("data.full_sentences.document_separator", True, "an extra [SEP] between documents"),
    Key("data.stream.wrap", "document", "document: [SEP] after each; sentence: [CLS] sentence [SEP] (ELMo); none"),
    Key("data.stream.backward", False, "a second, independent stream for right-to-left models"),
    Key("data.stream.attend_across_documents", True, "states carry over from one document to the next"),
    Key("data.stream.vary_length", False, "rows of about seq_len, sometimes half, with the rate in proportion (AWD-LSTM)"),
    Key("data.cooccurrence.window", 15, "words on each side that count as context (GloVe)"),
    Key("data.characters", False, "also the characters of each word; needs tokenizer.kind=words"),
    Key("data.tfds.split", "train", "split of the TFDS dataset"),
    Key("data.tfds.field", "text", "field of the TFDS dataset that contains the text"),
    Key("data.synthetic.documents", 2000, "number of documents in the synthetic language"),
    Key("data.synthetic.vocab_size", 64, "number of words in its vocabulary"),
    Key("data.synthetic.topics", 4, "number of topics"),
    Key("data.synthetic.states", 8, "number of hidden states"),
    Key("data.synthetic.seed", 0, "seed of the language"),
    Key("data.synthetic.sentence_words", (4, 12), "shortest and longest sentence, in words"),
    Key("data.synthetic.document_sentences", (4, 40), "shortest and longest document, in sentences"),
    Key("init_from", "", "a run or imported directory to start from: its parameters, model shape and tokenizer"),
    Key("init_step", int, "the step of its checkpoint (train.keep); unset: the last", least=0),
    # model
    Key("model.family", "bert", "bert, gpt, modern, elmo, awd_lstm or static", of_shape=False),
    Key("model.size", "tiny", "a published size (bertlab models)", of_shape=False),
    Key("model.direction", str, "what a token may see", ("bidirectional", "left-to-right", "right-to-left"),
        own=True, of_shape=False),
    Key("model.dtype", "float32", "dtype of the computation; parameters are float32", ("float32", "bfloat16"),
        own=True, of_shape=False),
    Key("model.remat", "none", "what the backward pass recomputes: nothing, all except matrix products, or each layer",
        ("none", "dots", "full"), on_resume=True, own=True),
    Key("model.scan_layers", bool, "layers in a loop (compiles faster) or unrolled; unset: unrolled if few and on a CPU",
        on_resume=True, own=True),
    Key("model.output_rows", int, "rows of logits computed at a time; 0: all; unset: chosen for the device",
        least=0, on_resume=True, of_shape=False),
    Key("model.attention", "auto", "implementation of attention; auto: the fastest, measured once",
        ("auto", "xla", "cudnn", "pallas"), on_resume=True, own=True),
    Key("model.stateful", False, "a recurrent model carries its state along format stream", of_shape=False),
    Key("model.layers", int, "number of layers", least=1),
    Key("model.width", int, "width of the states", least=1),
    Key("model.heads", int, "number of attention heads", least=1),
    Key("model.hidden", int, "width of the feed-forward layer or the LSTM cell", least=1),
    Key("model.max_positions", int, "rows of the position table", least=1, only_with=(_LEARNED,)),
    Key("model.dropout", float, "dropout; for awd_lstm, of the output", **_SHARE),
    Key("model.truncated_init", bool, "transformers: initial values from a normal cut at two deviations (BERT) or a full one"),
    Key("model.scaled_residual_init", bool, "transformers: smaller initial values of the residual branches' outputs (GPT-2)"),
    Key("model.init_stddev", float, "standard deviation of kernels and embeddings; 0.02 is small for narrow models", least=0),
    Key("model.activation", str, "transformers: activation", ("gelu_tanh", "gelu_erf", "relu", "silu")),
    Key("model.gated", bool, "transformers: feed-forward layer with a gate (GeGLU, SwiGLU)"),
    Key("model.norm", str, "transformers: kind of norm", ("layer_norm", "rms_norm")),
    Key("model.norm_placement", str, "transformers: norm after or before each sublayer", ("post", "pre")),
    Key("model.embedding_norm", bool, "transformers: a norm after the embeddings"),
    Key("model.final_norm", bool, "transformers: a norm after the last layer"),
    Key("model.epsilon", float, "transformers: epsilon of the norms", least=0),
    Key("model.use_bias", bool, "transformers: biases in dense layers and norms"),
    Key("model.position_encoding", str, "transformers: positions", ("learned", "rotary", "none")),
    Key("model.position_offset", int, "first row of the position table in use (RoBERTa: 2)", least=0, only_with=(_LEARNED,)),
    Key("model.rotary_base", float, "base of the rotary angles", only_with=(_ROTARY,)),
    Key("model.rotary_base_local", float, "base of the rotary angles in local layers", only_with=(_ROTARY, _LOCAL)),
    Key("model.local_window", int, "transformers: positions that a local layer sees, both sides together; 0: all"),
    Key("model.global_every", int, "transformers: every n-th layer, including the first, sees everything", only_with=(_LOCAL,)),
    Key("model.segments", int, "rows of the segment embedding; 0: none", least=0),
    Key("model.output_transform", bool, "dense layer, activation and norm before the output layer (BERT)"),
    Key("model.tied", bool, "output layer shares the token embeddings"),
    Key("model.output_bias", bool, "bias of the output layer"),
    Key("model.output_init", str, "static: initial output vectors, zeros (word2vec) or uniform (GloVe)", ("zeros", "uniform")),
    Key("model.token_encoder", str, "elmo: subword ids or characters", ("ids", "characters")),
    Key("model.highway_layers", int, "elmo: highway layers over the character convolutions", least=0, only_with=(_CHARACTERS,)),
    Key("model.filters", tuple, "elmo: (width, number) of each character convolution", only_with=(_CHARACTERS,)),
    Key("model.skip_connections", bool, "elmo: residuals between the LSTM layers"),
    Key("model.clip", float, "elmo: bound of cell states and projections"),
    Key("model.embedding_dropout", float, "awd_lstm: dropout of whole words", **_SHARE),
    Key("model.input_dropout", float, "awd_lstm: dropout of the first layer's input", **_SHARE),
    Key("model.hidden_dropout", float, "awd_lstm: dropout between layers", **_SHARE),
    Key("model.weight_dropout", float, "awd_lstm: dropout of recurrent weights", **_SHARE),
    Key("objectives", {}, "weight, final_weight and settings of each objective"),
    # optimizer
    Key("optimizer.name", "adam", "update rule; muon: for the layers' matrices, Adam for the rest",
        ("adam", "adagrad", "sgd", "lamb", "muon")),
    Key("optimizer.learning_rate", 1e-3, "highest learning rate", least=0),
    Key("optimizer.warmup_steps", int, "steps in which the rate rises linearly; unset: a tenth of the steps"),
    Key("optimizer.decay", "linear", "how the rate falls (bertlab/train/schedules.py)",
        ("linear", "cosine", "constant", "slanted_triangular", "warmup_linear", "warmup_cosine", "reverse_cosine")),
    Key("optimizer.cooldown_steps", 0, "last steps, in which the rate falls linearly to 0", only_with=("decay=constant",)),
    Key("optimizer.decay_from_start", True, "the decay counts from step 0, with a drop at the end of warm-up (BERT)"),
    Key("optimizer.cut_fraction", 0.1, "slanted_triangular: share of the steps in which the rate rises"),
    Key("optimizer.ratio", 32.0, "slanted_triangular: highest rate over lowest rate"),
    Key("optimizer.b1", 0.9, "Adam's β1", **_SHARE),
    Key("optimizer.b2", 0.999, "Adam's β2", **_SHARE),
    Key("optimizer.epsilon", 1e-6, "Adam's ε", least=0),
    Key("optimizer.bias_correction", "none", "of Adam's moments: none (BERT), moments (Adam's paper) or in the rate (GPT)",
        ("none", "moments", "rate")),
    Key("optimizer.weight_decay", 0.01, "weight decay", least=0),
    Key("optimizer.coupled_decay", False, "decay in the gradient (L2) instead of the update"),
    Key("optimizer.decay_exclude", r"(norm|bias)", "pattern of parameter paths without weight decay"),
    Key("optimizer.initial_accumulator", 1.0, "adagrad: initial sum of squares", above=0),
    Key("optimizer.muon_momentum", 0.95, "muon: Nesterov momentum", **_SHARE),
    Key("optimizer.muon_scale", "rms", "muon: size of an update, as Adam's (so its rate fits) or the spectral norm (Jordan)",
        ("rms", "spectral")),
    Key("optimizer.muon_rate", 1.0, "muon: its rate divided by Adam's, `learning_rate` (Jordan: 0.02 over 3e-4)", above=0),
    Key("optimizer.gradient_scale", 1.0, "factor before clipping: ELMo multiplies its loss by its 20 steps", above=0),
    Key("optimizer.clip_norm", 1.0, "largest norm of the gradient; 0: no clipping", least=0),
    Key("optimizer.average_after", 0, "sgd: averages once valid exceeds its best before the last n losses (NT-ASGD)", least=0),
    Key("optimizer.layer_decay", 1.0, "a layer group's rate over the one above (ULMFiT: 1/2.6, FitLaM: 0.3)", above=0),
    Key("optimizer.group_rates", "", 'instead of layer_decay, a factor for each group: "0.1667,0.3333,1,0.5"'),
    Key("optimizer.thaw", "all", "what is trained when; last: head and top layer, gradual: ULMFiT, chain: chain-thaw",
        ("all", "head", "last", "gradual", "chain")),
    Key("optimizer.thaw_steps", 0, "gradual, chain: updates per stage until everything is trained", least=0),
    Key("optimizer.thaw_stages", 0, "gradual, chain: number of stages; 0: one per group", least=0, only_with=(_STAGES,)),
    Key("optimizer.thaw_restarts", False, "gradual, chain: each stage runs the whole schedule", only_with=(_STAGES,)),
    Key("optimizer.frozen", "", 'pattern of parameter paths that are never trained, such as "^body/"'),
    Key("lora.rank", 0, "rank of low-rank updates of kernels (Hu et al. 2021); 0: none"),
    Key("lora.alpha", 8.0, "low-rank updates are multiplied by alpha / rank"),
    Key("lora.targets", r"qkv_kernel/(query|value)$", "pattern of the paths of adapted kernels"),
    # train
    Key("train.steps", 1000, "number of updates", least=0),
    Key("train.budget", "", "instead of steps: tokens=2e6, supervised=, flops= or seconds="),
    Key("train.phases", "", 'curriculum, such as "0.9 data.seq_len=128; 0.1 data.seq_len=512" (bertlab/train/phases.py)'),
    Key("train.micro_batches", 1, "micro-batches per update (gradient accumulation)", least=1),
    Key("train.log_every", 50, "steps between log lines", least=1),
    Key("train.eval_every", 200, "steps between evaluations on valid; 0: only at the end", least=0),
    Key("train.eval_batches", 20, "batches per evaluation"),
    Key("train.checkpoint_every", 200, "steps between checkpoints; 0: only at the end", least=0, on_resume=True),
    Key("train.keep_checkpoints", 2, "how many of the latest checkpoints stay; 0: all", least=0, on_resume=True),
    Key("train.keep", "", "steps whose checkpoints are written and stay too: log (10, 20, 50, 100, ... and the last), or steps"
        " such as 100,1000,4000", on_resume=True),
    Key("evaluate.sentences", 64, "test sentences to score in bits per byte after training; 0: none", on_resume=True),
    Key("evaluate.minimal_pairs", "", "a file of minimal pairs in BLiMP's format to score after training", on_resume=True),
    Key("evaluate.pairs", 20, "minimal pairs per paradigm; 0: all", on_resume=True),
    Key("mesh.data", -1, "devices on the data axis; -1: all remaining devices", on_resume=True),
    Key("mesh.fsdp", 1, "devices that share parameters and optimizer state", on_resume=True),
    Key("mesh.tensor", 1, "devices that share each matrix product", on_resume=True),
    Key("writers", "jsonl", "jsonl or jsonl,tensorboard", on_resume=True),
    Key("profile", 0, "steps to trace into WORKDIR/profile for TensorBoard and Perfetto; 0: none", least=0, on_resume=True),
)  # fmt: skip
BY_NAME = {key.name: key for key in KEYS}


def check(config: Mapping[str, Any], group: str = "") -> None:
    """Checks every key of a config, or of one group of it, by itself and against keys of its own group.

    Conditions of config.model depend on its family, so `bertlab.models.presets.model_shape` checks them.

    Args:
        config: a ConfigDict with any of KEYS, or with those of `group`.
        group: "optimizer" for `config.optimizer`.

    Raises:
        UserError: from `Key.check`.
    """
    _check_finite(config, f"config.{group}" if group else "config")
    prefix = f"{group}." if group else ""
    for key in (key for key in KEYS if key.name.startswith(prefix)):
        *parents, leaf = key.name.removeprefix(prefix).split(".")
        node = functools.reduce(lambda of, part: of.get(part, {}), parents, config)
        if leaf in node:
            key.check(node[leaf], {} if key.group == "model" else node)


def _check_finite(values: Mapping[str, Any], prefix: str) -> None:
    """Refuses numbers that are not finite, in keys outside the table too (an objective's settings, a task's)."""
    for name, value in values.items():
        if hasattr(value, "items"):
            _check_finite(value, f"{prefix}.{name}")
        elif isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{prefix}.{name}={value} is not finite; give a number")


def has(attribute: str, name: str) -> bool:
    """Whether a key has an attribute such as "on_resume"; False for names that are not in the table."""
    return name in BY_NAME and getattr(BY_NAME[name], attribute)

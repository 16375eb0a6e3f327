"""Every key of a config in one table: default, meaning, range, and when it may change.

`base_config` (bertlab/config.py), the checks of single keys, `bertlab keys` and docs/keys.md are all made from it. Keys that
depend on each other are checked in `bertlab.train.checks`; an objective's own settings are the fields of its class (`setting`).
`bertlab.transfer.finetune` and `bertlab.transfer.tasks.base` have the keys that only fine-tuning has.
"""

import dataclasses
import fnmatch
import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bertlab.errors import UserError

MOST = 2**31 - 1
"""Largest whole number of a key that has no `most` of its own: libraries and devices count in 32 bits."""


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a config.

    Attributes:
        name: dotted, without the leading "config.".
        default: its value, or a type (int, float, bool, str, tuple) if it has none: then the family and size decide.
        meaning: what it sets.
        choices: all values it can have; () if they cannot be listed.
        least: smallest value; None for no bound.
        most: largest value; None for no bound.
        above: value that it must exceed; None for no bound.
        below: value that it must stay below; None for no bound.
        several: its text is some of `choices`, joined by commas.
        besides: values outside these bounds that it can have too.
        only_with: conditions on other keys: "optimizer.name=adam or lamb", "data.corpus=tfds:*", or "lora.rank" (not 0 and not
            empty). If one does not hold, the key has no effect, and any value but the default is refused.
        on_resume: it may change when a run is resumed: it changes nothing that is trained or logged but by rounding and by what
            dropout draws.
        in_phases: it may differ between the phases of a run.
        own: with `init_from`, it may differ from the run that the parameters come from.
        of_shape: of config.model: it is a value of the body's shape.
    """

    name: str
    default: Any
    meaning: str
    choices: tuple[str, ...] = ()
    several: bool = False
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    besides: tuple[float, ...] = ()
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
    def conditions(self) -> tuple[str, ...]:
        """`only_with`; and the settings of a format, in the group of its name, have no effect with another one."""
        own = self.group.removeprefix("data.")
        return self.only_with + ((f"data.format={own}",) if own in BY_NAME["data.format"].choices else ())

    @property
    def unset(self) -> bool:
        """Whether it has no default of its own."""
        return isinstance(self.default, type)

    def values(self) -> str:
        """The values that it can have, in words."""
        if self.choices:
            return ", ".join(self.choices) + "; or several, joined by commas" * self.several
        kind = self.default if self.unset else type(self.default)
        word = {int: "whole number", float: "number", bool: "True or False", str: "text"}.get(kind, kind.__name__)
        return f"{word} {self.bounds()}".strip()

    def bounds(self) -> str:
        """The range of a number, in words."""
        known = [f"{how} {bound}" for how, (bound, _) in self._bounds().items() if bound is not None]
        return " and ".join(known) + "".join(f", or {value}" for value in self.besides)

    def _bounds(self) -> dict[str, tuple[float | None, Callable[[Any, Any], bool]]]:
        return {
            "at least": (self.least, operator.ge),
            "above": (self.above, operator.gt),
            "at most": (self.most, operator.le),
            "below": (self.below, operator.lt),
        }

    def check(self, value: Any, values: Mapping[str, Any], prefix: str = "config.") -> None:
        """Refuses a value that the key cannot have, or that has no effect.

        Args:
            value: None if it is not set.
            values: of other keys, by name, for `conditions`; a condition on a key that is not among them holds.
            prefix: of names in messages.

        Raises:
            UserError: names the key, the value and the values that it can have.
        """
        shown = f"{prefix}{self.name}={value!r}"
        kind = self.default if self.unset else type(self.default)
        if value is None:
            return
        chosen = filter(None, value.split(",")) if self.several else [value]
        if self.choices and any(one not in self.choices for one in chosen):
            raise UserError(f"{shown} is not known; choose {'from' if self.several else 'one of'} {', '.join(self.choices)}")
        if kind is int and type(value) is not int:
            raise UserError(f"{shown} must be a {self.values()}")
        within = all(bound is None or holds(value, bound) for bound, holds in self._bounds().values())
        if not within and value not in self.besides:
            raise UserError(f"{shown} must be {self.bounds()}")
        if kind is int and self.most is None and abs(value) > MOST:
            raise UserError(f"{shown} must be at most {MOST}")
        if missing := self.without_effect(value, values):
            default = "unset" if self.unset else f"at {self.default!r}"
            raise UserError(f"{shown} has no effect without {prefix}{missing}; leave it {default}")

    def without_effect(self, value: Any, values: Mapping[str, Any]) -> str:
        """The condition without which this value has no effect; "" if it has one or is the default."""
        same = tuple(value) == self.default if isinstance(self.default, tuple) else value == self.default  # JSON has lists
        if value is None or (not self.unset and same):
            return ""
        return next((condition for condition in self.conditions if not _holds(condition, values)), "")


def _holds(condition: str, values: Mapping[str, Any]) -> bool:
    name, equals, wanted = condition.partition("=")
    if values.get(name) is None:  # another part of the program decides, such as the model's family
        return True
    return any(fnmatch.fnmatchcase(str(values[name]), one) for one in wanted.split(" or ")) if equals else bool(values[name])


_LEARNED, _ROTARY, _LOCAL = "model.position_encoding=learned", "model.position_encoding=rotary", "model.local_window"
_DISENTANGLED = "model.position_encoding=disentangled"
_CHARACTERS, _STAGES = "model.token_encoder=characters", "optimizer.thaw=gradual or chain"
_ADAM, _MUON = dict(only_with=("optimizer.name=adam or lamb or muon",)), dict(only_with=("optimizer.name=muon",))
_SLANTED, _LORA = dict(only_with=("optimizer.decay=slanted_triangular",)), dict(only_with=("lora.rank",))
_SHARE, _PROBABILITY = dict(least=0, below=1), dict(least=0, most=1)
_SYNTHETIC, _TFDS = dict(only_with=("data.corpus=synthetic",)), dict(only_with=("data.corpus=tfds:*",))
_NEGATIVES = ("random", "swapped")

KEYS = (
    Key("seed", 0, "seed of initial values, masks and dropout", least=-(2**31), below=2**31),
    # data
    Key("data.corpus", "pydocs", "pydocs, text:GLOB, files:GLOB (a document per file), splits:FOLDER (published"
        " files of train, valid and test), tfds:NAME or synthetic"),
    Key("data.format", "segment_pair",
        "how documents become rows (bertlab/data/formats)",
        ("segment_pair", "full_sentences", "sentence_pair", "doc_sentences", "stream", "cooccurrence")),
    Key("data.seq_len", 128, "tokens per row", least=8, in_phases=True),
    Key("data.batch_size", 32, "rows per batch", least=1, in_phases=True),
    Key("data.seed", 0, "seed of the order of documents, apart from `seed`: a study's seeds can read the same tokens", least=0),
    Key("data.dupe_factor", 0, "readings of a document after which its random choices repeat (BERT: 10); 0: never", least=0),
    Key("data.unique_tokens", 0, "train on so many tokens of the text, in whole documents, again and again; 0: all",
        least=0, most=10**15),
    Key("data.directory", "", "directory of prepared corpora; empty: $BERTLAB_CACHE or ~/.cache/bertlab", on_resume=True),
    Key("data.workers", 0, "processes for preparation; 0: one per core", on_resume=True,
        least=0, most=10_000),
    Key("data.valid_fraction", 0.05, "share of documents (for long ones, of their sections) held out as valid", **_SHARE),
    Key("data.test_fraction", 0.05, "share of documents held out as test", **_SHARE),
    Key("data.shards", 0, "parts of the text read in parallel for each batch; 0: one per process", least=0),
    Key("data.shuffle_window", 1024, "rows that are shuffled together; 0: not shuffled", least=0),
    Key("data.pack_length", 0, "tokens of a packed row: several rows without their padding; 0: off", in_phases=True, least=0),
    Key("data.pack_examples", 8, "most rows in a packed row", least=1, most=10_000, only_with=("data.pack_length",)),
    Key("data.buckets", (), "lengths such as (32, 64): each batch has rows of similar length, cut to one of these or seq_len",
        in_phases=True),
    Key("data.tokenizer.kind", "unigram", "kind of tokenizer to train", ("unigram", "bpe", "wordpiece", "words")),
    Key("data.tokenizer.vocab_size", 4096, "vocabulary size, including special tokens", least=6, most=10_000_000),
    Key("data.tokenizer.path", "", "a saved tokenizer or a vocab.txt, instead of training one"),
    Key("data.tokenizer.lowercase", False, "lowercase the text"),
    Key("data.tokenizer.split", "punctuation", "where words end; whitespace: only there, for text in tokens",
        ("punctuation", "whitespace"), only_with=("data.tokenizer.kind=words",)),
    Key("data.tokenizer.sample_sentences", 1_000_000, "sentences to train the tokenizer on", least=1),
    Key("data.tokenizer.seed", 0, "seed of that sample", least=0),
    Key("data.segment_pair.short_probability", 0.1, "share of rows with a shorter target length (BERT)", **_PROBABILITY),
    Key("data.segment_pair.random_next_probability", 0.5, "share of negative pairs", **_PROBABILITY),
    Key("data.segment_pair.force_random_if_single", True, "a chunk of one sentence always gets a random next segment (BERT)",
        only_with=("data.segment_pair.negatives=random",)),
    Key("data.segment_pair.own_document_retries", 10, "draws to find another document; after that it may be the same (BERT)",
        least=0, most=10_000, only_with=("data.segment_pair.negatives=random",)),
    Key("data.segment_pair.negatives", "random", "random: B from another document (nsp); swapped: B before A (sop)",
        _NEGATIVES),
    Key("data.sentence_pair.random_next_probability", 0.5, "share of negative pairs", **_PROBABILITY),
    Key("data.sentence_pair.force_random_if_single", False, "a document of one sentence always gets a random next sentence",
        only_with=("data.sentence_pair.negatives=random",)),
    Key("data.sentence_pair.own_document_retries", 10, "draws to find another document; after that it may be the same",
        least=0, most=10_000, only_with=("data.sentence_pair.negatives=random",)),
    Key("data.sentence_pair.negatives", "random", "random: B from another document (nsp); swapped: B before A (sop)",
        _NEGATIVES),
    Key("data.full_sentences.attend_across_documents", False, "attention crosses document boundaries in a row"),
    Key("data.full_sentences.document_separator", True, "an extra [SEP] between documents"),
    Key("data.stream.wrap", "document", "document: [SEP] after each; sentence: [CLS] sentence [SEP] (ELMo); none",
        ("document", "sentence", "none")),
    Key("data.stream.backward", False, "a second, independent stream for right-to-left models"),
    Key("data.stream.attend_across_documents", True, "states carry over from one document to the next"),
    Key("data.stream.vary_length", False, "rows of about seq_len, sometimes half, with the rate in proportion (AWD-LSTM)"),
    Key("data.cooccurrence.window", 15, "words on each side that count as context (GloVe)", least=1),
    Key("data.characters", False, "also the characters of each word; needs tokenizer.kind=words"),
    Key("data.tfds.split", "train", "split of the TFDS dataset", **_TFDS),
    Key("data.tfds.field", "text", "field of the TFDS dataset that contains the text", **_TFDS),
    Key("data.synthetic.documents", 2000, "number of documents in the synthetic language",
        least=1, most=1_000_000, **_SYNTHETIC),
    Key("data.synthetic.vocab_size", 64, "number of words in its vocabulary", least=2, most=100_000, **_SYNTHETIC),
    Key("data.synthetic.topics", 4, "number of topics", least=1, most=1000, **_SYNTHETIC),
    Key("data.synthetic.states", 8, "number of hidden states", least=1, most=1000, **_SYNTHETIC),
    Key("data.synthetic.seed", 0, "seed of the language", least=0, **_SYNTHETIC),
    Key("data.synthetic.sentence_words", (4, 12), "shortest and longest sentence, in words", **_SYNTHETIC),
    Key("data.synthetic.document_sentences", (4, 40), "shortest and longest document, in sentences", **_SYNTHETIC),
    Key("init_from", "", "a run or imported directory to start from: its parameters, model shape and tokenizer"),
    Key("init_step", int, "the step of its checkpoint (train.keep); unset: the last", least=0, only_with=("init_from",)),
    # model
    Key("model.family", "bert", "family of models (bertlab models)",
        ("bert", "gpt", "modern", "elmo", "awd_lstm", "static"), of_shape=False),
    Key("model.size", "tiny", "a published size (bertlab models)", of_shape=False),
    Key("model.direction", str, "what a token may see", ("bidirectional", "left-to-right", "right-to-left"),
        own=True, of_shape=False),
    Key("model.dtype", "float32", "dtype of the computation; parameters are float32", ("float32", "bfloat16"),
        own=True, of_shape=False),
    Key("model.products", "as_dtype", "transformers: products with the layers' kernels; float8: on NVIDIA GPUs from 8.9 on",
        ("as_dtype", "float8"), own=True),
    Key("model.remat", "none", "what the backward pass recomputes: nothing, all except matrix products, or each layer",
        ("none", "dots", "full"), on_resume=True, own=True),
    Key("model.scan_layers", bool, "layers in a loop (compiles faster) or unrolled; unset: unrolled if few and on a CPU",
        on_resume=True, own=True),
    Key("model.output_rows", int, "rows of logits computed at a time; 0: all; unset: chosen for the device",
        least=0, on_resume=True, of_shape=False),
    Key("model.attention", "auto", "implementation of attention; auto: the fastest, measured once",
        ("auto", "xla", "cudnn", "pallas"), on_resume=True, own=True),
    Key("model.stateful", False, "a recurrent model carries its state along format stream", of_shape=False),
    Key("model.layers", int, "number of layers", least=1, most=10_000),
    Key("model.width", int, "width of the states", least=1, most=1_000_000),
    Key("model.heads", int, "number of attention heads", least=1, most=100_000),
    Key("model.hidden", int, "width of the feed-forward layer or the LSTM cell", least=1, most=10_000_000),
    Key("model.max_positions", int, "rows of the position table", least=1, only_with=(_LEARNED,)),
    Key("model.dropout", float, "dropout; for awd_lstm, of the output", **_SHARE),
    Key("model.truncated_init", bool, "transformers: initial values from a normal cut at two deviations (BERT) or a full one"),
    Key("model.scaled_residual_init", bool, "transformers: smaller initial values of the residual branches' outputs (GPT-2)"),
    Key("model.init_stddev", float, "standard deviation of kernels and embeddings; 0.02 is small for narrow models", least=0),
    Key("model.base_width", int, "transformers: the width that rates and init_stddev are meant for (μP); 0: this one", least=0),
    Key("model.activation", str, "transformers: activation", ("gelu_tanh", "gelu_erf", "relu", "silu")),
    Key("model.gated", bool, "transformers: feed-forward layer with a gate (GeGLU, SwiGLU)"),
    Key("model.norm", str, "transformers: kind of norm", ("layer_norm", "rms_norm")),
    Key("model.norm_placement", str, "transformers: norm after or before each sublayer", ("post", "pre")),
    Key("model.first_norm", bool, "transformers: a norm before the attention of the first layer too (ModernBERT has none)",
        only_with=("model.norm_placement=pre",)),
    Key("model.embedding_norm", bool, "transformers: a norm after the embeddings"),
    Key("model.final_norm", bool, "transformers: a norm after the last layer"),
    Key("model.epsilon", float, "transformers: epsilon of the norms", least=0),
    Key("model.use_bias", bool, "transformers: biases in dense layers and norms"),
    Key("model.position_encoding", str, "transformers: positions",
        ("learned", "sinusoidal", "rotary", "relative", "disentangled", "none")),
    Key("model.position_buckets", int, "k: the table of distances has 2k rows (DeBERTa-v3: 256)", least=2, most=512,
        only_with=(_DISENTANGLED,)),
    Key("model.position_offset", int, "first row of the position table in use (RoBERTa: 2)", least=0, only_with=(_LEARNED,)),
    Key("model.rotary_base", float, "base of the rotary angles", above=0, only_with=(_ROTARY,)),
    Key("model.rotary_base_local", float, "base of the rotary angles in local layers", above=0, only_with=(_ROTARY, _LOCAL)),
    Key("model.local_window", int,
        "transformers: positions that a local layer sees, both sides together; 1: only itself; 0: all", least=0),
    Key("model.global_every", int, "transformers: every n-th layer, including the first, sees everything",
        least=1, only_with=(_LOCAL,)),
    Key("model.segments", int, "rows of the segment embedding; 0: none", least=0),
    Key("model.output_transform", bool, "dense layer, activation and norm before the output layer (BERT)"),
    Key("model.tied", bool, "output layer shares the token embeddings"),
    Key("model.output_bias", bool, "bias of the output layer"),
    Key("model.output_init", str, "static: initial output vectors, zeros (word2vec) or uniform (GloVe)", ("zeros", "uniform")),
    Key("model.token_encoder", str, "elmo: subword ids or characters", ("ids", "characters")),
    Key("model.highway_layers", int, "elmo: highway layers over the character convolutions",
        least=0, most=1000, only_with=(_CHARACTERS,)),
    Key("model.filters", tuple, "elmo: (width, number) of each character convolution", only_with=(_CHARACTERS,)),
    Key("model.character_width", int, "elmo: width of a character's embedding", least=1, only_with=(_CHARACTERS,)),
    Key("model.character_activation", str, "elmo: activation after each character convolution", ("relu", "tanh"),
        only_with=(_CHARACTERS,)),
    Key("model.skip_connections", bool, "elmo: residuals between the LSTM layers"),
    Key("model.clip", float, "elmo: bound of cell states and projections", above=0),
    Key("model.embedding_dropout", float, "awd_lstm: dropout of whole words", **_SHARE),
    Key("model.input_dropout", float, "awd_lstm: dropout of the first layer's input", **_SHARE),
    Key("model.hidden_dropout", float, "awd_lstm: dropout between layers", **_SHARE),
    Key("model.weight_dropout", float, "awd_lstm: dropout of recurrent weights", **_SHARE),
    Key("objectives", {}, "weight, final_weight and settings of each objective"),
    # optimizer
    Key("optimizer.name", "adam", "update rule; muon: for the layers' matrices, Adam for the rest",
        ("adam", "adagrad", "sgd", "lamb", "muon")),
    Key("optimizer.learning_rate", 1e-3, "highest learning rate", least=0),
    Key("optimizer.warmup_steps", int, "steps in which the rate rises linearly; unset: a tenth of the steps", least=0),
    Key("optimizer.decay", "linear", "how the rate falls (bertlab/train/schedules.py)",
        ("linear", "cosine", "constant", "slanted_triangular", "warmup_linear", "warmup_cosine", "reverse_cosine")),
    Key("optimizer.cooldown_steps", 0, "last steps, in which the rate falls linearly to 0",
        least=0, only_with=("optimizer.decay=constant",)),
    Key("optimizer.decay_from_start", True, "the decay counts from step 0, with a drop at the end of warm-up (BERT)",
        only_with=("optimizer.decay=linear or cosine",)),
    Key("optimizer.cut_fraction", 0.1, "slanted_triangular: share of the steps in which the rate rises",
        above=0, below=1, **_SLANTED),
    Key("optimizer.ratio", 32.0, "slanted_triangular: highest rate over lowest rate", least=1, **_SLANTED),
    Key("optimizer.b1", 0.9, "Adam's β1", **_SHARE, **_ADAM),
    Key("optimizer.b2", 0.999, "Adam's β2", **_SHARE, **_ADAM),
    Key("optimizer.epsilon", 1e-6, "Adam's ε", least=0, **_ADAM),
    Key("optimizer.bias_correction", "none", "of Adam's moments: none (BERT), moments (Adam's paper) or in the rate (GPT)",
        ("none", "moments", "rate"), **_ADAM),
    Key("optimizer.weight_decay", 0.01, "weight decay", least=0),
    Key("optimizer.coupled_decay", False, "decay in the gradient (L2) instead of the update"),
    Key("optimizer.decay_exclude", r"(norm|bias)", "pattern of parameter paths without weight decay"),
    Key("optimizer.initial_accumulator", 1.0, "adagrad: initial sum of squares",
        above=0, only_with=("optimizer.name=adagrad",)),
    Key("optimizer.muon_momentum", 0.95, "muon: Nesterov momentum", **_SHARE, **_MUON),
    Key("optimizer.muon_scale", "rms", "muon: size of an update, as Adam's (so its rate fits) or the spectral norm (Jordan)",
        ("rms", "spectral"), **_MUON),
    Key("optimizer.muon_rate", 1.0, "muon: its rate divided by Adam's, `learning_rate` (Jordan: 0.02 over 3e-4)",
        above=0, **_MUON),
    Key("optimizer.gradient_scale", 1.0, "factor before clipping: ELMo multiplies its loss by its 20 steps", above=0),
    Key("optimizer.clip_norm", 1.0, "largest norm of the gradient; 0: no clipping", least=0),
    Key("optimizer.average_after", 0, "sgd: averages once valid exceeds its best before the last n losses (NT-ASGD)",
        least=0, only_with=("optimizer.name=sgd", "optimizer.decay=constant")),
    Key("optimizer.average_again", 0, "updates after which NT-ASGD begins again from its average (AWD-LSTM's fine-tuning); 0:"
        " never", least=0, only_with=("optimizer.average_after",)),
    Key("optimizer.layer_decay", 1.0, "a layer group's rate over the one above (ULMFiT: 1/2.6, FitLaM: 0.3)", above=0),
    Key("optimizer.group_rates", "", 'instead of layer_decay, a factor for each group: "0.1667,0.3333,1,0.5"'),
    Key("optimizer.thaw", "all", "what is trained when; last: head and top layer, gradual: ULMFiT, chain: chain-thaw",
        ("all", "head", "last", "gradual", "chain")),
    Key("optimizer.thaw_steps", 0, "gradual, chain: updates per stage until everything is trained",
        least=0, only_with=(_STAGES,)),
    Key("optimizer.thaw_stages", 0, "gradual, chain: number of stages; 0: one per group", least=0, only_with=(_STAGES,)),
    Key("optimizer.thaw_restarts", False, "gradual, chain: each stage runs the whole schedule", only_with=(_STAGES,)),
    Key("optimizer.frozen", "", 'pattern of parameter paths that are never trained, such as "^body/"'),
    Key("lora.rank", 0, "rank of low-rank updates of kernels (Hu et al. 2021); 0: none", least=0),
    Key("lora.alpha", 8.0, "low-rank updates are multiplied by alpha / rank", above=0, **_LORA),
    Key("lora.targets", r"qkv_kernel/(query|value)$", "pattern; kernels with a matching path get low-rank updates", **_LORA),
    # train
    Key("train.steps", 1000, "number of updates", least=0),
    Key("train.budget", "", "instead of steps: tokens=2e6, supervised=, flops= or seconds="),
    Key("train.phases", "", 'curriculum, such as "0.9 data.seq_len=128; 0.1 data.seq_len=512" (bertlab/train/phases.py)'),
    Key("train.micro_batches", 1, "micro-batches per update (gradient accumulation); each draws its own dropout", least=1,
        on_resume=True),
    Key("train.log_every", 50, "steps between log lines", least=1),
    Key("train.eval_every", 200, "steps between evaluations on valid; 0: only at the end", least=0),
    Key("train.eval_batches", 20, "batches per evaluation", least=0),
    Key("train.checkpoint_every", 200, "steps between checkpoints; 0: only at the end", least=0, on_resume=True),
    Key("train.keep_checkpoints", 2, "how many of the latest checkpoints stay; 0: all", least=0, on_resume=True),
    Key("train.keep", "", "steps whose checkpoints are written and stay too: log (10, 20, 50, 100, ... and the last), or steps"
        " such as 100,1000,4000", on_resume=True),
    Key("evaluate.sentences", 64, "test sentences to score in bits per byte after training; 0: none", on_resume=True, least=0),
    Key("evaluate.minimal_pairs", "", "a file of minimal pairs in BLiMP's format to score after training", on_resume=True),
    Key("evaluate.pairs", 20, "minimal pairs per paradigm; 0: all",
        on_resume=True, least=0, only_with=("evaluate.minimal_pairs",)),
    Key("evaluate.words", "", "files of rated pairs of words, joined by commas, to compare with cosines after training",
        on_resume=True),
    Key("evaluate.analogies", "", "a file of word2vec's questions to answer by the words' vectors after training",
        on_resume=True),
    Key("evaluate.word_text", "", "a text, a sentence a line: for both also the mean state of a word's occurrences in it",
        on_resume=True),
    Key("mesh.data", -1, "devices on the data axis; -1: all remaining devices", on_resume=True, least=1, besides=(-1,)),
    Key("mesh.fsdp", 1, "devices that share parameters and optimizer state", on_resume=True, least=1, besides=(-1,)),
    Key("mesh.tensor", 1, "devices that share each matrix product", on_resume=True, least=1, besides=(-1,)),
    Key("mesh.sequence", 1, "devices that share a row's positions", on_resume=True, least=1, besides=(-1,)),
    Key("mesh.windowed_einsum", False, "on a TPU, exchange parts of kernels and gradients while products are computed: hides"
        " exchanges, moves more memory", on_resume=True),
    Key("writers", "jsonl", "formats of the log; jsonl is always written", ("jsonl", "tensorboard", "wandb", "mlflow", "aim"),
        several=True, on_resume=True),
    Key("profile", 0, "steps to trace into WORKDIR/profile for TensorBoard and Perfetto; 0: none", least=0, on_resume=True),
)  # fmt: skip
BY_NAME = {key.name: key for key in KEYS}


_LIMITS = ("choices", "several", "least", "most", "above", "below", "besides", "only_with")


def setting(default: Any, **limits: Any) -> Any:
    """A field of an objective's class with limits: attributes of `Key` such as `least`, `choices` or `only_with`."""
    if unknown := limits.keys() - {*_LIMITS}:
        raise TypeError(f"setting() has no limit {', '.join(sorted(unknown))}; it has {', '.join(_LIMITS)}")
    return dataclasses.field(default=default, metadata=limits)


@functools.cache
def settings_of(kind: type) -> tuple[Key, ...]:
    """A record for each field of an objective's class; its meaning is in the class's docstring, under `Attributes:`."""
    meanings = {}
    for of in reversed(kind.__mro__):
        section = inspect.cleandoc(of.__doc__ or "").partition("\nAttributes:\n")[2].partition("\n\n")[0]
        entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
        meanings |= {name: " ".join(text.split()).rstrip(".") for name, text in entries}
    return tuple(  # a class from outside may have other metadata
        Key(of.name, of.default, meanings.get(of.name, ""), **{k: v for k, v in of.metadata.items() if k in _LIMITS})
        for of in dataclasses.fields(kind)
    )


@functools.cache
def form() -> dict[str, Any]:
    """The form of a saved config (`bertlab.files.misfit`): the type of every key that it has; whole numbers may be floats."""
    number, kinds = (int, float, None), {bool: (bool, None), str: (str, None), tuple: (list, None)}
    found: dict[str, Any] = {"task?": str, "metrics?": {str: str}, "task_data?": dict, "transfer?": dict}
    for key in KEYS:
        *groups, leaf = key.name.split(".")
        node = functools.reduce(lambda of, group: of.setdefault(f"{group}?", {}), groups, found)
        node[f"{leaf}?"] = kinds.get(key.default if key.unset else type(key.default), number)
    return {**found, "objectives?": {str: {"weight?": number, "final_weight?": number, "implementation?": str}}}


def check(config: Mapping[str, Any], group: str = "") -> None:
    """Checks every key of a config, or of one group of it, by itself and for whether it has an effect.

    Conditions on config.model depend on its family, so `bertlab.models.presets.model_shape` checks them.

    Args:
        config: a ConfigDict with any of KEYS, or with those of `group`.
        group: "optimizer" for `config.optimizer`.

    Raises:
        UserError: from `Key.check`.
    """
    _check_finite(config, f"config.{group}" if group else "config")
    values = values_of(config, group)
    conditions = _conditions(values)
    for name, value in values.items():
        BY_NAME[name].check(value, conditions)


def without_effect(config: Mapping[str, Any]) -> list[str]:
    """The keys of a config that are not at their defaults and have no effect."""
    values = values_of(config)
    conditions = _conditions(values)
    return [name for name, value in values.items() if BY_NAME[name].without_effect(value, conditions)]


def drop_without_effect(config: Any, given: Collection[str]) -> None:
    """Sets keys without effect to their defaults, except those in `given`: what is set on top of a config may replace them."""
    for name in without_effect(config):
        if name not in given:
            *groups, leaf = name.split(".")
            functools.reduce(operator.getitem, groups, config)[leaf] = None if BY_NAME[name].unset else BY_NAME[name].default


def values_of(config: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """The values of the keys of KEYS in a config, or in one group of it, by name."""
    prefix, values = f"{group}." if group else "", {}
    config = config.to_dict() if hasattr(config, "to_dict") else config  # a ConfigDict is slow to read
    for key in (key for key in KEYS if key.name.startswith(prefix)):
        *parents, leaf = key.name.removeprefix(prefix).split(".")
        node = functools.reduce(lambda of, part: of.get(part, {}), parents, config)
        if leaf in node:
            values[key.name] = node[leaf]
    return values


def _conditions(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that conditions may be about: not the model's, nor those that differ between phases."""
    unknown = lambda key: key.group == "model" or (key.in_phases and values.get("train.phases"))
    return {name: value for name, value in values.items() if not unknown(BY_NAME[name])}


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

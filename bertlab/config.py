"""Configs: the defaults every experiment starts from, arguments after the colon, and loading a config file.

A config file is Python with `get_config(arguments: str | None) -> ConfigDict`. What follows the colon in
`--config=experiments/pretrain/bert.py:size=tiny,corpus=pydocs` is read by `parse_arguments`.
"""

import ast
import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_dict, config_flags

from bertlab.errors import UserError

CHECKOUT = Path(__file__).parent.parent  # of an installed package it is no checkout, and has no experiments/


class UnknownKey(UserError):
    """A config has no such key.

    Attributes:
        shown: The key as it was asked for, perhaps with something before it: "--config.train.stepz".
        key: Its dotted name: "train.stepz".
        near: Names of keys that may be meant.
        groups: What the config has at its top, said where nothing is near.
    """

    def __init__(self, shown: str, key: str, near: Sequence[str], groups: Sequence[str]):
        self.shown, self.key, self.near, self.groups = shown, key, near, groups
        hint = f"did you mean {', '.join(near)}?" if near else f"its keys are {', '.join(groups)}"
        super().__init__(f"{shown}: the config has no key '{key}'; {hint}")


def parse_arguments(text: str | None, **defaults: Any) -> dict[str, Any]:
    """Reads `key=value,key=value` into a dict with the types of the defaults; a value may hold commas, see `split_arguments`.

    Args:
        text: what follows the colon of a config or study path; None or "" for nothing.
        **defaults: every known argument with its default (str, int, float or bool).

    Raises:
        UserError: for an unknown argument or a value of the wrong type; it lists the known arguments.
    """
    values = dict(defaults)
    for item in split_arguments(text or ""):
        key, equals, value = item.partition("=")
        if key not in defaults or not equals:
            known = ", ".join(f"{k}={v}" for k, v in defaults.items())
            raise UserError(f"argument '{item}' is not one of key=value with a known key; known (with defaults): {known}")
        kind = type(defaults[key])
        try:
            values[key] = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
        except (ValueError, KeyError):
            raise UserError(f"argument {key}={value}: expected {kind.__name__}, for example {key}={defaults[key]}") from None
    return values


def split_arguments(text: str) -> list[str]:
    """The `key=value` of "key=value,key=value"; a value goes on to the next ",key=", so that it may hold commas itself."""
    return [item for item in re.split(r",+(?=\w+=)", text.strip(",")) if item]


def base_config() -> ConfigDict:
    """Every key of an experiment with its default; recipes change some, `--config.KEY=VALUE` any."""
    optional_int = lambda: config_dict.placeholder(int)
    optional_float = lambda: config_dict.placeholder(float)
    optional_bool = lambda: config_dict.placeholder(bool)
    optional_str = lambda: config_dict.placeholder(str)
    return ConfigDict(
        {
            "seed": 0,
            "data": {
                "corpus": "pydocs",  # pydocs | text:GLOB | tfds:NAME | synthetic
                # segment_pair | sentence_pair | full_sentences | doc_sentences | stream | cooccurrence
                "format": "segment_pair",
                "seq_len": 128,
                "batch_size": 32,
                "seed": 0,  # order of documents; apart from `seed`, so that seeds of one study read the same tokens
                "dupe_factor": 0,  # what is random in a document's rows repeats every n readings (BERT: 10); 0: never
                "directory": "",  # prepared corpora; "" is $BERTLAB_CACHE or ~/.cache/bertlab
                "workers": 0,  # processes that prepare; 0 is all cores
                "valid_fraction": 0.05,
                "test_fraction": 0.05,
                "shards": 0,  # parts of the text that make a batch's rows side by side; 0: one for each process
                "shuffle_window": 1024,  # rows
                # Rows (of up to seq_len tokens) are packed without their padding into rows of this length; 0: they are not.
                "pack_length": 0,
                "pack_examples": 8,  # the most of them in a packed row
                # Or each batch is of rows of about one length, cut to the smallest of these that holds them: (32, 64, 128).
                "buckets": (),
                "tokenizer": {
                    "kind": "unigram",  # unigram | bpe | wordpiece | words
                    "vocab_size": 8192,
                    "path": "",  # a saved tokenizer or BERT's vocab.txt instead of training one
                    "lowercase": False,
                    "sample_sentences": 1_000_000,
                    "seed": 0,
                },
                "segment_pair": {  # BERT's create_pretraining_data.py, quirks as switches
                    "short_probability": 0.1,
                    "random_next_probability": 0.5,  # of a negative pair
                    "force_random_if_single": True,  # a chunk of one sentence always gets a random next
                    "own_document_retries": 10,  # draws until the random document is another one; then it may be the same
                    "negatives": "random",  # random: B of another document (nsp) | swapped: B before A (ALBERT's sop)
                },
                "sentence_pair": {  # RoBERTa's: pairs of single sentences, one a row; keys as segment_pair's
                    "random_next_probability": 0.5,
                    "force_random_if_single": False,
                    "own_document_retries": 10,
                    "negatives": "random",
                },
                # RoBERTa's; doc_sentences are the same within one document, and need no settings.
                "full_sentences": {"attend_across_documents": False, "document_separator": True},
                "stream": {  # row i of a batch goes on where row i of the batch before ended (truncated BPTT)
                    "wrap": "document",  # document: [SEP] after each | sentence: [CLS] sentence [SEP], as ELMo | none
                    "backward": False,  # a second, independent stream for right-to-left models
                    "attend_across_documents": True,  # states are carried from one document into the next
                    "vary_length": False,  # AWD-LSTM's: about seq_len, one time in twenty half of it; rate in proportion
                },
                "cooccurrence": {"window": 15},  # GloVe's: pairs of words with their weighted counts
                "characters": False,  # each word's characters beside its id; needs tokenizer.kind=words
                "tfds": {"split": "train", "field": "text"},
                "synthetic": {
                    "documents": 2000,
                    "vocab_size": 64,
                    "topics": 4,
                    "states": 8,
                    "seed": 0,
                    "sentence_words": (4, 12),  # shortest and longest sentence
                    "document_sentences": (4, 40),  # shortest and longest document
                },
            },
            "init_from": "",  # run or imported directory whose parameters, model shape and tokenizer a run begins with
            "model": {
                "family": "bert",  # bert | gpt | modern | elmo | awd_lstm | static
                "size": "tiny",
                "direction": optional_str(),  # bidirectional | left-to-right | right-to-left; None: the family's
                "dtype": "float32",  # of the computation; parameters are float32
                "remat": "none",  # what the backward pass recomputes: none | dots (all but products) | full (each layer)
                # Layers in a loop (compiles faster) or unrolled; the same parameters. None: unrolled if few, on a CPU.
                "scan_layers": optional_bool(),
                # Rows of logits that a loss computes at a time; 0: all; None: as many as suit the device.
                "output_rows": optional_int(),
                # Transformers': xla | cudnn | pallas (bertlab/models/attention.py); auto: the fastest here, measured once.
                "attention": "auto",
                "stateful": False,  # a recurrent model carries its state along format stream
                # None, here and below: the family's and the size's own (bertlab/models/presets.py).
                "layers": optional_int(),
                "width": optional_int(),
                "heads": optional_int(),
                "hidden": optional_int(),  # feed-forward or LSTM cell width
                "max_positions": optional_int(),
                "dropout": optional_float(),  # awd_lstm: of the output
                # Transformers.
                "truncated_init": optional_bool(),  # initial values from a normal cut at two deviations (BERT) or a plain one
                "scaled_residual_init": optional_bool(),  # smaller initial values of what is added to the residual (GPT-2)
                "init_stddev": optional_float(),  # of kernels and embeddings: the papers' 0.02 is small for narrow models
                "activation": optional_str(),  # gelu_tanh | gelu_erf | relu | silu
                "gated": optional_bool(),  # feed-forward with a gate (GeGLU, SwiGLU)
                "norm": optional_str(),  # layer_norm | rms_norm
                "norm_placement": optional_str(),  # post | pre
                "embedding_norm": optional_bool(),
                "final_norm": optional_bool(),
                "epsilon": optional_float(),
                "use_bias": optional_bool(),
                "position_encoding": optional_str(),  # learned | rotary | none
                "position_offset": optional_int(),  # RoBERTa's table begins two rows late
                "rotary_base": optional_float(),
                "rotary_base_local": optional_float(),  # in layers that attend locally
                "local_window": optional_int(),  # positions to both sides together; 0: all layers see everything
                "global_every": optional_int(),  # every n-th layer, the first included, attends to everything
                "segments": optional_int(),  # rows of the segment embedding; 0: none
                "output_transform": optional_bool(),  # dense, activation and norm before the output layer
                "tied": optional_bool(),  # output layer shares the token embeddings
                "output_bias": optional_bool(),
                "output_init": optional_str(),  # static: zeros (word2vec) | uniform (GloVe)
                # LSTMs.
                "token_encoder": optional_str(),  # elmo: ids | characters
                "highway_layers": optional_int(),  # elmo on characters
                "filters": config_dict.placeholder(tuple),  # elmo on characters: (width, number) of each convolution
                "skip_connections": optional_bool(),
                "clip": optional_float(),  # elmo: bound of cell states and projections
                "embedding_dropout": optional_float(),  # awd_lstm, here and below
                "input_dropout": optional_float(),
                "hidden_dropout": optional_float(),
                "weight_dropout": optional_float(),
            },
            "objectives": {},
            "optimizer": {
                "name": "adam",  # adam | adagrad | sgd | lamb | muon (of layers' matrices, Adam of all else)
                "learning_rate": 1e-3,
                "warmup_steps": 100,
                # linear | cosine | constant | warmup_linear | warmup_cosine (GPT's code) | slanted_triangular (ULMFiT's) |
                # reverse_cosine (FitLaM's)
                "decay": "linear",
                "cooldown_steps": 0,  # constant: the last steps, in which the rate falls linearly to 0
                "decay_from_start": True,  # BERT's: the decay counts from step 0, with a drop where warm-up ends
                "cut_fraction": 0.1,  # slanted_triangular: share of the steps that rise
                "ratio": 32.0,  # slanted_triangular: highest over lowest rate
                "b1": 0.9,
                "b2": 0.999,
                "epsilon": 1e-6,
                "bias_correction": "none",  # of Adam's moments: none (BERT) | moments (Adam's paper) | rate (GPT)
                "weight_decay": 0.01,
                "coupled_decay": False,  # decay as part of the gradient (L2), not of the update
                "decay_exclude": r"(norm|bias)",  # parameter paths that are not decayed
                "initial_accumulator": 1.0,  # adagrad
                "muon_momentum": 0.95,  # Nesterov's
                "muon_scale": "rms",  # of an update: rms (that of Adam's, so that its rate fits) | spectral (Jordan's)
                "muon_rate": 1.0,  # rate of what Muon trains over `learning_rate`, which Adam has (Jordan: 0.02 over 3e-4)
                "gradient_scale": 1.0,  # before clipping: ELMo's loss is multiplied by its 20 steps
                "clip_norm": 1.0,  # 0: no clipping
                "average_after": 0,  # sgd: NT-ASGD; average once `valid` is worse than the best but the last n; 0: never
                # By groups of layers from the bottom: embeddings, layer 1, ..., head (bertlab/train/layer_groups.py).
                "layer_decay": 1.0,  # a group's rate over that of the group above (ULMFiT: 1/2.6, FitLaM: 0.3)
                "group_rates": "",  # or a factor for each: "0.1667,0.3333,1,0.5"
                "thaw": "all",  # all | head | last (head and top layer) | gradual (ULMFiT's) | chain (chain-thaw)
                "thaw_steps": 0,  # gradual, chain: updates of each stage before everything is trained
                "thaw_stages": 0,  # gradual, chain: how many such stages; 0: one for each group that they can have
                "thaw_restarts": False,  # gradual, chain: each stage runs the whole schedule
                "frozen": "",  # parameter paths that are never trained, as in "^body/"
            },
            "lora": {  # low-rank updates of kernels (Hu et al. 2021), as parameters of their own: bertlab/train/lora.py
                "rank": 0,  # 0: none
                "alpha": 8.0,  # they are multiplied by alpha / rank
                "targets": r"qkv_kernel/(query|value)$",  # paths of the kernels
            },
            "train": {
                "steps": 1000,
                "budget": "",  # tokens=2e6, supervised=, flops= or seconds=: sets the steps; "": `steps` is the budget
                "phases": "",  # "0.9 data.seq_len=128; 0.1 data.seq_len=512": see bertlab/train/phases.py
                "micro_batches": 1,  # gradient accumulation
                "log_every": 50,
                "eval_every": 200,
                "eval_batches": 20,
                "checkpoint_every": 200,
                "keep_checkpoints": 2,
            },
            "evaluate": {  # after pretraining, by the model's own likelihood (bertlab evaluate)
                "sentences": 64,  # of the test split, for bits per byte; 0: none
                "minimal_pairs": "",  # a file in BLiMP's format
                "pairs": 20,  # of each of its paradigms; 0: all
            },
            "mesh": {"data": -1, "fsdp": 1, "tensor": 1},  # -1: all devices that are left
            "writers": "jsonl",  # jsonl | jsonl,tensorboard
            "profile": 0,  # trace so many steps, after a few to warm up, into WORKDIR/profile (TensorBoard, Perfetto); 0: none
        }
    )


def add_objectives(config: ConfigDict, names: str) -> None:
    """Fills `config.objectives` from "mlm+nsp", with every objective's own settings and weight.

    Args:
        config: changed in place.
        names: for `bertlab.objectives.members`: registry names, `bilm` or `module:Class`, joined by "+".

    Raises:
        UserError: for an unknown name.
    """
    from bertlab import objectives

    for name, weight in objectives.members(names).items():
        key, settings = objectives.describe(name)
        if key in config.objectives:
            raise UserError(f"objectives={names}: '{key}' is named twice; give your two classes different names")
        final_weight = config_dict.placeholder(float)  # where it ends, changed linearly over the run; None: `weight`
        config.objectives[key] = ConfigDict({"weight": weight, "final_weight": final_weight, **settings})


def load_config(spec: str, overrides: Mapping[str, Any] | None = None, argv: list[str] | None = None) -> ConfigDict:
    """Runs a config file and applies overrides.

    Args:
        spec: "path/to/file.py" or "path/to/file.py:key=value,key=value"; the path from the working directory, else from the
            repository's root.
        overrides: dotted names to values, as in `{"train.steps": 200}`.
        argv: command-line arguments of which the `--config.KEY=VALUE` ones are applied.

    Raises:
        UserError: the file does not exist, has no `get_config`, or an override names an unknown key.
    """
    path, colon, own = spec.partition(":")
    arguments = [f"--config={_found(path, spec)}{colon}{own}"] + [a for a in argv or [] if a.startswith("--config.")]
    _check_paths(spec, arguments[1:])
    values = flags.FlagValues()
    holder = config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=["bertlab", *arguments])
    try:
        values(["bertlab", *arguments])
    except flags.IllegalFlagValueError as error:
        # config_flags rewords what a config file raises, and adds a traceback.
        chain = [error]
        while chain[-1].__context__ is not None:
            chain.append(chain[-1].__context__)
        if own := [link for link in chain if isinstance(link, UserError)]:
            raise own[-1] from None
        raise UserError(f"{error}".replace("flag --", "--", 1)) from None
    config = holder.value
    for key, value in (overrides or {}).items():
        set_key(config, key, value)
    return config


def _found(path: str, spec: str) -> str:
    """The config file that a path means: from the working directory, or from the root of the repository."""
    for candidate in (path, os.path.join(CHECKOUT, path)):
        if os.path.isfile(candidate):
            return candidate
    if (CHECKOUT / "experiments").is_dir():
        raise UserError(f"--config={spec}: there is no file {path} here or in {CHECKOUT}; give the path of a config file")
    raise UserError(
        f"--config={spec}: there is no file {path} here, and this bertlab was installed without the repository's experiments/;"
        " run in a checkout of it, or give the path of a config file"
    )


def _check_paths(spec: str, arguments: list[str]) -> None:
    """Names the nearest known key before config_flags would fail with less help."""
    if not arguments:
        return
    config = load_config(spec)
    for argument in arguments:
        name, equals, _ = argument.removeprefix("--config.").partition("=")
        if not equals:
            raise UserError(f"{argument}: write it as {argument}=VALUE")
        _require_key(config, name, f"--config.{name}")


def set_key(config: ConfigDict, name: str, value: Any) -> None:
    """Sets a dotted key that must exist already, converting an int to a float where the key holds one."""
    _require_key(config, name, name)
    parent, _, leaf = name.rpartition(".")
    node = _node(config, parent)
    if isinstance(value, Mapping):
        node[leaf].update(value)
        return
    try:
        node[leaf] = value
    except TypeError:
        expected, given = node.get_type(leaf).__name__, type(value).__name__
        raise UserError(f"config.{name}={value!r}: expected {expected}, not {given}") from None


def parse_override(config: ConfigDict, name: str, text: str) -> Any:
    """The value of `--config.NAME=TEXT`, of the type that the key holds."""
    _require_key(config, name, f"--config.{name}")
    parent, _, leaf = name.rpartition(".")
    kind = _node(config, parent).get_type(leaf)
    if kind is str or kind is type(None):
        return text
    try:
        if kind in (tuple, list):
            return kind(ast.literal_eval(text))
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError, TypeError, SyntaxError):
        raise UserError(f"--config.{name}={text}: expected {kind.__name__}") from None


def _node(config: ConfigDict, name: str) -> ConfigDict:
    for part in filter(None, name.split(".")):
        config = config[part]
    return config


def _require_key(config: ConfigDict, name: str, shown: str) -> None:
    known = flatten(config)
    groups = {".".join(k.split(".")[:i]) for k in known for i in range(1, k.count(".") + 1)}
    if name in known or name in groups:
        return
    leaf_of = lambda key: key.rpartition(".")[2]
    initials = lambda key: "".join(word[:1] for word in leaf_of(key).split("_"))
    short = [key for key in known if len(leaf_of(name)) > 1 and initials(key) == leaf_of(name)]  # "lr"
    near = short[:3] or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    raise UnknownKey(shown, name, near, [f"{key}.*" if key in groups else key for key in config])


def flatten(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names to leaf values, in the config's order."""
    flat = {}
    for key in config:
        value = config[key]
        if isinstance(value, (ConfigDict, Mapping)) and len(value):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = dict(value) if isinstance(value, (ConfigDict, Mapping)) else value
    return flat

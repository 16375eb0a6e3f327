"""How the papers pretrained the sizes that carry their names: config keys with published values."""

from collections.abc import Mapping
from typing import Any

Settings = Mapping[str, Any]

# Devlin et al. 2018, appendix A.2; nine tenths of the steps at 128 positions, the rest at 512.
BERT: Settings = {
    "train.steps": 1_000_000,
    "train.phases": "0.9 data.seq_len=128; 0.1 data.seq_len=512",
    "data.seq_len": 512,
    "data.batch_size": 256,
    "data.dupe_factor": 10,
    "data.tokenizer.kind": "wordpiece",
    "data.tokenizer.vocab_size": 30_522,
    "data.tokenizer.lowercase": True,
    "optimizer.learning_rate": 1e-4,
    "optimizer.warmup_steps": 10_000,
}
# For named entities (ibid., section 5.3); the vocabulary is google-research/bert's.
BERT_CASED: Settings = {
    **BERT,
    "data.tokenizer.lowercase": False,
    "data.tokenizer.vocab_size": 28_996,
}
# Radford et al. 2018, section 4.1. Its number of tokens is not printed, so its 100 passes over
# BooksCorpus are counted in that corpus's 800 million words (Devlin et al. 2018): 100 · 800e6 / (64
# · 512) steps.
GPT: Settings = {
    "train.steps": 2_441_406,
    "data.seq_len": 512,
    "data.batch_size": 64,
    "data.tokenizer.kind": "bpe",
    "data.tokenizer.vocab_size": 40_478,
    "data.tokenizer.lowercase": True,
    "optimizer.learning_rate": 2.5e-4,
    "optimizer.warmup_steps": 2000,
}
# Radford et al. 2019, section 2.3; its steps and rates were not published.
GPT2: Settings = {
    "data.seq_len": 1024,
    "data.batch_size": 512,
    "data.tokenizer.kind": "bpe",
    "data.tokenizer.vocab_size": 50_257,
}
# allenai/bilm-tf train_elmo.py: ten passes over 768,648,884 tokens in batches of three times 128
# rows of 20. Words are what spaces separate (bilm/data.py).
ELMO: Settings = {
    "train.steps": 1_000_840,
    "data.seq_len": 20,
    "data.batch_size": 384,
    "data.tokenizer.kind": "words",
    "data.tokenizer.split": "whitespace",
    "data.tokenizer.vocab_size": 793_471,
    "optimizer.name": "adagrad",
    "optimizer.learning_rate": 0.2,
    "optimizer.warmup_steps": 0,
}
# salesforce/awd-lstm-lm README, on WikiText-2: 750 passes over two million tokens, 373 steps each;
# `valid` after each pass. Words are what spaces separate, and each line end is one (data.py); the
# vocabulary has 33,278 and the five special pieces.
AWD_LSTM: Settings = {
    "train.steps": 280_000,
    "train.eval_every": 373,
    "data.seq_len": 70,
    "data.batch_size": 80,
    "data.tokenizer.kind": "words",
    "data.tokenizer.split": "whitespace",
    "data.tokenizer.vocab_size": 33_283,
    "model.hidden_dropout": 0.2,
    "optimizer.name": "sgd",
    "optimizer.learning_rate": 30.0,
    "optimizer.warmup_steps": 0,
}
# How long AWD-LSTM's gradients flow back: normal about a length, with a deviation and at least as
# long, or now and then about its half (Merity et al. 2017, section 5; salesforce/awd-lstm-lm,
# main.py).
VARIED_LENGTHS: Settings = {"half_probability": 0.05, "stddev": 5.0, "shortest": 5}
# The same README, on the Penn Treebank: 500 passes over 929,589 words (line ends included), 664
# steps each; 10,000 words.
AWD_LSTM_PENN_TREEBANK: Settings = {
    **AWD_LSTM,
    "train.steps": 332_000,
    "train.eval_every": 664,
    "data.batch_size": 20,
    "data.tokenizer.vocab_size": 10_005,
    "model.input_dropout": 0.4,
    "model.hidden_dropout": 0.25,
}

SIZES: Mapping[tuple[str, str], Settings] = {
    **{("bert", size): BERT for size in ("base", "large")},
    ("gpt", "gpt1"): GPT,
    **{("gpt", size): GPT2 for size in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")},
    **{
        ("elmo", size): {**ELMO, "model.token_encoder": "characters"}
        for size in ("small", "medium", "original")
    },
    ("awd_lstm", "original"): AWD_LSTM,
}

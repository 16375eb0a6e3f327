"""Very small vocabularies in the form of GPT-1's, GPT-2's and RoBERTa's files."""

import json

import tokenizers

from bertlab.data import gpt1_words

GPT1_MERGES = [("l", "o"), ("e", "r</w>"), ("lo", "w"), ("lo", "w</w>"), ("#", "a")]


def plain_words(monkeypatch):
    """GPT-1's words without ftfy and spaCy, which not every environment has; tests/parity has them."""
    monkeypatch.setattr(gpt1_words, "words", lambda text: gpt1_words.standardise(text).lower().split())


def write_gpt1(directory, names, letters="abcdefghijklmnopqrstuvwxyz#.,'-0123456789"):
    """Writes the two files and returns the pieces."""
    pieces = ["<unk>", *letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in GPT1_MERGES), "\n</w>"]
    (directory / names[0]).write_text(json.dumps({piece: index for index, piece in enumerate(pieces)}), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in GPT1_MERGES)]
    (directory / names[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return pieces


def write_byte_level(directory, texts, specials, vocab_size=400):
    """Trains byte-level BPE and writes vocab.json and merges.txt, the specials first."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.model.save(str(directory))

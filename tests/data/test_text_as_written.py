"""Rows hold the text as it was written: pieces that carry the space before a word have it in every format."""

import itertools
import json
import re

import numpy as np
import pytest
import sentencepiece
import tokenizers

from bertlab.cli import main
from bertlab.config import base_config
from bertlab.data.batches import eval_batches
from bertlab.data.prepare import prepare
from bertlab.data.tokenizers import load_tokenizer, train_tokenizer
from bertlab.objectives.choosing import word_starts
from tests.tokenizer_files import write_byte_level

NAMES = "cat dog river teacher engine window garden letter doctor bridge stone bird".split()


def written(number: int) -> str:
    """A document with two spaces, line breaks in and after a sentence, two paragraphs, and sentences without a space."""
    a, b, c, *_ = NAMES[number % 12 :] + NAMES
    return (
        f'Once there was a {a}.  The {b} sees\nthe old {c} near a {a}. "It\'s a {b}?" Yes!\nEach {c} is one of {number}.'
        f"\n\nThe {a} carries a {c}. 犬がいる。猫もいる。That {b} is the end."
    )


DOCUMENTS = [written(number) for number in range(24)]
READ = [text.replace("sees\nthe", "sees the").replace("Yes!\nEach", "Yes! Each") for text in DOCUMENTS]


def byte_level(folder, specials):
    write_byte_level(folder, READ, specials, 500)


def llama(folder):
    """A space is a piece's first character, and one is put before the text."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    normalizers = tokenizers.normalizers
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    # Words are trained one by one, or a piece would be a whole text.
    backend.train_from_iterator([f" {word}" for text in READ for word in text.split()] + ["\n"], trainer)
    decoders = tokenizers.decoders
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.save(str(folder / "tokenizer.json"))


def without_prefix(folder):
    """A SentencePiece model whose first word has no space."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(READ),
        model_prefix=str(folder / "words"),
        vocab_size=400,
        byte_fallback=True,
        hard_vocab_limit=False,
        add_dummy_prefix=False,
        minloglevel=2,
    )
    return folder / "words.model"


KINDS = {
    "gpt2": lambda folder: byte_level(folder, ["<|endoftext|>"]),
    "roberta": lambda folder: byte_level(folder, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]),
    "llama": llama,
    "unigram": lambda folder: train_tokenizer("unigram", READ, 320, seed=0).save(folder),
    "no prefix": without_prefix,
}
# Each document's sentences follow each other through the rows.
PAIRS = {"random_next_probability": 0.0, "force_random_if_single": False}
FORMATS = {
    "full_sentences": {},
    "doc_sentences": {},
    "segment_pair": {**PAIRS, "short_probability": 0.0},
    "sentence_pair": PAIRS,
    "stream": {},
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request, tmp_path_factory):
    """The path of a tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    return KINDS[request.param](folder) or folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    return path


def rows_of(corpus, tokenizer, form, **settings):
    """The prepared corpus and the batches of one row of its train split."""
    config = base_config()
    config.data.update(corpus=f"text:{corpus}", format=form, seq_len=300, batch_size=1, directory=str(corpus.parent))
    config.data.update(valid_fraction=0.1, test_fraction=0.0)
    if settings:
        config.data[form].update(settings)
    config.data.tokenizer.path = str(tokenizer)
    prepared = prepare(config.data)
    return prepared, eval_batches(prepared, config.data, "train", 0)


def specials_of(tokenizer):
    return [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id]


@pytest.mark.parametrize("form", FORMATS)
def test_the_ids_of_rows_are_those_of_whole_texts(corpus, tokenizer, form):
    prepared, batches = rows_of(corpus, tokenizer, form, **FORMATS[form])
    own = prepared.tokenizer
    ids = np.concatenate([batch["tokens"][0] for batch in batches])
    left = ids[~np.isin(ids, specials_of(own))].tolist()
    texts = {tuple(load_tokenizer(tokenizer).encode(text)): text for text in READ}
    found = []
    while left:
        whole = next((whole for whole in texts if tuple(left[: len(whole)]) == whole), None)
        assert whole is not None, own.decode(left[:100])
        spaces_count = own.kind == "json"
        assert own.decode(whole) == (texts[whole] if spaces_count else " ".join(texts[whole].split()))
        found.append(whole)
        left = left[len(whole) :]
    assert len(found) == len(set(found)) == prepared.statistics["train"]["documents"] > 15


def test_words_beside_each_other_are_counted_as_in_whole_texts(corpus, tokenizer):
    prepared, batches = rows_of(corpus, tokenizer, "cooccurrence", window=1)
    shown = [batch["documents"] > 0 for batch in batches]
    found = {pair for batch, of in zip(batches, shown) for pair in zip(batch["tokens"][of], batch["contexts"][of])}
    texts = [load_tokenizer(tokenizer).encode(text) for text in READ]
    beside = {pair for ids in texts for a, b in itertools.pairwise(ids) for pair in ((a, b), (b, a))}
    assert len(found) > 100 and found <= beside, [[prepared.tokenizer.pieces()[i] for i in pair] for pair in found - beside]


def test_whole_words_are_those_of_the_text_across_separators(corpus, tmp_path):
    byte_level(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    prepared, batches = rows_of(corpus, tmp_path, "segment_pair", random_next_probability=1.0)
    own, cut = prepared.tokenizer, re.compile(r"\s+|(?<=。)")  # no space is there, but perhaps a separator
    words = {"", *(word for text in READ for word in cut.split(text))}
    for batch in batches:
        tokens, documents = batch["tokens"], batch["documents"]
        candidates = (documents > 0) & ~np.isin(tokens, specials_of(own))
        starts = np.asarray(word_starts(tokens, documents, candidates, own.continues()))[0]
        for word in np.split(tokens[0], np.flatnonzero(starts))[1:]:
            assert words.issuperset(cut.split(own.decode(word)))


def test_bytes_of_a_corpus_are_those_of_its_text(corpus, tokenizer):
    prepared, _ = rows_of(corpus, tokenizer, "full_sentences")
    assert sum(split["bytes"] for split in prepared.statistics.values()) == len("".join(READ).encode())


def test_words_of_a_list_are_those_of_the_text(tokenizer):
    own = load_tokenizer(tokenizer)
    text = "The old cat sees a dog."
    ids, starts = own.encode_words(text.split())
    assert ids == own.encode(text) and len(starts) == 6


def test_preparing_says_what_a_sentence_is(tmp_path, capsys):
    """A paragraph over several lines is one text, but each line a sentence, which nobody expects."""
    (tmp_path / "a.txt").write_text("\n\n".join(f"The cat sees\nthe dog of house {n} and\ngoes." for n in range(40)))
    sizes = ["--config.data.tokenizer.kind=words", "--config.data.tokenizer.vocab_size=12"]
    assert main(["prepare", f"--corpus=text:{tmp_path}/a.txt", f"--config.data.directory={tmp_path}", *sizes]) == 0
    assert "at the end of a line" in capsys.readouterr().out

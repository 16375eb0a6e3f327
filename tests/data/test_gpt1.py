import itertools
import pickle
import random
import sys
from collections import Counter

import pytest

from bertlab.data import gpt1_words
from bertlab.data.gpt1_words import standardise
from bertlab.data.tokenizers import Gpt1Tokenizer, load_tokenizer
from bertlab.errors import UserError
from tests.hostile_text import hostile_texts
from tests.tokenizer_files import plain_words, write_gpt1


def reference_standardise(text):
    """OpenAI's rules, one character after the other."""
    for old, new in zip("—–―…´", ["-", "-", "-", "...", "'"]):
        text = text.replace(old, new)
    out, position = [], 0
    while position < len(text):
        run = position
        # A run is of one and the same mark. The backslash is no mark.
        while text[position] in '-~!";?+,)(/*[]}{|_' and run < len(text) and text[run] == text[position]:
            run += 1
        out.append(f" {text[position:run]} " if run > position else text[position])
        position = max(run, position + 1)
    words, line = [], []
    for character in "".join(out) + "\n":
        if character == "\n":
            words.append(" ".join("".join(line).split()))
            line = []
        else:
            line.append(character)
    return " \n ".join(part for part in words if part)


def test_standardise_equals_the_reference_on_hostile_text():
    assert standardise("a—b wait...!! (so-called) a\\b\r\n \n\n c´s") == "a - b wait... !! ( so - called ) a\\b \n c's"
    for text in hostile_texts(2000, seed=1):
        assert standardise(text) == reference_standardise(text), repr(text)


def reference_split(word, merges):
    """Merges one pair after the other in their order: the same result where every merge's parts come before it."""
    pieces = [*word[:-1], word[-1] + "</w>"]
    for pair in merges:
        position = 0
        while position < len(pieces) - 1:
            if (pieces[position], pieces[position + 1]) == pair:
                pieces[position : position + 2] = ["".join(pair)]
            position += 1
    return pieces


def trained_merges(words, number):
    """Byte-pair encoding's training, in its plainest form."""
    merges = []
    for _ in range(number):
        pairs = Counter(pair for word in words for pair in itertools.pairwise(reference_split(word, merges)))
        merges.append(max(sorted(pairs), key=pairs.get))
    return merges


def test_merging_equals_the_reference(monkeypatch):
    plain_words(monkeypatch)
    generator = random.Random(0)
    merges = trained_merges(["".join(generator.choices("abcab", k=generator.randint(1, 9))) for _ in range(150)], 60)
    # The rank decides, not the place ("lo" + "w" comes before "w" + "e"), and pairs do not overlap.
    by_hand = [("l", "o"), ("lo", "w"), ("e", "r</w>"), ("x", "x"), ("w", "e")]
    merges += by_hand
    letters = "abcdlowerx"
    pieces = ["<unk>", *letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges), "\n</w>"]
    tokenizer = Gpt1Tokenizer(pieces, merges)
    split = lambda text: [pieces[index] for index in tokenizer.encode(text)]
    assert split("lower low xxxxx") == ["low", "er</w>", "lo", "w</w>", "xx", "xx", "x</w>"]
    for _ in range(1000):
        word = "".join(generator.choices("abcd", k=generator.randint(1, 20)))
        assert split(word) == reference_split(word, merges)
    monkeypatch.setattr(gpt1_words, "words", lambda text: ["low", "\n ", "x"])
    assert split("a text with a line break")[-2:] == ["\n</w>", "x</w>"]


@pytest.mark.parametrize("names", [("encoder_bpe_40000.json", "vocab_40000.bpe"), ("vocab.json", "merges.txt")])
def test_files_ids_and_saving(tmp_path, monkeypatch, names):
    plain_words(monkeypatch)
    pieces = write_gpt1(tmp_path, names)
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.kind, tokenizer.lowercase, tokenizer.pieces()) == ("gpt1", True, pieces)
    specials = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    assert specials == (0, 0, 0, 0, None)
    assert tokenizer.prefix_ids == tokenizer.suffix_ids == ()
    ids = tokenizer.encode("Lower low é#")
    assert [pieces[index] for index in ids] == ["low", "er</w>", "low</w>", "<unk>", "#</w>"]
    assert ids[3] == 0
    assert tokenizer.decode(ids) == "lower low #"
    assert tokenizer.encode_words(["lower", "", "low"]) == (
        [*tokenizer.encode("lower"), 0, *tokenizer.encode("low")],
        [0, 2, 3],
    )
    tokenizer.save(tmp_path / "saved")
    for other in (load_tokenizer(tmp_path / "saved"), pickle.loads(pickle.dumps(tokenizer))):
        assert (other.kind, other.pieces(), other.merges()) == ("gpt1", pieces, tokenizer.merges())
        assert other.encode("Lower low é#") == ids


def test_missing_libraries_name_the_extra(tmp_path, monkeypatch):
    write_gpt1(tmp_path, ("encoder_bpe_40000.json", "vocab_40000.bpe"))
    monkeypatch.setitem(sys.modules, "ftfy", None)
    gpt1_words.libraries.cache_clear()
    with pytest.raises(UserError, match=r"ftfy.* pip install -e '\.\[openai\]'"):
        load_tokenizer(tmp_path).encode("a")


def test_broken_merges(tmp_path):
    write_gpt1(tmp_path, ("vocab.json", "merges.txt"))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nl o\nabc\n")
    with pytest.raises(UserError, match=r"merges.txt: merge 2 "):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("l o\nlo z\n")
    with pytest.raises(UserError, match="loz"):
        load_tokenizer(tmp_path)

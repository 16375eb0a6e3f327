import pickle
import random
import re
import subprocess
import sys

import pytest

from bertlab.data.tokenizers import KINDS, load_tokenizer, train_tokenizer
from bertlab.data.vocabularies import SPECIALS, sample_texts
from bertlab.errors import UserError

SIZES = {"unigram": 400, "bpe": 400, "wordpiece": 200, "words": 200}


def make_texts(number=500):
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(1, 7))) for _ in range(400)]
    return [" ".join(generator.choices(words, k=10)).capitalize() + ", (ok)." for _ in range(number)]


@pytest.fixture(scope="module")
def trained():
    return {kind: train_tokenizer(kind, make_texts(), SIZES[kind], seed=0) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_and_size(trained, kind):
    tokenizer = trained[kind]
    ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    assert ids == (0, 1, 2, 3, 4)
    assert tokenizer.pieces()[:5] == list(SPECIALS)
    assert len(tokenizer.pieces()) == tokenizer.vocab_size == SIZES[kind]
    assert len(set(tokenizer.pieces())) == tokenizer.vocab_size


@pytest.mark.parametrize("kind", KINDS)
def test_specials_are_not_recognised_in_text(trained, kind):
    tokenizer = trained[kind]
    text = "a [MASK] b [PAD][CLS] [SEP] [UNK] <s> </s> <pad> <mask>"
    ids = tokenizer.encode(text)
    assert not {tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id} & set(ids)
    if kind in ("unigram", "bpe"):
        assert tokenizer.unk_id not in ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.decode([2, *tokenizer.encode("abc def"), 3, 0, 4, 0]) == tokenizer.decode(tokenizer.encode("abc def"))


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize(
    "text",
    [
        "Plain abc, words.",
        "Ünïcödé Ῥώμη 東京 مرحبا",
        "😀👩‍👩‍👧 e\u0301 \u00e9 ﬁ ² ½ Ⅷ",  # nothing is normalised by compatibility
        '<0x41> <unk> \\n %d ``x`` `y` "z"',
        "NUL \0 and \x01\x7f\u200b\ufeff\ufffd",
        "",
        "x" * 10_000,
    ],
)
def test_sentencepiece_round_trip(trained, kind, text):
    assert trained[kind].decode(trained[kind].encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
def test_white_space_counts_as_one_space(trained, kind):
    tokenizer = trained[kind]
    assert tokenizer.encode("  abc\t\n def\u3000\u00a0ghi\r\n") == tokenizer.encode("abc def ghi")
    assert tokenizer.encode(" \n ") == []


@pytest.mark.parametrize("kind", KINDS)
def test_batch_and_words_agree_with_encode(trained, kind):
    tokenizer = trained[kind]
    texts = [*make_texts(20), "", "東 [MASK]"]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    words = texts[0].split()
    ids, starts = tokenizer.encode_words(words)
    assert ids == tokenizer.encode(texts[0])
    pieces = [ids[start:end] for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)]
    assert pieces == [tokenizer.encode(word) for word in words]
    # Also a word without any piece has a position for its label.
    assert tokenizer.encode_words(["", "abc"])[1] == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_pickled_tokenizers_are_the_same(trained, kind, tmp_path):
    tokenizer = trained[kind]
    tokenizer.save(tmp_path / "new" / "folder")
    (tmp_path / "new").rename(tmp_path / "moved")
    text = "Abc def, über [MASK] gh."
    for other in (load_tokenizer(tmp_path / "moved" / "folder"), pickle.loads(pickle.dumps(tokenizer))):
        assert (other.kind, other.lowercase, other.pieces()) == (kind, False, tokenizer.pieces())
        assert other.encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize("kind", KINDS)
def test_lowercase(kind, tmp_path):
    tokenizer = train_tokenizer(kind, make_texts(), SIZES[kind], seed=0, lowercase=True)
    assert tokenizer.encode("ABC Def") == tokenizer.encode("abc def")
    assert not any(re.search("[A-Z]", piece) for piece in tokenizer.pieces() if piece[0] not in "[<")
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).encode("ABC") == tokenizer.encode("abc")


def test_training_is_the_same_in_every_process(trained):
    program = """
import sys
sys.path.insert(0, sys.argv[1])
from test_tokenizers import KINDS, SIZES, make_texts, train_tokenizer
for kind in KINDS:
    print(train_tokenizer(kind, make_texts(), SIZES[kind], seed=0).pieces())
"""
    folder = __file__.rpartition("/")[0]
    run = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [str(trained[kind].pieces()) for kind in KINDS]
    assert run.stderr == ""


@pytest.mark.parametrize("kind", KINDS)
def test_vocabulary_larger_than_the_text_supports(kind):
    texts = make_texts()
    with pytest.raises(UserError, match=r"^vocab_size=50000 \(config.data.*, or --vocab_size\) is more than") as raised:
        train_tokenizer(kind, texts, 50_000, seed=0)
    largest = int(re.search(r"(\d+)\.$", str(raised.value)).group(1))
    assert train_tokenizer(kind, texts, largest, seed=0).vocab_size == largest
    with pytest.raises(UserError, match=f"works is {largest}"):
        train_tokenizer(kind, texts, largest + 1, seed=0)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece"])
def test_vocabulary_smaller_than_the_characters(kind):
    texts = make_texts()
    with pytest.raises(UserError, match=r"^vocab_size=20 \(config.data.*\) does not hold the single characters") as raised:
        train_tokenizer(kind, texts, 20, seed=0)
    smallest = int(re.search(r"at least (\d+)", str(raised.value)).group(1))
    assert train_tokenizer(kind, texts, smallest, seed=0).vocab_size == smallest
    with pytest.raises(UserError, match=f"at least {smallest}"):
        train_tokenizer(kind, texts, smallest - 1, seed=0)


def test_training_errors():
    with pytest.raises(UserError, match=r'^kind="sentences" \(config.data.tokenizer.kind, or --kind\) is unknown: use one of'):
        train_tokenizer("sentences", ["a"], 300, seed=0)
    with pytest.raises(UserError, match=r"no text to train on; check config.data.corpus and config.data.valid_fraction"):
        train_tokenizer("words", ["", " \n"], 300, seed=0)
    with pytest.raises(UserError, match=r"^vocab_size=5 \(config.data.*\) must be more than the 5 special pieces"):
        train_tokenizer("words", ["a"], 5, seed=0)


def test_words_are_ordered_by_frequency_then_alphabet():
    tokenizer = train_tokenizer("words", ["b a, b don't b.", "c a c ,"], 5 + 6, seed=0)
    assert tokenizer.pieces()[5:] == ["b", ",", "a", "c", "'", "."]
    ids = tokenizer.encode("b, zebra a")
    assert ids == [5, 6, tokenizer.unk_id, 7]
    assert tokenizer.decode(ids) == "b , a"


def test_wordpiece_alphabet_is_bounded():
    # 1,200 syllables of Hangul, of which the last 200 are rarer: the 1,000 most frequent stay.
    texts = [chr(0xAC00 + i) * 2 for i in range(1200) for _ in range(2 if i < 1000 else 1)]
    tokenizer = train_tokenizer("wordpiece", texts, 5 + 2 * 1000, seed=0)
    assert tokenizer.unk_id not in tokenizer.encode(" ".join(texts[:2000]))
    assert set(tokenizer.encode(" ".join(texts[2000:]))) == {tokenizer.unk_id}


def test_sample_is_bounded_repeatable_uniform_and_in_order():
    texts = [f"{i:05d}" for i in range(10_000)]
    assert sample_texts(texts, 10_000, seed=0, characters=50_000) == texts
    sample = sample_texts(iter(texts), 1000, seed=0)
    assert sample == sample_texts(texts, 1000, seed=0) == sorted(sample)
    assert sample != sample_texts(texts, 1000, seed=1)
    assert 850 <= len(sample) <= 1000
    # The first and second halves of the stream are equally likely: 5 standard deviations of a binomial.
    assert abs(sum(text < "05000" for text in sample) - len(sample) / 2) < 5 * (len(sample) / 4) ** 0.5
    by_characters = sample_texts(texts, 10_000, seed=0, characters=5000)
    assert 850 <= len(by_characters) <= 1000
    assert sample_texts(["x" * 100], 10, seed=0, characters=50) == ["x" * 100]


def google_vocabulary(tmp_path, pieces):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return path


# Expected values: google-research/bert, tokenization_test.py and README.
def test_wordpiece_equals_google(tmp_path):
    pieces = "[UNK] [CLS] [SEP] want ##want ##ed wa un runn ##ing , [PAD] [MASK]".split()
    tokenizer = load_tokenizer(google_vocabulary(tmp_path, pieces), lowercase=True)
    assert tokenizer.encode("UNwant\u00e9d,running") == [7, 4, 5, 10, 8, 9]
    assert (tokenizer.unk_id, tokenizer.cls_id, tokenizer.pad_id, tokenizer.mask_id) == (0, 1, 11, 12)
    assert tokenizer.encode("unwantedX running") == [0, 8, 9]
    assert tokenizer.encode("") == []


def test_wordpiece_splits_like_google(tmp_path):
    pieces = [*SPECIALS, *"hello ! how are you ? ah zz 博 推 john johan ##son ' s house".split()]
    tokenizer = load_tokenizer(google_vocabulary(tmp_path, pieces))
    assert tokenizer.lowercase

    def tokens(text):
        return [pieces[index] for index in tokenizer.encode(text)]

    assert tokens(" \tHeLLo!how  \n Are yoU?  ") == ["hello", "!", "how", "are", "you", "?"]
    assert tokens("ah博推zz") == ["ah", "博", "推", "zz"]
    assert tokens("H\u00e9llo\0 \u200dHow") == ["hello", "how"]
    assert tokens("hel\x1clo") == ["hello"]
    words = ["[CLS]", "John", "Johanson", "'s", "house", "[SEP]"]
    ids, starts = tokenizer.encode_words(words[1:-1])
    assert [pieces[index] for index in ids] == ["john", "johan", "##son", "'", "s", "house"]
    assert [start + 1 for start in starts] == [1, 2, 4, 6]


def test_wordpiece_words_may_have_200_characters(tmp_path):
    tokenizer = load_tokenizer(google_vocabulary(tmp_path, [*SPECIALS, "a", "##a"]))
    assert tokenizer.encode("a" * 200) == [5] + [6] * 199
    assert tokenizer.encode("a" * 201) == [tokenizer.unk_id]


def test_cased_vocabulary_is_recognised(tmp_path):
    tokenizer = load_tokenizer(google_vocabulary(tmp_path, [*SPECIALS, "[unused0]", "The", "the", "\u00e9", "e"]))
    assert not tokenizer.lowercase
    assert tokenizer.encode("The the \u00e9") == [6, 7, 8]


def test_loading_errors(tmp_path):
    with pytest.raises(UserError, match=r"is neither a folder .* nor a BERT vocab.txt"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match="is neither"):
        load_tokenizer(tmp_path / "none" / "vocab.txt")
    with pytest.raises(UserError, match=r"vocab.txt lacks \[CLS\] \[MASK\]"):
        load_tokenizer(google_vocabulary(tmp_path, ["[PAD]", "[UNK]", "[SEP]"]))

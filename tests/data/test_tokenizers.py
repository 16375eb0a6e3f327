import itertools
import json
import pickle
import random
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
import tokenizers

from bertlab.data.tokenizers import TRAINED_KINDS, WordsTokenizer, load_tokenizer, train_tokenizer
from bertlab.data.vocabularies import SPECIALS, Sample, bert_words, sample_texts
from bertlab.errors import UserError
from tests.hostile_text import characters, hostile_texts
from tests.tokenizer_files import write_byte_level, write_gpt1

SIZES = {"unigram": 400, "bpe": 400, "wordpiece": 200, "words": 200}


def special_ids(tokenizer):
    return tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id


def make_texts(number=500):
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(1, 7))) for _ in range(400)]
    return [" ".join(generator.choices(words, k=10)).capitalize() + ", (ok)." for _ in range(number)]


@pytest.fixture(scope="module")
def trained():
    return {kind: train_tokenizer(kind, make_texts(), SIZES[kind], seed=0) for kind in TRAINED_KINDS}


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_specials_have_fixed_ids_and_are_not_recognised_in_text(trained, kind):
    tokenizer = trained[kind]
    assert special_ids(tokenizer) == (0, 1, 2, 3, 4)
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ((2,), (3,))
    assert tokenizer.pieces()[:5] == list(SPECIALS)
    assert len(tokenizer.pieces()) == tokenizer.vocab_size == SIZES[kind]
    assert len(set(tokenizer.pieces())) == tokenizer.vocab_size
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


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_batch_and_words_agree_with_encode(trained, kind):
    tokenizer = trained[kind]
    assert tokenizer.encode("  abc\t\n def\u3000\u00a0ghi\r\n") == tokenizer.encode("abc def ghi")
    assert tokenizer.encode(" \n ") == []
    texts = [*make_texts(20), "", "東 [MASK]"]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    words = texts[0].split()
    ids, starts = tokenizer.encode_words(words)
    assert ids == tokenizer.encode(texts[0])
    pieces = [ids[start:end] for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)]
    assert pieces == [tokenizer.encode(word) for word in words]
    # Also a word without any piece has a position for its label.
    assert tokenizer.encode_words(["", "abc"])[1] == [0, 1]


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_saved_and_pickled_tokenizers_are_the_same(trained, kind, tmp_path):
    tokenizer = trained[kind]
    tokenizer.save(tmp_path / "new" / "folder")
    (tmp_path / "new").rename(tmp_path / "moved")
    text = "Abc def, über [MASK] gh."
    for other in (load_tokenizer(tmp_path / "moved" / "folder"), pickle.loads(pickle.dumps(tokenizer))):
        assert (other.kind, other.lowercase, other.pieces()) == (kind, False, tokenizer.pieces())
        assert other.encode(text) == tokenizer.encode(text)


def words_of(tokenizer, text) -> list[str]:
    """The text's pieces, joined where a piece goes on with a word."""
    words = []
    for index in tokenizer.encode(text):
        piece = tokenizer.pieces()[index]
        if tokenizer.continues()[index] and words:
            words[-1] += piece
        else:
            words.append(piece)
    return words


def test_pieces_tell_whether_they_go_on_with_a_word(trained):
    text = "Abcde fghij, jihgf 東京."
    for kind in ("unigram", "bpe"):
        assert words_of(trained[kind], text)[:3] == ["▁Abcde", "▁fghij,", "▁jihgf"]
        assert len(words_of(trained[kind], text)) == 4, "the bytes of a character go on too"
        assert len(trained[kind].encode(text)) > 8
    words = words_of(trained["wordpiece"], text)
    assert [word.replace("##", "") for word in words] == ["Abcde", "fghij", ",", "jihgf", "[UNK]", "[UNK]", "."]
    assert not any(trained["words"].continues()) and len(trained["words"].continues()) == SIZES["words"]
    for kind in TRAINED_KINDS:
        assert len(trained[kind].continues()) == SIZES[kind] and not any(trained[kind].continues()[:5])


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_lowercase(kind, tmp_path):
    tokenizer = train_tokenizer(kind, make_texts(), SIZES[kind], seed=0, lowercase=True)
    assert tokenizer.encode("ABC Def") == tokenizer.encode("abc def")
    assert not any(re.search("[A-Z]", piece) for piece in tokenizer.pieces() if piece[0] not in "[<")
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).encode("ABC") == tokenizer.encode("abc")


def test_training_is_the_same_in_every_process(trained):
    program = """
import sys
sys.path[:0] = sys.argv[1:]
from test_tokenizers import TRAINED_KINDS, SIZES, make_texts, train_tokenizer
for kind in TRAINED_KINDS:
    print(train_tokenizer(kind, make_texts(), SIZES[kind], seed=0).pieces())
"""
    folder = Path(__file__).parent
    run = subprocess.run(
        [sys.executable, "-c", program, folder, folder.parent.parent], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == [str(trained[kind].pieces()) for kind in TRAINED_KINDS]
    assert run.stderr == ""


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_a_vocabulary_of_a_size_that_the_text_does_not_support_says_which_does(kind):
    texts = make_texts()
    for size, step in ((50_000, 1), *([(20, -1)] if kind != "words" else [])):
        with pytest.raises(
            UserError, match=rf"^vocab_size={size} \(config.data.tokenizer.vocab_size, or --vocab_size\)"
        ) as raised:
            train_tokenizer(kind, texts, size, seed=0)
        limit = int(re.search(r"(\d+)\.$", str(raised.value)).group(1))
        assert train_tokenizer(kind, texts, limit, seed=0).vocab_size == limit
        with pytest.raises(UserError, match=rf"\b{limit}\."):
            train_tokenizer(kind, texts, limit + step, seed=0)


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


JOINED = ["new", "york", "new-york", "n't", "u.s.", "10,000", "-", "'", "t", "\r", "a\u2028b"]


@pytest.mark.parametrize("split", ["punctuation", "whitespace"])
def test_given_words_are_looked_up_whole_before_they_are_split(split):
    tokenizer = WordsTokenizer([*SPECIALS, *JOINED], True, split)
    joined = list(range(5, 5 + len(JOINED)))
    assert tokenizer.encode_words(JOINED) == (joined, list(range(len(JOINED))))
    assert tokenizer.encode_words(["New-York", "york-t", "", "zebra"]) == ([7, 6, 11, 13, 1, 1], [0, 1, 4, 5])
    # A special's name is a word like any other.
    cased = WordsTokenizer([*SPECIALS, *JOINED], False, split)
    assert not {0, 2, 3, 4} & {*cased.encode_words(SPECIALS)[0], *cased.encode(" ".join(SPECIALS))}


def test_a_text_is_split_at_punctuation_or_at_white_space(tmp_path):
    text = "New-York  10,000 york-t\tis n't [MASK]"
    pieces = [*SPECIALS, *JOINED]
    by_split = {}
    for split in ("punctuation", "whitespace"):
        tokenizer = WordsTokenizer(pieces, True, split)
        tokenizer.save(tmp_path / split)
        for other in (tokenizer, load_tokenizer(tmp_path / split), pickle.loads(pickle.dumps(tokenizer))):
            ids = other.encode(text)
            words = other.words(text)
            assert other.split == split and other.pieces() == pieces
            assert [pieces[index] for index in ids] == [word if word in JOINED else "[UNK]" for word in words]
            assert other.encode_batch([text, "", "york"]) == [ids, [], [6]]
            by_split[split] = words
    assert by_split["whitespace"] == ["new-york", "10,000", "york", "-", "t", "is", "n't", "[", "mask", "]"]
    numbers = ["10", ",", "000"]
    assert by_split["punctuation"] == ["new", "-", "york", *numbers, "york", "-", "t", "is", "n", "'", "t", "[", "mask", "]"]


def test_a_words_tokenizer_saved_without_its_split_splits_at_punctuation(tmp_path):
    WordsTokenizer([*SPECIALS, *JOINED], True, "whitespace").save(tmp_path)
    description = tmp_path / "bertlab_tokenizer.json"
    metadata = json.loads(description.read_text())
    del metadata["split"]
    description.write_text(json.dumps(metadata))
    assert load_tokenizer(tmp_path).encode("new-york") == [5, 11, 6]
    description.write_text(json.dumps(metadata | {"split": "letters"}))
    with pytest.raises(UserError, match=r'split="letters" .*punctuation, whitespace'):
        load_tokenizer(tmp_path)


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


@pytest.mark.parametrize("bounds", [(300, 10**6), (10**6, 900), (40, 200), (10**6, 10**6)])
def test_sample_does_not_depend_on_the_order_of_its_texts_nor_on_parts(bounds):
    generator = random.Random(5)
    texts = ["x" * generator.randint(0, 9) + str(i) if i % 7 else "" for i in range(2000)]
    expected = sample_texts(texts, bounds[0], seed=1, characters=bounds[1])
    numbers = random.Random(1)
    numbered = [(numbers.random(), i, text) for i, text in enumerate(texts)]
    generator.shuffle(numbered)
    merged = Sample(*bounds)
    for start, end in itertools.pairwise((0, 1900, 1905, 1910, 1930, 2000)):  # one part that is bounded, then some that are not
        part = Sample(*bounds)
        for one in numbered[start:end]:
            part.add(*one)
        merged.merge(part)
    assert merged.texts() == expected


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


_BLOCKS = "4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B820-2CEAF F900-FAFF 2F800-2FA1F"
CJK = [[int(code, 16) for code in block.split("-")] for block in _BLOCKS.split()]


def google_words(text, lowercase):
    """BasicTokenizer, one step after the other, from the text of its rules."""

    def punctuation(character):
        ascii_symbol = any(first <= ord(character) <= last for first, last in ((33, 47), (58, 64), (91, 96), (123, 126)))
        return ascii_symbol or unicodedata.category(character)[0] == "P"

    cleaned = ""
    for character in text:
        category = unicodedata.category(character)
        if character in "\t\n\r" or category == "Zs":
            cleaned += " "
        elif ord(character) not in (0, 0xFFFD) and category not in ("Cc", "Cf"):
            cleaned += character
    chinese = [any(first <= ord(character) <= last for first, last in CJK) for character in cleaned]
    spaced = "".join(f" {character} " if apart else character for character, apart in zip(cleaned, chinese))
    words = []
    for word in spaced.split():
        if lowercase:
            word = "".join(c for c in unicodedata.normalize("NFD", word.lower()) if unicodedata.category(c) != "Mn")
        words += "".join(f" {character} " if punctuation(character) else character for character in word).split()
    return words


def google_pieces(words, vocabulary):
    """WordpieceTokenizer: the longest piece that fits, from the left; [UNK] for a word that has a rest, or 201 letters."""
    pieces = []
    for word in words:
        found, start = [], 0
        while start < len(word) and len(word) <= 200:
            prefix = "##" if start else ""
            fits = [end for end in range(len(word), start, -1) if prefix + word[start:end] in vocabulary]
            if not fits:
                break
            found.append(prefix + word[start : fits[0]])
            start = fits[0]
        pieces += found if start == len(word) else ["[UNK]"]
    return pieces


def test_every_character_is_split_like_google():
    """Lower-cased; hostile text below is cased too."""
    # Of the 280,000 letters without case, private and unassigned characters a part is enough, with the ends of the blocks.
    plain = ("Lo", "Co", "Cn")
    near = {chr(end + step) for block in CJK for end in block for step in (-1, 0, 1)}
    for character in characters():
        if unicodedata.category(character) in plain and ord(character) % 97 and character not in near:
            continue
        text = f"aA{character}B b"
        assert bert_words(text, True) == google_words(text, True), hex(ord(character))


@pytest.mark.parametrize("lowercase", [False, True])
def test_hostile_text_has_google_s_pieces(tmp_path, lowercase, monkeypatch):
    texts = hostile_texts(1200, seed=int(lowercase))
    words = {word for text in texts[::2] for word in google_words(text, lowercase)}
    letters = sorted({letter for word in words for letter in word if letter not in "bé"})
    starts = sorted({word[:3] for word in words if len(word) > 3})
    ends = sorted({f"##{word[-2:]}" for word in words if len(word) > 3})
    pieces = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters if letter not in SPECIALS), *starts, *ends]
    pieces = list(dict.fromkeys(pieces))
    tokenizer = load_tokenizer(google_vocabulary(tmp_path, pieces), lowercase=lowercase)
    expected = [google_pieces(google_words(text, lowercase), set(pieces)) for text in texts]
    assert sum("[UNK]" in text for text in expected) > 100
    assert [[pieces[index] for index in ids] for ids in tokenizer.encode_batch(texts)] == expected
    # Words it has met and words it has not, in other company, and with room to remember few.
    monkeypatch.setattr("bertlab.data.tokenizers._KNOWN_WORDS", 50)
    tokenizer = load_tokenizer(google_vocabulary(tmp_path, pieces), lowercase=lowercase)
    for first in reversed(range(0, len(texts), 5)):
        found = [[pieces[index] for index in ids] for ids in tokenizer.encode_batch(texts[first : first + 5])]
        assert found == expected[first : first + 5]
    assert 0 < len(tokenizer._known) <= 50


def test_vocabulary_files_are_read_like_google_s(tmp_path):
    path = google_vocabulary(tmp_path, [*SPECIALS, "[unused0]", "The", "the", "\u00e9", "e"])
    assert not load_tokenizer(path).lowercase, "a cased vocabulary is recognised"
    assert load_tokenizer(path).encode("The the \u00e9") == [6, 7, 8]
    # Lines are stripped, and the last of two like ones counts.
    path.write_bytes("\r\n".join([*SPECIALS, "the ", "\u2028", "a", "b", "a"]).encode())
    tokenizer = load_tokenizer(path)
    assert tokenizer.pieces()[5:] == ["the", "\u2028", "a", "b", "a"] and tokenizer.encode("a b") == [9, 8]
    tokenizer.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").pieces() == tokenizer.pieces()
    path.write_bytes("\n".join([*SPECIALS, "é"]).encode("latin-1"))
    with pytest.raises(UserError, match=r"vocab\.txt is not UTF-8"):
        load_tokenizer(path)


def test_directory_with_vocabulary_and_its_settings(tmp_path):
    google_vocabulary(tmp_path, [*SPECIALS, "the", "The"])
    assert load_tokenizer(tmp_path).encode("The") == [6]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "mask_token": "[MASK]"}))
    assert load_tokenizer(tmp_path).encode("The") == load_tokenizer(tmp_path / "vocab.txt").encode("The") == [5]
    assert load_tokenizer(tmp_path, lowercase=False).encode("The") == [6]
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer_config.json is not JSON"):
        load_tokenizer(tmp_path)


GPT2, ROBERTA = ["<|endoftext|>"], ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


@pytest.fixture
def byte_level(tmp_path, request):
    """A folder with the files of a byte-level BPE with the parameter's specials, GPT-2's by default."""
    write_byte_level(tmp_path, make_texts(100), getattr(request, "param", GPT2))
    return tmp_path


@pytest.mark.parametrize(
    ("byte_level", "ids", "framing"),
    [(GPT2, (0, 0, 0, 0, None), ((), ())), (ROBERTA, (1, 3, 0, 2, 4), ((0,), (2,)))],
    indirect=["byte_level"],
    ids=["gpt2", "roberta"],
)
def test_byte_level_pieces_keep_every_text(byte_level, ids, framing, tmp_path):
    tokenizer = load_tokenizer(byte_level)
    assert (special_ids(tokenizer), tokenizer.prefix_ids, tokenizer.suffix_ids) == (ids, *framing)
    first, last = tokenizer.cls_id, tokenizer.sep_id
    assert tokenizer.decode([first, *tokenizer.encode(" Abc"), last]) == " Abc"
    texts = hostile_texts(300, seed=2)
    encoded = tokenizer.encode_batch(texts)
    assert encoded == [tokenizer.encode(text) for text in texts]
    # Also names of specials are text, and nothing is unknown.
    assert not set(special_ids(tokenizer)) & {index for ids in encoded for index in ids}
    assert [tokenizer.decode(ids) for ids in encoded] == texts
    tokenizer.save(tmp_path / "saved")
    for other in (load_tokenizer(tmp_path / "saved"), pickle.loads(pickle.dumps(tokenizer))):
        assert (other.kind, special_ids(other), other.pieces()) == ("json", special_ids(tokenizer), tokenizer.pieces())
        assert (other.prefix_ids, other.suffix_ids) == (tokenizer.prefix_ids, tokenizer.suffix_ids)
        assert other.encode_batch(texts) == encoded


@pytest.mark.parametrize("space", [False, True])
def test_byte_level_words_have_their_space(byte_level, space):
    (byte_level / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": space}))
    tokenizer = load_tokenizer(byte_level)
    text = make_texts(1)[0]
    ids, starts = tokenizer.encode_words(text.split())
    assert ids == tokenizer.encode(text)
    first = [tokenizer.pieces()[ids[start]] for start in starts]
    assert [piece[0] == "Ġ" for piece in first] == [space, *[True] * (len(first) - 1)]


@pytest.mark.parametrize("byte_level", [ROBERTA], indirect=True)
def test_byte_level_pieces_tell_whether_they_go_on_with_a_word(byte_level):
    tokenizer = load_tokenizer(byte_level)
    assert words_of(tokenizer, " abcde fghij, x東京.") == ["Ġabcde", "Ġfghij,", "Ġx" + "æĿ±äº¬" + "."]
    assert not any(tokenizer.continues()[index] for index in special_ids(tokenizer))


def test_pieces_of_a_tokenizer_json_that_go_on_with_a_word(tmp_path):
    def continues(model, pre_tokenizer=None, added=()):
        backend = tokenizers.Tokenizer(model)
        backend.pre_tokenizer = pre_tokenizer
        backend.add_tokens(list(added))
        backend.save(str(tmp_path / "tokenizer.json"))
        return load_tokenizer(tmp_path).continues()

    models, pre_tokenizers = tokenizers.models, tokenizers.pre_tokenizers
    pieces = {"[UNK]": 0, "a": 1, "##b": 2, "▁b": 3, "Ġb": 4, "b": 5}
    assert continues(models.WordLevel(pieces, "[UNK]")) == (False,) * 6
    assert continues(models.WordPiece(pieces, unk_token="[UNK]")) == (False, False, True, False, False, False)
    # An added piece is a whole one; Ġ is a letter of Maltese where pieces are not bytes.
    expected = (False, True, True, False, True, True, False)
    assert continues(models.Unigram([(piece, -1.0) for piece in pieces], 0), pre_tokenizers.Metaspace(), ["x y"]) == expected
    assert continues(models.BPE(pieces, [], unk_token="[UNK]"), pre_tokenizers.Metaspace()) == expected[:-1]
    byte_level = pre_tokenizers.ByteLevel()
    assert continues(models.BPE(pieces, [], unk_token="[UNK]"), byte_level) == (False, True, True, True, False, True)
    in_sequence = pre_tokenizers.Sequence([pre_tokenizers.Digits(), byte_level])
    assert continues(models.BPE(pieces, [], unk_token="[UNK]"), in_sequence) == (False, True, True, True, False, True)
    assert continues(models.BPE(pieces, [], unk_token="[UNK]", end_of_word_suffix="</w>")) is None
    assert continues(models.BPE({"[UNK]": 0, "a": 1}, [], unk_token="[UNK]")) is None, "nothing shows where a word begins"


def test_tokenizer_json_with_named_and_with_ordinary_added_pieces(tmp_path):
    vocabulary = {"<begin>": 0, "<end>": 1, "a": 2, "b": 3, "?": 4}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.normalizer = tokenizers.normalizers.Lowercase()
    backend.add_special_tokens(["<begin>", "<end>"])
    backend.add_tokens(["@user"])
    frame = {"single": ["<begin>", "<begin>", "$A", "<end>"], "special_tokens": [("<begin>", 0), ("<end>", 1)]}
    backend.post_processor = tokenizers.processors.TemplateProcessing(**frame)
    backend.enable_truncation(2)
    backend.enable_padding(length=2)
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"tokenizer.json has no special piece: at least one of"):
        load_tokenizer(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<end>", "lstrip": False}}))
    settings = {"bos_token": "<begin>", "unk_token": "?", "pad_token": None, "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    for tokenizer in (load_tokenizer(tmp_path), load_tokenizer(tmp_path / "tokenizer.json")):
        assert special_ids(tokenizer) == (1, 4, 0, 1, None)
        assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ((0, 0), (1,))
        assert tokenizer.lowercase and tokenizer.vocab_size == 6
        assert tokenizer.encode("A b a @user c <end>") == [2, 3, 2, 5, 4, 4]
        assert tokenizer.encode_words(["a", "", "b"]) == ([2, 4, 3], [0, 1, 2])


def test_tokenizer_json_wins_over_the_other_files(byte_level):
    google_vocabulary(byte_level, [*SPECIALS, "a"])
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    assert load_tokenizer(byte_level).kind == "wordpiece"
    backend.save(str(byte_level / "tokenizer.json"))
    assert load_tokenizer(byte_level).vocab_size == 2
    (byte_level / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"is not a tokenizer.json that the tokenizers library can read"):
        load_tokenizer(byte_level)


def test_sentencepiece_files_of_others(tmp_path):
    model = tmp_path / "spiece.model"
    options = dict(vocab_size=80, hard_vocab_limit=False, minloglevel=2, model_prefix=str(tmp_path / "spiece"))
    texts = make_texts(100)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), pad_id=0, eos_id=1, unk_id=2, bos_id=-1, user_defined_symbols=["<mask>"], **options
    )
    tokenizer = load_tokenizer(model)
    assert (tokenizer.kind, tokenizer.prefix_ids, tokenizer.suffix_ids) == ("unigram", (), (1,))
    assert special_ids(tokenizer) == (0, 2, 1, 1, 3)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    assert tokenizer.encode(texts[0]) == processor.encode(texts[0])
    tokenizer.save(tmp_path / "saved")
    assert special_ids(load_tokenizer(tmp_path / "saved")) == special_ids(tokenizer)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_type="bpe", **options)
    assert load_tokenizer(model).kind == "bpe"
    assert load_tokenizer(model, lowercase=True).encode("ABC") == load_tokenizer(model).encode("abc")
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_type="char", **options)
    with pytest.raises(UserError, match="reads only unigram and bpe"):
        load_tokenizer(model)
    model.write_bytes(b"no model")
    with pytest.raises(UserError, match=r"spiece.model is not a SentencePiece model"):
        load_tokenizer(model)


def test_sentencepiece_files_of_others_beside_an_old_protobuf(tmp_path, monkeypatch):
    (tmp_path / "spiece.model").write_bytes(b"")
    monkeypatch.delattr(sentencepiece, "sentencepiece_model_pb2", raising=False)
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    with pytest.raises(UserError, match=r"spiece.model needs a newer protobuf than the installed one"):
        load_tokenizer(tmp_path / "spiece.model")


def test_gpt1_directory_is_recognised(tmp_path):
    write_gpt1(tmp_path, ("encoder_bpe_40000.json", "vocab_40000.bpe"))
    assert load_tokenizer(tmp_path).kind == "gpt1"
    assert load_tokenizer(tmp_path).continues() is None, "its pieces show where a word ends"


def test_loading_errors(tmp_path):
    with pytest.raises(UserError, match=r"is neither a folder .* nor a BERT vocab.txt, a tokenizer.json, a SentencePiece"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match="is neither"):
        load_tokenizer(tmp_path / "none" / "vocab.txt")
    with pytest.raises(UserError, match=r"vocab.txt lacks \[CLS\] \[MASK\]"):
        load_tokenizer(google_vocabulary(tmp_path, ["[PAD]", "[UNK]", "[SEP]"]))

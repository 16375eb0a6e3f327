import itertools
import json
import random
import subprocess
import sys
import unicodedata

import pytest
import sentencepiece
import tokenizers

from bertlab.config.defaults import base_config
from bertlab.data.prepare import prepare
from bertlab.data.tokenizers import SPECIALS, load_tokenizer, sample_texts, train_tokenizer
from bertlab.errors import UserError
from tests.hostile_text import hostile_texts

SIZES = {"unigram": 400, "bpe": 400, "wordpiece": 200, "words": 200}
GPT2, ROBERTA = ["<|endoftext|>"], ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def make_texts(number=300):
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(1, 7))) for _ in range(400)]
    return [" ".join(rng.choices(words, k=10)).capitalize() + ", (ok)." for _ in range(number)]


def write_byte_level(folder, texts, specials, vocab_size=400):
    """A tokenizer.json with GPT-2's rules, or RoBERTa's [CLS] and [SEP] too."""
    pre_tokenizers, processors = tokenizers.pre_tokenizers, tokenizers.processors
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if specials == ROBERTA:
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", 2), ("<s>", 0), True, False
        )
    tokenizer.save(str(folder / "tokenizer.json"))


def special_ids(tokenizer):
    roles = ("pad", "unk", "cls", "sep", "mask")
    return tuple(getattr(tokenizer, f"{role}_id") for role in roles)


@pytest.fixture(scope="module", params=SIZES)
def trained(request):
    return train_tokenizer(request.param, make_texts(), SIZES[request.param])


def test_specials_have_fixed_ids_and_are_not_recognised_in_text(trained):
    assert special_ids(trained) == (0, 1, 2, 3, 4)
    assert (trained.prefix_ids, trained.suffix_ids) == ((2,), (3,))
    assert trained.pieces()[:5] == list(SPECIALS)
    assert len(set(trained.pieces())) == trained.vocab_size == SIZES[trained.kind]
    text = "a [MASK] b [PAD][CLS] [SEP] [UNK] <s> </s> <pad> <mask>"
    ids = trained.encode(text)
    assert not {0, 2, 3, 4} & set(ids)
    plain = trained.encode("abc def")
    assert trained.decode([2, *plain, 3, 0, 4, 0]) == trained.decode(plain)
    if trained.kind in ("unigram", "bpe"):
        texts = [text, *hostile_texts(100, seed=1)]
        for text in texts:
            text = " ".join(text.replace("▁", " ").split())
            assert trained.decode(trained.encode(text)) == text and 1 not in trained.encode(text)


def test_batches_words_and_saved_files_give_the_same_ids(trained, tmp_path):
    assert trained.encode("  abc\t\n def\u3000\u00a0ghi\r\n") == trained.encode("abc def ghi")
    texts = [*make_texts(20), "", "東 [MASK]"]
    encoded = [trained.encode(text) for text in texts]
    assert trained.encode_batch(texts) == encoded
    words = texts[0].split()
    ids, starts = trained.encode_words(words)
    assert ids == encoded[0] and len(starts) == len(words)
    # A word without any piece has a position for its label.
    assert trained.encode_words(["", "abc"])[1] == [0, 1]
    trained.save(tmp_path / "a")
    saved = load_tokenizer(tmp_path / "a")
    assert (saved.kind, saved.pieces()) == (trained.kind, trained.pieces())
    assert saved.encode_batch(texts) == encoded


def words_of(tokenizer, text):
    """The text's pieces, joined where a piece continues a word."""
    words = []
    for index in tokenizer.encode(text):
        if tokenizer.continues()[index] and words:
            words[-1] += tokenizer.pieces()[index]
        else:
            words.append(tokenizer.pieces()[index])
    return [word.replace("##", "") for word in words]


def test_pieces_continue_words(trained, tmp_path):
    words = words_of(trained, "Abcde fghij, jihgf 東京.")
    assert len(trained.continues()) == trained.vocab_size and not any(trained.continues()[:5])
    if trained.kind in ("unigram", "bpe"):
        assert words[:3] == ["▁Abcde", "▁fghij,", "▁jihgf"] and len(words) == 4
    elif trained.kind == "wordpiece":
        assert words == ["Abcde", "fghij", ",", "jihgf", "[UNK]", "[UNK]", "."]
    write_byte_level(tmp_path, make_texts(50), ROBERTA)
    words = words_of(load_tokenizer(tmp_path), " abcde fghij, x東京.")
    assert words == ["Ġabcde", "Ġfghij,", "Ġx" + "æĿ±äº¬" + "."]


def test_lower_cased_text(trained):
    sample = sample_texts(make_texts(), 10**6, seed=0, lowercase=True)
    lower = train_tokenizer(trained.kind, sample, trained.vocab_size, lowercase=True)
    assert lower.encode("ABC Def") == lower.encode("abc def")


def test_wordpiece_is_trained_alike_in_another_process():
    """Its library breaks ties by numbers that are random in each process."""
    program = """
from tests.data.test_tokenizers import *
print(json.dumps(train_tokenizer("wordpiece", make_texts(), 200).pieces()))
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    pieces = train_tokenizer("wordpiece", make_texts(), 200).pieces()
    assert json.loads(output.stdout) == pieces


def test_a_sample_is_bounded_uniform_and_in_order():
    texts = [f"{number:05d}" for number in range(10_000)]
    assert sample_texts(texts, 10_000, seed=0) == texts
    for bounds in ({"sentences": 1000}, {"sentences": 10_000, "characters": 5000}):
        sample = sample_texts(iter(texts), seed=0, **bounds)
        assert sample == sorted(sample) and 850 <= len(sample) <= 1000
        # Five standard deviations of a binomial.
        first_half = sum(text < "05000" for text in sample)
        assert abs(first_half - len(sample) / 2) < 5 * (len(sample) / 4) ** 0.5


JOINED = ["new", "york", "new-york", "n't", "10,000", "-", "'", "t"]


def test_words_by_white_space_are_looked_up_whole_first(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, *JOINED]) + "\n")
    for split, expected in {
        "whitespace": "new-york 10,000 york - t is n't [ mask ]".split(),
        "punctuation": "new - york 10 , 000 york - t is n ' t [ mask ]".split(),
    }.items():
        metadata = {"kind": "words", "lowercase": True, "split": split}
        (tmp_path / "bertlab_tokenizer.json").write_text(json.dumps(metadata))
        tokenizer = load_tokenizer(tmp_path)
        text = "New-York  10,000 york-t\tis n't [MASK]"
        assert tokenizer.words(text) == expected
        expected_ids = [5 + JOINED.index(word) if word in JOINED else 1 for word in expected]
        assert tokenizer.encode(text) == expected_ids
        assert tokenizer.encode_words(["New-York", "york-t", ""]) == ([7, 6, 10, 12, 1], [0, 1, 4])


_BLOCKS = (
    "4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B820-2CEAF F900-FAFF 2F800-2FA1F"
)
CJK = [[int(code, 16) for code in block.split("-")] for block in _BLOCKS.split()]
SYMBOLS = ((33, 47), (58, 64), (91, 96), (123, 126))


def google_words(text, lowercase):
    """BasicTokenizer, one step after the other, from the text of its rules."""

    def in_ranges(character, ranges):
        return any(first <= ord(character) <= last for first, last in ranges)

    def is_punctuation(character):
        return in_ranges(character, SYMBOLS) or unicodedata.category(character)[0] == "P"

    cleaned = ""
    for character in text:
        category = unicodedata.category(character)
        if character in "\t\n\r" or category == "Zs":
            cleaned += " "
        elif ord(character) not in (0, 0xFFFD) and category not in ("Cc", "Cf"):
            cleaned += f" {character} " if in_ranges(character, CJK) else character
    words = []
    for word in cleaned.split():
        if lowercase:
            decomposed = unicodedata.normalize("NFD", word.lower())
            word = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
        words += "".join(f" {c} " if is_punctuation(c) else c for c in word).split()
    return words


def google_pieces(words, vocabulary):
    """The longest piece that fits, from the left; [UNK] for a word with a rest or 201 letters."""
    pieces = []
    for word in words:
        found, start = [], 0
        while start < len(word) and len(word) <= 200:
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in vocabulary), None)
            if end is None:
                break
            found.append(prefix + word[start:end])
            start = end
        pieces += found if start == len(word) else ["[UNK]"]
    return pieces


@pytest.mark.parametrize("lowercase", [False, True])
def test_hostile_text_has_google_s_pieces(tmp_path, lowercase):
    texts = hostile_texts(600, seed=int(lowercase))
    words = {word for text in texts[::2] for word in google_words(text, lowercase)}
    letters = sorted({letter for word in words for letter in word if letter not in "bé"})
    long = [word for word in words if len(word) > 3]
    ends = sorted({f"##{word[-2:]}" for word in long})
    pieces = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    pieces = list(dict.fromkeys([*pieces, *sorted({word[:3] for word in long}), *ends]))
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path / "vocab.txt", lowercase=lowercase)
    expected = [google_pieces(google_words(text, lowercase), set(pieces)) for text in texts]
    assert sum("[UNK]" in text for text in expected) > 50
    for size in (len(texts), 5):  # all words at once, and words that it remembers
        batches = [texts[start : start + size] for start in range(0, len(texts), size)]
        ids = [ids for batch in batches for ids in tokenizer.encode_batch(batch)]
        assert [[pieces[index] for index in text_ids] for text_ids in ids] == expected


def test_a_vocabulary_has_google_s_rules_or_is_refused(tmp_path):
    # Examples of google-research/bert's tokenization_test.py and README.
    path = tmp_path / "vocab.txt"
    pieces = [*SPECIALS, *"un ##want ##ed runn ##ing , john johan ##son ' s house \ufb00".split()]
    path.write_text("\n".join(pieces) + "\n")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.lowercase, "no piece has a capital letter"
    found = [pieces[index] for index in tokenizer.encode("UNwant\u00e9d,running \0\ufb00")]
    assert found == "un ##want ##ed , runn ##ing \ufb00".split()
    ids, starts = tokenizer.encode_words(["John", "Johanson", "'s", "house"])
    assert [pieces[i] for i in ids] == ["john", "johan", "##son", "'", "s", "house"]
    assert starts == [0, 1, 3, 5]
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": false}')
    assert load_tokenizer(tmp_path).encode("John john") == [1, 5 + pieces[5:].index("john")]
    for wrong, message in (
        ('{"tokenizer_class": "BertJapaneseTokenizer"}', "tokenizer_class='BertJapaneseTokenizer'"),
        ('{"tokenize_chinese_chars": false}', "rules of tokenize_chinese_chars=False"),
        ('{"strip_accents": false}', "rules of strip_accents=False"),
    ):
        settings.write_text(wrong)
        with pytest.raises(UserError, match=message):
            load_tokenizer(tmp_path)
    path.write_text("\n".join([*SPECIALS, "John"]) + "\n")
    settings.write_text("{}")
    assert not load_tokenizer(tmp_path).lowercase


@pytest.mark.parametrize(
    ("specials", "ids", "around"),
    [(GPT2, (0, 0, 0, 0, None), ((), ())), (ROBERTA, (1, 3, 0, 2, 4), ((0,), (2,)))],
)
def test_byte_level_pieces_keep_every_text(tmp_path, specials, ids, around):
    write_byte_level(tmp_path, make_texts(100), specials)
    tokenizer = load_tokenizer(tmp_path)
    assert (special_ids(tokenizer), tokenizer.prefix_ids, tokenizer.suffix_ids) == (ids, *around)
    texts = hostile_texts(200, seed=2)
    encoded = tokenizer.encode_batch(texts)
    assert [tokenizer.decode(ids) for ids in encoded] == texts
    assert not set(ids) & {index for ids in encoded for index in ids}
    tokenizer.save(tmp_path / "saved")
    saved = load_tokenizer(tmp_path / "saved")
    assert special_ids(saved) == ids and saved.encode_batch(texts) == encoded


def test_tokenizer_json_with_its_own_names_and_added_pieces(tmp_path):
    vocabulary = {"<begin>": 0, "<end>": 1, "a": 2, "b": 3, "?": 4}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.normalizer = tokenizers.normalizers.Lowercase()
    backend.add_special_tokens(["<begin>", "<end>"])
    backend.add_tokens(["@user"])
    frame = {"single": ["<begin>", "$A", "<end>"], "special_tokens": [("<begin>", 0), ("<end>", 1)]}
    backend.post_processor = tokenizers.processors.TemplateProcessing(**frame)
    backend.enable_truncation(2)
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"tokenizer.json has no special piece"):
        load_tokenizer(tmp_path)
    settings = {"eos_token": {"content": "<end>"}, "bos_token": "<begin>", "unk_token": "?"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path)
    assert special_ids(tokenizer) == (1, 4, 0, 1, None)
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ((0,), (1,))
    assert tokenizer.lowercase and tokenizer.vocab_size == 6
    assert tokenizer.encode("A b a @user c <end>") == [2, 3, 2, 5, 4, 4]


def test_sentencepiece_models_of_others_keep_their_rules(tmp_path):
    options = {"vocab_size": 80, "hard_vocab_limit": False, "minloglevel": 2}
    options |= {"model_prefix": str(tmp_path / "spiece"), "user_defined_symbols": ["<mask>"]}
    texts, model = make_texts(100), tmp_path / "spiece.model"
    for kind in ("unigram", "bpe"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_type=kind, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
            **options,
        )  # fmt: skip
        tokenizer = load_tokenizer(model)
        assert (tokenizer.kind, tokenizer.prefix_ids, tokenizer.suffix_ids) == (kind, (), (1,))
        assert special_ids(tokenizer) == (0, 2, 1, 1, 3)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        assert tokenizer.encode(texts[0]) == processor.encode(texts[0])
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_type="char", **options
    )
    with pytest.raises(KeyError):
        load_tokenizer(model)


NAMES = "cat dog river teacher engine window garden letter doctor bridge stone bird".split()


def written(number):
    """Two spaces, line ends in and after a sentence, paragraphs, and sentences without a space."""
    a, b, c, *_ = NAMES[number % 12 :] + NAMES
    return (
        f'Once there was a {a}.  The {b} sees\nthe old {c} near a {a}. "It\'s a {b}?" Yes!\nEach'
        f" {c} is one of {number}.\n\nThe {a} carries a {c}. 犬がいる。猫もいる。That {b} ends."
    )


DOCUMENTS = [written(number) for number in range(24)]


def write_llama(folder):
    """A space is a piece's first character, and one is put before the text."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    normalizers = tokenizers.normalizers
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    special = ["<unk>", "<s>", "</s>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=200, special_tokens=special, show_progress=False
    )
    words = [f" {word}" for text in DOCUMENTS for word in text.split()]
    backend.train_from_iterator([*words, "\n"], trainer)
    backend.save(str(folder / "tokenizer.json"))


def write_without_prefix(folder):
    """A SentencePiece model whose first word has no space."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(DOCUMENTS), model_prefix=str(folder / "words"), vocab_size=400,
        byte_fallback=True, hard_vocab_limit=False, add_dummy_prefix=False, minloglevel=2,
    )  # fmt: skip
    return folder / "words.model"


KINDS = {
    "gpt2": lambda folder: write_byte_level(folder, DOCUMENTS, GPT2, 500),
    "roberta": lambda folder: write_byte_level(folder, DOCUMENTS, ROBERTA, 500),
    "llama": write_llama,
    "unigram": lambda folder: train_tokenizer("unigram", DOCUMENTS, 320).save(folder),
    "no prefix": write_without_prefix,
}


@pytest.mark.parametrize("kind", KINDS)
def test_prepared_ids_are_those_of_whole_texts(tmp_path, kind):
    (tmp_path / "tokenizer").mkdir()
    path = KINDS[kind](tmp_path / "tokenizer") or tmp_path / "tokenizer"
    records = [json.dumps({"text": text}) for text in DOCUMENTS]
    (tmp_path / "a.jsonl").write_text("\n".join(records) + "\n")
    data = base_config().data
    data.update(corpus=f"text:{tmp_path}/a.jsonl", directory=str(tmp_path / "cache"))
    data.update(valid_fraction=0.0, test_fraction=0.0)
    data.tokenizer.path = str(path)
    prepared = prepare(data)
    split, tokenizer = prepared.split("train"), prepared.tokenizer
    bounds = split.token_bounds()
    documents = [split.tokens[first:last].tolist() for first, last in itertools.pairwise(bounds)]
    assert documents == load_tokenizer(path).encode_batch(DOCUMENTS)
    assert split.bytes.tolist() == [len(text.encode()) for text in DOCUMENTS]
    if tokenizer.kind != "json":
        texts = [" ".join(text.split()) for text in DOCUMENTS]
        assert [tokenizer.decode(ids) for ids in documents] == texts
    text = "The old cat sees a dog."
    assert tokenizer.encode_words(text.split())[0] == tokenizer.encode(text)

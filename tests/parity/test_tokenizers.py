"""Our tokenizers beside transformers' and spaCy's. Needs transformers, ftfy and spaCy."""

import itertools
import json

import ftfy
import pytest
import spacy
from transformers import AutoTokenizer, BertTokenizer, GPT2Tokenizer, OpenAIGPTTokenizer, RobertaTokenizer

from bertlab.data.gpt1_words import words
from bertlab.data.tokenizers import TRAINED_KINDS, load_tokenizer, train_tokenizer
from bertlab.interop.fast_tokenizers import save_fast_tokenizer
from bertlab.interop.huggingface import load, save
from tests.hostile_text import ODD, hostile_texts
from tests.interop import published
from tests.tokenizer_files import write_byte_level, write_gpt1

TEXTS = [f"{text} ok, [MASK] 東京 Straße." for text in hostile_texts(300, seed=3) if len(text) < 100]
ENGLISH = spacy.blank("en")
GPT1_FILES = ("encoder_bpe_40000.json", "vocab_40000.bpe")


def open_fast(directory, model_type=None):
    if model_type:
        (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
    fast = AutoTokenizer.from_pretrained(directory)
    assert fast.is_fast
    return fast


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_auto_tokenizer_gives_our_ids(tmp_path, kind):
    tokenizer = train_tokenizer(kind, TEXTS, {"words": 1000, "unigram": 1600}.get(kind, 1800), seed=0, lowercase=True)
    save_fast_tokenizer(tokenizer, tmp_path, 128)
    texts, first, second = hostile_texts(500, seed=7), tokenizer.encode("aaaa"), tokenizer.encode("ok.")
    ours = tokenizer.encode_batch(texts)
    for model_type in (None, "bert", "gpt2", "roberta"):
        fast = open_fast(tmp_path, model_type)
        theirs = fast(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        # Ties of a unigram model; tests/interop/test_fast_tokenizers.py looks at their scores.
        assert sum(ids != expected for ids, expected in zip(theirs, ours)) <= (5 if kind == "unigram" else 0)
        assert (fast.model_max_length, len(fast)) == (128, tokenizer.vocab_size)
        specials = (fast.cls_token_id, fast.sep_token_id, fast.mask_token_id, fast.pad_token_id, fast.unk_token_id)
        assert specials == (2, 3, 4, 0, 1)
        batch = fast([["aaaa", "ok."], ["ok", "ok"]], padding=True)
        assert batch["input_ids"][0] == [2, *first, 3, *second, 3]
        assert batch["token_type_ids"][0] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert fast("ok [MASK]")["input_ids"] == [2, *tokenizer.encode("ok"), 4, 3]
        ids = tokenizer.encode("aaaa ok")
        assert fast.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("reference", "model_type", "specials"),
    [
        (GPT2Tokenizer, "gpt2", ["<|endoftext|>"]),
        (RobertaTokenizer, "roberta", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]),
    ],
)
def test_byte_level_files(tmp_path, reference, model_type, specials):
    write_byte_level(tmp_path, TEXTS, specials)
    tokenizer = load_tokenizer(tmp_path)
    theirs = reference.from_pretrained(tmp_path)
    texts = hostile_texts(500, seed=8)
    ours = tokenizer.encode_batch(texts)
    assert theirs(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"] == ours
    framed = [[*tokenizer.prefix_ids, *ids, *tokenizer.suffix_ids] for ids in ours]
    assert theirs(texts, split_special_tokens=True)["input_ids"] == framed
    # What transformers saves is read back as well, and what we write is opened by transformers.
    theirs.save_pretrained(tmp_path / "theirs")
    again = load_tokenizer(tmp_path / "theirs")
    assert again.encode_batch(texts) == ours
    ids = lambda t: (t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id, t.prefix_ids, t.suffix_ids)
    assert ids(again) == ids(tokenizer)
    save_fast_tokenizer(tokenizer, tmp_path / "out", 64)
    fast = open_fast(tmp_path / "out", model_type)
    assert fast(texts, split_special_tokens=True)["input_ids"] == framed
    assert fast("a", "b")["input_ids"] == theirs("a", "b")["input_ids"]
    assert set(fast("a", "b")) == {"input_ids", "attention_mask"}


def openai_ids(text, pieces, merges):
    """OpenAI's TextEncoder on words of spaCy, written from its text."""
    text = ftfy.fix_text(text)
    for old, new in (("—", "-"), ("–", "-"), ("―", "-"), ("…", "..."), ("´", "'")):
        text = text.replace(old, new)
    ids = {piece: index for index, piece in enumerate(pieces)}
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    result = []
    for token in ENGLISH(words_text(text)):
        word = token.text.lower()
        parts = [*word[:-1], word[-1] + "</w>"]
        while True:
            pairs = [(ranks[pair], place) for place, pair in enumerate(itertools.pairwise(parts)) if pair in ranks]
            if not pairs:
                break
            place = min(pairs)[1]
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        joined = " ".join(parts)
        joined = "\n</w>" if joined == "\n  </w>" else joined
        result += [ids.get(part, 0) for part in joined.split(" ")]
    return result


def words_text(text):
    """OpenAI's text_standardize, marks and white space only, one run at a time."""
    marks = '-~!";?+,)(/*[]}{|_'
    out, position = "", 0
    while position < len(text):
        end = position
        while text[position] in marks and end < len(text) and text[end] == text[position]:
            end += 1
        out += f" {text[position:end]} " if end > position else text[position]
        position = max(end, position + 1)
    return " \n ".join(" ".join(line.split()) for line in out.split("\n") if line.split())


def test_gpt1_equals_openai_s_encoder(tmp_path):
    pieces = write_gpt1(tmp_path, GPT1_FILES)
    tokenizer = load_tokenizer(tmp_path)
    sentences = [
        "Don't go to the U.S. now,  I'm\n\n slow… 10km https://x.org/a?b=1",
        "“Lower” flowers—it´s (so-called) low-lows... l'été \\o/ a\\b",
        "âœ” No problems schÃ¶n &amp; ﬁne",  # what ftfy repairs
    ]
    for text in [*sentences, *hostile_texts(400, seed=9)]:
        assert tokenizer.encode(text) == openai_ids(text, pieces, tokenizer.merges()), repr(text)
    assert words(sentences[0]) == [
        *("do", "n't", "go", "to", "the", "u.s.", "now", ",", "i", "'m", "\n ", "slow", "...", "10", "km"),
        *("https", ":", "//", "x.org", "/", "a", "?", "b=1"),
    ]
    assert tokenizer.encode("a\n\nb")[1] == pieces.index("\n</w>")


@pytest.mark.parametrize("again", [False, True])
def test_gpt1_comes_back_from_what_transformers_saves(tmp_path, again):
    """With ftfy's repair and spaCy's words, which tokenizer.json has no form for; also from an export of ours, saved again."""
    source = published.write_directory_with_text("openai-gpt", tmp_path / "source")
    read = load_tokenizer(source)
    if again:
        (tmp_path / "out").mkdir()
        save(load(source), tmp_path / "out")
        theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    else:
        theirs = OpenAIGPTTokenizer.from_pretrained(source)
    for name in ("vocab.json", "merges.txt"):
        (source / name).unlink()
    theirs.save_pretrained(source)
    tokenizer = load(source).tokenizer
    assert (tokenizer.kind, tokenizer.prefix_ids, tokenizer.suffix_ids) == ("gpt1", (), ())
    texts = ["don't go to the U.S., l'été…", *hostile_texts(300, seed=12)]
    assert tokenizer.encode_batch(texts) == read.encode_batch(texts)


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("options", [{}, {"strip_accents": False}, {"tokenize_chinese_chars": False}, {"do_lower_case": False}])
def test_bert_s_settings_are_heeded(tmp_path, options, saved):
    """vocab.txt with tokenizer_config.json alone, or with all that transformers saves; and what we write of it."""
    source = published.write_directory_with_text("bert", tmp_path / "source")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True} | options
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = AutoTokenizer.from_pretrained(source)
    assert isinstance(theirs, BertTokenizer)
    if saved:
        theirs.save_pretrained(source)
    assert {path.name for path in source.iterdir()} >= {"vocab.txt", *(["tokenizer.json"] if saved else [])}
    texts = ["É é漢 a漢b", "abé ab, [a]", "Aα ΑΣ", *ODD, *hostile_texts(300, seed=14)]
    expected = theirs(texts, split_special_tokens=True)["input_ids"]
    imported = load(source)
    (tmp_path / "out").mkdir()
    save(imported, tmp_path / "out")
    for tokenizer in (imported.tokenizer, load(tmp_path / "out").tokenizer):
        assert [[*tokenizer.prefix_ids, *ids, *tokenizer.suffix_ids] for ids in tokenizer.encode_batch(texts)] == expected
    for ours in (open_fast(tmp_path / "out"), BertTokenizer.from_pretrained(tmp_path / "out")):
        assert ours(texts, split_special_tokens=True)["input_ids"] == expected


def test_gpt1_and_transformers_where_their_words_agree(tmp_path):
    # transformers has BERT's words in the place of ftfy's and spaCy's; plain words and single marks are the same in both.
    pieces = write_gpt1(tmp_path, ("vocab.json", "merges.txt"))
    tokenizer = load_tokenizer(tmp_path)
    theirs = OpenAIGPTTokenizer.from_pretrained(tmp_path)
    text = "Lower flowers, low and slow - the Low one. 10 # é"
    assert theirs(text)["input_ids"] == [*tokenizer.encode(text)[:-1], pieces.index("e</w>")]
    assert theirs(text[:-2])["input_ids"] == tokenizer.encode(text[:-2])
    save_fast_tokenizer(tokenizer, tmp_path / "out", 512)
    fast = open_fast(tmp_path / "out", "openai-gpt")
    assert OpenAIGPTTokenizer.from_pretrained(tmp_path / "out").get_vocab() == theirs.get_vocab()
    for hostile in hostile_texts(200, seed=10):
        options = dict(add_special_tokens=False, split_special_tokens=True)
        assert fast(hostile, **options)["input_ids"] == theirs(hostile, **options)["input_ids"]
    assert tokenizer.encode("don't") != theirs("don't")["input_ids"]

"""Tokenizers beside transformers': published ones as read here, ours as written for it."""

import json

import pytest
import tokenizers
from transformers import AutoTokenizer, BertTokenizer, GPT2Tokenizer, RobertaTokenizer

from bertlab.data.tokenizers import SPECIALS, load_tokenizer, train_tokenizer
from bertlab.errors import UserError
from bertlab.interop import huggingface
from bertlab.interop.fast_tokenizer import save_fast_tokenizer
from tests.hostile_text import ODD, hostile_texts
from tests.interop import published

TEXTS = [f"{text} ok, 東京 Straße." for text in hostile_texts(300, seed=3) if len(text) < 100]
PLAIN = [
    "The quick brown fox, the lazy dog; and (so) on...",
    "It's 3.14 or 1,000,000 – isn't it? Café, naïve Ångström!",
    "漢字かなカナ混じり文。 한국어 हिन्दी שלום مرحبا",
    "snake_case camelCase a+b=c <tag/> e-mail@x.org 😀\ttabs  and   spaces\nlines",
    "",
]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def framed(tokenizer, texts):
    """Our ids with the special ones around each text."""
    return [
        [*tokenizer.prefix_ids, *ids, *tokenizer.suffix_ids]
        for ids in tokenizer.encode_batch(texts)
    ]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_auto_tokenizer_gives_our_ids(kind, lowercase, tmp_path):
    """On plain text of many scripts; the library's rules differ in the odd characters alone."""
    size = 2000 if kind == "wordpiece" else 1600
    tokenizer = train_tokenizer(kind, [*TEXTS, *PLAIN[:-1]], size, lowercase=lowercase)
    save_fast_tokenizer(tokenizer, tmp_path, 128, segments=True)
    fast = AutoTokenizer.from_pretrained(tmp_path)
    options = dict(add_special_tokens=False, split_special_tokens=True)
    assert fast(PLAIN, **options)["input_ids"] == tokenizer.encode_batch(PLAIN)
    assert (fast.model_max_length, len(fast)) == (128, tokenizer.vocab_size)
    specials = (fast.pad_token_id, fast.unk_token_id, fast.cls_token_id, fast.sep_token_id)
    assert (*specials, fast.mask_token_id) == (0, 1, 2, 3, 4)
    first, second = tokenizer.encode_batch(["aaaa", "ok."])
    batch = fast([["aaaa", "ok."], ["ok", "ok"]], padding=True)
    assert batch["input_ids"][0] == [2, *first, 3, *second, 3]
    types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert batch["token_type_ids"][0] == types
    assert fast("ok [MASK]")["input_ids"] == [2, *tokenizer.encode("ok"), 4, 3]
    ids = tokenizer.encode("aaaa ok")
    assert fast.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("reference", "specials"), [(GPT2Tokenizer, ["<|endoftext|>"]), (RobertaTokenizer, ROBERTA)]
)
def test_byte_level_bpe_is_the_published_one(reference, specials, tmp_path):
    """As transformers saves it; and what we write of it is opened again."""
    backend = tokenizers.ByteLevelBPETokenizer()
    backend.train_from_iterator(TEXTS, 400, special_tokens=specials, show_progress=False)
    backend.save_model(str(tmp_path))
    theirs = reference.from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer, texts = load_tokenizer(tmp_path / "theirs"), [*ODD, *hostile_texts(300, seed=8)]
    expected = theirs(texts, split_special_tokens=True)["input_ids"]
    assert framed(tokenizer, texts) == expected
    (tmp_path / "out").mkdir()
    save_fast_tokenizer(tokenizer, tmp_path / "out", 64, segments=False)
    fast = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert fast(texts, split_special_tokens=True)["input_ids"] == expected
    assert fast("a", "b")["input_ids"] == theirs("a", "b")["input_ids"]
    assert set(fast("a", "b")) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize(
    "options",
    [{}, {"strip_accents": False}, {"tokenize_chinese_chars": False}, {"do_lower_case": False}],
    ids=str,
)
def test_berts_settings_are_heeded(options, tmp_path):
    """With the tokenizer.json that transformers saves, on forty odd texts; and what we write of
    it."""
    letters = sorted({letter for text in ODD for letter in text.lower() if not letter.isspace()})
    vocabulary = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters), "漢字", "##aaaa"]
    vocabulary = list(dict.fromkeys(vocabulary))
    size = len(vocabulary)
    weights = published.weights("bert", size)
    source = published.write_directory("bert", tmp_path / "source", weights, vocab_size=size)
    (source / "vocab.txt").write_text("".join(f"{piece}\n" for piece in vocabulary))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True} | options
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = AutoTokenizer.from_pretrained(source)
    assert isinstance(theirs, BertTokenizer)
    texts = ["É é漢 a漢b", "Aα ΑΣ", *ODD, *hostile_texts(200, seed=14)]
    expected = theirs(texts, split_special_tokens=True)["input_ids"]
    theirs.save_pretrained(source)
    model = huggingface.load(source)
    huggingface.save(model, tmp_path / "out")
    model.tokenizer.save(tmp_path / "out" / "tokenizer")
    for tokenizer in (model.tokenizer, huggingface.load(tmp_path / "out").tokenizer):
        assert framed(tokenizer, texts) == expected
    fast = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert fast(texts, split_special_tokens=True)["input_ids"] == expected


def test_a_vocabulary_alone_has_the_rules_that_its_settings_state(tmp_path):
    """Without a tokenizer.json Google's rules hold; other settings are refused."""
    source = published.write_directory("bert", tmp_path / "source")
    path = source / "tokenizer_config.json"
    path.write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    theirs, tokenizer = AutoTokenizer.from_pretrained(source), load_tokenizer(source)
    texts = ["a b c", "A z, q!", "É é e", "漢 a", "a" * 100]
    assert framed(tokenizer, texts) == theirs(texts)["input_ids"]
    path.write_text('{"tokenizer_class": "BertJapaneseTokenizer"}')
    with pytest.raises(UserError, match="BertJapaneseTokenizer"):
        load_tokenizer(source)


def test_a_padded_embedding_and_its_tokenizer_open_whole(tmp_path):
    weights = published.weights("bert", published.VOCAB + 7)
    rows = published.VOCAB + 7
    source = published.write_directory("bert", tmp_path / "source", weights, vocab_size=rows)
    huggingface.save(huggingface.load(source), tmp_path / "out")
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out")) == rows

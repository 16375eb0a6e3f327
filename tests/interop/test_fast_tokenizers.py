import json

import pytest
import sentencepiece
import tokenizers

from bertlab.data import gpt1_words
from bertlab.data.gpt1_words import standardise
from bertlab.data.tokenizers import TRAINED_KINDS, WordsTokenizer, load_tokenizer, train_tokenizer
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.interop.fast_tokenizers import save_fast_tokenizer
from tests.hostile_text import characters, hostile_texts
from tests.tokenizer_files import write_byte_level, write_gpt1

TEXTS = [f"{text} 東京, [ok] [MA 0x4 ΟΔΟΣ <0 héhé aaaa." for text in hostile_texts(300, seed=3) if len(text) < 100]
SIZES = {"unigram": 1500, "bpe": 1500, "wordpiece": 1700, "words": 900}


@pytest.fixture(scope="module")
def trained():
    made = {}

    def train(kind, lowercase):
        if (kind, lowercase) not in made:
            made[kind, lowercase] = train_tokenizer(kind, TEXTS, SIZES[kind], seed=0, lowercase=lowercase)
        return made[kind, lowercase]

    return train


def written(tokenizer, directory, **options):
    save_fast_tokenizer(tokenizer, directory, 128, **options)
    backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    backend.encode_special_tokens = True
    return backend


def assert_same_ids(tokenizer, encoded, texts):
    ties = 0
    for text, expected, ids in zip(texts, tokenizer.encode_batch(texts), encoded, strict=True):
        if tokenizer.kind == "unigram" and ids != expected:
            # SentencePiece adds scores in float32, so that its choice between equally good splittings is by rounding.
            processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
            scores = [sum(processor.get_score(index) for index in found) for found in (ids, expected)]
            assert scores[0] == pytest.approx(scores[1], rel=1e-6), repr(text)
            assert tokenizer.decode(ids) == tokenizer.decode(expected)
            ties += 1
        else:
            assert ids == expected, repr(text)
    assert ties <= len(texts) / 100


def fast_ids(backend, texts):
    return [encoding.ids for encoding in backend.encode_batch(texts, add_special_tokens=False)]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_same_ids_on_hostile_text(trained, kind, lowercase, tmp_path):
    tokenizer = trained(kind, lowercase)
    backend = written(tokenizer, tmp_path, segments=True)
    texts = hostile_texts(3000, seed=4)
    assert_same_ids(tokenizer, fast_ids(backend, texts), texts)
    for text in TEXTS[:50]:
        assert backend.decode(tokenizer.encode(text)) == tokenizer.decode(tokenizer.encode(text))


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "words"])
def test_same_ids_for_every_character_that_python_knows(trained, kind, tmp_path):
    tokenizer = trained(kind, True)
    backend = written(tokenizer, tmp_path)
    # The lower case of characters newer than this Python's Unicode is the library's own.
    known = [c for c in characters() if tokenizers.normalizers.Lowercase().normalize_str(c) == c.lower()]
    assert len(characters()) - len(known) < 100
    texts = [f"aA{''.join(known[i : i + 16])}b" for i in range(0, 0x12000, 16)]
    assert_same_ids(tokenizer, fast_ids(backend, texts), texts)


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_specials_frame_one_text_and_pairs(trained, kind, tmp_path):
    tokenizer = trained(kind, False)
    backend = written(tokenizer, tmp_path)
    first, second = tokenizer.encode("aaaa, ok"), tokenizer.encode("ok.")
    assert backend.encode("aaaa, ok").ids == [2, *first, 3]
    pair = backend.encode("aaaa, ok", "ok.")
    assert pair.ids == [2, *first, 3, *second, 3]
    assert pair.type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    # By Hugging Face's custom, a special's name in text is the special.
    backend.encode_special_tokens = False
    assert backend.encode("[MASK]", add_special_tokens=False).ids == [4]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (config["cls_token"], config["sep_token"], config["mask_token"]) == ("[CLS]", "[SEP]", "[MASK]")
    assert config["model_max_length"] == 128
    assert config["model_input_names"] == ["input_ids", "token_type_ids", "attention_mask"]
    save_fast_tokenizer(tokenizer, tmp_path, 128, segments=False)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_input_names"] == ["input_ids", "attention_mask"]
    assert (tmp_path / "vocab.txt").exists() == (kind == "wordpiece")


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_what_is_written_can_be_loaded(trained, kind, tmp_path):
    tokenizer = trained(kind, True)
    save_fast_tokenizer(tokenizer, tmp_path, 128)
    loaded = load_tokenizer(tmp_path)
    assert loaded.kind == "json" and loaded.lowercase
    assert (loaded.prefix_ids, loaded.suffix_ids, loaded.mask_id, loaded.pad_id) == ((2,), (3,), 4, 0)
    texts = hostile_texts(300, seed=5)
    assert_same_ids(tokenizer, loaded.encode_batch(texts), texts)
    if kind == "wordpiece":
        assert load_tokenizer(tmp_path / "vocab.txt").encode_batch(texts) == tokenizer.encode_batch(texts)


@pytest.mark.parametrize("specials", [["<|endoftext|>"], ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]])
def test_imported_tokenizers_are_written_as_they_came(tmp_path, specials):
    write_byte_level(tmp_path, TEXTS, specials)
    tokenizer = load_tokenizer(tmp_path)
    backend = written(tokenizer, tmp_path / "out")
    texts = hostile_texts(500, seed=6)
    assert_same_ids(tokenizer, fast_ids(backend, texts), texts)
    ids = tokenizer.encode("aaaa ok")
    assert backend.encode("aaaa ok").ids == [*tokenizer.prefix_ids, *ids, *tokenizer.suffix_ids]
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config["model_input_names"] == ["input_ids", "attention_mask"]
    assert config["pad_token"] == ("<pad>" if len(specials) > 1 else "<|endoftext|>")
    assert ("mask_token" in config) == (len(specials) > 1)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"tokenizer.json", "tokenizer_config.json"}


def test_gpt1_has_the_same_ids_where_the_words_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(gpt1_words, "words", lambda text: standardise(text).lower().split(" ") if text else [])
    write_gpt1(tmp_path, ("encoder_bpe_40000.json", "vocab_40000.bpe"))
    tokenizer = load_tokenizer(tmp_path)
    backend = written(tokenizer, tmp_path / "out")
    text = "Lower slow lows 10 - 2 , flower # # a"
    assert backend.encode(text).ids == tokenizer.encode(text)
    assert backend.encode("ωx").ids == [0, tokenizer.pieces().index("x</w>")]


def test_sentencepiece_models_with_rules_of_their_own_are_refused(tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        vocab_size=800,
        character_coverage=0.98,
        minloglevel=2,
        model_prefix=str(tmp_path / "nmt"),
    )
    with pytest.raises(UserError, match=r"normalisation rules"):
        save_fast_tokenizer(load_tokenizer(tmp_path / "nmt.model"), tmp_path / "out", 128)


def test_words_that_are_looked_up_whole_first_cannot_go_out(tmp_path):
    tokenizer = WordsTokenizer([*SPECIALS, "new-york"], lowercase=False, split="whitespace")
    with pytest.raises(
        UserError, match=r"splits at white space and divides only unknown words, .*export the vectors with --to=word2vec"
    ):
        save_fast_tokenizer(tokenizer, tmp_path, 128)

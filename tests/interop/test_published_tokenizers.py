"""Imported tokenizers give the ids of the published ones, whose rules are in tokenizer.json or tokenizer_config.json."""

import json
import unicodedata

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors

from bertlab.data.tokenizers import load_tokenizer
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.interop import export_weights, import_weights
from tests.hostile_text import ODD, hostile_texts
from tests.interop import published
from tests.tokenizer_files import write_byte_level

TEXTS = [*ODD, *hostile_texts(150, seed=21)]


def pieces():
    """A vocabulary in which another form of a character is another piece, and a lost one is unknown."""
    letters = {letter for text in ODD for letter in text if not letter.isspace()}
    lower = {letter for one in letters for letter in unicodedata.normalize("NFD", one.lower())}
    plain = sorted({*letters, *lower} - {"é", "\ufffd", "\0", "½", "Ｌ"})
    return [*SPECIALS, *plain, *(f"##{letter}" for letter in plain), "##aaaa", "cafe", "##漢字"]


def write_model(directory, **files):
    """A BERT's directory with the vocabulary above and more files (`__` for a dot), each a JSON value."""
    vocabulary = pieces()
    weights = published.weights("bert", len(vocabulary))
    published.write_directory("bert", directory, weights, vocab_size=len(vocabulary))
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in vocabulary), encoding="utf-8")
    for name, contents in files.items():
        (directory / name.replace("__", ".")).write_text(json.dumps(contents))
    return directory


def published_backend(normalizer, pre_tokenizer, longest=100):
    ids = {piece: index for index, piece in enumerate(pieces())}
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=longest))
    backend.normalizer, backend.pre_tokenizer = normalizer, pre_tokenizer
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.add_special_tokens([*SPECIALS])
    return backend


def imported(source, folder):
    """The tokenizer of the run that an import makes, and of the import of its export."""
    import_weights("huggingface", source, folder / "run")
    export_weights("huggingface", folder / "run", folder / "out")
    import_weights("huggingface", folder / "out", folder / "again")
    return [load_tokenizer(folder / run / "tokenizer") for run in ("run", "again")]


def assert_ids_of(reference, found):
    """The reference reads names of specials as text, as with transformers' `split_special_tokens=True`."""
    reference.encode_special_tokens = True
    expected = [encoding.ids for encoding in reference.encode_batch(TEXTS)]
    for tokenizer in found:
        framed = [[*tokenizer.prefix_ids, *ids, *tokenizer.suffix_ids] for ids in tokenizer.encode_batch(TEXTS)]
        assert [text for text, ids, theirs in zip(TEXTS, framed, expected) if ids != theirs] == []


@pytest.mark.parametrize(
    "normalizer, pre_tokenizer, longest",
    [
        (normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), 100),
        (normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer(), 20),
        (normalizers.BertNormalizer(clean_text=False), pre_tokenizers.BertPreTokenizer(), 200),
        (normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), pre_tokenizers.Whitespace(), 100),
        (normalizers.NFC(), pre_tokenizers.Split(Regex("."), "isolated"), 100),
        (None, pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.Whitespace()]), 50),
    ],
    ids=["bert", "cased-20", "unclean-200", "nfkc", "characters", "digits"],
)
def test_tokenizer_json_counts_before_vocab_txt(normalizer, pre_tokenizer, longest, tmp_path):
    source = write_model(tmp_path / "source", tokenizer_config__json={"tokenizer_class": "PreTrainedTokenizerFast"})
    reference = published_backend(normalizer, pre_tokenizer, longest)
    reference.save(str(source / "tokenizer.json"))
    assert_ids_of(reference, imported(source, tmp_path))
    assert load_tokenizer(source / "vocab.txt").encode_batch(TEXTS) == load_tokenizer(source).encode_batch(TEXTS)


@pytest.mark.parametrize(
    "settings, rules",
    [
        ({"do_lower_case": True, "tokenizer_class": "BertTokenizer"}, {}),
        ({"do_lower_case": False, "tokenizer_class": "BertTokenizerFast", "strip_accents": None}, {"lowercase": False}),
        ({"do_lower_case": True, "strip_accents": False}, {"strip_accents": False}),
        ({"do_lower_case": False, "strip_accents": True}, {"lowercase": False, "strip_accents": True}),
        ({"do_lower_case": True, "tokenize_chinese_chars": False}, {"handle_chinese_chars": False}),
    ],
)
def test_vocab_txt_is_read_with_the_settings_beside_it(settings, rules, tmp_path):
    source = write_model(tmp_path / "source", tokenizer_config__json=settings)
    reference = tokenizers.BertWordPieceTokenizer(str(source / "vocab.txt"), **rules)
    assert_ids_of(reference._tokenizer, imported(source, tmp_path))
    # BertTokenizer, which reads no tokenizer.json, finds the same settings in the export.
    written = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    ours = [written[key] for key in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")]
    assert ours == [
        rules.get(name, usual) for name, usual in [("lowercase", True), ("strip_accents", None), ("handle_chinese_chars", True)]
    ]
    assert (tmp_path / "out/vocab.txt").read_bytes() == (source / "vocab.txt").read_bytes()


JAPANESE = {
    **{"tokenizer_class": "BertJapaneseTokenizer", "do_lower_case": False},
    **{"word_tokenizer_type": "mecab", "subword_tokenizer_type": "character"},
}
OWN = {"do_lower_case": False, "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}


@pytest.mark.parametrize(
    "settings, beside, message",
    [
        (JAPANESE, "vocab.txt", "BertJapaneseTokenizer"),
        (JAPANESE, "tokenizer.json", "BertJapaneseTokenizer"),
        (OWN, "vocab.txt", "own.OwnTokenizer"),
        (OWN, "tokenizer.json", "own.OwnTokenizer"),
        ({"tokenizer_class": "BertweetTokenizer"}, "tokenizer.json", "BertweetTokenizer"),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}, "vocab.txt", "PreTrainedTokenizerFast"),
        ({"tokenizer_class": "BertTokenizer"}, "vocab.txt", "capital letters.*do_lower_case"),
        ({"do_lower_case": True}, "tokenizer.json", "do_lower_case=True"),
        ({"do_lower_case": False, "strip_accents": True}, "tokenizer.json", "strip_accents=True"),
    ],
)
def test_rules_that_the_files_do_not_hold_are_refused(settings, beside, message, tmp_path):
    source = write_model(tmp_path / "source", tokenizer_config__json=settings)
    if beside == "tokenizer.json":
        backend = published_backend(normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer())
        backend.save(str(source / "tokenizer.json"))
    with pytest.raises(UserError, match=message):
        import_weights("huggingface", source, tmp_path / "run")


def test_the_class_in_config_json_counts(tmp_path):
    """Older models name it there alone."""
    source = write_model(tmp_path / "source", tokenizer_config__json={"do_lower_case": False})
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"tokenizer_class": "BertJapaneseTokenizer"}))
    with pytest.raises(UserError, match="BertJapaneseTokenizer"):
        import_weights("huggingface", source, tmp_path / "run")


def test_bpe_files_are_those_of_the_class(tmp_path):
    """A GPT-2 frames no text, whatever its vocabulary names; words that end in </w> are not always GPT-1's."""
    write_byte_level(tmp_path, ["low lower lowest"], ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    framing = {}
    for model_type in ("gpt2", "roberta"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        tokenizer = load_tokenizer(tmp_path)
        framing[model_type] = (tokenizer.prefix_ids, tokenizer.suffix_ids)
    assert framing == {"gpt2": ((), ()), "roberta": ((0,), (2,))}
    decoder = {"400": {"content": "@user", "special": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    with pytest.raises(UserError, match="'@user'"):
        load_tokenizer(tmp_path)
    published.write_gpt1_vocabulary(tmp_path / "vocab.json", tmp_path / "merges.txt")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "HerbertTokenizerFast"}))
    with pytest.raises(UserError, match="HerbertTokenizer"):
        load_tokenizer(tmp_path)


def test_a_token_that_only_the_settings_add_is_missed(tmp_path):
    """Beside a tokenizer.json too: transformers would find it in text."""
    backend = published_backend(normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer())
    backend.add_tokens([AddedToken("@user")])
    settings = {"added_tokens_decoder": {str(index): {"content": name} for index, name in ((900, "@user"), (901, "@place"))}}
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="'@place'"):
        load_tokenizer(tmp_path)

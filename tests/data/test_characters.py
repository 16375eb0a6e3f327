import numpy as np

from bertlab.data.characters import CHARACTERS, character_ids, character_table
from bertlab.data.tokenizers import train_tokenizer


def reference(word):
    """One word, from the text of ELMo's rules."""
    ids = [258, *word.encode()[:48], 259]
    return ids + [260] * (50 - len(ids))


def test_at_most_48_bytes_even_inside_a_character():
    # 47 bytes and the first two of the euro sign's three would be 49: only one of them fits.
    row = character_ids(["x" * 47 + "€"])[0]
    assert row.tolist() == [258] + [120] * 47 + [0xE2, 259]
    assert character_ids(["x" * 48])[0].tolist() == character_ids(["x" * 1000])[0].tolist() == [258] + [120] * 48 + [259]
    assert character_ids(["😀"])[0, :6].tolist() == [258, 0xF0, 0x9F, 0x98, 0x80, 259]


def test_many_words_equal_the_rules():
    assert character_ids(["cat"])[0].tolist() == [258, 99, 97, 116, 259] + [260] * 45
    assert character_ids([]).shape == (0, 50)
    rng = np.random.default_rng(0)
    codes = rng.choice([*range(32, 0xD7FF, 7), *range(0x1F300, 0x1F700)], size=20_000)
    ends = np.sort(rng.integers(0, len(codes), size=2_000))
    words = ["".join(map(chr, part)) for part in np.split(codes, ends)] + ["", "\0", "é" * 24, "é" * 25]
    rows = character_ids(words)
    assert rows.max() < CHARACTERS
    np.testing.assert_array_equal(rows, [reference(word) for word in words])


def test_table_of_a_vocabulary():
    tokenizer = train_tokenizer("words", ["the cat sat , café"], 5 + 5, seed=0)
    table = character_table(tokenizer)
    assert table.shape == (10, 50)
    assert table[tokenizer.cls_id].tolist() == [258, 256, 259] + [260] * 47
    assert table[tokenizer.sep_id].tolist() == [258, 257, 259] + [260] * 47
    assert table[tokenizer.pad_id].tolist() == [260] * 50
    for index, piece in enumerate(tokenizer.pieces()):
        if index not in (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id):
            assert table[index].tolist() == reference(piece)


def test_table_where_padding_is_the_end_of_text():
    class EndOfTextOnly:
        pad_id, unk_id, cls_id, sep_id = 1, 1, 1, 1

        def pieces(self):
            return ["a", "<|endoftext|>"]

    assert character_table(EndOfTextOnly())[1].tolist() == [258, 257, 259] + [260] * 47

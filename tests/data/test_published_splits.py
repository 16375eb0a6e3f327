"""A corpus in published files: the Penn Treebank's words, line ends and splits reach the model as they are."""

import numpy as np
import pytest

from bertlab.data.batches import train_batches
from bertlab.data.corpora import open_corpus
from bertlab.data.prepare import prepare
from bertlab.errors import UserError

# As in ptb.train.txt: a space at either end, rare words and numbers replaced, tokens such as n't and mr.
TRAIN = " mr. <unk> is chairman of <unk> n.v. \n the company does n't own N N of it \n"
FILES = {"ptb.train.txt": TRAIN * 40, "ptb.valid.txt": " the chairman is n't <unk> \n", "ptb.test.txt": " it is N \n\n"}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / "penn" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "penn" / name).write_text(text)
    return tmp_path / "penn"


def options(folder, tmp_path, **more):
    tokenizer = {"kind": "words", "split": "whitespace", "vocab_size": 19} | more.pop("tokenizer", {})
    return {"corpus": f"splits:{folder}", "directory": str(tmp_path / "cache"), "workers": 1, "tokenizer": tokenizer, **more}


def test_every_line_is_a_sentence_with_an_end_and_every_file_a_split(folder, tmp_path):
    prepared = prepare(options(folder, tmp_path))
    tokenizer = prepared.tokenizer
    # 8 words and 9 words with their ends; 14 different words with <eos>, and five special pieces.
    counts = {split: (of["sentences"], of["tokens"], of["unknown"]) for split, of in prepared.statistics.items()}
    assert counts == {"train": (80, 40 * 18, 0), "valid": (1, 6, 0), "test": (2, 5, 0)}
    assert {"<unk>", "<eos>", "N", "n't", "n.v.", "mr."} <= set(tokenizer.pieces()) and tokenizer.vocab_size == 19
    ids = tokenizer.encode(f"{FILES['ptb.valid.txt'].strip()} <eos>")
    assert tokenizer.unk_id not in ids and [tokenizer.pieces()[i] for i in ids][-2:] == ["<unk>", "<eos>"]
    [document] = [d for d in open_corpus(f"splits:{folder}").documents() if "valid" in d.id]
    assert document.sentences == ("the chairman is n't <unk> <eos>",)


def test_long_files_are_stretches_of_whole_lines_in_their_split(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("bertlab.data.published_splits.SECTION", 200)
    documents = [d for d in open_corpus(f"splits:{folder}").documents() if "train" in d.id]
    assert len(documents) > 10 and sum(len(d.sentences) for d in documents) == 80
    assert all(s.endswith(" <eos>") for d in documents for s in d.sentences)
    assert [s for d in documents for s in d.sentences][:2] == [f"{line.strip()} <eos>" for line in TRAIN.splitlines()]
    prepared = prepare(options(folder, tmp_path, valid_fraction=0.3, test_fraction=0.3))
    assert prepared.statistics["train"]["sentences"] == 80, "fractions move nothing"


def test_without_the_key_words_would_be_cut_at_their_punctuation(folder, tmp_path):
    kept, cut = prepare(options(folder, tmp_path)), prepare(options(folder, tmp_path, tokenizer={"split": "punctuation"}))
    assert cut.statistics["train"]["tokens"] > kept.statistics["train"]["tokens"] and "<unk>" not in cut.tokenizer.pieces()
    assert kept.directory != cut.directory


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ptb.train.txt": None}, r"expected one file of train in .*penn, found none, such as train.txt or ptb.train.txt"),
        ({"ptb.char.test.txt": "a"}, r"expected one file of test in .*, found ptb.char.test.txt, ptb.test.txt"),
        ({"ptb.valid.txt": b"a\n\xff\n"}, r"ptb.valid.txt:2: the line is not UTF-8 text"),
    ],
)
def test_files_that_are_not_as_published_are_refused(folder, change, message):
    for name, text in change.items():
        path = folder / name
        path.unlink() if text is None else path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=message):
        list(open_corpus(f"splits:{folder}").documents())


def test_no_split_can_be_left_out(folder, tmp_path):
    with pytest.raises(UserError, match=r"^config.data.valid_fraction=0 leaves a split out, and splits:.* publishes it"):
        prepare(options(folder, tmp_path, valid_fraction=0))
    with pytest.raises(UserError, match="nowhere is not a folder"):
        open_corpus("splits:nowhere")


def test_a_stream_reads_words_and_ends_and_predicts_the_next(folder, tmp_path, small_config):
    config = small_config("awd_lstm")
    config.data.update(corpus=f"splits:{folder}", directory=str(tmp_path / "cache"), seq_len=9, batch_size=1, workers=1)
    config.data.tokenizer.update(kind="words", split="whitespace", vocab_size=19)
    config.data.stream.update(wrap="none", vary_length=False)
    prepared = prepare(config.data)
    batch = next(iter(train_batches(prepared, config.data)))
    pieces = np.array(prepared.tokenizer.pieces())
    first = [*TRAIN.split("\n")[0].split(), "<eos>", *TRAIN.split("\n")[1].split(), "<eos>"]
    assert pieces[batch["tokens"][0]].tolist() == first[:9] and pieces[batch["next_tokens"][0]].tolist() == first[1:10]

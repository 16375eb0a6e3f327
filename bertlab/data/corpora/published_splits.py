"""A corpus in published files of train, valid and test, such as the Penn Treebank or WikiText."""

from collections.abc import Iterator
from pathlib import Path

from bertlab.data.corpora.text import digest_files, read_lines
from bertlab.data.documents import SECTION, Document
from bertlab.data.splits import SPLITS
from bertlab.errors import UserError

END = "<eos>"
"""The word that ends a line."""


class PublishedSplits:
    """One file for each split, with one sentence per line and spaces between the words.

    A file's name is its split or ends in it: `train.txt`, `ptb.train.txt`, `wiki.train.tokens`.
    Every line, empty ones too, ends with the word `<eos>`, as salesforce/awd-lstm-lm's data.py
    reads it; the words stay as they are, and `data.tokenizer.split=whitespace` keeps them whole.
    A document is a stretch of lines of about 50,000 characters.
    """

    def __init__(self, folder: str):
        files = sorted(path for path in Path(folder).expanduser().glob("*") if path.is_file())
        self._files = []
        for split in SPLITS:
            found = [path for path in files if split in path.name.split(".")[:-1][-1:]]
            if len(found) != 1:
                raise UserError(
                    f"config.data.corpus: expected one file of {split} in {folder}, such as"
                    f" {split}.txt or ptb.{split}.txt, found {len(found)}"
                )
            self._files += found

    def fingerprint(self) -> str:
        return digest_files(f"{SECTION} {END}", list(SPLITS), self._files)

    def documents(self) -> Iterator[Document]:
        for split, path in zip(SPLITS, self._files, strict=True):
            parts, size, start = [], 0, 1
            for number, line in read_lines(path):
                sentence = " ".join([*line.split(), END])
                parts.append(f" {sentence}" if parts else sentence)
                size += len(sentence)
                if size >= SECTION:
                    yield Document(f"{path.name}:{start}", tuple(parts), split)
                    parts, size, start = [], 0, number + 1
            if parts:
                yield Document(f"{path.name}:{start}", tuple(parts), split)

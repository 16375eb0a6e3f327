"""A corpus in published files of train, valid and test, such as those of the Penn Treebank or WikiText."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from bertlab.data.documents import SECTION, Document, PartedCorpus
from bertlab.data.splits import SPLITS, published_id
from bertlab.errors import UserError

END = "<eos>"
"""The word that ends a line."""


class PublishedSplits(PartedCorpus):
    """`splits:FOLDER`: one file for each split, with a sentence a line and spaces between the words.

    A file's name is its split or ends in it, as in `train.txt`, `ptb.train.txt` or `wiki.train.tokens`. Every line, empty ones
    too, ends with the word `<eos>`, as salesforce/awd-lstm-lm's data.py reads it; the words stay as they are, `<unk>` and `N`
    too, and `data.tokenizer.split=whitespace` keeps them whole. A document is a stretch of lines of about 50,000 characters.
    Its id says its split, so the fractions of `config.data` move nothing, but they must not be 0. A part is a file.
    """

    def __init__(self, spec: str):
        """
        Args: spec: `splits:FOLDER`.

        Raises: UserError: there is no such folder, or it has no file or several of a split.
        """
        self.spec = spec
        folder = Path(spec.partition(":")[2]).expanduser()
        if not folder.is_dir():
            raise UserError(f'config.data.corpus="{spec}": {folder} is not a folder; give the one with train, valid and test')
        self.files = tuple(_file_of(folder, split, spec) for split in SPLITS)
        self.parts, self.share_read = len(SPLITS), None

    def fingerprint(self) -> str:
        """Digest of the files' bytes and of where documents are cut."""
        digest = hashlib.blake2b(f"splits {SECTION} {END}".encode(), digest_size=16)
        for path in self.files:
            digest.update(f"{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()

    def part(self, index: int) -> Iterator[Document]:
        """The documents of train, valid or test. Raises: UserError: a line is not UTF-8."""
        split, path = SPLITS[index], self.files[index]
        start, size, sentences = 1, 0, []
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    sentence = " ".join([*line.decode("utf-8-sig" if number == 1 else "utf-8").split(), END])
                except UnicodeDecodeError:
                    raise UserError(f"{path}:{number}: the line is not UTF-8 text; give the file as published") from None
                sentences.append(sentence)
                size += len(sentence)
                if size >= SECTION:
                    yield Document(published_id(split, f"{path.name}:{start}"), tuple(sentences))
                    start, size, sentences = number + 1, 0, []
        if sentences:
            yield Document(published_id(split, f"{path.name}:{start}"), tuple(sentences))

    def no_text(self) -> UserError:
        return UserError(f'config.data.corpus="{self.spec}" has no text in its {self.parts} files; give the published ones')


def _file_of(folder: Path, split: str, spec: str) -> Path:
    found = sorted(path for path in folder.iterdir() if path.is_file() and split in path.name.split(".")[:-1][-1:])
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or f"none, such as {split}.txt or ptb.{split}.txt"
        raise UserError(f'config.data.corpus="{spec}": expected one file of {split} in {folder}, found {names}')
    return found[0]

"""Batches of a prepared corpus in the config's format, for sharded training and for evaluation.

Batches depend only on (prepared corpus, data config), so runs that differ only in model or objective read the same bytes;
`BatchHash` proves it.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import grain
import numpy as np

from bertlab.data.characters import character_ids, character_table
from bertlab.data.formats import Format, format_of
from bertlab.data.iterators import IteratorDataset
from bertlab.data.prepared import Prepared, UnknownWords
from bertlab.data.tokenizers import has_whole_words
from bertlab.errors import UserError


@runtime_checkable
class TrainingBatches(Protocol):
    """What a phase trains on: endless batches, dicts of [B, ...] arrays. What a saved run goes on with are `Shards`.

    Attributes:
        whole: every process reads all rows of a batch, and trains on its own; otherwise it reads its own only.
    """

    whole: bool

    def __iter__(self) -> Iterator[Mapping[str, np.ndarray]]: ...


class Shards(IteratorDataset):
    """Batches with the same number of rows from each of several datasets.

    Args:
        shards: number -> dataset.
        total: number of shards in all processes.
        whole: every process reads all rows of a batch, and trains on its own.
    """

    def __init__(self, shards: Mapping[int, grain.IterDataset], total: int = 1, whole: bool = False):
        numbers, self.whole = [str(number) for number in shards], whole
        super().__init__(lambda *iterators: ShardsIterator(dict(zip(numbers, iterators)), total), *shards.values())


class ShardsIterator(grain.DatasetIterator):
    """Its state has an entry for each shard, so a different number of processes can resume."""

    def __init__(self, shards: dict[str, grain.DatasetIterator], total: int):
        super().__init__()
        self._shards, self._total = shards, total
        self.hashes = {number: BatchHash() for number in shards}

    def __next__(self) -> dict[str, np.ndarray]:
        parts = {number: next(iterator) for number, iterator in self._shards.items()}
        for number, part in parts.items():
            self.hashes[number].update(part)
        first, *others = parts.values()
        return {name: np.concatenate([part[name] for part in parts.values()]) for name in first} if others else first

    def get_state(self) -> dict:
        """A JSON value: shard -> its position, the hash chain of its batches, and of how many shards it is one."""
        return {
            number: {"position": iterator.get_state(), "hash": self.hashes[number].value, "of": self._total}
            for number, iterator in self._shards.items()
        }

    def set_state(self, state: dict) -> None:
        """Continues from the states of these shards; those of other shards are ignored.

        Raises:
            UserError: the number of shards differs, so each shard would have other documents.
        """
        before = next(iter(state.values())).get("of", len(state))
        if before != self._total:
            raise UserError(
                f"the run started with its text in {before} shards and cannot continue with {self._total}; set"
                f" config.data.shards={before}"
            )
        for number, iterator in self._shards.items():
            iterator.set_state(state[number]["position"])
            self.hashes[number] = BatchHash(state[number]["hash"])

    def close(self) -> None:
        """Ends the shards' threads."""
        for iterator in self._shards.values():
            iterator.close()


def train_batches(prepared: Prepared, data, process: tuple[int, int] = (0, 1)) -> Shards:
    """Endless training batches, dicts of [B, ...] arrays.

    Args:
        prepared: the corpus.
        data: `config.data`. The documents go to its `shards` in turn (0: one per process), and each shard fills as many
            rows of a batch. So the rows do not depend on the number of processes.
        process: (index, count) of this process among all; B is its part.

    Raises:
        UserError: there are fewer documents than shards, the shards do not divide the batch or are no multiple of the
            processes, or there are several shards with buckets.
    """
    index, count = process
    total = data.shards or count
    if total % count or data.batch_size % total:
        raise UserError(
            f"config.data.shards={data.shards or f'0 (one per process: {count})'} must divide config.data.batch_size="
            f"{data.batch_size} and be a multiple of the {count} processes"
        )
    if data.buckets and total > 1:
        raise UserError(
            f"config.data.buckets={data.buckets} with {total} parts of the text side by side (config.data.shards, or one per"
            " process): each would fill a different bucket; set it to (), or config.data.shards=1 and train in one process"
        )
    own = range(index * total // count, (index + 1) * total // count)
    return Shards({number: _shard(prepared, data, number, total) for number in own}, total)


def _shard(prepared: Prepared, data, index: int, count: int) -> grain.IterDataset:
    making = _open(prepared, data, "train")
    if len(making.source) < count:
        raise UserError(
            f"the train split has {len(making.source)} documents for {count} shards; use more text (perhaps a larger"
            " config.data.unique_tokens) or lower config.data.shards"
        )
    batches = making.train(index, count)
    if data.characters:
        batches = batches.map(AddCharacters(prepared.tokenizer, making.source.unknown))
    return grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=4)


def eval_batches(prepared: Prepared, data, split: str, limit: int) -> list[dict[str, np.ndarray]]:
    """Up to `limit` batches (0: all) of a held-out split, the same for every run on the same data.

    The last batch is filled with padding. `data.seed` and `data.buckets` have no effect.

    Raises:
        UserError: the split has no rows.
    """
    making = _open(prepared, data, split)
    batches = making.evaluate(limit)
    if not batches:
        raise UserError(
            f"the {split} split of {data.corpus} yields no rows; raise config.data.{split}_fraction or use more text"
        )
    return list(map(AddCharacters(prepared.tokenizer, making.source.unknown), batches)) if data.characters else batches


def check_data(data, tokenizer_kind: str | None = None) -> None:
    """Refuses settings that cannot yield batches from any corpus.

    Args:
        data: `config.data`.
        tokenizer_kind: the tokenizer's, if known.

    Raises:
        UserError: names the key to change.
    """
    format_of(data).check()
    if data.characters and tokenizer_kind is not None and not has_whole_words(tokenizer_kind):
        raise UserError(
            f"config.data.characters=True needs whole words, and config.data.tokenizer.kind={tokenizer_kind!r} splits them;"
            " set config.data.tokenizer.kind='words'"
        )


def _open(prepared: Prepared, data, split: str) -> Format:
    check_data(data, prepared.tokenizer.kind)
    making = format_of(data, prepared, split)
    if len(making.source) == 0:
        raise UserError(f"the {split} split of the corpus is empty; change config.data.{split}_fraction or use more text")
    return making


class AddCharacters:
    """Adds `characters` [B, L, 50] to batches of words, and `backward_characters` if the batch has `backward_tokens`.

    A word outside the vocabulary keeps its own characters, and becomes [UNK] in every other field.
    """

    def __init__(self, tokenizer, unknown: UnknownWords):
        """Args: tokenizer: of the words; unknown: tells apart the ids beyond its vocabulary."""
        self._table = character_table(tokenizer)
        self._pad_id, self._unknown = tokenizer.pad_id, unknown

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The batch with characters."""
        added = {}
        for side in ("", "backward_"):
            if f"{side}tokens" in batch:
                added[f"{side}characters"] = self._characters(batch[f"{side}tokens"], batch[f"{side}documents"])
        known = {
            name: np.where(values < self._unknown.first_id, values, self._unknown.unk_id).astype(values.dtype)
            for name, values in batch.items()
            if name.endswith("tokens")
        }
        return {**batch, **known, **added}

    def _characters(self, tokens: np.ndarray, documents: np.ndarray) -> np.ndarray:
        is_unknown = tokens >= self._unknown.first_id
        characters = self._table[np.where(is_unknown, self._unknown.unk_id, tokens)].astype(np.int32)
        ids, places = np.unique(tokens[is_unknown], return_inverse=True)
        if len(ids):
            characters[is_unknown] = character_ids(self._unknown.words(ids))[places]
        characters[documents == 0] = self._table[self._pad_id]
        return characters


def combined_hash(hashes: Mapping[str, str]) -> str:
    """One value for the hash chains of all shards. One shard keeps its own."""
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    return hashlib.blake2b("".join(hashes[n] for n in sorted(hashes, key=int)).encode(), digest_size=16).hexdigest()


class BatchHash:
    """A hash chain over batches: equal values at a step prove the same batches in the same order up to that step."""

    def __init__(self, value: str = ""):
        self.value = value

    def update(self, batch: dict[str, np.ndarray]) -> None:
        """Adds a batch."""
        digest = hashlib.blake2b(self.value.encode(), digest_size=16)
        for name in sorted(batch):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(batch[name]))
        self.value = digest.hexdigest()

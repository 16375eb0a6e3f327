"""Computes the hidden states of many texts once and stores them; feature-based transfer reads them instead of running a model.

A directory holds `manifest.json` and the shards `shard-00000.safetensors` and so on. A shard has `states` [tokens, n, D] of
whole texts one after the other, and `offsets` [texts + 1]. Memory holds one shard and one batch, for any number of texts.
A stopped extraction resumes after its last complete shard and ends with the same bytes.

Letters: T tokens (or words) of a text, n chosen layers, D width of the widest (narrower layers are padded with zeros).
"""

import collections
import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import Float

from bertlab.checksums import digest_of
from bertlab.errors import UserError
from bertlab.files import misfit, ordinary_mode, parse_json, read_json, whole_file, write_json
from bertlab.progress import hidden, tell
from bertlab.train.processes import first_before_others, gather, meet, part
from bertlab.transfer.load import Pretrained
from bertlab.transfer.rows import ROWS, padded_length, power_of_two

DTYPES = ("float16", "float32")
MANIFEST = "manifest.json"
READ_AHEAD = 256  # texts whose lengths are asked for together
BATCH_POSITIONS = 1024  # padding included; a longer text is a batch of its own

Text = str | Sequence[str]


def extract(
    model: Pretrained,
    texts: Iterable[Text],
    directory: str | os.PathLike,
    layers: str | Sequence[int] = "all",
    dtype: str = "float16",
    pretokenized: bool = False,
    special_tokens: bool = False,
    shard_bytes: int = 64 << 20,
    together: bool = False,
) -> "Features":
    """Writes the hidden states of texts, as `encode` returns them. It keeps existing shards.

    Args:
        model: from `bertlab.load`; its parameters do not change.
        texts: strings, or with `pretokenized` lists of words; read once, in order, one shard at a time. To resume after a stop,
            pass the same texts from the start.
        directory: new, or from an extraction with the same arguments.
        layers, pretokenized, special_tokens: as for `Pretrained.encode`.
        dtype: "float16" or "float32".
        shard_bytes: a shard holds as many texts as fit, at least one.
        together: all processes call it, with a directory that they share, and write the shards by turns.

    Raises:
        UserError: as for `Pretrained.encode`; the directory holds another extraction; `texts` is empty; or a state is not
            finite in `dtype`.
    """
    directory = Path(directory).expanduser()
    if dtype not in DTYPES:
        raise UserError(f"dtype={dtype}: expected one of {', '.join(DTYPES)}")
    ask = {"layers": layers, "pretokenized": pretokenized, "special_tokens": special_tokens}
    sample = model.encode([["a"] if pretokenized else "a"], **ask)[0]
    settings = {
        "format": 1,
        "model": model_digest(model),
        "layers": list(sample.layers),
        "widths": list(sample.widths),
        "dtype": dtype,
        "pretokenized": pretokenized,
        "special_tokens": special_tokens,
        "shard_bytes": shard_bytes,
    }
    index, count = part() if together else (0, 1)
    with first_before_others("features begin") if together else contextlib.nullcontext():
        finished = _open_directory(directory, settings)
    there = sorted(path.name for path in directory.glob("shard-*.safetensors"))
    there = gather(there)[0] if together else there  # others may have written some by now
    room = shard_bytes // (len(sample.widths) * max(sample.widths) * np.dtype(dtype).itemsize)
    reader, shards, written, first = _Reader(model, texts, pretokenized), [], {}, 0
    number = len(texts) if isinstance(texts, Sized) else None
    while True:
        tell("extracting", first, number)
        path = directory / f"shard-{len(shards):05d}.safetensors"
        if len(shards) < len(finished):
            made = finished[len(shards)]
        else:
            made = _about(path) if path.name in there else None
        held = reader.take(texts=made["texts"]) if made else reader.take(positions=room)
        of = f"texts {first} to {first + max(len(held), 1) - 1}"
        if (made and made["sha256"] != texts_digest(held)) or (held and finished and not made):
            raise UserError(
                f"{directory} holds features of other texts: {path.name} does not match {of}; give another directory"
            )
        if not held:
            break
        if path.name not in there and len(shards) % count == index:
            made = written[len(shards)] = _write_shard(path, model, held, ask, dtype, of)
        shards.append(made)
        first += len(held)
    tell("extracting", 1, 1)
    if not shards:
        raise UserError(f"{directory}: no texts to extract features from; give at least one")
    if together:
        theirs = {number: made for of_process in gather([*written.items()]) for number, made in of_process}
        shards = [theirs.get(number, made) for number, made in enumerate(shards)]
    if index == 0:
        write_json(directory / MANIFEST, {**settings, "shards": shards})
    if together:
        meet("features are whole")
    return Features(directory)


class Features(Sequence):
    """Features on disk: `features[i]` reads the states [T, n, D] of text i.

    Attributes:
        manifest: what `extract` wrote: `layers` (their numbers in the model), `widths`, `dtype`, `model`, `shards` and more.
        lengths: T of each text, int64.
    """

    def __init__(self, directory: str | os.PathLike):
        """Opens a directory.

        Raises:
            UserError: the directory holds no features, or they are unfinished or damaged.
        """
        self._directory = Path(directory).expanduser()
        self.manifest = _manifest(self._directory)
        if "shards" not in self.manifest:
            raise UserError(f"{self._directory}: the extraction is not finished; run it again")
        files = [shard["file"] for shard in self.manifest["shards"]]
        self._offsets = [_read(self._directory / file, "offsets") for file in files]
        self._whole: set[int] = set()
        self._first = np.cumsum([0, *(len(offsets) - 1 for offsets in self._offsets)])
        self.lengths = np.concatenate([np.diff(offsets) for offsets in self._offsets])

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each layer; `states` hold zeros beyond it."""
        return tuple(self.manifest["widths"])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Float[np.ndarray, "T n D"]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"text {index} of {len(self)}")
        index %= len(self)
        shard = int(np.searchsorted(self._first, index, "right")) - 1
        self._require_whole(shard)
        begin, end = map(int, self._offsets[shard][index - self._first[shard] :][:2])
        if begin == end:
            return np.zeros((0, len(self.widths), max(self.widths)), self.manifest["dtype"])
        return _read(self._directory / self.manifest["shards"][shard]["file"], "states", slice(begin, end))

    def _require_whole(self, shard: int) -> None:
        """Compares a shard with its digest when it is first read; those of earlier versions have none."""
        about = self.manifest["shards"][shard]
        if shard in self._whole or "blake2b" not in about:
            return
        path = self._directory / about["file"]
        if digest_of(_read(path, "states"), _read(path, "offsets")) != about["blake2b"]:
            raise UserError(f"{path} is damaged; delete it and rerun; only this shard is rebuilt")
        self._whole.add(shard)


def model_digest(model: Pretrained) -> str:
    """A hash of everything that features depend on: every parameter's name and bytes, the model's shape and the vocabulary."""
    digest = hashlib.sha256(json.dumps(model.config.model.to_dict(), sort_keys=True).encode())
    tokenizer = model.tokenizer
    digest.update(json.dumps([tokenizer.kind, tokenizer.lowercase, list(tokenizer.pieces())]).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.params):
        digest.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}".encode())
        digest.update(np.ascontiguousarray(leaf).data)
    return digest.hexdigest()


def texts_digest(texts: Iterable[Text]) -> str:
    """A hash of texts that depends on where each text, and each given word, begins."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(json.dumps(text).encode() + b"\n")
    return digest.hexdigest()


class _Reader:
    """The stream of texts, a shard at a time, with a few read ahead."""

    def __init__(self, model: Pretrained, texts: Iterable[Text], pretokenized: bool):
        self._model, self._pretokenized, self._texts = model, pretokenized, enumerate(texts)
        self._ahead: collections.deque[tuple[Text, int]] = collections.deque()

    def take(self, texts: int = 0, positions: int = 0) -> list[Text]:
        """The next texts: so many, or as many as have at most so many positions (one at least)."""
        if texts:
            taken = [self._ahead.popleft()[0] for _ in range(min(texts, len(self._ahead)))]
            return taken + [text for _, text in itertools.islice(self._texts, texts - len(taken))]
        taken, left = [], positions
        while self._fill() and (not taken or self._ahead[0][1] <= left):
            text, length = self._ahead.popleft()
            taken.append(text)
            left -= length
        return taken

    def _fill(self) -> bool:
        if not self._ahead and (numbered := list(itertools.islice(self._texts, READ_AHEAD))):
            texts = [text for _, text in numbered]
            rows = self._model.rows(texts, self._pretokenized, first=numbered[0][0])
            self._ahead.extend((text, len(row.tokens)) for text, row in zip(texts, rows))
        return bool(self._ahead)


def _open_directory(directory: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Makes the directory or compares its manifest with this call's; returns its shards if it is complete."""
    if not (directory / MANIFEST).exists():
        if any(directory.glob("shard-*")):
            raise UserError(f"{directory} has shards but no {MANIFEST}; delete it, or give another directory")
        write_json(directory / MANIFEST, settings)
        return []
    there = _manifest(directory)
    for key, value in settings.items():
        if there.get(key) != value:
            raise UserError(
                f"{directory} holds features with {key}={there.get(key)}, not {key}={value}; give another directory"
            )
    return there.get("shards", [])


def _manifest(directory: Path) -> dict[str, Any]:
    """What `extract` wrote. Raises: UserError: it is missing or damaged."""
    manifest = read_json(directory / MANIFEST)
    if wrong := misfit(manifest, {"shards?": [_SHARD], "layers?": list, "widths?": list, "dtype?": str, "model?": str}):
        raise UserError(f"{directory / MANIFEST} is damaged: {wrong}; delete the directory and extract again")
    return manifest


def _write_shard(path: Path, model: Pretrained, texts: list[Text], ask: dict, dtype: str, of: str) -> dict[str, Any]:
    found: dict[int, np.ndarray] = {}
    for indices in _batches(model.lengths(texts, ask["pretokenized"]), model.longest):
        with hidden():  # `extract` says how far all texts are
            embeddings = model.encode([texts[i] for i in indices], **ask)
        for index, embedding in zip(indices, embeddings):
            with np.errstate(over="ignore"):
                found[index] = np.ascontiguousarray(embedding.states.swapaxes(0, 1), dtype)
            if not np.isfinite(found[index]).all():
                raise UserError(
                    f"a state of {of} is not finite in {dtype}; set dtype to float32, or check the model's parameters"
                )
    offsets = np.cumsum([0, *(len(found[i]) for i in range(len(texts)))])
    states = np.concatenate([found.pop(i) for i in range(len(texts))])
    about = {"file": path.name, "texts": len(texts), "tokens": len(states), "sha256": texts_digest(texts)}
    about["blake2b"] = digest_of(states, offsets)
    with whole_file(path) as partial, ordinary_mode(partial):
        # One entry, as the order of several is not the same each time.
        safetensors.numpy.save_file({"states": states, "offsets": offsets}, partial, {"about": json.dumps(about)})
    return about


def _batches(lengths: Sequence[int], longest: int) -> Iterator[list[int]]:
    """Numbers of texts in batches of similar length; a batch has at most BATCH_POSITIONS with its padding."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        positions = power_of_two(len(batch) + 1) * padded_length(lengths[index], longest)
        if batch and (len(batch) == ROWS or positions > BATCH_POSITIONS):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _about(path: Path) -> dict[str, Any]:
    with _opened(path) as file:
        about = parse_json((file.metadata() or {})["about"])
        if wrong := misfit(about, _SHARD):
            raise ValueError(wrong)
        return about


def _read(path: Path, name: str, part: slice = slice(None)) -> np.ndarray:
    with _opened(path) as file:
        return file.get_slice(name)[part]


_SHARD = {"file": str, "texts": int, "tokens": int, "sha256": str, "blake2b?": str}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A shard; an error in the block says that it is damaged."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            yield file
    except (OSError, safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error}); delete it and rerun; only this shard is rebuilt") from None

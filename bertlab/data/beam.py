"""Preparation on many machines with Apache Beam: it writes the same records as `bertlab.data.prepare`.

Beam's workers read the parts of the corpus (files) in three pipelines. This process starts them and trains the tokenizer.

1. Survey: the corpus's fingerprint, and the documents and sentences of each part. The fingerprint is a digest of all bytes in
   their order, so one worker takes it while the others count.
2. Sample: the sentences that the tokenizer learns from. On one machine sentence n of the train split gets the nth number of a
   random generator. Here each part starts with the generator advanced by the sentences of the parts before it.
3. Tokens: chunks of documents go to all workers and the examples to TFDS's Beam writer, which sorts them by the documents'
   numbers. Statistics and repeated text are counted on the way.

All workers must see the corpus and the cache directory under the same path and have bertlab installed. This process holds 3 KB
per part, and a worker that writes holds one shard of the dataset (about 1 GiB at most, by TFDS's rule).
"""

import contextlib
import itertools
import json
import random
import sys
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import tensorflow_datasets as tfds
from apache_beam.options.pipeline_options import PipelineOptions

from bertlab.data.documents import Corpus, PartedCorpus
from bertlab.data.duplicates import UNITS, number_in, number_of_parts, number_repeated
from bertlab.data.encode import HASH, encode_documents
from bertlab.data.prepare import (
    COUNTS,
    Backend,
    Progress,
    chunks,
    examples_of,
    features,
)
from bertlab.data.prepared import TEMPORARY
from bertlab.data.splits import Positions, Splits, named_splits, require_documents, splits_by_fraction
from bertlab.data.tokenizers import Tokenizer, load_tokenizer, normalise, train_on_sample
from bertlab.data.vocabularies import Sample
from bertlab.errors import UserError
from bertlab.files import temporary_folder


def beam_backend(runner: str, pipeline_options: str) -> Callable[[Corpus, dict[str, Any], Path, Progress], Backend]:
    """The `backend` for `prepare` that uses Beam.

    Args:
      runner: Beam's name of a runner, as DirectRunner or DataflowRunner; "" leaves it to the options.
      pipeline_options: Beam's options, `key=value,...` without their dashes, as for TFDS's --beam_pipeline_options.

    Raises:
      UserError: if Beam does not know the runner or cannot use it.
    """
    # TFDS makes one of the pipelines: parse options as it does, and like it do not let Beam check type hints.
    options = [f"--{option}" for option in pipeline_options.split(",") if option]

    def pipeline() -> beam.Pipeline:
        return beam.Pipeline(runner or None, PipelineOptions(flags=options, pipeline_type_check=False))

    try:
        pipeline()
    except (ValueError, ImportError) as error:
        raise UserError(
            f'Beam builds no pipeline from --beam_runner={runner} and --beam_pipeline_options="{pipeline_options}": {error}'
        ) from error

    def backend(corpus: Corpus, data_options: dict[str, Any], root: Path, progress: Progress) -> BeamBackend:
        config = tfds.download.DownloadConfig(
            beam_runner=runner or None, beam_options=PipelineOptions(flags=options), try_download_gcs=False
        )
        return BeamBackend(corpus, data_options, root, progress, pipeline, config)

    return backend


class BeamBackend:
    """Preparation by Beam's workers; see `bertlab.data.prepare.Backend` for its methods."""

    def __init__(
        self,
        corpus: Corpus,
        options: dict[str, Any],
        root: Path,
        progress: Progress,
        pipeline: Callable[[], beam.Pipeline],
        config: tfds.download.DownloadConfig,
    ):
        """Args: those of `Backend`; pipeline: makes an empty one; config: with the same runner and options, for TFDS.

        Raises:
          UserError: if the corpus is read in one piece.
        """
        if not isinstance(corpus, PartedCorpus):
            raise UserError(
                f'config.data.corpus="{corpus.spec}" is read on one machine; prepare it without --beam_runner, or use '
                "text:GLOB and tfds:NAME."
            )
        self._corpus = corpus
        self._options, self._root, self._progress = options, root, progress
        self._pipeline, self._config = pipeline, config

    def fingerprint(self) -> str:
        [fingerprint] = self._survey(splits_by_fraction(self._options), with_fingerprint=True)
        return fingerprint

    def find_splits(self) -> Splits:
        if self._positions.splits() != self._splits:
            self._survey(self._positions.splits())
        require_documents(self._of_split, self._corpus)
        return self._splits

    def _survey(self, splits: Splits, with_fingerprint: bool = False) -> list[str]:
        """Counts the documents of each part and, with these bounds, of each split; returns the fingerprint if wanted."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._progress("reading the text", 0, None)
        with temporary_folder(self._root, TEMPORARY) as folder:
            with self._pipeline() as pipeline:
                if with_fingerprint:
                    _write(pipeline | beam.Create([0]) | beam.Map(_fingerprint, self._corpus), folder / "fingerprint")
                parts = self._parts(pipeline, range(self._corpus.parts))
                _write(parts | beam.Map(_survey, self._corpus, self._options, splits), folder / "survey")
            fingerprint = _read(folder / "fingerprint") if with_fingerprint else []
            survey = sorted(_read(folder / "survey"), key=lambda part: part[0])
        for *_, error in survey:
            if error:
                raise UserError(error)
        # Of each part, in their order: documents in the corpus, those of each split, and train sentences.
        counted = np.array([numbers for _, numbers, _, _ in survey], np.int64).reshape(len(survey), -1)
        self._documents, self._sentences = counted[:, 0], counted[:, -1]
        if not self._documents.sum():
            raise self._corpus.no_text()
        self._of_split = dict(zip(named_splits(self._options), counted[:, 1:-1].sum(axis=0).tolist(), strict=True))
        self._splits, self._positions = splits, Positions(self._options)
        for _, _, positions, _ in survey:
            self._positions.merge(*positions)
        self._progress("reading the text", 1, 1)
        return fingerprint

    def train_tokenizer(self, folder: Path) -> Tokenizer:
        settings = self._options["tokenizer"]
        self._progress("reading for the tokenizer", 0, None)
        path = folder / "sample"
        with self._pipeline() as pipeline:
            starts = zip(range(self._corpus.parts), _generators(settings["seed"], self._sentences.tolist()), strict=True)
            samples = self._parts(pipeline, starts) | beam.Map(_sample, self._corpus, settings, self._splits)
            merged = samples | beam.CombineGlobally(_merge_samples, settings["sample_sentences"])
            _write(merged | beam.Map(Sample.texts), path)
        [sample] = _read(path)
        path.unlink()
        self._progress("reading for the tokenizer", 1, 1)
        self._progress("training the tokenizer", 0, 1)
        asked = (settings[key] for key in ("vocab_size", "lowercase", "split"))
        tokenizer = train_on_sample(settings["kind"], sample, *asked)
        self._progress("training the tokenizer", 1, 1)
        return tokenizer

    def write_dataset(self, folder: Path, tokenizer: Tokenizer) -> tuple[dict[str, dict[str, int]], np.ndarray]:
        documents = int(self._documents.sum())
        self._progress("tokenising", 0, documents)
        splits = named_splits(self._options)
        with tempfile.TemporaryDirectory(dir=folder) as name:
            scratch = Path(name)

            def examples(pipeline: beam.Pipeline) -> dict[str, beam.PCollection]:
                firsts = np.cumsum(self._documents) - self._documents
                # Text goes through a shuffle, so that a large file's chunks go to all workers.
                read = self._parts(pipeline, enumerate(firsts.tolist())) | beam.FlatMap(_chunks, self._corpus)
                tags = ("counts", "ids", "hashes")
                encode = beam.ParDo(_Encode(folder / "tokenizer", named_splits(self._options), self._splits))
                encoded = read | "SpreadChunks" >> beam.Reshuffle() | encode.with_outputs(*splits, *tags)
                for tag in ("counts", "ids"):
                    _write(encoded[tag] | f"Add_{tag}" >> beam.CombineGlobally(sum), scratch / tag)
                parts = number_of_parts(int(self._sentences.sum()))
                grouped = encoded.hashes | beam.FlatMap(_by_part, parts) | beam.GroupByKey()
                repeated = grouped | beam.Map(_count_repeated, splits) | "AddRepeated" >> beam.CombineGlobally(sum)
                _write(repeated, scratch / "repeated")
                return {split: encoded[split] for split in splits}

            builder = _Builder(features=features(tokenizer), examples=examples, data_dir=scratch, file_format="array_record")
            # TFDS prints where the dataset lies until it is renamed.
            with contextlib.redirect_stdout(sys.stderr):
                builder.download_and_prepare(download_config=self._config)
            Path(builder.data_dir).rename(folder / "dataset")
            [counts], [ids], [repeated] = (_read(scratch / name) for name in ("counts", "ids", "repeated"))
        statistics = {split: dict(zip(COUNTS, numbers, strict=True)) for split, numbers in zip(splits, counts, strict=True)}
        for split, by_unit in zip(splits, repeated, strict=True):
            for unit, (twice, in_train) in zip(UNITS, by_unit, strict=True):
                statistics[split][f"duplicate_{unit}"] = twice
                if split != "train":
                    statistics[split][f"{unit}_in_train"] = in_train
        self._progress("tokenising", documents, documents)
        return statistics, np.array(ids, np.int64)

    @staticmethod
    def _parts(pipeline: beam.Pipeline, elements: Iterable[Any]) -> beam.PCollection:
        """One element per part, on any free workers."""
        return pipeline | "Parts" >> beam.Create(list(elements)) | "SpreadParts" >> beam.Reshuffle()


class _Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """The TFDS dataset `bertlab` of examples that a function adds to Beam's pipeline."""

    name = "bertlab"
    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, *, features: tfds.features.FeaturesDict, examples: Callable[[Any], dict], **arguments: Any):
        self._features, self._examples = features, examples
        super().__init__(**arguments)

    def _info(self) -> tfds.core.DatasetInfo:
        # Unshuffled, a record's place is its key's, an integer.
        return tfds.core.DatasetInfo(builder=self, features=self._features, disable_shuffling=True)

    def _split_generators(self, dl_manager, pipeline):
        return self._examples(pipeline)

    def _generate_examples(self):
        raise NotImplementedError("_split_generators makes the examples; this method is unused")


def _fingerprint(_, corpus: Corpus) -> str:
    return corpus.fingerprint()


def _survey(
    index: int, corpus: PartedCorpus, options: dict[str, Any], splits: Splits
) -> tuple[int, list[int], tuple[bool, list[float]], str]:
    """The part's numbers of documents (all, and by split) and train sentences, its `Positions`, and the error in its text."""
    documents, sentences, positions = dict.fromkeys(named_splits(options), 0), 0, Positions(options)
    try:
        for document in corpus.part(index):
            split = splits.of(document.id)
            documents[split] += 1
            positions.add(document.id)
            sentences += len(document.sentences) if split == "train" else 0
    except UserError as error:
        # As a value: runners try an exception again and wrap it.
        return index, [0] * (len(documents) + 2), (False, []), str(error)
    return index, [sum(documents.values()), *documents.values(), sentences], (positions.valid, positions.nearest), ""


def _generators(seed: int, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
    """States of `random.Random(seed)`, as NumPy writes them, before each of consecutive stretches of that many numbers."""
    *key, position = random.Random(seed).getstate()[1]
    generator = np.random.MT19937()
    generator.state = {"bit_generator": "MT19937", "state": {"key": np.array(key, np.uint32), "pos": position}}
    for number in numbers:
        yield generator.state
        # A number of 53 bits takes two words.
        generator.random_raw(2 * number, output=False)


def _sample(part: tuple[int, dict[str, Any]], corpus: PartedCorpus, settings: dict[str, Any], splits: Splits) -> Sample:
    """What one part gives to the sample; settings: the tokenizer's."""
    index, state = part
    generator = np.random.RandomState(np.random.MT19937())
    generator.set_state(state)
    sample = Sample(settings["sample_sentences"])
    numbers = itertools.count()
    for document in corpus.part(index):
        if splits.of(document.id) == "train":
            for sentence in document.sentences:
                place = index, next(numbers)
                sample.add(generator.random_sample(), place, normalise(sentence, settings["lowercase"]))
    return sample


def _merge_samples(samples: Iterable[Sample], sentences: int) -> Sample:
    merged = Sample(sentences)
    for sample in samples:
        merged.merge(sample)
    return merged


def _chunks(part: tuple[int, int], corpus: PartedCorpus) -> Iterator[tuple[int, list]]:
    """Yields chunks of a part's documents, each with the number of its first document."""
    index, first = part
    for chunk in chunks(corpus.part(index)):
        yield first, chunk
        first += len(chunk)


class _Encode(beam.DoFn):
    """Turns chunks into numbered examples by split, and into statistics to add up."""

    def __init__(self, tokenizer: Path, names: list[str], splits: Splits):
        self._path, self._names, self._splits = tokenizer, names, splits

    def setup(self):
        self._tokenizer = load_tokenizer(self._path)

    def process(self, element):
        first, documents = element
        counts = np.zeros((len(self._names), len(COUNTS)), np.int64)
        ids = np.zeros(self._tokenizer.vocab_size, np.int64)
        gathered = defaultdict(list)
        for found in examples_of(encode_documents(self._tokenizer, documents), first, self._splits):
            counts[self._names.index(found.split)] += found.counts
            if found.split == "train":
                ids += np.bincount(found.example["tokens"], minlength=len(ids))
            yield beam.pvalue.TaggedOutput(found.split, (found.example["document"], found.example))
            for unit, hashes in found.hashes.items():
                gathered[unit, self._names.index(found.split)].append(hashes)
        for (unit, split), arrays in gathered.items():
            yield beam.pvalue.TaggedOutput("hashes", (unit, split, np.concatenate(arrays)))
        yield beam.pvalue.TaggedOutput("counts", counts)
        yield beam.pvalue.TaggedOutput("ids", ids)


def _by_part(chunk: tuple[str, int, np.ndarray], parts: int) -> Iterator[tuple[tuple[str, int], tuple[int, bytes]]]:
    """A chunk's hashes of (unit, split) as ((unit, part), (split, bytes))."""
    unit, split, hashes = chunk
    part_of = hashes % parts
    for part in np.unique(part_of).tolist():
        yield (unit, part), (split, hashes[part_of == part].tobytes())


def _count_repeated(grouped: tuple[tuple[str, int], Iterable[tuple[int, bytes]]], splits: Sequence[str]) -> np.ndarray:
    """int64 [splits, units, 2]: of one unit's hashes in one part, those that repeat one before them, and those in train."""
    (unit, _), groups = grouped
    joined = defaultdict(list)
    for split, content in groups:
        joined[split].append(np.frombuffer(content, HASH))
    hashes = {split: np.sort(np.concatenate(arrays)) for split, arrays in joined.items()}
    train = hashes.get(splits.index("train"), np.zeros(0, HASH))
    counted = np.zeros((len(splits), len(UNITS), 2), np.int64)
    for split, found in hashes.items():
        counted[split, UNITS.index(unit)] = number_repeated(found), number_in(found, train)
    return counted


def _write(values: beam.PCollection, path: Path) -> None:
    """Adds to the pipeline that the values are written as one list, for this process to read."""
    gather = beam.combiners.ToList()
    values | f"Gather_{path.name}" >> gather | f"Write_{path.name}" >> beam.Map(_write_json, path)


def _write_json(values: list, path: Path) -> None:
    values = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    # Runners may do the same work twice, at once.
    own = path.with_name(f"{path.name}-{uuid.uuid4()}")
    own.write_text(json.dumps(values), encoding="utf-8")
    own.replace(path)


def _read(path: Path) -> list:
    return json.loads(path.read_text(encoding="utf-8"))

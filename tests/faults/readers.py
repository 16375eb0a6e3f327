"""Every reader of a file from outside: a small valid file, and how it is read. `test_readers.py` damages the files."""

import gzip
import json
import lzma
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zstandard

from bertlab.data.corpora import open_corpus
from bertlab.data.tokenizers import load_tokenizer, train_tokenizer
from bertlab.interop import elmo, glove, google, huggingface, openai, word2vec
from bertlab.interop.words import read_words
from bertlab.mirror import Mirror
from bertlab.run import Run
from bertlab.studies.measurements import load
from bertlab.transfer import babylm
from bertlab.transfer.average import average
from bertlab.transfer.evaluate import read_pairs
from bertlab.transfer.evaluations import read_evaluations
from bertlab.transfer.load import read_lines
from bertlab.transfer.similarity import read_questions, read_ratings, read_sentences
from bertlab.transfer.tasks import find_task, load_task
from tests.interop import published, test_elmo, test_google, test_openai
from tests.studies.conftest import objectives_study, write_study
from tests.tokenizer_files import write_byte_level, write_gpt1
from tests.transfer.test_babylm import RECORDS

TEXTS = [f"The parser reads file number {i}, and {'a' if i % 2 else 'the'} grammar follows it." for i in range(12)]


FOLDERS = ("corpus .", "task ud", "task race", "tokenizer ", "byte-level BPE", "GPT-1's BPE", "Hugging Face ", "OpenAI's")
FOLDERS += ("Google's", "TensorFlow", "fastai", "ELMo's HDF5", "HDF5 without", "snapshot")


@dataclass(frozen=True)
class Reader:
    """A reader.

    Attributes:
        name: of the test.
        make: writes valid files into an empty folder.
        read: reads the folder; whatever it gives is a result.
        share: of the usual number of damages, for a reader that takes long.
        only: names of the files to damage; () for all.
    """

    name: str
    make: Callable[[Path], Any]
    read: Callable[[Path], Any]
    share: float = 1.0
    only: tuple[str, ...] = ()

    @property
    def by_folder(self) -> bool:
        """Whether it may name its folder only: it reads a glob, or several files that belong together."""
        return self.name.startswith(FOLDERS)


def files(**contents: str | bytes) -> Callable[[Path], None]:
    """Writes files; "__" in a name stands for a dot, and "_in_" for a folder before it."""

    def make(folder: Path) -> None:
        for name, content in contents.items():
            path = folder / name.replace("_in_", "/").replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


def lines(*records: Any) -> str:
    """Lines of text, or of JSON."""
    return "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)


def table(separator: str, *rows: tuple[Any, ...]) -> str:
    """A table."""
    return lines(*(separator.join(map(str, row)) for row in rows))


# Text and its compressions.
PACKED: Mapping[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    "__gz": lambda content: gzip.compress(content, mtime=0),
    "__xz": lzma.compress,
    "__zst": zstandard.ZstdCompressor().compress,
}


def read_corpus(folder: Path) -> list[bytes]:
    """Every sentence, as the bytes that become tokens."""
    return [s.encode() for document in open_corpus(f"text:{folder}/*").documents() for s in document.sentences]


def corpora() -> Iterator[Reader]:
    contents = {"txt": "\n\n".join(TEXTS), "jsonl": lines(*({"text": text} for text in TEXTS)), "train": lines(*TEXTS)}
    for (kind, content), (ending, pack) in ((a, b) for a in contents.items() for b in PACKED.items()):
        yield Reader(
            f"corpus .{kind}{ending.replace('__', '.')}", files(**{f"a__{kind}{ending}": pack(content.encode())}), read_corpus
        )
    splits = files(**{f"{of}__txt": lines(*TEXTS) for of in ("train", "valid", "test")})
    yield Reader("published splits", splits, lambda folder: [*open_corpus(f"splits:{folder}").documents()])


def texts() -> Iterator[Reader]:
    for ending in ("", "__gz", "__xz"):
        packed = PACKED[ending]("\n".join(TEXTS).encode())
        name = f"a{ending.replace('__', '.')}"
        yield Reader(
            f"lines {name}", files(**{f"a{ending}": packed}), lambda folder, name=name: read_lines(folder / name, "--text")
        )
    pair = {"sentence_good": "a b", "sentence_bad": "b a", "UID": "u", "linguistics_term": "order"}
    yield Reader("minimal pairs", files(a__jsonl=lines(pair, pair)), lambda folder: read_pairs(folder / "a.jsonl"))
    rated = lines("old new 1.58", "smart clever 9.2")
    yield Reader("rated words", files(a__txt=rated), lambda folder: read_ratings(folder / "a.txt"))
    asked = lines(": capitals", "Athens Greece Rome Italy", ": gram1", "go went see saw")
    yield Reader("analogies", files(a__txt=asked), lambda folder: read_questions(folder / "a.txt"))
    sentences = table("\t", ("sentence1", "sentence2", "score"), ("a b", "b c", 3.5), ("c", "d", 0))
    yield Reader("rated sentences", files(a__tsv=sentences), lambda folder: read_sentences(folder / "a.tsv"))
    for name, (file, record) in RECORDS.items():
        made = files(**{file.replace("/", "_in_").replace(".", "__"): lines(record, record, record)})
        yield Reader(f"BabyLM {name}", made, lambda folder, task=babylm.TASKS[name]: babylm.read_items(folder, task))


def tagged(*columns: str) -> str:
    """Two sentences of two words, with these columns."""
    return ("\t".join(columns) + "\n") * 2 + "\n" + ("\t".join(columns) + "\n") * 2


SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": f"In {year} the parser was written.",
                    "qas": [{"id": f"q{year}", "question": "When?", "answers": [{"text": str(year), "answer_start": 3}]}],
                }
                for year in (1990, 1991)
            ],
        }
    ],
}
RACE = {"article": "The parser reads.", "questions": ["What reads?"], "options": [["a", "b", "c", "d"]], "answers": ["B"]}
SENSES = """<?xml version="1.0" encoding="UTF-8" ?>
<corpus lang="en" source="x">
<text id="d0">
<sentence id="d0.s0">
<wf lemma="the" pos="DET">The</wf>
<instance id="d0.s0.t0" lemma="bank" pos="NOUN">bank</instance>
</sentence>
</text>
</corpus>
"""
# Task -> its files: a training and a development set.
TASK_FILES: Mapping[str, Mapping[str, str]] = {
    "sst2": {
        of: table("\t", ("sentence", "label"), ("good text", 1), ("bad text", 0), ("fine", 1))
        for of in ("train__tsv", "dev__tsv")
    },
    "cola": {of: table("\t", ("gj04", 1, "", "A b."), ("gj04", 0, "*", "B a.")) for of in ("train__tsv", "dev__tsv")},
    "stsb": {
        of: table("\t", ("sentence1", "sentence2", "score"), ("a b", "b c", 3.5), ("c", "d", 0))
        for of in ("train__tsv", "dev__tsv")
    },
    "swag": {
        of: table(",", ("sent1", "sent2", *(f"ending{i}" for i in range(4)), "label"), ("a", "He", "x", "y", '"z, w"', "v", 2))
        for of in ("train__csv", "val__csv")
    },
    "ag_news": {
        of: table(",", *((f'"{i}"', f'"title, {i}"', '"text\\nmore"') for i in (1, 2, 3, 4)))
        for of in ("train__csv", "test__csv")
    },
    "snli": {
        f"snli_1__0_{of}__jsonl": lines(
            *({"sentence1": f"a {g}", "sentence2": "b", "gold_label": g} for g in ("entailment", "neutral", "contradiction"))
        )
        for of in ("train", "dev", "test")
    },
    "boolq": {
        of: lines({"question": "is it", "passage": "It is.", "label": True}, {"question": "x", "passage": "y", "label": False})
        for of in ("train__jsonl", "val__jsonl")
    },
    "copa": {
        of: lines({"premise": "a", "choice1": "b", "choice2": "c", "question": "cause", "label": 1})
        for of in ("train__jsonl", "val__jsonl")
    },
    "multirc": {
        of: lines(
            {
                "idx": 0,
                "passage": {
                    "text": "p",
                    "questions": [{"idx": 0, "question": "q", "answers": [{"idx": 0, "text": "a", "label": 1}]}],
                },
            }
        )
        for of in ("train__jsonl", "val__jsonl")
    },
    "wsc": {
        of: lines(
            {
                "text": "Mark told Pete about him",
                "label": False,
                "target": {"span1_text": "Mark", "span1_index": 0, "span2_text": "him", "span2_index": 4},
            }
        )
        for of in ("train__jsonl", "val__jsonl")
    },
    "wic": {
        of: value
        for split in ("train", "dev")
        for of, value in {
            f"{split}__data__txt": lines("class\tN\t1-0\ta class of\tclass it"),
            f"{split}__gold__txt": "T\n",
        }.items()
    },
    "trec": {
        of: lines("DESC:manner How did it ?", "ENTY:animal What is it ?") for of in ("TREC__train__all", "TREC__test__all")
    },
    "sst5": {
        of: lines("(3 (2 It) (4 (2 's) (4 good)))", "(1 (2 It) (1 fails))") for of in ("train__txt", "dev__txt", "test__txt")
    },
    "ner": {of: tagged("Mark", "NNP", "B-PER") for of in ("eng__train", "eng__testa", "eng__testb")},
    "ud": {
        f"en-ud-{of}__conllu": lines(
            "# sent_id = 1",
            "1\tA\ta\tDET\tDT\t_\t2\tdet\t_\t_",
            "2-3\tb\t_\t_\t_\t_\t_\t_\t_\t_",
            "2\tb\tb\tNOUN\tNN\t_\t0\troot\t_\t_",
            "",
        )
        for of in ("train", "dev", "test")
    },
    "squad1": {of: json.dumps(SQUAD, indent=1) for of in ("train-v1__1__json", "dev-v1__1__json")},
    "squad2": {of: json.dumps(SQUAD) for of in ("train-v2__0__json", "dev-v2__0__json")},
    "race": {f"{of}_in_high_in_1__txt": json.dumps(RACE) for of in ("train", "dev", "test")},
    "imdb": {
        f"{of}_in_{label}_in_{i}__txt": f"{label} text {i}"
        for of in ("train", "test")
        for label in ("neg", "pos")
        for i in (1, 2, 3)
    },
    "babylm_boolq": {
        f"boolq__{of}__jsonl": lines(
            {"question": "is it", "passage": "It is.", "label": 1}, {"question": "x", "passage": "y", "label": 0}
        )
        for of in ("train", "valid")
    },
    "edges_srl": {
        f"{of}__edges__json": lines(
            {"text": "Ian ate ice cream .", "targets": [{"span1": [1, 2], "span2": [0, 1], "label": "A0"}], "info": {}}
        )
        for of in ("train", "dev", "test")
    },
    "wsd": {
        "index__sense": lines("bank%1:14:00:: 08420278 1 20", "bank%1:17:01:: 09213565 2 25"),
        **{f"{of}__data__xml": SENSES for of in ("semcor", "ALL")},
        **{f"{of}__gold__key__txt": "d0.s0.t0 bank%1:14:00::\n" for of in ("semcor", "ALL")},
    },
    "coarse_wsd": {
        "crane_in_classes_map__txt": json.dumps({"0": "crane_machine", "1": "crane_bird"}),
        **{f"crane_in_{of}__data__txt": lines("1\tA crane lifts .", "1\tThe crane sings .") for of in ("train", "test")},
        **{f"crane_in_{of}__gold__txt": lines("0", "1") for of in ("train", "test")},
    },
}
# Tasks that read more than a file of each split: all are damaged.
OF_SEVERAL_FILES = ("wsd", "coarse_wsd")


def tasks() -> Iterator[Reader]:
    for name, contents in TASK_FILES.items():
        read = lambda folder, name=name: load_task(find_task(name), {"directory": str(folder), "dev": "valid"})
        damaged = tuple(path.replace("_in_", "/").replace("__", ".") for path in contents if "train" in path)[:2]
        damaged = () if name in OF_SEVERAL_FILES else damaged
        yield Reader(f"task {name}", files(**contents), read, only=damaged)


def encoded(path: Path) -> list[int]:
    """A text through a tokenizer that was read."""
    tokenizer = load_tokenizer(path)
    tokenizer.pieces(), tokenizer.continues()
    return [] if tokenizer.kind == "gpt1" else tokenizer.encode("a parser reads")


def write_json_tokenizer(folder: Path) -> None:
    published.write_tokenizer("roberta", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"unk_token": "<unk>", "pad_token": {"content": "<pad>"}}))


def tokenizers() -> Iterator[Reader]:
    for kind in ("unigram", "bpe", "wordpiece", "words"):
        size = 30 if kind == "words" else 60 if kind == "wordpiece" else 295
        save = lambda folder, kind=kind, size=size: train_tokenizer(kind, TEXTS, size, seed=0).save(folder)
        yield Reader(f"tokenizer {kind}", save, encoded)
    yield Reader("tokenizer.json", write_json_tokenizer, lambda folder: encoded(folder / "tokenizer.json"))
    yield Reader(
        "vocab.txt", lambda folder: published.write_tokenizer("bert", folder), lambda folder: encoded(folder / "vocab.txt")
    )
    byte_level = lambda folder: write_byte_level(folder, TEXTS, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    yield Reader("byte-level BPE", byte_level, encoded)
    yield Reader("GPT-1's BPE", lambda folder: write_gpt1(folder, ("encoder_bpe_40000.json", "vocab_40000.bpe")), encoded)
    yield Reader(
        "SentencePiece",
        lambda folder: (folder / "a.model").write_bytes(train_tokenizer("unigram", TEXTS, 295, seed=0).model),
        lambda folder: encoded(folder / "a.model"),
    )
    yield Reader("words.json", files(itos__json='["xxunk", "a", "b"]'), lambda folder: read_words(folder / "itos.json"))
    yield Reader("words.txt", files(itos__txt="xxunk\na\nb\n"), lambda folder: read_words(folder / "itos.txt"))


def moved(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    """For functions that make their folder: into an empty one."""

    def into(folder: Path) -> None:
        folder.rmdir()
        make(folder)

    return into


def write_shards(folder: Path) -> None:
    published.write_directory("bert", folder)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    names = published.weights("bert")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, "a.safetensors")}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "added_tokens_decoder": {}}))


VECTORS = table(" ", ("the", 0.5, -1, 2.25), (",", 1e-3, 0, 3), ("of", 1, 2, 3))


def weights() -> Iterator[Reader]:
    for kind in ("bert", "gpt2", "openai-gpt"):
        made = moved(lambda folder, kind=kind: published.write_directory(kind, folder))
        yield Reader(f"Hugging Face {kind}", made, huggingface.load, share=0.3 if kind == "bert" else 0.1)
    yield Reader(
        "Hugging Face shards",
        moved(write_shards),
        huggingface.load,
        0.3,
        ("model.safetensors.index.json", "tokenizer_config.json"),
    )
    bert = moved(lambda folder: test_google.directory(folder))
    read = lambda folder: google.from_variables(test_google.variables(), folder, "bert_model.ckpt")
    yield Reader("Google's bert_config.json", bert, read, share=0.2)
    parts = ("params_0.npy", "params_9.npy", "params_shapes.json", "encoder_bpe_40000.json")
    yield Reader("OpenAI's NumPy", moved(test_openai.write_model), openai.load, 0.3, parts)
    for form in ("ids", "characters", "apart"):
        made = moved(lambda folder, form=form: test_elmo.write_source(folder, form))
        yield Reader(f"ELMo's HDF5 {form}", made, elmo.load, share=0.3)
    yield Reader("HDF5 without its numbers", moved(write_empty_hdf5), elmo.load, share=0)
    yield Reader("word2vec text", files(a__txt="3 3\n" + VECTORS), lambda folder: word2vec.load(folder / "a.txt"))
    packed = gzip.compress(("3 3\n" + VECTORS).encode(), mtime=0)
    yield Reader("word2vec text .gz", files(a__txt__gz=packed), lambda folder: word2vec.load(folder / "a.txt.gz"))
    binary = b"2 3\nthe " + np.float32([1, 2, 3]).tobytes() + b"\nof " + np.float32([4, 5, 6]).tobytes() + b"\n"
    yield Reader("word2vec binary", files(a__bin=binary), lambda folder: word2vec.load(folder / "a.bin"))
    yield Reader("GloVe", files(a__txt=VECTORS), lambda folder: glove.load(folder / "a.txt"))
    wide = "a" + " 1" * 100_000 + "\n" + "b 1\n" * 100_000  # 80 GB, if there were numbers for it
    yield Reader("GloVe, wide and short", files(a__txt=wide), lambda folder: glove.load(folder / "a.txt"), share=0)


def write_empty_hdf5(folder: Path) -> None:
    """A dataset of 4 TB that is nowhere in the file."""
    test_elmo.write_source(folder, "ids")
    with h5py.File(folder / "tiny_weights.hdf5", "a") as file:
        file.create_dataset("huge", (1_000_000, 1_000_000), "f4")


FINETUNING = {"task": "sst2", "task_data": {"directory": ""}, "metrics": {"sst2": "accuracy"}}


def write_predictions(folder: Path) -> None:
    files(**{f"glue_in_{name}": content for name, content in TASK_FILES["sst2"].items()})(folder)
    line = {"id": "0", "gold": "1", "predicted": "1", "probabilities": [0.25, 0.75]}
    for name in ("x", "y"):
        run = Run(folder / name)
        run.config.write(FINETUNING | {"task_data": {"directory": str(folder / "glue"), "dev": "valid"}})
        run.predictions("test").write(lines(line, {**line, "id": "1", "gold": "0"}))


EVALUATION = {
    "bits_per_byte": {
        "test split": {
            "left-to-right": dict(value=2.1, standard_error=0.1, text_hash="a", tokens=3, pieces=3, unknown=0, lowercase=False)
        }
    }
}
FLOOR = {"ltr": dict(value=2.0, exact=True, above=0.1, above_standard_error=None, standard_error=0.01)}


def write_small_study(folder: Path) -> None:
    write_study(folder, objectives_study(seeds=(1,), variants=("MLM", "LTR")), steps=300)
    for run in (Run(path) for path in folder.iterdir() if path.is_dir()):
        run.evaluation.write(EVALUATION)
        run.floor.write(FLOOR)
        run.data.write({"corpus": {"splits": {}}, "batches": {}, "objectives": {"ltr": {"asks": "tokens"}}})
        run.costs.write({"300": {"tokens": 1, "supervised": 1, "flops": 1.0, "seconds": 1.0}})
        run.stage("finetune", "package").config.write(
            {"task": "package", "metrics": {"package": "accuracy"}, "transfer": {"random": False}}
        )
        run.stage("finetune", "package").most_frequent.write({"test": {"package/accuracy": 0.4}})


def results() -> Iterator[Reader]:
    yield Reader(
        "predictions",
        write_predictions,
        lambda folder: average([folder / "x", folder / "y"]),
        1,
        ("x/predictions/test.jsonl",),
    )
    yield Reader(
        "evaluation.json",
        files(evaluation__json=json.dumps(EVALUATION)),
        lambda folder: read_evaluations(folder / "evaluation.json"),
    )
    yield Reader("study", moved(write_small_study), load, share=0.5)
    yield Reader("snapshot in an object store", write_snapshot, take_snapshot)


def write_snapshot(folder: Path) -> None:
    (folder / "run" / "checkpoints").mkdir(parents=True)
    (folder / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
    mirror = Mirror(f"file://{folder.absolute()}/bucket")
    mirror.claim()
    mirror.save(folder / "run")
    shutil.rmtree(folder / "run")


def take_snapshot(folder: Path) -> Any:
    """Into a folder beside, so that what is read stays as it is."""
    with tempfile.TemporaryDirectory() as place:
        return Mirror(f"file://{folder.absolute()}/bucket").take(Path(place) / "run")


def one_run(folder: Path) -> None:
    """A run alone, of the small study."""
    write_small_study(folder)
    kept = next(path for path in sorted(folder.iterdir()) if path.is_dir())
    for path in folder.iterdir():
        if path != kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in [*kept.iterdir()]:
        path.rename(folder / path.name)
    kept.rmdir()


READERS = [
    *(reader for group in (corpora, texts, tasks, tokenizers, weights, results) for reader in group()),
    Reader("run", moved(one_run), load, share=0.5),
]

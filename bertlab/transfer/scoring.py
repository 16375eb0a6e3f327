"""Predictions, the tasks' metrics, and baselines: the most frequent answer, and a linear model."""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertlab.data.corpora.text import read_records
from bertlab.errors import UserError
from bertlab.files import cache_directory, cached_json, json_line
from bertlab.objectives.program import Program
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.batches import Batch, by_row
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import find_kind
from bertlab.transfer.kinds.base import Kind, Line, TaskRows
from bertlab.transfer.kinds.tagging import Tagging
from bertlab.transfer.kinds.texts import Choice, OneClass, Regression
from bertlab.transfer.scorers import METRICS
from bertlab.transfer.tasks import Task, TaskData, find_task, load_task
from bertlab.transfer.tasks.base import labels_in

VERSION = 1  # of `linear_scores`: a change makes it train again
MOST = 100_000  # training examples of a linear model; all words of more would fill the memory
REACH = 2  # words on each side of a tagged one
AFFIX = 4  # letters of the longest prefix and suffix
TF_IDF = dict(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")

Tasks = Mapping[str, tuple[Task, TaskData]]  # by the name of each task's objective


def task_outputs(program: Program, tasks: Sequence[str], params: Any, batch: Batch):
    """What each task's head makes of the rows of a batch, as `Experiment.outputs`."""
    found = {}
    for name in tasks:
        made = program.call(params, name, batch, program.objectives[name].outputs)
        found[name] = {**made, "row_number": batch["row_number"]}
    return found


def build_score(
    tasks: Tasks, rows: Mapping[str, Mapping[str, TaskRows]], workdir: Path
) -> Callable[[str, Sequence[Mapping[str, Any]]], dict[str, float]]:
    """(split, outputs of its batches) -> the tasks' metrics, as `Experiment.score`. `rows` are by
    split and task; the batches have the rows of one task after the other."""
    write = prediction_writer(tasks, workdir)

    def score(split: str, outputs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        lines, begin = {}, 0
        for name, (task, data) in tasks.items():
            made, examples = rows[split][name], data.examples[split]
            own = by_row([batch[name] for batch in outputs])[begin : begin + len(made.rows)]
            lines[name] = find_kind(task.kind).predict(examples, data.names, own, made.about)
            begin += len(made.rows)
        return write(split, lines)

    return score


def prediction_writer(tasks: Tasks, workdir: Path) -> Callable[..., dict[str, float]]:
    """(split, predictions by task) -> their metrics, "TASK/METRIC"; process 0 writes classes.json
    and predictions/SPLIT.jsonl. "valid" comes before "test", whose threshold it chooses."""
    run, valid = RunDirectory(workdir), {}

    def write(split: str, predictions: Mapping[str, list[Line]]) -> dict[str, float]:
        if split == "valid":
            valid.update(predictions)
        metrics, written = {}, []
        for name, (task, data) in tasks.items():
            lines, chosen = find_kind(task.kind).finish(predictions[name], valid.get(name))
            scores = chosen | score_lines(task, data, lines)
            metrics |= {f"{name}/{metric}": value for metric, value in scores.items()}
            written += [{"task": name, **line} for line in lines]
        if jax.process_index() == 0:
            run.write("classes", {name: list(data.labels) for name, (_, data) in tasks.items()})
            path = run.path / "predictions" / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(map(json_line, written)), encoding="utf-8")
        return metrics

    return write


def score_lines(task: Task, data: TaskData, lines: Sequence[Line]) -> dict[str, float]:
    """The metrics over lines with a gold answer, for tagging the accuracy too; {} without any."""
    lines = [line for line in lines if line["gold"] is not None]
    if not lines:
        return {}
    sides = [[line[side] for line in lines] for side in ("gold", "predicted")]
    more = {
        "f1": data.names[1:2],
        "entity_f1": [data.scheme],
        "group_exact_match": [[line.get("group", number) for number, line in enumerate(lines)]],
    }
    metrics = [*task.metrics, *(["accuracy"] if task.kind == "tagging" else [])]
    return {name: float(METRICS[name](*sides, *more.get(name, ()))) for name in metrics}


def score_answers(task: Task, data: TaskData, split: str, answers: Sequence) -> dict[str, float]:
    """The metrics of an answer to each example, in the form of its label."""

    def named(label):
        if isinstance(label, tuple):
            return [data.names[number] for number in label]
        return data.names[label] if data.names and label is not None else label

    lines = [
        {"gold": named(one.label), "predicted": named(answer), "group": one.group or one.id}
        for one, answer in zip(data.examples[split], answers, strict=True)
    ]
    return score_lines(task, data, lines)


def most_frequent(tasks: Tasks, split: str) -> dict[str, float]:
    """The scores of always answering the most frequent class of train, of a text or a word."""
    found = {}
    for name, (task, data) in tasks.items():
        if isinstance(find_kind(task.kind), OneClass | Tagging):
            counts = Counter(x for one in data.examples["train"] for x in labels_in(one.label))
            number = counts.most_common(1)[0][0]
            answers = [(number,) * len(one.words) or number for one in data.examples[split]]
            scores = score_answers(task, data, split, answers)
            found |= {f"{name}/{metric}": value for metric, value in scores.items()}
    return found


def linear(tasks: Tasks) -> dict[str, dict[str, float]]:
    """Split -> the scores of the tasks' linear models. A model is trained once for all runs on the
    same examples: the cache keeps its scores."""
    found: dict[str, dict[str, float]] = {}
    for name, (task, data) in tasks.items():
        content = repr((VERSION, task.kind, task.metrics, data.digest))
        compute = functools.partial(linear_scores, task, data)
        for split, scores in cached_json(cache_directory() / "linear", content, compute).items():
            of_task = {f"{name}/{metric}": value for metric, value in scores.items()}
            found[split] = found.get(split, {}) | of_task
    return found


def linear_scores(task: Task, data: TaskData) -> dict[str, dict[str, float]]:
    """Split -> the metrics of a linear SVM (for numbers ridge regression) of the task's own labels;
    {} for kinds without one. It reads tf-idf of words and their pairs, for tags a word, its affixes
    and form, and its neighbours. The choice with the highest score wins."""
    from sklearn.compose import ColumnTransformer  # scikit-learn takes a second
    from sklearn.dummy import DummyClassifier
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    kind = find_kind(task.kind)
    if not isinstance(kind, OneClass | Regression | Tagging):
        return {}
    print(f"training a linear model on the labels of {task.name}", flush=True)
    train = data.examples["train"]
    train = train[:: -(-len(train) // MOST)]
    asked, labels = zip(*(questions(kind, example) for example in train))
    features, labels = np.array([*itertools.chain(*asked)], object), [*itertools.chain(*labels)]
    if isinstance(kind, Regression):
        model = Ridge()
    elif len(set(labels)) == 1:
        model = DummyClassifier()  # always answers the only class
    else:
        model = LinearSVC(C=0.1 if isinstance(kind, Tagging) else 1.0)
    read = DictVectorizer() if isinstance(kind, Tagging) else TfidfVectorizer(**TF_IDF)
    columns = [(str(n), read, n) for n, texts in enumerate(features.T) if any(map(len, texts))]
    reader = ColumnTransformer(columns, sparse_threshold=1)
    model = make_pipeline(reader, model).fit(features, labels)
    ask = model.decision_function if isinstance(kind, Choice) else model.predict

    found = {}
    for split in ("valid", "test"):
        asked = [questions(kind, example)[0] for example in data.examples[split]]
        answers = ask(np.array([*itertools.chain(*asked)], object))
        by_example = np.split(answers, np.cumsum([len(one) for one in asked])[:-1])
        if isinstance(kind, Tagging):
            answers = map(tuple, by_example)
        elif isinstance(kind, Choice):
            answers = map(np.argmax, by_example)
        found[split] = score_answers(task, data, split, [*answers])
    return found


def questions(kind: Kind, example: Example) -> tuple[list[tuple], list]:
    """What the model answers one by one (each word, each choice, otherwise the text or pair), as
    the columns that features are made from; and the labels."""
    if isinstance(kind, Tagging):
        return [(one,) for one in word_features(example.words)], list(example.label or ())
    if isinstance(kind, Choice):
        text = " ".join(example.texts)
        columns = [with_shared_words((text, choice)) for choice in example.choices]
        return columns, [number == example.label for number in range(len(columns))]
    return [with_shared_words(example.texts)], [example.label]


def with_shared_words(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Texts and, for a pair, the words that both have."""
    if len(texts) != 2:
        return texts
    first, second = (set(text.lower().split()) for text in texts)
    return *texts, " ".join(sorted(first & second)) or "none"


def word_features(words: Sequence[str]) -> list[dict[str, Any]]:
    """The features of each word of a sentence."""
    lower = ["<s>"] * REACH + [word.lower() for word in words] + ["</s>"] * REACH
    found = []
    for at, word in enumerate(words):
        around, own = lower[at : at + 2 * REACH + 1], lower[at + REACH]
        features = {f"word {distance}": near for distance, near in enumerate(around, -REACH)}
        features |= {"upper": word[0].isupper(), "digit": any(map(str.isdigit, word))}
        features |= {"all upper": word.isupper(), "hyphen": "-" in word}
        for size in range(1, AFFIX + 1):
            features |= {f"prefix {size}": own[:size], f"suffix {size}": own[-size:]}
        found.append(features)
    return found


def outcome(tasks: Tasks, cut: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[str, Any]:
    """What a transfer's result.json has in addition to metrics; `cut`: by split and task."""
    frequent = {split: most_frequent(tasks, split) for split in ("valid", "test")}
    frequent = {split: scores for split, scores in frequent.items() if scores}
    return {"cut": cut, "most_frequent": frequent, "linear": linear(tasks)}


def average(runs: Sequence[str | Path], workdir: str | Path) -> dict[str, Any]:
    """Averages the predictions of fine-tunings, such as ULMFiT's two directions (Howard and Ruder
    2018, section 3.3). Writes a run without a model, and returns the content of result.json."""
    runs, directory = [RunDirectory(run) for run in runs], RunDirectory(workdir)
    config, results = runs[0].config(), [run.read("result") for run in runs]
    task = find_task(config["task"])
    data, kind = load_task(task, config["task_data"]), find_kind(task.kind)
    tasks, metrics = {task.name: (task, data)}, {}
    write = prediction_writer(tasks, directory.path)
    for split in ("valid", "test"):
        paths = [run.path / "predictions" / f"{split}.jsonl" for run in runs]
        by_run = [[line for _, line in read_records(path)] for path in paths]
        asked = [[(line["task"], line["id"], line["gold"]) for line in lines] for lines in by_run]
        if asked != asked[:1] * len(runs):
            raise UserError(f"{workdir}: an average is of runs on the same examples of one task")
        lines = [kind.average(same_example, data.labels) for same_example in zip(*by_run)]
        metrics[split] = write(split, {task.name: lines})
    costs = ("tokens", "supervised", "flops", "seconds", "parameters")
    result = {
        "step": max(result["step"] for result in results),
        **{name: sum(result.get(name, 0) for result in results) for name in costs},
        "metrics": metrics,
        "data_hash": results[0]["data_hash"],
        **outcome(tasks, results[0]["cut"]),
    }
    directory.write("config", config | {"init_from": "", "averages": [str(run) for run in runs]})
    directory.write("result", result)
    return result

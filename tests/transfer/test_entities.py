"""Entity F1 in every scheme of tags against seqeval's strict mode, and tags that are in none."""

import itertools
import json
import random

import pytest
from seqeval import scheme as schemes
from seqeval.metrics import f1_score, precision_score, recall_score

from bertlab.cli import main
from bertlab.errors import UserError
from bertlab.transfer.tasks import OPTIONS, load_tasks

TYPES = ("PER", "LOC", "X-Y")
METRICS = {"entity_f1": f1_score, "entity_precision": precision_score, "entity_recall": recall_score}
TASK = 'from bertlab.transfer.tasks import conll\n\nTASK = conll("own", train="a", valid="a", test="a", metrics={})\n'


def letters(scheme, length, follows):
    """The letters of an entity's words; `follows`: it comes directly after one of the same type."""
    inside = "I" * (length - 1)
    if scheme == "IOB1":
        return ("B" if follows else "I") + inside
    if scheme == "IOB2":
        return "B" + inside
    if scheme == "IOE2":
        return inside + "E"
    begin, end, alone = {"IOBES": "BES", "BILOU": "BLU"}[scheme]
    return alone if length == 1 else begin + inside[1:] + end


def sentence(scheme, generator):
    """(Letter, type) of each word of a sentence of the scheme."""
    words = []
    for _ in range(generator.randint(1, 6)):
        kind = generator.choice((None, *TYPES[: generator.randint(1, 3)]))
        follows = bool(words) and words[-1][1] == kind
        words += [("O", None)] if kind is None else [(of, kind) for of in letters(scheme, generator.randint(1, 3), follows)]
    return words


def columns(sentences):
    return "\n".join("".join(f"w{i}\t{tag}\n" for i, tag in enumerate(tags)) for tags in sentences)


FORMS = ("{letter}-{kind}", "{letter}_{kind}", "{kind}-{letter}")
SCHEMES = ("IOB1", "IOB2", "IOE2", "IOBES", "BILOU")


# Tags without letters are as if all had I of IOB1.
@pytest.mark.parametrize(("scheme", "form"), [*itertools.product(SCHEMES, FORMS), ("IOB1", "{kind}")])
def test_scores_are_those_of_seqevals_strict_mode(scheme, form, tmp_path, capsys):
    generator = random.Random(f"{scheme} {form}")
    outside = generator.choice("O0")
    spelt = lambda letter, kind: outside if kind is None else form.format(letter=letter, kind=kind)
    gold = [sentence(scheme, generator) for _ in range(150)]
    known = sorted({word for words in gold for word in words}, key=str)
    # A third of the words have any tag at all, so most sentences break the scheme.
    guess = [[generator.choice(known) if generator.random() < 0.3 else word for word in words] for words in gold]
    (tmp_path / "own.py").write_text(TASK.format(tuple(METRICS)))
    (tmp_path / "a").write_text(columns([[spelt(*word) for word in words] for words in gold]))
    for run in "xy":
        (tmp_path / run / "predictions").mkdir(parents=True)
        (tmp_path / run / "config.json").write_text(json.dumps({"task": str(tmp_path / "own.py"), "task_data": OPTIONS}))
        lines = [
            {"id": str(i), "gold": [*map(spelt, *zip(*one))], "predicted": [*map(spelt, *zip(*other))], "probabilities": []}
            for i, (one, other) in enumerate(zip(gold, guess))
        ]
        (tmp_path / run / "predictions" / "test.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert main(["average", str(tmp_path / "x"), str(tmp_path / "y"), f"--task={tmp_path / 'own.py'}", "--json"]) in (0, None)
    found = json.loads(capsys.readouterr().out)[str(tmp_path / "x")]
    read = lambda words: ["O" if kind is None else f"{'I' if form == '{kind}' else letter}-{kind}" for letter, kind in words]
    sides = [*map(read, gold)], [*map(read, guess)]
    expected = {name: of(*sides, mode="strict", scheme=getattr(schemes, scheme)) for name, of in METRICS.items()}
    assert found == pytest.approx(expected) and 0.1 < found["entity_f1"] < 0.9


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("DET NOUN VERB", "NOUN VERB NOUN", "task 'own': its tags DET, NOUN, VERB say no entities"),
        ("B-PER M-PER E-PER O", "B-PER E-PER O O", "its tags B-PER, E-PER, M-PER, O say no entities"),
        ("B-PER I-PER O 0", "O O O", "its tags 0, B-PER, I-PER, O say no entities"),
        ("B-PER I-PER S-PER L-PER O", "O O O", "its tags B-PER, I-PER, L-PER, O, S-PER say no entities"),
        ("PER LOC O", "PER B-LOC O", "its tags B-LOC, LOC, O, PER say no entities"),
        ("0 1 2 0", "0 1 2", "tags 0, 1, 2 say no entities"),
        ("B-PER I-PER O O", "O I-LOC I-LOC", r"2 of 14 tags in entities break IOB2 and are none: .*/b:3: 'I-LOC'"),
    ],
)
def test_tags_that_are_in_no_scheme_are_refused_and_named(train, test, message, tmp_path):
    (tmp_path / "own.py").write_text(TASK.replace('test="a"', 'test="b"').format(("entity_f1",)))
    (tmp_path / "a").write_text(columns([train.split()] * 3))
    (tmp_path / "b").write_text("\n" + columns([test.split()]))
    with pytest.raises(UserError, match=message):
        load_tasks(str(tmp_path / "own.py"), {})


@pytest.mark.usefixtures("quick_compilation")
def test_a_model_that_learnt_nothing_finds_no_entities_and_tags_that_train_lacks_are_wrong(bert_run, tmp_path, capsys):
    """Raw tags with 0 outside, of a built-in task, whose test file has a type more."""
    train = ["PER PER 0 0 LOC 0".split()] * 30
    test = ["PER PER 0 0 LOC 0".split()] * 3 + ["0 MISC MISC".split()]
    for file, sentences in (("eng.train", train), ("eng.testa", train[:5]), ("eng.testb", test)):
        (tmp_path / file).write_text(columns(sentences))
    ask = ["finetune", f"--run={bert_run}", "--task=ner", f"--config.task_data.directory={tmp_path}"]
    settings = ["train.steps=1", "data.seq_len=24", "data.batch_size=8", "mesh.data=1", "optimizer.learning_rate=1e-9"]
    assert main([*ask, *(f"--config.{one}" for one in settings), f"--workdir={tmp_path / 'run'}"]) in (0, None)
    assert "ner: 2 words of test have a tag that train lacks (MISC) and count as wrong" in capsys.readouterr().out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    metrics = result["metrics"]
    assert metrics["valid"]["ner/entity_f1"] < 0.5 and result["unseen_tags"] == {"test": {"ner": 2}}
    lines = [json.loads(line) for line in (tmp_path / "run" / "predictions" / "test.jsonl").read_text().splitlines()]
    assert lines[-1]["gold"] == ["0", "MISC", "MISC"] and "MISC" not in lines[-1]["predicted"]
    right = [one == other for line in lines for one, other in zip(line["gold"], line["predicted"], strict=True)]
    assert metrics["test"]["ner/accuracy"] == pytest.approx(sum(right) / 21)

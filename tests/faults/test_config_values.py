"""Every config key with values that it cannot have: refused on the command line before anything is built, by name.

The keys come from the tables (`bertlab.keys.KEYS`, of fine-tunings, of tasks, and the settings of every objective), and so do
the values: of another type, out of range, not among the choices; and names that are misspelt.
"""

import re
import sys

import pytest

from bertlab import cli
from bertlab.config import add_objectives, base_config, load_config
from bertlab.data.prepare import LocalBackend
from bertlab.data.synthetic import language
from bertlab.errors import UserError
from bertlab.keys import KEYS, settings_of
from bertlab.objectives import REGISTRY
from bertlab.run import Run
from bertlab.train.checks import check_config
from bertlab.transfer.finetune import KEYS as FINETUNING
from bertlab.transfer.finetune import finetune
from bertlab.transfer.tasks.base import KEYS as TASK_DATA
from tests.conftest import ROOT
from tests.faults.readers import TASK_FILES, files
from tests.test_keys import outside

BERT = f"{ROOT}/experiments/pretrain/bert.py:objectives=mlm"
ELMO = f"{ROOT}/experiments/pretrain/elmo.py:tokens=characters"
OF_TYPE = {
    int: ("many", "", "1.5", "1e3", "0x10", "[1]", "True", "nan", "1 2", "١.٥", "7" * 5000),
    float: ("many", "", "nan", "inf", "-inf", "1e999", "1,5", "[1]", "None", "--1"),
    bool: ("maybe", "", "2", "-1", "None", "[True]"),
    tuple: ("many", "", "5", "(1", "None", "[" * 2000, "()()", "open('x')"),
    dict: ("many", "", "5", "{}", "None"),
    str: (),
}
# What else is wrong, for keys that hold text or several values: (value, other arguments that give it its effect).
TUPLES = [("(1,)",), ("('a', 'b')",), ("(9, 3)",), ("(0, 5)",), ("(1, 2, 3)",), ("(1.5, 2)",), ("()",)]
SYNTHETIC = ["--config.data.corpus=synthetic"]
PARTICULAR = {
    "data.corpus": [("clouds",), ("text:",), ("text:nothing/*.txt",), ("tfds:",), ("",)],
    "data.directory": [("/proc/cache",), ("{root}/file/cache",)],
    "data.tokenizer.path": [("nowhere",), ("{root}/file",)],
    "data.buckets": [("(64, 32)",), ("('a',)",), ("(0,)",), ("(32, 4096)",), ("(None,)",), ("((8, 16),)",)],
    "data.synthetic.sentence_words": [(value, *SYNTHETIC) for (value,) in TUPLES],
    "data.synthetic.document_sentences": [(value, *SYNTHETIC) for (value,) in TUPLES],
    "init_from": [("nowhere",), ("{root}",)],
    "model.size": [("enormous",), ("",)],
    "model.filters": [
        ("(1,)",),
        ("()",),
        ("((1, 'a'),)",),
        ("((0, 5),)",),
        ("((51, 5),)",),
        ("((1, 2, 3),)",),
        ("((1, 10**9),)",),
    ],
    "optimizer.decay_exclude": [("(",), ("*",)],
    "optimizer.frozen": [("(",), ("*",)],
    "optimizer.group_rates": [("fast",), ("1,,2",), ("nan,1",), ("-1,1",)],
    "lora.targets": [("(", "--config.lora.rank=2"), ("*", "--config.lora.rank=2")],
    "train.budget": [("much",), ("tokens",), ("tokens=",), ("tokens=nan",), ("tokens=-5",), ("tokens=inf",), ("miles=5",)],
    "train.phases": [
        ("often",),
        ("1.5",),
        ("0.5",),
        ("1 data.seq_len",),
        ("1 data.seq_len=4",),
        ("1 model.width=8",),
        (";",),
        ("nan",),
    ],
    "train.keep": [("sometimes",), ("-5",), ("1.5",), ("9" * 5000,), ("5000000",)],
    "evaluate.words": [("nowhere.tsv",), ("{root}",)],
    "evaluate.analogies": [("nowhere.txt",), ("{root}",)],
    "evaluate.word_text": [("nowhere.txt",)],
    "evaluate.minimal_pairs": [("nowhere.jsonl",), ("{root}/file",), ("{root}",)],
    "writers": [("paper",), ("jsonl,paper",)],
}


def wrong_values(key):
    """(Value as text, other arguments) that a key cannot have."""
    kind = key.default if key.unset else type(key.default)
    no_choice = [""] if key.choices and not key.several else []
    plain = [*OF_TYPE.get(kind, ()), *map(str, outside(key)), *no_choice]
    return [(value,) for value in plain] + PARTICULAR.get(key.name, [])


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """A function (arguments of `bertlab train`) -> what it says; the test fails if anything is built or the status is not 2."""
    (tmp_path / "file").write_text("a text\n")
    (tmp_path / "text.txt").write_text("a text\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])

    def built(*arguments, **keywords):
        raise AssertionError("something was built")

    monkeypatch.setattr(LocalBackend, "find_splits", built)

    def run(*arguments, config=BERT):
        usual = [
            f"--config.data.corpus=text:{tmp_path}/text.txt",
            f"--config.data.directory={tmp_path}/cache",
            "--config.mesh.data=1",
        ]
        given = [argument.format(root=tmp_path) if "{root}" in argument else argument for argument in arguments]
        assert cli.main(["train", f"--config={config}", f"--workdir={tmp_path}/run", *usual, *given]) == 2, given
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and said.startswith("bertlab train: "), said
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "text.txt"], said
        return said

    return run


def test_there_are_values_for_every_key(record_property):
    values = {key.name: len(wrong_values(key)) for key in KEYS}
    assert [key.name for key in KEYS if not values[key.name] and not key.name.startswith("data.tfds.")] == []
    record_property("keys", len(values))
    record_property("values", sum(values.values()))
    print(f"{len(values)} keys, {sum(values.values())} values")


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_a_value_that_a_key_cannot_have_is_refused_on_the_command_line(key, command):
    for value, *others in wrong_values(key):
        said = command(f"--config.{key.name}={value}", *others, config=ELMO if key.name == "model.filters" else BERT)
        named = f"config.{key.name}" in said or (key.name == "evaluate.minimal_pairs" and "file, line 1" in said)
        assert named, said


BILLION = 10**9
# Whole numbers that can be so large: seeds, times that may never come, and what only the text bounds.
HARMLESS = {"seed", "data.seed", "data.tokenizer.seed", "data.synthetic.seed", "data.dupe_factor", "data.unique_tokens"}
HARMLESS |= {"data.tokenizer.sample_sentences", "data.cooccurrence.window", "evaluate.sentences", "evaluate.pairs", "init_step"}
HARMLESS |= {f"train.{leaf}" for leaf in ("steps", "log_every", "eval_every", "eval_batches", "checkpoint_every")}
HARMLESS |= {"train.keep_checkpoints", "profile", "model.output_rows", "model.base_width", "model.local_window"}
HARMLESS |= {f"optimizer.{leaf}" for leaf in ("average_after", "average_again", "thaw_steps", "thaw_stages")}
HARMLESS |= {"model.global_every", "optimizer.warmup_steps", "optimizer.cooldown_steps"}
# Refused with the text and the vocabulary in hand, before the state is made (`check_memory`); shards, by the batch.
LATER = {f"model.{leaf}" for leaf in ("max_positions", "position_offset", "segments", "character_width")}
LATER |= {"lora.rank", "data.shards"}
SIZES = [key for key in KEYS if int in (key.default, type(key.default)) and key.name not in HARMLESS | LATER]


@pytest.mark.parametrize("key", SIZES, ids=lambda key: key.name)
def test_a_size_for_which_no_machine_has_memory_or_time_is_refused(key, command):
    """The bounds in the table are not asked."""
    config = ELMO if key.name.startswith(("model.highway", "model.character")) else BERT
    effect = [f"--config.{of.partition(' or ')[0]}" for of in key.conditions if "=" in of]
    effect += ["--config.data.pack_length=512"] * (key.name == "data.pack_examples")
    said = command(*effect, f"--config.{key.name}={BILLION}", config=config)
    assert f"config.{key.group}" in said and str(BILLION) in said, said
    assert "no effect" not in said, said


@pytest.mark.parametrize(
    "sizes",
    [
        {"model.position_encoding": "sinusoidal", "data.seq_len": BILLION},
        {"data.corpus": "synthetic", "data.synthetic.sentence_words": (4, BILLION)},
        {"data.corpus": "synthetic", "data.synthetic.document_sentences": (4, BILLION)},
        {"data.batch_size": 2**22, "data.seq_len": 2**9, "data.tokenizer.kind": "words", "data.characters": True},
    ],
    ids=str,
)
def test_sizes_that_together_exceed_the_memory_are_refused(sizes, command, monkeypatch):
    monkeypatch.setattr("bertlab.train.checks.memory_of_machine", lambda: 2**35)
    said = command(*(f"--config.{name}={value}" for name, value in sizes.items()))
    assert "there are 32 GiB" in said or f"(4, {BILLION})" in said, said


def test_tables_of_the_synthetic_language_that_exceed_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr("bertlab.data.synthetic.memory_of_machine", lambda: 8 * 10 * (4 * 11 + 64))
    language(states=10)
    with pytest.raises(UserError, match=r"config\.data\.synthetic\.states=10 .*topics=4 .*vocab_size=65"):
        language(states=10, vocab_size=65)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_a_misspelt_key_is_refused_with_the_right_one(key, command):
    group, leaf = key.group, key.leaf
    for wrong in (f"{leaf}x", leaf[:-1] + "~", f"{leaf}.more", leaf.upper(), f" {leaf}"):
        name = ".".join(filter(None, (group, wrong)))
        said = command(f"--config.{name}=1")
        assert f"--config.{name}" in said, said
        assert key.name in said or wrong in (leaf.upper(), f" {leaf}"), said
    assert f"--config.{key.name}: write it as" in command(f"--config.{key.name}")


@pytest.mark.parametrize(
    "name", ["", ".", "train.", ".steps", "train..steps", "train", "data.tokenizer", "objectives.", "objectives.mlm"]
)
def test_what_is_no_key_is_refused(name, command):
    assert f"config.{name}" in command(f"--config.{name}=5")


SETTINGS = [(name, key) for name, kind in REGISTRY.items() for key in settings_of(kind)]


@pytest.mark.parametrize(("name", "key"), SETTINGS, ids=lambda value: getattr(value, "name", value))
def test_a_value_that_an_objective_s_setting_cannot_have_is_refused(name, key):
    for value, *_ in wrong_values(key):
        with pytest.raises(UserError, match=rf"config\.objectives\.{name}[.:].*{key.name}") as refusal:
            check_config(
                load_config(
                    f"{ROOT}/experiments/pretrain/bert.py:objectives={name}",
                    argv=[f"--config.objectives.{name}.{key.name}={value}"],
                )
            )
        assert "\n" not in str(refusal.value)


@pytest.fixture(scope="module")
def no_run(tmp_path_factory):
    """A directory with the config of a pretraining, and nothing else."""
    run = Run(tmp_path_factory.mktemp("pretrained") / "run")
    config = base_config()
    add_objectives(config, "mlm")
    run.config.write(config.to_dict())
    return run.directory


@pytest.mark.parametrize("key", [*FINETUNING, *TASK_DATA], ids=lambda key: key.name)
def test_a_value_that_a_fine_tuning_s_key_cannot_have_is_refused(key, no_run, tmp_path):
    values = [value for value, *_ in wrong_values(key)] + ["nowhere"] * (key.name == "task_data.directory")
    files(**TASK_FILES["sst2"])(tmp_path)
    for value in values:
        with pytest.raises(UserError, match=rf"config\.{re.escape(key.name)}") as refusal:
            finetune(no_run, "sst2", tmp_path / "out", {"task_data.directory": str(tmp_path), key.name: value})
        assert "\n" not in str(refusal.value) and not (tmp_path / "out").exists()

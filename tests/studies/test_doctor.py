import copy
import io
import json

import pytest
from conftest import objectives_study, write_json, write_lines, write_run, write_study
from rich.console import Console

from bertlab.cli import main
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies import doctor as module
from bertlab.studies.doctor import CHECKS, CannotTell, Facts, Finding, doctor, examine, read_facts

ENTROPY = 6.0
CONFIG = {
    "data": {"format": "segment_pair", "seq_len": 128},
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 100, "clip_norm": 1.0, "gradient_scale": 1.0},
    "train": {"steps": 1000},
}
SPLIT = {
    "documents": 1000,
    "sentences": 10_000,
    "tokens": 200_000,
    "bytes": 900_000,
    "unknown": 0,
    "duplicate_sentences": 300,
    "duplicate_documents": 0,
}
DATA = {
    "corpus": {
        "tokenizer": "unigram",
        "vocab_size": 8192,
        "unigram_entropy": ENTROPY,
        "splits": {"train": SPLIT, "valid": SPLIT | {"sentences_in_train": 200, "documents_in_train": 0}},
    },
    "batches": {
        "valid": {"rows": 640, "positions": 1000, "tokens": 800, "pair_label": {"rows": 640, "share": 0.5, "length_rule": 0.6}}
    },
    "objectives": {
        "mlm": {"asks": "tokens", "labels": None, "guessing": ENTROPY},
        "nsp": {"asks": "pairs", "labels": "pair_label", "guessing": 0.693},
    },
}


def healthy() -> Facts:
    """A run of 1,000 steps that did well."""
    lines = []
    for step in range(0, 1001, 100):
        losses = {"mlm/loss": 9.0 - 0.004 * step, "nsp/loss": 0.5, "nsp/accuracy": 0.75}
        more = {"learning_rate": 1e-3 * (1 - step / 1000), "gradient_norm": 1.7, "tokens_per_second": 5000.0}
        axes = {"step": step, "tokens": 500 * step}
        if step:
            lines.append(axes | {"split": "train"} | losses | more)
        lines.append(axes | {"split": "valid"} | losses | {"learning_rate": 0.0, "tokens_per_second": 0.0})
    floor = {"mlm": {"value": 3.0, "standard_error": 0.1, "exact": True, "above": 2.0, "above_standard_error": 0.1}}
    return copy.deepcopy(Facts(module.Path("run"), CONFIG, lines, {"step": 1000}, DATA, floor, damages=[]))


def found_in(facts: Facts) -> dict[str, str]:
    return {title: str(outcome) for title, outcome in examine(facts).items() if isinstance(outcome, Finding)}


def changed(*changes: dict) -> Facts:
    """The healthy run with other values, by path: {"valid.-1.mlm/loss": 5.0}; a part that is * is every line."""
    facts = healthy()
    for path, value in [item for change in changes for item in change.items()]:
        *parents, last = path.split(".")
        nodes = [getattr(facts, parents[0])] if parents else []
        for part in parents[1:]:
            if part == "*":
                nodes = [line for node in nodes for line in node]
            else:
                nodes = [node[int(part) if isinstance(node, list) else part] for node in nodes]
        for node in nodes:
            node[last] = value
        if not parents:
            object.__setattr__(facts, last, value)
    return facts


def phases(text, **objectives):
    """A curriculum of objectives of weight 1 and what else is given of them, as config.json has it. All chosen are [MASK]."""
    entry = {"weight": 1.0, "final_weight": None, "final_rate": 0.0}
    entries = {"mlm": entry | {"mask_share": 1.0, "random_share": 0.0}, "nsp": entry}
    given = {name: entry | objectives.get(name, {}) for name, entry in entries.items()}
    return {"config.objectives": given, "config.train.phases": text}


def test_a_healthy_run_passes_every_check():
    assert set(examine(healthy()).values()) == {None}


def mlm(loss, lines="*"):
    """The held-out and the training loss of every line, or of the last (-1)."""
    return {f"valid.{lines}.mlm/loss": loss, f"train.{lines}.mlm/loss": loss}


STUCK, RISING = mlm(0.975 * ENTROPY), mlm(5.52, -1)
APART = {"train.-1.mlm/loss": 4.5}
PAIRS, SPLITS = "data.batches.valid.pair_label", "data.corpus.splits"
ACCURACY, RATE, NORM, SPEED = "valid.-1.nsp/accuracy", "train.*.learning_rate", "gradient_norm", "tokens_per_second"
BERTS = {"mask_share": 0.8, "random_share": 0.1}
HALVES = phases("0.5 data.seq_len=64; 0.5")
BELOW = lambda nats: {"floor.mlm.above": nats, "floor.mlm.above_standard_error": 0.0, "floor.mlm.standard_error": 0.0}
RISING_RATES = {f"train.{i}.learning_rate": 1e-4 * (i + 1) for i in range(10)}
# title: (what provokes the finding, what its sentence holds, a change almost as large that must not, changes of both ...)
CASES = {
    "files are as they were written": [({"damages": ["a is damaged (b)"]}, "a is damaged (b); restore these files", {})],
    "run finished": [({"result": None}, "is at step 1,000 of 1,000", {})],
    "learned more than token frequencies": [
        (STUCK, "mlm (5.850 nats) is no better than guessing by token frequency, which costs 6.000", mlm(0.965 * ENTROPY)),
        (mlm(1.2 * ENTROPY), "init_stddev", mlm(0.98 * ENTROPY) | {"floor.mlm.value": 0.975 * ENTROPY}),
        (mlm(0.9 * ENTROPY), "costs 5.400 to 5.539 nats to a model that copies", mlm(0.89 * ENTROPY), phases("", mlm=BERTS)),
        (
            phases("0.8 data.seq_len=64; 0.2 objectives.nsp.weight=0"),
            "mlm (5.850 nats)",
            phases("0.5 objectives.nsp.weight=0; 0.5 objectives.mlm.weight=0"),
            STUCK,
        ),
        (
            phases("0.7 objectives.mlm.weight=0; 0.3 objectives.nsp.weight=0"),
            "mlm (5.850 nats)",
            phases("0.71 objectives.mlm.weight=0; 0.29 objectives.nsp.weight=0"),
            STUCK,
        ),
        ({"config.model": {"family": "awd_lstm"}}, "little else; try another", phases("", mlm={"weight": 0.0}), STUCK),
    ],
    "pair labels learned beyond lengths": [
        ({ACCURACY: 0.53}, "53.0% on 640 pairs", {ACCURACY: 0.64}),
        ({ACCURACY: 0.545}, "lengths scores 60.0%", {ACCURACY: 0.645}),
        ({f"{PAIRS}.share": 0.26}, "74.0%", {f"{PAIRS}.share": 0.31}),
        ({f"{PAIRS}.length_rule": 0.74}, "74.0%", {f"{PAIRS}.length_rule": 0.7}),
        (
            phases("1", nsp={"weight": 0.0, "final_weight": 1.0}),
            "at chance",
            phases("0.5 data.seq_len=64; 0.5 objectives.nsp.weight=0"),
            {ACCURACY: 0.5},
        ),
        ({"floor.nsp": {"value": 0.6}}, "at chance", {"floor.nsp": {"value": 0.69}}, {ACCURACY: 0.53}),
        ({f"{PAIRS}.rows": 200}, "on 200 pairs", {f"{PAIRS}.rows": 199}, {ACCURACY: 0.53}),
    ],
    "held-out loss not rising": [
        (
            phases("0.3 objectives.mlm.weight=0; 0.7 data.seq_len=64"),
            "mlm was 5.400 at step 900",
            phases("0.9 data.seq_len=64; 0.1 objectives.mlm.weight=0"),
            RISING,
        ),
        (phases("1", mlm={"final_weight": 0.1}), "rose", phases("1 objectives.mlm.final_weight=0"), RISING),
        (  # a loss that was lower before its objective was left out for a while does not count
            {"valid.8.mlm/loss": 4.8, **phases("0.7 objectives.mlm.weight=0; 0.3")},
            "mlm was 4.800 at step 800",
            {"valid.5.mlm/loss": 2.0, **phases("0.5; 0.2 objectives.mlm.weight=0; 0.3")},
        ),
        ({}, "rose", {"config.optimizer.warmup_steps": 501}, RISING),
        (RISING, "mlm was 5.400 at step 900 and rose to 5.520 by step 1,000", mlm(5.5, -1)),
    ],
    "little padding": [
        ({"data.batches.valid.tokens": 690}, "31% of the positions", {"data.batches.valid.tokens": 710}),
    ],
    "little repeated text": [
        (
            {f"{SPLITS}.train.duplicate_sentences": 1100},
            "11.0% of the 10,000 sentences of the train split repeat",
            {f"{SPLITS}.train.duplicate_sentences": 900},
        ),
        (
            {"config.data.corpus": "pydocs"},
            "11.0% of the 10,000 sentences of the valid split are in the train split too",
            {"config.data.corpus": "synthetic"},
            {f"{SPLITS}.valid.sentences_in_train": 1100},
        ),
        (
            {f"{SPLITS}.valid.duplicate_documents": 11},
            "1.1% of the 1,000 documents of the valid split repeat",
            {f"{SPLITS}.valid.duplicate_documents": 9},
        ),
        (
            {f"{SPLITS}.valid.documents_in_train": 11},
            "1.1% of the 1,000 documents of the valid split are in the train split too",
            {f"{SPLITS}.valid.documents_in_train": 9},
        ),
    ],
    "few unknown tokens": [
        ({f"{SPLITS}.valid.unknown": 2200}, "1.1% of the tokens of the valid split are", {f"{SPLITS}.valid.unknown": 1800}),
        (
            {f"{SPLITS}.train.unknown": 10200},
            "5.1% of the tokens of the train split",
            {f"{SPLITS}.train.unknown": 9800},
            {"data.corpus.tokenizer": "words"},
        ),
        (
            {f"{SPLITS}.valid.unknown": 2200, "config.data.tokenizer": {"path": "vocab.txt"}},
            "; the tokenizer of config.data.tokenizer.path",
            {},
        ),
    ],
    "loss not below its floor": [
        ({"floor.mlm.above": -0.31}, "mlm (0.3100 nats below, standard error 0.1000)", {"floor.mlm.above": -0.29}),
        (BELOW(-0.0002), "leak", BELOW(-1e-6)),
    ],
    "loss not next to nothing": [(mlm(0.009), "mlm (0.009 nats)", mlm(0.011))],
    "held-out loss near training loss": [
        (APART, "mlm 5.000 against 4.500, after 2.5 readings", {"train.-1.mlm/loss": 4.56}),
        (
            {"train.-1.nsp/loss": 0.39, "train.-1.tokens": 300000},
            "nsp 0.500 against 0.390, but the text was read only 1.5 times",
            {"train.-1.nsp/loss": 0.41},
        ),
        # A last window of ten steps is noise.
        ({"train.-1.step": 950}, "5.000 against 4.400", {"train.-1.step": 910}, {"train.-1.mlm/loss": 4.4}),
        # Training may have gone on since held-out text was last read.
        ({"train.8.mlm/loss": 4.8}, "5.400 against 4.800", APART, {"valid": healthy().valid[:-1]}),
        ({}, "5.000 against 4.500", {"result": None}, APART, phases("", mlm={"final_rate": 0.3})),
        ({}, "5.000 against 4.500", {"config.data.format": "cooccurrence"}, APART),
    ],
    "learning rate past its warm-up": [
        ({"train.-1.learning_rate": 0.001}, "config.optimizer.warmup_steps=100", {RATE: 0.001}),
        (RISING_RATES, "still rising at the end (step 1,000, 0.001)", RISING_RATES | {"result": None}),
        ({RATE: 0.0}, "was 0 in every", {}),
    ],
    "gradients not always clipped": [
        ({f"train.*.{NORM}": 10.1}, "never fell below 10.1", {f"train.*.{NORM}": 9.9}),
        ({"config.optimizer.gradient_scale": 20.0}, "34 times", {f"train.*.{NORM}": 20.0, f"train.6.{NORM}": 5.0}),
    ],
    "gradients not exploding": [
        ({f"train.4.{NORM}": 17.1}, "17.1 in the log line of step 500", {f"train.4.{NORM}": 16.9}),
        ({f"train.9.{NORM}": 900.0}, "900", {f"train.0.{NORM}": 900.0}),
        ({f"train.7.{NORM}": 17.1}, "17.1", {f"train.{i}.{NORM}": 17.1 for i in range(5)}, HALVES),
    ],
    "steady throughput": [
        ({f"train.5.{SPEED}": 1600.0}, "between steps 500 and 600 training ran at 1,600", {f"train.5.{SPEED}": 1700.0}),
        # The first window fills caches, and the last may be a single step.
        ({f"train.1.{SPEED}": 800.0}, "between steps 100 and 200 training ran at 800", {f"train.0.{SPEED}": 800.0}),
        ({"train.9.step": 950}, "between steps 900 and 950", {"train.9.step": 949}, {f"train.9.{SPEED}": 800.0}),
        # Phases cost and weigh differently.
        ({f"train.3.{SPEED}": 800.0}, "steps 300 and 400", {f"train.{i}.{SPEED}": 800.0 for i in range(5)}, HALVES),
    ],
}


@pytest.mark.parametrize(("title", "case"), [(title, case) for title in CASES for case in CASES[title]])
def test_a_finding_is_provoked_and_just_not(title, case):
    wrong, sentence, right, *both = case
    found = found_in(changed(*both, wrong))
    assert list(found) == [title] and sentence in found[title]
    assert title not in found_in(changed(*both, right))


def test_every_check_has_a_case():
    assert set(CASES) == set(CHECKS)


@pytest.mark.parametrize(
    ("step", "warmup", "told"), [(300, 100, True), (299, 100, False), (900, 500, False), (1000, 500, True)]
)
def test_nothing_is_expected_of_a_run_too_early(step, warmup, told):
    losses = {"valid.*.mlm/loss": ENTROPY, "valid.*.nsp/accuracy": 0.5}
    outcomes = examine(changed({"valid.*.step": step, "config.optimizer.warmup_steps": warmup}, losses))
    for title in ("learned more than token frequencies", "pair labels learned beyond lengths"):
        assert isinstance(outcomes[title], Finding if told else CannotTell)


def test_what_was_not_recorded_is_not_judged():
    nothing = {"data": None, "floor": None}
    missing = {title: str(outcome) for title, outcome in examine(changed(nothing)).items() if outcome is not None}
    assert list(missing) == [
        "learned more than token frequencies",
        "pair labels learned beyond lengths",
        "little padding",
        "little repeated text",
        "few unknown tokens",
        "loss not below its floor",
        "loss not next to nothing",
        "held-out loss not rising",
    ]
    assert "data.json" in missing["little padding"] and "floor.json" in missing["loss not below its floor"]
    # Overfitting is seen without it, though not how often the text was read.
    assert list(found_in(changed(nothing, {"train.-1.mlm/loss": 3.0}))) == ["held-out loss near training loss"]


def test_no_model_is_past_guessing_if_its_cost_is_not_known():
    outcome = examine(changed({"data.objectives.mlm.guessing": None}))["learned more than token frequencies"]
    assert isinstance(outcome, CannotTell) and str(outcome) == "what guessing costs is not known of mlm"


def test_a_run_of_no_words_and_no_pairs_has_less_to_check():
    facts = changed({"data.objectives": {}, "config.optimizer.clip_norm": 0.0})
    del facts.data["batches"]["valid"]["pair_label"]
    for line in facts.lines:
        line["glove/loss"] = line.pop("mlm/loss")
    cannot = [title for title, outcome in examine(facts).items() if isinstance(outcome, CannotTell)]
    assert cannot == [
        "learned more than token frequencies",
        "pair labels learned beyond lengths",
        "loss not next to nothing",
        "held-out loss not rising",
        "gradients not always clipped",
    ]


def test_what_no_longer_has_weight_is_named():
    facts = changed(phases("0.5; 0.5 objectives.mlm.weight=0"))
    reason = "mlm had no weight in the loss at step 1,000"
    outcomes = {title: str(outcome) for title, outcome in examine(facts).items() if outcome is not None}
    assert outcomes == dict.fromkeys(("learned more than token frequencies", "held-out loss not rising"), reason)
    # A run that stands in its first phase is judged by that.
    del facts.lines[12:]
    facts = Facts(facts.directory, facts.config, facts.lines, None, facts.data)
    assert facts.held_out["step"] == 500 and isinstance(examine(facts)["learned more than token frequencies"], Finding)


@pytest.mark.parametrize(("lines", "told"), [(5, True), (4, False)])
def test_few_log_windows_tell_nothing(lines, told):
    facts = changed({"train.2.tokens_per_second": 1.0})
    del facts.train[lines:]
    outcome = examine(facts)["steady throughput"]
    assert isinstance(outcome, Finding if told else CannotTell)
    assert told or "has 4 training line(s) of a phase with tokens_per_second, and 5 are needed" in str(outcome)


def printed(directory, width=100) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=width)
    return len(doctor(directory, console)["findings"]), console.file.getvalue()


def write(directory, facts):
    directory.mkdir(exist_ok=True)
    for name in ("config", "result", "data", "floor"):
        if getattr(facts, name) is not None:
            write_json(directory / f"{name}.json", getattr(facts, name))
    write_lines(directory / "metrics.jsonl", facts.lines)
    Run(directory).list_files()
    return directory


def test_what_is_printed_and_the_exit_code(tmp_path, capsys):
    assert main(["doctor", str(write(tmp_path / "good", healthy()))]) == 0
    assert f"0 finding(s), {len(CHECKS)} check(s) passed, 0 not checked" in capsys.readouterr().out
    run = write(tmp_path / "bad", changed({"data.corpus.splits.train.unknown": 20_000, "floor": None}))
    assert main(["doctor", str(run)]) == 1
    capsys.readouterr()
    for width in (40, 80, 200):
        findings, text = printed(run, width)
        words = " ".join(text.split())
        assert findings == 1 and words.startswith(
            "✗ 10.0% of the tokens of the train split are [UNK], with 8,192 pieces of kind 'unigram'"
        )
        assert "✓ steady throughput" in words and "– not checked, because floor.json is missing" in words
        assert max(map(len, text.splitlines())) <= width


def test_runs_as_they_are_found(tmp_path, capsys):
    write_run(tmp_path / "older", "MLM", 1)
    assert printed(tmp_path / "older")[0] == 0
    write_run(tmp_path / "begun", "MLM", 1, finished=False)
    assert "result.json is missing: the run is at step 1,500 of 1,500" in " ".join(printed(tmp_path / "begun")[1].split())
    (tmp_path / "begun" / "failed.txt").write_text("Traceback\n\nDiverged: mlm/loss is not finite.\n")
    findings, text = printed(tmp_path / "begun", 200)
    assert findings == 1 and "the run failed at step 1,500 of 1,500: Diverged: mlm/loss is not finite; fix" in text
    (tmp_path / "begun" / "failed.txt").rename(tmp_path / "begun" / "diverged.txt")  # as `bertlab train` writes it
    assert "Diverged: mlm/loss is not finite; fix" in printed(tmp_path / "begun", 200)[1]
    imported = tmp_path / "imported"
    imported.mkdir()
    write_json(imported / "config.json", {"model": {"family": "bert"}})
    write_json(imported / "imported.json", {})
    findings, text = printed(imported)
    assert findings == 0 and f"0 check(s) passed, {len(CHECKS)} not checked" in text
    write_run(tmp_path / "none", "No pretraining", 1)
    assert printed(tmp_path / "none")[0] == 0
    (tmp_path / "only_log").mkdir()
    write_lines(tmp_path / "only_log" / "metrics.jsonl", [{"step": 0, "split": "valid", "loss": 1.0}])
    assert printed(tmp_path / "only_log")[0] == 1
    capsys.readouterr()


def test_numbers_that_were_not_finite_are_not_judged(tmp_path):
    """JSON has null for them."""
    lost = [f"{split}.5.{key}" for split in ("train", "valid") for key in ("mlm/loss", "nsp/accuracy", "learning_rate")]
    run = write(tmp_path / "run", changed(dict.fromkeys([*lost, f"train.5.{NORM}", f"train.5.{SPEED}"])))
    assert main(["doctor", str(run)]) == 0


def test_what_is_no_run_is_refused(tmp_path, capsys):
    with pytest.raises(UserError, match="absent is not a run"):
        read_facts(tmp_path / "absent")
    assert main(["doctor", str(tmp_path)]) == 2
    assert "is not a run: it has neither config.json nor metrics.jsonl" in capsys.readouterr().err
    study = write_study(tmp_path / "study", objectives_study((1,), ("MLM",)))
    with pytest.raises(UserError, match=r"holds a study; give one of its runs, such as .*mlm-seed=1"):
        read_facts(study)
    (study / "mlm-seed=1" / "data.json").write_text(json.dumps(DATA)[:50])
    with pytest.raises(UserError, match=r"data\.json: not valid JSON"):
        doctor(study / "mlm-seed=1")

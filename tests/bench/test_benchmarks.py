"""The benchmark's bookkeeping: who works when, which ratio is taken, what a table says of a miss and of a failure."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

import bertlab.bench
from bertlab.bench import measure, ours, worker
from bertlab.bench.table import best_rival, cells, markdown, ratios
from bertlab.bench.worker import PeakMemory, timed
from bertlab.bench.workloads import WORKLOADS, Workload, chosen
from bertlab.errors import UserError
from bertlab.transfer.load import load
from bertlab.transfer.tasks import find_task, load_task

SMALL = {"data.batch_size": 4, "data.seq_len": 32, "model.width": 16, "model.hidden": 32, "objectives.mlm.max_predictions": 5}


@pytest.fixture
def workload(small_overrides) -> Workload:
    """Training steps of a very small BERT on the tests' corpus."""
    settings = {**small_overrides, **SMALL, "train.eval_batches": 1}
    return Workload("small", "a small BERT", "cpu", "step", "bert.py:size=tiny,objectives=mlm+nsp", settings, target=2.0)


class Recorded:
    """A side that takes no time and writes down when it works."""

    def __init__(self, side: str, log: list, seconds: float):
        self.side, self.log, self.seconds, self.facts = side, log, seconds, {"ceiling": 4e9, "start_seconds": 1.0}

    def round(self, steps: int) -> dict:
        self.log.append((self.side, steps))
        seconds = self.seconds * steps  # other processes take as much of the core again
        return {
            "seconds": seconds,
            "cpu_seconds": seconds / 2,
            "tokens": 100 * steps,
            "positions": 125 * steps,
            "flops": 1e9 * steps,
        }

    def end(self) -> dict:
        return {"peak_bytes": 2e9}

    def close(self) -> None:
        self.log.append((self.side, "closed"))


def measured(seconds: dict[str, float], log: list, rounds: int = 3) -> dict:
    def begin(side):
        if seconds[side] is None:
            raise UserError("it does not compile")
        return Recorded(side, log, seconds[side])

    return measure.of_rounds(begin, tuple(seconds), rounds, seconds=2.0)


def wholes(seconds: dict[str, float], log: list) -> dict:
    return measure.of_rounds(lambda side: Recorded(side, log, seconds[side]), tuple(seconds), 2, seconds=None)


def test_rounds_are_as_long_as_asked_where_the_first_steps_are_there_already():
    class Ahead(Recorded):
        def round(self, steps):
            done = sum(steps for _, steps in self.log)
            found = super().round(steps)
            return found | {"seconds": max(1e-6, self.seconds * (steps - max(0, 8 - done)))}

    log = []
    measure.of_rounds(lambda side: Ahead(side, log, 0.01), ("ours",), 3, seconds=2.0)
    assert all(150 <= steps <= 250 for _, steps in log[-4:-1]), log


def test_sides_work_in_turns_as_long_as_each_other():
    log = []
    found = measured({"ours": 0.1, "eager": 0.5, "compiled": 0.25}, log)
    turns = [entry for entry in log if entry[1] not in (2, 3, "closed")]
    assert turns == [("ours", 20), ("eager", 4), ("compiled", 8)] * 3
    assert [len(found[side]["rounds"]) for side in found] == [3, 3, 3]
    assert sorted(side for side, what in log if what == "closed") == ["compiled", "eager", "ours"]
    assert best_rival(found) == "compiled"
    assert ratios(found) == pytest.approx([2.5] * 3)
    # Whole works take turns too, and the first of each does not count.
    log = []
    found = wholes({"ours": 1.0, "eager": 3.0}, log)
    assert [entry for entry in log if entry[1] != "closed"] == [("ours", 1), ("eager", 1)] * 3
    assert [len(of["rounds"]) for of in found.values()] == [2, 2]


class Breaks(Recorded):
    """A side that does so many rounds and then ends without an answer."""

    def __init__(self, side: str, rounds: int):
        super().__init__(side, [], 0.1)
        self.left = rounds

    def round(self, steps: int) -> dict:
        self.left -= 1
        if self.left < 0:
            raise UserError("out of memory")
        return super().round(steps)

    def end(self) -> dict:
        raise UserError("out of memory")


@pytest.mark.parametrize(("how", "seconds"), [(measure.of_rounds, [2.0]), (measure.of_rounds, [None]), (measure.of_starts, [])])
@pytest.mark.parametrize("rounds", [0, 1, 99])
def test_a_rival_may_fail_at_any_moment(how, seconds, rounds):
    log = []
    begin = lambda side: Recorded(side, log, 0.1) if side != "eager" else Breaks(side, rounds)
    found = how(begin, ("ours", "eager", "compiled"), 2, *seconds)
    assert found["eager"] == {"failed": "out of memory"}
    assert len(found["ours"]["rounds"]) == len(found["compiled"]["rounds"]) == 2 and found["ours"]["end"]
    with pytest.raises(UserError, match="out of memory"):
        how(lambda side: Breaks(side, rounds), ("ours",), 2, *seconds)


def test_an_exception_is_said_and_not_what_came_after_it(workload, tmp_path, monkeypatch):
    said = "Traceback\n  File\njax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory\nterminate called\n"
    popen = lambda command, stderr, **_: (stderr.write(said), subprocess.Popen("true", stdin=-1, stdout=-1, text=True))[1]
    monkeypatch.setattr(measure, "subprocess", SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE))
    with pytest.raises(UserError, match=r": jax\.errors\.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of"):
        measure.Side(workload, "ours", tmp_path, {}, {})


def test_what_a_process_does_before_its_answer_is_printed(workload, tmp_path, monkeypatch, capsys):
    lines = '{"doing": "tokenising, 2 of 3"}\n{"ceiling": 7.0}\n'
    popen = lambda command, **_: subprocess.Popen(["printf", "%s", lines], stdin=-1, stdout=-1, text=True)
    monkeypatch.setattr(measure, "subprocess", SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE))
    with contextlib.closing(measure.Side(workload, "ours", tmp_path, {}, {})) as side:
        assert side.facts["ceiling"] == 7.0
    assert "ours: tokenising, 2 of 3" in capsys.readouterr().out


def test_a_preparation_is_told_part_by_part_and_not_at_each_step():
    told = []
    doing = worker.Doing(told.append)
    for label, done, total in (("reading", 0, None), ("reading", 1, None), ("tokenising", 0, 3), ("tokenising", 1, 3)):
        doing(label, done, total)
    assert told == [{"doing": "reading, 0"}, {"doing": "tokenising, 0 of 3"}]


def test_a_side_s_cores_are_set_before_it_is_built(workload, monkeypatch):
    events, answers = [], []

    class Runner(contextlib.ExitStack):
        def __init__(self, *_):
            super().__init__()
            events.append("built")
            self.facts = {"compile_seconds": 1.0}

        def round(self, steps):
            return {"tokens": steps}

    side = SimpleNamespace(RUNNERS={"step": Runner}, ceiling=lambda _: 1.0, environment=dict, peak_device_bytes=lambda: 5)
    monkeypatch.setattr(bertlab.bench, "rival", side, raising=False)
    monkeypatch.setitem(sys.modules, "bertlab.bench.rival", side)
    monkeypatch.setattr(worker, "WORKLOADS", [dataclasses.replace(workload, cores=1)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 3, 4})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: events.append(list(cores)))
    lines = iter([b"4", None])
    worker.serve(answers.append, lambda answer: answers.append(answer) or next(lines), "gathered", "small", "", {})
    assert events == [[3], "built"]
    assert answers[1]["tokens"] == 4 and 0 <= answers[1]["cpu_seconds"] and answers[2]["peak_bytes"] == 5
    assert answers[2]["huge_page_bytes"] >= 0


def test_one_core_is_measured_by_its_time_too_and_has_an_aim_of_its_own():
    of = {"name": "w", "what": "", "kind": "step", "target": 1.5, "limit": 0.0, "memory": 0.0, "cores": 1, "tokens": 1001.0}
    row = cells({**of, "sides": measured({"ours": 0.1, "gathered": 0.2}, [])})
    assert [row[n].split("; ")[1].split()[0] for n in (1, 2, 3)] == ["2", "1", "2"], "twice as much, of half the time"
    assert row[4].split("; ") == ["1.5, reached", "1.001k tokens/s, missed"]
    assert cells({**of, "tokens": 999.0, "sides": measured({"ours": 0.1}, [])})[4].endswith("0.999k tokens/s, reached")


def test_a_gathered_head_is_the_rival_where_no_other_was_asked_for():
    assert best_rival(measured({"ours": 0.1, "gathered": 0.2}, [])) == "gathered"
    assert best_rival(measured({"ours": 0.1, "compiled": None, "gathered": 0.2}, [])) is None
    rivals = lambda names, **more: [measure.rivals_of(w, "transformers", **more) for w in chosen("", names)]
    assert (
        rivals("small-mlm-64,small-ltr-128")
        == [("gathered",), ("compiled",)]
        == rivals("small-mlm-128,small-ltr-64", quick=True)
    )
    assert rivals("bert-tiny,elmo-small,start,rows", quick=True) == [("compiled",), ("compiled",), ("eager",), ()]


def test_each_workload_is_written_when_it_is_measured(tmp_path, monkeypatch):
    def found(workload, rivals, rounds, seconds, settings, until):
        if workload.name == "start":
            raise UserError("the second one fails")
        return {"name": workload.name, "rounds": rounds, "seconds": seconds}

    monkeypatch.setattr(measure, "measure", found)
    with pytest.raises(UserError, match="second"):
        measure.bench("cpu", "none", tmp_path / "out.json", only="rows,start", quick=True, rounds=2)
    written = json.loads((tmp_path / "out.json").read_text())["workloads"]
    assert written == [{"name": "rows", "rounds": 2, "seconds": measure.QUICK_SECONDS}]


def test_the_table_says_miss_and_failure():
    of = {"name": "w", "what": "", "kind": "step", "target": 8.0, "limit": 0.0, "memory": 0.0}
    row = cells({**of, "sides": measured({"ours": 0.1, "eager": 0.5, "compiled": None}, [])})
    found = [row[1].split()[0], row[2].split()[0], row[3].split()[0], *row[4:]]
    assert found == ["1", "0.2", "5", "8, missed", "10, 250 % of 4", "2.00 / 2.00", "1.0 / 1.0", "20 %"]
    assert "compiled failed" in row[2]
    aim = lambda changes, sides=(("ours", 0.1), ("eager", 0.5)): cells({**of, **changes, "sides": measured(dict(sides), [])})[4]
    assert aim({"target": 5.0}) == "5, reached" and aim({}, [("ours", 0.1)]) == "8, not measured"
    assert aim({"target": 5.0, "of_ceiling": 0.45}) == "5, reached; 45 % of the ceiling, reached"
    assert [aim({"positions": n}).split()[-1] for n in (1249, 1251)] == ["reached", "missed"]
    beside = cells({**of, "sides": measured({"ours": 0.1, "eager": 0.5, "gathered": 0.2}, [])})
    assert "gathered" in beside[2] and beside[3].endswith("2 of gathered") and beside[4] == "8, missed"
    whole = {**of, "kind": "prepare", "sides": wholes({"ours": 2.0, "eager": 10.0}, []), "memory": 1e9}
    row = cells(whole)
    assert [row[n].split()[0] for n in (1, 2, 3)] == ["2", "10", "5"] and row[4] == "8, missed; 1 GB, missed"
    assert markdown([whole]).count("\n") == 3


def test_workloads_have_names_of_their_own_and_configs_that_load():
    assert len({workload.name for workload in WORKLOADS}) == len(WORKLOADS)
    for workload in WORKLOADS:
        assert workload.config().model.dtype == workload.dtype
    assert {w.suite for w in chosen("cpu")} == {"cpu"}
    assert {w.suite for w in chosen("gpu")} == {"device", "gpu"} and {w.suite for w in chosen("tpu")} == {"device", "tpu"}
    assert [w.name for w in chosen("cpu", "start,rows")] == ["start", "rows"] and len(chosen("")) == len(WORKLOADS)
    with pytest.raises(UserError, match="bert-base-512 is no workload of --suite=cpu"):
        chosen("cpu", "bert-base-512")
    with pytest.raises(UserError, match=r"bert-huge.* bert-tiny"):
        chosen("cpu", "rows,bert-huge")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"suite": "gpu"}, "--suite=gpu.* cpu"),  # there is none
        ({"against": "nobody"}, "--against=nobody.* transformers, none"),
        ({"rounds": 0}, "--rounds=0"),
        ({"seconds": float("nan")}, "--seconds=nan"),
        ({"minutes": 0.0}, "--minutes=0.0"),
        ({"rehearse": True}, "--rehearse is for --suite=gpu"),
    ],
)
def test_refusals(given, message):
    with pytest.raises(UserError, match=message):
        measure.bench(**{"suite": "cpu", "against": "none", "out": None, **given})


def test_a_rival_that_is_not_installed_is_refused_where_it_is_needed(monkeypatch, capsys):
    monkeypatch.setattr(measure.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(measure, "measure", lambda workload, rivals, *_: {"name": workload.name, "rivals": rivals})
    monkeypatch.setattr(measure, "print_table", lambda results: None)
    with pytest.raises(UserError, match=r"torch and .* and accelerate.* pip install -e '\.\[bench\]'"):
        measure.bench("cpu", "transformers", None)
    assert measure.bench("cpu", "transformers", None, only="rows") == [{"name": "rows", "rivals": ()}]
    rivals = [measure.rivals_of(workload, "transformers") for workload in chosen("", "bert-tiny,elmo-small,start")]
    assert list(map(len, rivals)) == [3, 2, 1]


def test_a_side_s_mistake_of_the_user_is_told_as_it_is(workload, tmp_path):
    with pytest.raises(UserError, match=r'^config.data.corpus="text:/nowhere/\*"'):
        measure.Side(WORKLOADS[0], "examples", tmp_path, {}, {"data.corpus": "text:/nowhere/*"})


@pytest.mark.nightly
def test_our_side_counts_what_it_trains(workload):
    with contextlib.closing(ours.TrainingSteps(workload)) as steps:
        first, second = steps.round(1), steps.round(3)
        assert steps.session.step == 4
    assert second["positions"] == 3 * first["positions"] == 3 * 4 * 32
    assert 0 < second["tokens"] <= second["positions"] and second["flops"] > 2 * first["flops"] > 0
    assert steps.facts["compile_seconds"] > 0


@pytest.mark.nightly
def test_processes_read_together_what_one_reads_of_all_shards(workload):
    sharded = dataclasses.replace(workload, settings={**workload.settings, "data.shards": 2})
    counted = []
    for reads in (ours.Rows, ours.RowsApart):
        with contextlib.closing(reads(sharded)) as rows:  # both have read a batch
            counted.append([(of["tokens"], of["positions"]) for of in map(rows.round, (1, 5))])
    assert counted[0] == counted[1]
    assert counted[0][1][1] == 5 * 4 * 32 >= counted[0][1][0] > 0


def test_a_rival_is_given_what_the_model_is_shown(workload, tmp_path):
    facts = ours.write_examples(workload, str(tmp_path), count=2)
    assert (facts["layers"], facts["width"], facts["hidden"], facts["heads"]) == (2, 16, 32, 2)
    assert json.loads((tmp_path / "model.json").read_text()) == facts
    with np.load(tmp_path / "rows.npz") as rows:
        assert rows["tokens"].shape == (2, 4, 32)
        used, places = rows["masked_weights"] > 0, rows["masked_positions"]
        shown = np.take_along_axis(rows["tokens"], places, axis=2)
        assert (shown != rows["masked_labels"])[used].mean() > 0.5, "most are masked already"
        assert (rows["documents"] == 0).any() or rows["documents"].all()


def test_text_is_as_much_as_is_asked_for_and_prepared_anew_each_time(workload, tmp_path):
    facts = ours.write_text(workload, str(tmp_path), size=500_000)
    lines = [json.loads(line) for line in (tmp_path / "text.jsonl").read_text().splitlines()]
    assert facts["bytes"] == sum(len(line["text"].encode()) for line in lines) >= 500_000
    assert facts["bytes"] - len(lines[-1]["text"].encode()) < 500_000
    assert facts["passes"] > 1 and len({line["id"] for line in lines}) == len(lines), "from the beginning again, ids new"
    side = ours.RUNNERS["prepare"](workload, str(tmp_path), "ours")
    assert all(timed(side, 1)["seconds"] > 0.01 for _ in range(2)), "nothing is kept from round to round"


@pytest.mark.slow
def test_the_task_is_balanced_and_the_run_has_the_shape_that_the_rival_is_told(workload, tmp_path):
    ours.write_task(workload, str(tmp_path), train=60, held_out=20)
    task = find_task(str(tmp_path / "task.py"))
    examples = load_task(task, {}).examples
    assert [len(examples[split]) for split in ("train", "valid", "test")] == [60, 20, 20]
    everything = [example for split in examples.values() for example in split]
    assert sum(("the" in example.texts[0].split()) == example.label for example in everything) == 100
    assert sum(example.label for example in everything) == 50
    model = load(tmp_path / "run")
    facts = json.loads((tmp_path / "model.json").read_text())
    assert facts["vocab_size"] == model.tokenizer.vocab_size and facts["width"] == 16


def test_a_corpus_without_enough_sentences_makes_no_task(workload, tmp_path):
    with pytest.raises(UserError, match="1000000"):
        ours.write_task(workload, str(tmp_path), train=999_980, held_out=10)


def test_memory_is_that_of_children_too():
    script = "import sys; held = bytearray(60_000_000); held[::4096] = b'1' * len(held[::4096]); sys.stdin.read()"
    with PeakMemory() as peak:
        began = time.monotonic()
        with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as child:
            while not peak.bytes or time.monotonic() - began < 1.5:
                time.sleep(0.1)
            alone = psutil.Process().memory_full_info().pss
            child.stdin.close()
    assert peak.bytes > alone + 55_000_000

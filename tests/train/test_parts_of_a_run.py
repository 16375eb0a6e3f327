"""What is around a run: phases, tokens, μP of a whole program, dashboards."""

import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab.config.defaults import base_config
from bertlab.errors import UserError
from bertlab.models.presets import build_body, model_shape
from bertlab.objectives import Vocabulary, build
from bertlab.objectives.program import Program
from bertlab.train.hooks import kept_steps, open_writers
from bertlab.train.optimizers import build_optimizer
from bertlab.train.phases import Phase, phase_configs, steps_within, trained_objectives
from bertlab.train.run_directory import RunDirectory, describe_environment
from bertlab.train.sharding import build_mesh
from bertlab.train.state import init_state, parameter_name

ONE_DEVICE = {"data": 1, "fsdp": 1, "tensor": 1}


def config_of(*objectives, **changes):
    config = base_config()
    config.objectives = ConfigDict({name: {"weight": 1.0} for name in objectives})
    config.train.update({"steps": 20, **changes})
    return config


PHASES = "0.25 data.seq_len=16 objectives.nsp.weight=0; 0.75 objectives.mlm.weight=0"


def test_phases_are_differences_of_configs():
    config = config_of("mlm", "nsp", phases=PHASES)
    (first_end, first), (last_end, last) = phase_configs(config)
    assert (first_end, last_end) == (5, 20)
    assert (first.data.seq_len, last.data.seq_len, config.data.seq_len) == (16, 128, 128)
    assert (first.objectives.nsp.weight, last.objectives.nsp.weight) == (0, 1)
    assert trained_objectives(config) == ["mlm", "nsp"]
    assert trained_objectives(config, step=5) == ["mlm"]
    assert phase_configs(config_of("mlm")) == [(20, config_of("mlm"))]


@pytest.mark.parametrize(
    "text, message",
    [
        ("0.5 data.seq_len=16", "must add up to 1"),
        ("data.seq_len=16; 1.0", "'data.seq_len=16' is not a share"),
        ("0.5 data.corpus=x; 0.5", "data.corpus=x' is not a share"),
        ("0.5 objectives.mlm.weight=0; 0.5", "train an objective"),
        ("0.5 data.seq_len='x'; 0.5", "seq_len"),
        ("0.5; 0.001; 0.499", "at least one step of 20"),
    ],
)
def test_phases_that_cannot_be_are_refused(text, message):
    with pytest.raises(UserError, match=message):
        phase_configs(config_of("mlm", phases=text))


def test_kept_steps_are_logarithmic_or_named():
    assert kept_steps("log", 250) == [10, 20, 50, 100, 200, 250]
    assert kept_steps("log,30", 100) == [10, 20, 30, 50, 100]
    assert kept_steps("7,3", 10) == [3, 7]
    with pytest.raises(UserError, match="'11' is not log or a step of the run"):
        kept_steps("11", 10)


VOCABULARY = Vocabulary(size=50, pad_id=0, unk_id=1, cls_id=2, sep_id=3, mask_id=4)


def program_of(*objectives, **model):
    config = base_config().model
    config.update({"width": 32, "heads": 4, "hidden": 64, "layers": 2, **model})
    body = build_body(model_shape(config, VOCABULARY.size))
    return Program(body, build(config_of(*objectives).objectives), VOCABULARY)


BLOCKS = ("attention/out_kernel", "attention/qkv_kernel", "down/kernel", "up/kernel")
KERNELS = [*(f"body/blocks/{name}" for name in BLOCKS), "body/pooler/kernel"]


def batch_of(step=0, rows=4, length=16):
    tokens = np.random.default_rng(step).integers(5, 50, (rows, length)).astype(np.int32)
    fields = {"segments": 0, "documents": 1, "positions": 0}
    batch = {name: np.full_like(tokens, value) for name, value in fields.items()}
    batch["documents"][:, length - step % 4 :] = 0
    return {"tokens": tokens, **batch, "pair_label": np.arange(rows, dtype=np.int32) % 2}


@pytest.mark.slow
def test_mup_scales_initial_values_and_updates_by_the_axes_that_grow():
    """Yang et al. 2022, table 8, for a model four times as wide as its base."""
    program, batch = program_of("nsp", layers=1, base_width=8), batch_of()
    optimizer_config = base_config().optimizer
    optimizer_config.update({"warmup_steps": 0, "weight_decay": 0.0})
    optimizer = build_optimizer(optimizer_config, 9, program, batch)
    state = init_state(program, optimizer, build_mesh(ONE_DEVICE), 0, batch)
    ones = jax.tree.map(np.ones_like, state.params)
    updates, _ = jax.jit(optimizer.update)(ones, state.opt_state, state.params)

    def scaled(tree, number, usual):
        """Names of parameters to (number of their values) / usual, where that is not 1."""
        found = {parameter_name(path): x for path, x in jax.tree.leaves_with_path(tree)}
        ratios = {name: round(float(number(x) / usual(found)), 2) for name, x in found.items()}
        return {name: ratio for name, ratio in ratios.items() if ratio != 1}

    expected = dict.fromkeys(KERNELS, 0.25) | {"heads_nsp/kernel": 0.25}
    assert (
        scaled(updates, np.mean, lambda found: np.mean(found["body/token_embedding"])) == expected
    )
    deviations = scaled(state.params, np.std, lambda found: np.std(found["body/token_embedding"]))
    for name in KERNELS:
        assert deviations[name] == pytest.approx(0.5, abs=0.05), name
    assert deviations["heads_nsp/kernel"] == pytest.approx(0.25, abs=0.08)


@pytest.mark.parametrize("lengths, each", [((16,), 58), ((16, 32), (58 + 122) / 2)])
def test_tokens_buy_steps(lengths, each):
    """Of rows without their padding, by the shares of the phases."""
    settings = {"rows": 4, "program": None, "weights": {}, "data_hash": ""}
    phases = [
        Phase(
            begin=20 * index // len(lengths),
            end=20 * (index + 1) // len(lengths),
            batches=lambda step, length=length: batch_of(step, length=length),
            **settings,
        )
        for index, length in enumerate(lengths)
    ]
    assert steps_within(5800, phases) == round(5800 / each)


LINES = [{"step": step, "split": "train", "loss": 5.0 - step} for step in (1, 2, 3)]


def test_tensorboard_has_a_resumed_runs_lines_once(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    at_exit = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    run, events = RunDirectory(tmp_path), []
    for resumed, lines in ((0, LINES[:2]), (1, LINES[1:])):
        [write] = open_writers("jsonl,tensorboard", run, {}, resumed)
        for line in lines:
            write(line)
        at_exit[-1]()
    from tensorboardX.proto.event_pb2 import Event

    for file in sorted((tmp_path / "tensorboard").iterdir()):
        content = file.read_bytes()
        while content:  # length (8 bytes), its checksum (4), the record, its checksum (4)
            length = int.from_bytes(content[:8], "little")
            events.append(Event.FromString(content[12 : 12 + length]))
            content = content[16 + length :]
    purges = [event.step for event in events if event.HasField("session_log")]
    assert purges == [1, 2]
    values = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
    assert values[-2:] == [(2, "train/loss", 3.0), (3, "train/loss", 2.0)]


def test_a_resumed_run_goes_on_in_its_run_of_wandb(tmp_path, monkeypatch):
    inits, logged = [], []
    client = SimpleNamespace(id="x1", log=lambda values, step: logged.append((step, values)))

    def init(**arguments):
        inits.append(arguments)
        return client

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    for _ in range(2):
        [write] = open_writers("wandb", RunDirectory(tmp_path), {"seed": 0}, 0)
    write(LINES[0])
    assert [each["id"] for each in inits] == [None, "x1"] and inits[0]["config"] == {"seed": 0}
    assert logged == [(1, {"train/loss": 4.0})]


def test_the_environment_names_versions_and_the_commit():
    environment = describe_environment()
    assert environment["packages"]["jax"] == jax.__version__
    assert len(environment["git_commit"]) in (0, 40)

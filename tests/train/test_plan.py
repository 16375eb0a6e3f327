"""Plans for devices that are not here, against what is known of the program: its parameters, its batch, its layers."""

import dataclasses
import json
import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bertlab import progress
from bertlab.errors import UserError
from bertlab.models.presets import model_shape
from bertlab.train import plan as planning
from bertlab.train.hlo import Collectives, Kernel, Work
from bertlab.train.plan import Plan, plan, plan_phases, print_plan
from tests.conftest import ROOT
from tests.references import mesh_of

STATE = 3 * 4  # bytes of a float32 parameter with Adam's two moments
TABLE = 400 * 16  # of tokens: its gradient is reduced twice, as it comes from the embedding and from the tied output layer


@pytest.fixture
def of_eight(small_config):
    """A function (mesh sizes and settings) -> the plan of a small BERT on eight virtual devices."""
    return lambda **settings: plan(small_config("bert", **{"data__batch_size": 16, "mesh__data": -1} | settings), "cpu:8")


def test_data_parallel_reduces_every_gradient_once_and_gathers_nothing(of_eight):
    found = of_eight()
    assert found.mesh == {"data": 8, "fsdp": 1, "tensor": 1, "sequence": 1} and (found.rows, found.tokens) == (16, 16 * 32)
    assert found.arguments == pytest.approx(STATE * found.parameters, rel=0.1), "every device has the whole state"
    assert set(found.work.collectives) == {"all-reduce"}
    assert found.work.collectives["all-reduce"].bytes == pytest.approx(4 * (found.parameters + TABLE), rel=0.02)


def test_a_program_that_cannot_be_read_back_is_said(small_config, monkeypatch):
    def unreadable(self):
        raise jax.errors.JaxRuntimeError("INTERNAL: async-update should have 1 operands\nand more lines")

    monkeypatch.setattr(jax.stages.Compiled, "as_text", unreadable)
    with pytest.raises(UserError, match=r"^the step compiles for cpu:1, but this jaxlib .*have 1 operands\); install the lib"):
        plan(small_config("skip_gram"), "cpu:1")


@pytest.mark.nightly
def test_packed_rows_are_full_and_attention_is_over_all_of_them(of_eight):
    plain, packed = of_eight(), of_eight(data__pack_length=128)
    assert (packed.rows, packed.tokens) == (16, 16 * 128)
    assert packed.work.flops > 4 * plain.work.flops


@pytest.mark.parametrize(
    "objective", ["permutation", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("electra", "diffusion"))]
)
def test_what_an_objective_shows_of_a_row_stays_where_the_row_is(objective, small_config):
    recipe = f"experiments/pretrain/bert.py:size=tiny,objectives={objective}"
    config = small_config(str(ROOT / recipe), mesh__data=-1, data__batch_size=16, model__heads=2)
    assert set(plan(config, "cpu:8").work.collectives) == {"all-reduce"}


@pytest.mark.slow
def test_fsdp_divides_the_state_and_moves_parameters_and_never_activations(of_eight):
    found = of_eight(mesh__data=2, mesh__fsdp=4)
    assert found.arguments < 0.4 * STATE * found.parameters
    assert set(found.work.collectives) == {"all-gather", "all-reduce"}
    gathered, reduced = (found.work.collectives[kind].bytes for kind in ("all-gather", "all-reduce"))
    # Weights of layers once forward and once backward, and the table, which is gathered for the embedding, a few times.
    assert 4 * found.parameters * 0.9 <= gathered <= 4 * (2 * found.parameters + 2 * TABLE)
    assert reduced == pytest.approx(4 * (found.parameters + TABLE), rel=0.3), "gradients: some once more, over the other axis"
    twice = of_eight(mesh__data=2, mesh__fsdp=4, data__batch_size=32)
    assert twice.work.flops > 1.9 * found.work.flops
    assert twice.work.collectives == found.work.collectives, "what a batch makes stays where it is"


LONG = {"data__seq_len": 256, "data__batch_size": 4, "model__layers": 1, "model__heads": 4, "model__dropout": 0.1}


@pytest.mark.slow
def test_parts_of_rows_share_the_work_and_exchange_states_and_never_scores(small_config):
    """Four parts: before and after attention each state goes from all to all, forward and backward, and gradients once."""
    whole, parts = (plan(small_config("gpt", **LONG, mesh__sequence=n), "cpu:8") for n in (1, 4))
    assert not whole.work.collectives
    assert parts.work.flops == pytest.approx(whole.work.flops / 4, rel=0.001)
    assert parts.memory - parts.arguments < (whole.memory - whole.arguments) / 3, "a quarter, but of the mask, which each has"
    assert parts.arguments == whole.arguments, "state and batch are small beside the states of long rows"
    assert set(parts.work.collectives) == {"all-reduce", "all-to-all"}
    states = 4 * 4 * 256 * 16  # bytes of [4, 256, 16] in float32
    # Queries, keys, values and the context, forward and backward: of each device a quarter of the positions.
    assert parts.work.collectives["all-to-all"].bytes == 2 * 4 * states / 4
    assert parts.work.collectives["all-reduce"].bytes == pytest.approx(4 * (parts.parameters + TABLE), rel=0.001)


@pytest.mark.nightly
@pytest.mark.parametrize("recipe", ["bert", "modern"])
def test_parts_of_rows_exchange_besides_only_what_an_objective_asks_for(recipe, small_config):
    """The states of the 40 positions of a row that are masked, and of [CLS]."""
    found = plan(small_config(recipe, **LONG | {"model__layers": 2}, mesh__sequence=4), "cpu:4")
    states, exchanged = 4 * 4 * 256 * 16, {kind: of.bytes for kind, of in found.work.collectives.items()}
    assert exchanged.pop("all-to-all") == 2 * 2 * 4 * states / 4
    assert sum(exchanged.values()) == pytest.approx(4 * (found.parameters + TABLE), abs=0.7 * states)


@pytest.mark.parametrize(
    ("recipe", "axis"),
    [pytest.param("bert", "fsdp", marks=pytest.mark.nightly), pytest.param("elmo", "data", marks=pytest.mark.nightly)],
)
def test_more_devices_have_no_more_work_each(recipe, axis, small_config):
    """Weak scaling: two rows for each device, and what it multiplies, moves and exchanges stays the same."""
    made = lambda n: small_config(
        recipe, **{"mesh__data": 1, f"mesh__{axis}": n, "data__batch_size": 2 * n, "model__layers": 2}
    )
    alone, *several = [plan(made(n), f"cpu:{n}").work for n in (1, 2, 8)]
    assert not alone.collectives
    assert {work.flops for work in several} == {alone.flops}
    assert set(several[0].collectives) == {"all-reduce"} | ({"all-gather"} if axis == "fsdp" else set())
    for kind in several[0].collectives:
        assert len({(of.count, of.bytes) for of in (work.collectives[kind] for work in several)}) == 1, kind
    assert max(work.bytes for work in several) < 1.15 * alone.bytes, "with what is exchanged"


@pytest.mark.nightly
def test_products_are_those_of_the_formula_and_what_is_computed_again(small_config):
    plain, dots, again = (plan(small_config("gpt", model__remat=remat), "cpu:1") for remat in ("none", "dots", "full"))
    assert plain.work.flops == pytest.approx(plain.model_flops, rel=0.02)
    assert again.model_flops == plain.model_flops
    assert 1.1 * plain.work.flops < again.work.flops < 1.34 * plain.work.flops, "layers forward twice, at most a third more"
    assert plain.work.flops < dots.work.flops < again.work.flops, "attention's products forward twice"


@pytest.mark.nightly
def test_products_of_disentangled_positions_are_those_of_the_formula(small_config):
    """And once for the batch, in each layer, queries and keys of all 63 distances between 32 positions."""
    config = small_config("gpt", model__position_encoding="disentangled")
    found, shape = plan(config, "cpu:1"), model_shape(config.model, 1)
    of_table = 6 * shape.layers * 63 * 2 * shape.width**2
    assert found.work.flops == pytest.approx(found.model_flops + of_table, rel=0.02)
    assert found.model_flops > 1.2 * plan(small_config("gpt"), "cpu:1").model_flops


@pytest.mark.parametrize(("objective", "generator"), [("mlm", 0), pytest.param("electra", 4, marks=pytest.mark.slow)])
def test_no_body_with_local_windows_can_use_more_than_its_chip_has(objective, generator, small_config):
    """Four rows of 768 and windows of 128: a program that needs its products' time only computes what the windows leave.

    ELECTRA's generator, a quarter as wide as the body, has windows too.
    """
    recipe = str(ROOT / f"experiments/pretrain/modern.py:objectives={objective}")
    config = small_config(recipe, model__layers=3, model__heads=2, data__seq_len=768, data__batch_size=4)
    found, width = plan(config, "cpu:1"), model_shape(config.model, 1).width + generator
    distance = np.abs(np.arange(768) - np.arange(768)[:, None])
    assert found.outside_windows == pytest.approx(4 * 2 * 12 * width * np.count_nonzero(distance > 64)), "of two layers"
    assert found.work.flops < 0.9 * found.model_flops
    ideal = dataclasses.replace(found, chip=planning.CHIPS["v5e"], work=Work(found.work.flops, 0.0, {}, {}, {}))
    assert 0.8 < ideal.utilisation() <= 1, "blocks of 64 compute up to 192 keys for 129"


def test_the_utilisation_is_said_to_be_an_upper_bound_and_of_what(small_config, monkeypatch, capsys):
    found = plan(small_config("skip_gram"), "cpu:1")
    for chip in (None, planning.CHIPS["v5e"]):
        monkeypatch.setattr(planning, "plan_phases", lambda *_, chip=chip: [dataclasses.replace(found, chip=chip)])
        planning.print_plan(None, "v5e:2x2")
        printed = " ".join(capsys.readouterr().out.split())
        for said in ("attainable utilisation, at most", "do not count element-wise work", "heads of 64", "is an upper bound"):
            assert (said in printed) == (chip is not None)


def fits_up_to(tokens, tried):
    """A stand-in for `plan`: the batch of the phase, and TooLarge above so many tokens."""

    def stand_in(config, topology, number=0):
        phase, *_ = planning.distinct_phases(config)[number]
        tried.append(batch := (phase.data.batch_size, phase.data.seq_len))
        if batch[0] * batch[1] > tokens:
            raise planning.TooLarge("no")
        return batch

    return stand_in


def test_the_largest_batch_is_the_last_that_fits(small_config, monkeypatch):
    with pytest.raises(UserError, match="--largest --topology=cpu:1"):
        planning.largest_batch(small_config("bert"), "cpu:1")
    monkeypatch.setattr(planning, "topology_devices", lambda topology: (None, planning.CHIPS["v5e"]))
    for most, expected in ((40, [8, 16, 32, 64]), (3, [8, 4, 2])):
        monkeypatch.setattr(planning, "plan", fits_up_to(32 * most, tried := []))
        assert planning.largest_batch(small_config("bert"), "v5e:1") == [(max(n for n in expected if n <= most), 32)]
        assert tried == [(n, 32) for n in expected]
    monkeypatch.setattr(planning, "plan", fits_up_to(0, []))
    with pytest.raises(planning.TooLarge):
        planning.largest_batch(small_config("bert"), "v5e:1")


def test_the_largest_batch_fits_in_the_phase_with_the_longest_rows(small_config, monkeypatch):
    monkeypatch.setattr(planning, "topology_devices", lambda topology: (None, planning.CHIPS["v5e"]))
    monkeypatch.setattr(planning, "plan", fits_up_to(32 * 32, []))
    load = lambda phases: small_config("bert", train__phases=phases, objectives__mlm__max_predictions=3)
    assert planning.largest_batch(load("0.9 data.seq_len=16; 0.1"), "v5e:1") == [(32, 16), (32, 32)]
    own = load("0.5 data.seq_len=16; 0.3 data.batch_size=4; 0.2 data.seq_len=16 data.batch_size=2")
    assert planning.largest_batch(own, "v5e:1") == [(64, 16), (4, 32), (2, 16)], "a batch of a phase's own stays"
    with pytest.raises(UserError, match=r"--largest: each phase of config\.train\.phases"):
        planning.largest_batch(load("0.5 data.batch_size=4; 0.5 data.batch_size=2"), "v5e:1")


@pytest.mark.nightly
def test_each_phase_has_a_plan_with_its_length_its_batch_and_its_steps(small_config, monkeypatch):
    monkeypatch.setattr(progress, "_show", lambda label, done, total: told.append(label))
    told = []
    phases = "0.5 data.seq_len=16 data.batch_size=16; 0.25; 0.2 data.seq_len=16 data.batch_size=16; 0.05"
    load = lambda **more: small_config("bert", model__layers=1, objectives__mlm__max_predictions=3, **more)
    plans = plan_phases(load(train__phases=phases), "cpu:1")
    assert [(of.rows, of.tokens, of.steps) for of in plans] == [(16, 256, 14), (8, 256, 6)], "like phases count as one"
    assert plans[0].phase == "0.5 data.seq_len=16 data.batch_size=16"
    assert [*dict.fromkeys(told)] == [f"compiling for cpu:1, phase {of.phase!r}" for of in plans]
    alone = plan(load(), "cpu:1")
    assert (plans[1].memory, plans[1].work.flops, plans[1].model_flops) == (alone.memory, alone.work.flops, alone.model_flops)


def test_phases_of_other_objectives_are_other_steps(small_config):
    config = small_config("bert", train__phases="0.5 objectives.nsp.weight=0; 0.5 objectives.nsp.weight=2 data.batch_size=8")
    assert [steps for *_, steps in planning.distinct_phases(config)] == [10, 10]


@pytest.mark.parametrize("recipe", ["awd_lstm", "elmo on characters", "glove"])
def test_other_models_have_a_plan(recipe, small_config):
    found = plan(small_config(recipe, data__batch_size=16), "cpu:1")
    assert (found.rows, found.tokens) == (16, 16 * 32) and found.work.bytes > 0
    if recipe != "glove":  # no products: sums over two vectors
        assert 0 < found.model_flops and found.work.flops == pytest.approx(found.model_flops, rel=0.2)


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        *(
            (topology, f"--topology={topology}: .*cpu:8")
            for topology in ("v9:2x2", "v5e", "v5e:", "v5e:0x0", "v5e:2x2x2x2", "cpu:x", "cpu:²", "cpu:", "cpu:0", "cpu:1025")
        ),
        ("cpu:999", "JAX_NUM_CPU_DEVICES=999"),
        # libtpu refuses these too (tests/parity/test_plan.py); nobody has to install it for that.
        *((topology, f"--topology={topology}: a host has 2 x 2") for topology in ("v5e:3x3", "v5e:2x3", "v5p:3x3x3")),
    ],
)
def test_topologies_that_there_are_not(topology, message, small_config):
    with pytest.raises(UserError, match=message):
        plan(small_config("bert"), topology)


def test_the_roofline_is_the_slowest_of_products_memory_and_exchanges(monkeypatch, tmp_path, capsys):
    kernels = {"attention": Kernel(24, 19.7e12, 0.819e12)}
    lines = {f"models/base.py:{line}": 1e9 * (20 - line) for line in range(15)}
    work = Work(197e12, 2 * 0.819e12, {"all-reduce": Collectives(1, 2e11, 3e11, "f32[5]")}, lines, kernels)
    chip = planning.CHIPS["v5e"]
    found = Plan("v5e:2x2", {"data": 4}, 8, 80, 1, 5, 98.5e12, work, 2**30, 2**32, chip)
    assert found.seconds() == pytest.approx({"products": 1.0, "memory": 2.0, "exchanges": 1.5})
    assert found.bound() == ("memory", pytest.approx(2.0))
    later = dataclasses.replace(found, phase="0.1 data.seq_len=512", steps=3600, memory=2**33)
    monkeypatch.setattr(planning, "plan_phases", lambda config, topology: [found, later])
    print_plan(None, "v5e:2x2", out=tmp_path / "plan.json")
    assert "2000.00 ms" in (shown := capsys.readouterr().out) and "f32[5]" in shown
    assert "0.250" in shown and "attention, 24 times" in shown and "at least 1000.00 ms" in shown
    assert "models/base.py:0" in shown and "models/base.py:9" in shown and "models/base.py:10" not in shown
    record = json.loads((tmp_path / "plan.json").read_text())
    assert record["bound"] == "memory" and record["work"]["collectives"]["all-reduce"]["sent"] == 3e11
    assert len(record["work"]["sources"]) == 10 and record["work"]["kernels"]["attention"]["flops"] == 19.7e12
    assert record["model_flops_share"] == pytest.approx(0.25)
    assert [of["memory"] for of in record["phases"]] == [2**32, 2**33] and record["memory"] == 2**33, "what the run needs"
    assert re.search(r"0\.1 data\.seq_len=512 .* 3,600 .* 8\.00 GiB .* 2000\.00 ms .* 2\.00 h", shown)
    assert re.search(r"the run .* 3,600 .* 8\.00 GiB .* 2\.00 h", shown)


def test_a_kernel_that_a_run_could_not_take_has_no_plan(small_config):
    config = small_config("bert", model__attention="pallas", model__width=64, model__heads=1, data__seq_len=128)
    with pytest.raises(UserError, match=r"'pallas' has no tiles on a CPU for 1 heads of 64 numbers a device, which is no"):
        plan(config, "cpu:1")
    cudnn = small_config("bert", model__attention="cudnn", model__dropout=0.0, model__dtype="bfloat16")
    with pytest.raises(UserError, match="'cudnn' needs a GPU"):
        plan(cudnn, "cpu:1")


@pytest.mark.parametrize(
    ("chip", "named", "planned"), [("v5e", "auto", "pallas"), ("v5e", "xla", "xla"), ("cpu", "auto", "xla")]
)
def test_what_a_run_would_measure_is_planned_as_a_kernel_on_a_tpu(chip, named, planned, small_config, monkeypatch):
    class Lowered(Exception):
        """Nothing is compiled."""

    def lowered(program, *_):
        raise Lowered(program.body.config.attention)

    devices = np.array(jax.devices()[:1])
    monkeypatch.setattr(planning, "topology_devices", lambda topology: (devices, planning.CHIPS.get(chip)))
    monkeypatch.setattr(planning, "lower_train_step", lowered)
    with pytest.raises(Lowered, match=f"^{planned}$"):
        plan(small_config("bert", model__attention=named), f"{chip}:1")


def test_products_that_a_tpu_lacks_have_no_plan(small_config, monkeypatch):
    monkeypatch.setattr(planning, "topology_devices", lambda topology: (None, planning.CHIPS["v5e"]))
    device = SimpleNamespace(platform="tpu", device_kind="TPU v5 lite")
    monkeypatch.setattr(planning, "build_mesh", lambda *_: mesh_of(device))
    with pytest.raises(UserError, match=r"config\.model\.products='float8' needs an NVIDIA GPU .* not TPU v5 lite"):
        plan(small_config("bert", model__products="float8"), "v5e:1x1")


def test_a_batch_that_the_mesh_does_not_divide(small_config):
    with pytest.raises(UserError, match=r"config\.data\.batch_size=9 is not a multiple of config\.mesh"):
        plan(small_config("bert", data__batch_size=9, mesh__data=-1), "cpu:8")

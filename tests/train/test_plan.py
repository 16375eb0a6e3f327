"""Plans for devices that are not here, against what is known of the program: its parameters, its batch, its layers."""

import jax
import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.train import plan as planning
from bertlab.train.plan import Collectives, collectives, plan

STATE = 3 * 4  # bytes of a float32 parameter with Adam's two moments


@pytest.fixture
def of_eight(small_config):
    """A function (mesh sizes and settings) -> the plan of a small BERT on eight virtual devices."""
    return lambda **settings: plan(small_config("bert", **{"data__batch_size": 16, "mesh__data": -1} | settings), "cpu:8")


def parameters(small_config) -> int:
    from bertlab.train.made_up import MadeUpRows, made_up_program

    config = small_config("bert")
    program, rows = made_up_program(config), MadeUpRows(config.data, config.data.tokenizer.vocab_size)
    shapes = jax.eval_shape(lambda: program.init(jax.random.key(0), next(iter(rows))))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_data_parallel_reduces_every_gradient_once_and_gathers_no_parameter(of_eight, small_config):
    found, count = of_eight(), parameters(small_config)
    assert found.mesh == {"data": 8, "fsdp": 1, "tensor": 1} and (found.rows, found.tokens) == (16, 16 * 32)
    assert found.arguments == pytest.approx(STATE * count, rel=0.1), "every device has the whole state"
    # The tied table's gradient is reduced twice, as it comes from the embedding and from the output layer.
    tied = 400 * 16
    assert found.collectives["all-reduce"].bytes == pytest.approx(4 * (count + tied), rel=0.02)
    gathered = found.collectives.get("all-gather", Collectives(0, 0.0))
    assert gathered.bytes < 16 * 32 * 4 * 4, "fields of the batch at most, four of int32"


def test_packed_rows_are_full_and_attention_is_over_all_of_them(of_eight):
    plain, packed = of_eight(), of_eight(data__pack_length=128)
    assert (packed.rows, packed.tokens) == (16, 16 * 128)
    assert packed.flops > 4 * plain.flops


def test_fsdp_divides_the_state(of_eight, small_config):
    found, whole = of_eight(mesh__fsdp=8, mesh__data=1), of_eight()
    assert found.arguments < 0.3 * whole.arguments
    assert found.collectives["all-gather"].bytes > whole.collectives.get("all-gather", Collectives(0, 0.0)).bytes


def test_more_devices_have_no_more_work_each(small_config):
    """Weak scaling: as many rows for each device, so FLOPs and what is reduced stay the same."""
    plans = [plan(small_config("bert", data__batch_size=2 * n, mesh__data=n), f"cpu:{n}") for n in (2, 4, 8)]
    assert len({round(found.flops) for found in plans}) == 1
    reduced = [found.collectives["all-reduce"].bytes for found in plans]
    assert max(reduced) < 1.05 * min(reduced)


PROGRAM = """HloModule step

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %r = f32[4,8]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1}}, to_apply=%add
  ROOT %t = (s32[], f32[4,8]) tuple(%i, %r)
}

ENTRY %main (w: bf16[16,2]) -> f32[4,8] {
  %w = bf16[16,2]{1,0} parameter(0)
  %g = (bf16[16,2]{1,0}, bf16[32,2]{1,0}) all-gather-start(%w), dimensions={0}
  %s = bf16[8,2]{1,0} reduce-scatter(%w), dimensions={0}, to_apply=%add
  %loop = (s32[], f32[4,8]) while(%init), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"6"}}
  ROOT %out = f32[4,8]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_collectives_in_loops_count_as_often_as_they_run():
    assert collectives(PROGRAM) == {
        "all-gather": Collectives(1, 32 * 2 * 2.0),
        "all-reduce": Collectives(6, 6 * 4 * 8 * 4.0),
        "reduce-scatter": Collectives(1, 16 * 2 * 2.0),
    }
    with pytest.raises(ValueError, match="all-reduce in a loop that does not say how often it runs: body"):
        collectives(PROGRAM.replace('{"known_trip_count":{"n":"6"}}', "{}"))


def test_the_largest_batch_is_the_last_that_fits(small_config, monkeypatch):
    tried = []

    def fits_up_to(most):
        def stand_in(config, topology):
            tried.append(config.data.batch_size)
            if config.data.batch_size > most:
                raise planning.TooLarge("no")
            return config.data.batch_size

        return stand_in

    for most, expected in ((40, [8, 16, 32, 64]), (3, [8, 4, 2])):
        tried.clear()
        monkeypatch.setattr(planning, "plan", fits_up_to(most))
        assert planning.largest_batch(small_config("bert"), "cpu:1") == max(n for n in expected if n <= most)
        assert tried == expected


@pytest.mark.parametrize("topology", ["v9:2x2", "v5e", "v5e:", "cpu:x", "cpu:"])
def test_topologies_that_there_are_not(topology, small_config):
    with pytest.raises(UserError, match=f"--topology={topology}: give cpu:8"):
        plan(small_config("bert"), topology)
    with pytest.raises(UserError, match=r"are asked for; set JAX_NUM_CPU_DEVICES=999"):
        plan(small_config("bert"), "cpu:999")


def test_seconds_are_of_the_chip():
    chip = planning.CHIPS["v5e"]
    found = planning.Plan({}, 1, 1, 197e12, 2**30, 2**30, {"all-reduce": Collectives(1, 2e11)}, chip)
    assert found.seconds() == pytest.approx({"products": 1.0, "exchanges": 1.0}) and found.fits
    assert not planning.dataclasses.replace(found, temporaries=2**34).fits
    assert np.isclose(found.memory, 2**31)

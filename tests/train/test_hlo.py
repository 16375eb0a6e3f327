"""Work read from compiled programs: against what is known of small ones, and on lines as CPU and TPU compilers write them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertlab.train.hlo import Collectives, Kernel, read_work

LAYERS, ROWS, WIDTH = 6, 32, 48


def compiled(function, *shapes) -> str:
    return jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).compile().as_text()


def test_a_loop_over_layers_counts_as_often_as_it_runs():
    layer = lambda x, kernel: (jnp.tanh(x @ kernel), None)
    through = lambda unroll: lambda x, kernels: jax.lax.scan(layer, x, kernels, unroll=unroll)[0]
    looped, unrolled = (compiled(through(unroll), (ROWS, WIDTH), (LAYERS, WIDTH, WIDTH)) for unroll in (False, True))
    assert read_work(looped).flops == read_work(unrolled).flops == LAYERS * 2 * ROWS * WIDTH**2
    # Each layer reads its own kernel, not all of them; what else is moved is some rows a layer.
    kernels, rows = 4 * LAYERS * WIDTH**2, 4 * ROWS * WIDTH
    assert kernels + 2 * LAYERS * rows <= read_work(looped).bytes <= 3 * kernels + 10 * LAYERS * rows


def test_what_is_updated_in_place_is_not_read_and_written_whole():
    big, part = 1000 * WIDTH, WIDTH
    update = lambda table, row: jax.lax.dynamic_update_slice(table, row, (3, 0))
    donated = jax.jit(update, donate_argnums=0)
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1000, WIDTH), (1, WIDTH))]
    work = read_work(donated.lower(*shapes).compile().as_text())
    assert part * 4 < work.bytes <= 8 * part * 4 < big


PROGRAM = """HloModule step, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], /*index=1*/f32[4,8]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %x = f32[4,8]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %r = f32[4,8]{1,0:T(8,128)S(1)} all-reduce(%x), channel_id=1, replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add
  %k = f32[8,8]{1,0:T(8,128)} constant({...})
  %y = f32[4,8]{1,0:T(8,128)S(1)} convolution(%r, %k), dim_labels=bf_io->bf
  %by = s32[] constant(1)
  %next = s32[] add(%i, %by)
  ROOT %t = (s32[], f32[4,8]) tuple(%next, %y)
}

%condition (q: (s32[], f32[4,8])) -> pred[] {
  %q = (s32[], f32[4,8]) parameter(0)
  %j = s32[]{:T(128)} get-tuple-element(%q), index=0
  %bound = s32[]{:T(128)} constant(7)
  ROOT %lt = pred[]{:T(512)} compare(%j, %bound), direction=LT
}

%all-reduce-scatter.1 (z: bf16[16,2]) -> bf16[2,2] {
  %z = bf16[16,2]{1,0} parameter(0)
  %whole = bf16[16,2]{1,0} all-reduce(%z), replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0','axis_1'}, to_apply=%add
  %zero = s32[] constant(0)
  ROOT %part = bf16[2,2]{1,0} dynamic-slice(%whole, %zero, %zero), dynamic_slice_sizes={2,2}
}

ENTRY %main (w: bf16[16,2], x0: f32[4,8]) -> f32[4,8] {
  %w = bf16[16,2]{1,0} parameter(0)
  %x0 = f32[4,8]{1,0} parameter(1)
  %g = (bf16[16,2]{1,0}, bf16[64,2]{1,0}) all-gather-start(%w), replica_groups=[2,4]<=[8], dimensions={0}
  %done = bf16[64,2]{1,0} all-gather-done(%g)
  %s = bf16[2,2]{1,0} fusion(%w), kind=kCustom, calls=%all-reduce-scatter.1
  %n = bf16[64,2]{1,0} all-gather(%w), channel_id=9, replica_groups=[2,4]<=[8], frontend_attributes={chain_id="0"}
  %o = bf16[64,2]{1,0} all-gather(%w), channel_id=9, replica_groups=[2,4]<=[8], frontend_attributes={chain_id="0"}
  %m = bf16[16,2]{1,0} collective-permute(%w), source_target_pairs={{0,1},{1,0}}
  %first = s32[] constant(1)
  %start = s32[] copy(%first)
  %init = (s32[], f32[4,8]) tuple(%start, %x0)
  %loop = (s32[], f32[4,8]) while(%init), condition=%condition, body=%body
  ROOT %out = f32[4,8]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_exchanges_by_kind_with_what_a_device_sends_in_a_ring():
    work = read_work(PROGRAM)
    assert work.collectives == {
        "all-gather": Collectives(2, 2 * 64 * 2 * 2, 2 * 64 * 2 * 2 * 3 / 4, "bf16[64,2]"),  # two pieces of one
        "all-reduce": Collectives(6, 6 * 4 * 8 * 4, 6 * 4 * 8 * 4, "f32[4,8]"),  # 2 (k − 1) / k of it, k = 2
        "collective-permute": Collectives(1, 16 * 2 * 2, 16 * 2 * 2, "bf16[16,2]"),
        "reduce-scatter": Collectives(1, 16 * 2 * 2, 16 * 2 * 2 * 7 / 8, "bf16[16,2]"),
    }
    assert work.flops == 6 * 2 * 4 * 8 * 8, "the loop goes from 1 to 7"


@pytest.mark.parametrize(("by", "times"), [(2, 3), (4, 2)])
def test_a_loop_runs_as_often_as_its_counter_steps(by, times):
    work = read_work(PROGRAM.replace("%by = s32[] constant(1)", f"%by = s32[] constant({by})"))
    assert work.flops == times * 2 * 4 * 8 * 8
    assert work.collectives["all-reduce"].count == times


@pytest.mark.parametrize(
    "groups, sent",
    [
        ("{{0,1,2,3},{4,5,6,7}}", 3 / 4),
        ("{}", 7 / 8),
        ("[4,2]<=[2,2,2]T(0,2,1)", 1 / 2),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", 3 / 4),
        ("mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_0'}, use_global_device_ids=true", 1 / 2),
        ("mesh['axis_0'=8] {'axis_0':(2)2}", 1 / 2),
    ],
)
def test_groups_as_compilers_write_them(groups, sent):
    text = PROGRAM.replace("all-gather-start(%w), replica_groups=[2,4]<=[8]", f"all-gather-start(%w), replica_groups={groups}")
    whole = 64 * 2 * 2  # gathered twice: once in pieces by groups of four
    assert read_work(text).collectives["all-gather"].sent == whole * (3 / 4 + sent)


def test_a_loop_of_products_must_say_how_often_it_runs():
    endless = PROGRAM.replace("compare(%j, %bound), direction=LT", "compare(%j, %bound), direction=NE")
    stands = PROGRAM.replace("tuple(%next, %y)", "tuple(%i, %y)")
    for program in (endless, stands):
        with pytest.raises(ValueError, match=r"loop .*: body"):
            read_work(program)
    known = endless.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"4"}}')
    assert read_work(known).collectives["all-reduce"].count == 4


# Products of many heads, as a TPU's compiler writes them: convolutions over margins and holes, where most pairs do not meet.
@pytest.mark.parametrize(
    "out, left, right, attributes, flops",
    [
        ("[2048,4096]", "[2048,1024]", "[1024,4096]", "dim_labels=bf_io->bf", 2 * 2048 * 1024 * 4096),
        (  # scores of 4 rows and 16 heads: each meets its own only
            "[4,16,512,512]", "[4,512,16,64]", "[4,512,16,64]",
            "window={size=4x16 stride=3x15 lhs_dilate=4x16}, dim_labels=0b1f_0o1i->01bf", 2 * 4 * 16 * 512 * 512 * 64,
        ),
        (  # heads and their width summed
            "[2048,1024,1]", "[2048,16,64]", "[16,64,1024]", "window={size=16}, dim_labels=b0f_0io->bf0",
            2 * 2048 * 16 * 64 * 1024,
        ),
        ("[2,5,1]", "[2,5,1]", "[3,1,1]", "window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f", 2 * 2 * (3 * 5 - 2)),
    ],
)  # fmt: skip
def test_products_that_are_written_as_convolutions(out, left, right, attributes, flops):
    lines = [
        "ENTRY %main (a: bf16, b: bf16) -> bf16 {",
        f"  %a = bf16{left} parameter(0)",
        f"  %b = bf16{right} parameter(1)",
        f"  ROOT %c = f32{out} convolution(%a, %b), {attributes}",
        "}",
    ]
    assert read_work("\n".join(["HloModule one", "", *lines])).flops == flops


SLICES = """HloModule slices

%inner (v: f32[24,64]) -> f32[24,64] {
  %v = f32[24,64]{1,0} parameter(0)
  ROOT %same = f32[24,64]{1,0} copy(%v)
}

%reads (a: f32[24,64], i: s32[]) -> f32[1,64] {
  %a = f32[24,64]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %view = f32[24,64]{1,0} fusion(%a), kind=kLoop, output_to_operand_aliasing={{}: (0, {})}, calls=%inner
  ROOT %one = f32[1,64]{1,0} dynamic-slice(%view, %i, %i), dynamic_slice_sizes={1,64}
}

%writes (b: f32[24,64], u: f32[1,64], i: s32[]) -> f32[24,64] {
  %b = f32[24,64]{1,0} parameter(0)
  %u = f32[1,64]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %put = f32[24,64]{1,0} dynamic-update-slice(%b, %u, %i, %i)
}

ENTRY %main (table: f32[24,64], i: s32[]) -> f32[24,64] {
  %table = f32[24,64]{1,0} parameter(0)
  %i = s32[]{:S(6)} parameter(1)
  %row = f32[1,64]{1,0:T(8,128)S(1)} fusion(%table, %i), kind=kLoop, calls=%reads
  ROOT %out = f32[24,64]{1,0} fusion(%table, %row, %i), kind=kLoop, calls=%writes
}
"""


def test_traffic_is_of_the_parts_that_are_read_and_written_and_not_of_memory_on_the_chip():
    row = 64 * 4
    assert read_work(SLICES).bytes == row + row, "read from the table, and written to it; the row itself stays on the chip"
    off_chip = SLICES.replace("S(1)", "")
    assert read_work(off_chip).bytes == 4 * row
    assert np.isclose(read_work(SLICES.replace("dynamic-slice(%view, %i, %i)", "negate(%view)")).bytes, 25 * row)


WITH_KERNEL = """HloModule step, is_scheduled=true

FileNames
1 "/somewhere/bertlab/models/base.py"
2 "/somewhere/site-packages/flax/module.py"
3 "/somewhere/bertlab/models/attention.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=149 end_line=149 column=14 end_column=14}
2 {file_name_id=2 function_name_id=1 line=7 end_line=7 column=14 end_column=14}
3 {file_name_id=3 function_name_id=1 line=69 end_line=69 column=14 end_column=14}

StackFrames
1 {file_location_id=3 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=1 parent_frame_id=3}

%local (a: f32[4,8]) -> f32[4,8] {
  %a = f32[4,8]{1,0} parameter(0)
  ROOT %half = f32[4,8]{1,0} negate(%a), metadata={op_name="jit(step)/cond/branch_1_fun/jvp(runs_2_of_3)/neg" stack_frame_id=3}
}

%full (b: f32[4,8]) -> f32[4,8] {
  %b = f32[4,8]{1,0} parameter(0)
  %k = f32[8,8]{1,0} constant({...})
  ROOT %whole = f32[4,8]{1,0} convolution(%b, %k), dim_labels=bf_io->bf, metadata={op_name="runs_1_of_3/dot"}
}

ENTRY %main (x: f32[4,8], here: s32[]) -> f32[4,8] {
  %x = f32[4,8]{1,0} parameter(0)
  %here = s32[] parameter(1)
  %near = f32[4,8]{1,0:T(8,128)S(1)} copy(%x)
  %once = f32[4,8]{1,0} custom-call(%x, %x, %near), custom_call_target="tpu_custom_call", metadata={op_name="jit(step)/transpose(jvp(attention_backward))/pallas_call" stack_frame_id=1}, backend_config={"custom_call_config":{"body":"x","cost_estimate":{"flops":"640","transcendentals":"1","bytes_accessed":"384"}}}
  %more = f32[4,8]{1,0} custom-call(%x), custom_call_target="tpu_custom_call", metadata={op_name="jit(step)/jvp(flash)/pallas_call"}, backend_config={"custom_call_config":{"cost_estimate":{"flops":"64","bytes_accessed":"1256"}}}
  %other = f32[4,8]{1,0} custom-call(%x), custom_call_target="Sharding"
  ROOT %c = f32[4,8]{1,0} conditional(%here, %once, %more), branch_computations={%full, %local}
}
"""  # noqa: E501


def test_kernels_count_what_they_say_and_arrays_once_and_branches_as_often_as_they_are_named():
    work, array = read_work(WITH_KERNEL), 4 * 4 * 8
    assert work.kernels["attention_backward"] == Kernel(1, 640, 2 * array), "on-chip memory is no traffic"
    assert work.kernels["flash"] == Kernel(1, 64, 1256), "it reads again what it has read"
    assert work.flops == pytest.approx(640 + 64 + 2 * 4 * 8 * 8 / 3)
    branches = 2 / 3 * 2 * array + 1 / 3 * (2 * array + 4 * 64)
    assert work.bytes == pytest.approx(2 * array + 1256 + array + 2 * array + branches)


def test_bytes_have_the_line_that_asks_for_them_and_its_caller():
    sources, array = read_work(WITH_KERNEL).sources, 4 * 4 * 8
    assert sources["models/base.py:149 < models/attention.py:69"] == pytest.approx(2 / 3 * 2 * array)
    assert sources["models/attention.py:69 backward"] == 2 * array
    assert [*sources.values()] == sorted(sources.values(), reverse=True)

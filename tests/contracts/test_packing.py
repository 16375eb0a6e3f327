"""Packed examples are as if each were alone: states, losses and predictions, of every family and every objective."""

import functools

import grain
import jax
import numpy as np
import pytest

from bertlab.config import base_config
from bertlab.data.packing import packed
from bertlab.data.rows import make_row, pad_batch
from bertlab.keys import BY_NAME
from bertlab.models.base import SIDES, sides_of
from bertlab.models.presets import FAMILIES
from bertlab.objectives import REGISTRY
from tests.references import VOCABULARY, metrics_of, quick_jit, random_params, tiny_program, views_of

LENGTH, PACKED, EXAMPLES = 14, 40, 4
OF_POSITIONS = ("tokens", "segments", "documents", "positions")
PAD, CLS, SEP = VOCABULARY.pad_id, VOCABULARY.cls_id, VOCABULARY.sep_id
# In float32 a sum of other terms that are zero is added in another order.
CLOSE = dict(rtol=2e-5, atol=2e-5)
BODIES = [(family, direction) for family, kind in FAMILIES.items() for direction in kind.directions]


def pairs(number: int = 14, seed: int = 0) -> list[dict]:
    """Rows [CLS] A [SEP] B [SEP] of random lengths, with both labels."""
    rng, rows = np.random.default_rng(seed), []
    for i in range(number):
        a, b = (rng.integers(5, VOCABULARY.size, rng.integers(1, 6)) for _ in range(2))
        tokens = np.concatenate([[CLS], a, [SEP], b, [SEP]])
        segments = np.arange(len(tokens)) > len(a) + 1
        labels = rng.integers(-1, 2, 2)
        row = make_row(LENGTH, PAD, tokens, segments, np.ones(len(tokens)), labels[0], (i, 2 * i), labels[1])
        rows.append({**row, "visit": np.int32(i % 3)})
    return rows


@pytest.fixture(scope="module")
def batches():
    """(packed batch, the same examples one a row, in the order in which they are packed), of one shape."""
    rows, data = pairs(), base_config().data
    data.update(seq_len=LENGTH, pack_length=PACKED, pack_examples=EXAMPLES)
    packs = list(packed(grain.MapDataset.source(rows).to_iter_dataset(), data, PAD, seed=0))
    found = [i for pack in packs for i in pack["example_id"][: pack["documents"].max(), 0].tolist()]
    assert sorted(found) == list(range(len(rows))) and len(packs) < len(rows) / 2
    assert any(pack["documents"].max() < EXAMPLES for pack in packs), "a row with places that no example has"
    alone = pad_batch([rows[i] for i in found], len(rows))
    wider = {name: np.pad(values, ((0, 0), (0, PACKED - LENGTH))) for name, values in alone.items() if name in OF_POSITIONS}
    return pad_batch(packs, len(rows)), alone | wider


def places_of(documents: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """(row, positions there) of every packed example."""
    found = [(row, np.flatnonzero(of_row == n)) for row, of_row in enumerate(documents) for n in range(1, of_row.max() + 1)]
    assert all(len(places) for _, places in found)
    return found


def one_a_row(view: dict) -> dict:
    """A packed view's fields of positions, each example in a row of its own."""
    shape, rows = view["documents"].shape, places_of(view["documents"])
    apart = {name: np.zeros((len(rows), shape[1]), v.dtype) for name, v in view.items() if v.shape == shape}
    for i, (row, places) in enumerate(rows):
        for name, values in apart.items():
            values[i, : len(places)] = view[name][row, places]
    return {**apart, "documents": (apart["documents"] > 0).astype(np.int32)}


def body(family, direction, names="", **model):
    # Windows smaller than the examples, in every second layer.
    windows = {"local_window": 4, "global_every": 2} if family == "modern" else {}
    layers = {} if family == "static" else {"layers": 3}
    return tiny_program(family, names, direction=direction, **layers, **windows, **model)


@functools.cache
def encoder(family, direction, **model):
    """A body and its compiled function of (params, view), for every test of its states."""
    program = body(family, direction, **model)
    return program, quick_jit(program.encode)


def assert_states_are_those_alone(family, direction, packed_view, alone_view, **model):
    fields = [name for name in (*OF_POSITIONS, "order", "shown_at") if name in packed_view]
    packed_view, alone_view = ({name: view[name] for name in fields} for view in (packed_view, alone_view))
    program, encode = encoder(family, direction, **model)
    params = random_params(program, packed_view)
    together, alone = (jax.device_get(encode(params, view)) for view in (packed_view, alone_view))
    sides = [side for side in SIDES if getattr(together, side) is not None]
    assert sides
    for side in sides:
        for layer, expected in zip(getattr(together, side), getattr(alone, side), strict=True):
            for i, (row, places) in enumerate(places_of(packed_view["documents"])):
                np.testing.assert_allclose(layer[row, places], expected[i, : len(places)], **CLOSE, err_msg=side)


@pytest.mark.parametrize(("family", "direction"), BODIES)
def test_states_of_a_packed_example_are_those_of_it_alone(family, direction, batches):
    assert_states_are_those_alone(family, direction, *batches)


@pytest.mark.parametrize("positions", BY_NAME["model.position_encoding"].choices)
def test_all_kinds_of_positions_begin_anew_in_each_example(positions, batches):
    assert_states_are_those_alone("bert", "bidirectional", *batches, position_encoding=positions)


def first_body(name) -> tuple[str, str]:
    kind = REGISTRY[name]
    return next(
        (family, direction)
        for family, direction in BODIES
        if family in (kind.families or FAMILIES) and kind.reads in ("any", *sides_of(family, direction))
    )


@pytest.mark.parametrize("name", [name for name, kind in REGISTRY.items() if kind().has_view and "counts" not in kind.needs])
def test_what_an_objective_shows_keeps_examples_apart(name, batches):
    family, direction = first_body(name)
    view = views_of(body(family, direction, name), batches[0])[name]
    assert (view["tokens"][:, :PACKED] != batches[0]["tokens"]).any() or "order" in view
    assert_states_are_those_alone(family, direction, view, one_a_row(view))


def assert_same_metrics(found, expected):
    assert found.keys() == expected.keys()
    for metric, pair in found.items():
        assert float(pair[1]) == float(expected[metric][1]) > 0, metric
        np.testing.assert_allclose(pair[0], expected[metric][0], rtol=2e-5, err_msg=metric)


SEE_THE_TEXT = [name for name, kind in REGISTRY.items() if kind.sees in ("clean", "any") and "counts" not in kind.needs]


@pytest.mark.parametrize(
    ("family", "direction"),
    # Others of their directions have the same body.
    [(f, direction) for f, direction in BODIES if f not in ("gpt", "modern") or direction == FAMILIES[f].directions[0]],
)
def test_losses_of_what_sees_the_text_are_those_of_examples_alone(family, direction, batches):
    names = [name for name in SEE_THE_TEXT if REGISTRY[name].reads in ("any", *sides_of(family, direction))]
    program = body(family, direction, "+".join(names))
    params, metrics = random_params(program, batches[0]), quick_jit(program.metrics)
    fields = {*OF_POSITIONS, *(field for name in names for field in REGISTRY[name].needs)}
    views = (program.views({field: batch[field] for field in fields}, jax.random.key(0)) for batch in batches)
    found, expected = (metrics(params, view) for view in views)
    assert {f"{name}/loss" for name in names} <= found.keys()
    assert_same_metrics(found, expected)


@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_mlm_and_nsp_of_packed_pairs_are_those_of_pairs_alone(family, batches):
    """The same masks: those of the packed rows, taken apart with them."""
    together, alone = batches
    program = body(family, "bidirectional", "mlm+nsp")
    view = views_of(program, together)["mlm"]
    assert view["masked_weights"].sum() > 6

    apart = {**alone, **one_a_row(view)}
    slots = view["masked_positions"].shape[1]
    masked = {name: np.zeros((len(alone["tokens"]), slots), view[name].dtype) for name in view if name.startswith("masked_")}
    first = np.cumsum([0, *together["documents"].max(axis=1)])
    for row, slot in zip(*np.nonzero(view["masked_weights"])):
        place = view["masked_positions"][row, slot]
        number = together["documents"][row, place]
        example = first[row] + number - 1
        free = int(masked["masked_weights"][example].sum())
        masked["masked_positions"][example, free] = place - np.argmax(together["documents"][row] == number)
        masked["masked_labels"][example, free] = view["masked_labels"][row, slot]
        masked["masked_weights"][example, free] = True
    params = random_params(program, together)
    found, expected = (metrics_of(program, params, {"mlm": v}) for v in (view, apart | masked))
    assert (alone["pair_label"] >= 0).sum() == float(found["nsp/loss"][1])
    assert_same_metrics(found, expected)


def test_static_masks_are_a_function_of_the_examples_of_a_row(batches):
    """Whatever row of the batch they lie in, and whatever else is in it; another visit, or one other example, changes them."""
    batch, mlm = batches[0], REGISTRY["mlm"](static=True, mask_share=1.0, random_share=0.0)
    view = jax.jit(lambda batch, key: mlm.view(batch, key, VOCABULARY, 0.0))
    chosen = lambda batch, key: np.asarray(view(batch, jax.random.key(key))["tokens"]) == VOCABULARY.mask_id
    expected = chosen(batch, 0)
    np.testing.assert_array_equal(chosen({name: values[::-1] for name, values in batch.items()}, 1)[::-1], expected)
    for name in ("visit", "example_id"):
        other = {**batch, name: batch[name].copy()}
        other[name][0, 1] += 1
        changed = (chosen(other, 0) != expected).any(axis=1)
        assert changed[0] and not changed[1:].any(), name

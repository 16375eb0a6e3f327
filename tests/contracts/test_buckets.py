"""A batch that is cut to its bucket has the losses of the padded one, with the same masks."""

import jax
import numpy as np
import pytest

from bertlab.data.buckets import cut
from tests.references import quick_jit, random_params, tiny_program, views_of

CASES = [
    ("bert", "bidirectional", "mlm+nsp"),
    ("modern", "bidirectional", "mlm+sop"),
    ("gpt", "left-to-right", "ltr"),
    ("elmo", "bidirectional", "ltr+rtl+nsp"),
    ("awd_lstm", "left-to-right", "ltr+ar+tar"),
    ("awd_lstm", "right-to-left", "rtl+ar+tar"),
]


@pytest.mark.parametrize(("family", "direction", "names"), CASES)
def test_losses_do_not_depend_on_the_padding_that_is_cut_off(family, direction, names, packed_batch):
    program, batch = tiny_program(family, names, direction=direction), packed_batch(rows=4, length=14)
    filled = int((batch["documents"] > 0).sum(axis=1).max())
    wide = {name: np.pad(v, ((0, 0), (0, 10))) if v.shape == (4, 14) else v for name, v in batch.items()}
    params, views = random_params(program, wide), views_of(program, wide)
    rows = lambda view: [{name: values[row] for name, values in view.items()} for row in range(4)]
    narrow = {
        name: jax.tree.map(lambda *parts: np.stack(parts), *(cut(row, filled) for row in rows(view)))
        for name, view in views.items()
    }
    assert all(view["tokens"].shape == (4, filled) for view in narrow.values()) and filled < 14
    metrics = quick_jit(program.metrics)
    found, expected = metrics(params, narrow), metrics(params, views)
    assert {f"{name}/loss" for name in names.split("+")} <= found.keys() == expected.keys()
    for name, pair in found.items():
        # Zeros are left out of sums, which float32 then adds in another order.
        np.testing.assert_allclose(pair, expected[name], rtol=2e-5, err_msg=name)

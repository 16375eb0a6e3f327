"""AR and TAR equal NumPy, leave out padding (here NaN) and document borders, and read the right
layer."""

import numpy as np

from bertlab.models.base import Encoded
from bertlab.objectives.autoregressive import (
    ActivationRegularisation,
    TemporalActivationRegularisation,
)
from bertlab.objectives.base import Model

RNG = np.random.default_rng(0)
DOCUMENTS = np.array([[1, 1, 2, 2, 2, 0, 0], [1, 1, 1, 3, 3, 3, 3]], np.int32)
RAW, DROPPED, LOWER = (
    np.where((DOCUMENTS > 0)[:, :, None], RNG.normal(size=(2, 7, 3)), np.nan).astype(np.float32)
    for _ in range(3)
)


def loss(objective, encoded):
    model = Model(lambda: encoded, None, None, None, None)
    return [float(x) for x in objective.loss(model, {"documents": DOCUMENTS})["loss"]]


def squared(values):
    return float((np.float64(values) ** 2).sum())


def test_ar_is_the_squared_last_layer_of_the_widest_side_after_its_dropout():
    for encoded, last in (
        (Encoded(backward=(LOWER, RAW), dropped={"backward": DROPPED}), DROPPED),
        (Encoded(forward=(LOWER, LOWER), both=(LOWER, RAW)), RAW),
    ):
        expected = [squared(last[DOCUMENTS > 0]), 12 * 3]
        np.testing.assert_allclose(loss(ActivationRegularisation(), encoded), expected, rtol=1e-6)


def test_tar_is_the_raw_layers_change_within_documents():
    expected, number = 0.0, 0
    for row, documents in enumerate(DOCUMENTS):
        for t in range(6):
            if documents[t] and documents[t] == documents[t + 1]:
                expected, number = expected + squared(RAW[row, t + 1] - RAW[row, t]), number + 3
    assert number == (1 + 2 + 2 + 3) * 3
    encoded = Encoded(forward=(LOWER, RAW), dropped={"forward": DROPPED})
    np.testing.assert_allclose(
        loss(TemporalActivationRegularisation(), encoded), [expected, number], rtol=1e-6
    )

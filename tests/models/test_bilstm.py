"""ELMo's projected and clipped LSTMs equal a NumPy reference (bilm-tf's rules)."""

import jax
import numpy as np
import pytest

from bertlab.objectives import Vocabulary
from tests.references import hidden_states, initial, random_params, sigmoid, tiny_program


def run_direction(body, tokens, documents, side, clipped):
    """Hidden states [L, D] of every layer of one row, one position after the other."""
    x = np.float64(body["token_embedding"])[tokens]
    layers = [x]
    order = range(len(tokens)) if side == "forward" else range(len(tokens))[::-1]
    for number in range(2):
        p = {name: np.float64(value) for name, value in body[f"{side}_{number}"].items()}
        outputs, previous = np.zeros_like(x), None
        for t in order:
            if previous is None or documents[t] != documents[previous]:
                cell, state = np.zeros(p["bias"].shape[1]), np.zeros(x.shape[1])
            i, j, f, o = (x[t] @ p["input_kernel"][:, g] + state @ p["recurrent_kernel"][:, g] + p["bias"][g] for g in range(4))
            cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(j)
            clipped["cell"] += np.sum(np.abs(cell) > 3)
            cell = np.clip(cell, -3, 3)
            state = (sigmoid(o) * np.tanh(cell)) @ p["projection"]
            clipped["state"] += np.sum(np.abs(state) > 3)
            outputs[t] = state = np.clip(state, -3, 3)
            previous = t
        x = outputs + (x if number else 0)
        layers.append(x)
    return layers


@pytest.mark.parametrize("direction", ["bidirectional", "left-to-right", "right-to-left"])
def test_forward_pass_equals_numpy(direction, packed_batch):
    names = {"bidirectional": "ltr+rtl", "left-to-right": "ltr", "right-to-left": "rtl"}[direction]
    program, batch = tiny_program("elmo", names, direction=direction, layers=2), packed_batch(rows=2, length=24)
    params = random_params(program, batch)
    # Large biases and projections, so that both clips act, and weak recurrence, so that rounding errors do not grow.
    for name in (name for name in params["body"] if name[:-2] in ("forward", "backward")):
        for kind, factor in {"bias": 5.0, "projection": 4.0, "recurrent_kernel": 0.2}.items():
            params["body"][name][kind] *= factor
    encoded, clipped = hidden_states(program, params, batch), {"cell": 0, "state": 0}
    sides = {"forward": encoded.forward, "backward": encoded.backward}
    assert [s for s in sides if sides[s] is not None] == {"ltr": ["forward"], "rtl": ["backward"]}.get(names, list(sides))
    for side, layers in sides.items():
        for row in range(2 if layers else 0):
            expected = run_direction(params["body"], batch["tokens"][row], batch["documents"][row], side, clipped)
            for ours, theirs in zip(layers, expected, strict=True):
                np.testing.assert_allclose(ours[row], theirs, rtol=1e-5, atol=1e-5)
    assert min(clipped.values()) > 0, "else the clips were not tried"
    if direction == "bidirectional":
        for both, *apart in zip(encoded.both, encoded.forward, encoded.backward, strict=True):
            np.testing.assert_array_equal(both, np.concatenate(apart, -1))


def test_cell_of_the_original_has_18890752_parameters(packed_batch):
    """And 75,563,008 in two layers of two directions (the specification's arithmetic for bilm-tf)."""
    program = tiny_program("elmo", "ltr+rtl", size="original", layers=2, width=None, hidden=None)
    body = jax.eval_shape(program.init, jax.random.key(0), packed_batch())["body"]
    sizes = [
        sum(leaf.size for leaf in jax.tree.leaves(body[f"{side}_{i}"])) for side in ("forward", "backward") for i in (0, 1)
    ]
    assert sizes == [18_890_752] * 4


def test_initial_values(packed_batch):
    program = tiny_program("elmo", "ltr+rtl", Vocabulary(1000, 0, 1, 2, 3, 4), width=64, hidden=64)
    params = initial(program, packed_batch())["body"]
    embedding = np.asarray(params["token_embedding"])
    assert np.abs(embedding).max() <= 1 and embedding.std() == pytest.approx(3**-0.5, rel=0.02), "uniform (-1, 1)"
    assert float(params["output"]["kernel"].std()) == pytest.approx(64**-0.5, rel=0.02)
    assert not np.any(params["forward_0"]["bias"]), "the forget gate's 1 is added at run time"
    assert (np.asarray(params["forward_0"]["input_kernel"]) != np.asarray(params["backward_0"]["input_kernel"])).all()

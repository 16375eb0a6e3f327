"""One view, one forward pass; and what an objective is shown or starts from does not depend on its neighbours."""

import dataclasses
import re
from typing import ClassVar

import jax
import jax.extend
import numpy as np
import pytest

from bertlab import objectives
from bertlab.config import base_config
from bertlab.models.presets import build_body, model_shape
from bertlab.objectives.program import Program, group_by_view
from tests.references import VOCABULARY, initial, random_params, tiny_program, views_of


def equations(jaxpr):
    """All equations of a jaxpr, those of its inner ones included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from equations(getattr(inner, "jaxpr", inner))


def body_passes(program, batch):
    """Forward passes of the body in the program's metrics: its recurrences and attentions, in units of one `encode`."""
    params, views = random_params(program, batch), views_of(program, batch)

    def mixing(function, *arguments):
        found = list(equations(jax.make_jaxpr(function)(*arguments).jaxpr))
        # The attention's two products are the only ones with batch dimensions.
        products = [e for e in found if e.primitive.name == "dot_general" and e.params["dimension_numbers"][1][0]]
        return len(products) + sum(e.primitive.name == "scan" for e in found)

    return mixing(program.metrics, params, views) / mixing(program.encode, params, next(iter(views.values())))


@pytest.mark.parametrize(
    ("family", "names", "passes"),
    [
        ("bert", "mlm", 1),
        ("bert", "mlm+nsp", 1),
        ("bert", "nsp", 1),
        ("elmo", "ltr", 1),
        ("elmo", "ltr+rtl", 1),
        ("elmo", "ltr+rtl+nsp", 1),
        ("elmo", "mlm+ltr+nsp+rtl", 2),
    ],
)
def test_objectives_that_share_a_view_share_the_forward_pass(family, names, passes, packed_batch):
    program = tiny_program(family, names, layers=2)
    assert body_passes(program, packed_batch()) == passes == len(group_by_view(program.objectives))


def test_one_forward_pass_is_what_is_lowered(packed_batch):
    batch = packed_batch()
    lowered = []
    for names in ("mlm", "mlm+nsp"):
        program = tiny_program("bert", names, layers=2)
        params, views = random_params(program, batch), views_of(program, batch)
        text = jax.jit(program.metrics).lower(params, views).as_text()
        lowered.append(len(re.findall(r"dot_general .*batching_dims", text)))
    assert lowered[0] == lowered[1] > 0


def test_groups():
    groups = lambda names: group_by_view({name: objectives.find(name)() for name in names.split("+")})
    assert groups("mlm+nsp") == {"mlm": ("mlm", "nsp")}
    assert groups("nsp+mlm") == {"mlm": ("mlm", "nsp")}
    assert groups("nsp") == {"clean": ("nsp",)}
    assert groups("ltr+rtl") == {"clean": ("ltr", "rtl")}
    assert groups("nsp+electra") == {"electra": ("electra",), "clean": ("nsp",)}
    assert groups("nsp+permutation+ltr") == {"permutation": ("permutation",), "clean": ("ltr", "nsp")}
    assert groups("electra+nsp+mlm+ltr") == {"electra": ("electra",), "mlm": ("mlm", "nsp"), "clean": ("ltr",)}
    assert groups("mlm+ltr") == {"mlm": ("mlm",), "clean": ("ltr",)}


def test_masks_do_not_depend_on_what_is_trained_beside(packed_batch):
    batch = packed_batch(length=24)
    alone = views_of(tiny_program("elmo", "mlm"), batch, seed=7)["mlm"]
    for names in ("mlm+nsp", "nsp+mlm", "ltr+mlm+rtl"):
        beside = views_of(tiny_program("elmo", names), batch, seed=7)["mlm"]
        for field in alone:
            np.testing.assert_array_equal(alone[field], beside[field], err_msg=f"{names} {field}")


def test_two_objectives_with_a_view_of_their_own_draw_apart(packed_batch):
    config = base_config()
    config.model.update(family="bert", layers=1, width=8, hidden=12, heads=2)
    mlm = objectives.find("mlm")()
    program = Program(build_body(model_shape(config.model, 50)), {"mlm": mlm, "other": mlm}, VOCABULARY)
    views = views_of(program, packed_batch(rows=16, length=24))
    assert (views["mlm"]["masked_positions"] != views["other"]["masked_positions"]).any()


@dataclasses.dataclass(frozen=True)
class Silent(objectives.Objective):
    """Asks the body for its states and nothing of them."""

    reads: ClassVar[str] = "any"

    def loss(self, model, view):
        return {"loss": (model.encoded.widest()[1][-1].sum() * 0.0, jax.numpy.float32(1.0))}


@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_initial_body_does_not_depend_on_the_objectives(family, packed_batch):
    batch = packed_batch()
    settings = [("mlm", {}), ("mlm+nsp", {}), ("ltr", {"direction": "left-to-right"})]
    bodies = []
    for names, model in settings:
        program = tiny_program(family, names, **model)
        tree = initial(program, batch, seed=5)["body"]
        bodies.append({jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)})
    program = dataclasses.replace(program, objectives={"silent": Silent()})
    tree = initial(program, batch, seed=5)["body"]
    bodies.append({jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)})
    for other in bodies[1:]:
        shared = [name for name in bodies[0] if name in other and bodies[0][name].shape == other[name].shape]
        assert sum("embedding" in name for name in shared) and len(shared) >= 5
        for name in shared:
            np.testing.assert_array_equal(bodies[0][name], other[name], err_msg=name)
    another = initial(program, batch, seed=6)["body"]
    assert (np.asarray(another["token_embedding"]) != bodies[0]["['token_embedding']"]).any()

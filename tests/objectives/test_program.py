"""One view, one forward pass; and what an objective is shown or starts from does not depend on its neighbours."""

import jax
import jax.extend
import numpy as np
import pytest

from bertlab import objectives
from bertlab.objectives.program import Program, group_by_view
from tests.references import VOCABULARY, quick_jit, tiny_program, views_of


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
    views = jax.eval_shape(program.views, batch, jax.random.key(0))
    params = jax.eval_shape(program.init, jax.random.key(0), batch)

    def mixing(function, *arguments):
        found = list(equations(jax.make_jaxpr(function)(*arguments).jaxpr))
        # The attention's two products are the only ones with batch dimensions.
        products = [e for e in found if e.primitive.name == "dot_general" and e.params["dimension_numbers"][1][0]]
        return len(products) + sum(e.primitive.name == "scan" for e in found)

    return mixing(program.metrics, params, views) / mixing(program.encode, params, next(iter(views.values())))


@pytest.mark.parametrize(
    ("family", "names", "passes"),
    [
        ("bert", "mlm+nsp", 1),
        ("bert", "nsp", 1),
        ("elmo", "ltr+rtl", 1),
        ("elmo", "mlm+ltr+nsp+rtl", 2),
    ],
)
def test_objectives_that_share_a_view_share_the_forward_pass(family, names, passes, packed_batch):
    program = tiny_program(family, names, layers=2)
    assert body_passes(program, packed_batch()) == passes == len(group_by_view(program.objectives))


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


def views_without_body(named, batch, seed: int = 0):
    return views_of(Program(None, named, VOCABULARY), batch, seed)


def test_masks_do_not_depend_on_what_is_trained_beside(packed_batch):
    batch = packed_batch(length=24)
    found = lambda names: {name: objectives.find(name)() for name in names.split("+")}
    alone = views_without_body(found("mlm"), batch, seed=7)["mlm"]
    for names in ("nsp+mlm", "ltr+mlm+rtl"):
        beside = views_without_body(found(names), batch, seed=7)["mlm"]
        for field in alone:
            np.testing.assert_array_equal(alone[field], beside[field], err_msg=f"{names} {field}")


def test_two_objectives_with_a_view_of_their_own_draw_apart(packed_batch):
    mlm = objectives.find("mlm")()
    views = views_without_body({"mlm": mlm, "other": mlm}, packed_batch(rows=16, length=24))
    assert (views["mlm"]["masked_positions"] != views["other"]["masked_positions"]).any()


@pytest.mark.parametrize(
    ("family", "names", "others", "direction"),
    [("bert", "mlm+nsp", "ltr", "left-to-right"), ("elmo", "ltr+rtl", "mlm+nsp", "bidirectional")],
)
def test_initial_body_does_not_depend_on_the_objectives(family, names, others, direction, packed_batch):
    batch = packed_batch()

    def body_of(program, *seeds):
        init = quick_jit(program.init)
        trees = [init(jax.random.key(seed), batch)["body"] for seed in seeds]
        return [{jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree.leaves_with_path(tree)} for tree in trees]

    one, of_another_seed = body_of(tiny_program(family, names), 5, 6)
    (other,) = body_of(tiny_program(family, others, direction=direction), 5)
    shared = [name for name in one if name in other and one[name].shape == other[name].shape]
    assert sum("embedding" in name for name in shared) and len(shared) >= 5
    for name in shared:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    assert (of_another_seed["['token_embedding']"] != one["['token_embedding']"]).any()

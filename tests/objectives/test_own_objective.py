"""Objectives from a file outside the package: they run as the built-in ones do, and a mistake in one is named with its line."""

import dataclasses
import importlib

import jax
import pytest

from bertlab.config import load_config
from bertlab.errors import UserError
from bertlab.objectives import REGISTRY, MaskedLanguageModel, find, has_mask_rate
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.checks import check_config
from bertlab.train.cost import body_flops
from bertlab.train.record import Diverged
from tests.conftest import ROOT
from tests.references import quick_jit, tiny_program

RECIPE = f"{ROOT}/experiments/pretrain/bert.py:objectives={{}}:Own"

SOURCE = '''
import dataclasses

import jax.numpy as jnp

from bertlab.models import Dense
from bertlab.objectives import Objective, cross_entropy


@dataclasses.dataclass(frozen=True)
class Own(Objective):
    """Is a position's token even?"""

    reads = "both"
    sees = "own"
    asks = "positions"

    def view(self, batch, key, vocabulary, progress):
        even = batch["tokens"] % 2
        return {**batch, "even": even}

    def head(self, body):
        return Dense(2, axes=("embed", None))

    def loss(self, model, view):
        logits = model.head(model.encoded.both[-1]).astype(jnp.float32)
        return cross_entropy(logits, view["even"], view["documents"] > 0)
'''


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A function (old text, new text) -> the file of the objective with that change, and the number of a line in it."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(old: str = "", new: str = "", line: str = ""):
        assert old in SOURCE
        path = tmp_path / f"own_{abs(hash((str(tmp_path), old, new)))}.py"
        path.write_text(SOURCE.replace(old, new, 1) if old else SOURCE)
        importlib.invalidate_caches()
        return path, next(n for n, text in enumerate(path.read_text().splitlines(), 1) if line in text)

    return write


def metrics_of(path, batch):
    """The metrics of fresh parameters."""
    program = dataclasses.replace(tiny_program("bert", ""), objectives={"Own": find(f"{path.stem}:Own")()})

    def compute(batch):
        params = program.init(jax.random.key(0), batch)
        return program.metrics(params, program.views(batch, jax.random.key(0)))

    return compute, batch


def test_it_runs_as_it_stands(written, packed_batch):
    compute, batch = metrics_of(written()[0], packed_batch())
    loss, weight = quick_jit(compute)(batch)["Own/loss"]
    assert 0.2 < float(loss / weight) < 2.0


METHOD = "    def view"
SCORED = "    def scoring(self):\n        import bertlab\n        return bertlab.objectives.Scoring(('at the mask',))\n\n"
# (what stands there, what is written instead, the line that is at fault, what is said of it)
MISTAKES = [
    ('view["even"]', 'view["odd"]', 'view["odd"]', r"there is no 'odd' \(KeyError in loss\(\)\)"),
    ('batch["tokens"] % 2', 'batch["words"] % 2', 'batch["words"]', r"there is no 'words' \(KeyError in view\(\)\)"),
    ('view["even"], view', 'view["even"][:, :3], view', "cross_entropy(logits", r"\((TypeError|ValueError) in loss\(\)\)"),
    ("model.encoded.both[-1]", "model.encoded.forward[-1]", "encoded.forward", r"not subscriptable \(TypeError in loss"),
    ("Dense(2, ", "Dense(", "Dense(axes", r"missing .* argument: 'features' \(TypeError in head\(\)\)"),
    ('"even": even}', '"even": even.sum()}', "def view", r"view\(\)\['even'\] must have the batch's 4 rows .* shape \(\)"),
    ("return {**batch", "{**batch", "def view", r"view\(\) must return a dict of arrays, got NoneType"),
    ('{**batch, "even": even}', '{"even": even}', "def view", r"must keep the batch's field 'tokens'"),
    ('{**batch, "even"', '{**batch, "tokens": even / 2, "even"', "def view", r"\['tokens'\] must be integers .* got float"),
    ('{**batch, "even"', '{**batch, "tokens": even[:, :5], "even"', "def view", r"must be integers with the shape of 'tokens'"),
    ("return cross_entropy", "cross_entropy", "def loss", r"loss\(\) must return a dict with the key 'loss', got NoneType"),
    ("return cross_entropy(logits", 'return {"nll": 1.0} or (logits', "def loss", r"got a dict with the keys 'nll'"),
    ("return cross_entropy(logits", 'return {"loss": logits} or (logits', "def loss", r"two scalars, got shape \(4, 12, 2\)"),
    (
        METHOD,
        SCORED + METHOD,
        "def loss",
        r"define token_logits\(\) .* \(TypeError in loss\(\)\)",
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "message"), MISTAKES)
def test_a_mistake_is_named_with_its_file_and_line(old, new, line, message, written, packed_batch):
    path, number = written(old, new, line)
    with pytest.raises(UserError, match=message) as error:
        jax.eval_shape(*metrics_of(path, packed_batch()))
    assert str(error.value).startswith(f"objective Own: {path}, line {number}: ")
    assert "\n" not in str(error.value)


UNBUILT = [
    ("import dataclasses", "import nowhere", "nowhere", r"No module named 'nowhere' \(ModuleNotFoundError as it is imported"),
    (
        "import dataclasses",
        "import dataclasses as d",
        "@dataclasses",
        r"name 'dataclasses' is not defined \(NameError as it is",
    ),
    (
        '    reads = "both"',
        '    from bertlab.keys import setting\n    every: int = setting(4, leest=2)\n\n    reads = "both"',
        "setting(4",
        r"leest.* \(TypeError as it is imported",
    ),
    (METHOD, f"    def __post_init__(self):\n        int('x')\n\n{METHOD}", "int('x')", r"\(ValueError in __post_init__\(\)"),
    (METHOD, f"    def check(self, vocabulary):\n        vocabulary.x\n\n{METHOD}", "vocabulary.x", r"in check\(\)\)"),
    (METHOD, f"    def extra_flops(self, s, n):\n        return s.x\n\n{METHOD}", "s.x", r"in extra_flops\(\)\)"),
    (
        METHOD,
        f"    def flops_per_prediction(self, s):\n        return s.x\n\n{METHOD}",
        "s.x",
        r"in flops_per_prediction\(\)\)",
    ),
    (
        METHOD,
        f"    def guessing(self, counts, batches):\n        return batches.x\n\n{METHOD}",
        "batches.x",
        r"in guessing\(\)\)",
    ),
    (METHOD, f"    def scoring(self):\n        return self.x\n\n{METHOD}", "self.x", r"in scoring\(\)\)"),
    (
        METHOD,
        f"    def scoring(self):\n        return ('forward',)\n\n{METHOD}",
        "def scoring",
        r"a Scoring, got tuple \(TypeError in sc",
    ),
    (
        METHOD,
        f"    def scoring(self):\n        import bertlab\n        return bertlab.objectives.Scoring(('forwards',))\n\n{METHOD}",
        "objectives.Scoring",
        r"ways=\('forwards',\) .* 'forward', .* \(ValueError in scoring\(\)\)",
    ),
    (
        METHOD,
        f"    def scoring(self):\n        import bertlab\n        return bertlab.objectives.Scoring(('forward',))\n\n{METHOD}",
        "def scoring",
        r"'forward' .* reads='both' .* \(ValueError in scoring\(\)\)",
    ),
    (
        METHOD,
        f"    def scoring(self):\n        import bertlab\n        return bertlab.objectives.Scoring(lacks=3)\n\n{METHOD}",
        "Scoring(lacks",
        r"lacks=3 .* \(ValueError in scoring\(\)\)",
    ),
    (METHOD, f"    scoring = property(lambda self: None)\n\n{METHOD}", "@dataclasses", r"\(TypeError in scoring\(\)\)"),
]


@pytest.mark.parametrize(("old", "new", "line", "message"), UNBUILT)
def test_a_mistake_before_the_first_batch_is_named_too(old, new, line, message, small_config, written):
    path, number = written(old, new, line)
    with pytest.raises(UserError, match=message) as error:
        body_flops(build_pretraining(small_config(RECIPE.format(path.stem))).phases[0])
    assert f"{path}, line {number}: " in str(error.value) and "\n" not in str(error.value)


def test_a_mistake_in_a_view_that_is_checked_before_any_batch_is_named(small_config, written):
    path, line = written('batch["tokens"] % 2', 'batch["words"] % 2', 'batch["words"]')
    with pytest.raises(UserError) as error:
        check_config(small_config(RECIPE.format(path.stem), model__attention="pallas", model__dropout=0.0, data__seq_len=128))
    assert str(error.value).startswith(f"objective Own: {path}, line {line}: ")


@pytest.mark.parametrize(
    ("needs", "message"),
    [('"pair_label"', r"needs='pair_label' must be a tuple"), ('("words",)', r"needs words")],
)
def test_needs_that_no_batch_can_meet_are_refused(needs, message, small_config, written):
    path, _ = written('    sees = "own"', f'    sees = "own"\n    needs = {needs}')
    with pytest.raises(UserError, match=message):
        check_config(small_config(RECIPE.format(path.stem)))


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ('sees = "owns"', r"sees='owns' .* mlm, electra"),
        ('sees = "ltr"', r"sees='ltr' names no"),
        ('sees = "clean"', r"sees='clean' never calls its view\(\)"),
        ('sees = "own"\n    families = ("brt",)', r"no family 'brt'; .* bert, gpt"),
    ],
)
def test_a_name_that_is_none_is_refused(declared, message, small_config, written):
    path, _ = written('sees = "own"', declared)
    with pytest.raises(UserError, match=message):
        check_config(small_config(RECIPE.format(path.stem)))


def test_a_way_needs_a_side_that_the_model_gives(small_config, written):
    scoring = "import bertlab\n        return bertlab.objectives.Scoring(('forward',))"
    path, line = written('    reads = "both"', f'    def scoring(self):\n        {scoring}\n\n    reads = "any"', "def scoring")
    config = small_config(RECIPE.format(path.stem))
    with pytest.raises(UserError, match=f"{path}, line {line}: .*'forward'"):
        check_config(config)
    config.model.direction = "left-to-right"
    check_config(config)


@pytest.mark.parametrize("own", ["", "    def __post_init__(self): ...\n\n"])
def test_its_settings_keep_the_limits_that_it_gives_them(own, small_config, written):
    limited = "    from bertlab.keys import setting\n    every: int = setting(4, least=2)\n\n"
    path, _ = written('    reads = "both"', f'{limited}{own}    reads = "both"')
    config = small_config(RECIPE.format(path.stem), objectives__Own__every=2)
    check_config(config)
    config.objectives.Own.every = 1
    with pytest.raises(UserError, match=r"^config\.objectives\.Own: every=1 "):
        check_config(config)


def test_built_in_objectives_with_a_mask_rate_are_those_that_mask():
    assert {name for name, kind in REGISTRY.items() if has_mask_rate(kind)} == {"mlm", "masked_next_token", "electra"}


@pytest.mark.parametrize(("corrupts", "rate"), [(True, 0.4), (False, 3.0)])
def test_only_an_objective_with_a_corruption_takes_the_recipe_s_mask_rate(corrupts, rate, small_config, written):
    corruption = "\n\n    def corruption(self, view, vocabulary): ..." if corrupts else ""
    bounded = "__import__('bertlab.keys').keys.setting(3.0, most=1)"  # a bound says nothing of what the rate is
    path, _ = written('    asks = "positions"', f'    asks = "positions"\n    rate: float = {bounded}{corruption}')
    recipe = f"{RECIPE.format(path.stem).replace('objectives=', 'objectives=mlm+')},mask_rate=0.4"
    found = load_config(recipe).objectives
    assert (found.mlm.rate, found.Own.rate) == (0.4, rate)


@pytest.mark.parametrize("weight", ['jnp.log(1.0 * (view["documents"] == 0))', '-1.0 * (view["documents"] > 0)'])
def test_a_weight_that_is_none_stops_the_run_with_name_and_line(weight, small_config, tmp_path, written):
    path, line = written('view["documents"] > 0)', f"{weight})", "def loss")
    fault = r"the weight of loss\(\)\['(loss|accuracy)'\] is not finite, or negative, at step 0"
    with pytest.raises(Diverged, match=rf"objective Own: {path}, line {line}: {fault}"):
        loop.train(small_config(RECIPE.format(path.stem), train__steps=3), tmp_path / "run")


def test_a_mistake_in_what_an_evaluation_keeps_is_named_too(written, packed_batch):
    path, line = written(METHOD, f"    def outputs(self, model, view):\n        return view.x\n\n{METHOD}", "view.x")
    program, batch = (
        dataclasses.replace(tiny_program("bert", ""), objectives={"Own": find(f"{path.stem}:Own")()}),
        packed_batch(),
    )
    params, views = jax.eval_shape(program.init, jax.random.key(0), batch), program.views(batch, jax.random.key(0))
    with pytest.raises(UserError, match=rf"objective Own: {path}, line {line}: .* in outputs\(\)\)"):
        jax.eval_shape(lambda params: program.evaluate(params, views, {}), params)


def test_what_goes_wrong_in_the_package_keeps_its_traceback(monkeypatch, packed_batch):
    def broken(self, model, view):
        return {"loss": (view["nothing"], 1.0)}

    monkeypatch.setattr(MaskedLanguageModel, "loss", broken)
    program, batch = tiny_program("bert", "mlm"), packed_batch()
    with pytest.raises(KeyError, match="nothing"):
        jax.eval_shape(program.init, jax.random.key(0), batch)

"""A run that is too good to be true is so to `bertlab doctor` and to the report of its study alike."""

import contextlib
import json

import numpy as np
import pytest
from conftest import objectives_study, write_json, write_lines, write_study

from bertlab.studies import held_out
from bertlab.studies.doctor import CHECKS, CannotTell, read_facts
from bertlab.studies.findings import guessing_notices, leak_notices
from bertlab.studies.measurements import load
from bertlab.studies.tables import floor_table
from tests.conftest import ROOT
from tests.references import without_context


@pytest.fixture
def found(tmp_path):
    """A function (what floor.json says of mlm, held-out losses, what is asked) -> what both say: (floor, next to nothing)."""
    study = write_study(tmp_path / "s", objectives_study((1,), ("MLM+NSP",)))
    run = study / "mlm+nsp-seed=1"

    def find(floor, losses, asks):
        write_json(run / "floor.json", {"mlm": {"value": 1.0, "exact": True, "note": "", **floor}})
        older = isinstance(asks, list)  # the objectives that predict tokens
        data = {"token_objectives": asks} if older else {"objectives": {name: {"asks": of} for name, of in asks.items()}}
        write_json(run / "data.json", data)
        result, lines = json.loads((run / "result.json").read_text()), (run / "metrics.jsonl").read_text().splitlines()
        result["metrics"]["valid"] |= losses
        write_json(run / "result.json", result)
        write_lines(run / "metrics.jsonl", [*map(json.loads, lines[:-1]), json.loads(lines[-1]) | losses])
        facts, results = read_facts(run), load(study)
        said = [CHECKS[title](facts) is not None for title in ("loss not below its floor", "loss not next to nothing")]
        sentences = leak_notices(results)
        assert said == [any(words in text for text in sentences) for words in ("below its floor", "next to nothing")]
        assert len(floor_table(results)) == 1
        return tuple(said)

    return find


HEALTHY = {"above": 1.0, "above_standard_error": 0.1, "standard_error": 0.1}
LOSSES, ASKS = {"mlm/loss": 4.0, "nsp/loss": 0.001}, {"mlm": "tokens", "nsp": "pairs"}


@pytest.mark.parametrize(
    ("floor", "is_leak"),
    [
        (HEALTHY, False),
        ({"above": -0.31, "above_standard_error": 0.1, "standard_error": 9.0}, True),
        ({"above": -0.29, "above_standard_error": 0.1, "standard_error": 0.0}, False),
        ({"above": -0.31, "above_standard_error": None, "standard_error": 0.1}, True),
        ({"above": -0.29, "above_standard_error": None, "standard_error": 0.1}, False),
        ({"above": -0.29, "above_standard_error": 0.0, "standard_error": 0.1}, True),
        ({"above": -0.29, "above_standard_error": None, "standard_error": None}, True),
        ({"above": -0.29, "above_standard_error": None, "standard_error": 0.1, "exact": False}, False),
        ({"above": -0.31, "above_standard_error": None, "standard_error": 0.1, "exact": False}, True),
        ({"above": -0.00005, "above_standard_error": None}, False),
    ],
)
def test_a_loss_below_its_floor_is_found_by_both_with_whatever_standard_error_is_known(found, floor, is_leak):
    assert found(floor, LOSSES, ASKS) == (is_leak, False)


@pytest.mark.parametrize(
    ("losses", "asks", "is_leak"),
    [
        (LOSSES, ASKS, False),
        ({"mlm/loss": 0.009}, ASKS, True),
        ({"mlm/loss": 0.011}, ASKS, False),
        ({"nsp/loss": 0.009}, ASKS | {"nsp": "tokens"}, True),
        ({"extra/loss": 0.009}, ASKS | {"extra": "tokens"}, True),
        ({"extra/loss": 0.009}, ASKS | {"extra": "positions"}, False),
        ({"extra/loss": 0.009}, ASKS, False),
        ({"mlm/loss": 0.009}, ["mlm"], True),
        ({"nsp/loss": 0.009}, ["mlm"], False),
    ],
)
def test_a_token_loss_next_to_nothing_is_found_by_both(found, losses, asks, is_leak):
    assert found(HEALTHY, LOSSES | losses, asks) == (False, is_leak)


def test_the_first_known_standard_error_counts():
    nan = float("nan")
    assert held_out.standard_error(None, 0.2) == held_out.standard_error(nan, 0.2) == 0.2
    assert held_out.standard_error(0.0, 0.2) == held_out.standard_error(None, nan) == held_out.standard_error() == 0.0


def test_a_model_that_only_guesses_by_frequency_is_one_to_both(tmp_path):
    """Unless nothing better can be learned, it was not trained, or another objective came after it."""
    study = write_study(tmp_path / "s", objectives_study((1,), ("MLM",)))
    run = study / "mlm-seed=1"
    config, result = (json.loads((run / name).read_text()) for name in ("config.json", "result.json"))
    log = [*map(json.loads, (run / "metrics.jsonl").read_text().splitlines())]

    def said(loss, guessing=5.0, floor=None, weight=1.0, phases="", steps=2000, mask_share=1.0):
        objectives = {"mlm": {"asks": "tokens", "guessing": guessing}}
        write_json(run / "data.json", {"objectives": objectives, "corpus": {"unigram_entropy": 5.0}})
        write_json(run / "floor.json", {"mlm": HEALTHY | {"value": floor, "exact": True, "note": ""}} if floor else {})
        train = config.get("train", {}) | {"steps": steps, "phases": phases}
        masked = {"weight": weight, "mask_share": mask_share, "random_share": 0.0}
        write_json(run / "config.json", config | {"train": train, "objectives": {"mlm": masked, "ltr": {"weight": 1.0}}})
        write_json(run / "result.json", result | {"step": steps, "metrics": result["metrics"] | {"valid": {"mlm/loss": loss}}})
        write_lines(run / "metrics.jsonl", [*log[:-1], log[-1] | {"split": "valid", "step": steps, "mlm/loss": loss}])
        sentences = guessing_notices(load(study))
        assert all("is no better than guessing by token frequency in mlm-seed=1. " in text for text in sentences)
        found = CHECKS["learned more than token frequencies"]
        with contextlib.suppress(CannotTell):
            assert bool(sentences) == (found(read_facts(run)) is not None)
        return len(sentences)

    assert said(4.9) == said(4.9, floor=4.8) == 1
    assert said(4.8) == said(4.9, guessing=None) == said(4.9, floor=4.86) == said(4.9, weight=0.0) == 0
    assert said(4.9, phases="0.5; 0.5 objectives.mlm.weight=0") == 0, "it may have been forgotten"
    assert said(4.9, steps=0) == 0, "no model has been trained"
    assert said(3.9, mask_share=0.8) == 1, "a fifth of the answers was shown"
    assert said(3.85, mask_share=0.8) == 0


@pytest.mark.parametrize("run", ["15-masked", "the-papers-body", "β2-of-0.999"])
def test_the_trials_on_the_plateau_are_named(run):
    """experiments/README.md says so of them: with the token hidden they score what frequencies cost."""
    facts = read_facts(ROOT / f"experiments/results/trials_tiny_wikipedia/{run}-seed=1")
    assert "no better than guessing" in str(CHECKS["learned more than token frequencies"](facts))


MASKINGS = {"BERT's": (0.8, 0.1), "kept or masked": (0.8, 0.0), "random or masked": (0.8, 0.2), "masked": (1.0, 0.0)}


@pytest.mark.parametrize("name", MASKINGS)
def test_guessing_ends_just_below_the_best_model_without_context(name):
    mask_share, random_share = MASKINGS[name]
    frequency = 1 / (np.arange(2000) + 2.7)  # about as in text
    frequency /= frequency.sum()
    best = without_context(frequency, mask_share, random_share)
    guessing, entry = without_context(frequency, 1.0, 0.0), {"mask_share": mask_share, "random_share": random_share}
    named = lambda loss: held_out.near_guessing({"mlm": loss}, {"mlm": guessing}, {}, {"mlm": entry})
    assert named(best) and named(0.985 * best) and not named(0.965 * best)

"""Floors equal the old ones, which tests/test_floors.py checks against enumeration."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bertlab import floors as old_floors
from bertlab.config import base_config
from bertlab.data.synthetic import language, sample_document
from bertlab.floors.runs import _summary as old_summary
from bertlab.objectives import REGISTRY as OLD
from bertlab.objectives.base import NoFloor as OldNoFloor
from bertlab.evals import floors
from bertlab.evals.floors.runs import row_sums, summary
from bertlab.objectives import REGISTRY
from bertlab.objectives.base import Objective, Vocabulary
from bertlab.objectives.program import Program, group_by_view
from tests.references import quick_jit
from tests.evals.models import IDS, programs

SHARED = {"mask_share": 0.4, "random_share": 0.4}
ONLY_MASKS = {"mask_share": 1.0, "random_share": 0.0}
WHOLE = {"mlm": {"rate": 0.3, **SHARED}, "nsp": {}, "sop": {}}
CASES = {
    "mlm+nsp+sop": WHOLE,
    "mlm of all": {"mlm": {"rate": 0.3, "predict": "all", **SHARED}},
    "bernoulli": {"mlm": {"rate": 0.4, "exact": False, **SHARED}},
    "spans": {"mlm": {"unit": "span", "rate": 0.4, **ONLY_MASKS}, "sbo": {"places": 2}},
    "masked spans": {"mlm": {"unit": "span", **SHARED}},
    "ltr+rtl+nsp": {"ltr": {}, "rtl": {}, "nsp": {}},
    "prefix": {"prefix": {}},
    "masked_next_token": {"masked_next_token": {"rate": 0.3, **SHARED}},
    "permutation": {"permutation": {"predict_one_in": 2}},
    "diffusion": {"diffusion": {}},
    "electra": {"electra": {"rate": 0.3, "generator": "unigram"}},
    "electra, copies": {"electra": {"generator": "unigram", "task": "all_tokens", "exact": False}},
    "electra, small": {"electra": {}},
    "span_corruption": {"span_corruption": {"rate": 0.4, "mean_span": 1.0}},
    "long spans": {"span_corruption": {}},
}
LANGUAGE = dict(vocab_size=8, topics=2, states=3, seed=0)
LENGTHS = {"sentence_words": (4, 4), "document_sentences": (2, 2)}
SIZE = 13
RELATIONS = {
    "single": {"follows": 1.0},
    "next": {"follows": 0.4, "random": 0.6},
    "order": {"follows": 0.3, "swapped": 0.7},
}


def rows_of(kind, rows=6):
    """[CLS] A [SEP] B [SEP] and padding; "single": two documents in a row."""
    model = language(**LANGUAGE, **LENGTHS)
    rng = np.random.default_rng(1)
    tokens = np.zeros((rows, 12), np.int32)
    for row in tokens:
        words = 5 + sample_document(model, rng).words
        row[:11] = [2, *words[:4], 3, *words[4:8], 3]
    segments, documents = np.zeros_like(tokens), np.ones_like(tokens)
    segments[:, 6:11] = 1
    if kind == "single":
        documents[:, 6:], segments[:] = 2, 0
    documents[:, 11] = 0
    return {
        "tokens": tokens,
        "segments": segments,
        "documents": documents,
        "positions": np.tile(np.arange(12, dtype=np.int32), (rows, 1)),
        "pair_label": (np.arange(rows) % 2).astype(np.int32),
        "order_label": (np.arange(rows) % 3 - 1).astype(np.int32),
        "example_id": np.stack([np.arange(rows) // 2, np.arange(rows)], 1).astype(np.int32),
        "visit": np.zeros(rows, np.int32),
    }


VOCABULARY = Vocabulary(SIZE, **IDS, counts=tuple(range(1, SIZE + 1)))
PROGRAMS = {
    case: Program(None, {name: REGISTRY[name](**of) for name, of in named.items()}, VOCABULARY)
    for case, named in CASES.items()
}


@functools.cache
def compiled_views():
    return quick_jit(lambda *given: {case: of.views(*given) for case, of in PROGRAMS.items()})


@pytest.mark.parametrize("kind", RELATIONS)
def test_floors_are_those_of_the_old_code(kind):
    batch, relations = rows_of(kind), RELATIONS[kind]
    chain = floors.chain_of(language(**LANGUAGE, **LENGTHS), SIZE, np.arange(5, 13))
    floors_found = 0
    all_views = jax.device_get(compiled_views()(batch, jax.random.key(0)))
    for case_name, case in CASES.items():
        objectives, views = PROGRAMS[case_name].objectives, all_views[case_name]
        for view_name, names in group_by_view(objectives).items():
            for name in names:
                view, old_caveats = views[view_name], set()
                viewed = objectives.get(view_name) if view_name != name else None
                old_viewed = viewed and (view_name, OLD[view_name](**case[view_name]))
                old_oracle = old_floors.ExactOracle(
                    chain, batch, VOCABULARY, relations, view, old_viewed, old_caveats
                )
                oracle = floors.Oracle(chain, batch, VOCABULARY, relations, viewed)
                try:
                    theirs = old_floors.floor(OLD[name](**case[name]), old_oracle)
                except OldNoFloor:
                    with pytest.raises(floors.NoFloor):
                        floors.floor(objectives[name], oracle, view, batch)
                    continue
                ours = row_sums(objectives[name], oracle, view)
                nats, weights = theirs
                expected = [x.sum(axis=1) for x in (nats * weights, weights, weights > 0)]
                np.testing.assert_allclose(ours, expected, rtol=1e-12)
                assert len(oracle.caveats) == len(old_caveats)
                together = np.stack([*ours, 2.0 * ours[0] + ours[1]], axis=1)
                documents = batch["example_id"][:, 0]
                found = dataclasses.asdict(summary(together, documents, "note"))
                assert found == dataclasses.asdict(old_summary(together, documents, "note"))
                floors_found += 1
    assert floors_found >= 14


@dataclasses.dataclass(frozen=True)
class Cloze(Objective):
    """Masks tokens independently and predicts them; from outside the package."""

    def view(self, batch, key, vocabulary, progress):
        words = (batch["documents"] > 0) & ~vocabulary.is_special(batch["tokens"])
        chosen = words & jax.random.bernoulli(key, 0.3, words.shape)
        tokens = jax.numpy.where(chosen, vocabulary.mask_id, batch["tokens"])
        return {**batch, "tokens": tokens, "chosen": chosen, "original": batch["tokens"]}

    def loss(self, model, view):
        logits = model.predict_tokens(model.encode().output("both"), "both")
        log_p = jax.nn.log_softmax(logits)
        nats = -jax.numpy.take_along_axis(log_p, view["original"][..., None], axis=-1)[..., 0]
        return {"loss": ((nats * view["chosen"]).sum(), view["chosen"].sum().astype("float32"))}


@floors.corruption.register
def _(objective: Cloze, view, vocabulary):
    return floors.Corruption(np.eye(vocabulary.size)[vocabulary.mask_id], rate=0.3)


@floors.floor.register
def _(objective: Cloze, oracle, view, batch):
    channel = floors.corruption(objective, view, oracle.vocabulary)
    return oracle.corrupted(view["tokens"], channel), view["chosen"]


def test_an_outside_objective_registers_its_floor_and_a_run_is_measured_above_it():
    model = programs("bert", {"cloze": Cloze(), "nsp": REGISTRY["nsp"]()}, SIZE)
    chain = floors.chain_of(language(**LANGUAGE, **LENGTHS), SIZE, np.arange(5, 13))
    batches = [rows_of("next"), rows_of("next")]
    found = floors.floors(model.new, batches, chain, RELATIONS["next"], model.params)
    cloze = found["cloze"]
    assert cloze.exact and 0 < cloze.value < np.log(8) < cloze.loss
    total = np.zeros(2)
    for index, batch in enumerate(batches):
        views = model.new.views(batch, jax.random.fold_in(jax.random.key(0), index))
        metrics, _, _ = quick_jit(model.new.metrics)(model.params, views)
        total += np.float64(metrics["cloze/loss"])
    assert cloze.positions == total[1]
    assert cloze.loss == pytest.approx(total[0] / total[1], rel=1e-5)
    assert cloze.above == pytest.approx(cloze.loss - cloze.value, rel=1e-5)
    assert found["nsp"].value < np.log(2)
    lengths = rows_of("next")
    lengths["tokens"][0, 4:6], lengths["documents"][0, 5:] = [3, 0], 0
    ltr = Program(None, {"ltr": REGISTRY["ltr"](), "ar": REGISTRY["ar"]()}, VOCABULARY)
    found = floors.floors(ltr, [lengths], chain, {"follows": 1.0})
    assert not found["ltr"].exact and "length" in found["ltr"].note
    assert found["ar"] == "not known for this objective"


@pytest.mark.parametrize("format", ["doc_sentences", "full_sentences", "stream", "segment_pair"])
@pytest.mark.parametrize("words", [(5, 5), (4, 12)])
@pytest.mark.parametrize("negatives", ["random", "swapped"])
def test_relations_are_those_of_the_old_code(format, words, negatives):
    data = base_config().data
    data.format, data.synthetic.sentence_words, data.seq_len = format, words, 33
    data.segment_pair.negatives = negatives
    try:
        expected = old_floors.relations_of(data)
    except OldNoFloor:
        with pytest.raises(floors.NoFloor):
            floors.relations_of(data)
    else:
        assert floors.relations_of(data) == expected

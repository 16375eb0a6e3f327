"""A leak ends below the exact floor, and an honest model does not: a small model, trained with and without a planted bug."""

import dataclasses
import functools

import grain
import numpy as np
import pytest

from bertlab.data.batches import Shards
from bertlab.data.rows import make_row
from bertlab.data.synthetic import SyntheticCorpus
from bertlab.floors import floors
from bertlab.models import transformer
from bertlab.objectives import REGISTRY, MaskedLanguageModel
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.checkpoint import load_params
from tests.conftest import ROOT

LANGUAGE = dict(vocab_size=8, topics=2, states=3, sentence_words=(6, 6), document_sentences=(2, 2))
WORDS, STEPS, ROWS = 12, 500, 32


def twice(document, cls_id, sep_id, pad_id):
    """A row that holds a document twice, as two documents that must not see each other."""
    tokens = [cls_id, *document, sep_id] * 2
    documents = np.repeat([1, 2], WORDS + 2)
    return make_row(2 * (WORDS + 2), pad_id, tokens, 0, documents, -1, (0, 0))


@functools.cache
def batches_of(first: int, number: int, ids: tuple[int, ...], specials: tuple[int, ...]) -> list[dict[str, np.ndarray]]:
    """Batches of the language's documents from `first` on; each row's example id is its document."""
    corpus = SyntheticCorpus(**LANGUAGE)
    made = []
    for begin in range(first, first + number * ROWS, ROWS):
        rows = [twice(np.array(ids)[corpus.sample(index).words], *specials) for index in range(begin, begin + ROWS)]
        batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        batch["example_id"][:, 0] = np.arange(begin, begin + ROWS)
        made.append(batch)
    return made


@pytest.fixture
def above(small_config, tmp_path):
    """A function (objective) -> nats above the floor after a short training, and their standard error."""

    def train(name):
        config = small_config(
            f"{ROOT}/experiments/pretrain/bert.py:objectives={name}",
            data__corpus="synthetic",
            model__direction="left-to-right" if name == "ltr" else "bidirectional",
            data__format="doc_sentences",
            data__batch_size=ROWS,
            data__tokenizer__kind="words",
            data__tokenizer__vocab_size=13,
            model__layers=1,
            model__width=32,
            model__hidden=64,
            model__dropout=0.0,
            model__init_stddev=0.1,
            model__norm_placement="pre",
            model__final_norm=True,
            optimizer__learning_rate=3e-3,
            train__steps=STEPS,
            train__eval_every=0,
            train__log_every=STEPS,
            train__checkpoint_every=0,
        )
        config.data.synthetic.update(documents=200, **LANGUAGE)
        experiment = build_pretraining(config)
        tokenizer = experiment.tokenizer
        ids = tuple(tokenizer.encode_words(SyntheticCorpus(**LANGUAGE).language.words)[0])
        specials = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id
        rows = grain.MapDataset.source(batches_of(0, STEPS, ids, specials)).to_iter_dataset()
        held_out = batches_of(STEPS * ROWS, 8, ids, specials)
        phase = dataclasses.replace(experiment.phases[0], train=Shards({0: rows}))
        experiment = dataclasses.replace(experiment, phases=(phase,), evaluations={"valid": held_out[:1], "test": held_out})
        loop.run(experiment, tmp_path)
        found = floors(experiment, params=load_params(tmp_path))[name]
        assert found.exact
        return found.above, found.above_standard_error

    return train


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("mlm", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("ltr", "diffusion")),
    ],
)
def test_an_honest_model_comes_near_its_floor_and_not_below(name, above):
    nats, error = above(name)
    assert -3 * error < nats < 0.15


@pytest.mark.slow
def test_a_broken_attention_mask_ends_below_the_floor(above, monkeypatch):
    sees_everything = lambda documents, direction: (documents[:, :, None] == documents[:, None, :])[:, None]
    monkeypatch.setattr(transformer, "attention_mask", sees_everything)
    nats, error = above("ltr")
    assert nats < -3 * error


@pytest.mark.nightly
def test_a_broken_corruption_ends_below_the_floor(above, monkeypatch):
    view = MaskedLanguageModel.view
    leaking = lambda self, batch, *rest: {**view(self, batch, *rest), "tokens": batch["tokens"]}
    monkeypatch.setattr(MaskedLanguageModel, "view", leaking)
    nats, error = above("mlm")
    assert nats < -3 * error


@pytest.mark.nightly
def test_a_hint_at_the_masked_words_ends_below_the_floor(above, monkeypatch):
    kind = REGISTRY["diffusion"]
    view = kind.view
    hinting = lambda self, batch, *rest: {**view(self, batch, *rest), "segments": batch["tokens"] % 2}
    monkeypatch.setattr(kind, "view", hinting)
    nats, error = above("diffusion")
    assert nats < -3 * error

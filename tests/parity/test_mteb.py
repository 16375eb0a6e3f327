"""An export in sentence-transformers and MTEB has the vectors of `sentence_vectors` and the scores of `similarity`."""

import datasets
import mteb
import numpy as np
import pytest
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from sentence_transformers import SentenceTransformer
from sklearn.metrics import ndcg_score

import bertlab
from bertlab.interop import huggingface
from bertlab.interop.base import save_imported
from bertlab.transfer.similarity import Rated, cosines, rate_sentences
from tests.interop import published

# MTEB's own calls of sentence-transformers 6.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The fill_missing parameter:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .get_sentence_embedding_dimension. method:FutureWarning"),
]
DRAWS = np.random.default_rng(0)
TEXTS = [" ".join(DRAWS.choice(list("abcdefgh"), size)) for size in DRAWS.integers(2, 9, 40)]
PAIRS = [Rated(*two, float(rating)) for *two, rating in zip(TEXTS[:20], TEXTS[20:], DRAWS.uniform(0, 5, 20).round(1))]


# Two that transformers knows, and one that brings its own file.
@pytest.fixture(scope="module", params=[{}, {"family": "gpt"}, {"norm_placement": "pre"}], ids=["bert", "gpt", "bertlab"])
def opened(request, tmp_path_factory):
    """The same random run here and in sentence-transformers."""
    place = tmp_path_factory.mktemp("export")
    run = published.random_run(place / "bert", layers=1, **request.param)
    (place / "out").mkdir()
    huggingface.save(run, place / "out")
    save_imported(run, place / "run", "huggingface", "there")
    there = SentenceTransformer(str(place / "out"), trust_remote_code=True, device="cpu")
    return bertlab.load(place / "run"), there


def score(model, name, split):
    """Scores of MTEB's task on other data."""
    task = mteb.get_task(name)
    task.dataset, task.data_loaded = {"default": dict.fromkeys(task.metadata.eval_splits, split)}, True
    found = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
    return found.task_results[0].scores["test"][0]


def test_sentence_vectors(opened):
    ours, there = opened
    np.testing.assert_allclose(there.encode(TEXTS), ours.sentence_vectors(TEXTS), rtol=0, atol=1e-5)


def test_rated_sentences(opened):
    """STS-B's task: correlations of the last layer's cosines."""
    ours, there = opened
    columns = zip(("sentence1", "sentence2", "score"), zip(*PAIRS), strict=True)
    found = score(there, "STSBenchmark.v2", datasets.Dataset.from_dict({name: list(values) for name, values in columns}))
    for name, value in rate_sentences(ours, PAIRS)["layers"]["1"].items():
        assert found[f"cosine_{name}"] == pytest.approx(value, abs=1e-5)


def test_retrieval(opened):
    """SciFact's task, each query with two right texts: nDCG of the first ten by cosine."""
    ours, there = opened
    asked, right = TEXTS[:8], np.zeros((8, len(TEXTS)))
    for number in range(8):
        right[number, [number + 10, number + 20]] = 1
    right_texts = {f"q{row}": {f"d{place}": 1 for place in np.flatnonzero(right[row])} for row in range(8)}
    split = RetrievalSplitData(
        corpus=datasets.Dataset.from_list([{"id": f"d{place}", "title": "", "text": text} for place, text in enumerate(TEXTS)]),
        queries=datasets.Dataset.from_list([{"id": f"q{row}", "text": text} for row, text in enumerate(asked)]),
        relevant_docs=right_texts,
        top_ranked=None,
    )
    vectors = ours.sentence_vectors(TEXTS)
    near = np.stack([cosines(np.repeat(vectors[row : row + 1], len(TEXTS), axis=0), vectors) for row in range(8)])
    assert score(there, "SciFact", split)["ndcg_at_10"] == pytest.approx(ndcg_score(right, near, k=10), abs=1e-5)

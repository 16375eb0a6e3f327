"""Pretrained word vectors beside a model's states: whose they are, that they reach the head, and that a run keeps them."""

import shutil

import jax
import numpy as np
import pytest

import bertlab
from bertlab.config import add_objectives, base_config
from bertlab.data.tokenizers import load_tokenizer, train_tokenizer
from bertlab.errors import UserError
from bertlab.interop.base import Imported, import_weights, save_imported
from bertlab.objectives.program import Program
from bertlab.train.checkpoint import load_params
from bertlab.train.optimizers import build_optimizer
from bertlab.train.state import TrainState, build_train_step
from bertlab.transfer.composition import build_finetuning
from bertlab.transfer.finetune import finetune, finetune_config, overridden, resolved
from bertlab.transfer.word_vectors import find_vectors
from tests.references import broken_at, quick_jit
from tests.tokenizer_files import write_byte_level

pytestmark = pytest.mark.usefixtures("quick_compilation")

VECTORS = {"the": [1, 2, 3], "The": [9, 9, 9], "value": [-1, 0, 1], "not": [4, 4, 4], "York": [2, 0, 2], "-": [0, 6, 0]}


@pytest.fixture(scope="module")
def glove(tmp_path_factory):
    """A run of vectors that GloVe's program could have written; its last line is the vector of unknown words."""
    folder = tmp_path_factory.mktemp("glove")
    lines = [f"{word} {' '.join(map(str, vector))}" for word, vector in VECTORS.items()]
    (folder / "vectors.txt").write_text("\n".join([*lines, "<unk> 7 7 7"]) + "\n")
    import_weights("glove", folder / "vectors.txt", folder / "run")
    return folder / "run"


@pytest.fixture
def tags_task(tmp_path) -> str:
    """A task of one's own that tags words: which are "not"."""
    lines = [["the O", "value O", "not B", *(["Objects O"] * (i % 9))] for i in range(60)]
    (tmp_path / "tags.conll").write_text("\n\n".join("\n".join(words) for words in lines) + "\n")
    own = 'from bertlab.transfer.tasks import conll\n\nTASK = conll("tags", train="tags.conll", metrics=("accuracy",))\n'
    (tmp_path / "tags.py").write_text(own)
    return str(tmp_path / "tags.py")


# --- whose vectors they are


def vectors_of(run, words):
    """Word -> its vector."""
    found = find_vectors(str(run), words)
    table = found.table()
    assert table.dtype == np.float32 and not table[0].any() and table.shape == (1 + len(found.pieces), found.width)
    return {word: table[row].tolist() for word, row in found.rows.items()}


def test_a_word_has_its_own_vector_or_its_lower_cases_or_that_of_unknown_words(glove):
    found = vectors_of(glove, ["the", "The", "Value", "NOT", "York-York", "object", "Objects"])
    assert found["the"] == VECTORS["the"] and found["The"] == VECTORS["The"], "each case has its own"
    assert found["Value"] == VECTORS["value"] and found["NOT"] == VECTORS["not"], "in lower case"
    np.testing.assert_allclose(found["York-York"], np.mean([VECTORS[of] for of in ("York", "-", "York")], 0), rtol=1e-6)
    assert found["object"] == found["Objects"] == [7, 7, 7]
    rows = find_vectors(str(glove), ["object", "Objects", "value", "Value"]).rows
    assert rows["object"] == rows["Objects"] and rows["value"] == rows["Value"] and rows["object"] != rows["value"]


def test_a_run_on_pieces_gives_the_mean_of_a_words_pieces_and_glove_the_sum_of_its_vectors(tmp_path):
    tokenizer = train_tokenizer("bpe", ["the value of the other values"] * 20, 280, seed=0)
    size = tokenizer.vocab_size
    table = np.random.default_rng(0).normal(size=(2, size, 4)).astype(np.float32)
    config = base_config()
    config.model.update(family="static", width=4)
    add_objectives(config, "glove")
    params = {"body": {"token_embedding": table[0], "output": {"kernel": table[1]}}}
    save_imported(Imported(config, params, tokenizer), tmp_path / "run", "glove", "nowhere")
    ids, _ = tokenizer.encode_words(["valueother"])
    assert len(ids) > 1
    found = vectors_of(tmp_path / "run", ["valueother"])["valueother"]
    np.testing.assert_allclose(found, table.sum(0)[ids].mean(0), rtol=1e-5)


def test_every_word_has_the_space_that_it_has_in_a_text(tmp_path):
    """In a byte-level BPE "cat" and " cat" are different pieces, and the first word of a list is no first word of a text."""
    write_byte_level(tmp_path, ["the cat sees the cat and the cat"] * 9, ["<|endoftext|>"], 280)
    tokenizer = load_tokenizer(tmp_path)
    config = base_config()
    config.model.update(family="static", width=4)
    add_objectives(config, "glove")
    table = np.random.default_rng(0).normal(size=(2, tokenizer.vocab_size, 4)).astype(np.float32)
    params = {"body": {"token_embedding": table[0], "output": {"kernel": table[1]}}}
    save_imported(Imported(config, params, tokenizer), tmp_path / "run", "glove", "nowhere")
    [piece] = tokenizer.encode(" cat")
    for words in (["cat"], ["and", "cat"]):
        np.testing.assert_allclose(vectors_of(tmp_path / "run", words)["cat"], table.sum(0)[piece], rtol=1e-5)


# --- that they reach the head


def settings(glove, **changes):
    small = {"data.seq_len": 32, "data.batch_size": 8, "mesh.data": 1, "train.steps": 4, "optimizer.warmup_steps": 1}
    return small | {"head.hidden": 4, "head.word_vectors": str(glove), "optimizer.learning_rate": 0.01} | changes


def build(run, task, recipe, overrides):
    return build_finetuning(*resolved(overridden(finetune_config(run, task, recipe), overrides)))


def fresh_of(experiment):
    """Random parameters, and zeros in the place of the pretrained vectors."""
    batch, rng = experiment.evaluations["valid"][0], np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: experiment.program.init(jax.random.key(0), batch))
    params = jax.tree.map(lambda s: rng.normal(scale=0.3, size=s.shape).astype(s.dtype), shapes)
    features = params["heads_tags"]["features"]
    features["word_vectors"] = np.zeros_like(features["word_vectors"])
    return params


@pytest.mark.parametrize("recipe", ["elmo", "taglm", "bert_features"])
def test_the_runs_vectors_are_beside_the_states_of_their_words(recipe, bert_run, tags_task, glove):
    experiment = build(bert_run, tags_task, recipe, settings(glove, **({"head.layers": "last"} if "bert" in recipe else {})))
    fresh = fresh_of(experiment)
    started, batch = experiment.warm_start(fresh), experiment.evaluations["valid"][0]
    table = started["heads_tags"]["features"]["word_vectors"]
    first = batch["vector_ids"][0]
    np.testing.assert_array_equal(table[first[:3]], [VECTORS[word] for word in ("the", "value", "not")])
    filled = batch["documents"].any(axis=1)
    np.testing.assert_array_equal(batch["vector_ids"][filled] > 0, batch["word_at"][filled] >= 0)
    # The first layer of the tagger has three inputs more than without vectors, or, in ELMo's and BERT's, beside the states.
    inputs = started["heads_tags"]["encoder"]["forward_0"]["input_kernel"].shape[0]
    states = experiment.program.body.config.width
    assert inputs == {"elmo": 3 + states, "taglm": 30 + 50 + 3, "bert_features": 3 + states}[recipe]
    if recipe == "elmo":  # the others' arithmetic is the same
        loss = quick_jit(
            lambda p: experiment.program.metrics(p, experiment.program.views(batch, jax.random.key(0)))["tags/loss"][0]
        )
        assert abs(float(loss(started)) - float(loss(with_table(started, np.zeros_like(table))))) > 1e-3


def with_table(params, table):
    head = params["heads_tags"]
    return {**params, "heads_tags": {**head, "features": {**head["features"], "word_vectors": table}}}


@pytest.mark.parametrize("trained", [False, True])
def test_frozen_vectors_stay_and_trained_ones_have_a_gradient(trained, bert_run, tags_task, glove, capsys):
    changes = {"head.word_vectors_trained": trained, "optimizer.weight_decay": 0.5, "head.bilstm": 1, "transfer.random": True}
    experiment = build(bert_run, tags_task, "elmo", settings(glove, **changes))
    config, batch = experiment.config, experiment.evaluations["valid"][0]
    before = experiment.warm_start(fresh_of(experiment))
    assert np.any(before["heads_tags"]["features"]["word_vectors"]), "they are the run's where the model begins at random too"
    assert f"3 of tags's 4 words have a vector in {glove}" in capsys.readouterr().out
    optimizer = build_optimizer(config.optimizer, config.train.steps)
    step = quick_jit(build_train_step(experiment.program, optimizer, {"tags": (1.0, 1.0)}, 1, 4, config.optimizer.frozen))
    state = TrainState(np.int32(1), before, jax.tree.map(np.asarray, optimizer.init(before)), {})
    for _ in range(2):
        state, _ = step(state, batch, 0)
    of = lambda params: np.asarray(params["heads_tags"]["features"]["word_vectors"])
    if not trained:
        np.testing.assert_array_equal(of(state.params), of(before))
        return
    moved = np.abs(of(state.params) - of(before)).max(axis=1)
    assert not moved[0] and moved[1:].min() > 1e-4, "all words of the task are in the batch, the unknown one too"


# --- that a run keeps them


@pytest.mark.slow
def test_a_finetuned_run_keeps_them_and_opens_without_the_vectors(bert_run, tags_task, glove, tmp_path):
    static = tmp_path / "static"
    shutil.copytree(glove, static)
    overrides = settings(static, **{"head.bilstm": 1, "head.word_vectors_trained": True, "train.checkpoint_every": 2})
    straight = finetune(bert_run, tags_task, tmp_path / "straight", overrides, "elmo")
    with broken_at(2):
        finetune(bert_run, tags_task, tmp_path / "stopped", overrides, "elmo")
    finetune(bert_run, tags_task, tmp_path / "stopped", overrides, "elmo")
    params, resumed = (load_params(tmp_path / name) for name in ("straight", "stopped"))
    jax.tree.map(np.testing.assert_array_equal, params, resumed)
    table = params["heads_tags"]["features"]["word_vectors"]
    known = find_vectors(str(static), ["the", "value", "not", "Objects"]).table()
    assert table.shape == known.shape and 1e-4 < np.abs(table - known).max() < 0.1, "four steps from where they began"

    shutil.rmtree(static)
    assert finetune(bert_run, tags_task, tmp_path / "straight", overrides, "elmo") == straight
    model = bertlab.load(tmp_path / "straight")
    assert isinstance(model.program, Program)
    np.testing.assert_array_equal(model.params["heads_tags"]["features"]["word_vectors"], table)
    assert np.isfinite(model.encode(["the value"])[0].states).all()


def test_what_has_no_vectors_of_words_is_refused(bert_run, words_task, tags_task, glove, tmp_path):
    (tmp_path / "vectors.txt").write_text("the 1 2 3\n")
    training = shutil.copytree(glove, tmp_path / "training")
    for file in (training / "imported.json", training / "files.json"):
        file.unlink()
    for task, changes, message in (
        (
            tags_task,
            {"head.word_vectors": str(tmp_path / "vectors.txt")},
            r"tags.word_vectors=.* is a file; .*bertlab import",
        ),
        (tags_task, {"head.word_vectors": str(tmp_path)}, r"word_vectors=.* is no run; name the directory of a static run"),
        (tags_task, {"head.word_vectors": str(bert_run)}, r"word_vectors=.* family 'bert'; only 'static' has a vector"),
        (tags_task, {"head.word_vectors": str(training)}, r"word_vectors=.*training is not finished, so its vectors"),
        (tags_task, {"head.bilstm": 0}, r"spelling, word_width and word_vectors are inputs of a biLSTM"),
        (words_task, {}, r"head.word_vectors: the heads of .* have no setting 'word_vectors'; tasks of tagging have it"),
    ):
        with pytest.raises(UserError, match=message):
            finetune(bert_run, task, tmp_path / "out", settings(glove, **changes), "elmo")
    assert not (tmp_path / "out").exists()

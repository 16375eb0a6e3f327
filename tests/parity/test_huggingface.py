"""Against transformers itself: hidden states, heads, gradients, and that what we write opens there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from bertlab import objectives
from bertlab.config import add_objectives, base_config
from bertlab.interop import export_weights, import_weights
from bertlab.interop.base import Imported, load_run, write
from bertlab.interop.huggingface import KINDS, load, save
from bertlab.models.presets import build_body, model_shape
from bertlab.objectives.program import Program
from bertlab.train.checks import vocabulary_of
from tests.interop import published
from tests.parity.record import RECORDED, compute, inputs_of, open_model
from tests.references import quick_jit


@pytest.mark.parametrize("kind", published.KINDS)
def test_every_layer_and_head(kind, tmp_path):
    """Of an export, which opens whole; with another batch than the recorded one. The recording is still what it computes."""
    import_weights("huggingface", published.write_directory(kind, tmp_path / "source"), tmp_path / "run")
    export_weights("huggingface", tmp_path / "run", tmp_path / "out")
    model, info = open_model(tmp_path / "out")
    assert not any(info.values()), info
    view = published.batch(seed=5)
    published.assert_close(published.run(load_run(tmp_path / "run"), view), compute(model, view), view)
    published.assert_close(compute(model, published.batch()), dict(np.load(RECORDED / f"{kind}.npz")), published.batch())


@pytest.mark.parametrize(
    "kind, change",
    [("bert", {"hidden_act": "gelu_new"}), ("bert", {"hidden_act": "relu"}), ("gpt2", {"activation_function": "gelu"})],
)
def test_other_activations(kind, change, tmp_path):
    source = published.write_directory(kind, tmp_path / kind, **change)
    view = published.batch(seed=6)
    published.assert_close(published.run(load(source), view), compute(open_model(source)[0], view), view)


def one_document_rows(kind):
    view = {name: array[:2] for name, array in published.batch(seed=3).items()}
    labels = np.full(view["tokens"].shape, -100)
    if "gpt" in kind:
        labels = np.where(view["documents"] > 0, view["tokens"], -100)
    else:
        rng = np.random.default_rng(4)
        chosen = np.array([[1, 4, 8], [0, 2, 6]])
        for row in range(2):
            labels[row, chosen[row]] = rng.integers(5, published.VOCAB, 3)
        view |= {"masked_positions": chosen, "masked_labels": np.take_along_axis(labels, chosen, 1)}
        view |= {"masked_weights": np.ones((2, 3), np.float32)}
    return view | {"pair_label": np.array([1, 0], np.int32)}, torch.tensor(labels, dtype=torch.long)


@pytest.mark.parametrize("kind", published.KINDS)
def test_gradients_of_the_training_loss(kind, tmp_path):
    """Of the objectives themselves, from the whole program; dropout off. Relative to each tensor's largest entry."""
    source = published.write_directory(kind, tmp_path / kind)
    model, _ = open_model(source)
    view, labels = one_document_rows(kind)
    arguments = inputs_of(model, view, slice(None), slice(None)) | {"labels": labels}
    if kind == "bert":
        arguments["next_sentence_label"] = torch.tensor(view["pair_label"], dtype=torch.long)
    loss = model(**arguments).loss
    loss.backward()

    imported = load(source)
    body = build_body(model_shape(imported.config.model, published.VOCAB))
    built = objectives.build(imported.config.objectives)
    program = Program(body, built, vocabulary_of(imported.tokenizer))

    def our_loss(params):
        metrics = program.metrics(params, {name: jax.tree.map(jnp.asarray, view) for name in program.groups})
        return sum(metrics[f"{name}/loss"][0] / metrics[f"{name}/loss"][1] for name in built)

    value, gradients = quick_jit(jax.value_and_grad(our_loss))(imported.params)
    np.testing.assert_allclose(value, loss.item(), rtol=1e-5)
    ours = write(KINDS[kind].table(published.HEADS), gradients)
    theirs = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    assert set(ours) == set(theirs)
    largest = max(np.abs(array).max() for array in theirs.values())
    for name, expected in theirs.items():
        # A bias of the keys moves all scores of a query alike: its gradient is zero but for rounding.
        scale = largest if name.endswith("key.bias") else np.abs(expected).max()
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=1e-4 * scale, err_msg=name)


@pytest.mark.parametrize("kind", published.KINDS)
def test_a_bare_encoder_opens_whole_in_automodel(kind, tmp_path):
    """Without heads; RoBERTa's and BERT's with their pooler."""
    tensors = {name: array for name, array in published.weights(kind).items() if not name.startswith(("cls.", "lm_head."))}
    if kind == "roberta":
        tensors |= published.draw({"roberta.pooler.dense.weight": (16, 16), "roberta.pooler.dense.bias": (16,)})
    import_weights("huggingface", published.write_directory(kind, tmp_path / "source", tensors), tmp_path / "run")
    export_weights("huggingface", tmp_path / "run", tmp_path / "out")
    model, info = transformers.AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    tokens = torch.tensor(published.batch()["tokens"][:1], dtype=torch.long)
    view = {name: array[:1] for name, array in published.batch().items()}
    if kind != "openai-gpt":
        view["segments"] = view["segments"] * 0
    ours = published.run(load_run(tmp_path / "run"), view)["layers"][-1]
    with torch.no_grad():
        theirs = model.eval()(tokens).last_hidden_state.numpy()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_padded_embedding_and_its_tokenizer_open_whole(kind, tmp_path):
    source = published.write_directory_with_text(kind, tmp_path / "source")
    pieces = load(source).tokenizer.vocab_size
    source = published.write_directory_with_text(kind, tmp_path / "padded", pieces + 7)
    (tmp_path / "out").mkdir()
    imported = load(source)
    save(imported, tmp_path / "out")
    model, info = open_model(tmp_path / "out")
    assert not any(info.values()), info
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(tokenizer) == imported.tokenizer.vocab_size == pieces + 7 == model.get_input_embeddings().num_embeddings
    text = "ab a 漢, low é"
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == imported.tokenizer.encode(text)


@pytest.mark.parametrize(
    "heads, architecture",
    [("mlm", "BertForMaskedLM"), ("nsp", "BertForNextSentencePrediction"), ("mlm+nsp", "BertForPreTraining")],
)
def test_a_trained_run_opens_whole_in_its_own_class(heads, architecture, tmp_path):
    """As training makes the parameters: the pooler only where an objective reads it."""
    tokenizer = load(published.write_directory("bert", tmp_path / "source")).tokenizer
    config = base_config()
    config.model.update({"layers": 1, "width": 16, "heads": 2, "hidden": 24, "max_positions": 20})
    add_objectives(config, heads)
    program = Program(
        build_body(model_shape(config.model, published.VOCAB)), objectives.build(config.objectives), vocabulary_of(tokenizer)
    )
    view = published.batch() | {"pair_label": np.zeros(4, np.int32)}
    params = jax.tree.map(np.asarray, quick_jit(functools.partial(program.init, jax.random.key(0)))(view))
    save(Imported(config, params, tokenizer), tmp_path)
    model, info = open_model(tmp_path)
    assert type(model).__name__ == architecture and not any(info.values()), info

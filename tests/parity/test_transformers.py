"""Against transformers: states, heads and gradients of published kinds, in and out."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from bertlab import objectives
from bertlab.contrib.roberta_gpt1 import ALL
from bertlab.interop import huggingface
from bertlab.interop.base import Model, export_weights, import_weights
from bertlab.interop.tensors import write
from bertlab.models.presets import build_body, model_shape
from bertlab.objectives.program import Program
from bertlab.train.build import vocabulary_of
from bertlab.transfer.load import load
from tests.interop import published
from tests.parity.opened import RECORDED, compute, open_model, outputs, padded


@pytest.mark.parametrize("kind", published.PUBLISHED)
def test_every_layer_and_head(kind, tmp_path):
    """Of an export, which opens whole, on other rows than the recorded ones."""
    source = published.write_directory(kind, tmp_path / "source")
    module = published.module_of(kind).__name__
    import_weights(f"{module}:load", source, tmp_path / "run")
    export_weights(f"{module}:save", tmp_path / "run", tmp_path / "out")
    theirs, view = open_model(tmp_path / "out"), published.rows(seed=5)
    ours = published.compute(load(tmp_path / "run"), view)
    published.assert_close(ours, compute(theirs, view), view)
    recorded = dict(np.load(RECORDED / f"{kind}.npz"))
    published.assert_close(compute(theirs, published.rows()), recorded, published.rows())


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("bert", {"hidden_act": "gelu_new"}),
        ("bert", {"hidden_act": "relu"}),
        ("gpt2", {"activation_function": "gelu"}),
        ("gpt2", {"n_inner": 64, "layer_norm_epsilon": 0.1}),
    ],
)
def test_other_settings(kind, change, tmp_path):
    source, view = published.write_directory(kind, tmp_path / kind, **change), published.rows(6)
    ours = published.compute(huggingface.load(source), view)
    published.assert_close(ours, compute(open_model(source), view), view)


@pytest.mark.parametrize("old", [False, True], ids=["transformers 5", "transformers 4"])
def test_a_modernbert_comes_in_and_goes_out_as_it_was(old, tmp_path):
    """As transformers saves it, and with the names of a published config.json."""
    settings = transformers.ModernBertConfig(
        vocab_size=published.VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        local_attention=4,
        pad_token_id=0,
        local_rope_theta=5.0,
    )
    theirs = transformers.ModernBertForMaskedLM(settings).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    source = tmp_path / "source"
    theirs.save_pretrained(source)
    published.write_tokenizer("bert", source)
    if old:
        path = source / "config.json"
        config = json.loads(path.read_text())
        config = {k: v for k, v in config.items() if k not in ("layer_types", "rope_parameters")}
        config |= {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0}
        path.write_text(json.dumps(config | {"local_rope_theta": 5.0}))
    imported = huggingface.load(source)
    view = {name: array[:2] for name, array in published.rows(seed=3).items()}
    ours = published.compute(imported, view)
    published.assert_close(ours, outputs(theirs, padded(view, segments=False)), view)
    huggingface.save(imported, tmp_path / "out")
    names = (source, tmp_path / "out")
    files = [safetensors.torch.load_file(name / "model.safetensors") for name in names]
    torch.testing.assert_close(*files, rtol=0, atol=0)


def labelled_rows(kind):
    """Two rows of one document, with the labels of the kind's objective; and torch's."""
    view = {name: array[:2] for name, array in published.rows(seed=3).items()}
    labels = np.full(view["tokens"].shape, -100)
    if "gpt" in kind:
        labels = np.where(view["documents"] > 0, view["tokens"], -100)
    else:
        rng, chosen = np.random.default_rng(4), np.array([[1, 4, 8], [0, 2, 6]])
        for row in range(2):
            labels[row, chosen[row]] = rng.integers(5, published.VOCAB, 3)
        view |= {"masked_positions": chosen, "masked_weights": np.ones((2, 3), np.float32)}
        view["masked_labels"] = np.take_along_axis(labels, chosen, 1)
    view["pair_label"] = np.array([1, 0], np.int32)
    return view, torch.tensor(labels, dtype=torch.long)


@pytest.mark.parametrize("kind", published.PUBLISHED)
def test_loss_and_gradients_of_the_objectives(kind, tmp_path):
    """Of mlm, nsp and ltr through the whole program, relative to each tensor's largest entry."""
    source = published.write_directory(kind, tmp_path / kind)
    theirs, (view, labels) = open_model(source), labelled_rows(kind)
    arguments = padded(view, kind == "bert") | {"labels": labels}
    if kind == "bert":
        arguments["next_sentence_label"] = torch.tensor(view["pair_label"], dtype=torch.long)
    loss = theirs(**arguments).loss
    loss.backward()

    model = published.module_of(kind).load(source)
    body = build_body(model_shape(model.config.model, published.VOCAB))
    built = objectives.build(model.config.objectives)
    program = Program(body, built, vocabulary_of(model.tokenizer))
    views = dict.fromkeys(program.views(view, jax.random.key(0)), jax.tree.map(jnp.asarray, view))

    def total(params):
        metrics, _ = program.metrics(params, views)
        sums = [metrics[f"{name}/loss"] for name in built]
        return sum(value / weight for value, weight in sums)

    value, gradients = jax.jit(jax.value_and_grad(total))(model.params)
    np.testing.assert_allclose(value, loss.item(), rtol=1e-5)
    ours = write(ALL[kind].table(published.HEADS), gradients)
    expected = {name: parameter.grad.numpy() for name, parameter in theirs.named_parameters()}
    ours = {name: array for name, array in ours.items() if "layers.0.attn_norm" not in name}
    assert set(ours) == set(expected)
    largest = max(np.abs(array).max() for array in expected.values())
    for name, right in expected.items():
        # A bias of the keys moves all scores of a query alike: its gradient is zero.
        scale = largest if name.endswith("key.bias") else np.abs(right).max()
        np.testing.assert_allclose(ours[name], right, rtol=0, atol=1e-4 * scale, err_msg=name)


@pytest.mark.parametrize("kind", published.PUBLISHED)
def test_a_bare_encoder_opens_whole_in_automodel(kind, tmp_path):
    """Without heads; RoBERTa's and BERT's with their pooler."""
    heads = ("cls.", "lm_head.", "head.", "decoder.")
    tensors = {k: v for k, v in published.weights(kind).items() if not k.startswith(heads)}
    if kind == "roberta":
        pooler = {"roberta.pooler.dense.weight": (16, 16), "roberta.pooler.dense.bias": (16,)}
        tensors |= published.draw(pooler)
    name = published.CONFIGS[kind]["architectures"][0]
    for ending in ("ForPreTraining", "ForMaskedLM", "LMHeadModel"):
        name = name.replace(ending, "Model")
    source = published.write_directory(kind, tmp_path / "source", tensors, architectures=[name])
    module = published.module_of(kind)
    model = module.load(source)
    module.save(model, tmp_path / "out")
    theirs = open_model(tmp_path / "out", "AutoModel")
    view = {k: array[:1] for k, array in published.rows().items()}
    view["segments"] = view["segments"] * (kind == "bert")
    with torch.no_grad():
        found = theirs(**padded(view, kind == "bert")).last_hidden_state.numpy()
    ours = published.compute(model, view)["layers"][-1]
    np.testing.assert_allclose(ours, found, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("names", "architecture"),
    [
        ("mlm", "BertForMaskedLM"),
        ("nsp", "BertForNextSentencePrediction"),
        ("mlm+nsp", "BertForPreTraining"),
    ],
)
def test_a_trained_model_opens_whole_in_its_own_class(names, architecture, tmp_path):
    """As training makes the parameters: a pooler only where an objective reads it."""
    model = published.random_model(tmp_path / "bert", objectives=names, layers=1)
    body = build_body(model_shape(model.config.model, published.VOCAB))
    program = Program(body, model.objectives, vocabulary_of(model.tokenizer))
    params = jax.device_get(program.init(jax.random.key(0), labelled_rows("bert")[0]))
    huggingface.save(Model(model.config, params, model.tokenizer), tmp_path / "out")
    assert type(open_model(tmp_path / "out")).__name__ == architecture

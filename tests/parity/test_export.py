"""Every transformer of bertlab opens in transformers and computes the same, whatever config.model
says."""

import numpy as np
import pytest
import torch
import transformers

from bertlab.interop import huggingface
from bertlab.interop.kinds import OWN
from bertlab.models.positions import distance_buckets
from tests.interop import published
from tests.parity.opened import open_model, outputs, packed, padded

LOCAL = {"family": "modern", "layers": 3, "local_window": 4, "global_every": 2}
BARE = {"family": "modern", "norm": "layer_norm", "first_norm": False}
MODERNBERT = LOCAL | BARE
RELATIVE = {"position_encoding": "relative"}
# Every key of config.model that decides what a transformer computes, and some hybrids.
SWITCHES = [
    {"direction": "left-to-right"},
    {"direction": "right-to-left"},
    {"activation": "relu", "gated": True},
    {"activation": "silu", "norm_placement": "pre", "final_norm": True},
    {"norm": "rms_norm"},
    {"norm_placement": "pre", "first_norm": False},
    {"embedding_norm": False},
    {"epsilon": 0.1},
    {"use_bias": False},
    {"position_encoding": "none"},
    {"position_encoding": "sinusoidal"},
    RELATIVE,
    RELATIVE | {"direction": "left-to-right"},
    RELATIVE | {"local_window": 4, "global_every": 2},
    {"position_offset": 3},
    {"rotary_base": 7.0, "position_encoding": "rotary"},
    {"segments": 0},
    {"segments": 1},
    {"segments": 3},
    {"output_transform": False},
    {"tied": False},
    {"output_transform": False, "output_bias": False},
    {"truncated_init": False, "init_stddev": 0.3, "scaled_residual_init": True},
    {"base_width": 8, "tied": False, "output_bias": False},
    {"layers": 1, "width": 24, "heads": 3, "hidden": 40, "max_positions": 13},
    {"dropout": 0.3},
    LOCAL | {"rotary_base_local": 3.0, "global_every": 3},
    LOCAL | {"direction": "left-to-right", "norm": "layer_norm", "segments": 2},
    {"local_window": 4, "global_every": 2},
    MODERNBERT,
    BARE | {"local_window": 0, "use_bias": True, "activation": "silu", "output_bias": False},
    {"family": "gpt", "direction": "bidirectional"},
    {"family": "gpt", "hidden": 40},
    {"family": "gpt", "norm_placement": "pre", "tied": False},
    {"family": "modern", "direction": "right-to-left", "norm_placement": "post"},
]


@pytest.fixture
def exported(tmp_path):
    """Writes a random model of this config.model, with a pooler in our own kind; both."""

    def export(**model):
        run = published.random_model(tmp_path / "bert", **model)
        if published.type_of(run) == "bertlab":
            run = published.random_model(tmp_path / "again", pools=True, **model)
        huggingface.save(run, tmp_path / "out")
        return run, tmp_path / "out"

    return export


def describe(model):
    return ",".join(f"{key}={value}" for key, value in model.items())


@pytest.mark.parametrize("model", SWITCHES, ids=describe)
def test_each_switch(model, exported):
    """Layers and logits with padding, segments and packed rows; the pooler with padding."""
    run, directory = exported(**model)
    view, theirs = published.rows(seed=5), open_model(directory)
    if run.config.model.segments == 3:
        view["segments"] = view["segments"] + (view["positions"] > 4)
    single = {name: array[:2] for name, array in view.items()}
    own = theirs.config.model_type == "bertlab"
    view = view if own else single
    ours = published.compute(run, view)
    pooled = ours.pop("pooled", None)
    segments = getattr(theirs.config, "type_vocab_size", 0) > 1
    arguments = packed(view) if own else padded(view, segments)
    published.assert_close(ours, outputs(theirs, arguments), view)
    if own:
        with torch.no_grad():
            found = theirs.model(**padded(single)).pooler_output
        np.testing.assert_allclose(found, pooled[:2], rtol=0, atol=1e-5)


def test_the_switches_are_all_there():
    assert set(OWN.keys) <= {key for model in SWITCHES for key in model}


@pytest.mark.parametrize("direction", ["bidirectional", "left-to-right", "right-to-left"])
def test_losses_ask_what_the_objective_asks(direction, exported):
    """Of a masked model the token itself, else the next or the previous one."""
    run, directory = exported(direction=direction, norm="rms_norm", layers=1)
    view = {name: array[:1] for name, array in published.rows().items()}
    logits, tokens = published.compute(run, view)["logits"][0], view["tokens"][0]
    pairs = {"left-to-right": (logits[:-1], tokens[1:]), "right-to-left": (logits[1:], tokens[:-1])}
    asked, labels = pairs.get(direction, (logits, tokens))
    labels = torch.tensor(labels, dtype=torch.long)
    expected = torch.nn.functional.cross_entropy(torch.tensor(asked), labels)
    rows = padded(view)
    loss = open_model(directory)(**rows, labels=rows["input_ids"]).loss
    np.testing.assert_allclose(loss.item(), expected.item(), rtol=1e-5)


IN_ORDER = [{"objectives": "prefix"}, {"objectives": "masked_next_token"}]


@pytest.mark.parametrize(
    "model",
    [{"norm": "rms_norm"}, RELATIVE, LOCAL, *IN_ORDER, MODERNBERT | IN_ORDER[0]],
    ids=describe,
)
def test_a_bidirectional_body_is_causal_as_a_causal_model(model, exported):
    """With the logits by which a text is scored from left to right."""
    run, directory = exported(**model)
    view = {name: array[:2] for name, array in published.rows().items()}
    ours = published.compute(run, view | {"order": view["positions"]})["logits"]
    theirs, rows = open_model(directory, "AutoModelForCausalLM"), padded(view)
    with torch.no_grad():
        logits = theirs(**rows).logits.numpy()
        rows["input_ids"][:, 4:] = 9
        changed = theirs(**rows).logits.numpy()
    np.testing.assert_allclose(changed[:, :4], logits[:, :4], rtol=0, atol=1e-6)
    real = view["documents"] > 0
    np.testing.assert_allclose(logits[real], ours[real], rtol=0, atol=1e-5)


def test_generation_predicts_what_ours_does_for_the_text_so_far(exported):
    """After padding on the left, as generation puts it, with segments of the tokenizer's."""
    run, directory = exported(family="gpt", gated=True, segments=2, layers=1)
    rows = torch.tensor([[0, 0, 7, 8, 9]])
    found = open_model(directory).generate(
        input_ids=rows,
        attention_mask=(rows > 0).long(),
        token_type_ids=rows * 0 + 1,
        max_new_tokens=4,
        do_sample=False,
        eos_token_id=None,
        return_dict_in_generate=True,
        output_logits=True,
    )
    for length, logits in zip(range(3, 7), found.logits, strict=True):
        row = found.sequences[:, 2 : 2 + length].numpy().astype(np.int32)
        view = {"tokens": row, "documents": row * 0 + 1, "segments": row * 0 + 1}
        view["positions"] = np.arange(length)[None]
        ours = published.compute(run, view)["logits"][0, -1]
        np.testing.assert_allclose(logits[0], ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize("both_sides", [True, False])
def test_relative_positions_have_t5s_buckets(both_sides):
    index = torch.arange(400)
    bucket = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
    theirs = bucket(index[None] - index[:, None], both_sides, 32, 128).numpy()
    ours = distance_buckets(400, both_sides)
    seen = np.ones_like(ours) if both_sides else np.tri(400, dtype=int)
    np.testing.assert_array_equal(ours * seen, theirs * seen)

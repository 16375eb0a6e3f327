"""Every transformer that bertlab trains opens in transformers and computes the same, whatever config.model says."""

import json

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

import bertlab
from bertlab.interop import huggingface
from bertlab.interop.base import save_imported
from bertlab.models.presets import model_shape
from bertlab.models.transformer import distance_buckets
from tests.interop import published

ROTARY = {"position_encoding": "rotary"}
LOCAL = {"family": "modern", "layers": 3, "local_window": 4, "global_every": 2}

BARE = {"family": "modern", "norm": "layer_norm", "first_norm": False}
MODERNBERT = LOCAL | BARE

# At least one value of each key of config.model that a transformer has, beside the values of its family, and some hybrids.
SWITCHES = [
    {"direction": "left-to-right"},
    {"direction": "right-to-left"},
    {"activation": "gelu_erf"},
    {"activation": "relu", "gated": True},
    {"activation": "silu", "norm_placement": "pre", "final_norm": True},
    {"gated": True},
    {"norm": "rms_norm"},
    {"norm_placement": "pre"},
    {"norm_placement": "pre", "first_norm": False},
    {"embedding_norm": False},
    {"final_norm": True},
    {"epsilon": 0.1},
    {"use_bias": False},
    {"position_encoding": "none"},
    {"position_encoding": "sinusoidal"},
    {"position_encoding": "relative"},
    {"position_encoding": "relative", "direction": "left-to-right"},
    {"position_encoding": "relative", "local_window": 4, "global_every": 2},
    {"position_encoding": "disentangled"},
    {"position_encoding": "disentangled", "position_buckets": 5, "norm": "rms_norm", "use_bias": False},
    {"position_encoding": "disentangled", "position_buckets": 4, "direction": "left-to-right", "norm_placement": "pre"},
    {"position_encoding": "disentangled", "direction": "right-to-left", "local_window": 4, "global_every": 2},
    {"position_offset": 3},
    {"position_encoding": "rotary"},
    {"rotary_base": 7.0, "position_encoding": "rotary"},
    {"segments": 0},
    {"segments": 1},
    {"segments": 3},
    {"output_transform": False},
    {"tied": False},
    {"output_bias": False},
    {"output_transform": False, "output_bias": False},
    {"truncated_init": False, "init_stddev": 0.3},
    {"scaled_residual_init": True},
    {"base_width": 8},
    {"base_width": 8, "tied": False, "output_bias": False},
    {"layers": 1, "width": 24, "heads": 3, "hidden": 40, "max_positions": 13},
    {"dropout": 0.3},
    LOCAL,
    LOCAL | {"rotary_base_local": 3.0, "global_every": 3},
    LOCAL | {"direction": "left-to-right", "norm": "layer_norm", "segments": 2},
    {"local_window": 4, "global_every": 2},
    MODERNBERT,
    BARE | {"local_window": 0, "use_bias": True, "activation": "silu", "output_bias": False, "rotary_base": 7.0},
    {"family": "gpt", "direction": "bidirectional"},
    {"family": "gpt", "hidden": 40},
    {"family": "gpt", "norm_placement": "pre", "tied": False},
    {"family": "modern", "direction": "right-to-left", "norm_placement": "post"},
]


@pytest.fixture
def exported(tmp_path):
    """Writes a random run of this config.model; returns the run and the directory."""

    def export(**model):
        run = published.random_run(tmp_path / "bert", **model)
        if huggingface.kind_of(model_shape(run.config.model, published.VOCAB), run.params, run.tokenizer) == "bertlab":
            run = published.random_run(tmp_path / "again", pools=True, **model)
        (tmp_path / "out").mkdir()
        huggingface.save(run, tmp_path / "out")
        return run, tmp_path / "out"

    return export


def opened(directory, auto=None):
    """The model in evaluation; every weight of the file has a place in it, and it has none that the file lacks."""
    architecture = json.loads((directory / "config.json").read_text())["architectures"][0]
    causal = architecture.endswith(("ForCausalLM", "LMHeadModel"))
    auto = auto or (transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM)
    model, info = auto.from_pretrained(directory, trust_remote_code=True, output_loading_info=True)
    return model.eval(), info


def tensors(view, *names):
    return {name: torch.tensor(view[ours], dtype=torch.long) for name, ours in names}


def shown(view):
    """Padded rows with their segments."""
    given = tensors(view, ("input_ids", "tokens"), ("token_type_ids", "segments"))
    return given | {"attention_mask": torch.tensor(view["documents"] > 0).long()}


def packed(view):
    """Rows of several documents: which sees which, and positions that begin anew."""
    given = tensors(view, ("input_ids", "tokens"), ("token_type_ids", "segments"), ("position_ids", "positions"))
    return given | {"attention_mask": torch.tensor(view["documents"][:, :, None] == view["documents"][:, None, :])}


def computed(model, given):
    with torch.no_grad():
        out = model(**given, output_hidden_states=True)
    return {"layers": np.stack([state.numpy() for state in out.hidden_states]), "logits": out.logits.numpy()}


@pytest.mark.parametrize("model", SWITCHES, ids=lambda model: ",".join(f"{key}={value}" for key, value in model.items()))
def test_each_switch(model, exported):
    """Every layer and the logits with padding, segments and packed rows; the pooler with padding."""
    run, directory = exported(**model)
    view = published.batch(seed=5)
    if run.config.model.segments == 3:
        view["segments"] = view["segments"] + (view["positions"] > 4)
    theirs, info = opened(directory)
    assert not any(info.values()), info
    own = theirs.config.model_type == "bertlab"
    view = view if own else {name: array[:2] for name, array in view.items()}
    ours = published.run(run, view)
    pooled = ours.pop("pooled", None)
    given = packed(view) if own else shown(view)
    if getattr(theirs.config, "type_vocab_size", 2 if own else 0) < 2:
        del given["token_type_ids"]  # a BERT of one segment has no second row, ModernBERT none, GPT looks up tokens
    published.assert_close(ours, computed(theirs, given), view)
    if own:
        body, info = opened(directory, transformers.AutoModel)
        assert not info["missing_keys"]
        padded = {name: array[:2] for name, array in view.items()}
        with torch.no_grad():
            found = body(**shown(padded))
        np.testing.assert_allclose(found.pooler_output, pooled[:2], rtol=0, atol=1e-5)


def test_the_switches_are_all_there():
    """Of the kind "bertlab": a key that decides what a model computes is in a test above."""
    assert {key.leaf for key in huggingface._own_keys()} <= {key for model in SWITCHES for key in model}


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ({}, "bert"),
        ({"direction": "left-to-right"}, "bert"),
        ({"family": "gpt", "hidden": 64}, "openai-gpt"),
        ({"family": "gpt", "size": "gpt2", "layers": 1}, "gpt2"),
        ({"family": "modern"}, "bertlab"),
        (MODERNBERT, "modernbert"),
    ],
)
def test_transformers_own_classes_where_they_are_exact(model, kind, exported):
    assert opened(exported(**model)[1])[0].config.model_type == kind


def test_the_mean_of_the_states_is_the_sentence_vector(exported, tmp_path):
    """What sentence-transformers computes from the directory's tokenizer, model and 1_Pooling."""
    run, directory = exported(norm_placement="pre", layers=1)
    save_imported(run, tmp_path / "run", "huggingface", "there")
    texts = ["a b c", "d", "e f g h"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, trust_remote_code=True)
    given = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = opened(directory, transformers.AutoModel)[0](**given).last_hidden_state
    weights = given["attention_mask"][:, :, None]
    found = (states * weights).sum(1) / weights.sum(1)
    np.testing.assert_allclose(found, bertlab.load(tmp_path / "run").sentence_vectors(texts), rtol=0, atol=1e-5)


@pytest.mark.parametrize("old", [False, True], ids=["transformers 5", "transformers 4"])
def test_a_modernbert_comes_in_and_goes_out_as_it_was(old, tmp_path):
    """As transformers saves it, and with a published config.json's names."""
    tokenizer = huggingface.load(published.write_directory("bert", tmp_path / "bert")).tokenizer
    numbers = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 2}
    settings = transformers.ModernBertConfig(
        vocab_size=published.VOCAB, local_attention=4, pad_token_id=0, initializer_range=0.3, local_rope_theta=5.0, **numbers
    )
    model = transformers.ModernBertForMaskedLM(settings).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path / "source")
    tokenizer.save(tmp_path / "source")
    if old:
        config = json.loads((tmp_path / "source/config.json").read_text())
        config = {key: value for key, value in config.items() if key not in ("layer_types", "rope_parameters")}
        config |= {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 5.0}
        (tmp_path / "source/config.json").write_text(json.dumps(config))
    imported = huggingface.load(tmp_path / "source")
    view = {name: array[:2] for name, array in published.batch(seed=3).items()}
    given = {name: value for name, value in shown(view).items() if name != "token_type_ids"}
    published.assert_close(published.run(imported, view), computed(model, given), view)
    (tmp_path / "out").mkdir()
    huggingface.save(imported, tmp_path / "out")
    files = [safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("source", "out")]
    torch.testing.assert_close(*files, rtol=0, atol=0)


def test_classes_for_tasks(exported):
    """Fine-tuning begins with the body's weights, a loss falls, and what is saved opens again."""
    _, directory = exported(norm_placement="pre", layers=1)
    given = shown(published.batch())
    for auto, labels in (
        (transformers.AutoModelForSequenceClassification, torch.tensor([0, 1, 2, 1])),
        (transformers.AutoModelForTokenClassification, given["input_ids"] % 3),
    ):
        model, info = auto.from_pretrained(directory, trust_remote_code=True, num_labels=3, output_loading_info=True)
        assert info["missing_keys"] == {"classifier.weight", "classifier.bias"}
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        losses = []
        for _ in range(3):
            loss = model(**given, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        model.save_pretrained(directory.parent / auto.__name__)
        again = auto.from_pretrained(directory.parent / auto.__name__, trust_remote_code=True).eval()
        with torch.no_grad():
            torch.testing.assert_close(again(**given).logits, model.eval()(**given).logits)


@pytest.mark.parametrize("direction", ["bidirectional", "left-to-right", "right-to-left"])
def test_losses_ask_what_the_objective_asks(direction, exported):
    """Of a masked model the token itself, else the next or the previous one."""
    run, directory = exported(direction=direction, norm="rms_norm", layers=1)
    view = {name: array[:1] for name, array in published.batch().items()}
    logits, tokens = published.run(run, view)["logits"][0], view["tokens"][0]
    places, asked = {"bidirectional": (logits, tokens), "left-to-right": (logits[:-1], tokens[1:])}.get(
        direction, (logits[1:], tokens[:-1])
    )
    expected = torch.nn.functional.cross_entropy(torch.tensor(places), torch.tensor(asked, dtype=torch.long))
    given = shown(view)
    loss = opened(directory)[0](**given, labels=given["input_ids"]).loss
    np.testing.assert_allclose(loss.item(), expected.item(), rtol=1e-5)


POSITIONS = [{"position_encoding": positions} for positions in ("relative", "disentangled")]
IN_ORDER = [{"objectives": "prefix"}, {"objectives": "masked_next_token"}, MODERNBERT | {"objectives": "prefix"}]


@pytest.mark.parametrize("model", [{"norm": "rms_norm"}, *POSITIONS, LOCAL, {}, *IN_ORDER], ids=str)
def test_a_bidirectional_body_is_causal_as_a_causal_model(model, exported):
    """The logits that we score a text by from left to right; transformers' own BERT, of a masked model, must be told."""
    run, directory = exported(**model)
    view = {name: array[:2] for name, array in published.batch().items()}
    ours = published.run(run, view | {"order": view["positions"]})["logits"]
    more = {} if model else {"is_decoder": True}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True, **more).eval()
    given = shown(view)
    if model.get("family") == "modern":
        del given["token_type_ids"]
    with torch.no_grad():
        logits = theirs(**given).logits.numpy()
        given["input_ids"][:, 4:] = 9
        changed = theirs(**given).logits.numpy()
    np.testing.assert_allclose(changed[:, :4], logits[:, :4], rtol=0, atol=1e-6)
    real = view["documents"] > 0
    np.testing.assert_allclose(logits[real], ours[real], rtol=0, atol=1e-5)


def test_generation_predicts_what_ours_does_for_the_text_so_far(exported):
    """After padding on the left, as generation puts it, with the segments that the tokenizer gives."""
    run, directory = exported(family="gpt", gated=True, segments=2, layers=1)
    padded, settings = torch.tensor([[0, 0, 7, 8, 9]]), {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    settings |= {"return_dict_in_generate": True, "output_logits": True}
    found = opened(directory)[0].generate(
        input_ids=padded, attention_mask=(padded > 0).long(), token_type_ids=padded * 0 + 1, **settings
    )
    for length, logits in zip(range(3, 7), found.logits, strict=True):
        row = found.sequences[:, 2 : 2 + length].numpy().astype(np.int32)
        view = {"tokens": row, "documents": row * 0 + 1, "segments": row * 0 + 1, "positions": np.arange(length)[None]}
        np.testing.assert_allclose(logits[0], published.run(run, view)["logits"][0, -1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("both_sides", [True, False])
def test_relative_positions_have_t5_s_buckets(both_sides):
    place = torch.arange(400)
    bucket = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
    theirs = bucket(place[None] - place[:, None], both_sides, 32, 128).numpy()
    ours = distance_buckets(400, both_sides)
    seen = np.ones_like(ours) if both_sides else np.tri(400, dtype=int)
    np.testing.assert_array_equal(ours * seen, theirs * seen)

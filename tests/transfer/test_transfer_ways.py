"""Ways of using a run: what is taken over from it, what begins afresh, what is trained, and through what a gradient flows."""

import json

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from scipy.stats import ks_2samp

import bertlab
from bertlab import objectives
from bertlab.config import add_objectives, base_config
from bertlab.data.formats.stream import varied_length
from bertlab.data.tokenizers import WordsTokenizer
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.models.presets import build_body, model_shape
from bertlab.objectives.program import Program, chunk_starts
from bertlab.train.checkpoint import load_params, save_params
from bertlab.train.checks import vocabulary_of
from bertlab.train.layer_groups import parameter_name
from bertlab.train.optimizers import build_optimizer
from bertlab.train.state import TrainState, build_train_step
from bertlab.transfer import tasks
from bertlab.transfer.composition import build_finetuning
from bertlab.transfer.examples import Example
from bertlab.transfer.finetune import finetune, finetune_config, overridden, resolved
from bertlab.transfer.kinds import Classification, SpanPair, Tagging
from bertlab.transfer.tasks import Task, TaskData
from tests.references import quick_jit

WORDS = [f"{a}{b}" for a in "bdfgk" for b in "aeiou"]
TOKENIZER = WordsTokenizer([*SPECIALS, *WORDS], lowercase=False)
V = TOKENIZER.vocab_size
STILL = {"dropout": 0.0}  # random masks are most of what a small program has to compile
STILL_LSTM = {f"{name}dropout": 0.0 for name in ("embedding_", "input_", "hidden_", "weight_", "")}
MODELS = {
    "bert": ("mlm+nsp", {"layers": 2, "hidden": 24, "heads": 2, **STILL}),
    "gpt": ("ltr", {"layers": 2, "hidden": 24, "heads": 2, **STILL}),
    "gpt pre-norm": (
        "ltr",
        {"layers": 2, "hidden": 24, "heads": 2, "norm_placement": "pre", "final_norm": True, **STILL},
    ),
    "awd_lstm": ("ltr", {"layers": 2, "hidden": 12, **STILL_LSTM}),
    "awd_lstm backward": ("rtl", {"layers": 1, "hidden": 12, "direction": "right-to-left", **STILL_LSTM}),
}


pytestmark = pytest.mark.usefixtures("quick_compilation")


def named(tree) -> dict[str, np.ndarray]:
    return {parameter_name(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def random_like(shapes, seed):
    """Parameters of these shapes that no other seed has: small, and around 1 where they scale."""
    rng = np.random.default_rng(seed)
    around = lambda path: 1.0 if parameter_name(path).endswith("scale") else 0.0
    draw = lambda path, s: (around(path) + rng.normal(scale=0.1, size=s.shape)).astype(np.float32)
    return jax.tree_util.tree_map_with_path(draw, shapes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Directories of runs by the keys of MODELS, with parameters that no training has touched."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, (name, (trained, shape)) in enumerate(MODELS.items()):
        config = base_config()
        config.model.update({"family": name.split()[0], "size": "tiny", "width": 16, **shape})
        add_objectives(config, trained)
        program = Program(
            build_body(model_shape(config.model, V)), objectives.build(config.objectives), vocabulary_of(TOKENIZER)
        )
        row = np.ones((2, 8), np.int32)
        batch = {name: row for name in ("tokens", "segments", "documents", "positions")} | {"pair_label": row[:, 0]}
        shapes = jax.eval_shape(lambda p=program, b=batch: p.init(jax.random.key(0), b))
        TOKENIZER.save(folder / name / "tokenizer")
        (folder / name / "config.json").write_text(json.dumps(config.to_dict()))
        save_params(folder / name, random_like(shapes, seed + 1))
    return {name: folder / name for name in MODELS}


def sentences(number, seed):
    """Words and, by which half of the words they are of, a class; which words end in a."""
    rng = np.random.default_rng(seed)
    for index in range(number):
        label = index % 2
        yield tuple(rng.choice(WORDS[12 * label : 12 * label + 13], size=9).tolist()), label


@pytest.fixture(autouse=True)
def stub_tasks(monkeypatch):
    """Easy tasks: a sentence's half of the vocabulary; its words that end in a; the same half of a pair, without order."""

    def task(name, kind, metric, make):
        split = lambda number, seed: [
            Example(id=str(i), where="stub", **make(words, label)) for i, (words, label) in enumerate(sentences(number, seed))
        ]
        data = TaskData(("x", "y"), {"train": split(90, 0), "valid": split(10, 1), "test": split(30, 2)})
        monkeypatch.setitem(tasks.TASKS, name, Task(name, kind, (metric,), lambda directory, options: data))

    text = lambda words, label: {"texts": (" ".join(words),), "label": label}
    pair = lambda words, label: {"texts": (" ".join(words[:4]), " ".join(words[4:])), "label": label}
    tagged = lambda words, label: {"words": words, "label": tuple(int(word.endswith("a")) for word in words)}
    task("half", Classification(), "accuracy", text)
    task("pairs", Classification(symmetric=True), "accuracy", pair)
    task("endings", Tagging(), "f1", tagged)


def config_of(run, task="half", recipe="small", **changes):
    settings = {"data.seq_len": 12, "data.batch_size": 16, "mesh.data": 1, "train.steps": 3, "optimizer.warmup_steps": 0}
    settings |= {"train.eval_every": 0, "optimizer.learning_rate": 0.01, "head.dropout": 0.0}
    return overridden(finetune_config(run, task, recipe), settings | {k.replace("__", "."): v for k, v in changes.items()})


def experiment_of(run, task="half", recipe="small", **changes):
    return build_finetuning(*resolved(config_of(run, task, recipe, **changes)))


def fresh_of(experiment, seed=99):
    batch = experiment.evaluations["valid"][0]
    return random_like(jax.eval_shape(lambda: experiment.program.init(jax.random.key(0), batch)), seed)


def begun(experiment):
    """What a fine-tuning begins with, and the fresh parameters from which that was made."""
    fresh = fresh_of(experiment)
    return experiment.warm_start(fresh), fresh


# --- what is taken over


# Of each layer's parameters one: stacked in the transformer, apart in the LSTMs.
ONE_OF = {
    "bert": lambda tree, layer: tree["body/blocks/up/kernel"][layer - 1],
    "awd_lstm": lambda tree, layer: tree[f"body/layer_{layer - 1}/input_kernel"],
}


@pytest.mark.parametrize("layers", [1, 2])
def test_a_final_norm_is_transferred_with_the_top_layer(layers, runs):
    """So a model of which all layers are transferred is the whole pretrained one."""
    run = runs["gpt pre-norm"]
    params, fresh = map(named, begun(experiment_of(run, transfer__layers=layers)))
    source = named(load_params(run)) if layers == 2 else fresh
    np.testing.assert_array_equal(params["body/final_norm/scale"], source["body/final_norm/scale"])


@pytest.mark.parametrize(("family", "layers"), [("bert", 0), ("bert", 1), ("awd_lstm", 1), ("awd_lstm", 2)])
def test_so_many_layers_are_transferred(family, layers, runs):
    experiment = experiment_of(runs[family], transfer__layers=layers, **{"head.pooling": "pooler"})
    params, fresh = map(named, begun(experiment))
    pretrained = named(load_params(runs[family]))
    np.testing.assert_array_equal(params["body/token_embedding"], pretrained["body/token_embedding"])
    for layer in (1, 2):
        source = pretrained if layer <= layers else fresh
        np.testing.assert_array_equal(ONE_OF[family](params, layer), ONE_OF[family](source, layer))
    if family == "bert":
        for name in ("position_embedding", "segment_embedding", "embedding_norm/scale"):
            np.testing.assert_array_equal(params[f"body/{name}"], pretrained[f"body/{name}"])
        np.testing.assert_array_equal(params["body/pooler/kernel"], fresh["body/pooler/kernel"], err_msg="it is no layer")
    # Every number is one or the other's.
    for name, leaf in params.items():
        if name in pretrained:
            assert ((leaf == pretrained[name]) | (leaf == fresh[name])).all() and leaf.dtype == np.float32
        else:
            np.testing.assert_array_equal(leaf, fresh[name], err_msg=name)


def test_a_random_model_has_nothing_of_the_runs(runs):
    assert experiment_of(runs["bert"], transfer__random=True).warm_start is None


def test_the_delimited_layout_adds_three_fresh_rows_to_the_runs_table(runs):
    experiment = experiment_of(runs["gpt"], "pairs", "gpt", transfer__warmup=0.0, data__seq_len=16)
    params, fresh = map(named, begun(experiment))
    table = load_params(runs["gpt"])["body"]["token_embedding"]
    assert params["body/token_embedding"].shape == (V + 3, 16)
    np.testing.assert_array_equal(params["body/token_embedding"][:V], table)
    np.testing.assert_array_equal(params["body/token_embedding"][V:], fresh["body/token_embedding"][V:])
    # Both orders, each from start to extract.
    batch = experiment.evaluations["valid"][0]
    assert batch["tokens"].shape == (16, 32) and batch["documents"].max() == 2
    assert np.isin([V, V + 1, V + 2], batch["tokens"][0]).all()
    assert experiment.program.objectives["pairs"].texts == 2 and "language_model" in experiment.program.objectives
    assert experiment.weights(0)["language_model"] == 0.5


def test_a_finetuned_run_is_loaded_and_finetuned_again(runs, tmp_path):
    """Radford's layout; then another task from there (STILTs: Phang et al. 2018)."""
    settings = {"data.seq_len": 16, "data.batch_size": 16, "mesh.data": 1, "train.steps": 2, "head.dropout": 0.0}
    result = finetune(runs["gpt"], "pairs", tmp_path / "first", settings | {"optimizer.learning_rate": 0.01}, "gpt")
    assert 0 < result["metrics"]["test"]["language_model/loss"] < 10
    first, original = named(load_params(tmp_path / "first")), named(load_params(runs["gpt"]))
    table = first["body/token_embedding"]
    assert table.shape == (V + 3, 16) and np.abs(table[:V] - original["body/token_embedding"]).max() > 1e-4
    # Loaded, its body gives the states of its parameters.
    model = bertlab.load(tmp_path / "first")
    (embedding,) = model.encode(["ba de fi"])
    assert embedding.states.shape == (3, 3, 16)
    ids = TOKENIZER.encode("ba de fi")
    before = bertlab.load(runs["gpt"]).encode(["ba de fi"])[0].states
    assert np.abs(embedding.states - before).max() > 1e-3
    positions = first["body/position_embedding"]
    offset = len(TOKENIZER.prefix_ids)
    np.testing.assert_allclose(embedding.states[0], table[ids] + positions[offset : offset + 3], rtol=1e-5)
    # The next task begins with this body, the three new rows too, and with a head of its own.
    params, fresh = map(named, begun(experiment_of(tmp_path / "first")))
    assert experiment_of(tmp_path / "first").config.transfer.layout == "delimited"
    for name, leaf in params.items():
        np.testing.assert_array_equal(leaf, (first if name.startswith("body/") else fresh)[name], err_msg=name)
    # The same task goes on with its head.
    again, _ = begun(experiment_of(tmp_path / "first", "pairs", data__seq_len=16))
    for name, leaf in named(again).items():
        np.testing.assert_array_equal(leaf, first[name], err_msg=name)


def test_a_task_goes_on_with_the_head_of_another_one(runs, tmp_path):
    """SQuAD after TriviaQA (Devlin et al. 2018, section 4.2) keeps its head; STILTs begins with a new one."""
    settings = {"data.seq_len": 12, "data.batch_size": 16, "mesh.data": 1, "train.steps": 2, "optimizer.learning_rate": 0.01}
    finetune(runs["bert"], "half", tmp_path / "half", settings)
    first = named(load_params(tmp_path / "half"))
    params, fresh = map(named, begun(experiment_of(tmp_path / "half", "pairs", transfer__head="half")))
    own = lambda name: name.replace("heads_pairs", "heads_half")
    assert any(name.startswith("heads_pairs/") for name in params)
    for name, leaf in params.items():
        np.testing.assert_array_equal(leaf, first[own(name)], err_msg=name)
    params, _ = map(named, begun(experiment_of(tmp_path / "half", "pairs")))
    for name in filter(lambda name: name.startswith("heads_"), params):
        np.testing.assert_array_equal(params[name], fresh[name], err_msg=name)
    for run, changes, message in (
        (tmp_path / "half", {"transfer__head": "pairs"}, r"config.transfer.head='pairs': .* no such head, .* heads are half;"),
        (runs["bert"], {"transfer__head": "half"}, r"no such head, because it is no fine-tuning"),
        (
            tmp_path / "half",
            {"transfer__head": "half", "transfer__random": True},
            r"continues one task's head .* omit other tasks, random",
        ),
        (
            tmp_path / "half",
            {"transfer__head": "half", "transfer__layers": 1},
            r"continues one task's head on the run's whole body",
        ),
    ):
        with pytest.raises(UserError, match=message):
            experiment_of(run, "pairs", **changes)


def test_rows_of_tasks_with_one_and_with_two_spans_stand_side_by_side(runs, monkeypatch):
    def add(name, spans, labels, number):
        make = lambda i: Example(str(i), "stub", words=("ba", "de", "fi"), spans=spans, label=labels)
        data = TaskData(("x", "y"), {split: [make(i) for i in range(number)] for split in ("train", "valid", "test")})
        task = Task(name, SpanPair(), ("micro_f1",), lambda directory, options: data)
        monkeypatch.setitem(tasks.TASKS, name, task)

    add("one", (((0, 1),), ((1, 3),), ((2, 3),)), ((0,), (1,), ()), 8)
    add("two", (((0, 1), (1, 3)),), ((0, 1),), 8)
    batch = experiment_of(runs["bert"], "one+two+endings").evaluations["valid"][0]
    one, two = 0, 8
    np.testing.assert_array_equal(batch["target_spans"][one], [[[1, 1], [-1, -1]], [[2, 3], [-1, -1]], [[3, 3], [-1, -1]]])
    np.testing.assert_array_equal(batch["target_spans"][two], [[[1, 1], [2, 3]], [[-1, -1]] * 2, [[-1, -1]] * 2])
    np.testing.assert_array_equal(
        batch["target_labels"][[one, two]], [[[0, -1], [1, -1], [-1, -1]], [[0, 1], [-1, -1], [-1, -1]]]
    )
    np.testing.assert_array_equal(batch["target_known"][[one, two]], [[1, 1, 1], [1, 0, 0]])
    assert (batch["labels"] == -1).all() and (batch["word_at"] == -1).all(), "the tagger's labels are not known here"


def test_tasks_with_one_and_with_two_texts_a_row_are_trained_together(runs):
    """In GPT's layout a pair without an order is shown in both, so that its rows are twice as long."""
    experiment = experiment_of(runs["gpt"], "half+pairs", transfer__layout="delimited")
    batch = experiment.evaluations["valid"][0]
    assert batch["tokens"].shape[1] == 24
    of_task = [batch["documents"][(batch["task"] == task) & (batch["documents"] > 0).any(axis=1)] for task in (0, 1)]
    assert [len(of) > 0 and set(of.max(axis=1).tolist()) for of in of_task] == [{1}, {2}]
    assert not of_task[0][:, 12:].any()


# --- what is trained


def trained(experiment, before=None, steps=3):
    """(Before, after) a few updates of these parameters, or of random ones."""
    config = experiment.config
    before = fresh_of(experiment) if before is None else before
    optimizer = build_optimizer(config.optimizer, config.train.steps)
    weights = {name: (1.0, 1.0) for name in experiment.program.objectives}
    step = quick_jit(build_train_step(experiment.program, optimizer, weights, 1, config.train.steps))
    zeros = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), jax.eval_shape(optimizer.init, before))
    state = TrainState(np.int32(0), before, zeros, {})
    for _ in range(steps):
        state, _ = step(state, experiment.evaluations["valid"][0], 0)
    return before, jax.tree.map(np.asarray, state.params)


def test_what_is_frozen_does_not_change_by_a_bit(runs):
    """`frozen` is tested with low-rank updates below."""
    experiment = experiment_of(
        runs["bert"], optimizer__thaw="head", **{"head.pooling": "pooler", "optimizer.weight_decay": 0.1}
    )
    before, after = map(named, trained(experiment))
    for name, leaf in after.items():
        if name.startswith(("heads_", "body/pooler")):
            assert np.abs(leaf - before[name]).max() > 1e-4, name
        else:
            np.testing.assert_array_equal(leaf, before[name], err_msg=name)


@pytest.mark.parametrize(
    ("settings", "fixed"),
    [
        ({"optimizer__frozen": "^body/"}, True),
        ({"optimizer__thaw": "head"}, True),
        ({"recipe": "probe"}, True),
        ({}, False),
        ({"optimizer__frozen": "^body/.*embedding"}, False),
        ({"optimizer__frozen": "^body/(?!layer_1)"}, False),
        ({"optimizer__frozen": "^body/(layer|token|output)"}, True),
        ({"optimizer__frozen": "^body/", "lora__rank": 2, "lora__targets": "input_kernel"}, False),
    ],
)
def test_a_body_that_is_not_trained_has_no_dropout_in_training(settings, fixed, runs):
    experiment = experiment_of(runs["awd_lstm"], **settings, model__hidden_dropout=0.5)
    assert experiment.program.fixed_body == fixed
    if settings in ({}, {"optimizer__thaw": "head"}):
        params, batch = fresh_of(experiment), experiment.evaluations["valid"][0]
        views = experiment.program.views(batch, jax.random.key(0))
        loss = quick_jit(lambda params, views, key: experiment.program.metrics(params, views, key)["half/loss"][0])
        assert (loss(params, views, jax.random.key(1)) == loss(params, views, jax.random.key(2))) == fixed


def test_low_rank_updates_leave_the_kernels_and_change_what_the_body_says(runs, tmp_path):
    experiment = experiment_of(runs["bert"], lora__rank=2, optimizer__frozen="^body/", optimizer__learning_rate=0.05)
    start, end = trained(experiment, begun(experiment)[0])
    before, after = named(start), named(end)
    for name, leaf in after.items():
        if name.startswith("body/"):
            np.testing.assert_array_equal(leaf, before[name], err_msg=name)
        else:
            assert np.abs(leaf - before[name]).max() > 1e-3, name
    # Written as a run, it is read back with its updates in its kernels.
    TOKENIZER.save(tmp_path / "lora" / "tokenizer")
    (tmp_path / "lora" / "config.json").write_text(json.dumps(experiment.config.to_dict()))
    save_params(tmp_path / "lora", end)
    model, kernel = bertlab.load(tmp_path / "lora"), "body/blocks/attention/qkv_kernel"
    merged, plain = named(model.program.plain(model.params)), named(experiment.program.plain(end))
    for name in merged:
        np.testing.assert_allclose(merged[name], plain[name], rtol=1e-6, atol=1e-7, err_msg=name)
    changed = {name for name in merged if name.startswith("body/") and (merged[name] != before[name]).any()}
    assert changed == {kernel}
    text = "ba de fi go ku"
    ours, theirs = (bertlab.load(run).encode([text])[0].states for run in (tmp_path / "lora", runs["bert"]))
    np.testing.assert_array_equal(ours[0], theirs[0], err_msg="embeddings have no update")
    assert np.abs(ours - theirs).max() > 1e-3
    # What is fine-tuned from there begins with the merged kernels.
    again, _ = begun(experiment_of(tmp_path / "lora"))
    np.testing.assert_array_equal(named(again)[kernel], merged[kernel])


def test_two_tasks_learn_together(runs, tmp_path):
    overrides = {"data.seq_len": 12, "data.batch_size": 30, "mesh.data": 1, "train.steps": 60, "train.eval_every": 0}
    overrides |= {"head.dropout": 0.0, "optimizer.learning_rate": 0.01}
    result = finetune(runs["bert"], "half+endings", tmp_path / "both", overrides)
    metrics = result["metrics"]["test"]
    assert metrics["half/accuracy"] > 0.9 and metrics["endings/f1"] > 0.9
    lines = [json.loads(line) for line in (tmp_path / "both" / "predictions" / "test.jsonl").read_text().splitlines()]
    assert [line["task"] for line in lines] == ["half"] * 30 + ["endings"] * 30
    right = [line["gold"] == line["predicted"] for line in lines[:30]]
    assert np.mean(right) == pytest.approx(metrics["half/accuracy"])
    saved = load_params(tmp_path / "both")
    assert {"heads_half", "heads_endings", "body"} == saved.keys()


# --- documents longer than memory


@pytest.mark.parametrize("name", ["awd_lstm", "awd_lstm backward"])
def test_no_gradient_flows_between_chunks_and_the_states_are_those_of_one_pass(name, runs):
    changes = {"head.pooling": "last", "model.layers": 1}
    whole, cut = (experiment_of(runs[name], head__chunk=chunk, **changes) for chunk in (0, 4))
    params = fresh_of(whole)
    # [CLS], nine different words, [SEP] and padding, in chunks of positions 0 to 3, 4 to 7 and 8 to 11.
    row = {k: v[:1] for k, v in whole.evaluations["valid"][0].items()}
    tokens = np.int32([[2, *range(5, 14), 3, 0]])
    batch = row | {"tokens": tokens, "documents": np.int32([[1] * 11 + [0]])}

    def run(program, params):
        loss = lambda p: program.metrics(p, program.views(batch, jax.random.key(0)))["half/loss"][0]
        outputs = program.evaluate(params, program.views(batch, jax.random.key(0)), {})[2]
        return jax.grad(loss)(params)["body"]["token_embedding"], outputs["half"]["logits"]

    both = quick_jit(lambda params: (run(whole.program, params), run(cut.program, params)))
    (through, logits), (stopped, same) = jax.tree.map(np.asarray, both(params))
    np.testing.assert_allclose(same, logits, rtol=1e-4, atol=1e-6)
    reached = lambda gradient: np.abs(gradient[tokens[0, :11]]).max(axis=1) > 0
    assert reached(through).all(), "in one pass every token has had its part in the last state"
    last = range(8, 11) if name == "awd_lstm" else range(4)
    np.testing.assert_array_equal(reached(stopped), np.isin(np.arange(11), last))
    np.testing.assert_allclose(stopped[tokens[0, last]], through[tokens[0, last]], rtol=1e-3, atol=1e-7)


def test_a_chunked_model_reads_every_state(runs):
    """Concat pooling sees the states of all chunks, the short last one too."""
    whole, cut = (
        experiment_of(runs["awd_lstm"], head__chunk=chunk, **{"head.pooling": "concat", "model.layers": 1}) for chunk in (0, 5)
    )
    batch = {name: value[:10] for name, value in whole.evaluations["valid"][0].items()}
    run = lambda program, params: program.evaluate(params, program.views(batch, jax.random.key(0)), {})[2]["half"]["logits"]
    logits, same = quick_jit(lambda params: (run(whole.program, params), run(cut.program, params)))(fresh_of(whole))
    np.testing.assert_allclose(same, logits, rtol=1e-4, atol=1e-6)
    assert np.ptp(np.asarray(logits), axis=0).min() > 1e-4


def test_chunks_vary_in_training_and_the_last_one_is_reached(runs):
    """The last state's gradient reaches the tokens after the last border, which is another one with each key."""
    dropouts = ("dropout", "hidden_dropout", "input_dropout", "embedding_dropout", "weight_dropout")
    changes = {"head.pooling": "last", "model.layers": 1, "head.chunk_varies": True} | {
        f"model.{name}": 0.0 for name in dropouts
    }
    varied = experiment_of(runs["awd_lstm"], head__chunk=6, **changes)
    params = fresh_of(varied)
    row = {k: v[:1] for k, v in varied.evaluations["valid"][0].items()}
    tokens = np.int32([[2, *range(5, 14), 3, 0]])
    batch = row | {"tokens": tokens, "documents": np.int32([[1] * 11 + [0]])}

    def reached(params, key):
        loss = lambda p: varied.program.metrics(p, varied.program.views(batch, jax.random.key(0)), key)["half/loss"][0]
        return jax.numpy.abs(jax.grad(loss)(params)["body"]["token_embedding"][tokens[0, :11]]).max(axis=1) > 0

    trained, evaluated = quick_jit(jax.vmap(reached, (None, 0))), quick_jit(lambda params: reached(params, None))
    found = [np.flatnonzero(row) for row in trained(params, jax.random.split(jax.random.key(0), 20))]
    assert all(np.array_equal(row, range(row[0], 11)) for row in found)
    # A length is at least 5: there is no border before, and a first chunk may reach to the end.
    begins = {int(row[0]) for row in found}
    assert begins <= {0, *range(5, 11)} and len(begins) > 3
    np.testing.assert_array_equal(np.flatnonzero(evaluated(params)), range(6, 11), err_msg="in evaluation nothing is drawn")


def test_lengths_of_chunks_are_distributed_as_those_of_awd_lstms_rows():
    starts = np.asarray(jax.vmap(lambda key: chunk_starts(3500, 70, key))(jax.random.split(jax.random.key(0), 40)))
    lengths = np.concatenate([np.diff(np.flatnonzero(row)) for row in starts])
    assert starts[:, 0].all() and len(lengths) > 1900
    theirs = [varied_length(ConfigDict({"seed": 1, "seq_len": 70}), batch) for batch in range(2000)]
    assert ks_2samp(lengths, theirs).pvalue > 0.01
    assert lengths.min() < 45 and 0.03 < np.mean(lengths < 52) < 0.08
    np.testing.assert_array_equal(np.flatnonzero(chunk_starts(10, 4)), [0, 4, 8])


# --- what follows from the task's size, and what is refused


def test_epochs_warm_up_and_stages_follow_from_the_number_of_examples(runs):
    # 90 examples in batches of 16: run_classifier's int(90 / 16 * 3), of which int(0.1 * steps) warm up.
    given = config_of(runs["bert"], recipe="bert", train__steps=0, data__batch_size=16)
    config, _ = resolved(given)
    assert (config.train.steps, config.optimizer.warmup_steps) == (16, 1) and given.train.steps == 0
    config, _ = resolved(config_of(runs["bert"], recipe="bert", train__steps=0, transfer__epochs=0.01))
    assert config.train.steps == 1
    # Steps that are given count, whatever the epochs.
    config, _ = resolved(config_of(runs["bert"], recipe="bert", train__steps=40))
    assert (config.train.steps, config.optimizer.warmup_steps) == (40, 4)
    config, _ = resolved(config_of(runs["bert"], "half+endings", train__steps=0, transfer__epochs=1.0))
    assert config.train.steps == int(180 / 16)
    # Gradual unfreezing: a stage is an epoch, of whole batches.
    gradual = {"optimizer__thaw": "gradual", "train__steps": 40}
    assert resolved(config_of(runs["awd_lstm"], **gradual))[0].optimizer.thaw_steps == 90 // 16
    assert resolved(config_of(runs["awd_lstm"], **gradual, optimizer__thaw_steps=7))[0].optimizer.thaw_steps == 7
    # The order of the examples is another for every seed, unless it is set.
    assert resolved(config_of(runs["bert"], seed=5))[0].data.seed == 5
    assert resolved(config_of(runs["bert"], seed=5, data__seed=2))[0].data.seed == 2


def test_a_recipe_s_settings_reach_the_heads_that_have_them(runs):
    config = finetune_config(runs["bert"], "half+endings", "taglm")
    assert config.objectives.endings.crf is True and config.objectives.endings.word_width == 50
    assert "crf" not in config.objectives.half and config.objectives.half.bilstm == 2
    config = finetune_config(runs["gpt"], "endings", "gpt")
    assert config.objectives.language_model.weight == 0.5 and "pooling" not in config.objectives.endings
    changed = overridden(finetune_config(runs["bert"], "half+endings"), {"head.dropout": "0.25"})
    assert changed.objectives.half.dropout == changed.objectives.endings.dropout == 0.25


@pytest.mark.parametrize(
    ("model", "task", "changes", "message"),
    [
        ("bert", "half", {"transfer.layout": "gpt"}, r"config.transfer.layout='gpt' .*pair, delimited"),
        ("bert", "half", {"transfer.layers": 3}, r"config.transfer.layers=3 must be 0 .* to 2"),
        ("bert", "half", {"transfer.layers": -1}, r"config.transfer.layers=-1 must be at least 0"),
        ("bert", "half", {"head.chunk": 4}, r"config.objectives.half.chunk=4 .*family='bert'"),
        (
            "bert",
            "half",
            {"recipe": "best"},
            r"recipe 'best' is not known; did you mean bert?",
        ),
        ("bert", "half", {"head.crf": "true"}, r"head.crf: the heads of half have no setting 'crf'"),
        ("bert", "half", {"data.batch_size": 91}, r"config.data.batch_size=91 .* 90 training rows"),
        ("bert", "half+half", {}, r"config.task='half\+half' names a task twice"),
        ("bert", "endings", {"head.spelling": True}, r"config.objectives.endings.spelling, word_width and .* set bilstm=2"),
        ("bert", "half", {"recipe": "gpt"}, r"a language model needs a body that reads in one direction; omit language_model"),
        ("bert", "half", {"data.seq_len": 2}, r"config.data.seq_len=2 must be at least 8"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_computed(model, task, changes, message, runs):
    with pytest.raises(UserError, match=message):
        begun(experiment_of(runs[model], task, **changes))

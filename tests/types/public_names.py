"""Uses of every public name as a program outside bertlab has them. `make types` checks them strictly; nothing runs them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import linen as nn
from matplotlib.figure import Figure
from ml_collections import ConfigDict

import bertlab
from bertlab import results
from bertlab.cli import main
from bertlab.config import base_config, load_config, parse_arguments, train_on
from bertlab.data.synthetic import SyntheticCorpus
from bertlab.floors import Floor, floors
from bertlab.keys import setting
from bertlab.models import Dense, View
from bertlab.objectives import Bound, Corruption, NoFloor, Objective, Oracle, Scoring, Vocabulary, cross_entropy
from bertlab.studies.axes import Point, axis, chain, product, where, zipped
from bertlab.studies.launchers import Local, Ray, SkyPilot, Slurm
from bertlab.studies.settings import Setting, read_setting
from bertlab.studies.study import Claim, Published, Study
from bertlab.studies.sweep import sweep
from bertlab.transfer.adapt import adapt
from bertlab.transfer.finetune import finetune
from bertlab.transfer.geometry import cka_layers, layer_geometry
from bertlab.transfer.inspect import InContext, in_context, neighbours, occurrences
from bertlab.transfer.likelihood import BitsPerByte, Score
from bertlab.transfer.load import Embedding, Pretrained
from bertlab.transfer.pretrain import pretrain
from bertlab.transfer.probes import control_labels, probe_layers
from bertlab.transfer.tasks import (
    Task,
    conll,
    conllu,
    edge_probing,
    labelled_folders,
    labelled_lines,
    multiple_choice,
    squad,
    table,
    word_in_context,
)

SENTENCES = [["a", "sentence"]]


@dataclasses.dataclass(frozen=True)
class Own(Objective):
    """An objective from outside."""

    reads = "both"
    sees = "own"
    asks = "positions"

    rate: float = setting(0.15, least=0.0, most=1.0)

    def view(self, batch: View, key: jax.Array, vocabulary: Vocabulary, progress: jax.Array) -> View:
        return {**batch, "asked": batch["documents"] > 0, "even": batch["tokens"] % vocabulary.size}

    def head(self, body: nn.Module) -> nn.Module:
        return Dense(2, axes=("embed", None))

    def loss(self, model: Bound, view: View) -> Mapping[str, tuple[jax.Array, jax.Array]]:
        assert model.head is not None and model.encoded.both is not None
        return cross_entropy(model.encoded.both[-1].astype(jnp.float32), view["even"], view["asked"])

    def scoring(self) -> Scoring:
        return Scoring(("at the mask",))

    def floor(self, oracle: Oracle, view: View, batch: View) -> tuple[np.ndarray, np.ndarray]:
        if oracle.vocabulary.mask_id is None:
            raise NoFloor("no mask")
        return oracle.chain_rule(), np.ones(1)

    def corruption(self, view: View, vocabulary: Vocabulary) -> Corruption:
        return Corruption(np.ones(vocabulary.size))


def get_config(arguments: str | None = None) -> ConfigDict:
    values = parse_arguments(arguments, objectives="mlm", steps=10)
    assert_type(values, dict[str, Any])
    config = base_config()
    assert_type(config, ConfigDict)
    train_on(config, "pydocs", values["objectives"], mask_rate=0.3)
    return config


def get_study(arguments: str | None = None) -> Study:
    setting = read_setting(arguments, paper={"train.steps": 10}, tasks=["package"], rate=0.15)
    assert_type(setting, Setting)
    assert_type(setting.recipe("bert", objectives="mlm"), str)
    assert_type(setting.steps(setting.recipe("bert")), int)
    assert_type(setting.others["rate"], Any)
    return Study(
        name="own",
        title="Own",
        question="?",
        config=setting.recipe("bert"),
        axes={"seed": setting.seeds},
        overrides={**setting.overrides, **setting.transformer, **setting.finetuning("small")},
        rates=setting.rates,
        task_rates=setting.task_rates,
        downstream=setting.downstream(),
        claims=[Claim("MLM", "LTR", "84.4 against 82.1", "a paper")],
    )


def runs() -> None:
    assert_type(main(["models"]), int)
    config = load_config("config.py:size=tiny", {"train.steps": 3})
    assert_type(config, ConfigDict)
    assert_type(pretrain(config, "runs/x"), dict[str, Any])
    assert_type(finetune("runs/x", "sst2", "runs/y", {"task_data.directory": "glue"}, recipe="bert"), dict[str, Any])
    assert_type(adapt("runs/x", "trec", "runs/z", epochs=2.0), dict[str, Any])
    assert_type(floors(config), dict[str, Floor | str])
    SyntheticCorpus(documents=10, vocab_size=16)


def models() -> None:
    model = bertlab.load("runs/x", step=100)
    assert_type(model, Pretrained)
    assert_type(model.score(["a"]), list[Score])
    assert_type(model.bits_per_byte(["a"]), BitsPerByte)
    assert_type(model.encode(["a"], layers=[-1]), list[Embedding])
    model.encode(["a"], layers=[-1])[0].states.mean()
    model.sentence_vectors(["a"], pooling="mean").mean()
    bank = occurrences(model, SENTENCES, "a", layer=-1)
    assert_type(bank, InContext)
    assert_type(neighbours(bank, bank, k=3), pd.DataFrame)
    assert_type(in_context(model, SENTENCES), list[InContext])
    assert_type(layer_geometry(model, SENTENCES), pd.DataFrame)
    cka_layers(model, model, SENTENCES).max()
    assert_type(probe_layers(model, [(["a"], ["N"])], [(["a"], ["N"])], control=True), pd.DataFrame)
    control_labels(["a"], ["a"], ["N"])


def studies() -> None:
    seeds = axis("seed", [1, 2])
    grid = chain(product(seeds, axis("train.steps", [10, 20])), zipped(seeds, seeds))
    assert_type(where(grid, lambda settings: bool(settings["seed"] == 1)), list[Point])
    published = Published(source="a paper", columns=["F1"], rows={"MLM": [None]})
    study = Study(name="own", title="Own", question="?", config="config.py", axes={"seed": [1]}, published=published)
    for launcher in (Local(2, devices="0,1"), Slurm(2, timeout_min=60), Ray(2, num_gpus=1), SkyPilot(2, mirror="gs://b/x")):
        assert_type(sweep(study, "runs/study", launcher), int)
    found = results.load("runs/study")
    assert_type(found, results.Results)
    assert_type(found.wide("tokens"), pd.DataFrame)
    assert_type(results.summarise(found), pd.DataFrame)
    assert_type(results.difference(found, "tense/accuracy", "a", "b"), results.Comparison)
    for plot in (results.plot_curves, results.plot_scores, results.plot_score_curves, results.plot_heat_map):
        assert_type(plot(found), Figure)
    assert_type(results.styles(found), dict[str, results.LineStyle])


TASKS: list[Task] = [
    table("own", train="train.tsv", text="text", label="label"),
    labelled_lines("lines", train="train.txt"),
    labelled_folders("folders", train="train", label_names=("a", "b")),
    conll("ner", train="train.txt"),
    conllu("ud", train="train.conllu"),
    multiple_choice("choice", train="train.csv", text="text", choices=("a", "b"), label="label"),
    squad("questions", train="train.json"),
    word_in_context("words", train="train.jsonl"),
    edge_probing("edges", train="train.jsonl"),
]

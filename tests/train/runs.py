"""Small runs on a part of Python's language reference."""

from pydoc_data.topics import topics

from bertlab.config import base_config
from bertlab.train.build import build_pretraining
from bertlab.train.recipes import train_on

SETTINGS = {
    "data.tokenizer.vocab_size": 400,
    "data.valid_fraction": 0.2,
    "data.test_fraction": 0.2,
    "data.seq_len": 32,
    "data.batch_size": 8,
    "model.layers": 1,
    "model.width": 16,
    "model.hidden": 24,
    "train.steps": 12,
    "train.log_every": 5,
    "train.eval_every": 6,
    "train.eval_batches": 1,
    "train.checkpoint_every": 4,
    "optimizer.learning_rate": 0.01,
    "mesh.data": 1,
}
STREAM = {"data.format": "stream", "model.stateful": True}
RECIPES = {
    "bert": ("bert", "mlm+nsp", {}),
    "gpt, two phases": ("gpt", "ltr", {"train.phases": "0.6 data.seq_len=16; 0.4"}),
    "stateful elmo": ("elmo", "bilm", STREAM | {"data.stream.backward": True}),
    "stateful awd_lstm": ("awd_lstm", "ltr", STREAM),
}


def write_text(folder):
    """The glob of a text file."""
    (folder / "text").mkdir(exist_ok=True)
    text = "\n\n".join(" ".join(topics[name].split()) for name in sorted(topics)[:40])
    (folder / "text" / "a.txt").write_text(text)
    return f"text:{folder}/text/*.txt"


def config_of(name, folder, **changes):
    """The config of a recipe; `train__steps` is the key "train.steps"."""
    family, objectives, settings = RECIPES[name]
    config = base_config()
    config.model.family = family
    train_on(config, write_text(folder), objectives)
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    settings = SETTINGS | settings | {"data.directory": str(folder / "cache")} | changes
    config.update_from_flattened_dict(settings)
    return config


def make(name, folder, **changes):
    """The experiment of a recipe."""
    return build_pretraining(config_of(name, folder, **changes))

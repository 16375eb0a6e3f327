"""What recipes share: a corpus, objectives, and everything else that these require."""

from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.config.defaults import objective_entry
from bertlab.config.papers import SIZES
from bertlab.data.formats import FORMATS
from bertlab.data.formats.pairs import NEGATIVES
from bertlab.errors import UserError
from bertlab.models.base import sides_of
from bertlab.models.presets import FAMILIES, model_direction


def train_on(config: ConfigDict, corpus: str, names: str, mask_rate: float = 0.0) -> None:
    """Sets a recipe's corpus and objectives, and every other key that they require: a body that
    gives what they read and a format that makes what they need, unless it already fits. `mask_rate`
    is the `rate` of every objective that has one; 0: their own."""
    data, model = config.data, config.model
    data.corpus = corpus
    if corpus == "synthetic":
        data.tokenizer.kind = "words"
        data.tokenizer.vocab_size = data.synthetic.get_oneway_ref("vocab_size") + 5  # specials
    add_objectives(config, names)
    masked = [entry for entry in config.objectives.values() if "rate" in entry]
    if mask_rate and not masked:
        raise UserError(f"mask_rate={mask_rate}: objectives={names} masks nothing; omit it")
    for entry in masked:
        entry.rate = mask_rate or entry.rate
    kinds = [objectives.find(x.get("implementation", n)) for n, x in config.objectives.items()]
    reads = {kind.reads for kind in kinds if kind.shares != "any"}
    family = FAMILIES[model.family]
    fitting = [way for way in family.directions if reads <= {*sides_of(model.family, way)}]
    if fitting and model_direction(model) not in fitting:
        model.direction = fitting[0]
    needs = {field for kind in kinds for field in kind.needs}
    for name in (data.format, *FORMATS):
        # The lengths of a pair's segments, which fill a row, reveal its label: no floor is exact.
        reveals = corpus == "synthetic" and name == "segment_pair"
        if needs <= {*FORMATS[name].makes} and not reveals:
            data.format = name
            break
    for negatives, label in NEGATIVES.items():
        if label in needs:
            data[data.format].negatives = negatives


def add_objectives(config: ConfigDict, names: str) -> None:
    """Fills `config.objectives` from "mlm+nsp" (registry names, `bilm` or `module:Class`): each
    objective's weight and own settings."""
    for name, weight in objectives.members(names).items():
        key, settings = objectives.default_settings(name)
        config.objectives[key] = objective_entry(weight, settings)


def take_published(config: ConfigDict, steps: int = 0) -> None:
    """Sets what the paper has for the config's family and size (`bertlab.config.papers`), with
    `steps` instead of the paper's if given; warm-up then takes at most a tenth of them."""
    published = SIZES.get((config.model.family, config.model.size), {})
    config.update_from_flattened_dict(published)
    if steps:
        config.train.steps = steps
        if config.optimizer.warmup_steps is not None:  # otherwise it is a tenth
            config.optimizer.warmup_steps = min(config.optimizer.warmup_steps, steps // 10)
        config.train.phases = config.train.phases if steps >= 100 else ""  # too short for phases

"""The table of config keys: its page is current, its choices are the code's, and values out of range are refused by name."""

import re

import pytest

from bertlab.cli import main
from bertlab.config import add_objectives, base_config, flatten, set_key
from bertlab.errors import UserError
from bertlab.keys import BY_NAME, KEYS, check, has
from bertlab.models.attention import BACKENDS
from bertlab.models.base import ACTIVATIONS
from tests.conftest import ROOT


def test_a_config_has_exactly_the_tables_keys():
    assert set(flatten(base_config())) == {key.name for key in KEYS}
    assert len(BY_NAME) == len(KEYS)
    check(base_config())


def test_choices_are_those_of_the_code():
    assert BY_NAME["model.activation"].choices == tuple(ACTIVATIONS)
    assert BY_NAME["model.attention"].choices == ("auto", *BACKENDS)


def test_every_key_says_what_it_means_and_its_default_is_allowed():
    for key in KEYS:
        assert key.meaning and key.values(), key.name
        assert not re.search(r"[.;,]$", key.meaning), key.name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((key.name, key.least - 1) for key in KEYS if key.least is not None),
        *((key.name, key.above) for key in KEYS if key.above is not None),
        *((key.name, key.below) for key in KEYS if key.below is not None),
        *((key.name, "no such thing") for key in KEYS if key.choices),
    ],
)
def test_a_value_out_of_range_is_refused(name, value):
    with pytest.raises(UserError, match=rf"config\.{re.escape(name)}="):
        BY_NAME[name].check(value, {})


@pytest.mark.parametrize("name", ["optimizer.learning_rate", "data.valid_fraction", "objectives.mlm.rate"])
def test_a_number_that_is_not_finite_is_refused(name):
    config = base_config()
    add_objectives(config, "mlm")
    set_key(config, name, float("nan"))
    with pytest.raises(UserError, match=rf"config\.{re.escape(name)}=nan"):
        check(config)


def test_a_key_without_effect_is_refused_and_the_condition_is_named():
    config = base_config()
    config.optimizer.cooldown_steps = 5
    with pytest.raises(UserError, match=r"config\.optimizer\.cooldown_steps=5 .*decay=constant"):
        check(config)
    config.optimizer.decay = "constant"
    check(config)
    local = BY_NAME["model.rotary_base_local"]
    local.check(1e4, {"position_encoding": "rotary", "local_window": 8})
    for others in ({"position_encoding": "learned", "local_window": 8}, {"position_encoding": "rotary", "local_window": 0}):
        with pytest.raises(UserError, match="rotary_base_local"):
            local.check(1e4, others)


def test_what_may_change_when_a_run_is_resumed():
    free = {key.name for key in KEYS if key.on_resume}
    assert free >= {"mesh.data", "writers", "profile", "model.remat", "train.checkpoint_every", "evaluate.pairs"}
    assert not free & {"seed", "train.steps", "data.seq_len", "model.width", "optimizer.learning_rate"}
    assert not has("on_resume", "objectives.mlm.rate")


def test_the_page_is_current(capsys):
    assert main(["keys", "--markdown"]) == 0
    assert (ROOT / "docs/keys.md").read_text() == capsys.readouterr().out, "bertlab keys --markdown > docs/keys.md"


def test_keys_by_name_by_glob_and_by_meaning(capsys):
    def names(*pattern):
        assert main(["keys", *pattern]) == 0
        return [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]

    assert names("optimizer.thaw*") == [f"optimizer.{leaf}" for leaf in ("thaw", "thaw_steps", "thaw_stages", "thaw_restarts")]
    assert names("config.train.steps") == ["train.steps"]
    assert "optimizer.average_after" in names("NT-ASGD")
    assert "objectives.mlm.rate" in names("mlm")
    assert len(names()) > len(KEYS)
    assert main(["keys", "no such key"]) == 2
    assert "'no such key'" in capsys.readouterr().err

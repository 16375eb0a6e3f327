"""Which models are RoBERTas and GPT-1s; tests/interop and tests/parity have the rest, nightly."""

import pytest

from bertlab.contrib.roberta_gpt1 import ALL
from tests.interop import published

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ({"position_offset": 1, "activation": "gelu_erf"}, "roberta"),
        ({"position_offset": 1}, "bertlab"),
        ({"family": "gpt", "hidden": 64}, "openai-gpt"),
        ({"family": "gpt", "hidden": 99}, "bertlab"),
        ({"family": "gpt", "hidden": 64, "activation": "gelu_erf"}, "bertlab"),
    ],
)
def test_the_kind_is_the_first_that_computes_the_same(model, kind, tmp_path):
    run = published.random_model(tmp_path / "bert", layers=1, **model)
    assert published.type_of(run, ALL) == kind

"""What a second, backward language model adds to ULMFiT: Howard and Ruder 2018, section 5 ("Impact
of bidirectionality").

One AWD-LSTM reads forward and one backward. Each is pretrained, adapted and turned into a
classifier separately. A third row averages their predictions, at no training cost. Stages, tasks
and corpus are as in `ulmfit_table4.py`.

Expect: the mean above both.
"""

import ulmfit
from common import table_claims

from bertlab.studies.study import Published

PUBLISHED = Published(
    source="Howard and Ruder 2018, section 5 (test error, %)",
    columns=("IMDb",),
    rows={"forward": (5.30,), "average": (4.58,)},
    note="Errors: lower is better.",
)
CLAIMS = table_claims(PUBLISHED, ("average", "forward", "IMDb"))


def get_study(arguments=None):
    setting = ulmfit.read(arguments)
    return ulmfit.study(
        setting,
        name="ulmfit_bidirectional",
        title="ULMFiT in two directions",
        question="What does averaging a forward and a backward classifier give?",
        axes={
            "direction": {
                "forward": {},
                "backward": {"config": setting.recipe("awd_lstm", direction="backward")},
                "average": {"config": "average:forward,backward"},
            }
        },
        published=PUBLISHED,
        claims=CLAIMS,
    )

"""What a second, backward language model adds to ULMFiT: Howard and Ruder 2018, section 5 ("Impact
of bidirectionality").

    bertlab sweep --study=experiments/ablations/ulmfit_bidirectional.py \
      --workdir=runs/bidirectional --jobs=2
    bertlab report runs/bidirectional

One AWD-LSTM reads forward and one backward. Each is pretrained, adapted and turned into a
classifier separately. A third row averages their predictions, at no training cost. Stages, tasks
and corpus are as in `ulmfit_table4.py`.

Expect: the mean above both.

Cost at scale=tiny with seeds=1,select=off: 284 TFLOP, as `--dry_run` counts them. Its three seeds
in `experiments/results/ulmfit_bidirectional_tiny_wikipedia` with steps=2000 took 41 minutes of one
core.
"""

import ulmfit
from common import read_setting

from bertlab.studies.study import Claim, Published, Study

PUBLISHED = Published(
    source="Howard and Ruder 2018, section 5 (test error, %)",
    columns=("IMDb",),
    rows={"forward": (5.30,), "average": (4.58,)},
    note="Errors: lower is better.",
)
CLAIMS = (Claim("average", "forward", "errors of 4.58 and 5.30 % on IMDb", PUBLISHED.source),)


def get_study(arguments=None):
    setting = read_setting(arguments, paper=ulmfit.PAPER, tasks=("package",), least=ulmfit.LEAST)
    return Study(
        name="ulmfit_bidirectional",
        title="ULMFiT in two directions",
        question="What does averaging a forward and a backward classifier give?",
        config=setting.recipe("awd_lstm"),
        axes={
            "direction": {
                "forward": {},
                "backward": {"config": setting.recipe("awd_lstm", direction="backward")},
                "average": {"config": "average:forward,backward"},
            },
            "seed": setting.seeds,
        },
        overrides=ulmfit.stages(setting),
        rates=setting.rates,
        task_rates=setting.task_rates,
        downstream=setting.downstream(ulmfit.classifies, long_rows=0),
        published=PUBLISHED,
        claims=CLAIMS,
    )

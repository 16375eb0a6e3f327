"""What a backward language model adds to ULMFiT: Howard and Ruder 2018, section 5.

One AWD-LSTM reads forward and one backward, each pretrained, adapted and turned into a classifier
separately; the third row averages their predictions. Otherwise as `ulmfit_table4.py`.
"""

import ulmfit
from common import table

TABLE = table(
    "Howard and Ruder 2018, section 5 (test error, %)",
    "IMDb",
    {"forward": (5.30,), "average": (4.58,)},
    ("average", "forward", "IMDb"),
    note="Errors: lower is better.",
)


def get_study(arguments=None):
    setting = ulmfit.read(arguments)
    backward = {"config": setting.recipe("awd_lstm", direction="backward")}
    average = {"config": "average:forward,backward"}
    return ulmfit.study(
        setting,
        title="ULMFiT in two directions",
        question="What does averaging a forward and a backward classifier give?",
        axes={"direction": {"forward": {}, "backward": backward, "average": average}},
        **TABLE,
    )

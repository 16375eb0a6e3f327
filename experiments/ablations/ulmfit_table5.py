"""Whether ULMFiT needs a regularised language model: Howard and Ruder 2018, section 5, table 5.

AWD-LSTM and the vanilla language model, the same model without its five kinds of dropout in all
three stages. Stages, tasks and corpus are as in `ulmfit_table4.py`.

Expect: the vanilla model is not far behind on larger tasks, and further behind on the smallest
(TREC-6).
"""

import ulmfit
from common import table_claims

from bertlab.studies.study import Published

PUBLISHED = Published(
    source="Howard and Ruder 2018, table 5 (validation error, %)",
    columns=("IMDb", "TREC-6", "AG"),
    rows={"vanilla": (5.98, 7.41, 5.76), "AWD-LSTM": (5.00, 5.69, 5.38)},
    note="Errors: lower is better.",
)
CLAIMS = table_claims(PUBLISHED, ("AWD-LSTM", "vanilla", ("TREC-6", "IMDb")))


def get_study(arguments=None):
    setting = ulmfit.read(arguments)
    return ulmfit.study(
        setting,
        name="ulmfit_table5",
        title="ULMFiT with a vanilla and with a regularised language model",
        question="Does a better regularised language model make a better classifier?",
        axes={"language model": {"vanilla": ulmfit.NO_DROPOUT, "AWD-LSTM": {}}},
        published=PUBLISHED,
        claims=CLAIMS,
    )

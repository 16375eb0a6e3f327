"""Whether ULMFiT needs a regularised language model: Howard and Ruder 2018, section 5, table 5.

The vanilla language model lacks AWD-LSTM's five dropouts. Otherwise as `ulmfit_table4.py`.
"""

import ulmfit

TABLE = ulmfit.published(
    5,
    {"vanilla": (5.98, 7.41, 5.76), "AWD-LSTM": (5.00, 5.69, 5.38)},
    ("AWD-LSTM", "vanilla"),
)


def get_study(arguments=None):
    setting = ulmfit.read(arguments)
    return ulmfit.study(
        setting,
        title="ULMFiT with a vanilla and with a regularised language model",
        question="Does a better regularised language model make a better classifier?",
        axes={"language model": {"vanilla": ulmfit.NO_DROPOUT, "AWD-LSTM": {}}},
        **TABLE,
    )

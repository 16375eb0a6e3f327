"""The effect of ULMFiT's pretraining: Howard and Ruder 2018, section 5, table 4.

One AWD-LSTM has read the corpus and one has not. Both go through the same two stages: language
modelling of the task's text (for the model without pretraining too, as we read the paper), and
ULMFiT's classifier. Rates, schedules and the order of thawing are the paper's at every scale; tiny
and mini have fewer steps and shorter rows. At scale=paper the classifier makes 50 passes; the
smaller scales pretrain as AWD-LSTM does, by averaged SGD. The paper's tasks:
`tasks=imdb+trec+ag_news,data=DIR`; its corpus: `corpus='text:wikitext-103/*.txt'`.
"""

import ulmfit

TABLE = ulmfit.published(
    4,
    {"without pretraining": (5.63, 10.67, 5.52), "with pretraining": (5.00, 5.69, 5.38)},
    ("with pretraining", "without pretraining"),
)


def get_study(arguments=None):
    setting = ulmfit.read(arguments)
    return ulmfit.study(
        setting,
        title="ULMFiT with and without pretraining",
        question="What does pretraining on general text give, if the language model reads the"
        " task's text too?",
        axes={"pretraining": {"without pretraining": {"train.steps": 0}, "with pretraining": {}}},
        **TABLE,
    )

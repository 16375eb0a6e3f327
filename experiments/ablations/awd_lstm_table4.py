"""What each part of AWD-LSTM gives as a language model: Merity et al. 2017, section 7, table 4.

The full model, and eight that each lack one part ("full-sized embedding": equal widths, as we read
it). The score is the held-out loss in nats per token. Fine-tuning (section 5) is a second run of
averaged SGD from the first run's average, here the second half of the steps; "without NT-ASGD" has
none either. scale=paper is salesforce/awd-lstm-lm's README on WikiText-2 (`corpus=splits:DIR` with
wiki.train.tokens and so on) or, with `text=penn_treebank`, the Penn Treebank (ptb.train.txt).
"""

from common import Setting, papers, table

TABLE = table(
    "Merity et al. 2017, table 4 (perplexity)",
    "PTB valid|PTB test|WikiText-2 valid|WikiText-2 test",
    {
        "full": (60.0, 57.3, 68.6, 65.8),
        "without fine-tuning": (60.7, 58.8, 69.1, 66.0),
        "without NT-ASGD": (66.3, 63.7, 73.3, 69.7),
        "without variable length": (61.3, 58.9, 69.3, 66.2),
        "without embedding dropout": (65.1, 62.7, 71.1, 68.1),
        "without weight decay": (63.7, 61.0, 71.9, 68.7),
        "without AR and TAR": (62.7, 60.3, 73.2, 70.1),
        "without full-sized embedding": (68.0, 65.6, 73.7, 70.7),
        "without weight-dropping": (71.1, 68.9, 78.4, 74.9),
    },
    note="Perplexities of words; ours are losses of tokens. Lower is better.",
)
WITHOUT = {
    "without NT-ASGD": {"optimizer.average_after": 0},
    "without variable length": {"data.stream.vary_length": False},
    "without embedding dropout": {"model.embedding_dropout": 0.0},
    "without weight decay": {"optimizer.weight_decay": 0.0},
    "without AR and TAR": {"objectives.ar.weight": 0.0, "objectives.tar.weight": 0.0},
}
TEXTS = {"wikitext_2": papers.AWD_LSTM, "penn_treebank": papers.AWD_LSTM_PENN_TREEBANK}


def get_study(arguments=None):
    own = {"tasks": "", "text": tuple(TEXTS)}
    text = Setting(arguments, **own).arguments["text"]
    setting = Setting(arguments, paper=TEXTS[text], **own)
    once = setting.steps(setting.recipe("awd_lstm"))
    every, hidden = setting.pretraining["train.eval_every"], setting.numbers("awd_lstm")["hidden"]
    looks = {"train.eval_every": min(100, every)} if setting.is_tiny else {}
    twice = {"train.steps": 2 * once, "optimizer.average_again": once}
    models = {
        "full": {},
        "without fine-tuning": {"train.steps": once, "optimizer.average_again": 0},
        **WITHOUT,
        "without full-sized embedding": {"model.width": hidden},
        "without weight-dropping": {"model.weight_dropout": 0.0},
    }
    return setting.study(
        title="The parts of AWD-LSTM",
        question="What does each part of AWD-LSTM's regularisation and optimisation give?",
        config=setting.recipe("awd_lstm"),
        axes={"model": models},
        overrides={**setting.pretraining, **setting.finetune, **looks, **twice},
        **TABLE,
    )

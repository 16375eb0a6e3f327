"""What each part of AWD-LSTM gives as a language model: Merity et al. 2017, section 7, table 4.

    bertlab sweep --study=experiments/ablations/awd_lstm_table4.py:scale=tiny,corpus=pydocs \
      --workdir=runs/awd_lstm_table4 --jobs=2
    bertlab report runs/awd_lstm_table4

The full model, and seven variants that each lack one part: averaging (SGD at a constant rate instead of NT-ASGD; the paper
halves the rate there), backpropagation of varying length, embedding dropout, weight decay, activation penalties (AR and TAR),
embeddings narrower than the hidden states (we read the removal of "full-sized embedding" as equal widths), and the
weight-dropped recurrence. The score is the held-out language-model loss in nats per token; its exponential is the perplexity
that the paper prints. The study measures nothing downstream unless you add tasks, as in `tasks=package`.

The published row without fine-tuning has no counterpart. That stage is a second run of averaged SGD from the end of the first,
and our rows do not have it. scale=paper is for WikiText-2: `corpus='text:wikitext-2/*.txt'`.

Averaging begins once the held-out loss is worse than the best of all measurements but the last five, so never before the
seventh. Tiny and mini measure it every 100 steps (40 and 400 times), so averaging begins soon after the loss stops falling. If
the loss falls to the end, averaging does not begin, and "without NT-ASGD" equals "full".

Expect: the weight-dropped recurrence matters most, then averaging and the embeddings' width. If a small model cannot overfit
the text, every kind of dropout at first costs more than it gains.

Cost at scale=tiny with seeds=1,select=off: 1,220 TFLOP, as `--dry_run` counts them; its time is not measured yet.
"""

from bertlab import papers
from bertlab.studies.settings import read_setting
from bertlab.studies.study import Published, Study

PUBLISHED = Published(
    source="Merity et al. 2017, table 4 (perplexity)",
    columns=("PTB valid", "PTB test", "WikiText-2 valid", "WikiText-2 test"),
    rows={
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
    note="Perplexities of words; ours are losses of tokens. Lower is better. The row without fine-tuning has no variant here:"
    " all of ours are.",
)


def get_study(arguments=None):
    setting = read_setting(arguments, paper=papers.AWD_LSTM, tasks=())
    every = setting.pretraining["train.eval_every"]
    looks = {"train.eval_every": min(100, every)} if setting.scale in ("tiny", "mini") else {}
    return Study(
        name="awd_lstm_table4",
        title="The parts of AWD-LSTM",
        question="What does each part of AWD-LSTM's regularisation and optimisation give?",
        config=setting.recipe("awd_lstm"),
        axes={
            "model": {
                "full": {},
                "without NT-ASGD": {"optimizer.average_after": 0},
                "without variable length": {"data.stream.vary_length": False},
                "without embedding dropout": {"model.embedding_dropout": 0.0},
                "without weight decay": {"optimizer.weight_decay": 0.0},
                "without AR and TAR": {"objectives.ar.weight": 0.0, "objectives.tar.weight": 0.0},
                "without full-sized embedding": {"model.width": setting.numbers("awd_lstm")["hidden"]},
                "without weight-dropping": {"model.weight_dropout": 0.0},
            },
            "seed": setting.seeds,
        },
        overrides={**setting.own_optimizer, **looks},
        rates=setting.rates,
        task_rates=setting.task_rates,
        downstream=setting.downstream(),
        published=PUBLISHED,
    )

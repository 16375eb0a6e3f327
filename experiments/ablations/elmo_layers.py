"""Which of ELMo's layers a task needs, and how freely it may weigh them: Peters et al. 2018, section 5.1, table 2.

    bertlab sweep --study=experiments/ablations/elmo_layers.py:scale=tiny,corpus=pydocs \
      --workdir=runs/elmo_layers --jobs=2
    bertlab report runs/elmo_layers

One pretrained biLM a seed, frozen; on it a biLSTM of two layers reads only the top layer, or all layers in a mix with weights
of the task's own, of which `head.mix_penalty` λ keeps near the mean (1) or lets differ (0.001). Without ELMo the same biLSTM
reads embeddings that begin at random and are trained with it.

The paper's tasks are SQuAD, SNLI and SRL, each with its own model, and it joins ELMo to word vectors of the task, which both
lack here, so that texts and words have one model. `tasks=squad1+ner,data=DIR` are the nearest. Its biLM reads characters, as
scale=paper does; the smaller ones read the transformers' subwords. The tasks' own training is not the paper's at any scale.

Expect: any layer far above none; all layers above the last, and λ=0.001 a little above λ=1. A biLM of little text may have less
in its top layer than in its embeddings.

Cost at scale=tiny with seeds=1,select=off: 168 TFLOP, as `--dry_run` counts them; its time is not measured yet.
"""

from bertlab.studies.settings import ELMO_PAPER, FRESH_EMBEDDINGS, read_setting
from bertlab.studies.study import Published, Study

PUBLISHED = Published(
    source="Peters et al. 2018, table 2 (development sets)",
    columns=("SQuAD F1", "SNLI", "SRL F1"),
    rows={
        "baseline": (80.8, 88.1, 81.6),
        "last only": (84.7, 89.1, 84.1),
        "all layers, λ=1": (85.0, 89.3, 84.6),
        "all layers, λ=0.001": (85.2, 89.5, 84.8),
    },
    note="The first version of the paper had other numbers for SQuAD: 80.8, 82.5, 83.6, 84.8.",
)


def get_study(arguments=None):
    setting = read_setting(arguments, paper=ELMO_PAPER)
    tokens = "characters" if setting.scale == "paper" else "subwords"
    all_layers = lambda penalty: {"finetune.head.layers": "scalar_mix", "finetune.head.mix_penalty": penalty}
    return Study(
        name="elmo_layers",
        title="ELMo's layers",
        question="Do all of a biLM's layers give more than the last, and how freely should a task weigh them?",
        config=setting.recipe("elmo", tokens=tokens),
        axes={
            "layers": {
                "baseline": FRESH_EMBEDDINGS,
                "last only": {"finetune.head.layers": "last"},
                "all layers, λ=1": all_layers(1.0),
                "all layers, λ=0.001": all_layers(0.001),
            },
            "seed": setting.seeds,
        },
        overrides={**setting.overrides, **setting.finetuning("elmo")},
        rates=setting.rates,
        downstream=setting.downstream(),
        published=PUBLISHED,
    )

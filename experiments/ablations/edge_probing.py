"""What contextual vectors know beyond the words: Tenney et al. 2019 (edge probing), table 2.

A probe labels spans of a sentence, or pairs of them, from frozen vectors: the embeddings (lexical),
the last layer (top), both side by side (cat), or all layers with weights that the probe learns
(mix; not ULMFiT's, which differ in width). Static vectors are lexical only; `static=` names their
objective. Tasks are the ten `edges_*` (`tasks=edges_relations,data=DIR`); without files the study
tags code spans. At scale=paper the probes have jiant's settings (config/defaults.conf and
config/edgeprobe). jiant's lexical BERT vectors have no positions; here they do.
"""

import systems
from bertlab.contrib.edges import KIND
from common import LAST_PIECE, SAME_ROWS, Setting, axis, chain, product, table, under
from published_tasks import config_name

STATIC = ("glove", "skip_gram", "cbow")
LAYERS = {"lexical": "layer:0", "top": "last", "mix": "scalar_mix", "cat": "concat_first_last"}
TABLE = table(
    "Tenney et al. 2019, development sets, from their notebook (nyu-mll/jiant,"
    " probing/analysis_edgeprobe_ICLR_camera_ready.ipynb)",
    "POS|constituents|dependencies|entities|SRL|coref|SPR1|SPR2|Winograd|relations",
    {
        "static, lexical": (85.9, 55.2, 76.9, 89.3, 57.2, 73.5, 76.3, 80.7, 53.2, 56.4),
        "ELMo, lexical": (90.7, 68.8, 80.6, 91.4, 72.9, 75.6, 78.6, 81.2, 54.8, 53.3),
        "ELMo, mix": (96.6, 84.7, 94.2, 95.2, 89.9, 84.8, 83.0, 82.5, 54.6, 77.4),
        "GPT, lexical": (88.0, 64.3, 77.8, 87.9, 66.3, 72.7, 76.8, 80.7, 53.3, 58.8),
        "GPT, cat": (94.6, 80.9, 92.1, 93.3, 85.7, 83.6, 81.6, 82.2, 51.9, 81.9),
        "GPT, mix": (94.7, 84.1, 94.1, 92.8, 89.3, 86.2, 81.6, 82.5, 53.4, 82.2),
        "BERT, lexical": (88.3, 66.9, 80.2, 89.7, 74.0, 75.8, 76.7, 80.4, 53.9, 57.5),
        "BERT, cat": (96.8, 83.5, 93.4, 95.9, 89.0, 89.2, 83.3, 82.6, 54.9, 79.5),
        "BERT, mix": (96.5, 86.6, 95.4, 96.0, 90.9, 90.5, 84.0, 82.8, 55.9, 83.2),
    },
    ("ELMo, mix", "ELMo, lexical", "SRL|relations", (KIND,)),
    ("GPT, mix", "GPT, lexical", "SRL|relations", (KIND,)),
    ("BERT, mix", "BERT, lexical", "SRL|relations", (KIND,)),
    ("BERT, mix", "ELMo, mix", "coref|relations", (KIND,)),
    ("BERT, mix", "GPT, mix", "constituents|coref", (KIND,)),
    ("BERT, mix", "BERT, cat", "constituents|relations", (KIND,)),
    note="F1; BERT-Base uncased; static: GloVe, of words. ELMo's lexical layer reads characters."
    " Table 2 has the test sets.",
)
# jiant's config/defaults.conf, edges-tmpl; the tasks with a validation each 100 steps, and a
# hundred of them.
JIANT = {"data.batch_size": 32, "optimizer.clip_norm": 5.0, "head.dropout": 0.3}
JIANT |= {"train.eval_every": 1000}
SMALL_TASKS = [config_name(f"edges_{name}") for name in ("spr1", "spr2", "dpr", "relations")]
FEWER = {"train.steps": 10_000, "train.eval_every": 100}


def get_study(arguments=None):
    setting = Setting(arguments, paper=SAME_ROWS, tasks="code_spans", static=STATIC)
    models = {k: systems.pretraining(of) for k, of in systems.as_used(setting).items()}
    probed = {name: LAYERS for name in ("ELMo", "GPT", "BERT")}
    probed = {"static": ("lexical",), "ULMFiT": ("lexical", "top", "cat"), **probed}
    grids = [
        product(
            axis("model", {model: models[model]}),
            axis("layers", {name: {"finetune.head.layers": LAYERS[name]} for name in names}),
        )
        for model, names in probed.items()
    ]
    downstream, probes = setting.downstream(), setting.finetuning("probe")
    if setting.scale == "paper":
        rate = {} if setting.task_rates else {"optimizer.learning_rate": 1e-4}
        steps = {"train.steps": setting.task_steps or 250_000}
        probes |= under("finetune", JIANT | rate | steps)
        for name, settings in downstream.items():
            if settings.get("task", name) in SMALL_TASKS and not setting.task_steps:
                downstream[name] = FEWER | settings
    return setting.study(
        title="Edge probing",
        question="What do contextual vectors know of a sentence's structure that its words alone"
        " do not tell?",
        config=setting.recipe("bert"),
        axes=chain(*grids),
        overrides={**probes, **LAST_PIECE},
        downstream=downstream,
        **TABLE,
    )

"""MLM, MLM + NSP, left-to-right and biLM on the same tokens in the same order.

The question of Devlin et al. 2018, table 5, with ELMo's biLM added and no pretraining as the
baseline. MLM and LTR share one transformer body. `make demo` runs `scale=demo`: MLM, left-to-right
and no pretraining at scale=tiny for 500 steps of 16 short rows, four seeds, and a linear layer on
frozen states (`use=probe`), where the effect of pretraining shows most.
"""

from common import LAST_PIECE, Claim, Setting, papers, under

DEMO = {"steps": 500, "seeds": 4, "select": "off", "use": ("probe", "study", "study+probe")}
DEMO |= {"tasks": "code_spans"}
# Small batches and Muon: within these 500 steps MLM leaves the plateau of word frequencies (5.7
# nats), which takes it some 500 steps of 32 rows of 128 pieces with Adam.
DEMO_ROWS = {"data.seq_len": 64, "data.batch_size": 16}

PRETRAINING = "59.9 without pre-training, 74.7 with it, on average"
DIRECTIONS = "MNLI 83.9 and 82.1, SQuAD 87.9 and 77.8"
CLAIMS = (
    Claim("LTR", "no pretraining", PRETRAINING, "Radford et al. 2018, table 5"),
    Claim("MLM", "no pretraining", PRETRAINING, "Radford et al. 2018, table 5, for LTR"),
    Claim("MLM", "LTR", DIRECTIONS, "Devlin et al. 2019, table 5, at equal data"),
)


def get_study(arguments=None):
    is_demo = "scale=demo" in (arguments or "")
    arguments = (arguments or "").replace("scale=demo", "scale=tiny")
    setting = Setting(arguments, paper=papers.BERT, **(DEMO if is_demo else {}))
    mlm = setting.recipe("bert", objectives="mlm")
    ltr = {"config": setting.recipe("bert", objectives="ltr"), "model.direction": "left-to-right"}
    transformer, demo, steps = setting.transformer, {}, setting.steps(mlm)
    if is_demo:
        transformer = transformer | {"optimizer.name": "muon"}
        demo = DEMO_ROWS | under("train", log_every=min(100, steps), eval_every=min(200, steps))
        demo |= {"train.checkpoint_every": steps, "finetune.train.eval_every": 0}
        demo |= {"evaluate.sentences": 16}
    objectives = {"LTR": {**transformer, **ltr}, "MLM": transformer}
    objectives["no pretraining"] = {**transformer, "train.steps": 0}
    if not is_demo:
        objectives["biLM"] = {"config": setting.recipe("elmo", objectives="bilm")}
        objectives["MLM+NSP"] = {**transformer, **setting.bert("mlm+nsp")}
    return setting.study(
        title="Pretraining objectives on the same text",
        question="What does each pretraining objective give, all else equal?",
        config=mlm,
        axes={"objective": objectives},
        overrides={**setting.overrides, **demo, **LAST_PIECE, "data.format": "segment_pair"},
        claims=CLAIMS,
    )

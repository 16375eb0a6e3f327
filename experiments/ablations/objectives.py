"""The objectives ablation: MLM, MLM + NSP, left-to-right and biLM on the same tokens in the same order.

    bertlab sweep --study=experiments/ablations/objectives.py --workdir=runs/objectives --jobs=2
    bertlab report runs/objectives

The question of Devlin et al. 2018, table 5 (BERT, No NSP, LTR & No NSP), with ELMo's biLM beside it and no
pretraining as the floor. MLM and LTR share one transformer body; only its direction and the objective differ.
`scale=demo` is what `make demo` runs.
"""

from bertlab.config import parse_arguments
from bertlab.errors import UserError
from bertlab.studies.study import Study

# Rows of 64 and batches of 16 give a short run many updates.
SHORT = {
    "data.seq_len": 64,
    "data.batch_size": 16,
    "data.tokenizer.vocab_size": 2048,
    "model.dropout": 0.0,
}
# A narrow transformer with the papers' initial deviation of 0.02 stays at the unigram loss for its first million tokens; with
# 0.05 it leaves at once.
TRANSFORMER = {"model.init_stddev": 0.05}
SCALES = {
    "demo": SHORT | {"train.steps": 800, "train.eval_every": 100, "train.log_every": 50, "train.checkpoint_every": 400},
    "tiny": SHORT | {"train.steps": 20_000, "train.eval_every": 1000, "train.log_every": 250, "train.checkpoint_every": 2000},
}


def get_study(arguments=None):
    values = parse_arguments(arguments, scale="tiny", corpus="pydocs", seeds=1)
    if values["scale"] not in SCALES:
        raise UserError(f"scale={values['scale']}: choose one of {', '.join(SCALES)}")
    bert, elmo = "experiments/pretrain/bert.py", "experiments/pretrain/elmo.py"
    corpus = f"corpus={values['corpus']}"
    return Study(
        name="objectives",
        title="Pretraining objectives on the same text",
        question="What does each pretraining objective give, all else equal?",
        config=f"{bert}:objectives=mlm,{corpus}",
        axes={
            "objective": {
                "biLM": {"config": f"{elmo}:objectives=bilm,{corpus}"},
                "LTR": TRANSFORMER | {"config": f"{bert}:objectives=ltr,{corpus}", "model.direction": "left-to-right"},
                "MLM": TRANSFORMER,
                "MLM+NSP": TRANSFORMER | {"config": f"{bert}:objectives=mlm+nsp,{corpus}"},
                "no pretraining": TRANSFORMER | {"train.steps": 0},
            },
            "seed": list(range(1, values["seeds"] + 1)),
        },
        overrides={
            **SCALES[values["scale"]],
            "data.format": "segment_pair",
            "data.valid_fraction": 0.1,
            "data.test_fraction": 0.1,
        },
        downstream=("package", "code_spans"),
    )

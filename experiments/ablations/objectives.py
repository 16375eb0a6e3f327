"""The objectives ablation: MLM, MLM + NSP, left-to-right and biLM on the same tokens in the same order.

    bertlab sweep --study=experiments/ablations/objectives.py --workdir=runs/objectives --jobs=2
    bertlab report runs/objectives

The question of Devlin et al. 2018, table 5 (BERT, No NSP, LTR & No NSP), with ELMo's biLM beside it and no
pretraining as the floor. MLM and LTR share one transformer body; only its direction and the objective differ.
`scale=demo` is what `make demo` runs.
"""

from bertlab.config import parse_arguments
from bertlab.studies.study import Study

SCALES = {
    "demo": {"train.steps": 400},
    "tiny": {"train.steps": 4000},
}


def get_study(arguments=None):
    values = parse_arguments(arguments, scale="tiny", corpus="pydocs", seeds=1)
    bert, elmo = "experiments/pretrain/bert.py", "experiments/pretrain/elmo.py"
    corpus = f"corpus={values['corpus']}"
    return Study(
        name="objectives",
        title="Pretraining objectives on the same text",
        question="What does each pretraining objective give, all else equal?",
        config=f"{bert}:objectives=mlm,{corpus}",
        axes={
            "objective": {
                "no pretraining": {"train.steps": 0},
                "MLM": {},
                "MLM+NSP": {"config": f"{bert}:objectives=mlm+nsp,{corpus}"},
                "LTR": {"config": f"{bert}:objectives=ltr,{corpus}", "model.direction": "left-to-right"},
                "biLM": {"config": f"{elmo}:objectives=bilm,{corpus}"},
            },
            "seed": list(range(1, values["seeds"] + 1)),
        },
        overrides={
            **SCALES[values["scale"]],
            "data.format": "segment_pair",
            "data.tokenizer.vocab_size": 4096,
            "train.eval_every": 50,
            "train.log_every": 25,
        },
        downstream=("package", "code_spans"),
    )

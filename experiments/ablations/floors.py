"""How near a small model comes to the exact floor of each objective, on the synthetic language.

    bertlab sweep --study=experiments/ablations/floors.py --workdir=runs/floors --jobs=2
    bertlab report runs/floors

The language has 8 words, 2 topics and 3 hidden states; all sentences and documents are of one length, so that separators say
nothing and every floor is exact. A transformer of two layers, 64 wide, reads rows of 16 words (`doc_sentences`) for the token
objectives, and pairs of sentences of 8 words (`sentence_pair`) for those about sentences. Steps are what each needs.
"""

from bertlab.config import parse_arguments
from bertlab.errors import UserError
from bertlab.studies.study import Study

BERT = "experiments/pretrain/bert.py:corpus=synthetic,objectives="
LTR = {"model.direction": "left-to-right"}
PAIRS = {
    "data.format": "sentence_pair",
    "data.seq_len": 19,
    "train.steps": 5000,
}
MASKS_ALONE = {"objectives.mlm.mask_share": 1.0, "objectives.mlm.random_share": 0.0}
OBJECTIVES = {
    "mlm": {"config": f"{BERT}mlm", "train.steps": 3000},
    "mlm, each token by itself": {"config": f"{BERT}mlm", "objectives.mlm.exact": False, "train.steps": 3000},
    "mlm, spans": {"config": f"{BERT}mlm", "objectives.mlm.unit": "span", **MASKS_ALONE, "train.steps": 3000},
    "ltr": {"config": f"{BERT}ltr", **LTR},
    "rtl": {"config": f"{BERT}rtl", "model.direction": "right-to-left"},
    "prefix": {"config": f"{BERT}prefix"},
    "masked_next_token": {"config": f"{BERT}masked_next_token"},
    "permutation": {"config": f"{BERT}permutation", "train.steps": 2500},
    "electra": {"config": f"{BERT}electra", "objectives.electra.generator": "unigram", "train.steps": 2500},
    "mlm+nsp": {"config": f"{BERT}mlm+nsp", **PAIRS},
    "mlm+sop": {"config": f"{BERT}mlm+sop", **PAIRS, "data.sentence_pair.negatives": "swapped"},
}


SCALES = {"tiny": 1.0, "demo": 0.1}  # of the steps; demo is for trying it out


def get_study(arguments=None):
    values = parse_arguments(arguments, scale="tiny", seeds=1)
    if values["scale"] not in SCALES:
        raise UserError(f"scale={values['scale']}: choose one of {', '.join(SCALES)}")
    return Study(
        name="floors",
        title="Small models and the exact floors",
        question="Does a model trained with each objective come within 3 % of the best possible loss, and never below it?",
        config=f"{BERT}mlm",
        axes={
            "objective": {
                name: changes | {"train.steps": round(changes.get("train.steps", 1500) * SCALES[values["scale"]])}
                for name, changes in OBJECTIVES.items()
            },
            "seed": list(range(1, values["seeds"] + 1)),
        },
        overrides={
            "data.format": "doc_sentences",
            "data.seq_len": 18,
            "data.batch_size": 64,
            "data.synthetic.documents": 40_000,
            "data.synthetic.vocab_size": 8,
            "data.synthetic.topics": 2,
            "data.synthetic.states": 3,
            "data.synthetic.sentence_words": (8, 8),
            "data.synthetic.document_sentences": (8, 8),
            "data.tokenizer.kind": "words",
            "data.tokenizer.vocab_size": 13,
            "model.layers": 2,
            "model.width": 64,
            "model.heads": 4,
            "model.hidden": 256,
            "model.dropout": 0.0,
            "model.init_stddev": 0.08,
            "optimizer.learning_rate": 2e-3,
            "optimizer.weight_decay": 0.0,
            "train.eval_every": 500,
            "train.log_every": 250,
            "train.checkpoint_every": 0,
            "train.eval_batches": 32,
            "evaluate.sentences": 0,
        },
    )

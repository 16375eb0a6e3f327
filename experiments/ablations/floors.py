"""How close a small model comes to the exact floor of each objective, on the synthetic language.

    bertlab sweep --study=experiments/ablations/floors.py --workdir=runs/floors --jobs=2

The language has 16 words, 2 topics and 4 hidden states. All sentences, and all documents, are
equally long, so separators tell nothing and every floor is exact. A word costs 2.32 nats by its
frequency, and 1.60 for the best MLM; whether two sentences belong together 0.69 by guessing, and
less than 0.5 at best. A transformer 64 wide has two layers (three for ELECTRA) and reads rows of 16
words; for objectives about sentences three layers, and pairs of sentences of 4 words.
"""

from bertlab.config import parse_arguments
from bertlab.errors import UserError
from bertlab.studies.study import Study

BERT = "experiments/pretrain/bert.py:corpus=synthetic,objectives="
ELMO = "experiments/pretrain/elmo.py:corpus=synthetic"
TRANSFORMER = {
    "model.layers": 2,
    "model.width": 64,
    "model.heads": 4,
    "model.hidden": 256,
    # Learns faster at this size than BERT's order, and at higher rates.
    "model.norm_placement": "pre",
    "model.final_norm": True,
    # With learned positions, each position of a row must learn which neighbours matter: five times
    # the steps.
    "model.position_encoding": "rotary",
    "model.init_stddev": 0.08,
}
PAIRS = {
    "data.format": "sentence_pair",
    "data.seq_len": 11,
    "data.batch_size": 128,
    "optimizer.learning_rate": 2e-3,
    "model.layers": 3,
}
# With longer spans it has no floor.
WORDS = {"objectives.span_corruption.rate": 0.3, "objectives.span_corruption.mean_span": 1.0}
ANY_ORDER = {"objectives.permutation.context_in_order": False}
UNIGRAM = {"objectives.electra.generator": "unigram", "model.layers": 3}
SPANS = {"objectives.mlm.unit": "span"}
SPANS |= {"objectives.mlm.mask_share": 1.0, "objectives.mlm.random_share": 0.0}


def on_transformer(objectives, steps, **changes):
    return {"config": BERT + objectives, "train.steps": steps, **TRANSFORMER, **changes}


OBJECTIVES = {
    "mlm+nsp": on_transformer("mlm+nsp", 3000, **PAIRS),
    "mlm+sop": on_transformer("mlm+sop", 2000, **PAIRS),
    "mlm": on_transformer("mlm", 1500),
    "mlm, each token by itself": on_transformer("mlm", 1500, **{"objectives.mlm.exact": False}),
    "mlm+sbo, spans": on_transformer("mlm+sbo", 1500, **SPANS),
    "diffusion": on_transformer("diffusion", 3000),
    "ltr": on_transformer("ltr", 1000),
    "rtl": on_transformer("rtl", 1000),
    "bilm": {"config": ELMO, "train.steps": 1000, "model.width": 64, "model.hidden": 128},
    "prefix": on_transformer("prefix", 1000),
    "masked_next_token": on_transformer("masked_next_token", 1500),
    "span_corruption, single words": on_transformer("span_corruption", 1500, **WORDS),
    "permutation": on_transformer("permutation", 1500, **ANY_ORDER),
    "electra": on_transformer("electra", 3000, **UNIGRAM),
}
SCALES = {"tiny": 1.0, "demo": 0.2}  # of the steps; use demo to try the study


def get_study(arguments=None):
    values = parse_arguments(arguments, scale="tiny", seeds=1)
    if values["scale"] not in SCALES:
        raise UserError(f"scale={values['scale']}: choose one of {', '.join(SCALES)}")
    share = SCALES[values["scale"]]
    return Study(
        name="floors",
        title="Small models and the exact floors",
        question="Does a model trained with each objective come within 3 % of the best possible"
        " loss, and never below it?",
        config=f"{BERT}mlm",
        axes={
            "objective": {
                name: changes | {"train.steps": round(changes["train.steps"] * share)}
                for name, changes in OBJECTIVES.items()
            },
            "seed": list(range(1, values["seeds"] + 1)),
        },
        overrides={
            "data.format": "doc_sentences",
            "data.seq_len": 18,
            "data.batch_size": 64,
            "data.synthetic.seed": 60,
            "data.synthetic.documents": 40_000,
            "data.synthetic.vocab_size": 16,
            "data.synthetic.topics": 2,
            "data.synthetic.states": 4,
            "data.synthetic.sentence_words": (4, 4),
            "data.synthetic.document_sentences": (16, 16),
            "model.dropout": 0.0,
            "optimizer.learning_rate": 3e-3,
            "optimizer.warmup_steps": 100,
            "optimizer.weight_decay": 0.0,
            "train.eval_every": 500,
            "train.log_every": 250,
            "train.checkpoint_every": 0,
            "train.eval_batches": 32,
            "evaluate.sentences": 0,
            "evaluate.floors": True,
        },
    )

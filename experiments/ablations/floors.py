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
from scales import under

BERT = "experiments/pretrain/bert.py:corpus=synthetic,objectives="
ELMO = "experiments/pretrain/elmo.py:corpus=synthetic"
# Norms and initial values make models of this size learn faster than BERT's, and at higher rates.
# With learned positions each position of a row must learn which neighbours matter: five times the
# steps.
TRANSFORMER = under("model", layers=2, width=64, heads=4, hidden=256, init_stddev=0.08)
TRANSFORMER |= under("model", norm_placement="pre", final_norm=True, position_encoding="rotary")
PAIRS = under("data", format="sentence_pair", seq_len=11, batch_size=128)
PAIRS |= {"optimizer.learning_rate": 2e-3, "model.layers": 3}
WORDS = under("objectives.span_corruption", rate=0.3, mean_span=1.0)  # longer ones have no floor
ANY_ORDER = {"objectives.permutation.context_in_order": False}
UNIGRAM = {"objectives.electra.generator": "unigram", "model.layers": 3}
SPANS = under("objectives.mlm", unit="span", mask_share=1.0, random_share=0.0)
SETTINGS = {
    **under("data", format="doc_sentences", seq_len=18, batch_size=64),
    **under("data.synthetic", seed=60, documents=40_000, vocab_size=16, topics=2, states=4),
    **under("data.synthetic", sentence_words=(4, 4), document_sentences=(16, 16)),
    "model.dropout": 0.0,
    **under("optimizer", learning_rate=3e-3, warmup_steps=100, weight_decay=0.0),
    **under("train", eval_every=500, log_every=250, checkpoint_every=0, eval_batches=32),
    **under("evaluate", sentences=0, floors=True),
}


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
    objectives = {
        name: changes | {"train.steps": round(changes["train.steps"] * SCALES[values["scale"]])}
        for name, changes in OBJECTIVES.items()
    }
    return Study(
        name="floors",
        title="Small models and the exact floors",
        question="Does a model trained with each objective come within 3 % of the best possible"
        " loss, and never below it?",
        config=f"{BERT}mlm",
        axes={"objective": objectives, "seed": list(range(1, values["seeds"] + 1))},
        overrides=SETTINGS,
    )

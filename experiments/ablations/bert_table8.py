"""What a chosen token becomes: Devlin et al. 2019, appendix C.2, table 8.

Six ways to corrupt the chosen 15 %, as percentages [MASK]/same/random, fine-tuned and as features
(a BiLSTM reads the last four frozen layers side by side). The paper's tasks:
`tasks=mnli+ner,data=DIR`; `corruptions=80/10/10+100/0/0+0/0/100` has three of the six. A model that
never saw [MASK] has no bits per byte, and each row's mlm/loss is under its own corruption: do not
compare rows by it.
"""

from common import Setting, axis, chain, claims_among, papers, product, table, under

# [MASK]/same/random -> MNLI fine-tuned, NER fine-tuned, NER by features.
SCORES = {
    "80/10/10": (84.2, 95.4, 94.9),
    "100/0/0": (84.3, 94.9, 94.0),
    "80/0/20": (84.1, 95.2, 94.6),
    "80/20/0": (84.4, 95.2, 94.7),
    "0/20/80": (83.7, 94.8, 94.6),
    "0/0/100": (83.6, 94.9, 94.6),
}
TABLE = table(
    "Devlin et al. 2019, table 8 (development sets, BERT-Base)",
    "MNLI|NER F1",
    {
        **{f"{shares}, fine-tuned": scores[:2] for shares, scores in SCORES.items()},
        **{f"{shares}, features": (None, scores[2]) for shares, scores in SCORES.items()},
    },
    ("80/10/10, features", "100/0/0, features", "NER F1"),
    ("80/10/10, features", "0/0/100, features", "NER F1"),
    ("80/10/10, fine-tuned", "0/0/100, fine-tuned", "MNLI|NER F1"),
    note="Tables 5 and 7 report other runs; they differ from these by up to a point.",
)

FIRST = "80/10/10"  # BERT's


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.BERT_CASED, corruptions="+".join(SCORES))
    last = min(4, setting.numbers("bert")["layers"])
    tuned = setting.at_bert_rates(axis("use", {"fine-tuned": {}}))
    corruptions = {}
    for shares in setting.arguments["corruptions"].split("+"):
        mask, _, random = (int(share) / 100 for share in shares.split("/"))
        corruptions[shares] = under("objectives.mlm", mask_share=mask, random_share=random)
    claims = claims_among(TABLE["claims"], corruptions)
    claimed = [(claim.higher, claim.lower) for claim in claims]
    pairs = [
        (f"{FIRST}, {use}", f"{shares}, {use}")
        for use in ("fine-tuned", "features")
        for shares in corruptions
        if FIRST in corruptions and shares != FIRST
    ]
    return setting.study(
        title="BERT's masking procedure",
        question="Does it matter what a chosen token becomes, fine-tuned and as features?",
        config=setting.recipe("bert", objectives="mlm+nsp"),
        axes=product(
            axis("[MASK]/same/random", corruptions),
            chain(tuned, axis("use", {"features": setting.features(f"concat_last_{last}")})),
        ),
        downstream=setting.in_documents(),
        published=TABLE["published"],
        claims=claims,
        contrasts=[pair for pair in pairs if pair not in claimed],
    )

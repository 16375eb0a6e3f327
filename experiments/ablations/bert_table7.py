"""Features or fine-tuning, and features of which layers: Devlin et al. 2019, section 5.3, table 7.

One BERT (MLM + NSP) per seed, fine-tuned, or frozen under a new BiLSTM of two layers that reads the
embeddings, the second-to-last layer, the last, or a mix of the last four or of all. With four
layers or fewer the sum over all includes the embeddings; else it would equal that over the last.
The paper's task is named entities: `tasks=ner,data=DIR`. At scale=paper a row has up to 512 pieces
of the document around the sentence, and the seeds are restarts on one pretraining (five there).
"""

from common import Setting, axis, chain, claims, papers, table

SOURCE = "Devlin et al. 2019, table 7 (CoNLL-2003, BERT-Base)"
TABLE = table(
    SOURCE,
    "NER F1, dev|NER F1, test",
    {
        "Fine-tuning": (96.4, 92.4),
        "Embeddings": (91.0, None),
        "Second-to-last": (95.6, None),
        "Last": (94.9, None),
        "Weighted sum of last 4": (95.9, None),
        "Concatenation of last 4": (96.1, None),
        "Weighted sum of all 12": (95.5, None),
    },
    note="Means of five restarts. A model of fewer layers has other labels, such as its last 2 for"
    " the last 4.",
)
# {last}: how many layers the scale has for the last four.
CLAIMS = (
    ("Fine-tuning", "Concatenation of last {last}", "NER 96.4 and 96.1"),
    ("Concatenation of last {last}", "Last", "NER 96.1 and 94.9"),
    ("Weighted sum of last {last}", "Last", "NER 95.9 and 94.9"),
    ("Second-to-last", "Last", "NER 95.6 and 94.9"),
    ("Last", "Embeddings", "NER 94.9 and 91.0"),
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.BERT_CASED, tasks="code_spans")
    layers = setting.numbers("bert")["layers"]
    last = min(4, layers)
    every = (f"all {layers}", f"weighted_sum_last_{layers}")
    if layers == last:
        every = (f"all {layers} and embeddings", "weighted_sum")
    tuned = setting.at_bert_rates(axis("use", {"Fine-tuning": {}}))
    mixes = {
        "Embeddings": "layer:0",
        "Second-to-last": "layer:-2",
        "Last": "last",
        f"Weighted sum of last {last}": f"weighted_sum_last_{last}",
        f"Concatenation of last {last}": f"concat_last_{last}",
        f"Weighted sum of {every[0]}": every[1],
    }
    features = {name: setting.features(layers) for name, layers in mixes.items()}
    return setting.study(
        title="BERT as features",
        question="Which layers are the best features, and how far behind fine-tuning are they?",
        config=setting.recipe("bert", objectives="mlm+nsp"),
        axes=chain(tuned, axis("use", features)),
        seeds=setting.restarts(),
        downstream=setting.in_documents(),
        **TABLE,
        claims=claims(SOURCE, *([text.format(last=last) for text in of] for of in CLAIMS)),
    )

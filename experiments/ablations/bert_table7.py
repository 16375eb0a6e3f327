"""Features or fine-tuning, and features of which layers: Devlin et al. 2019, section 5.3, table 7.

One BERT (MLM + NSP) per seed, fine-tuned, or frozen under a new BiLSTM of two layers (recipe
bert_features) that reads the embeddings, the second-to-last layer, the last, or a mix of the last
four or of all. With four layers or fewer the sum over all layers includes the embeddings, for it
would equal that over the last ones.

The paper's task is named entities with document context: `tasks=ner,data=DIR`; at scale=paper a row
holds up to 512 pieces of the document on both sides of the sentence. There the seeds are restarts
on one pretraining, as in the paper (five), and `valid` selects fine-tuning's rate among the paper's
four. The rate under the BiLSTM is ours.

Expect: fine-tuning best (in the paper 0.3 F1 above the concatenation of the last four), then mixes,
then the second-to-last layer, then the last, and the embeddings far behind.
"""

from common import claims, read_setting

from bertlab.config import papers
from bertlab.studies.axes import axis, chain
from bertlab.studies.study import TASK_RATES, Published
from bertlab.transfer.recipes import BERT_RATES

PUBLISHED = Published(
    source="Devlin et al. 2019, table 7 (CoNLL-2003, BERT-Base)",
    columns=("NER F1, dev", "NER F1, test"),
    rows={
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
    setting = read_setting(arguments, paper=papers.BERT_CASED, tasks="code_spans")
    layers = setting.numbers("bert")["layers"]
    last = min(4, layers)
    all_layers, mix = f"all {layers}", f"weighted_sum_last_{layers}"
    if layers == last:
        all_layers, mix = f"all {layers} and embeddings", "weighted_sum"
    tuned = setting.at_rates(axis("use", {"Fine-tuning": {}}), BERT_RATES)
    features = {
        "Embeddings": setting.features("layer:0"),
        "Second-to-last": setting.features("layer:-2"),
        "Last": setting.features("last"),
        f"Weighted sum of last {last}": setting.features(f"weighted_sum_last_{last}"),
        f"Concatenation of last {last}": setting.features(f"concat_last_{last}"),
        f"Weighted sum of {all_layers}": setting.features(mix),
    }
    return setting.study(
        name="bert_table7",
        title="BERT as features",
        question="Which layers are the best features, and how far behind fine-tuning are they?",
        config=setting.recipe("bert", objectives="mlm+nsp"),
        axes=chain(tuned, axis("use", features)),
        seeds=setting.restarts(),
        overrides=setting.on_transformer,
        select=[TASK_RATES] if TASK_RATES in tuned[0] else [],
        downstream=setting.in_documents(),
        published=PUBLISHED,
        claims=claims(
            PUBLISHED.source,
            *((a.format(last=last), b.format(last=last), of) for a, b, of in CLAIMS),
        ),
    )

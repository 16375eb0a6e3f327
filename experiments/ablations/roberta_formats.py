"""The format of a row, with and without NSP: Liu et al. 2019 (RoBERTa), section 4.2, table 2.

MLM with NSP on pairs of segments or of sentences, and MLM without NSP on packed sentences, across
documents or within one. Pairs of segments without NSP are not in the table; BERT's own "No NSP" may
have been these. Every run reads the same number of tokens, so a format that fills rows less, pairs
of sentences most of all, takes more steps; the paper gave those larger batches. The paper's tasks:
`tasks=squad1+squad2+mnli+sst2+race,data=DIR`.
"""

from common import ONE_LENGTH, Setting, papers, table

TABLE = table(
    "Liu et al. 2019, table 2 (development sets, BERT-Base)",
    "SQuAD 1.1 F1|SQuAD 2.0 F1|MNLI-m|SST-2|RACE",
    {
        "segment_pair + NSP": (90.4, 78.7, 84.0, 92.9, 64.2),
        "sentence_pair + NSP": (88.7, 76.2, 82.9, 92.1, 63.0),
        "full_sentences": (90.4, 79.1, 84.7, 92.5, 64.8),
        "doc_sentences": (90.6, 79.7, 84.7, 92.7, 65.6),
        "BERT-Base": (88.5, 76.3, 84.3, 92.8, 64.3),
    },
    ("segment_pair + NSP", "sentence_pair + NSP", "SQuAD 2.0 F1|MNLI-m"),
    ("full_sentences", "segment_pair + NSP", "SQuAD 2.0 F1|MNLI-m|SST-2"),
    ("doc_sentences", "segment_pair + NSP", "SQuAD 2.0 F1|MNLI-m"),
    ("doc_sentences", "full_sentences", "SQuAD 2.0 F1|RACE"),
    note="Medians of five runs. BERT-Base is BERT's own and not among ours.",
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.BERT | ONE_LENGTH)  # 1,000,000 batches of 256
    mlm = setting.recipe("bert", objectives="mlm")
    with_nsp = setting.bert("mlm+nsp")
    rows = setting.overrides["data.batch_size"] * setting.overrides["data.seq_len"]
    across = {"data.full_sentences.attend_across_documents": True}
    formats = {
        "segment_pair + NSP": with_nsp,
        "segment_pair": {},
        "sentence_pair + NSP": with_nsp,
        "full_sentences": across,
        "doc_sentences": {},
    }
    for name, changes in formats.items():
        formats[name] = changes | {"data.format": name.removesuffix(" + NSP")}
    return setting.study(
        title="Formats of pretraining text",
        question="What do pairs, packed sentences and next-sentence prediction give, each apart"
        " from the others?",
        config=mlm,
        axes={"format": formats},
        overrides={**setting.on_transformer, "train.tokens": setting.steps(mlm) * rows},
        **TABLE,
    )

"""Masks of words and spans, and the boundary objective: Joshi et al. 2020, sections 6.1 and 6.2.

Subword tokens, whole words or geometric spans of words, on pairs of segments with NSP (2seq); then
spans on rows of one document without NSP (1seq), and these with the span boundary objective (SBO).
Do not compare MLM losses between units: spans are harder to guess.
`tasks=squad2+mnli+qnli,data=DIR` are among the paper's tasks. Its tables come from checkpoints at
1,200,000 of 2,400,000 steps; at scale=paper the whole schedule has 1,200,000.
"""

from common import ONE_LENGTH, Setting, papers, table, under

PAPER = {**papers.BERT, **ONE_LENGTH, "model.size": "large", "train.steps": 1_200_000}
PAPER |= under("data.tokenizer", lowercase=False, vocab_size=28_996)
PAPER |= under("optimizer", weight_decay=0.1, epsilon=1e-8, bias_correction="moments")
PAPER |= {"data.segment_pair.short_probability": 0.0}
SPAN = {"objectives.mlm.unit": "span"}
TABLE = table(
    "Joshi et al. 2020, ablations of masks and of objectives (BERT-Large's size)",
    "SQuAD 2.0 F1|NewsQA|TriviaQA|Coreference|MNLI-m|QNLI|GLUE",
    {
        "Subword tokens": (83.8, 72.0, 76.3, 77.7, 86.7, 92.5, 83.2),
        "Whole words": (84.3, 72.8, 77.1, 76.6, 86.3, 92.8, 82.9),
        "Geometric spans": (85.4, 73.0, 78.8, 76.4, 87.0, 93.3, 83.4),
        "Geometric spans (1seq)": (86.7, 73.4, 80.0, 76.3, 87.3, 93.8, 83.8),
        "Geometric spans (1seq) + SBO": (86.8, 74.1, 80.3, 79.0, 87.6, 93.9, 84.0),
        "Named entities": (84.8, 72.7, 78.7, 75.6, 86.0, 93.1, 83.2),
        "Noun phrases": (85.0, 73.0, 77.7, 76.7, 86.5, 93.2, 83.5),
    },
    ("Geometric spans", "Subword tokens", "SQuAD 2.0 F1|QNLI|Coreference"),
    ("Geometric spans", "Whole words", "SQuAD 2.0 F1|QNLI"),
    ("Geometric spans (1seq)", "Geometric spans", "SQuAD 2.0 F1|QNLI"),
    ("Geometric spans (1seq) + SBO", "Geometric spans (1seq)", "Coreference|SQuAD 2.0 F1"),
    note="Named entities and Noun phrases have no variant here: such masks need a parser.",
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=PAPER)
    one_sequence = {**SPAN, "data.format": "doc_sentences"}
    masks = {
        "Subword tokens": {},
        "Whole words": {"objectives.mlm.unit": "whole_word"},
        "Geometric spans": SPAN,
        "Geometric spans (1seq)": setting.bert("mlm") | one_sequence,
        "Geometric spans (1seq) + SBO": setting.bert("mlm+sbo") | one_sequence,
    }
    return setting.study(
        title="Masks of spans",
        question="Does it help to mask words and spans whole, and to predict spans from their"
        " boundaries?",
        config=setting.recipe("bert", objectives="mlm+nsp"),
        axes={"masks": masks},
        **TABLE,
    )

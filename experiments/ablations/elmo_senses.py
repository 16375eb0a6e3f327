"""Which of a biLM's layers knows senses: Peters et al. 2018, section 5.3, tables 5 and 6.

Each frozen layer is asked twice, also of a body with random values. Senses (`senses_wsd`): a word
gets the sense whose mean state in SemCor is nearest, of the senses of its lemma and part of speech,
and WordNet's first sense if SemCor lacks the word (Raganato et al. 2017, all five test sets);
`senses_coarse` has twenty words (Loureiro et al. 2021). Parts of speech: a linear layer on each
word's state; `ud_xpos` has the Penn Treebank's tags (`tasks=senses_wsd+ud_xpos,data=DIR`).
"""

from bertlab.contrib.senses import KIND
from common import LAST_PIECE, Setting, papers, table

LAYERS = {"embeddings": "layer:0", "first layer": "layer:1", "second layer": "layer:2"}
TABLE = table(
    "Peters et al. 2018, tables 5 and 6",
    "WSD F1|PTB POS",
    {
        "WordNet 1st sense": (65.9, None),
        "CoVe, first layer": (59.4, 93.3),
        "CoVe, second layer": (64.7, 92.8),
        "biLM, first layer": (67.4, 97.3),
        "biLM, second layer": (69.0, 96.8),
    },
    ("biLM, second layer", "biLM, first layer", "WSD F1", (KIND,)),
    ("biLM, first layer", "biLM, second layer", "PTB POS", ("tagging",)),
    note="No variants here: WordNet 1st sense; CoVe, first layer; CoVe, second layer.",
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.ELMO, tasks="code_spans")
    return setting.study(
        title="Word senses and parts of speech by layer",
        question="Which layer of a biLM knows senses, and which parts of speech?",
        config=setting.recipe("elmo", tokens=setting.elmo_tokens),
        axes={
            "model": {"biLM": {}, "random values": {"finetune.transfer.random": True}},
            "layer": {name: {"finetune.head.layers": layer} for name, layer in LAYERS.items()},
        },
        overrides={**setting.overrides, **setting.finetuning("probe"), **LAST_PIECE},
        downstream=setting.downstream(("tagging", KIND)),
        **TABLE,
    )

"""Where a language model's states join a tagger: Peters et al. 2017 (TagLM), section 5.

A tagger has characters, word vectors, two biLSTM layers and a CRF. The frozen language model's top
states go to its input, to the output of its first layer (TagLM) or of its second. One more row has
a forward language model, pretrained separately; without any, embeddings trained with the tagger
take its place. The paper's task: `tasks=ner,data=DIR`. At scale=paper language models have 2,048
cells and projections to 512. The scale sets the tagger's training.
"""

from common import FRESH_EMBEDDINGS, LAST_PIECE, Setting, claims, papers, table

SOURCE = "Peters et al. 2017 (CoNLL 2003, test)"
TABLE = table(
    SOURCE,
    "NER F1",
    {"no language model": (90.87,), "after the first layer": (91.93,)},
    note="The published language model is larger than scale=paper's in the forward direction. No"
    " language model is there the tagger alone; here it has embeddings of its own in the language"
    " model's place.",
)
FIRST = "after the first layer"
OTHERS = ("input", "after the second layer", f"{FIRST}, forward alone")
CLAIMS = claims(SOURCE, (FIRST, "no language model", "NER 91.93 and 90.87"))
CLAIMS += claims("Peters et al. 2017", *((FIRST, of, "numbers not verified") for of in OTHERS))


def get_study(arguments=None):
    paper = papers.ELMO | {"model.hidden": 2048, "model.width": 512}
    setting = Setting(arguments, paper=paper, tasks="code_spans")
    forward = setting.recipe("elmo", tokens=setting.elmo_tokens, objectives="ltr")
    forward = {"config": forward, "model.direction": "left-to-right"}
    states = {"no language model": FRESH_EMBEDDINGS, "input": {"finetune.head.place": "input"}}
    states |= {FIRST: {}, "after the second layer": {"finetune.head.place": "output"}}
    states[f"{FIRST}, forward alone"] = forward
    return setting.study(
        title="A language model's states in a tagger",
        question="Where should a language model's states join a tagger, and is the forward"
        " direction enough?",
        config=setting.recipe("elmo", tokens=setting.elmo_tokens),
        axes={"states": states},
        overrides={**setting.overrides, **setting.finetuning("taglm"), **LAST_PIECE},
        downstream=setting.downstream(("tagging",)),
        **TABLE,
        claims=CLAIMS,
    )

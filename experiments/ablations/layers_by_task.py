"""What each layer knows: Liu et al. 2019, arXiv 1903.08855; Tenney et al. 2019, 1905.05950.

A linear probe for each task reads each layer of one frozen body, pretrained with MLM and NSP, left
to right, or not at all, which shows what the architecture and the task's own training give. A
text's vector is the mean of its states. `tasks=ud+wnut17+sst2+trec,data=DIR` are published tasks.
"""

from common import LAST_PIECE, Claim, Setting, papers

NOT_PRETRAINED, PAIRS = {"finetune.transfer.random": True}, {"data.format": "segment_pair"}
# We could not verify numbers of the probes' papers.
FEATURES = "NER 94.9 and 91.0, under a biLSTM", "Devlin et al. 2019, table 7"


def get_study(arguments=None):
    tasks = "package+code_spans+next_sentence+sentence_order"
    setting = Setting(arguments, paper=papers.BERT, tasks=tasks)
    ltr = {"config": setting.recipe("bert", objectives="ltr"), "model.direction": "left-to-right"}
    last = setting.numbers("bert")["layers"]
    names = ["embeddings", *(f"layer {n}" for n in range(1, last + 1))]
    return setting.study(
        title="Layer by task",
        question="Which layer of which model knows what?",
        config=setting.recipe("bert", objectives="mlm+nsp"),
        axes={
            "model": {"MLM + NSP": {}, "LTR": ltr, "not pretrained": NOT_PRETRAINED},
            "layer": {name: {"finetune.head.layers": f"layer:{n}"} for n, name in enumerate(names)},
        },
        overrides={**setting.on_transformer, **setting.finetuning("probe"), **LAST_PIECE, **PAIRS},
        claims=[Claim(f"MLM + NSP, layer {last}", "MLM + NSP, embeddings", *FEATURES)],
        contrasts=[(f"LTR, {name}", f"MLM + NSP, {name}") for name in names]
        + [(f"LTR, {names[-1]}", f"LTR, {names[0]}")],
    )

"""What each layer knows: a linear probe for each task on each layer of a frozen model (Liu et al.
2019, Tenney et al. 2019).

Liu et al. (arXiv 1903.08855) put linear classifiers on every layer of ELMo, GPT and BERT; Tenney et
al. (arXiv 1905.05950) ask which layers their probes weigh most. This study probes the layers of one
body, pretrained with MLM and NSP, left to right, or not at all: that shows what the architecture
and the task's own training give. A text's vector is the mean of its states. `tasks=` and `data=`
name published tasks, as in `tasks=ud+wnut17+sst2+trec,data=DIR`.

Expect: the embeddings are worst; middle layers are best at grammar, later ones at meaning. A
left-to-right model's best layers are in the middle, MLM's closer to the end. A body without
pretraining is well above chance and gets worse with depth.
"""

from common import read_setting
from published_tasks import OWN_TASKS
from scales import LAST_PIECE

from bertlab.config import papers
from bertlab.studies.study import Claim

# We could not verify numbers of the probes' papers.
FEATURES = "NER 94.9 and 91.0, under a biLSTM", "Devlin et al. 2019, table 7"


def get_study(arguments=None):
    setting = read_setting(arguments, paper=papers.BERT, tasks="+".join(OWN_TASKS))
    ltr = {"config": setting.recipe("bert", objectives="ltr"), "model.direction": "left-to-right"}
    layers = range(1, setting.numbers("bert")["layers"] + 1)
    numbered = {f"layer {n}": {"finetune.head.layers": f"layer:{n}"} for n in layers}
    return setting.study(
        name="layers_by_task",
        title="Layer by task",
        question="Which layer of which model knows what?",
        config=setting.recipe("bert", objectives="mlm+nsp"),
        axes={
            "model": {
                "MLM + NSP": {},
                "LTR": ltr,
                "not pretrained": {"finetune.transfer.random": True},
            },
            "layer": {"embeddings": {"finetune.head.layers": "layer:0"}, **numbered},
        },
        overrides={
            **setting.on_transformer,
            **setting.finetuning("probe"),
            **LAST_PIECE,
            "data.format": "segment_pair",
        },
        claims=[Claim(f"MLM + NSP, layer {layers[-1]}", "MLM + NSP, embeddings", *FEATURES)],
    )

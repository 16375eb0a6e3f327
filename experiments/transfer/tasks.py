"""What pretraining gives on ten tasks: a pretrained model, random values, and static vectors.

    bertlab sweep --study=experiments/transfer/tasks.py:pretrained=RUN,static=RUN,data=DIR \
      --workdir=runs/transfer --jobs=2
    bertlab report runs/transfer

`pretrained` and `static` are run directories of models that read the same text with the same
tokenizer. The other arguments are the ablations', and so are rows and steps. Seeds change the
head's initial values, dropout and the order of examples, and for random values also the body.
"""

from bertlab.errors import UserError
from common import Setting, axis

TASKS = "sst2+cola+rte+stsb+sms_spam+trec+ud+wnut17+squad1+codah"
RATE = "finetune.optimizer.learning_rate"


def get_study(arguments=None):
    setting = Setting(arguments, pretrained="", static="", tasks=TASKS, seeds=3)
    pretrained, static = setting.arguments["pretrained"], setting.arguments["static"]
    if not pretrained:
        raise UserError("write tasks.py:pretrained=RUN,data=DIR, and static=RUN for static vectors")
    models = {"pretrained": {}, "random": {"finetune.transfer.random": True}}
    if static:
        rate = {} if setting.task_rates else {RATE: 5e-3}
        models["static"] = {"config": f"run:{static}", **rate}
    return setting.study(
        name="transfer",
        title="What pretraining gives on ten tasks",
        question="Is a pretrained model better than random values, and than static vectors?",
        config=f"run:{pretrained}",
        axes={"model": models},
        seeds=axis("finetune.seed", setting.seeds),
        overrides=setting.finetune,
        rates=(),
    )

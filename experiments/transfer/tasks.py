"""What pretraining gives downstream: a pretrained model, the same model from random values, and static vectors, on ten tasks.

    bertlab sweep --study=experiments/transfer/tasks.py:pretrained=RUN,static=RUN,data=DIR --workdir=runs/transfer --jobs=2
    bertlab report runs/transfer

README.md in this folder has the results and says where pretraining helps and why. `pretrained` and `static` are run directories
of models that read the same text with the same tokenizer. `data` holds one folder per task, in its published layout (the names
below). Set `squad_train` if SQuAD's training file is not train-v1.1.json or you have several. Scores are on the published test
set, or on the development set if the test labels are hidden; see `bertlab/transfer/tasks`. Two cores take an hour and a half
for these rows and steps. All models have the same rows, rates and steps, except that static vectors have a higher rate. With
`rates=3e-4+1e-3+3e-3` every model tries these rates, and `valid` selects one for each task. `labels=1000` trains on at most
1,000 examples, in ten passes. Without `static=` there are no static vectors. Seeds change the head's initial values, dropout
and the order of the examples, and for the model from random values also the body.
"""

from bertlab.config import parse_arguments
from bertlab.errors import UserError
from bertlab.studies.study import Study

# Folder below `data`, pieces per text, passes over train, and the task's other settings.
TASKS = {
    "sst2": ("glue", 32, 3, {"task_data.limit": 6400}),
    "cola": ("glue", 24, 3, {}),
    "rte": ("glue", 96, 3, {}),
    "stsb": ("glue", 64, 3, {}),
    "sms_spam": ("sms_spam", 48, 2, {}),
    "trec": ("sentences", 24, 4, {}),
    "ud": ("ud_english_ewt", 48, 2, {"task_data.limit": 4000}),
    "wnut17": ("wnut17", 48, 4, {}),
    "squad1": ("squad", 128, 2, {"transfer.doc_stride": 64, "transfer.max_query": 32}),
    "codah": ("codah", 32, 3, {}),
}
RATE = "finetune.optimizer.learning_rate"
SHARED = {
    "finetune.data.batch_size": 32,
    "finetune.train.steps": 0,
    "finetune.train.eval_every": 0,
    "finetune.train.log_every": 100,
    "finetune.transfer.warmup": 0.1,
    RATE: 1e-3,
}


def get_study(arguments=None):
    values = parse_arguments(
        arguments, pretrained="", static="", data="", seeds=3, tasks="+".join(TASKS), rates="", labels=0, squad_train=""
    )
    for key in ("pretrained", "data"):
        if not values[key]:
            raise UserError(f"{key}= is missing; write tasks.py:pretrained=RUN,static=RUN,data=DIR")
    if values["labels"] < 0:
        raise UserError(f"labels={values['labels']} must be 1 or more, or 0 for all")
    if unknown := [name for name in values["tasks"].split("+") if name not in TASKS]:
        raise UserError(f"tasks={values['tasks']}: '{unknown[0]}' is none of {', '.join(TASKS)}")
    downstream = {}
    for name in values["tasks"].split("+"):
        folder, length, epochs, more = TASKS[name]
        settings = {
            "task_data.directory": f"{values['data']}/{folder}",
            "data.seq_len": length,
            "transfer.epochs": float(epochs),
        }
        few = {"task_data.limit": values["labels"], "transfer.epochs": 10.0} if values["labels"] else {}
        downstream[name] = settings | more | few
    if values["squad_train"] and "squad1" in downstream:
        downstream["squad1"]["task_data.train_file"] = values["squad_train"]
    rates = [float(rate) for rate in values["rates"].split("+") if rate]
    models = {"pretrained": {}, "random": {"finetune.transfer.random": True}}
    if values["static"]:
        models["static"] = {"config": f"run:{values['static']}"} | ({} if rates else {RATE: 5e-3})
    return Study(
        name="transfer",
        title="What pretraining gives on ten tasks",
        question="Is a pretrained model better than the same one from random values, and than static vectors?",
        config=f"run:{values['pretrained']}",
        axes={
            "model": models,
            **({RATE: rates} if rates else {}),
            "finetune.seed": list(range(1, values["seeds"] + 1)),
        },
        select=[RATE] if rates else [],
        overrides=SHARED,
        downstream=downstream,
    )

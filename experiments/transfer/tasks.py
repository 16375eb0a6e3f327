"""What pretraining gives on ten tasks: a pretrained model, random values, and static vectors.

    bertlab sweep --study=experiments/transfer/tasks.py:pretrained=RUN,static=RUN,data=DIR \
      --workdir=runs/transfer --jobs=2
    bertlab report runs/transfer

`pretrained` and `static` are run directories of models that read the same text with the same
tokenizer; without `static=` there are no static vectors. `data` has a folder a task (below), in its
published layout; `squad_train` names SQuAD's training file if it is not train-v1.1.json. With
`rates=3e-4+1e-3+3e-3` every model tries these rates, and `valid` selects one for each task.
`labels=1000` trains on at most 1,000 examples, in ten passes. Seeds change the head's initial
values, dropout and the order of examples, and for random values also the body. README.md in this
folder has the results.
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
ARGUMENTS = dict(pretrained="", static="", data="", seeds=3, tasks="+".join(TASKS))
ARGUMENTS |= dict(rates="", labels=0, squad_train="")


def task_settings(name, values):
    if name not in TASKS:
        raise UserError(f"tasks={values['tasks']}: '{name}' is none of {', '.join(TASKS)}")
    folder, length, epochs, more = TASKS[name]
    settings = {"task_data.directory": f"{values['data']}/{folder}", "data.seq_len": length}
    settings |= {"transfer.epochs": float(epochs), **more}
    if name == "squad1" and values["squad_train"]:
        settings["task_data.train_file"] = values["squad_train"]
    if values["labels"]:
        settings |= {"task_data.limit": values["labels"], "transfer.epochs": 10.0}
    return settings


def get_study(arguments=None):
    values = parse_arguments(arguments, **ARGUMENTS)
    if not values["pretrained"] or not values["data"]:
        raise UserError("write tasks.py:pretrained=RUN,data=DIR, and static=RUN for static vectors")
    rates = [float(rate) for rate in values["rates"].split("+") if rate]
    models = {"pretrained": {}, "random": {"finetune.transfer.random": True}}
    if values["static"]:
        models["static"] = {"config": f"run:{values['static']}"} | ({} if rates else {RATE: 5e-3})
    return Study(
        name="transfer",
        title="What pretraining gives on ten tasks",
        question="Is a pretrained model better than random values, and than static vectors?",
        config=f"run:{values['pretrained']}",
        axes={
            "model": models,
            **({RATE: rates} if rates else {}),
            "finetune.seed": list(range(1, values["seeds"] + 1)),
        },
        select=[RATE] if rates else [],
        overrides=SHARED,
        downstream={name: task_settings(name, values) for name in values["tasks"].split("+")},
    )

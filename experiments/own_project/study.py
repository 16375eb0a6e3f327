"""A study of your own: `bertlab sweep --study=study.py:steps=1000,seeds=3 --workdir=runs/study --jobs=2`."""

from bertlab.config import parse_arguments
from bertlab.studies.study import Study


def get_study(arguments=None):
    values = parse_arguments(arguments, steps=1000, seeds=3)
    return Study(
        name="own",
        title="Overwritten or masked words",
        question="Does looking for overwritten words teach as much about tense as filling in masked words?",
        config=f"config.py:steps={values['steps']}",
        axes={
            "objective": {
                "masked": {"config": f"config.py:objectives=mlm,steps={values['steps']}"},
                "overwritten": {},
                "no pretraining": {"train.steps": 0},
            },
            "seed": list(range(1, 1 + values["seeds"])),
        },
        downstream={"tense": {"task": "task.py", "recipe": "small"}},
    )

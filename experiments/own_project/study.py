"""A study of your own: `bertlab sweep --study=study.py:steps=1000,seeds=3 --workdir=runs/study --jobs=2`."""

from bertlab.config import parse_arguments
from bertlab.studies.study import Study


def get_study(arguments=None):
    values = parse_arguments(arguments, steps=1000, seeds=3)
    return Study(
        name="own",
        title="Swapped or next words",
        question="Does looking for swapped words teach as much about the order of words as predicting the next word?",
        config=f"config.py:steps={values['steps']}",
        axes={
            "objective": {
                "no pretraining": {"train.steps": 0},  # the first one is what the others are compared with
                "swapped": {},
                "next word": {"config": f"config.py:objectives=ltr,steps={values['steps']}"},
            },
            "seed": list(range(1, 1 + values["seeds"])),
        },
        rates=(1 / 3, 1.0, 3.0),  # each objective trains at the one of these multiples of its rate that suits it best
        downstream={"word_order": {"task": "task.py", "recipe": "small"}},
        contrasts=[("next word", "swapped")],
    )

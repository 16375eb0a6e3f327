"""A study of your own.

bertlab sweep --study=study.py:steps=1000,seeds=3 --workdir=runs/study --jobs=2
"""

from bertlab.config import parse_arguments
from bertlab.studies.study import Study


def get_study(arguments=None):
    """What follows the colon is text: "steps=200,seeds=2"."""
    values = parse_arguments(arguments, steps=1000, seeds=3)
    steps = values["steps"]
    return Study(
        name="own",
        title="Swapped or next words",
        question="Does looking for swapped words teach as much about the order of words as"
        " predicting the next word?",
        config=f"config.py:steps={steps}",
        axes={
            "objective": {
                "no pretraining": {"train.steps": 0},
                "swapped": {},
                "next word": {"config": f"config.py:objectives=ltr,steps={steps}"},
            },
            "seed": list(range(1, 1 + values["seeds"])),
        },
        # Each objective trains at the one of these multiples of its rate that suits it best.
        rates=(1 / 3, 1.0, 3.0),
        downstream={"word_order": {"task": "task.py", "recipe": "small"}},
        contrasts=[
            ("swapped", "no pretraining"),
            ("next word", "no pretraining"),
            ("next word", "swapped"),
        ],
    )

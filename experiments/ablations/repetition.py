"""Little text read often: Muennighoff et al. 2023, arXiv 2305.16264; for masked diffusion Prabhudesai et al. 2025, 2507.15857.

    bertlab sweep --study=experiments/ablations/repetition.py:scale=tiny,corpus=pydocs --workdir=runs/repetition --jobs=2
    bertlab report runs/repetition

LTR, MLM and masked diffusion with one number of steps, on all of the text and on smaller parts of it that are read more often
(`config.data.unique_tokens`). `unique=0+64000+16000` gives the parts in tokens; 0 is all of the text, and pydocs has some
260,000. A smaller part is in every larger one. Parts and held-out text are the same for all seeds and objectives. Compare bits
per byte, exact for LTR and upper bounds for the others, and each objective's loss with its own on more text.

Expect: in Muennighoff et al. up to four readings are nearly as good as new text for a left-to-right model, and with many more
the return falls to nothing. In Prabhudesai et al. diffusion goes on gaining where a left-to-right model overfits: new masks
make a new task of each reading.

Cost at scale=tiny with seeds=1,select=off: 905 TFLOP, as `--dry_run` counts them; its time is not measured yet.
"""

from bertlab.errors import UserError
from bertlab.studies.settings import LAST_PIECE, read_setting
from bertlab.studies.study import Study
from bertlab.studies.text import count_text

OBJECTIVES = {"LTR": "ltr", "MLM": "mlm", "diffusion": "diffusion"}


def get_study(arguments=None):
    setting = read_setting(arguments, unique="0+64000+16000")
    given = setting.others["unique"]
    parts = [int(part) if part.isdigit() else -1 for part in given.split("+")]
    if min(parts) < 0 or len(set(parts)) < len(parts):
        raise UserError(f"unique={given}: give numbers of tokens, each once, and 0 for all, as in unique=0+64000+16000")
    return Study(
        name="repetition",
        title="Little text read often",
        question="What does it cost each objective to read less text more often?",
        config=setting.recipe("bert", objectives="mlm"),
        axes={
            "objective": {label: {"config": setting.recipe("bert", objectives=name)} for label, name in OBJECTIVES.items()},
            "unique text": {
                f"{count_text(part)} tokens" if part else "all": {"data.unique_tokens": part} for part in sorted(parts)
            },
            "seed": setting.seeds,
        },
        overrides={**setting.overrides, **setting.transformer, **LAST_PIECE, "data.format": "full_sentences"},
        rates=setting.rates,
        task_rates=setting.task_rates,
        downstream=setting.downstream(),
    )

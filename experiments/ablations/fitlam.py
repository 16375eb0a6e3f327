"""ULMFiT's first version (FitLaM) against its last: Howard and Ruder 2018, v1 and v5.

The last version, with each of the first version's choices and with all of them: rates that fall by
0.3 a layer, not 1/2.6; one epoch for the language model, and a cosine instead of the slanted
triangle, after a warm-up along the reversed cosine for a tenth of the steps; gradual unfreezing of
the language model, not of the classifier. This follows reviews of the first version; the
classifier's schedule (here the cosine alone) is not verified. Otherwise as `ulmfit_table4.py`.
"""

import ulmfit
from bertlab.transfer.recipes import FITLAM_ANNEALING
from common import under


def get_study(arguments=None):
    setting = ulmfit.read(arguments)
    factor = {"finetune.optimizer.layer_decay": 0.3, "adapt.optimizer.layer_decay": 0.3}
    cut = {"optimizer.cut_fraction": 0.1}  # the default again: only the triangle has it
    cosine = under("adapt", {"epochs": 1.0, **FITLAM_ANNEALING, **cut})
    cosine |= under("finetune", {"optimizer.decay": "cosine", **cut})
    thawing = {**ulmfit.thawing(setting, "gradual", "adapt"), **ulmfit.thawing(setting, "all")}
    versions = {"last (ULMFiT)": {}, "rates by 0.3": factor, "one epoch, cosine": cosine}
    versions |= {"language model thawed": thawing, "first (FitLaM)": factor | cosine | thawing}
    return ulmfit.study(
        setting,
        title="FitLaM and ULMFiT",
        question="What did ULMFiT change between its first version and its last, and what did it"
        " give?",
        axes={"version": versions},
    )

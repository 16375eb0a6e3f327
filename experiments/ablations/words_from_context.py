"""Words' vectors from contextual and static models: Bommasani et al. 2020, Mikolov et al. 2013.

The pretrainings are those of `static_contextual.py`. Every model gives each word one vector: a
static model the mean of its pieces' rows; a contextual one, on every layer, the mean of the states
of the word's pieces in a text of this word `alone`. For each layer and file the report has
Spearman's correlation of cosines and human ratings, and the share of analogies that 3CosAdd
answers. `words=A,B` are lines "word word rating", such as SimLex-999 or MEN in Faruqui and Dyer's
collection; `analogies=` is word2vec's questions-words.txt.
"""

import systems
from common import LAST_PIECE, SAME_ROWS, Setting

FILES = {"words": "evaluate.words", "analogies": "evaluate.analogies"}


def get_study(arguments=None):
    setting = Setting(arguments, paper=SAME_ROWS, tasks="", **dict.fromkeys(FILES, ""))
    files = {key: setting.arguments[name] for name, key in FILES.items() if setting.arguments[name]}
    shared = systems.UNIGRAM | setting.pretraining
    static, models = systems.static_and_contextual(setting)
    return setting.study(
        title="Words from contextual and static models",
        question="Do states of contextual models make better vectors of words than static models,"
        " and on which layer?",
        config=setting.recipe("bert"),
        axes={"model": static | models},
        overrides={**shared, **setting.finetuning("elmo"), **LAST_PIECE, **files},
    )

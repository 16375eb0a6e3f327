"""Static word vectors against contextual models, as features and fine-tuned, on the same text.

word2vec's skip-gram and CBOW (Mikolov et al. 2013), GloVe (Pennington et al. 2014), ELMo (Peters et
al. 2018), GPT (Radford et al. 2018) and BERT (Devlin et al. 2019) train for the same number of
steps on rows of the same text in the same pieces (GloVe: on as many entries of its table of counts
as a row has positions). As features a frozen model's layers are mixed below a biLSTM of two layers,
which gives static vectors context too; fine-tuned, everything is trained under a linear layer on
the mean of the states or on each word's, static vectors at ten times the rate.
"""

import systems
from common import LAST_PIECE, SAME_ROWS, Setting, axis, chain, claims, product

CLAIMS = (
    *claims("Peters et al. 2018, table 1", ("ELMo, features", "GloVe, features", systems.BESIDE)),
    *claims(
        "Devlin et al. 2019, tables 1 and 7",
        ("BERT, fine-tuned", "GPT, fine-tuned", "GLUE 79.6 and 75.1, on average"),
        ("BERT, fine-tuned", "BERT, features", "NER 96.4, and 95.5 with a sum of all layers"),
        ("BERT, fine-tuned", "ELMo, features", "NER 92.4 and 92.2"),
    ),
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=SAME_ROWS)
    static, models = systems.static_and_contextual(setting)
    rate = 5e-5 if setting.is_large else 5e-4

    def used(models, rate):
        own = {} if setting.task_rates else {"finetune.optimizer.learning_rate": rate}
        tuned = {"finetune.recipe": "small", **own}
        uses = {"features": {"finetune.recipe": "elmo"}, "fine-tuned": tuned}
        return product(axis("model", models), axis("use", uses))

    shared = systems.UNIGRAM | setting.pretraining
    return setting.study(
        title="Static and contextual vectors",
        question="What does seeing context give over vectors of words, frozen and fine-tuned?",
        config=setting.recipe("bert"),
        axes=chain(used(static, 10 * rate), used(models, rate)),
        overrides={**shared, **setting.finetuning("elmo"), **LAST_PIECE},
        claims=CLAIMS,
    )

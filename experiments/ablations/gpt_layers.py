"""How many of GPT's layers are worth transferring: Radford et al. 2018, section 5, figure 2 (left).

Fine-tuning starts from random values, or from the pretrained embeddings and the layers above them
up to the first, second, ... last, and follows the paper. Its tasks: `tasks=mnli+race,data=DIR`.
"""

import systems
from common import Claim, Setting, papers

# {all}: the label of all layers at the scale.
EACH = "each layer helps, all of them by up to 9 % on MultiNLI"
CLAIMS = (
    ("embeddings", "none", "no number is given", "Radford et al. 2018, section 5"),
    ("{all}", "embeddings", EACH, "Radford et al. 2018, section 5"),
    ("{all}", "none", "74.7 and 59.9, on average", "Radford et al. 2018, table 5"),
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.GPT)
    layers = setting.numbers("gpt")["layers"]
    labels = ["embeddings", *(f"{n} of {layers}" for n in range(1, layers + 1))]
    transferred = {"none": {"finetune.transfer.random": True}}
    transferred |= {label: {"finetune.transfer.layers": n} for n, label in enumerate(labels)}
    return setting.study(
        title="Layers transferred from GPT",
        question="How much does each pretrained layer add downstream?",
        config=setting.recipe("gpt"),
        axes={"layers transferred": transferred},
        overrides={**setting.on_transformer, **systems.gpt_finetuning(setting)},
        claims=[Claim(higher.format(all=f"{layers} of {layers}"), *of) for higher, *of in CLAIMS],
    )

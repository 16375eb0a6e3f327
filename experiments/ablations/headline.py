"""The headline tables of BERT, GPT, ELMo and ULMFiT (the sources of TABLE) as one.

Every system is used as its paper uses it (`four_systems.py`), on those of the tables' tasks whose
files are in the folder `data=`, or on `tasks=`; without `data` on two tasks of our own. Below
scale=paper the pretrainings are those of `four_systems.py` with equal=steps. At scale=paper each
system is pretrained as its paper prints, on your text. ELMo reads characters there, and cannot mark
spans of pieces: with `squad1` or `squad2` name `elmo=subwords`. The static vectors have as many
words as GloVe's 6B vectors. With `ner` among the tasks BERT keeps the case of letters for all of
them, so train `ner` in a study of its own.
"""

import re
from pathlib import Path

import systems
import ulmfit
from bertlab.errors import UserError
from bertlab.transfer.tasks import find_task
from common import LAST_PIECE, SAME_ROWS, Setting, axis, chain, papers, table
from published_tasks import TASKS, config_name

GLUE = ("mnli", "mnli_mismatched", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")
OTHERS = ("squad1", "squad2", "swag", "ner", "snli", "scitail", "story_cloze", "race", "sst5")
TEXTS = ("imdb", "trec", "ag_news", "dbpedia", "yelp_polarity", "yelp_full")
WITHOUT_DATA = ("package", "code_spans")
WITH_BERT = ("BERT", "no pretraining")  # with its body and recipe
WORDS = {**SAME_ROWS, "data.tokenizer.kind": "words", "data.tokenizer.vocab_size": 400_000}
COLUMNS = (
    "MNLI-m|MNLI-mm|QQP|QNLI|SST-2|CoLA|STS-B|MRPC|RTE|GLUE average|SQuAD 1.1 F1|SWAG|NER F1|SNLI"
    "|SciTail|Story Cloze|RACE|SST-5|IMDb error|TREC-6 error|AG error|DBpedia error|Yelp-bi error"
    "|Yelp-full error"
)
BERT_GLUE = (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 79.6)
GPT_GLUE = (82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0, 75.1)
GPT_OTHERS = (None, 78.0, None, 89.9, 88.3, 86.5, 59.0, None)
ELMO_OTHERS = (85.8, None, 92.2, 88.7, None, None, None, 54.7)
TABLE = table(
    "Devlin et al. 2019, tables 1, 2, 4 and 7; Radford et al. 2018, tables 2 to 4; Peters"
    " et al. 2018, table 1; Howard and Ruder 2018, tables 2 and 3",
    COLUMNS,
    {
        "BERT": (*BERT_GLUE, 88.5, 81.6, 92.4, *[None] * 11),
        "GPT": (*GPT_GLUE, *GPT_OTHERS, *[None] * 6),
        "ELMo": (*[None] * 10, *ELMO_OTHERS, *[None] * 6),
        "ULMFiT": (*[None] * 18, 4.6, 3.6, 5.01, 0.8, 2.16, 29.98),
    },
    note="BERT-Base. Test sets, but BERT's SQuAD and SWAG are its development sets. Errors: lower"
    " is better; ours are accuracies. ELMo's NER is as BERT's paper cites it (92.22 in its own"
    " table), and so is GPT's SWAG. Each has its own text and size.",
)


def get_study(arguments=None):
    tasks = WITHOUT_DATA
    if data := re.search(r"(?:^|,)data=([^,]+)", arguments or ""):
        folder, names = Path(data[1]).expanduser(), (*GLUE, *OTHERS, *TEXTS)
        tasks = [n for n in names if find_task(config_name(n)).is_in(folder / TASKS[n])]
        if not tasks and "tasks=" not in arguments:
            raise UserError(f"data={data[1]}: no task of the tables has its files there")
    own = {"static": systems.STATIC, "elmo": ("", "subwords", "characters")}
    own["tasks"] = "+".join(tasks)
    setting = Setting(arguments, **own)
    reads = setting.elmo_tokens
    elmo = papers.ELMO if reads == "characters" else SAME_ROWS
    bert = papers.BERT_CASED if "ner" in setting.tasks else papers.BERT
    published = {"BERT": bert, "GPT": papers.GPT, "ELMo": elmo}
    published |= {"ULMFiT": ulmfit.PAPER, "static": WORDS}
    scales = {
        name: Setting(arguments, paper, **own).pretraining for name, paper in published.items()
    }
    compared = systems.with_random(systems.as_used(setting, reads, scales))
    grids = {name: axis("system", {name: of}) for name, of in compared.items()}
    grids |= {name: setting.at_bert_rates(grids[name]) for name in WITH_BERT}
    return setting.study(
        title="The headline tables",
        question="What does each system give on the tasks of the papers' main tables, used as its"
        " paper uses it?",
        config=setting.recipe("bert"),
        axes=chain(*grids.values()),
        overrides=LAST_PIECE,
        downstream=setting.in_documents(),
        **TABLE,
        claims=systems.CLAIMS,
    )

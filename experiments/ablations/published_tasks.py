"""The tasks that studies can name, and where their files are."""

# Published tasks by their folder below the argument `data`.
FOLDERS = {
    "glue": "sst2 cola mrpc qqp stsb mnli mnli_mismatched qnli rte wnli",
    "superglue": "boolq cb copa multirc record wic wsc",
    "glue_filtered": "babylm_boolq babylm_mnli babylm_mrpc babylm_multirc babylm_qqp babylm_rte"
    " babylm_wsc",
    "snli_1.0": "snli",
    "SciTailV1.1": "scitail",
    "aclImdb": "imdb",
    "ag_news_csv": "ag_news",
    "dbpedia_csv": "dbpedia",
    "yelp_review_polarity_csv": "yelp_polarity",
    "yelp_review_full_csv": "yelp_full",
    "trees": "sst5 sst5_phrases",
    "sentences": "trec mr subj",
    "ud_english_ewt": "ud ud_xpos",
    "WSD_Evaluation_Framework": "senses_wsd",
    "CoarseWSD-20": "senses_coarse",
    "conll2003": "ner",
    "wikiann_en": "wikiann",
    "squad": "squad1 squad2",
    "edges": "edges_pos edges_constituents edges_dependencies edges_entities edges_srl edges_coref"
    " edges_spr1 edges_spr2 edges_dpr edges_relations",
    "RACE": "race",
}
TASKS = {name: folder for folder, names in FOLDERS.items() for name in names.split()}
TASKS |= {name: name for name in "sms_spam wnut17 triviaqa codah swag story_cloze dprd".split()}
# Tasks of `bertlab.contrib`, which a config names by module, and those of its `readers`.
READERS = "copa dprd multirc race record sst5 sst5_phrases triviaqa wic wsc".split()
CONTRIB = {
    "babylm": "bertlab.contrib.babylm.tasks",
    "edges": "bertlab.contrib.edges",
    "senses": "bertlab.contrib.senses",
}
# Tasks whose texts are longer than the recipes' rows of 128, and BERT's longest rows: RACE's
# published numbers have 512 positions (fairseq, examples/roberta/README.race.md). SQuAD has
# windows.
LONG = ("boolq", "multirc", "record", "babylm_boolq", "babylm_multirc", "imdb")
LONG += ("yelp_polarity", "yelp_full", "race")
LONG_ROWS = 512


def config_name(task: str) -> str:
    """What `config.task` has for a task's name."""
    if task in READERS:
        return f"bertlab.contrib.readers:{task.upper()}"
    family, _, own = task.partition("_")
    return f"{CONTRIB[family]}:{own.upper()}" if family in CONTRIB and task in TASKS else task

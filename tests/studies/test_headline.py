"""The headline tables: which tasks, how each system is pretrained, and that each can be used on every kind of task."""

import dataclasses
import json

import pytest

from bertlab import papers
from bertlab.config import flatten, load_config
from bertlab.errors import UserError
from bertlab.studies import ulmfit
from bertlab.studies.checks import check_transfers, load_checked
from bertlab.studies.study import TASK_RATES, load_study
from bertlab.transfer.tasks import find_task
from tests.conftest import ROOT
from tests.studies.golden import label, of_finetuning

ABLATIONS = ROOT / "experiments/ablations"
STUDY = ABLATIONS / "headline.py"
PAPERS = {"BERT": papers.BERT, "GPT": papers.GPT, "ELMo": papers.ELMO, "ULMFiT": ulmfit.PAPER}


def configs(path, arguments):
    """System -> the config of its pretraining."""
    runs = {label(run): run for run in load_study(f"{path}:seeds=1,{arguments}").runs()}
    return {name: load_config(run.config, run.overrides) for name, run in runs.items()}


def test_its_pretrainings_are_those_of_four_systems_at_equal_steps():
    """So `--store` has them."""
    ours, theirs = configs(STUDY, "scale=tiny"), configs(ABLATIONS / "four_systems.py", "scale=tiny,equal=steps")
    assert ours == theirs and len(ours) == 7


def test_at_scale_paper_each_system_is_pretrained_as_its_paper_prints():
    found = configs(STUDY, "scale=paper")
    for system, table in PAPERS.items():
        flat = flatten(found[system])
        assert {key: flat[key] for key in table} == table, system
    assert found["ELMo"].model.token_encoder == "characters" and found["ELMo"].model.stateful
    assert found["BERT"].model.size == "base" and found["GPT"].model.size == "gpt1"
    few = configs(STUDY, "scale=paper,steps=50")
    assert {config.train.steps for config in few.values()} == {0, 50}
    assert few["BERT"].optimizer.warmup_steps == 5


def test_names_are_read_as_in_the_paper_by_bert_alone():
    """Case-preserving, in their document, at the best of four rates; other tasks by the model in lower case."""
    lower = configs(STUDY, "scale=paper,tasks=sst2,data=here")["BERT"].data.tokenizer
    assert (lower.lowercase, lower.vocab_size) == (True, 30_522)
    given = "scale=paper,tasks=ner+race+imdb,data=here"
    cased = configs(STUDY, given)["BERT"].data.tokenizer
    assert (cased.lowercase, cased.vocab_size) == (False, 28_996)
    runs = load_study(f"{STUDY}:seeds=1,{given}").runs()
    of = {run.labels["system"]: {task: of_finetuning(run, task) for task in run.downstream} for run in runs}
    in_documents = {name for name, tasks in of.items() if tasks["ner"].get("transfer.document_context")}
    assert in_documents == {"BERT", "no pretraining"}
    rows = {name: {task: settings["data.seq_len"] for task, settings in of[name].items()} for name in of}
    assert rows["BERT"] == rows["GPT"] == dict.fromkeys(("ner", "race", "imdb"), 512)
    assert rows["ULMFiT"]["imdb"] == 1400 and of["ULMFiT"]["imdb"]["data.buckets"] == [70, 140, 280, 560]
    rates = [run.labels.get(TASK_RATES, "") for run in runs if run.labels["system"] == "BERT"]
    assert [float(rate) for rate in rates] == [5e-5, 4e-5, 3e-5, 2e-5]
    assert len({run.name for run in runs if run.labels["system"] == "GPT"}) == 1


def test_elmo_s_layers_can_be_asked_with_pieces():
    """SQuAD needs them: spans of pieces."""
    path = ABLATIONS / "elmo_layers.py"
    by_words, by_pieces = (configs(path, f"scale=paper{more}")["last only"] for more in ("", ",elmo=subwords"))
    assert (by_words.model.token_encoder, by_words.data.tokenizer.kind) == ("characters", "words")
    assert by_pieces.model.token_encoder != "characters" and not by_pieces.data.characters
    assert (by_pieces.data.tokenizer.kind, by_pieces.data.seq_len, by_pieces.train.steps) == ("wordpiece", 512, 1_000_000)
    assert configs(path, "scale=tiny") == configs(path, "scale=tiny,elmo=subwords")
    with pytest.raises(UserError, match=r"^elmo=characters needs scale=paper: at scale=mini"):
        load_study(f"{path}:scale=mini,elmo=characters")


def test_tasks_are_those_whose_files_are_there(tmp_path):
    tasks = lambda arguments: list(load_study(f"{STUDY}:{arguments}").tasks)
    assert tasks("seeds=1") == ["package", "code_spans"]
    with pytest.raises(UserError, match=f"^data={tmp_path}: no task of the tables has its files there"):
        tasks(f"data={tmp_path}")
    for name in (
        "glue/CoLA/train.tsv",
        "glue/CoLA/dev.tsv",
        "glue/SST-2/train.tsv",
        "squad/train-v1.1.json",
        "squad/dev-v1.1.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "aclImdb/train").mkdir(parents=True)
    assert tasks(f"data={tmp_path}") == ["cola", "squad1"], "SST-2 lacks its development set, IMDb its test set"
    assert tasks(f"data={tmp_path},labels=100") == ["cola_100", "squad1_100"]
    assert tasks(f"data={tmp_path},tasks=rte") == ["rte"], "what is named is asked for"


@pytest.mark.parametrize("arguments", ["elmo=words", "static=fasttext"])
def test_what_it_cannot_be_is_refused(arguments):
    with pytest.raises(UserError, match=f"^{arguments}: (choose one of|did you mean)"):
        load_study(f"{STUDY}:{arguments}")
    with pytest.raises(UserError, match=r"^elmo=characters needs scale=paper: at scale=mini"):
        load_study(f"{STUDY}:scale=mini,elmo=characters")


@pytest.fixture
def tables(tmp_path):
    """Files of a task of each kind in the tables, in the folders that `data=` has."""
    write = lambda name, text: ((tmp_path / name).parent.mkdir(parents=True, exist_ok=True), (tmp_path / name).write_text(text))
    pairs = "".join(f"{i}\tg\tf\ty\t1\t{i}\ta\tthe cat {i} sat\ta dog {i} ran\t{i % 5}.0\n" for i in range(80))
    head = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    rte = "".join(f"{i}\tthe cat {i} sat\ta dog {i} ran\t{('entailment', 'not_entailment')[i % 2]}\n" for i in range(80))
    for split in ("train", "dev"):
        write(f"glue/STS-B/{split}.tsv", head + pairs)
        write(f"glue/RTE/{split}.tsv", "index\tsentence1\tsentence2\tlabel\n" + rte)
    columns = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    swag = "".join(f"v,{i},a b,A cat {i} sat.,The dog,gold,ran.,sat.,ate.,slept.,{i % 4}\n" for i in range(80))
    for split in ("train", "val"):
        write(f"swag/{split}.csv", f",{columns}" + "".join(f"{i},{line}\n" for i, line in enumerate(swag.splitlines())))
    ask = lambda i: {"id": str(i), "question": "Who sat?", "answers": [{"text": "cat", "answer_start": 4}]}
    squad = [{"title": "t", "paragraphs": [{"context": f"The cat {i} sat.", "qas": [ask(i)]}]} for i in range(80)]
    words = "-DOCSTART- O\n\n" + "\n\n".join(f"The O\ncat B-PER\n{i} O" for i in range(80))
    for ours, theirs in (("train", "train"), ("dev", "valid")):
        write(f"squad/{ours}-v1.1.json", json.dumps({"version": "1.1", "data": squad}))
        write(f"conll2003/{theirs}.txt", words + "\n")
    write("conll2003/test.txt", words + "\n")
    return tmp_path


KINDS = {"stsb": "regression", "rte": "classification", "swag": "choice", "squad1": "span", "ner": "tagging"}


@pytest.mark.parametrize("arguments", ["scale=tiny", pytest.param("scale=paper,elmo=subwords", marks=pytest.mark.slow)])
def test_every_system_can_be_used_on_every_kind_of_task(arguments, tables):
    study = load_study(f"{STUDY}:{arguments},seeds=1,task_steps=20,data={tables}")
    assert {name: find_task(name).kind.name for name in study.tasks} == KINDS
    study = dataclasses.replace(study, overrides={**study.overrides, "mesh.data": 1, "finetune.mesh.data": 1})
    runs = study.runs()
    found = check_transfers(runs, {run.name: load_checked(run.config, run.overrides) for run in runs})
    kinds = {run.labels["system"]: {stage for stage, _ in found[run.name]} for run in runs}
    assert len(kinds) == 7 and {name for name, stages in kinds.items() if "adapt" in stages} == {"ULMFiT"}
    if "paper" not in arguments:
        return
    layers = load_study(f"{ABLATIONS}/elmo_layers.py:{arguments},seeds=1,task_steps=20,data={tables},tasks=squad1").runs()
    assert check_transfers(layers, {run.name: load_checked(run.config, run.overrides | {"mesh.data": 1}) for run in layers})
    runs = load_study(f"{STUDY}:scale=paper,seeds=1,task_steps=20,data={tables},tasks=squad1").runs()
    [elmo] = [run for run in runs if run.labels["system"] == "ELMo"]
    with pytest.raises(UserError, match="span tasks need subword pieces"):
        check_transfers([elmo], {elmo.name: load_checked(elmo.config, elmo.overrides | {"mesh.data": 1})})

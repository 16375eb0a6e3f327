"""The documents: their commands and Python run or say why not, their links lead somewhere, and the site lists every page.

A block is run unless a comment stands before it: `<!-- not run: REASON -->`. A page's blocks run in order in one folder, as a
reader would run them, but small (`SMALL`). Runs that a page takes for granted are copies of a very small one, and
README or a tutorial must train a run of that name.
"""

import importlib
import importlib.util
import json
import re
import shlex
import shutil
import string
import sys
from pathlib import Path

import pytest

from bertlab.bench.table import markdown
from bertlab.bench.workloads import chosen
from bertlab.cli import build_parser, main
from bertlab.config import base_config, flatten
from bertlab.files import read_json
from bertlab.run import Run, StudyDirectory, named
from bertlab.studies.checks import load_checked
from bertlab.studies.study import load_study
from bertlab.transfer.finetune import KEYS as TRANSFER
from bertlab.transfer.tasks import OPTIONS
from tests.conftest import ROOT

PAGES = {str(page.relative_to(ROOT)): page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]}
LINKED = [*PAGES.values(), ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "experiments/README.md"]
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]*?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
ACTIVATE = "source .venv/bin/activate"
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
# What makes a command small, by its name.
SMALL = {
    "train": "train.steps=4 train.eval_batches=1 evaluate.sentences=2 data.seq_len=32 data.batch_size=8 data.workers=1"
    " data.tokenizer.vocab_size=400 data.valid_fraction=0.1 data.test_fraction=0.1 model.width=16 model.hidden=24 model.heads=2"
    " model.layers=1 optimizer.warmup_steps=2 mesh.data=1",
    "finetune": "train.steps=4 mesh.data=1",
    "floor": "data.synthetic.documents=200",
}
SMALL_STUDY = """

def _small(get=get_study):
    import dataclasses

    def get_small(arguments=None):
        study = get(arguments)
        small = {"evaluate.sentences": 2, "model.layers": 1, "model.width": 16, "model.hidden": 24, "model.heads": 2}
        return dataclasses.replace(study, overrides={**study.overrides, **small, "data.workers": 1})

    return get_small


get_study = _small()
"""
REVIEWS = "review\tstars\n" + "".join(f"a {'fine' if i % 2 else 'dull'} book about number {i}\t{i % 2}\n" for i in range(200))


def blocks(page: str) -> list[re.Match]:
    return list(BLOCK.finditer(PAGES[page].read_text(encoding="utf-8")))


def commands(text: str, names: dict[str, str]) -> list[list[str]]:
    """The words of each command of a shell block; `names` collects its variables."""
    found = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        for part in " ".join(shlex.quote(word) if word != "&&" else word for word in shlex.split(line, comments=True)).split(
            " && "
        ):
            words = [string.Template(word).safe_substitute(names) for word in shlex.split(part)]
            if len(words) == 1 and (assigned := re.fullmatch(r"(\w+)=(.*)", words[0])):
                names[assigned.group(1)] = assigned.group(2)
            elif words:
                found.append(words)
    return found


def example(page: str, file: str) -> str:
    """The Python block of a page that begins with the file's name."""
    [text] = [
        block["text"] for block in blocks(page) if block["language"] == "python" and block["text"].startswith(f'"""{file}')
    ]
    return text


def trained() -> set[Path]:
    """The directories of the runs that README and the tutorials train."""
    pages = [page for page in PAGES if page == "README.md" or page.startswith("docs/tutorials/")]
    shell = [block["text"] for page in pages for block in blocks(page) if block["language"] == "sh" and not block["why"]]
    found = [words for text in shell for words in commands(text, {}) if words[:2] == ["bertlab", "train"]]
    return {Path(word.removeprefix("--workdir=")) for words in found for word in words if word.startswith("--workdir=")}


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_keys_exist(page):
    """Those of blocks that are not run too."""
    parser = build_parser()
    keys = flatten(base_config()) | {f"task_data.{name}": default for name, default in OPTIONS.items()}
    keys |= {key.name: key.default for key in TRANSFER}
    for block in blocks(page):
        assert block["why"] is None or len(block["why"]) > 10, f"say why: {block['text']}"
        if block["language"] != "sh":
            continue
        for words in commands(block["text"], {}):
            words = words[next((i for i, word in enumerate(words) if not re.match(r"[A-Z_]+=", word)), 0) :]
            if words[0] != "bertlab" or "..." in words:
                continue
            _, rest = parser.parse_known_args(words[1:])
            for word in rest:
                name = re.fullmatch(r"--config\.([\w.]+)=.*", word)
                assert name and (name[1] in keys or name[1].startswith("objectives.")), f"{word} in: {' '.join(words)}"


def test_no_directory_is_a_run_on_one_page_and_a_study_on_another():
    """A reader follows several pages in one folder, and a run's directory takes no study."""
    names = {"train": set(), "sweep": set()}
    for page in PAGES:
        shell = "\n".join(re.sub(r"\\\n", " ", block["text"]) for block in blocks(page) if block["language"] == "sh")
        for command, name in re.findall(r"\bbertlab (train|sweep)\b[^\n|]*? --workdir=([^\s'\"]+)", shell):
            names[command].add(name.rstrip("/"))
    assert len(names["train"]) > 5 and len(names["sweep"]) > 3 and names["train"].isdisjoint(names["sweep"])


@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_installs_says_how_to_activate_the_environment(page):
    """Before its first `bertlab` or `pip`: make and pip install into .venv, which is not on the path of a new terminal."""
    text = PAGES[page].read_text(encoding="utf-8")
    blocks_of_shell = [block for block in blocks(page) if block["language"] == "sh"]
    if not any(re.search(r"^(make demo|make install|pip install)\b", block["text"], re.MULTILINE) for block in blocks_of_shell):
        return
    used = [
        block.start("text") + line.start()
        for block in blocks_of_shell
        for line in re.finditer(r"^(?:\w+=\S* )*(?:bertlab|pip|python|jupyter) ", block["text"], re.MULTILINE)
    ]
    assert not used or 0 <= text.find(ACTIVATE) < min(used)
    assert not re.search(r"^\.venv/bin/", text, re.MULTILINE), "one way: activate once"


def test_the_pages_name_commands_and_keys_that_exist():
    table = PAGES["docs/reference/commands.md"].read_text(encoding="utf-8")
    known = next(action for action in build_parser()._actions if action.dest == "command").choices
    assert set(re.findall(r"^\| `bertlab (\w+)", table, re.MULTILINE)) == set(known)
    keys = flatten(base_config())
    groups = {".".join(key.split(".")[:n]) for key in keys for n in range(1, 4)}
    table = PAGES["docs/reference/most-used-keys.md"].read_text(encoding="utf-8")
    named = re.findall(r"^\| `config\.([a-z_.]+?)(?:\.\{[a-z_,]+\}|\.NAME\.weight)?`", table, re.MULTILINE)
    assert len(named) > 10 and set(named) <= groups | set(keys)


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub and the site make it."""
    heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_inside_the_repository_leads_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for address in LINK.findall(text):
        if "://" in address:
            continue
        place, _, anchor = address.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), address
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, address


def test_the_site_lists_every_page_and_no_other():
    spec = importlib.util.spec_from_file_location("assemble", ROOT / "docs/assemble.py")
    assemble = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(assemble)
    listed = [name for names in assemble.NAVIGATION.values() for name in names]
    pages = {name.removeprefix("docs/").removesuffix(".md") for name in PAGES if name.startswith("docs/")}
    pages = {re.sub(r"^decisions/.*", "decisions/*", name) for name in pages} | {
        "reference/help",
        "python/*",
        "repository/notebooks/*",
    }
    assert len(listed) == len(set(listed)) and set(listed) | {"index"} == pages


def test_the_readme_is_a_page():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


@pytest.fixture
def reader(tmp_path, monkeypatch, bert_run, small_overrides):
    """A folder in which to follow a page, with what pages take for granted; returns (page) -> None, which follows it."""
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    monkeypatch.setenv("BERTLAB_CACHE", small_overrides["data.directory"])
    for name in ("train.tsv", "dev.tsv"):
        Path(name).write_text(REVIEWS)
    Path("books").mkdir()
    shutil.copy(small_overrides["data.corpus"].removeprefix("text:").replace("*.txt.gz", "topics.txt.gz"), "books/one.txt.gz")

    def take_for_granted(place: Path) -> None:
        if place.parts[0] == "runs" and not place.exists():
            assert place in trained(), f"neither README nor a tutorial trains {place}"
            shutil.copytree(bert_run, place)

    def command(words: list[str]) -> None:
        if words == ACTIVATE.split():
            return
        assert words[0] == "bertlab", f"mark it as not run, and say why: {' '.join(words)}"
        words = words[1:]
        if words[0] in ("train", "sweep"):
            words = [word.replace("corpus=pydocs", f"corpus={small_overrides['data.corpus']}") for word in words]
        words = [word.replace("books/*.txt", "books/*.txt.gz") for word in words]
        if words[0] == "sweep":
            words = [re.sub(r",(seeds|steps|task_steps|select)=\w+", "", word) for word in words]
            words = [re.sub(r"(--study=\S+)", r"\1,seeds=1,steps=4,task_steps=2,select=off", word) for word in words]
        given = [
            word for word in words if word.startswith(("--run=", "--config.init_from=")) or ("/" in word and "=" not in word)
        ]
        for place in (Path(word.rpartition("=")[2]) for word in given):
            if words[0] not in ("report", "sweep"):
                take_for_granted(place)
        small = [f"--config.{setting}" for setting in SMALL.get(words[0], "").split()]
        is_tokenizer_given = any("tokenizer.path" in word for word in words)
        small = [word for word in small if not (is_tokenizer_given and "vocab_size" in word)]
        assert main([*words, *small]) <= (words[0] == "doctor"), " ".join(words)  # the doctor's 1: it found something to say

    def follow(page: str) -> None:
        names, values = {}, {"__name__": "page"}
        for block in blocks(page):
            if block["why"] is not None:
                continue
            if block["language"] == "sh":
                for words in commands(block["text"], names):
                    command(words)
            elif block["language"] == "python":
                if named := re.match(r'"""(\w+\.py)', block["text"]):
                    Path(named[1]).write_text(block["text"] + (SMALL_STUDY if "def get_study" in block["text"] else ""))
                    importlib.invalidate_caches()
                else:
                    for place in re.findall(r'"(runs/[^"]+)"', block["text"]):
                        take_for_granted(Path(place))
                    exec(compile(block["text"], page, "exec"), values)

    return follow


RUN = [page for page in PAGES if any(block["why"] is None and block["language"] in ("sh", "python") for block in blocks(page))]


# Long ones, whose commands other tests run too.
SELDOM = ("docs/tutorials/first-study.md", "docs/tutorials/own-corpus.md", "docs/tutorials/own-task.md")


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.nightly if page in SELDOM else pytest.mark.slow) for page in RUN]
)
def test_its_blocks_run(page, reader):
    reader(page)


def test_objective_of_the_readme_trains_from_a_file_of_ones_own(small_config, tmp_path, monkeypatch, capsys):
    """The run's directory is what the documents say, and it has a report."""
    (tmp_path / "my_module.py").write_text(example("README.md", "my_module.py"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    config = small_config("bert")
    shared = {"data.corpus": config.data.corpus, "data.directory": config.data.directory, "data.workers": 1, "mesh.data": 1}
    shared |= {"data.tokenizer.vocab_size": 400, "data.seq_len": 32, "data.batch_size": 8, "data.valid_fraction": 0.1}
    shared |= {"data.test_fraction": 0.1, "model.width": 16, "model.hidden": 24, "train.steps": 30, "train.log_every": 10}
    shared |= {
        "optimizer.warmup_steps": 2,
        "train.eval_batches": 2,
        "evaluate.sentences": 2,
        "objectives.MyObjective.rate": 0.3,
    }
    [command] = re.findall(
        r"^bertlab (train .*objectives=my_module:MyObjective.*)$", PAGES["README.md"].read_text(), re.MULTILINE
    )
    command = command.replace("experiments/", f"{ROOT}/experiments/").split()
    assert main([*command, *(f"--config.{key}={value}" for key, value in shared.items())]) == 0
    shown = capsys.readouterr().out
    assert "step 30/30  train" in shown and "runs/mine/result.json" in shown.splitlines()[-1]
    names = {
        "config.json",
        "environment.json",
        "data.json",
        "metrics.jsonl",
        "checkpoints",
        "costs.json",
        "result.json",
        "tokenizer",
    }
    assert {path.name for path in Path("runs/mine").iterdir()} == names | {"measured.json", "files.json"}
    lines = [json.loads(line) for line in Path("runs/mine/metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["split"] == "train"]
    assert train[-1]["MyObjective/loss"] < train[0]["MyObjective/loss"]
    assert read_json(Path("runs/mine/config.json"))["objectives"]["MyObjective"]["rate"] == 0.3

    assert main(["report", "runs/mine"]) == 0
    assert "MyObjective" in capsys.readouterr().out
    page = Path("runs/mine/report.html").read_text()
    assert "<html" in page and "http://" not in page.replace("http://www.w3.org", "")


def test_the_objective_of_the_tutorial_is_that_of_the_readme():
    """The tutorial's has a comment for each attribute, and is otherwise the same: the README's training covers both."""

    def attributes(page):
        values = {"__name__": "my_module"}
        exec(example(page, "my_module.py"), values)
        mine = values["MyObjective"]
        code = {name: getattr(mine, name).__code__.co_code for name in ("view", "head", "loss")}
        return mine.reads, mine.sees, mine.asks, mine().rate, code

    assert attributes("README.md") == attributes("docs/tutorials/own-objective.md")


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/first-study.md"])
def test_the_studies_of_the_documents_have_the_runs_that_they_name(page, tmp_path, monkeypatch):
    (tmp_path / "my_study.py").write_text(example(page, "my_study.py"))
    monkeypatch.chdir(ROOT)
    runs = load_study(f"{tmp_path}/my_study.py:seeds=2,steps=200").runs()
    for run in runs:
        load_checked(run.config, run.overrides | {"mesh.data": 1})
    rates = {run.name: run.overrides["objectives.mlm.rate"] for run in runs}
    assert {rates[f"15-seed={s}"] for s in (1, 2)} == {0.15} and {rates[f"40-seed={s}"] for s in (1, 2)} == {0.4}
    shared = {run.name: run.shares["pretrain"] for run in runs if run.shares.get("pretrain")}
    frozen = {f"40-frozen-seed={s}": f"40-seed={s}" for s in (1, 2)} if page != "README.md" else {}
    assert shared == frozen and len(runs) == 4 + len(frozen)


def test_the_tables_of_speed_are_of_the_results(monkeypatch):
    folder = ROOT / "experiments/speed"
    monkeypatch.syspath_prepend(str(folder))
    plans = importlib.import_module("plans")
    shown = (folder / "README.md").read_text()
    assert plans.table(read_json(plans.RESULTS)) in shown
    for names in (["steps", "wholes"], ["epyc-steps", "epyc-wholes"], ["epyc-small"]):
        files = [folder / f"results/{name}.json" for name in names]
        assert markdown([found for file in files for found in read_json(file)["workloads"]]).strip() in shown


def test_the_plans_keep_their_limits():
    """Bytes, memory and exchanges that a step of a published body may take on a chip; `tests/parity` compiles two of them."""
    records = read_json(ROOT / "experiments/speed/results/plans.json")
    compiled = {name: record for name, record in records.items() if "refused" not in record}
    of = lambda *words: [record for name, record in compiled.items() if all(word in name for word in words)]
    for found in of("BERT-Large v5e", "in a kernel"):
        assert found["work"]["bytes"] <= 70e9 and found["memory"] <= 13 * 2**30 and max(found["seconds"].values()) <= 0.1
    for found in of("GPT-2", "v5e", "in a kernel"):
        assert found["work"]["bytes"] <= 45e9
    for found in of("ELMo", "fsdp"):
        assert sum(exchange["sent"] for exchange in found["work"]["collectives"].values()) <= 1.5e9
    for found in of("ModernBERT-base"):
        assert found["work"]["flops"] <= 1.2 * (found["model_flops"] - found["outside_windows"])
    numbers = [len(of(*words)) for words in (("BERT-Large v5e", "kernel"), ("GPT-2", "v5e", "kernel"), ("ELMo v5e", "fsdp"))]
    assert numbers == [3, 2, 4] and of("ModernBERT-base", "in a kernel")
    # What GPT-2's direction hides counts in its share, and its kernel skips some of that.
    assert all(found["model_flops_share"] <= 1 for name, found in compiled.items() if not name.startswith("GPT-2"))


@pytest.mark.parametrize(
    ("workload", "row"),
    [
        ("bert-large-kernel", "BERT-Large v5e:2x2 data, in a kernel"),
        ("gpt2-kernel", "GPT-2 124M v5e:2x2 data, in a kernel, at once"),
    ],
)
def test_a_workload_as_planned_is_a_row_of_the_plans(workload, row, monkeypatch):
    """On each of four chips; the rest of the config is the same."""
    monkeypatch.syspath_prepend(str(ROOT / "experiments/speed"))
    plans = importlib.import_module("plans")
    [measured] = chosen("tpu", workload)
    measured, planned = flatten(measured.config()), flatten(plans.config_of(*plans.rows()[row]))
    assert planned["data.batch_size"] == 4 * measured["data.batch_size"]
    differ = {key for key in {*measured, *planned} if measured.get(key) != planned.get(key)}
    if (most := "objectives.mlm.max_predictions") in differ:
        assert (measured[most], planned[most]) == (77, 0), "0 is what the rate gives: 77 of 512"
    assert differ <= {"data.batch_size", "mesh.data", "train.steps", "evaluate.sentences", most}


def test_every_file_of_a_run_or_a_study_is_described():
    page = (ROOT / "docs/reference/run-directory.md").read_text(encoding="utf-8")
    found = [*named(Run("x")).values(), *named(StudyDirectory("x")).values()]
    names = sorted({getattr(of, "path", of).name for of in found})
    assert len(names) > 30 and [name for name in names if f"`{name}" not in page] == []

"""The command line: help, refusals, and every command's form as it is documented."""

import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

import bertlab
from bertlab import cli, progress
from bertlab.cli import build_parser, main
from bertlab.interop.base import EXPORTERS, IMPORTERS
from bertlab.run import Run
from bertlab.train.checkpoint import load_params
from tests.conftest import ROOT
from tests.interop import published

COMMANDS = ["train", "finetune", "adapt", "average", "sweep", "report", "compare", "doctor", "evaluate", "floor", "plan"]
COMMANDS += ["bench", "prepare", "tokenizer train", "tokenizer encode", "tokenizer decode", "import", "export", "embed"]
COMMANDS += ["keys", "models", "publish", "evidence", "speedrun", "sample", "scaling", "similarity", "probe"]
COMMANDS += ["init", "completion", "mirror", "manifest"]


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    """`main` puts the working directory on the path, as `python -m` does."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    for command in COMMANDS:
        assert command.split()[0] in text
    with pytest.raises(SystemExit):
        main(["no such command"])
    choices = capsys.readouterr().err.split("choose from")[1]
    assert set(re.findall(r"\w+", choices)) == {command.split()[0] for command in COMMANDS}, "none is left out of this list"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_shows_an_example_that_parses(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    words = shlex.split(text.split("example:\n")[1])
    arguments = words[words.index("bertlab") + 1 :] if "|" not in words else words[words.index("|") + 2 :]
    assert arguments[: len(command.split())] == command.split()
    given, rest = build_parser().parse_known_args(arguments)
    assert callable(given.function) and all(given.takes_overrides and word.startswith("--config.") for word in rest)


@pytest.mark.parametrize(
    ("command", "named"), [("mirror", "file:///PATH"), ("plan", "no TPU has confirmed"), ("manifest", "not run on a cloud")]
)
def test_help_names_where_a_command_works_and_what_was_not_tried(command, named, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert named in " ".join(capsys.readouterr().out.split())


def test_every_option_that_is_a_number_has_limits():
    def numbers(parser):
        for action in parser._actions:
            for of_command in (action.choices or {}).values() if action.nargs == "A..." else ():
                yield from numbers(of_command)
            if action.type in (int, float):
                yield action.dest

    assert {*numbers(build_parser())} == {*cli._LIMITS}


@pytest.mark.parametrize(("command", "registry"), [("import", IMPORTERS), ("export", EXPORTERS)])
def test_help_names_every_format(command, registry, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out.split("options:")[1].split("example:")[0]
    assert [kind for kind in registry if kind not in text] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "runs/x", "--colour=red"], "report does not know --colour=red; see bertlab report --help"),
        (["report", "runs/x", "--config.seed=1"], "report does not know --config.seed=1"),
        (["train", "--config=a.py", "--workdir=x", "--steps=3"], "train does not know --steps=3"),
        (["train", "--config=a.py"], "--workdir"),
        (["train", "--conf=a.py", "--workdir=x"], "--config"),
        (["pretrain"], "invalid choice: 'pretrain'"),
        ([], "COMMAND"),
    ],
)
def test_unknown_and_missing_flags_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["train", "--config=experiments/pretrain/bert.py:objectives=mml", "--workdir=x"], "mlm"),
        (["train", "--config=experiments/pretrain/bert.py:objective=mlm", "--workdir=x"], "objectives"),
        (["train", "--config=experiments/pretrain/brt.py", "--workdir=x"], "experiments/pretrain/bert.py"),
        (["train", "--config=experiments/pretrain/bert.py:size=tinny", "--workdir=x"], "tiny"),
        (["train", "--config=experiments/pretrain/bert.py:objectives=nearly_mine:Mine", "--workdir=x"], "nearly_mine1"),
        (["train", "--config=experiments/pretrain/bert.py:objectives=nearly_mine1:Min", "--workdir=x"], "Mine"),
        (["sweep", "--study=experiments/ablations/objectives.py:scael=tiny", "--workdir=x"], "scale"),
        (["sweep", "--study=experiments/ablations/objectives.py:scale=demmo", "--workdir=x"], "demo"),
        (["sweep", "--study=studi.py", "--workdir=x"], "study.py"),
        (["finetune", "--run=nowhere", "--task=taks.py", "--workdir=x"], "task.py"),
        (["import", "--from=huggingfase", ".", "--workdir=x"], "huggingface"),
        (["export", "run", "--to=hugginface", "x"], "huggingface"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest_one(arguments, meant, capsys, tmp_path, monkeypatch, bert_run):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("study.py", "task.py"):
        Path(name).touch()
    Path("nearly_mine1.py").write_text("class Mine:\n    pass\n")
    Path("run").symlink_to(bert_run)
    Path("nowhere").symlink_to(bert_run)
    assert main(arguments) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"did you mean {meant}?" in said
    assert not Path("x").exists()


def test_a_recipe_of_fine_tuning_is_answered_with_the_nearest_one(bert_run, tmp_path, capsys):
    assert main(["finetune", f"--run={bert_run}", "--task=package", "--recipe=bret", f"--workdir={tmp_path}/x"]) == 2
    assert "did you mean bert?" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "shown"), [(["3"], "3"), (["-3"], "-3")])
def test_a_key_is_given_with_its_value_in_one_word(value, shown, capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", "--config=x.py", "--workdir=x", "--config.train.steps", *value])
    assert end.value.code == 2
    assert f"write --config.train.steps={shown}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train", "--config=no.py", "--workdir=x"], "--config=no.py"),
        (["train", f"--config={ROOT}/experiments/pretrain/bert.py", "--workdir=x", "--config.train.stepz=3"], "train.steps"),
        (["train", f"--config={ROOT}/experiments/pretrain/gpt.py:objectives=bilm", "--workdir=x"], "config.model.direction="),
        (["finetune", "--run=nowhere", "--task=package", "--workdir=x"], "nowhere has no config.json"),
        (["prepare", "--corpus=text:nothing/*.txt"], "nothing/*.txt"),
        (["prepare", "--config.data.corpus=cloud"], "cloud"),
        (["report", "nowhere"], "nowhere"),
        (["report", ""], "the argument after report is empty; give a value"),
        (["init", ""], "after init is empty"),
        (["doctor", "--step=6", ""], "after --step=6 is empty"),
        (["publish", "full", ""], "after full is empty"),
        (["mirror", "", "file:///bucket/x"], "after mirror is empty"),
        (["mirror", "full", "", "--", "touch", "full"], "after full is empty"),
        (["sweep", "--study=no.py", "--workdir=x"], "no.py"),
        (["import", "--from=torch", ".", "--workdir=x"], "huggingface, google, openai, elmo, fastai, word2vec, glove"),
        (["import", "--from=google", "nowhere", "--workdir=x"], "nowhere"),
        (["import", "--from=huggingface", ".", "--workdir=x"], "config.json"),
        (["import", "--from=huggingface", ".", "--workdir=full"], "full is not empty"),
        (["import", "--from=huggingface", ".", "--workdir=full/notes.txt"], "full/notes.txt"),
        (["export", "nowhere", "--to=onnx", "x"], "huggingface, elmo, fastai, word2vec, glove"),
        (["export", "nowhere", "--to=huggingface", "x"], "nowhere has no config.json"),
        (["export", "nowhere", "--to=huggingface", "full"], "full is not empty"),
        (["embed", "--run=nowhere", "--text=full/notes.txt", "--out=x.npz"], "nowhere has no config.json"),
        (["embed", "--run=nowhere", "--text=no.txt", "--out=x.npz"], "--text=no.txt: "),
        (["embed", "--run=nowhere", "--text=full/notes.txt", "--out=x"], "--out=x: "),
        (["embed", "--run=nowhere", "--text=full/notes.txt", "--layers=last", "--out=x.npz"], "--layers=last: "),
    ],
)
def test_mistakes_are_one_line_and_status_2(arguments, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("a line\n")
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert named in text and text.startswith(f"bertlab {arguments[0]}: ") and text.count("\n") == 1
    assert "Traceback" not in text
    assert {path.name for path in tmp_path.iterdir()} <= {"full", "cache"} and len(list((tmp_path / "full").iterdir())) == 1


def test_other_errors_keep_their_traceback(monkeypatch):
    def broken(path):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("bertlab.studies.report.report", broken)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        main(["report", "runs/x"])


def test_workdir_of_another_config_is_refused_before_text_is_prepared(tmp_path, monkeypatch, capsys):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "config.json").write_text('{"seed": 5}')

    def ran(*arguments, **keywords):
        raise AssertionError("prepared")

    monkeypatch.setattr("bertlab.data.prepare.prepare", ran)
    config = f"--config={ROOT}/experiments/pretrain/bert.py"
    assert main(["train", config, f"--workdir={tmp_path / 'x'}", "--config.mesh.data=1"]) == 2
    assert "seed (5 there, 0 given)" in capsys.readouterr().err


def test_weights_go_in_and_out_and_in_again_bit_for_bit(tmp_path, capsys):
    source, first, out, second = (str(tmp_path / name) for name in ("source", "first", "out", "second"))
    published.write_directory("bert", tmp_path / "source")
    assert main(["import", "--from=huggingface", source, f"--workdir={first}"]) == 0
    assert main(["export", first, "--to=huggingface", out]) == 0
    assert main(["import", "--from=huggingface", out, f"--workdir={second}"]) == 0
    said = capsys.readouterr().out
    assert first in said and out in said and second in said
    once, again = load_params(tmp_path / "first"), load_params(tmp_path / "second")
    jax.tree.map(np.testing.assert_array_equal, once, again)
    assert main(["import", "--from=huggingface", source, f"--workdir={second}"]) == 2, "what is there is not written over"
    assert f"{second} is not empty" in capsys.readouterr().err


def test_embed_writes_an_array_for_every_line(tmp_path, capsys):
    published.write_directory("bert", tmp_path / "source")
    assert main(["import", "--from=huggingface", str(tmp_path / "source"), f"--workdir={tmp_path / 'run'}"]) == 0
    lines = ["a b c", "d", "c b a e f"]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")

    def embed(*arguments):
        out = tmp_path / "lines.npz"
        assert main(["embed", f"--run={tmp_path / 'run'}", f"--text={tmp_path / 'lines.txt'}", f"--out={out}", *arguments]) == 0
        with np.load(out) as file:
            assert set(file) == {"0", "1", "2"}
            return [file[str(number)] for number in range(3)]

    states, run = embed(), bertlab.load(tmp_path / "run")
    for line, array, expected in zip(lines, states, run.encode(lines), strict=True):
        assert array.shape == (published.LAYERS + 1, len(line.split()), published.WIDTH)
        np.testing.assert_array_equal(array, expected.states)
    for all_layers, chosen in zip(states, embed("--layers=-1,0"), strict=True):
        np.testing.assert_array_equal(chosen, all_layers[[-1, 0]])
    for inner, whole in zip(states, embed("--special_tokens"), strict=True):
        np.testing.assert_allclose(whole[:, 1:-1], inner, rtol=1e-5, atol=1e-5)
    (tmp_path / "lines.txt").write_text("a.b c\nd\nb, a. c!\n")  # without the flag punctuation is apart
    words = embed("--pretokenized")
    assert [array.shape[1] for array in words] == [2, 1, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.npz", "lines.txt", "run", "source"]


@pytest.fixture
def tokenizer(tmp_path) -> str:
    """The option that names a tokenizer of eight words."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]))
    return f"--tokenizer={tmp_path / 'vocab.txt'}"


def pipe(monkeypatch, text: bytes) -> None:
    """Makes a text standard input, as Python opens it where the locale is C."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8", errors="surrogateescape"))


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_tokenizer_round_trip(kind, tmp_path, monkeypatch, capsys):
    text = "The parser reads a file. The file holds a grammar. A grammar is read by the parser, once.\n\n"
    (tmp_path / "text.txt").write_text(text + text.replace("file", "stream") + text.replace("grammar", "list"))
    out = str(tmp_path / "tokenizer")
    size = {"unigram": "285", "wordpiece": "60"}[kind]
    arguments = ["tokenizer", "train", f"--corpus=text:{tmp_path}/*.txt", f"--kind={kind}", f"--vocab_size={size}"]
    assert main([*arguments, f"--out={out}", "--lowercase"]) == 0
    assert size in (said := capsys.readouterr().out) and out in said
    assert main([*arguments[:-1], "--vocab_size=300", f"--out={out}"]) == 2
    assert "tokenizer is not empty; name a new directory" in capsys.readouterr().err

    def piped(arguments, text):
        pipe(monkeypatch, text.encode())
        assert main(["tokenizer", *arguments, f"--tokenizer={out}"]) == 0
        return capsys.readouterr().out

    lines = "the parser\na file\n"
    ids = piped(["encode"], lines)
    assert ids.count("\n") == 2 and all(5 <= int(i) < int(size) for i in ids.split())
    assert piped(["decode"], ids) == lines
    pieces = piped(["encode", "--pieces"], lines)
    assert [len(line.split()) for line in pieces.splitlines()] == [len(line.split()) for line in ids.splitlines()]
    assert "parser" in "".join(pieces.split()).replace("##", "")


@pytest.mark.parametrize(
    ("action", "text", "out", "message"),
    [
        ("decode", b"7 x\n", "", "line 1: expected ids"),
        ("decode", b"7\n99999\n", "c\n", "line 2: id 99999 is not in 0..7"),
        ("decode", b"5 6\r\n5 \xe9\n", "a b\n", "line 2: byte 7 is not UTF-8"),
        ("encode", "caf\u00e9 b\r\n5 ".encode() + b"\xe9\n", "1 6\n", "line 2: byte 11 is not UTF-8"),
    ],
)
def test_input_that_cannot_be_read_is_named_by_line_and_byte(action, text, out, message, tokenizer, monkeypatch, capsys):
    pipe(monkeypatch, text)
    assert main(["tokenizer", action, tokenizer]) == 2
    output = capsys.readouterr()
    assert output.out == out and f"standard input, {message}" in output.err


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings are Linux's")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("glibc.malloc.arena_max=1", "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),  # what the user says holds
    ],
)
def test_the_command_begins_once_more_with_huge_pages_and_the_same_arguments(before, after):
    code = "import os, sys; from bertlab.cli import begin_with_huge_pages as begin; print('begun', flush=True); begin();"
    code += "print(os.environ['GLIBC_TUNABLES'], sys.argv[1:], sys.flags.dev_mode)"
    environment = {**os.environ, "GLIBC_TUNABLES": before}
    command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", code, "a", "b c"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    *begun, end = done.stdout.splitlines()
    assert begun == ["begun"] * (1 + (before != after))
    assert end == f"{after} ['a', 'b c'] True"


def test_help_and_training_start_without_the_libraries_that_only_others_need():
    """pandas, scikit-learn and SciPy's statistics take as long to import as all that training needs."""
    late = ("matplotlib", "pandas", "scipy.stats", "sklearn")
    heavy = (*late, "flax", "grain", "jax", "numpy", "ray", "scipy", "tensorflow_datasets", "tokenizers")
    code = f"""
import contextlib, os, sys
from bertlab.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(open(os.devnull, "w")):
    main(["train", "--help"])
print([name for name in {heavy} if name in sys.modules])
import bertlab.transfer.pretrain, bertlab.transfer.finetune, bertlab.bench.ours
print([name for name in {late} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["[]", "[]", ""]


def test_a_misspelt_topology_is_said_before_anything_heavy_is_imported():
    code = """
import sys
from bertlab.cli import main
print(main(["plan", "--config=none.py", "--topology=v5e-16"]), "jax" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n" and "--topology=v5e-16: give cpu:8" in done.stderr


def test_help_names_config_keys_where_a_command_takes_them_and_a_recipe_s_arguments():
    choices = next(action for action in build_parser()._actions if action.dest == "command").choices
    helps = {name: " ".join(parser.format_help().split()) for name, parser in choices.items()}
    with_keys = {"train", "finetune", "adapt", "probe", "floor", "plan", "prepare"}
    assert {name for name, text in helps.items() if "--config.KEY=VALUE" in text} == with_keys
    assert all(argument in helps["train"] for argument in ("size", "objectives", "corpus", "steps"))


def test_help_imports_nothing_but_the_parser():
    """So `bertlab --help` answers in less than half a second; modules are counted because they do not depend on the machine."""
    code = """
import sys
before = {*sys.modules}
from bertlab.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("\\n" + " ".join({name.split(".")[0] for name in {*sys.modules} - before}))
"""
    for arguments in (["--help"], ["train", "--help"], ["--version"]):
        command = [sys.executable, "-S", "-c", code, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # -S: no site-packages, so a library cannot be imported at all
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        new = done.stdout.splitlines()[-1].split()
        assert "bertlab" in new and {*new} - {"bertlab"} <= sys.stdlib_module_names and len(new) < 60


def test_the_version_is_the_package_s(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out == f"bertlab {bertlab.__version__}\n"
    command = [sys.executable, "-m", "bertlab", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"bertlab {bertlab.__version__}\n"


def test_json_is_one_object_and_quiet_is_nothing(capsys):
    assert main(["keys", "mesh.*"]) == 0
    table = capsys.readouterr().out
    assert main(["keys", "mesh.*", "--json"]) == 0
    output = capsys.readouterr()
    keys = json.loads(output.out)["keys"]
    assert [line.split("\t")[0] for line in table.splitlines()] == [key["key"] for key in keys]
    assert output.err == table, "people's text is still to be seen"
    assert main(["keys", "mesh.*", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["keys", "mesh.*", "--json", "--quiet"]) == 0
    assert capsys.readouterr() == (output.out, "")
    assert main(["keys", "no such key", "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("bertlab keys: no config key matches")


def test_defaults_of_keys_are_json_values(capsys):
    assert main(["keys", "--json"]) == 0
    defaults = {key["key"]: key["default"] for key in json.loads(capsys.readouterr().out)["keys"]}
    expected = {"mesh.windowed_einsum": False, "mesh.data": -1, "data.corpus": "pydocs", "objectives.NAME.weight": 1.0}
    expected |= {"optimizer.warmup_steps": None}  # unset
    found = {key: defaults[key] for key in expected}
    assert found == expected and [*map(type, found.values())] == [*map(type, expected.values())]


def test_json_has_null_for_what_is_no_number(capsys):
    value = {"a": np.float32(0.5), "b": [math.nan, math.inf, np.int64(3)], "c": ROOT, 1: {"d": None, "e": np.True_}}
    cli._print_json(value, sys.stdout)
    assert json.loads(capsys.readouterr().out) == {
        "a": 0.5,
        "b": [None, None, 3],
        "c": str(ROOT),
        "1": {"d": None, "e": True},
    }


def test_colours_respect_no_color(tmp_path, monkeypatch, capsys):
    """Every table is printed by rich; one that would be coloured on a terminal is not, if the user says so."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    progress.Bars(console := Console(stderr=True))
    assert console.color_system
    console.print("[red]a")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["keys", "mesh.data"]) == 0
    Console(stderr=True).print("[red]b")
    output = capsys.readouterr()
    assert re.search(r"\x1b\[3\d", output.err.split("\n")[0]) and not re.search(r"\x1b\[3\d", output.err.split("\n")[1])
    assert not re.search(r"\x1b\[[34]\d", output.out)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bertlab comple", {"completion"}),
        ("bertlab tokenizer ", {"train", "encode", "decode"}),
        ("bertlab completion ", {"bash", "zsh", "fish"}),
        ("bertlab train --work", {"--workdir"}),
        (
            "bertlab train --config.mesh.",
            {f"--config.mesh.{axis}=" for axis in ("data", "fsdp", "tensor", "sequence", "windowed_einsum")},
        ),
        ("bertlab doctor --config.mesh.", set()),
    ],
)
def test_the_shell_completes_commands_options_and_keys(line, expected, tmp_path):
    pytest.importorskip("argcomplete")
    environment = {**os.environ, "_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "out")}
    environment |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9", "_ARGCOMPLETE_IFS": "\n"}
    subprocess.run([sys.executable, "-m", "bertlab"], env=environment, cwd=tmp_path, check=True)
    found = {word.strip() for word in (tmp_path / "out").read_text().split("\n")}
    assert found - {"", "-h", "--help", "--quiet"} == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_code_for_a_shell_names_the_command(shell, capsys):
    pytest.importorskip("argcomplete")
    assert main(["completion", shell]) == 0
    assert "bertlab" in capsys.readouterr().out


def test_what_a_command_only_prints_is_printed_with_quiet_too(capsys, tmp_path):
    pytest.importorskip("argcomplete")
    command = ["manifest", "--name=x", "--topology=v5e:4x4", "--image=i", "--claim=c", "--quiet"]
    trained = ["--", "bertlab", "train", "--config=F.py", "--workdir=/runs/x"]
    assert main([*command, *trained]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "JobSet"
    assert main([*command, f"--out={tmp_path / 'm.json'}", *trained]) == 0
    assert capsys.readouterr().out == "", "the file is the result"
    assert main(["completion", "bash"]) == 0
    shown = capsys.readouterr().out
    assert main(["completion", "bash", "--quiet"]) == 0 and capsys.readouterr().out == shown != ""


def test_a_name_that_is_nearly_a_command_is_suggested(capsys):
    for words, meant in ((["tran"], "train"), (["tokenizer", "encod"], "encode"), (["average", "a", "--split=vaild"], "valid")):
        with pytest.raises(SystemExit) as end:
            main(words)
        said = capsys.readouterr().err
        assert end.value.code == 2 and f"; did you mean {meant}?" in said and "choose from" not in said


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_line_with_the_time_left_on_a_terminal(terminal):
    out = io.StringIO()
    with progress.shown(Console(file=out, force_terminal=terminal, width=100)):
        progress.tell("reading", 0.5, 1)
        progress.tell("reading", 1, 1)
        for number in progress.over(range(40), "tokenising", 40):
            if number == 10:
                time.sleep(0.3)  # until the bars are drawn again
                progress.tell("tokenising", 10, 40)
                time.sleep(0.3)
        with progress.hidden():
            progress.tell("unseen", 1, 2)
        with progress.doing("compiling"):
            pass
    progress.tell("afterwards", 1, 2)
    said = out.getvalue()
    if terminal:
        assert all(word in said for word in ("reading", "tokenising", "25%", "left:", "compiling"))
        assert "unseen" not in said and "afterwards" not in said
    else:
        assert said == ""


def test_what_a_paper_does_otherwise_is_said_where_a_training_begins_and_nowhere_else(tmp_path, capsys, monkeypatch):
    def pretrain(config, workdir):
        Run(workdir).config.write(json.loads(config.to_json_best_effort()))
        print("trained")
        return {}

    monkeypatch.setattr("bertlab.data.prepare.prepare", lambda data: print("prepared"))
    monkeypatch.setattr("bertlab.transfer.pretrain.pretrain", pretrain)
    monkeypatch.setattr("bertlab.train.plan.print_plan", lambda *_: {})
    recipe = f"--config={ROOT}/experiments/pretrain/bert.py:size=tiny"
    command = ["train", recipe, f"--workdir={tmp_path}/x", "--config.mesh.data=1"]

    def said(command, status=0):
        assert main(command) == status
        return [line if "is not trained as in" not in line else "remark" for line in capsys.readouterr().out.splitlines()]

    assert said([*command, "--config.train.steps=-1"], status=2) == []
    assert said(["plan", recipe, "--topology=cpu:1"]) == []
    assert said(command)[:3] == ["prepared", "remark", "trained"]
    assert "remark" not in said(command), "it goes on"
    grid = [*command[:2], f"--workdir={tmp_path}/grid", "--seeds=1,2"]
    for status, remarks in ((0, ["remark"]), (1, [])):  # the last line of a failure is about the failure
        monkeypatch.setattr("bertlab.studies.sweep.sweep", lambda *_, status=status: status)
        assert said(grid, status) == remarks

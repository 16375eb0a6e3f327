"""The command line: every command has its module, and one that needs no JAX imports none."""

import importlib
import subprocess
import sys

import pytest

from bertlab.cli import main as cli
from bertlab.cli.keys import read_keys
from bertlab.config.defaults import DEFAULTS
from bertlab.config.load import flatten
from bertlab.transfer.finetune import TRANSFER
from bertlab.transfer.tasks.base import TASK_DATA


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_a_page_of_help(name, capsys):
    module = importlib.import_module(f"bertlab.cli.{cli.MODULES.get(name, name)}")
    assert callable(module.run)
    with pytest.raises(SystemExit) as status:
        cli.main([name, "--help"])
    assert status.value.code == 0 and f"bertlab {name}" in capsys.readouterr().out


def test_keys_lists_the_tree_of_defaults_without_jax():
    listed = {name: meaning for name, _, meaning in read_keys()}
    groups = [flatten(DEFAULTS), flatten(TRANSFER, "transfer."), flatten(TASK_DATA, "task_data.")]
    expected = {name for group in groups for name in group if "pretraining" not in name}
    assert listed.keys() == expected | {"task_data.pretraining"} and all(listed.values())
    code = (
        "import sys; from bertlab.cli.main import main; main(['keys', 'optimizer.b']);"
        "assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line.split("\t")[:2] for line in done.stdout.splitlines()][:2] == [
        ["optimizer.b1", "0.9"],
        ["optimizer.b2", "0.999"],
    ]


def test_a_mistake_is_one_sentence_and_status_2(tmp_path, capsys):
    arguments = ["train", f"--workdir={tmp_path}/x", "--config=nowhere.py"]
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.startswith("bertlab train: nowhere.py is neither here nor")
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--steps=3"])
    assert "unknown argument --steps=3" in capsys.readouterr().err


def test_init_copies_the_project_once(tmp_path):
    assert cli.main(["init", str(tmp_path / "mine")]) == 0
    assert {"config.py", "objective.py", "README.md"} <= {
        path.name for path in (tmp_path / "mine").iterdir()
    }
    with pytest.raises(FileExistsError):
        cli.main(["init", str(tmp_path / "mine")])

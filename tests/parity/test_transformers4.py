"""Exports with modeling_bertlab.py open in transformers 4.51.3, which BabyLM's evaluation pipeline pins, and compute the same.

`make parity` installs it in a folder of its own; a second Python, with that folder before the others, opens the exports.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertlab.interop import huggingface
from tests.interop import published

FOLDER = Path(__file__).parents[2] / ".venv-transformers4"

OPENED = """
import json, sys
import numpy as np, torch, transformers
shown = {name: torch.tensor(rows) for name, rows in json.load(sys.stdin).items()}
for directory in sys.argv[1:]:
    auto = transformers.AutoModelForMaskedLM
    model, info = auto.from_pretrained(directory, trust_remote_code=True, output_loading_info=True)
    assert not any(info.values()), info
    model.save_pretrained(directory + "-again")
    again = auto.from_pretrained(directory + "-again", trust_remote_code=True)
    with torch.no_grad():
        logits = [of.eval()(**shown).logits.numpy() for of in (model, again)]
    np.save(directory + ".npy", logits)
    for name in ("Model", "ModelForCausalLM", "ModelForSequenceClassification", "ModelForTokenClassification"):
        getattr(transformers, "Auto" + name).from_pretrained(directory, trust_remote_code=True)
print(transformers.__version__)
"""


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason="make parity installs transformers 4.51.3")
def test_exports_open_in_transformers_4(tmp_path):
    """The logits of padded rows, tied and not, as opened and as saved by transformers 4 again; all classes open."""
    view, expected = published.batch(), []
    view = {name: array[:2] for name, array in view.items()}
    for number, more in enumerate(({}, {"tied": False, "family": "gpt", "direction": "bidirectional"})):
        run = published.random_run(tmp_path / f"run{number}", pools=True, norm="rms_norm", **more)
        (tmp_path / f"out{number}").mkdir()
        huggingface.save(run, tmp_path / f"out{number}")
        expected.append(published.run(run, view)["logits"])
    given = {"input_ids": view["tokens"], "token_type_ids": view["segments"], "attention_mask": view["documents"] > 0}
    environment = {**os.environ, "PYTHONPATH": str(FOLDER), "HF_MODULES_CACHE": str(tmp_path / "modules")}
    ran = subprocess.run(
        [sys.executable, "-c", OPENED, *(str(tmp_path / f"out{number}") for number in range(2))],
        input=json.dumps({name: rows.astype(int).tolist() for name, rows in given.items()}),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["4.51.3"]
    real = view["documents"] > 0
    for number, logits in enumerate(expected):
        for found in np.load(tmp_path / f"out{number}.npy"):
            np.testing.assert_allclose(found[real], logits[real], rtol=0, atol=1e-5)

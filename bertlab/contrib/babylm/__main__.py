"""Scores a run on BabyLM's zero-shot tasks, and adds the scores to its evaluation.json.

python -m bertlab.contrib.babylm --run=runs/bert --data=evaluation_data/full_eval
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bertlab.contrib.babylm import reading, zero_shot
from bertlab.errors import UserError
from bertlab.evals.code_length import Scorer
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.load import load

KINDS = ("left-to-right", "pseudo", "pseudo-within-word", "any-order")
"""The kinds of score that can score the end of a text given its beginning."""


def evaluate(
    run: str | Path, data: Path, kinds: Sequence[str] = (), limit: int = 0, step: int | None = None
) -> dict[str, float | None]:
    """The scores of every task whose files are there, as shares.

    Args:
        run: Directory of a run or an import.
        data: The folder full_eval or fast_eval of BabyLM's evaluation data.
        kinds: Some of KINDS; (): all that the model allows, bounds only if it allows nothing else.
        limit: Items per paradigm, at most; 0: all. Reading times are always read whole.
        step: The checkpoint's step; None: the last.

    Returns:
        TASK/KIND -> score, with its standard_error/, items/, ties/ and cut/ where there are any.
    """
    items = {name: zero_shot.read_items(data, s, limit) for name, s in zero_shot.SUITES.items()}
    items = {name: asked for name, asked in items.items() if asked}
    table_path = data / reading.READING
    table = reading.read_reading(table_path) if table_path.is_file() else None
    if not items and table is None:
        folders = ", ".join(name for suite in zero_shot.SUITES.values() for name in suite.folders)
        raise UserError(f"--data={data} has none of {folders}, {reading.READING}")
    model = load(run, step)
    scorer = Scorer(model)
    scorer.check_kind()
    allowed = [kind for kind in scorer.kinds if kind in KINDS]
    kinds = kinds or [kind for kind in allowed if kind != "any-order"] or allowed or [None]
    found = {}
    for kind in kinds:
        if scorer.check_kind(kind) not in KINDS:
            raise UserError(f"this model cannot score a text's end; that needs {', '.join(KINDS)}")
        for name, asked in items.items():
            values, cut = zero_shot.answer_scores(scorer, asked, kind)
            judged = zero_shot.SUITES[name].judge(asked, values)
            found[f"{name}/{kind}"] = judged.pop("score")
            judged |= {"items": len(asked), "cut": cut}
            found |= {f"{key}/{name}/{kind}": value for key, value in judged.items()}
        # Only the next of several hidden pieces is asked for, so the pseudo kinds are one.
        if table is not None and kind in reading.KINDS and not reads_characters(model):
            scored = reading.with_surprisals(scorer, table, kind)
            found[f"reading_eye_tracking/{kind}"] = reading.eye_tracking(scored)
            found[f"reading_self_paced/{kind}"] = reading.self_paced(scored)
    directory, name = RunDirectory(run), "evaluation" if step is None else f"evaluation-{step}"
    before = directory.read(name, {})
    directory.write(name, before | {"babylm": before.get("babylm", {}) | found})
    return found


def reads_characters(model) -> bool:
    """Whether a model reads words by their characters, so that no piece can be appended."""
    return model.config.model.token_encoder == "characters"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, help="directory of a run or an import")
    parser.add_argument("--data", required=True, type=Path, help="folder full_eval or fast_eval")
    parser.add_argument("--kinds", default="", help=f"some of {', '.join(KINDS)}, comma-separated")
    parser.add_argument("--limit", type=int, default=0, help="items per paradigm, at most")
    parser.add_argument("--step", type=int, help="the checkpoint's step (default: the last one)")
    given = parser.parse_args(arguments)
    kinds = [kind for kind in given.kinds.split(",") if kind]
    try:
        found = evaluate(given.run, given.data, kinds, given.limit, given.step)
    except UserError as error:
        parser.error(str(error))
    print(f"{'%, accuracy, ρ or variance explained':44}  score   s.e.  items   ties    cut")
    for name, score in found.items():
        if not name.startswith(("standard_error/", "items/", "ties/", "cut/")):
            error = found.get(f"standard_error/{name}")
            error = "–" if error is None else f"{100 * error:.1f}"
            counts = (found.get(f"{key}/{name}", 0) for key in ("items", "ties", "cut"))
            counts = "".join(f"{count:7,}" for count in counts)
            print(f"{name:44} {100 * score:6.2f} {error:>6}{counts}")


if __name__ == "__main__":
    main()

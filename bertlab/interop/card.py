"""The README.md of an export: what the model is, what it read, its scores and its config, all from the run's own files."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertlab.data.tokenizers import Tokenizer
from bertlab.files import write_text
from bertlab.objectives.base import Scoring
from bertlab.run import BOUNDS, Run

# Ends of names in a config.json's architectures, and the classes that open them.
_AUTO = {
    "ForMaskedLM": "AutoModelForMaskedLM",
    **dict.fromkeys(("ForCausalLM", "LMHeadModel"), "AutoModelForCausalLM"),
    "ForPreTraining": "AutoModelForPreTraining",
    "ForNextSentencePrediction": "AutoModelForNextSentencePrediction",
}
_MASKED, _CAUSAL = "AutoModelForMaskedLM", "AutoModelForCausalLM"

# Of each way to predict tokens: the class that does so, what its logits are, and BabyLM's back end.
_NEXT = "the logits at a position are of the next token, given those up to the position"
_PREDICTS = {
    "forward": (_CAUSAL, _NEXT, "causal"),
    "in order": (_CAUSAL, _NEXT, "causal"),
    "backward": (_CAUSAL, "the logits at a position are of the token before it, given those from the position on", ""),
    "at the mask": (_MASKED, "the logits at a [MASK] are of the token in its place", "mlm"),
    "before the mask": (_MASKED, "the logits one position before a [MASK] are of the token in the [MASK]'s place", "mntp"),
}


def write_card(
    run: Run,
    config: ConfigDict,
    tokenizer: Tokenizer,
    parameters: int,
    scorings: Mapping[str, Scoring],
    directory: Path,
    step: int | None = None,
) -> None:
    """Writes README.md in the form of the Hugging Face Hub's model cards.

    Args:
        run: the exported run; a file that it does not have leaves out its lines.
        config, tokenizer: the run's.
        parameters: how many numbers the model has.
        scorings: how each trained objective predicts tokens, by name.
        directory: the export.
        step: of the checkpoint, None the last one; scores and costs are those of this step.
    """
    model, names = config.model, "+".join(config.objectives)
    of = f" trained with {names}" if names else ""
    described = f"A model of family `{model.family}`, size `{model.size}`,{of} by bertlab; {parameters:,} parameters."
    if config.get("task"):
        described += " The scores below need the task's head, which is not in this export."
    at = _step_of(run, step)
    scores = [*_scores(run, at, step)]
    parts = [
        "\n".join(["---", *_front(directory), f"tags: [{', '.join(['bertlab', model.family, *config.objectives])}]", "---"]),
        f"# {model.family} {model.size} {names}".rstrip(),
        described,
        _use(directory, scorings, model.get("output_bias", True)),
        "## Training\n\n" + _table(("", ""), _facts(run, config, tokenizer, at)),
        "## Scores\n\n" + _table(("Of", "Split", "Metric", "Value"), scores) if scores else "",
        "≤ stands before an upper bound of a code length: the model's own is not known." if _is_bounded(scores) else "",
        f"## Config\n\n```json\n{json.dumps(config.to_dict(), indent=2)}\n```",
    ]
    write_text(directory / "README.md", "\n\n".join(filter(None, parts)) + "\n")


def _front(directory: Path) -> list[str]:
    return ["library_name: transformers"] if (directory / "tokenizer_config.json").exists() else []


def _use(directory: Path, scorings: Mapping[str, Scoring], has_bias: bool) -> str:
    """How to open a directory of transformers, and what its classes predict; "" for other formats."""
    if not (directory / "tokenizer_config.json").exists():
        return ""
    trust = ", trust_remote_code=True" if (directory / "modeling_bertlab.py").exists() else ""
    of_code = "`modeling_bertlab.py` in this directory is the model's code, for transformers 4.51 or newer"
    remark = f"\n\n{of_code}; read it before you trust it." if trust else ""
    auto = _auto_class(directory, scorings)
    code = f'AutoTokenizer.from_pretrained("DIRECTORY"{trust})\nmodel = {auto}.from_pretrained("DIRECTORY"{trust})'
    use = f"## Use\n\n```python\nfrom transformers import {auto}, AutoTokenizer\n\ntokenizer = {code}\n```{remark}"
    predicts = "\n".join(f"- {line}" for line in _predictions(scorings, has_bias))
    return use + (f"\n\n## How it predicts\n\n{predicts}" if predicts else "")


def _auto_class(directory: Path, scorings: Mapping[str, Scoring]) -> str:
    """The class of config.json's `architectures`, or AutoModel if that one does not predict as the model was trained to."""
    (architecture,) = json.loads((directory / "config.json").read_text())["architectures"]
    auto = next((auto for end, auto in _AUTO.items() if architecture.endswith(end)), "AutoModel")
    learned = {_PREDICTS[way][0] for scoring in scorings.values() for way in scoring.ways if way in _PREDICTS}
    return "AutoModel" if auto in (_MASKED, _CAUSAL) and scorings and auto not in learned else auto


def _predictions(scorings: Mapping[str, Scoring], has_bias: bool) -> Iterator[str]:
    """A line for each way in which the model predicts tokens, and for what it was not trained for."""
    ways = dict.fromkeys(way for scoring in scorings.values() for way in scoring.ways)
    for way in ways:
        if way in _PREDICTS:
            auto, logits, back_end = _PREDICTS[way]
            yield f"`{auto}`: {logits}" + (f" (BabyLM's back end `{back_end}`)." if back_end else ".")
        else:
            yield "No class of transformers asks it for hidden tokens as its training did; `bertlab evaluate` does."
    if ways and "at the mask" not in ways:
        yield '`pipeline("fill-mask")` gives wrong answers: no training asked for a token at its own [MASK].'
    for name, scoring in scorings.items():
        yield from (f"`{name}`: {said}." for said in (scoring.lacks, scoring.differs) if said)
        if scoring.never_mask and not has_bias:
            yield f"`{name}` gives [MASK] probability 0; without a bias in the output layer, these classes do not."


def _step_of(run: Run, step: int | None) -> int:
    """The step of the exported weights; without one, the last checkpoint's."""
    return step if step is not None else run.result.get({}).get("step", max(run.steps(), default=0))


def _last(run: Run, at: int) -> dict[str, Any]:
    """The run's result, if the step is its last one."""
    result = run.result.get({})
    return result if at == result.get("step") else {}


def _facts(run: Run, config: ConfigDict, tokenizer: Tokenizer, at: int) -> list[tuple]:
    """What was read, and what it cost."""
    lines, result = run.metrics.read(), run.result.get()
    of_step = [run.costs.get({}).get(str(at), {}), *(line for line in lines if line["step"] == at), _last(run, at)]
    found = {name: of[name] for of in of_step for name in ("tokens", "flops", "data_hash") if name in of}
    corpus, imported = run.data.get({}).get("corpus", {}), run.imported.get({})
    versions = run.environment.get({}).get("versions", {})
    facts = {
        "step": at if lines or result else None,
        "the run": f"unfinished: {at:,} of {config.train.steps:,} steps" if lines and result is None else None,
        "tokens": found.get("tokens"),
        "FLOPs": f"{found['flops']:.3g}" if "flops" in found else None,
        "hash of the batches (`data_hash`)": found.get("data_hash"),
        "corpus": config.data.get("corpus") if lines else None,
        "fine-tuned on": config.get("task"),
        "fingerprint of the prepared corpus": corpus.get("fingerprint"),
        "tokenizer": f"{tokenizer.kind}, {tokenizer.vocab_size:,} pieces",
        "seed": config.seed if lines else None,
        "imported from": f"{imported['from']}: {Path(imported['source']).name}" if imported else None,
        "bertlab": versions.get("bertlab"),
    }
    return [(name, f"{value:,}" if isinstance(value, int) else value) for name, value in facts.items() if value is not None]


def _scores(run: Run, at: int, step: int | None) -> Iterator[tuple]:
    """(what, split, metric, value): of the objectives, of each fine-tuning, and of `bertlab evaluate`.

    Args:
        run: the exported run.
        at: the step of the weights.
        step: as it was asked for; None: the last.
    """
    last = _last(run, at)
    by_split = last.get("metrics", {})
    if not last:
        by_split = {line["split"]: line for line in run.metrics.read() if line["step"] == at}
    yield from _of_splits(by_split)
    for task in run.tasks("finetune") if last else ():
        yield from _of_splits(run.stage("finetune", task).result.get({}).get("metrics", {}))
    for measure, sources in run.evaluation_at(step).get({}).items():
        for source, kinds in sources.items():
            for kind, entry in kinds.items():
                value = next(entry[name] for name in ("value", "accuracy", "score") if name in entry)
                bound = "≤ " if measure == "bits_per_byte" and kind in BOUNDS else ""
                yield f"{measure.replace('_', ' ')} ({kind})", Path(source).name, "mean", bound + _rounded(value)


def _is_bounded(scores: list[tuple]) -> bool:
    return any(value.startswith("≤") for *_, value in scores)


def _of_splits(by_split: dict[str, dict[str, Any]]) -> Iterator[tuple]:
    for split, values in by_split.items():
        for name, value in values.items() if split != "train" else ():
            what, _, metric = name.partition("/")
            if metric and isinstance(value, int | float) and math.isfinite(value):
                yield what, split, metric, _rounded(value)


def _rounded(value: float) -> str:
    return f"{value:.4g}"


def _table(head: tuple, rows: list[tuple]) -> str:
    line = lambda cells: f"| {' | '.join(map(str, cells))} |"
    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])

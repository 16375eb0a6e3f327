"""The README.md of an export: what the model is, what it read, its scores and its config, all from the run's own files."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertlab.data.tokenizers import Tokenizer
from bertlab.files import write_text
from bertlab.run import Run


def write_card(
    run: Run, config: ConfigDict, tokenizer: Tokenizer, parameters: int, directory: Path, step: int | None = None
) -> None:
    """Writes README.md in the form of the Hugging Face Hub's model cards.

    Args:
        run: the exported run; a file that it does not have leaves out its lines.
        config, tokenizer: the run's.
        parameters: how many numbers the model has.
        directory: the export.
        step: of the checkpoint, None the last one; scores and costs are those of this step.
    """
    model, names = config.model, "+".join(config.objectives)
    of = f" trained with {names}" if names else ""
    described = f"A model of family `{model.family}`, size `{model.size}`,{of} by bertlab; {parameters:,} parameters."
    scores = [*_scores(run, step)]
    parts = [
        "\n".join(["---", *_front(directory), f"tags: [{', '.join(['bertlab', model.family, *config.objectives])}]", "---"]),
        f"# {model.family} {model.size} {names}".rstrip(),
        described,
        _use(directory),
        "## Training\n\n" + _table(("", ""), _facts(run, config, tokenizer, step)),
        "## Scores\n\n" + _table(("Of", "Split", "Metric", "Value"), scores) if scores else "",
        f"## Config\n\n```json\n{json.dumps(config.to_dict(), indent=2)}\n```",
    ]
    write_text(directory / "README.md", "\n\n".join(filter(None, parts)) + "\n")


def _front(directory: Path) -> list[str]:
    return ["library_name: transformers"] if (directory / "tokenizer_config.json").exists() else []


def _use(directory: Path) -> str:
    """How to open a directory of transformers; "" for other formats."""
    if not (directory / "tokenizer_config.json").exists():
        return ""
    trust = ", trust_remote_code=True" if (directory / "modeling_bertlab.py").exists() else ""
    of_code = "`modeling_bertlab.py` in this directory is the model's code, for transformers 4.51 or newer"
    remark = f"\n\n{of_code}; read it before you trust it." if trust else ""
    code = f'AutoTokenizer.from_pretrained("DIRECTORY"{trust})\nmodel = AutoModel.from_pretrained("DIRECTORY"{trust})'
    return f"## Use\n\n```python\nfrom transformers import AutoModel, AutoTokenizer\n\ntokenizer = {code}\n```{remark}"


def _last(run: Run, step: int | None) -> dict[str, Any]:
    """The run's result, if the step is its last one."""
    result = run.result.get({})
    return result if step in (None, result.get("step")) else {}


def _facts(run: Run, config: ConfigDict, tokenizer: Tokenizer, step: int | None) -> list[tuple]:
    """What was read, and what it cost."""
    lines = run.metrics.read()
    at = _last(run, step).get("step", step) or run.metrics.last_step()
    found: dict[str, Any] = {}
    for line in (line for line in lines if line["step"] == at):
        found |= {name: line[name] for name in ("tokens", "flops", "data_hash") if name in line}
    found |= {name: value for name, value in _last(run, step).items() if name in ("tokens", "flops", "data_hash")}
    corpus, imported = run.data.get({}).get("corpus", {}), run.imported.get({})
    versions = run.environment.get({}).get("versions", {})
    facts = {
        "step": at if lines or _last(run, step) else None,
        "tokens": found.get("tokens"),
        "FLOPs": f"{found['flops']:.3g}" if "flops" in found else None,
        "hash of the batches (`data_hash`)": found.get("data_hash"),
        "corpus": config.data.corpus if lines else None,
        "fingerprint of the prepared corpus": corpus.get("fingerprint"),
        "tokenizer": f"{tokenizer.kind}, {tokenizer.vocab_size:,} pieces",
        "seed": config.seed if lines else None,
        "imported from": f"{imported['from']}: {Path(imported['source']).name}" if imported else None,
        "bertlab": versions.get("bertlab"),
    }
    return [(name, f"{value:,}" if isinstance(value, int) else value) for name, value in facts.items() if value is not None]


def _scores(run: Run, step: int | None) -> Iterator[tuple]:
    """(what, split, metric, value): of the objectives, of each fine-tuning, and of `bertlab evaluate`."""
    last = _last(run, step)
    by_split = last.get("metrics", {})
    if not last:
        by_split = {line["split"]: line for line in run.metrics.read() if line["step"] == step}
    yield from _of_splits(by_split)
    for task in run.tasks("finetune") if last else ():
        yield from _of_splits(run.stage("finetune", task).result.get({}).get("metrics", {}))
    for measure, sources in run.evaluation_at(step).get({}).items():
        for source, kinds in sources.items():
            for kind, entry in kinds.items():
                value = next(entry[name] for name in ("value", "accuracy", "score") if name in entry)
                yield f"{measure.replace('_', ' ')} ({kind})", Path(source).name, "mean", _rounded(value)


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

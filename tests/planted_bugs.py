"""Plants twenty bugs, one at a time, in a copy of this checkout, and says whether the tests notice.

    python tests/planted_bugs.py [NUMBER ...]

Exit status 1 if a bug goes unnoticed, or if the text that it replaces does not occur exactly once.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Bug(NamedTuple):
    """A replacement in a file of the package, and the tests that must fail after it."""

    file: str
    old: str
    new: str
    tests: str


BUGS = (
    Bug(  # a masked token can be [CLS]
        "objectives/base.py",
        "(tokens == self.pad_id) | (tokens == self.cls_id) | (tokens == self.sep_id)",
        "(tokens == self.pad_id) | (tokens == self.sep_id)",
        "objectives/test_masked.py",
    ),
    Bug(  # shares of random and kept tokens change places
        "objectives/masked.py",
        "jnp.where(fate < self.mask_share + self.random_share, changed, labels)",
        "jnp.where(fate < 1 - self.random_share, changed, labels)",
        "objectives/test_masked.py",
    ),
    Bug(  # a left-to-right model predicts across documents
        "objectives/autoregressive.py",
        "same = (jnp.roll(documents, step, axis=1) == documents) & (documents > 0)",
        "same = documents > 0",
        "objectives/test_autoregressive.py",
    ),
    Bug(  # a query of permutation sees its own token
        "objectives/permutation.py",
        '{**queries, "order": rank - 1}',
        '{**queries, "order": rank}',
        "objectives/test_orders.py",
    ),
    Bug(  # replaced and original change places
        "objectives/electra.py",
        "detection(model.head.discriminate(hidden), tokens != original, asked)",
        "detection(model.head.discriminate(hidden), tokens == original, asked)",
        "objectives/test_electra.py",
    ),
    Bug(  # what is wrong counts as right
        "objectives/base.py",
        "right = (label_logit == top) / (logits == top[..., None]).sum(axis=-1)",
        "right = label_logit < top",
        "objectives/test_masked.py",
    ),
    Bug(  # scores are divided by the width, not its root
        "models/attention.py",
        "scores = scores / query.shape[-1] ** 0.5",
        "scores = scores / query.shape[-1]",
        "models/test_transformer.py",
    ),
    Bug(  # a random B is the next sentence
        "data/formats/pairs.py",
        "first = chain(np.where(has_random, split, end))",
        "first = chain(end)",
        "data/test_pairs.py",
    ),
    Bug(  # all of a tie is taken from A
        "data/formats/pairs.py",
        "from_a = from_both // 2 + from_longer * is_a_longer",
        "from_a = from_both + from_longer * is_a_longer",
        "data/test_pairs.py",
    ),
    Bug(  # a separator is not counted
        "data/formats/sentences.py",
        "limit = text.bounds[:-1] + separator * borders[1:] + room",
        "limit = text.bounds[:-1] + separator * borders[1:] + room + 1",
        "data/test_sentences.py",
    ),
    Bug(  # all processes read the same rows
        "data/batches.py",
        "first = step * self._data.batch_size + index * share",
        "first = step * self._data.batch_size + 0 * index * share",
        "data/test_batches.py contracts/test_batches.py",
    ),
    Bug(  # an example's number is not in its id
        "data/batches.py",
        "number = np.where(is_example, group.first_number + number, 0).astype(np.int32)",
        "number = np.where(is_example, group.first_number, 0).astype(np.int32)",
        "data/test_batches.py",
    ),
    Bug(  # the step's randomness is the same at every step
        "train/state.py",
        "step_key = jax.random.fold_in(jax.random.key(seed), state.step)",
        "step_key = jax.random.fold_in(jax.random.key(seed), 0 * state.step)",
        "train/test_state.py",
    ),
    Bug(  # micro-batches weigh the same, whatever they predict
        "train/state.py",
        "if batch_metrics is not None:",
        "if batch_metrics is not None and False:",
        "train/test_state.py",
    ),
    Bug(  # dropout stays on in evaluation
        "objectives/program.py",
        'rngs = {} if key is None else {"dropout": key}',
        'rngs = {"dropout": jax.random.key(0) if key is None else key}',
        "train models objectives",
    ),
    Bug(  # warm-up is one step ahead
        "train/schedules.py",
        "rising = step / max(1, warmup)",
        "rising = (step + 1) / max(1, warmup)",
        "train/test_schedules.py",
    ),
    Bug(  # a CRF without scores of the last tag
        "transfer/crf.py",
        "reduce(last + scores.end, axis=-1)",
        "reduce(last, axis=-1)",
        "transfer/test_crf.py",
    ),
    Bug(  # a cut text is not counted
        "transfer/examples.py",
        "any_cut = int(any(lost for lost, _ in example.values()))",
        "any_cut = int(all(lost for lost, _ in example.values()))",
        "transfer/test_examples.py",
    ),
    Bug(  # a mean of ratios in place of a ratio of sums
        "evals/code_length.py",
        "value = sums.sum() / total",
        "value = (sums / weights).mean()",
        "evals",
    ),
    Bug(  # scores are paired by their order, not by their seed
        "studies/statistics.py",
        "differences = (first - second).dropna().to_numpy(float)",
        "differences = first.dropna().to_numpy(float) - second.dropna().to_numpy(float)",
        "studies/test_statistics.py",
    ),
)


def notices(bug: Bug, checkout: Path) -> bool:
    """Whether a test fails once the bug is in the checkout, which is as before afterwards."""
    file = checkout / "bertlab" / bug.file
    text = file.read_text(encoding="utf-8")
    if text.count(bug.old) != 1:
        print(f"{bug.file}: {bug.old!r} occurs {text.count(bug.old)} times")
        return False
    file.write_text(text.replace(bug.old, bug.new), encoding="utf-8")
    tests = [f"tests/{name}" for name in bug.tests.split()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", *tests]
    found = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    file.write_text(text, encoding="utf-8")
    failed = [line for line in found.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    print(f"{bug.file}: {bug.new}\n    {failed[0] if failed else 'NOT NOTICED'}", flush=True)
    return found.returncode == 1


def main() -> int:
    """Tries the bugs of these numbers, or all."""
    numbers = [int(number) for number in sys.argv[1:]] or range(len(BUGS))
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "runs")
        shutil.copytree(ROOT, checkout, ignore=ignored)
        missed = [number for number in numbers if not notices(BUGS[number], checkout)]
    print(f"missed: {missed or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

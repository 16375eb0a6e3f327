"""How loose the any-order bound of a code length is, on the synthetic language.

    python -m bertlab.contrib.looseness runs/mlm runs/ltr [--sentences=100]

For runs on `corpus=synthetic` with whole words, and sentences of at most ten of them, such as
`synthetic.sentence_words=(8,8)`. A sentence of T words has 2^T sets of visible words; all are
asked, so nothing is estimated. In nats per word, with standard errors over sentences:

    truth          −log p(x).
    bound          The mean over all orders of −log p_σ(x), above the truth.
    mixture        −log of the mean over all orders of p_σ(x), above the truth. A mean of
                   probabilities is one, so it is a code length of the same model.
    looseness      bound − mixture: what the bound loses of what the model knows.
    left to right  −log p_σ(x) of that order alone, above the truth; for a causal model too.

The exact conditionals ("the language") have one p_σ for all orders, by the chain rule, so their
bound is tight. The nats that `any-order` adds for the number of pieces are left out.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from bertlab.errors import UserError
from bertlab.evals import floors
from bertlab.evals.code_length import Scorer, ratio
from bertlab.evals.evaluate import find_prepared, language_of, short_sentences
from bertlab.evals.questions import Question, Text
from bertlab.evals.scoring import HIDDEN
from bertlab.objectives.base import Vocabulary
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.load import load

LONGEST = 10
"""Most words in a sentence."""


def of_orders(log_p: Float[np.ndarray, "2^T T"]) -> dict[str, float]:
    """−log p of a text by `bound`, `mixture` and `left to right`.

    Args:
        log_p: log p of each word, given the set of visible words, the bits of the row's number;
            visible words are ignored.
    """
    length = log_p.shape[1]
    visible = np.arange(len(log_p))[:, None] >> np.arange(length) & 1 == 1
    size = visible.sum(axis=1)
    weight = 1 / np.array([math.comb(length, k) * max(1, length - k) for k in size])
    bound = (weight[:, None] * np.where(visible, 0.0, log_p)).sum()
    sums = np.full(len(log_p), -np.inf)  # log of the sum over the orders of a set
    sums[0] = 0.0
    for words in range(1, len(log_p)):
        last = np.flatnonzero(visible[words])
        before = words - (1 << last)
        sums[words] = np.logaddexp.reduce(sums[before] + log_p[before, last])
    forward = log_p[(1 << np.arange(length)) - 1, np.arange(length)].sum()
    mixture = sums[-1] - math.lgamma(length + 1)
    return {"bound": -bound, "mixture": -mixture, "left to right": -forward}


def all_sets(number: int, text: Text) -> Iterator[Question]:
    """A question for each set of visible pieces, in the order of `of_orders`."""
    for words in range(1 << len(text.pieces)):
        visible = words >> np.arange(len(text.pieces)) & 1 == 1
        ranks = np.zeros(len(text.tokens), np.int32)
        ranks[text.pieces[~visible]] = HIDDEN
        yield Question(number, text.pieces, ranks)


def model_answers(scorer: Scorer, texts: Sequence[Text]) -> Iterator[Float[np.ndarray, "2^T T"]]:
    """log p of each text's pieces by a model that predicts hidden ones."""
    for text in texts:
        questions = list(all_sets(0, text))
        yield np.stack(scorer.answerers["hidden"](scorer.params, [text], questions))


def exact_answers(
    chain: floors.Chain, vocabulary: Vocabulary, texts: Sequence[Text]
) -> Iterator[Float[np.ndarray, "2^T T"]]:
    """log p of each text's words by the language itself."""
    for text in texts:
        length = len(text.tokens)
        batch = {"tokens": text.tokens[None], "documents": np.ones((1, length), int)}
        batch["segments"] = np.zeros((1, length), int)
        oracle = floors.Oracle(chain, batch, vocabulary, {"follows": 1.0})
        sets = np.stack([question.ranks == 0 for question in all_sets(0, text)])
        seen = np.repeat(sets, len(text.pieces), axis=0)[None]
        target = np.tile(text.pieces, len(sets))[None]
        nats = oracle.visible(target, seen).reshape(len(sets), -1)
        yield -np.where(sets[:, text.pieces], 0.0, nats)


def looseness(directory: str | Path, sentences: int, exact: bool = True) -> pd.DataFrame:
    """(Nats per word, standard error): rows of a run and, if `exact`, of the language."""
    model = load(directory)
    scorer, data, name = Scorer(model), model.config.data, Path(directory).name
    prepared = find_prepared(data, RunDirectory(directory).read("data")["fingerprint"])
    chain = language_of(model, prepared)
    texts = short_sentences(prepared, model, sentences)
    words = np.array([len(text.pieces) for text in texts], float)
    if words.max() > LONGEST:
        raise UserError(f"{directory} has sentences of {words.max():g} words, above {LONGEST}")
    truth = np.array([-floors.log_probability(chain, text.tokens[text.pieces]) for text in texts])
    rows = {}
    if exact:
        answers = exact_answers(chain, model.program.vocabulary, texts)
        rows["the language"] = map(of_orders, answers)
    if "any-order" in scorer.kinds and not scorer.answerers["hidden"].how.in_order:
        rows[name] = map(of_orders, model_answers(scorer, texts))
    if "left-to-right" in scorer.kinds:
        nats = -scorer.score(texts, "left-to-right", special=False).log_probability
        rows[f"{name}, causal"] = [{"left to right": value} for value in nats]
    table = {}
    for row, sums in rows.items():
        above = pd.DataFrame(sums).sub(truth, axis=0)
        if "bound" in above:
            above["looseness"] = above["bound"] - above["mixture"]
        table[row] = {column: ratio(above[column].to_numpy(), words) for column in above}
    if exact:
        table["the language"]["truth"] = ratio(truth, words)
    return pd.DataFrame(table).T


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table of some runs."""
    parser = argparse.ArgumentParser(prog="python -m bertlab.contrib.looseness")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--sentences", type=int, default=100)
    parsed = parser.parse_args(arguments)
    tables = [looseness(run, parsed.sentences, exact=run == parsed.runs[0]) for run in parsed.runs]
    cells = pd.concat(tables).map("{0[0]:.3f} ± {0[1]:.3f}".format, na_action="ignore")
    print(cells.fillna("").to_string())


if __name__ == "__main__":
    main()

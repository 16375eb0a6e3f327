"""BabyLM's tasks score as its pipeline's rules do, in PyTorch on exported random models."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
import transformers

from bertlab.contrib.babylm.__main__ import evaluate
from bertlab.contrib.babylm.reading import EYE_TRACKING
from bertlab.data.tokenizers.wordpiece import WordPieceTokenizer
from bertlab.interop import huggingface
from bertlab.interop.base import save_model
from tests.interop.published import SPECIALS, VOCAB, random_model
from tests.transfer.tasks.test_published import lines, publish

WORDS = ["a", "bad", "cab", "ab", "face", "d", "deed", "aa", "bee"]
BACKENDS = {
    "mlm": ("pseudo", {}),
    "masked_next_token": ("pseudo", {"norm_placement": "pre"}),
    "ltr": ("left-to-right", {"direction": "left-to-right"}),
}


class Reference:
    """An exported model, as the pipeline opens it."""

    def __init__(self, directory, objective):
        self.objective = objective
        name = {"ltr": "AutoModelForCausalLM"}.get(objective, "AutoModelForMaskedLM")
        options = {"trust_remote_code": True}
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **options)
        self.model = getattr(transformers, name).from_pretrained(directory, **options).eval()

    def log_p(self, ids):
        with torch.no_grad():
            return torch.log_softmax(self.model(input_ids=torch.tensor([ids])).logits[0], -1)

    def completion(self, sentence, completion):
        """Σ log p of the tokens that end after the first character of the completion."""
        encoded = self.tokenizer(sentence, return_offsets_mapping=True)
        ids, start = encoded["input_ids"], len(sentence) - len(completion)
        shift, total = int(self.objective != "mlm"), 0.0
        for index, (_, end) in enumerate(encoded["offset_mapping"]):
            if end <= start or index < shift:
                continue
            hidden = [*ids[:index], self.tokenizer.mask_token_id, *ids[index + 1 :]]
            visible = ids if self.objective == "ltr" else hidden
            total += self.log_p(visible)[index - shift, ids[index]].item()
        return total

    def surprisal(self, context, word):
        """−Σ log p of the word's tokens, each at the end, or at the first of three masks."""
        total, mask, before = 0.0, self.tokenizer.mask_token_id, []
        for token in self.tokenizer(word, add_special_tokens=False)["input_ids"]:
            *ids, closing = self.tokenizer(context)["input_ids"]
            ids += before
            if self.objective == "ltr":
                asked, index = [*ids, closing], -1
            else:
                asked, index = [*ids, *[mask] * 3, closing], len(ids) - (self.objective != "mlm")
            total -= self.log_p(asked)[index, token].item()
            before.append(token)
        return total


def files_of(rng):
    """Questions of random words, by file."""

    def text(words=3):
        return " ".join(rng.choice(WORDS, words)) + "."

    def pairs(number, **fields):
        both = ({"sentence_good": text(), "sentence_bad": text(4)} for _ in range(number))
        return lines(*({**pair, **fields} for pair in both))

    def targets(domain):
        names = {"Context1": 3, "Context2": 3, "Target1": 2, "Target2": 3}
        return {"Domain": domain} | {name: text(size) for name, size in names.items()}

    def boxes(numops):
        options = [f" {word} {text(1)}" for word in rng.choice(WORDS, 3, replace=False)]
        return {"input_prefix": text()[:-1], "options": options, "numops": numops}

    def property_of():
        names = ("prefix_acceptable", "prefix_unacceptable")
        return {name: text()[:-1] for name in names} | {"property_phrase": text()}

    def forms():
        return {"sentences": f"{text()}\t{text()}", "ratio": str(rng.random())}

    blimp = {f"blimp_filtered/{uid}": pairs(4, field="x", UID=uid) for uid in ("one", "two")}
    return blimp | {
        "supplement_filtered/hypernym": pairs(3),
        "supplement_filtered/turn": pairs(2),
        "ewok_filtered/p": lines(*(targets("p") for _ in range(4))),
        "entity_tracking/regular": lines(*map(boxes, (0, 0, 1, 2))),
        "entity_tracking/move_contents": lines(*map(boxes, (0, 1))),
        "comps/comps_base": lines(*(property_of() for _ in range(3))),
        "wug_past_tense/x": lines(*(forms() for _ in range(6))),
    }


def reading_table(rng, rows=36):
    table = pd.DataFrame({"item": [" ".join(rng.choice(WORDS, 2)) for _ in range(rows)]})
    table["word"] = [f" {word}" for word in rng.choice(WORDS, rows)]
    table.loc[[0, 9, 20], "item"] = "None"
    table["prev_item"], table["prev_word"] = table["item"].shift(), table["word"].shift()
    table.loc[table["item"] == "None", ["prev_item", "prev_word"]] = None
    numbers = ("self_paced_reading_time", "Subtlex_log10", "length", "context_length")
    for name in (*EYE_TRACKING, *numbers, "prev_length"):
        table[name] = 3 + rng.standard_normal(rows)
    table.loc[:1, "RTfirstfix"] = np.nan
    return table


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("full_eval"), np.random.default_rng(0)
    publish(folder, {f"{name}.jsonl": text for name, text in files_of(rng).items()})
    (folder / "reading").mkdir()
    reading_table(rng).to_csv(folder / "reading/reading_data.csv", index=False)
    return folder


def records(folder):
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield path.stem, json.loads(line)


def mean_over(groups):
    """Share of questions whose first answer is the best, the mean over groups."""
    right = {}
    for name, values in groups:
        right.setdefault(name, []).append(np.argmax(values) == 0)
    return {name: np.mean(of) for name, of in right.items()}


def expected_scores(data, p):
    """The pipeline's numbers, by its own rules; p: (sentence, completion) -> log p."""

    def both(r):
        return [p(r[name], r[name]) for name in ("sentence_good", "sentence_bad")]

    def phrases(r):
        names = ("prefix_acceptable", "prefix_unacceptable")
        return [p(f"{r[n]} {r['property_phrase']}", r["property_phrase"]) for n in names]

    found = {"blimp": mean_over((r["UID"], both(r)) for _, r in records(data / "blimp_filtered"))}
    pairs = records(data / "supplement_filtered")
    found["blimp_supplement"] = mean_over((file, both(r)) for file, r in pairs)
    found["ewok"] = mean_over(
        (r["Domain"], [p(f"{r['Context1']} {r[n]}", f" {r[n]}") for n in ("Target1", "Target2")])
        for _, r in records(data / "ewok_filtered")
    )
    found["comps"] = mean_over((file, phrases(r)) for file, r in records(data / "comps"))
    tracking = mean_over(
        (f"{file}_{r['numops']}", [p(r["input_prefix"] + o, o) for o in r["options"]])
        for file, r in records(data / "entity_tracking")
    )
    found["entity_tracking"] = {
        name: np.mean([v for k, v in tracking.items() if k.startswith(name)])
        for name in ("regular", "move_contents")
    }
    scores = {name: float(np.mean(list(of.values()))) for name, of in found.items()}
    wugs = [(r["sentences"].split("\t"), r["ratio"]) for _, r in records(data / "wug_past_tense")]
    chosen = [p(a, a) - p(b, b) for (a, b), _ in wugs]
    scores["wug_past"] = scipy.stats.spearmanr(chosen, [float(ratio) for _, ratio in wugs])[0]
    return scores


def variance_explained(table, outcome, controls):
    """R² beyond the controls, by least squares on columns as they are."""
    rows = table[[outcome, *controls, "pred"]].dropna().to_numpy().T
    y, *columns, pred = rows
    pairs = [a * b for i, a in enumerate(columns) for b in columns[i + 1 :]]
    base, squares = np.stack([np.ones_like(y), *columns, *pairs], 1), []
    for x in (base, np.column_stack([base, pred])):
        left = y - x @ np.linalg.lstsq(x, y)[0]
        squares.append(1 - (left**2).sum() / ((y - y.mean()) ** 2).sum())
    return (squares[1] - squares[0]) / (1 - squares[0])


@pytest.mark.parametrize("objective", BACKENDS)
def test_every_task_scores_as_in_the_pipeline(objective, data, tmp_path):
    kind, settings = BACKENDS[objective]
    model = random_model(tmp_path / "tokenizer", objectives=objective, **settings)
    pieces = [*SPECIALS, "[MASK]", *"abcdef.", "##a", "##b", "##c", "##d", "##e", "##f", "bad"]
    pieces = list(dict.fromkeys([*pieces, *(f"x{i}" for i in range(VOCAB))]))[:VOCAB]
    model = dataclasses.replace(model, tokenizer=WordPieceTokenizer(pieces, False))
    save_model(model, tmp_path / "run", {})
    (tmp_path / "out").mkdir()
    huggingface.save(model, tmp_path / "out")
    found = evaluate(tmp_path / "run", data, [kind])
    reference = Reference(tmp_path / "out", objective)
    for name, value in expected_scores(data, reference.completion).items():
        assert found[f"{name}/{kind}"] == pytest.approx(value, abs=1e-9), name
    table = pd.read_csv(data / "reading/reading_data.csv")
    table["item"] = table["item"].fillna("None")
    for name, source in (("pred", ("item", "word")), ("prev_pred", ("prev_item", "prev_word"))):
        asked = zip(*(table[column] for column in source))
        table[name] = [reference.surprisal(*x) if isinstance(x[0], str) else np.nan for x in asked]
    own = ["Subtlex_log10", "length", "context_length"]
    eyes = np.mean([variance_explained(table, outcome, own) for outcome in EYE_TRACKING])
    after = [*own, "prev_length", "prev_pred"]
    spillover = variance_explained(table, "self_paced_reading_time", after)
    np.testing.assert_allclose(found[f"reading_eye_tracking/{kind}"], eyes, rtol=1e-3)
    np.testing.assert_allclose(found[f"reading_self_paced/{kind}"], spillover, rtol=1e-3)

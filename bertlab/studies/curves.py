"""The learning curves of a study: whose are drawn, which variants share one, and which variants were not pretrained."""

import pandas as pd

from bertlab.studies.measurements import Results, cost


def curves(results: Results) -> pd.DataFrame:
    """`Results.metrics` of finished runs (all runs of a variant without a finished one), each pretraining under one variant."""
    finished = results.finished
    kept = results.metrics[results.metrics["run"].isin(finished["run"]) | ~results.metrics["variant"].isin(finished["variant"])]
    return kept[~kept["variant"].isin(shared_curves(results))]


def shared_curves(results: Results) -> dict[str, str]:
    """Variants whose pretrainings all belong to one other variant that is drawn -> that variant; the curves are the same.

    Variants that start from random values are not among them.
    """
    variant_of = results.runs.set_index("run")["variant"]
    owners = {run["name"]: run.get("shares", {}).get("pretrain", run["name"]) for run in results.study["runs"]}
    stands_for = {owner: name for name, owner in reversed(owners.items())} | {name: name for name in owners}
    owners = {name: stands_for[owner] for name, owner in owners.items()}  # a candidate for a rate is no run of the study
    finished = trained_runs(results)
    found = {}
    for variant, runs in finished.groupby("variant", sort=False):
        of = {owners[name] for name in runs["run"]}
        drawn = set(finished["run"]) & of
        if drawn == of and not of & set(runs["run"]) and len(others := set(variant_of[list(of)])) == 1:
            found[variant] = others.pop()
    return found


def untrained(results: Results) -> list[str]:
    """The variants whose finished runs took no pretraining step."""
    steps = results.values(cost("step")).loc[results.finished["run"]]
    most = steps.groupby(results.finished["variant"].to_numpy(), sort=False).max()
    return list(most[most == 0].index)


def trained_runs(results: Results) -> pd.DataFrame:
    """The finished runs that took a pretraining step."""
    finished = results.finished
    return finished[(results.values(cost("step")).loc[finished["run"]] > 0).to_numpy()]

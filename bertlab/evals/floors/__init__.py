"""Exact floors: the loss of the best possible model on the synthetic language
(bertlab/data/corpora/synthetic.py), a hidden Markov chain with a topic for each document.

`chain` infers its states, `oracle` is the best possible model, `objectives` has the questions that
each objective asks of it, and `runs` compares a run's loss with its floor.
"""

from bertlab.evals.floors.chain import Chain, chain_of, log_probability
from bertlab.evals.floors.objectives import corruption, floor
from bertlab.evals.floors.oracle import Corruption, NoFloor, Oracle
from bertlab.evals.floors.runs import Floor, floors, relations_of

__all__ = [
    "Chain",
    "Corruption",
    "Floor",
    "NoFloor",
    "Oracle",
    "chain_of",
    "corruption",
    "floor",
    "floors",
    "log_probability",
    "relations_of",
]

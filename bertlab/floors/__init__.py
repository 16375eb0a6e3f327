"""Exact floors: the loss of the best possible model on the synthetic language, for every objective that has one.

The language (bertlab/data/synthetic.py) is a hidden Markov chain with a topic for each document. `chain` infers from visible
words, `corruption` from corrupted ones. `oracle` is the best possible model that an objective's `floor` asks, and `runs`
compares a run's loss with its floor.
"""

from bertlab.floors.chain import Chain, chain_of, forward_nats, visible_nats, words_of
from bertlab.floors.corruption import corrupted_nats, relation_nats
from bertlab.floors.oracle import ExactOracle, floor, relations_of
from bertlab.floors.runs import Floor, floors, print_floors, ratio

__all__ = [
    "Chain",
    "ExactOracle",
    "Floor",
    "chain_of",
    "corrupted_nats",
    "floor",
    "floors",
    "forward_nats",
    "print_floors",
    "ratio",
    "relation_nats",
    "relations_of",
    "visible_nats",
    "words_of",
]

"""Exact floors: the loss of the best possible model on the synthetic language, for every objective that has one.

The language (bertlab/data/synthetic.py) is a hidden Markov chain with a topic for each document. `chain` infers its states,
`oracle` is the best possible model, and `runs` compares a run's loss with its floor.
"""

from bertlab.floors.chain import chain_of, words_of
from bertlab.floors.oracle import ExactOracle, floor, relations_of
from bertlab.floors.runs import Floor, floors, print_floors, ratio

__all__ = ["ExactOracle", "Floor", "chain_of", "floor", "floors", "print_floors", "ratio", "relations_of", "words_of"]

"""Exact floors: the loss of the best possible model on the synthetic language, for every objective that has one.

The language (bertlab/data/synthetic.py) is a hidden Markov chain with a topic for each document. `chain` infers what follows
from words that are seen, `channel` what follows from corrupted ones, `objectives` says which of it each loss asks for, and
`runs` sets a run's loss beside its floor.
"""

from bertlab.floors.chain import Chain, chain_of, forward_nats, visible_nats, words_of
from bertlab.floors.channel import Channel, corrupted_nats, masking, relation_nats
from bertlab.floors.objectives import NoFloor, floor, relations_of
from bertlab.floors.runs import Floor, floors, print_floors, ratio

__all__ = [
    "Chain",
    "Channel",
    "Floor",
    "NoFloor",
    "chain_of",
    "corrupted_nats",
    "floor",
    "floors",
    "forward_nats",
    "masking",
    "print_floors",
    "ratio",
    "relation_nats",
    "relations_of",
    "visible_nats",
    "words_of",
]

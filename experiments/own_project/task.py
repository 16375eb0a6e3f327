"""A task of your own: is the sentence about the past? Its file is next to this one; valid and test are held out of it."""

from bertlab.transfer.tasks import table

TASK = table("tense", train="sentences.tsv", text="sentence", label="label")

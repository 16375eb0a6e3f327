"""A task of your own: are the words in order?

No adjective and no noun of test.tsv that is swapped occurs in train.tsv.
"""

from bertlab.transfer.tasks import table

TASK = table("word_order", train="train.tsv", test="test.tsv", text="sentence", label="label")

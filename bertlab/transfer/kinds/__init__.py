"""The kinds of downstream tasks, one file each. To add one, write its file and add its class to `KINDS`."""

from bertlab.transfer.kinds.base import Kind
from bertlab.transfer.kinds.candidate import Candidate
from bertlab.transfer.kinds.choice import Choice
from bertlab.transfer.kinds.classification import Classification
from bertlab.transfer.kinds.regression import Regression
from bertlab.transfer.kinds.sense import Sense
from bertlab.transfer.kinds.span import Span
from bertlab.transfer.kinds.span_pair import SpanPair
from bertlab.transfer.kinds.tagging import Tagging
from bertlab.transfer.kinds.word_pair import WordPair

_ALL = (Classification, Regression, Tagging, Choice, Span, WordPair, SpanPair, Sense, Candidate)
KINDS: dict[str, type[Kind]] = {kind.name: kind for kind in _ALL}

"""Means are of sums and weights, however these are divided among steps and batches."""

from bertlab.train.metrics import MetricSums


def test_means_are_of_all_sums_and_not_of_the_batches_means():
    sums = MetricSums()
    for pair in ((6.0, 3.0), (1.0, 1.0), (0.0, 0.0)):
        sums.add({"mlm/loss": pair})
    assert sums.means({"mlm": 2.0}) == {"loss": 3.5, "mlm/loss": 1.75}

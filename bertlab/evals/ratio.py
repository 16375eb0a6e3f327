"""A ratio of sums with its standard error."""

import numpy as np
from jaxtyping import Float


def ratio(
    sums: Float[np.ndarray, "N"], weights: Float[np.ndarray, "N"]
) -> tuple[float, float | None]:
    """Σ sums / Σ weights, and its first-order standard error over the items with a weight (Cochran
    1977, section 2.11): √(n/(n−1) · Σ (sum − ratio · weight)²) / Σ weight; None for one item."""
    sums, weights = sums[weights > 0], weights[weights > 0]
    number, total = len(sums), weights.sum()
    value = sums.sum() / total
    if number == 1:
        return float(value), None
    squares = ((sums - value * weights) ** 2).sum()
    return float(value), float(np.sqrt(number / (number - 1) * squares) / total)

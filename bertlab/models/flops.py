"""Model FLOPs, forward and backward: 6 per weight and position, and attention in full.

What a mask hides is counted, what the backward pass recomputes is not (Chowdhery et al. 2022, PaLM,
appendix B). Norms, softmaxes, activations and lookups are left out.
"""

from collections.abc import Iterable

from bertlab.models.awd_lstm import AwdLstmShape
from bertlab.models.bilstm import BilstmShape
from bertlab.models.characters import WORD_LENGTH
from bertlab.models.static import StaticShape
from bertlab.models.transformer import TransformerShape


def flops_per_token(shape, length: int, sides: Iterable[str] = ("both",)) -> float:
    """FLOPs of the body per position, in rows of `length`, without the output layer; a biLSTM
    computes only the directions of the `sides` that losses read."""
    match shape:
        case TransformerShape():
            kernels = 4 * shape.width**2 + (3 if shape.gated else 2) * shape.width * shape.hidden
            return 6 * shape.layers * kernels + 12 * shape.layers * shape.width * length
        case BilstmShape():
            stacks = len(set(shape.sides) & set(sides)) or len(shape.sides)
            # Inputs and states to four gates, and the projection.
            weights = stacks * shape.layers * (2 * 4 + 1) * shape.width * shape.hidden
            if shape.token_encoder == "characters":
                weights += _character_weights(shape)
            return 6 * weights
        case AwdLstmShape():
            inputs = (shape.width, *shape.cells)
            return 6 * sum(4 * cell * (before + cell) for before, cell in zip(inputs, shape.cells))
        case StaticShape():
            return 0.0
    raise TypeError(f"no formula for {type(shape).__name__}")


def flops_per_prediction(shape) -> float:
    """FLOPs of one row of logits over the vocabulary, with the transform before it."""
    transform = shape.width**2 if shape.output_transform else 0
    return 6 * (shape.width * shape.vocab_size + transform)


def _character_weights(shape: BilstmShape) -> int:
    """Multiplications of the encoder for one word; a filter is applied at every character."""
    filters = sum(number for _, number in shape.filters)
    convolutions = sum(
        (WORD_LENGTH + 1 - width) * width * number * shape.character_width
        for width, number in shape.filters
    )
    return convolutions + shape.highway_layers * 2 * filters**2 + filters * shape.width

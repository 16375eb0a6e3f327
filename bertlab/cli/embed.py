"""Write the vectors of texts: the states of each token, or one vector per text.

bertlab embed --run=runs/bert --text=lines.txt --out=lines.npz
bertlab embed --run=runs/bert --text=lines.txt --out=lines.csv --layers=-1 --pooling=mean

FILE.npz has one array per line, named by its number from 0: [layers, tokens, width], or [layers,
width] with pooling. FILE.csv is a table: text, layer, position and token, d0, d1, ...
"""

from pathlib import Path


def add_arguments(parser):
    parser.add_argument("--run", required=True, help="directory of a run or an import")
    parser.add_argument("--step", type=int, help="the checkpoint's step (default: the last one)")
    parser.add_argument("--text", required=True, type=Path, help="UTF-8 file, one text per line")
    parser.add_argument("--out", required=True, type=Path, help="FILE.npz or FILE.csv")
    layers = "all, or numbers such as 0,-1"
    parser.add_argument("--layers", default="all", type=layer_numbers, help=layers)
    parser.add_argument(
        "--pooling", choices=("mean", "max", "first", "last"), help="one vector per text"
    )
    parser.add_argument("--pretokenized", action="store_true", help="words are split at spaces")


def run(arguments, overrides):
    """Writes the file."""
    import numpy as np

    from bertlab.data.corpora.text import read_lines
    from bertlab.transfer.load import load

    layers = arguments.layers
    texts = [line for _, line in read_lines(arguments.text)]
    if arguments.pretokenized:
        texts = [line.split() for line in texts]
    model = load(arguments.run, arguments.step)
    found = model.embed(texts, layers, arguments.pooling, arguments.pretokenized)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    if arguments.out.suffix == ".csv":
        write_table(arguments.out, found, layers)
    else:
        arrays = found if arguments.pooling else [embedding.states for embedding in found]
        np.savez(arguments.out, **{str(number): array for number, array in enumerate(arrays)})
    print(f"{arguments.out}: {len(texts)} texts")


def layer_numbers(text: str) -> str | list[int]:
    """What --layers means."""
    return text if text == "all" else [int(number) for number in text.split(",")]


def write_table(path: Path, found, layers) -> None:
    """One row per text and layer, or per token and layer."""
    import numpy as np
    import pandas as pd

    frames = []
    for number, of_text in enumerate(found):
        states, tokens = getattr(of_text, "states", of_text), getattr(of_text, "tokens", [None])
        numbers = range(len(states)) if layers == "all" else layers
        for layer, of_layer in zip(numbers, states):
            place = {"text": number, "layer": layer, "position": None, "token": tokens}
            if hasattr(of_text, "tokens"):
                place["position"] = range(len(tokens))
            vectors = pd.DataFrame(np.atleast_2d(of_layer)).add_prefix("d")
            frames.append(pd.DataFrame(place).join(vectors))
    pd.concat(frames).to_csv(path, index=False)

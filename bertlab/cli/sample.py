"""Draw texts from a trained model, left to right or by revealing hidden pieces.

bertlab sample --run=runs/gpt --prompt="The function" --number=3 --temperature=0.8
bertlab sample --run=runs/bert --prompt="The function returns a [MASK] object." --number=5
"""


def add_arguments(parser):
    parser.add_argument("--run", required=True, help="directory of a run or an import")
    parser.add_argument("--step", type=int, help="the checkpoint's step (default: the last one)")
    parser.add_argument("--number", type=int, default=1, help="how many texts (default 1)")
    parser.add_argument("--length", type=int, help="pieces per text (default 32, or the prompt's)")
    parser.add_argument("--kind", help="left-to-right or any-order (default: the first allowed)")
    parser.add_argument("--steps", type=int, help="steps of any-order (default: one per piece)")
    parser.add_argument("--prompt", default="", help="what the texts begin with, or with [MASK]")
    parser.add_argument("--temperature", type=float, default=1.0, help="0: the most likely piece")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws (default 0)")


def run(arguments, overrides):
    """Prints one text per line."""
    from bertlab.evals.sample import sample
    from bertlab.transfer.load import load

    settings = vars(arguments).copy()
    model = load(settings.pop("run"), settings.pop("step"))
    for text in sample(model, **settings):
        print(text)

"""Write a run's model for another library.

bertlab export runs/bert --to=huggingface exported/bert
"""


def add_arguments(parser):
    formats = "huggingface, fastai, word2vec, glove or module:function"
    parser.add_argument("run", help="a run or an imported directory")
    parser.add_argument("--to", required=True, dest="kind", metavar="FORMAT", help=formats)
    parser.add_argument("target", help="a new directory; for word vectors, a new file")
    parser.add_argument("--step", type=int, help="the checkpoint's step; default: the last")


def run(arguments, overrides):
    """Writes the model."""
    from bertlab.interop.base import export_weights

    export_weights(arguments.kind, arguments.run, arguments.target, arguments.step)
    print(f"exported {arguments.run} to {arguments.target}")

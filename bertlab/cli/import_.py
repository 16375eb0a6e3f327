"""Turn a published model into a run directory, for finetune, init_from, embed and export.

bertlab import --from=huggingface bert-base-uncased/ --workdir=runs/bert_base
"""


def add_arguments(parser):
    formats = "huggingface, elmo, fastai, word2vec, glove or module:function"
    parser.add_argument("--from", required=True, dest="kind", metavar="FORMAT", help=formats)
    parser.add_argument("source", help="the model's directory or file")
    parser.add_argument("--workdir", required=True, help="a new directory")


def run(arguments, overrides):
    """Writes the run directory."""
    from bertlab.interop.base import import_weights

    import_weights(arguments.kind, arguments.source, arguments.workdir)
    print(f"imported into {arguments.workdir}")

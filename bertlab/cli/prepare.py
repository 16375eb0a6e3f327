"""Prepare a config's corpus: tokenizer and flat arrays of tokens, in the cache.

bertlab prepare --config=experiments/pretrain/bert.py:corpus=text:my/*.txt
"""

from bertlab.config.load import load_config


def add_arguments(parser):
    """The command's own arguments."""
    parser.add_argument("--config", required=True, help="FILE.py or FILE.py:key=value,key=value")


def run(arguments, overrides):
    """Prints the corpus's sizes."""
    from bertlab.data.prepare import prepare

    prepared = prepare(load_config(arguments.config, argv=overrides).data)
    print(
        f"{prepared.directory}: {prepared.tokenizer.kind}, {prepared.tokenizer.vocab_size:,} pieces"
    )
    for split, counts in prepared.statistics.items():
        sizes = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        print(f"{split}: {sizes}")

"""Tokenise a config's corpus once, into the cache, and print its sizes.

bertlab prepare --config=experiments/pretrain/bert.py:corpus=text:my/*.txt
"""

from bertlab.config import load_config


def add_arguments(parser):
    parser.add_argument("--config", required=True, help="FILE.py or FILE.py:key=value,key=value")


def run(arguments, overrides):
    """Prints the corpus's sizes."""
    config = load_config(arguments.config, argv=overrides)

    from bertlab.data.prepare import prepare

    prepared = prepare(config.data)
    tokenizer = prepared.tokenizer
    print(f"{prepared.directory}: {tokenizer.kind}, {tokenizer.vocab_size:,} pieces")
    print(f"a sentence ends with piece {tokenizer.sep_id}, {tokenizer.pieces()[tokenizer.sep_id]}")
    for split, counts in prepared.statistics.items():
        sizes = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        print(f"{split}: {sizes}")

"""The `bertlab` command: one function per subcommand, each a thin call into the package."""

import argparse
import os
import sys
from pathlib import Path

from bertlab.errors import UserError, require
from bertlab.run import Run
from bertlab.transfer.recipes import RECIPES


def command() -> int:
    """The `bertlab` of the shell: `main` in a process that has begun as is fastest."""
    begin_with_huge_pages()
    return main()


def begin_with_huge_pages() -> None:
    """On Linux, begins this process anew with huge pages for large arrays, unless it has them or GLIBC_TUNABLES says otherwise.

    A training step on CPUs is about a fifth faster with them: fewer page faults, and fewer misses in the processor's table of
    pages. glibc (2.35 and later) reads its settings only while a process begins; other systems ignore them.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform == "linux" and HUGE_PAGES.partition("=")[0] not in tunables:
        os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (tunables, HUGE_PAGES)))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


HUGE_PAGES = "glibc.malloc.hugetlb=1"


def main(arguments: list[str] | None = None) -> int:
    """Runs `bertlab COMMAND ...`.

    Returns:
        0 when done, 1 when part of a sweep failed or the doctor found something, 2 for a mistake in what was asked for
        (one line on stderr).
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    # Files beside the caller, such as an objective of one's own, are importable as with `python -m`.
    sys.path.insert(0, os.getcwd())
    parser = build_parser()
    given, rest = parser.parse_known_args(arguments)
    if unknown := [a for a in rest if not (given.takes_overrides and a.startswith("--config."))]:
        parser.error(f"{given.command} does not know {' '.join(unknown)}; see bertlab {given.command} --help")
    try:
        return given.function(given, rest) or 0
    except UserError as error:
        print(f"bertlab {given.command}: {error}", file=sys.stderr)
        if given.command == "train":
            from bertlab.train import processes

            processes.leave(2)
        return 2


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands; each help text ends with an example."""
    parser = argparse.ArgumentParser(
        prog="bertlab", description="Pretraining objectives compared on equal terms.",
        epilog="example:\n  bertlab train --config=experiments/pretrain/bert.py:size=tiny --workdir=runs/x",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name, function, help, example, overrides=False, to=commands):
        command = to.add_parser(
            name, help=help, description=help[0].upper() + help[1:] + ".", epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        )  # fmt: skip
        command.set_defaults(function=function, takes_overrides=overrides)
        return command

    _add_training(add)
    _add_studies(add)
    _add_data(add)
    _add_tokenizer(add, commands)
    _add_weights(add)
    return parser


_CONFIG_HELP = "config file with arguments: FILE.py:key=value,key=value; set any of its keys with --config.KEY=VALUE"


def _add_training(add) -> None:
    train = add(
        "train", _train, "pretrain; the same command again goes on where it stopped",
        "bertlab train --config=experiments/pretrain/bert.py:size=tiny,objectives=mlm+nsp,corpus=pydocs"
        " --workdir=runs/x --config.train.steps=200 --config.seed=1", overrides=True,
    )  # fmt: skip
    train.add_argument("--config", required=True, help=_CONFIG_HELP)
    train.add_argument("--workdir", required=True, type=Path, help="run directory; of a study, with --seeds or --rates")
    _add_grid(train)

    tune = add(
        "finetune", _finetune, "train a pretrained run on a task, wholly, in part or its head alone",
        "bertlab finetune --run=runs/x --task=sst2 --recipe=bert --config.task_data.directory=glue"
        " --workdir=runs/x/finetune/sst2",
        overrides=True,
    )  # fmt: skip
    tune.add_argument("--run", required=True, type=Path, help="pretrained, imported or fine-tuned run directory")
    tune.add_argument("--task", required=True, help="a task's name, FILE.py with a task of your own, or several joined by +")
    tune.add_argument("--recipe", default="small", help=f"{', '.join(RECIPES)} (default small)")
    tune.add_argument("--workdir", required=True, type=Path, help="run directory; of a study, with --seeds or --rates")
    _add_grid(tune, "; `valid` selects one")

    more = add(
        "adapt", _adapt, "go on with pretraining on a task's own text (ULMFiT's second stage); labels are not read",
        "bertlab adapt --run=runs/awd --task=trec --recipe=ulmfit --config.task_data.directory=trec --workdir=runs/awd-trec",
        overrides=True,
    )  # fmt: skip
    more.add_argument("--run", required=True, type=Path, help="pretrained or imported run directory")
    more.add_argument("--task", required=True, help="a task's name, or FILE.py with a task of your own")
    more.add_argument("--recipe", default="same", help="same (the run's own optimiser, default), ulmfit or fitlam")
    more.add_argument(
        "--epochs", type=float, default=1.0, help="passes over the text, without --config.train.steps (default 1)"
    )
    more.add_argument("--workdir", required=True, type=Path, help="run directory of the adapted model")

    mean = add(
        "average", _average, "average the predictions of several fine-tunings on one task (forward and backward, seeds)",
        "bertlab average runs/forward/finetune/trec runs/backward/finetune/trec",
    )  # fmt: skip
    mean.add_argument("runs", nargs="+", type=Path, help="run directories of finished fine-tunings")
    mean.add_argument("--split", default="test", choices=("valid", "test"), help="default test")


def _add_grid(command: argparse.ArgumentParser, selection: str = "") -> None:
    command.add_argument("--seeds", help="several seeds, such as 1,2,3: runs a study and reports mean, deviation and interval")
    command.add_argument("--rates", help=f"several learning rates, such as 1e-4,3e-4: runs a study{selection}")
    command.add_argument("--jobs", type=int, default=1, help="number of the study's runs at a time (default 1)")


def _add_studies(add) -> None:
    sweep = add(
        "sweep", _sweep, "run every run of a study that is not finished",
        "bertlab sweep --study=experiments/ablations/objectives.py --workdir=runs/objectives --jobs=2",
    )  # fmt: skip
    sweep.add_argument("--study", required=True, help="study file with arguments after a colon: FILE.py:key=value,key=value")
    sweep.add_argument("--workdir", required=True, type=Path, help="directory of the study; one run directory a run in it")
    sweep.add_argument("--jobs", type=int, default=1, help="runs at a time, each on its share of cores or devices (default 1)")
    sweep.add_argument("--dry_run", action="store_true", help="print the runs and what they will cost, and start none")
    sweep.add_argument(
        "--until_decided", nargs="?", const="all", default="", metavar="TASK",
        help="begin no further seed once the order of the variants is settled on TASK (alone: on all tasks)",
    )  # fmt: skip
    sweep.add_argument(
        "--launcher", default="local", choices=("local", "slurm", "ray"), help="where the runs are started (default local)"
    )
    sweep.add_argument(
        "--launcher_options", default="",
        help="key=value,...: local: devices=0,1; slurm: submitit's, as timeout_min=60,partition=gpu; ray: address=, num_gpus=",
    )  # fmt: skip

    evaluate = add(
        "evaluate", _evaluate, "bits per byte of held-out text, or accuracy on minimal pairs, by a run's own likelihood",
        "bertlab evaluate --run=runs/x --minimal_pairs=blimp.jsonl --limit=20",
    )  # fmt: skip
    evaluate.add_argument("--run", required=True, type=Path, help="run or imported directory")
    evaluate.add_argument("--text", type=Path, help="UTF-8 text, one a line (default: sentences of the run's own test split)")
    evaluate.add_argument("--minimal_pairs", type=Path, help="BLiMP's format: .jsonl, .jsonl.gz or .jsonl.xz")
    evaluate.add_argument("--kinds", default="", help="left-to-right, pseudo, ... joined by commas (default: all it allows)")
    evaluate.add_argument("--limit", type=int, default=0, help="texts, or pairs a paradigm (default: a file's all, or 200)")
    evaluate.add_argument("--out", type=Path, help="FILE.json to write to (default: RUN/evaluation.json)")

    doctor = add(
        "doctor", _doctor, "say whether a run looks right, from its own log; exit code 0: nothing found, 1: something is wrong",
        "bertlab doctor runs/x",
    )  # fmt: skip
    doctor.add_argument("run", type=Path, help="run directory")

    floor = add(
        "floor", _floor, "the best possible loss of each objective on the synthetic language, and a run's nats above it;"
        " exit code 1: no objective has one",
        "bertlab floor --config=experiments/pretrain/bert.py:objectives=mlm,corpus=synthetic"
        " --config.data.format=doc_sentences --config.data.tokenizer.kind=words --config.data.tokenizer.vocab_size=69",
        overrides=True,
    )  # fmt: skip
    floor.add_argument("--config", default=None, help=_CONFIG_HELP)
    floor.add_argument("--run", type=Path, help="run directory: its config, where --config is left out, and its loss")

    plan = add(
        "plan", _plan, "what a training step needs on a machine that is not here (memory, FLOPs, exchanges), by compiling it",
        "bertlab plan --config=experiments/pretrain/bert.py:size=large --topology=v5e:16x16 --config.data.batch_size=4096",
        overrides=True,
    )  # fmt: skip
    plan.add_argument("--config", required=True, help=_CONFIG_HELP)
    plan.add_argument("--topology", required=True, help="a TPU slice, as v5e:16x16, or virtual devices, as cpu:8")
    plan.add_argument("--largest", action="store_true", help="double the batch while it fits, or halve it until it does")
    plan.add_argument("--out", type=Path, help="write it as JSON too")

    bench = add(
        "bench", _bench, "measure speed on named workloads, in turns with a rival on the same work",
        "bertlab bench --suite=cpu --against=transformers --out=speed.json",
    )  # fmt: skip
    bench.add_argument("--suite", default="cpu", choices=("cpu", "gpu", "all"), help="which workloads (default cpu)")
    bench.add_argument(
        "--against", default="transformers", choices=("transformers", "none"),
        help="the rival: PyTorch with transformers (default; pip install 'bertlab[bench]'), or none",
    )  # fmt: skip
    bench.add_argument("--only", default="", metavar="NAME,NAME", help="these workloads instead of a suite's")
    bench.add_argument("--rounds", type=int, default=5, help="of each side, after warming up (default 5)")
    bench.add_argument("--seconds", type=float, default=3.0, help="that a round is to take (default 3)")
    bench.add_argument("--corpus", default="", help="the text, as config.data.corpus, of many words (default pydocs)")
    bench.add_argument("--out", type=Path, help="FILE.json with every round, the machine and the versions")

    report = add("report", _report, "table, curves and one HTML page of a study or a run", "bertlab report runs/objectives")
    report.add_argument("path", type=Path, help="study or run directory")

    compare = add("compare", _compare, "what differs between two runs in config and in result", "bertlab compare runs/x runs/y")
    compare.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="run directory")


def _add_data(add) -> None:
    prepare = add(
        "prepare", _prepare, "tokenise a corpus once, for all runs on it",
        "bertlab prepare --corpus='text:books/*.txt.gz' --config.data.tokenizer.vocab_size=16000", overrides=True,
    )  # fmt: skip
    prepare.add_argument("--config", default=None, help=_CONFIG_HELP + " (default: every key's default)")
    prepare.add_argument("--corpus", default=None, help="pydocs, text:GLOB, tfds:NAME or synthetic")
    prepare.add_argument(
        "--beam_runner", default="", help="prepare with Apache Beam: DirectRunner, DataflowRunner, FlinkRunner, ..."
    )
    prepare.add_argument(
        "--beam_pipeline_options", default="",
        help="key=value,...: Beam's own, as project=my-project,region=europe-west4; as for TFDS's command line",
    )  # fmt: skip


def _add_tokenizer(add, commands) -> None:
    tokenizer = commands.add_parser(
        "tokenizer", help="train a tokenizer, or encode and decode lines with one",
        epilog="example:\n  echo 'One sentence.' | bertlab tokenizer encode --tokenizer=runs/x/tokenizer --pieces",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    actions = tokenizer.add_subparsers(dest="action", required=True, metavar="ACTION")
    learn = add(
        "train", _tokenizer_train, "train a tokenizer on a corpus",
        "bertlab tokenizer train --corpus='text:books/*.txt' --kind=bpe --vocab_size=8000 --out=tokenizer", to=actions,
    )  # fmt: skip
    learn.add_argument("--corpus", required=True, help="pydocs, text:GLOB or tfds:NAME")
    learn.add_argument("--kind", default="unigram", help="unigram, bpe, wordpiece or words (default unigram)")
    learn.add_argument("--vocab_size", type=int, default=8192, help="pieces, special ones included (default 8192)")
    learn.add_argument("--lowercase", action="store_true", help="fold case")
    learn.add_argument("--seed", type=int, default=0, help="of the sample of sentences (default 0)")
    learn.add_argument("--sample_sentences", type=int, default=1_000_000, help="sentences to learn from (default 1,000,000)")
    learn.add_argument("--out", required=True, type=Path, help="directory to save it in")
    encode = add(
        "encode", _tokenizer_encode, "encode lines of standard input as ids (or pieces)",
        "echo 'One sentence.' | bertlab tokenizer encode --tokenizer=tokenizer", to=actions,
    )  # fmt: skip
    encode.add_argument("--pieces", action="store_true", help="print pieces instead of ids")
    decode = add(
        "decode", _tokenizer_decode, "decode lines of ids of standard input as text",
        "echo '17 20 3' | bertlab tokenizer decode --tokenizer=tokenizer", to=actions,
    )  # fmt: skip
    for command in (encode, decode):
        command.add_argument("--tokenizer", required=True, type=Path, help="RUN/tokenizer, another saved one, or vocab.txt")


def _add_weights(add) -> None:
    kinds = "huggingface, google, openai, elmo, fastai, word2vec or glove"
    bring = add(
        "import", _import, "make a run directory of weights that were trained elsewhere",
        "bertlab import --from=huggingface bert-base-uncased/ --workdir=runs/bert-base",
    )  # fmt: skip
    bring.add_argument("--from", required=True, dest="kind", help=f"{kinds}")
    bring.add_argument("source", type=Path, help="directory or file; for ELMo the directory with options.json")
    bring.add_argument("--workdir", required=True, type=Path, help="directory to make")

    export = add(
        "export", _export, "write a run's weights for other tools",
        "bertlab export runs/x --to=huggingface exported/x",
    )  # fmt: skip
    export.add_argument("run", type=Path, help="run or imported directory")
    export.add_argument("--to", required=True, dest="kind", help="huggingface, elmo, word2vec or glove")
    export.add_argument("directory", type=Path, help="directory to make")

    embed = add(
        "embed", _embed, "hidden states of every line of a text",
        "bertlab embed --run=runs/x --text=lines.txt --layers=all --out=lines.npz",
    )  # fmt: skip
    embed.add_argument("--run", required=True, type=Path, help="run or imported directory")
    embed.add_argument("--text", required=True, type=Path, help="UTF-8 text, one text a line")
    embed.add_argument("--pretokenized", action="store_true", help="words are split at spaces already: one vector a word")
    embed.add_argument(
        "--layers", default=None, help="all, or numbers such as 0,-1 (0: embeddings; default all, and -1 with --pooling)"
    )
    embed.add_argument(
        "--pooling", default=None, help="one vector a line: mean, first ([CLS]), last, max or pooler; special tokens count"
    )
    embed.add_argument("--special_tokens", action="store_true", help="keep [CLS], [SEP] and their like")
    embed.add_argument(
        "--out",
        required=True,
        type=Path,
        help='FILE.npz or FILE.safetensors: array [layers, tokens, D] a line, by line number from 0, or "vectors" [lines, D]'
        " with --pooling; FILE.csv: a table",
    )

    keys = add("keys", _keys, "list config keys with default, values and meaning", "bertlab keys 'optimizer.*'")
    keys.add_argument(
        "pattern", nargs="?", default="", help="only keys whose name or meaning has this text, or matches this glob"
    )
    keys.add_argument("--markdown", action="store_true", help="print the documentation's table")

    add("models", _models, "print the families, their sizes and parameter counts", "bertlab models")


def _asks_for_a_grid(given, overrides: list[str]) -> bool:
    """Whether the command names several seeds or rates.

    Raises:
        UserError: an option has no effect.
    """
    lists = {"seeds": ("seed", given.seeds), "rates": ("optimizer.learning_rate", given.rates)}
    for name, (key, values) in lists.items():
        if values is not None and any(a.startswith(f"--config.{key}=") for a in overrides):
            raise UserError(f"--{name}={values} and --config.{key} set the same key; omit one of them")
    if given.seeds is not None or given.rates is not None:
        return True
    if given.jobs != 1:
        raise UserError(f"--jobs={given.jobs} needs several runs; add --seeds=1,2,3 or --rates=1e-4,3e-4, or omit it")
    return False


def _train(given, overrides: list[str]) -> int | None:
    from bertlab.config import load_config
    from bertlab.data.prepare import prepare
    from bertlab.train import processes
    from bertlab.train.build import begun_from
    from bertlab.train.checks import check_config, check_devices
    from bertlab.train.loop import finished
    from bertlab.transfer.pretrain import pretrain

    if _asks_for_a_grid(given, overrides):
        from bertlab.studies.grid import pretraining_grid

        processes.refuse()
        return pretraining_grid(given.config, given.workdir, given.seeds, given.rates, overrides, given.jobs)
    processes.join()
    with processes.company():
        config = begun_from(load_config(given.config, argv=overrides))
        if finished(config, given.workdir) is None:
            check_config(config)
            check_devices(config)
            with processes.first_before_others("prepared"), _Progress() as progress:  # for all that share its cache
                prepare(config.data, progress=progress)
        pretrain(config, given.workdir)
    if processes.is_first():
        print(f"finished: {Run(given.workdir).result}; see it with: bertlab report {given.workdir}")


def _finetune(given, overrides: list[str]) -> int | None:
    from bertlab.studies.grid import grid
    from bertlab.train import processes
    from bertlab.transfer.finetune import finetune

    processes.refuse()
    pairs = (a.removeprefix("--config.").partition("=") for a in overrides)
    values = {name: value for name, _, value in pairs}
    if _asks_for_a_grid(given, overrides):
        return grid(given.run, given.task, given.workdir, given.seeds, given.rates, values, given.recipe, given.jobs)
    result = finetune(given.run, given.task, given.workdir, values, given.recipe)
    scores = ", ".join(f"{k} {v:.4f}" for k, v in result["metrics"]["test"].items())
    print(f"finished: {Run(given.workdir).result}; test: {scores}")


def _adapt(given, overrides: list[str]) -> None:
    from bertlab.train import processes
    from bertlab.transfer.adapt import adapt

    processes.refuse()
    pairs = (a.removeprefix("--config.").partition("=") for a in overrides)
    values = {name: value for name, _, value in pairs}
    adapt(given.run, given.task, given.workdir, values, given.recipe, given.epochs)
    print(f"finished: {Run(given.workdir).result}; next: bertlab finetune --run={given.workdir} --task={given.task}")


def _average(given, _) -> None:
    from bertlab.transfer.average import average

    for name, scores in average(given.runs, given.split).items():
        print(f"{name}: " + ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items()))


def _sweep(given, _) -> int:
    from bertlab.studies.launchers import launcher
    from bertlab.studies.study import load_study
    from bertlab.studies.sweep import sweep

    started_by = launcher(given.launcher, given.jobs, given.launcher_options)
    return sweep(load_study(given.study), given.workdir, started_by, given.dry_run, given.until_decided)


def _evaluate(given, _) -> None:
    from bertlab.transfer.evaluate import evaluate

    kinds = [kind.strip() for kind in given.kinds.split(",") if kind.strip()]
    evaluate(given.run, given.text, given.minimal_pairs, kinds, given.limit, given.out)


def _doctor(given, _) -> int:
    from bertlab.studies.doctor import doctor

    return int(doctor(given.run) > 0)


def _floor(given, overrides: list[str]) -> int:
    from bertlab.config import load_config
    from bertlab.floors import print_floors

    if overrides and given.config is None:
        raise UserError(f"{overrides[0]}: give --config=FILE.py too; --run alone takes that run's config as it is")
    return int(not print_floors(load_config(given.config, argv=overrides) if given.config else None, given.run))


def _plan(given, overrides: list[str]) -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing runs, and accelerators are left to others
    kind, _, count = given.topology.partition(":")
    if kind == "cpu" and count.isdigit() and int(count):
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", count)
    from bertlab.config import load_config
    from bertlab.train.plan import print_plan

    print_plan(load_config(given.config, argv=overrides), given.topology, given.largest, given.out)


def _bench(given, _) -> None:
    from bertlab.bench.measure import bench

    settings = {"data.corpus": given.corpus} if given.corpus else {}
    bench(given.suite, given.against, given.out, given.only, given.rounds, given.seconds, settings)


def _report(given, _) -> None:
    from bertlab.studies.report import report

    report(given.path)


def _compare(given, _) -> None:
    from bertlab.studies.two_runs import compare

    compare(*given.runs)


def _prepare(given, overrides: list[str]) -> None:
    from bertlab.config import base_config, load_config, parse_override, set_key
    from bertlab.data.prepare import describe, prepare

    if given.config:
        config = load_config(given.config, argv=overrides)
    else:
        config = base_config()
        for override in overrides:
            name, _, value = override.removeprefix("--config.").partition("=")
            set_key(config, name, parse_override(config, name, value))
    if given.corpus:
        config.data.corpus = given.corpus
    backend = None
    if given.beam_runner or given.beam_pipeline_options:
        require("apache_beam", "beam", "--beam_runner")
        from bertlab.data.beam import beam_backend

        backend = beam_backend(given.beam_runner, given.beam_pipeline_options)
    with _Progress() as progress:
        prepared = prepare(config.data, progress=progress, backend=backend)
    print(describe(prepared))


def _tokenizer_train(given, _) -> None:
    from bertlab.data.corpora import open_corpus
    from bertlab.data.tokenizers import train_tokenizer

    sentences = (s for document in open_corpus(given.corpus).documents() for s in document.sentences)
    options = {"seed": given.seed, "lowercase": given.lowercase, "sample_sentences": given.sample_sentences}
    tokenizer = train_tokenizer(given.kind, sentences, given.vocab_size, **options)
    tokenizer.save(given.out)
    print(f"{given.kind} tokenizer with {tokenizer.vocab_size} pieces saved in {given.out}")


def _tokenizer_encode(given, _) -> None:
    from bertlab.data.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(given.tokenizer)
    names = tokenizer.pieces()
    for _, line in _input_lines():
        print(" ".join(names[i] if given.pieces else str(i) for i in tokenizer.encode(line)))


def _tokenizer_decode(given, _) -> None:
    from bertlab.data.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(given.tokenizer)
    for number, line in _input_lines():
        try:
            ids = [int(word) for word in line.split()]
        except ValueError:
            raise UserError(f"standard input, line {number}: expected ids separated by spaces, got {line.strip()!r}") from None
        if bad := [i for i in ids if not 0 <= i < tokenizer.vocab_size]:
            raise UserError(f"standard input, line {number}: id {bad[0]} is not in 0..{tokenizer.vocab_size - 1}")
        print(tokenizer.decode(ids))


def _input_lines():
    """Yields (line number from 1, line without its end) of standard input, which is UTF-8 whatever the locale says."""
    offset = 0
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"standard input, line {number}: byte {offset + error.start} is not UTF-8 text; convert it, for example with "
                "iconv -t utf-8."
            ) from error
        offset += len(line)
        yield number, text.rstrip("\r\n")


def _import(given, _) -> None:
    from bertlab.interop import import_weights

    import_weights(given.kind, given.source, given.workdir)
    print(f"imported into {given.workdir}; use it with bertlab embed --run, finetune --run or --config.init_from")


def _export(given, _) -> None:
    from bertlab.interop import export_weights

    export_weights(given.kind, given.run, given.directory)
    print(f"exported {given.run} to {given.directory}")


def _embed(given, _) -> None:
    from bertlab.transfer.load import embed_file, parse_layers

    embed_file(
        given.run,
        given.text,
        given.out,
        layers=parse_layers(given.layers or ("-1" if given.pooling else "all")),
        pretokenized=given.pretokenized,
        special_tokens=given.special_tokens,
        pooling=given.pooling,
    )


def _keys(given, _) -> None:
    from bertlab.catalogue import print_keys

    print_keys(given.pattern, given.markdown)


def _models(given, _) -> None:
    from bertlab.catalogue import print_models

    print_models()


class _Progress:
    """Preparation progress as bars on a terminal, silence elsewhere."""

    def __init__(self):
        from rich.progress import Progress

        self._bars = Progress(transient=True, disable=not sys.stdout.isatty())
        self._tasks = {}

    def __call__(self, label: str, done: int, total: int | None) -> None:
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=total)
        self._bars.update(self._tasks[label], completed=done, total=total)

    def __enter__(self):
        self._bars.start()
        return self

    def __exit__(self, *_):
        self._bars.stop()


if __name__ == "__main__":
    sys.exit(command())

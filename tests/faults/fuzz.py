"""Fuzzes every reader of `readers.py`: atheris changes its valid files, and keeps what reaches new branches of bertlab's code.

`make fuzz READER= MINUTES=` runs it; READER is a regular expression for their names. Each reader has a process, so that one
that crashes or hangs is found too. A line for each reader says what became of its inputs. Those that gave neither a result
nor a sentence are kept.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["bertlab"]):
    from tests.faults.damage import complaint, damaged
    from tests.faults.readers import READERS

LATE = 60  # seconds that a process may take beyond its time: to start, and for its last input


def fuzz(reader, folder: Path, seconds: float) -> None:
    """Fuzzes a reader in this process and ends it; `folder` gets a log, counts.json and the folder `found`."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1), os.dup2(log, 2)
    files, seeds, found = folder / "files", folder / "seeds", folder / "found"
    for path in (files, seeds, found):
        path.mkdir()
    reader.make(files)
    reader.read(files)  # JAX starts its threads before memory is bounded
    names = reader.only or sorted(path.relative_to(files).as_posix() for path in files.rglob("*") if path.is_file())
    contents = [(files / name).read_bytes() for name in names]
    for number, content in enumerate(contents):  # an input's first byte says which file it is
        (seeds / str(number)).write_bytes(bytes([number]) + content)
    counts, end = {"inputs": 0, "read": 0, "found": {}}, time.monotonic() + seconds

    def read(directory: Path) -> None:
        reader.read(directory)
        counts["read"] += 1

    def one_input(data: bytes) -> None:
        if time.monotonic() > end:
            (folder / "counts.json").write_text(json.dumps(counts))
            os._exit(0)  # libFuzzer would not end Python either
        number = data[0] % len(names) if data else 0
        file = files / names[number]
        file.write_bytes(data[1:])
        said = complaint(read, files, file, reader.by_folder)
        file.write_bytes(contents[number])
        counts["inputs"] += 1
        if said and (kind := re.sub(r"['\"\d].*", "", said)) not in counts["found"]:
            counts["found"][kind] = f"{names[number]}: {said}"
            (found / f"{len(counts['found'])}-{file.name}").write_bytes(data[1:])

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        blindly = len(data) < 2 or rng.random() < 0.5
        changed = atheris.Mutate(data, most) if blindly else data[:1] + damaged(data[1:], rng)[1]
        return changed[:most]

    most = max(4096, 2 * max(map(len, contents)))
    flags = [f"-max_len={most}", "-timeout=0", "-rss_limit_mb=0", "-seed=1", f"-artifact_prefix={found}/crash-"]
    atheris.Setup([sys.argv[0], *flags, str(seeds)], one_input, custom_mutator=mutate)
    atheris.Fuzz()


def in_a_process(reader, folder: Path, seconds: float) -> dict:
    """The counts of a reader that a process of its own fuzzes, and the branches that it reached first and last."""
    process = multiprocessing.get_context("fork").Process(target=fuzz, args=(reader, folder, seconds))
    process.start()
    process.join(seconds + LATE)
    ended = f"hung for {LATE} s" if process.is_alive() else f"ended with {process.exitcode}"
    process.kill()
    process.join()
    branches = [int(number) for number in re.findall(r"cov: (\d+)", (folder / "log").read_text(errors="replace"))] or [0]
    counts = {"inputs": 0, "read": 0, "found": {"process": f"the process {ended}"}}
    with contextlib.suppress(FileNotFoundError):
        counts = json.loads((folder / "counts.json").read_text())
    return counts | {"branches": f"{branches[0]} to {branches[-1]}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reader", default="", help="a regular expression for names; all")
    parser.add_argument("--minutes", type=float, default=1, help="for each reader")
    given = parser.parse_args()
    # A share of 0: its files only have a size to refuse.
    chosen = [reader for reader in READERS if re.search(given.reader, reader.name) and reader.share]
    kept, inputs, found = Path(tempfile.mkdtemp(prefix="bertlab-fuzz-")), 0, 0
    print(f"{'reader':34}{'inputs':>9}{'read':>9}{'refused':>9}{'branches':>12}")
    for number, reader in enumerate(chosen):
        folder = kept / str(number)
        folder.mkdir()
        of = in_a_process(reader, folder, 60 * given.minutes)
        inputs, found = inputs + of["inputs"], found + len(of["found"])
        refused = of["inputs"] - of["read"] - len(of["found"])
        print(f"{reader.name:34}{of['inputs']:9}{of['read']:9}{refused:9}{of['branches']:>12}", flush=True)
        for said in of["found"].values():
            print(f"  {said} ({folder})", flush=True)
    said = f"{inputs:,} inputs, {found} of them neither read nor refused in a sentence"
    print(f"{len(chosen)} readers, {60 * given.minutes:g} s each: {said}")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()

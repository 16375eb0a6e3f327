"""Pretrainings or fine-tunings side by side in one program (`bertlab.train.replicas`), each with what belongs to it."""

from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from bertlab.train.build import begun_from, build_pretraining
from bertlab.train.replicas import train_replicas
from bertlab.transfer.finetune import build_finetuning, resolved, sized
from bertlab.transfer.pretrain import measure


def pretrain_replicas(configs: Sequence[ConfigDict], workdirs: Sequence[Path]) -> dict[Path, dict | None]:
    """`bertlab.transfer.pretrain.pretrain` for several configs at once.

    Args:
        configs: whole experiment configs.
        workdirs: a run directory for each.

    Returns:
        As `train_replicas`, which also says what it refuses.
    """
    results = train_replicas([begun_from(config) for config in configs], workdirs, lambda config, _: build_pretraining(config))
    for workdir, result in results.items():
        if result is not None:
            measure(workdir)
    return results


def finetune_replicas(configs: Sequence[ConfigDict], workdirs: Sequence[Path]) -> dict[Path, dict | None]:
    """`bertlab.transfer.finetune.finetune` for several configs at once.

    Args:
        configs: of `finetune_config`.
        workdirs: a run directory for each.

    Returns:
        As `train_replicas`, which also says what it refuses.
    """
    _, tasks = resolved(configs[0])
    configs = [sized(config, tasks) for config in configs]
    return train_replicas(configs, workdirs, lambda config, workdir: build_finetuning(config, tasks, workdir))

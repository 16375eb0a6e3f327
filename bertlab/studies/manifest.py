"""A JobSet for Google's Kubernetes (GKE): one command on a TPU slice, a process on each host; not run on a cloud.

    bertlab manifest --name=x --topology=v5e:4x4 --image=IMAGE --claim=CLAIM -- bertlab train --config=... --workdir=/runs/x

Labels of nodes are GKE's, fields those of JobSet's v1alpha2. A pod that Kubernetes takes away (a spot machine, maintenance)
begins the set again without end; a command that fails does so at most `restarts` times. Either goes on from its checkpoints,
which are on a volume that all hosts share or, on one host, in snapshots (`bertlab.mirror`).
"""

import contextlib
import math
import posixpath
import re
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from bertlab.errors import UserError
from bertlab.files import read_json
from bertlab.hosts import ADDRESS, COUNT, INDEX, SLICE, TASK, TASKS, WORKER

ACCELERATORS = {"v5e": "tpu-v5-lite-podslice", "v5p": "tpu-v5p-slice", "v6e": "tpu-v6e-slice"}
"""Generation -> the value of GKE's label cloud.google.com/gke-tpu-accelerator."""
FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
"""Topologies of v5e and v6e; the first three fit on one host."""
KIND = "JobSet"
"""Of the manifest, as Kubernetes reads it."""
RUNS = "/runs"
"""Where the volume is mounted."""
OF_HOSTS = (ADDRESS, COUNT, INDEX, TASKS, TASK, SLICE, WORKER)
"""Variables that differ between hosts, or say who the others are."""

# Kubernetes': parts of letters, digits and - between dots (RFC 1123), at most 253 characters.
_NAME = r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_SPOT = "cloud.google.com/gke-spot"
_GRACE_SECONDS = 60  # to save; a spot machine has less
# Runs its words, and says with 143 that what was told to save has not finished: it would end with 0.
_UNFINISHED = """stopped=
trap 'stopped=1; kill -TERM "$child"' TERM
"$@" &
child=$!
wait "$child"
status=$?
[ -z "$stopped" ] && exit "$status"
while kill -0 "$child" 2>/dev/null; do wait "$child"; done
exit 143
"""


def hosts_of(topology: str, chips_per_host: int | None = None) -> tuple[str, str, int, int]:
    """(generation, chips as GKE writes them, hosts, chips of a host) of a slice such as "v5e:4x4".

    Args:
        topology: as for `bertlab plan`.
        chips_per_host: None: up to eight chips of v5e and v6e lie on one host; of more, and of v5p, four.

    Raises:
        UserError: GKE has no such slice, or it does not split so.
    """
    kind, _, shape = topology.partition(":")
    if kind not in ACCELERATORS:
        raise UserError(f"--topology={topology}: expected one of {', '.join(ACCELERATORS)} with its chips, like v5e:4x4")
    sides = [int(side) for side in shape.split("x")] if re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3})+", shape) else []
    small = shape in ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
    if kind != "v5p" and shape not in FLAT:
        raise UserError(f"--topology={topology}: {kind} has the slices {', '.join(FLAT)}")
    if kind == "v5p" and not small and (len(sides) != 3 or sides != sorted(sides) or any(side % 4 for side in sides)):
        raise UserError(
            f"--topology={topology}: v5p has the slices 2x2x1, 2x2x2, 2x2x4, 2x4x4, and three rising multiples of four such as"
            " 4x4x8"
        )
    chips = math.prod(sides)
    of_host = chips_per_host or (chips if kind != "v5p" and chips <= 8 else 4)
    if of_host not in ((4,) if kind == "v5p" else (1, 4, 8)) or chips % of_host or (chips > of_host != 4):
        raise UserError(f"--chips_per_host={of_host}: no machine of GKE makes {topology} of so many chips; omit it")
    return kind, shape, chips // of_host, of_host


def jobset(
    name: str,
    topology: str,
    image: str,
    words: Sequence[str],
    *,
    claim: str = "",
    mirror: str = "",
    restarts: int = 3,
    spot: bool = False,
    queue: str = "",
    chips_per_host: int | None = None,
    env: Sequence[str] = (),
    service_account: str = "",
) -> dict[str, Any]:
    """The manifest, as JSON.

    Args:
        name: Of the JobSet.
        topology: "v5e:4x4".
        image: Of a container with bertlab in it.
        words: The command; it names its `--workdir`.
        claim: A volume claim that all hosts can write to; mounted at `RUNS`.
        mirror: The URL of the workdir's snapshots, for one host.
        restarts: How often a command that fails begins again.
        spot: Only on spot machines.
        queue: Kueue's local queue.
        chips_per_host: As for `hosts_of`.
        env: "NAME=VALUE", variables of the container.
        service_account: Kubernetes' account of the pods, by which GKE grants access to a bucket.

    Raises:
        UserError: Something is missing, or does not go together.
    """
    kind, shape, hosts, chips = hosts_of(topology, chips_per_host)
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", name):
        raise UserError(f"{name}: a JobSet's name has at most 40 small letters, digits and -, and begins with a letter")
    if not words:
        raise UserError("give the command after --, as in: -- bertlab train --config=... --workdir=/runs/x")
    workdir = workdir_of(words)
    if claim and mirror:
        raise UserError(f"--claim={claim} and --mirror={mirror} both keep the results; omit one of them")
    if hosts > 1 and not claim:
        raise UserError(
            f"--topology={topology} has {hosts} hosts, which write to one --workdir; give a --claim that they share"
        )
    if not (claim or mirror):
        raise UserError("the results would be lost with the pod; give --claim=CLAIM or --mirror=gs://BUCKET/PATH")
    if claim and not re.fullmatch(_NAME, claim):
        raise UserError(
            f"--claim={claim}: a claim's name has small letters, digits, - and ., and a letter or digit at both ends"
        )
    if claim and not PurePosixPath(posixpath.normpath(workdir)).is_relative_to(RUNS):
        raise UserError(f"--workdir={workdir} is not on the volume, which is at {RUNS}; choose one below it")
    if mirror and not mirror.startswith(("gs://", "s3://")):  # file:// would be lost with the pod
        raise UserError(f"--mirror={mirror}: expected gs://BUCKET/PATH or s3://BUCKET/PATH")
    shards = option_of(words, "--config.data.shards") or "0"
    if shards.isdecimal() and int(shards) % hosts:
        raise UserError(
            f"--config.data.shards={shards} is no multiple of the {hosts} hosts of --topology={topology}; each reads as many"
        )
    if mirror:
        command = ["bertlab", "mirror", workdir, mirror, "--", *words]
    else:
        command = ["sh", "-c", _UNFINISHED, *words[:1], *words]
    variables = [variable_of(given) for given in env]
    if double := [name for name in (of["name"] for of in variables) if [of["name"] for of in variables].count(name) > 1]:
        raise UserError(f"--env={double[0]}= is given twice; omit one of them")
    if service_account and not re.fullmatch(_NAME, service_account):
        raise UserError(f"--service_account={service_account}: an account's name has small letters, digits, - and .")
    labels = {"cloud.google.com/gke-tpu-accelerator": ACCELERATORS[kind], "cloud.google.com/gke-tpu-topology": shape}
    container: dict[str, Any] = {
        "name": "bertlab",
        "image": image,
        "command": command,
        "resources": {"requests": {"google.com/tpu": chips}, "limits": {"google.com/tpu": chips}},
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "nodeSelector": labels | ({_SPOT: "true"} if spot else {}),
        "containers": [container],
    }
    if spot:  # whoever made the nodes may have tainted them so, that nothing else lands there
        pod["tolerations"] = [{"key": _SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"}]
    if variables:
        container["env"] = variables
    if service_account:
        pod["serviceAccountName"] = service_account
    if claim:
        container["volumeMounts"] = [{"name": "runs", "mountPath": RUNS}]
        pod["volumes"] = [{"name": "runs", "persistentVolumeClaim": {"claimName": claim}}]
    disrupted = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    job = {
        "completionMode": "Indexed",
        "parallelism": hosts,
        "completions": hosts,
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [disrupted]},
        "template": {"spec": pod},
    }
    taken = {"name": "taken", "action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]}
    metadata: dict[str, Any] = {"name": name}
    if queue:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": queue}
    if hosts > 1:  # all hosts of a slice are one pool of nodes
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": KIND,
        "metadata": metadata,
        "spec": {
            "failurePolicy": {"maxRestarts": restarts, "rules": [taken]},
            "replicatedJobs": [{"name": "slice", "replicas": 1, "template": {"spec": job}}],
        },
    }


def require_manifest(file: Path) -> None:
    """Refuses to replace a file that is no manifest.

    Raises:
        UserError: It is there, and no JobSet.
    """
    found: Any = None
    with contextlib.suppress(UserError):
        found = read_json(file) if file.exists() else {"kind": KIND}
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise UserError(f"--out={file}: there is a file of that name that is no manifest; choose another name, or delete it")


def variable_of(given: str) -> dict[str, str]:
    """A variable of a container, from "NAME=VALUE".

    Raises:
        UserError: It is not of that form, or is what GKE or JAX tells each host.
    """
    name, equals, value = given.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UserError(f"--env={given}: expected NAME=VALUE, such as WANDB_MODE=offline")
    if name in OF_HOSTS:
        raise UserError(f"--env={given}: all hosts would get the same, and GKE tells each which one it is; omit it")
    return {"name": name, "value": value.replace("$(", "$$(")}  # Kubernetes would replace $(NAME)


def workdir_of(words: Sequence[str]) -> str:
    """The `--workdir` that a command names.

    Raises:
        UserError: None.
    """
    if found := option_of(words, "--workdir"):
        return found
    raise UserError(f"the command names no --workdir: {shlex.join(words)}")


def option_of(words: Sequence[str], option: str) -> str:
    """The value that a command gives an option, "" without one; of several the last, which counts."""
    found = ""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        found = following if word == option else word.partition("=")[2] if word.startswith(f"{option}=") else found
    return found

"""A JobSet has the fields that JobSet and Kubernetes publish, GKE's labels, and a command that says if it has not finished."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import jsonschema
import pytest

from bertlab.cli import main
from bertlab.errors import UserError
from bertlab.studies.manifest import hosts_of, jobset

WORDS = ["bertlab", "train", "--config=a.py", "--workdir=/runs/x"]


def exactly(required, optional=None):
    """The JSON schema of an object with these fields and no others."""
    optional = optional or {}
    return {
        "type": "object",
        "properties": required | optional,
        "required": [*required],
        "additionalProperties": False,
    }


TEXT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0}
LIST = lambda of: {"type": "array", "items": of, "minItems": 1}
ONE_OF = lambda *values: {"enum": [*values]}
NAMES = {"type": "object", "additionalProperties": TEXT}
TPUS = exactly({"google.com/tpu": {"type": "integer", "minimum": 1}})
# JobSet's v1alpha2 (kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go), batch/v1's Job and v1's Pod, as far as used.
CONTAINER = exactly(
    {"name": TEXT, "image": TEXT, "command": LIST(TEXT), "resources": exactly({"requests": TPUS, "limits": TPUS})},
    {
        "volumeMounts": LIST(exactly({"name": TEXT, "mountPath": TEXT})),
        "env": LIST(exactly({"name": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}, "value": TEXT})),
    },
)
TOLERATION = exactly(
    {
        "key": TEXT,
        "operator": ONE_OF("Equal", "Exists"),
        "value": TEXT,
        "effect": ONE_OF("NoSchedule", "PreferNoSchedule", "NoExecute"),
    }
)
POD = exactly(
    {
        "restartPolicy": ONE_OF("Never"),  # as a podFailurePolicy requires
        "terminationGracePeriodSeconds": NUMBER,
        "nodeSelector": NAMES,
        "containers": LIST(CONTAINER),
    },
    {
        "serviceAccountName": TEXT,
        "tolerations": LIST(TOLERATION),
        "volumes": LIST(exactly({"name": TEXT, "persistentVolumeClaim": exactly({"claimName": TEXT})})),
    },
)
CONDITION = exactly({"type": ONE_OF("DisruptionTarget"), "status": ONE_OF("True", "False", "Unknown")})
FAILURE = exactly({"action": ONE_OF("FailJob"), "onPodConditions": LIST(CONDITION)})
JOB = exactly(
    {
        "completionMode": ONE_OF("Indexed"),
        "parallelism": NUMBER,
        "completions": NUMBER,
        "backoffLimit": NUMBER,
        "podFailurePolicy": exactly(
            {"rules": LIST(exactly({"action": ONE_OF("FailJob"), "onPodConditions": LIST(CONDITION)}))}
        ),
        "template": exactly({"spec": POD}),
    }
)
ACTIONS = ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob", "RestartJobAndIgnoreMaxRestarts")
RULE = exactly(
    {
        "name": {"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
        "action": ONE_OF(*ACTIONS),
        "onJobFailureReasons": LIST(ONE_OF("BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy")),
    }
)
SET = exactly(
    {
        "apiVersion": ONE_OF("jobset.x-k8s.io/v1alpha2"),
        "kind": ONE_OF("JobSet"),
        "metadata": exactly({"name": TEXT}, {"labels": NAMES, "annotations": NAMES}),
        "spec": exactly(
            {
                "failurePolicy": exactly({"maxRestarts": NUMBER, "rules": LIST(RULE)}),
                "replicatedJobs": LIST(exactly({"name": TEXT, "replicas": NUMBER, "template": exactly({"spec": JOB})})),
            }
        ),
    }
)


def pod_of(manifest):
    [job] = manifest["spec"]["replicatedJobs"]
    return job["template"]["spec"], job["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("topology", "how", "accelerator", "hosts", "chips"),
    [
        ("v5e:1x1", {"mirror": "gs://b/x"}, "tpu-v5-lite-podslice", 1, 1),
        ("v5e:2x4", {"mirror": "gs://b/x", "queue": "q"}, "tpu-v5-lite-podslice", 1, 8),
        ("v5e:4x4", {"claim": "c"}, "tpu-v5-lite-podslice", 4, 4),
        ("v5e:16x16", {"claim": "c", "spot": True}, "tpu-v5-lite-podslice", 64, 4),
        ("v6e:2x2", {"claim": "c"}, "tpu-v6e-slice", 1, 4),
        ("v6e:2x4", {"claim": "c", "chips_per_host": 4}, "tpu-v6e-slice", 2, 4),
        ("v6e:8x16", {"claim": "c", "restarts": 0}, "tpu-v6e-slice", 32, 4),
        ("v5p:2x2x1", {"mirror": "s3://b/x"}, "tpu-v5p-slice", 1, 4),
        ("v5p:2x2x2", {"claim": "c"}, "tpu-v5p-slice", 2, 4),
        ("v5p:8x8x12", {"claim": "c"}, "tpu-v5p-slice", 192, 4),
    ],
)
def test_a_manifest_is_valid_and_has_a_process_on_each_host(topology, how, accelerator, hosts, chips):
    manifest = jobset("x", topology, "image", WORDS, **how)
    jsonschema.validate(manifest, SET)
    job, pod = pod_of(manifest)
    assert job["parallelism"] == job["completions"] == hosts
    [container] = pod["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": chips}
    shape = topology.partition(":")[2]
    expected = {"cloud.google.com/gke-tpu-accelerator": accelerator, "cloud.google.com/gke-tpu-topology": shape}
    assert pod["nodeSelector"] == expected | ({"cloud.google.com/gke-spot": "true"} if how.get("spot") else {})
    # The taint that GKE's pages on spot machines give their nodes.
    taint = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    assert pod.get("tolerations") == ([taint] if how.get("spot") else None)
    assert ("annotations" in manifest["metadata"]) == (hosts > 1)
    assert manifest["spec"]["failurePolicy"]["maxRestarts"] == how.get("restarts", 3)
    assert manifest["metadata"].get("labels") == ({"kueue.x-k8s.io/queue-name": "q"} if "queue" in how else None)
    assert ("volumes" in pod) == ("volumeMounts" in container) == ("claim" in how)
    if "mirror" in how:
        assert container["command"] == ["bertlab", "mirror", "/runs/x", how["mirror"], "--", *WORDS]
    else:
        assert container["command"][-len(WORDS) :] == WORDS and pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "c"


def test_variables_and_the_account_of_a_pod(capsys):
    words = ["--topology=v5e:4x4", "--image=image", "--claim=c", "--env=A=b c=d", "--env=B=", "--env=C=$(A)"]
    assert main(["manifest", "--name=x", *words, "--service_account=trainer", "--", *WORDS]) == 0
    manifest = json.loads(capsys.readouterr().out)
    jsonschema.validate(manifest, SET)
    _, pod = pod_of(manifest)
    assert pod["serviceAccountName"] == "trainer"
    # Kubernetes would put A's value where $(A) stands; $$(A) is the text.
    assert {of["name"]: of["value"] for of in pod["containers"][0]["env"]} == {"A": "b c=d", "B": "", "C": "$$(A)"}


def test_a_misspelt_field_would_be_seen():
    manifest = jobset("x", "v5e:4x4", "image", WORDS, claim="c")
    pod_of(manifest)[1]["nodeSelectors"] = {}
    with pytest.raises(jsonschema.ValidationError, match="nodeSelectors"):
        jsonschema.validate(manifest, SET)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topology": "v4:2x2x1"}, "expected one of v5e, v5p, v6e"),
        ({"topology": "v5e"}, "v5e has the slices 1x1"),
        ({"topology": "v5e:3x4"}, "v5e has the slices 1x1"),
        ({"topology": "v6e:2x2x1"}, "v6e has the slices 1x1"),
        ({"topology": "v5p:4x4"}, "three rising multiples of four"),
        ({"topology": "v5p:8x4x4"}, "three rising multiples of four"),
        ({"topology": "v5p:4x4x0"}, "three rising multiples of four"),
        ({"topology": "v5e:4x4", "chips_per_host": 8}, "--chips_per_host=8: no machine"),
        ({"topology": "v5p:2x2x1", "chips_per_host": 1}, "--chips_per_host=1: no machine"),
        ({"topology": "v5e:2x4", "chips_per_host": 2}, "--chips_per_host=2: no machine"),
        ({"name": "X"}, "small letters"),
        ({"name": "x" * 41}, "at most 40"),
        ({"words": []}, "give the command after --"),
        ({"words": ["bertlab", "train"]}, "names no --workdir: bertlab train"),
        ({"words": ["bertlab", "train", "--workdir"]}, "names no --workdir"),
        ({"words": [*WORDS[:-1], "--workdir=runs/x"]}, "--workdir=runs/x is not on the volume, which is at /runs"),
        ({"words": [*WORDS[:-1], "--workdir=/runs/../etc"]}, "--workdir=/runs/../etc is not on the volume"),
        ({"words": [*WORDS, "--workdir", "/etc"]}, "--workdir=/etc is not on the volume"),
        ({"words": [*WORDS, "--config.data.shards=3"]}, "--config.data.shards=3 is no multiple of the 4 hosts"),
        ({"words": [*WORDS, "--config.data.shards", "2"]}, "--config.data.shards=2 is no multiple of the 4 hosts"),
        ({"mirror": "gs://b/x"}, "omit one of them"),
        ({"env": ["WANDB_MODE"]}, "--env=WANDB_MODE: expected NAME=VALUE"),
        ({"env": ["1A=b"]}, "--env=1A=b: expected NAME=VALUE"),
        ({"env": ["JAX_COORDINATOR_ADDRESS=auto"]}, "--env=JAX_COORDINATOR_ADDRESS=auto: all hosts would get the same"),
        ({"env": ["TPU_WORKER_HOSTNAMES="]}, "--env=TPU_WORKER_HOSTNAMES=: all hosts would get the same"),
        ({"env": ["A=1", "A=2"]}, "--env=A= is given twice"),
        ({"service_account": "Trainer"}, "--service_account=Trainer: an account's name"),
        ({"service_account": "a..b"}, "--service_account=a..b: an account's name"),
        ({"claim": "C"}, "--claim=C: a claim's name"),
        ({"claim": "c_d"}, "--claim=c_d: a claim's name"),
        ({"claim": "c-"}, "--claim=c-: a claim's name"),
        ({"claim": "c" * 254}, "a claim's name"),
        ({"claim": ""}, "has 4 hosts, which write to one --workdir; give a --claim"),
        ({"claim": "", "mirror": "gs://b/x"}, "has 4 hosts"),
        ({"claim": "", "topology": "v5e:2x4"}, "would be lost with the pod"),
        ({"claim": "", "topology": "v5e:2x4", "mirror": "bucket"}, "--mirror=bucket: expected gs://"),
        ({"claim": "", "topology": "v5e:2x4", "mirror": "file:///runs/x"}, "--mirror=file:///runs/x: expected gs://"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(change, message):
    given = {"name": "x", "topology": "v5e:4x4", "image": "image", "words": WORDS, "claim": "c"} | change
    with pytest.raises(UserError, match=re.escape(message)) as error:
        jobset(given.pop("name"), given.pop("topology"), given.pop("image"), given.pop("words"), **given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("words", [["--config.data.shards=8"], ["--config.data.shards=0"], ["--workdir=/runs/a/../b"]])
def test_what_trains_on_all_hosts_is_not_refused(words):
    jsonschema.validate(jobset("x", "v5e:4x4", "image", [*WORDS, *words], claim="c"), SET)


def test_chips_of_all_hosts_are_those_of_the_slice():
    for topology in ("v5e:1x1", "v5e:2x2", "v6e:2x4", "v6e:4x8", "v5p:2x4x4", "v5p:4x4x4"):
        _, shape, hosts, chips = hosts_of(topology)
        assert hosts * chips == math.prod(map(int, shape.split("x")))


SAVES = """
import signal, sys, time
def save(*_):
    time.sleep(0.3)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("begun", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


def command_of(seconds, status):
    words = [sys.executable, "-c", SAVES, str(seconds), str(status), "--workdir=/runs/x"]
    return pod_of(jobset("x", "v5e:4x4", "image", words, claim="c"))[1]["containers"][0]["command"]


@pytest.mark.parametrize("status", [0, 3])
def test_a_command_of_a_pod_ends_as_it_ends(status):
    ended = subprocess.run(command_of(0, status), capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (status, "begun\n")


def test_a_pod_that_is_told_to_end_lets_its_command_save_and_has_not_finished():
    """Kubernetes tells only the first process; with status 0 the pod would count as finished."""
    process = subprocess.Popen(command_of(60, 0), stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(0.1)
    assert process.poll() is None, "what is still saving would be killed with the first process"
    os.kill(process.pid, signal.SIGTERM)  # a second one loses nothing
    assert process.communicate(timeout=60)[0] == "saved\n" and process.returncode == 143


def test_the_command_prints_it_or_writes_it(tmp_path, capsys):
    words = ["--topology=v5e:2x4", "--image=image", "--mirror=gs://b/x", "--", *WORDS]
    assert main(["manifest", "--name=x", *words]) == 0
    printed = capsys.readouterr().out
    assert main(["manifest", "--name=x", f"--out={tmp_path}/x.json", *words]) == 0
    assert (tmp_path / "x.json").read_text() == printed
    assert json.loads(printed) == (jobset("x", "v5e:2x4", "image", WORDS, mirror="gs://b/x"))
    assert main(["manifest", "--name=x", *words[:3], "train", "--spot"]) == 2
    assert main(["manifest", "--name=x", *words[:2], "--", "--spot"]) == 2

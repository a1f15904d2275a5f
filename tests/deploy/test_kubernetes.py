"""Manifests for Kubernetes: valid by its schemas, and their commands train."""

from __future__ import annotations

import base64
import functools
import itertools
import json
from contextlib import ExitStack
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from hetero_hvd import exit_codes
from hetero_hvd.agent import service
from hetero_hvd.cli import main
from hetero_hvd.deploy.kubernetes import agents, driver
from hetero_hvd.deploy.kubernetes.manifests import manifests
from hetero_hvd.deploy.kubernetes.network import pod_monitor
from hetero_hvd.deploy.kubernetes.options import KubernetesJob
from hetero_hvd.deploy.kubernetes.pod import literal
from hetero_hvd.driver import job as job_of_a_driver
from hetero_hvd.security.cluster_key import make_key
from tests.deploy.containers import ADDRESS, Pod, expanded, free_ports, with_words
from tests.kit.object_servers import BUCKET, object_server

SCRIPT = Path(__file__).with_name("train.py")
IMAGE = ("--image", "hetero-hvd:0.1.0")
VERSIONS = ("1.31", "1.37")
"""Of Kubernetes: fields that it does not know are an error."""

WAYS = {
    "deployment": ("--gpu", "2", "--cpu", "3"),
    "statefulset": ("--agents", "statefulset", "--gpu", "1", "--cpu", "1"),
    "daemonset": ("--agents", "daemonset", "--gpu", "1", "--cpu", "1"),
    "one pool": ("--cpu", "1"),
    "a volume": ("--cpu", "1", "--volume", "10Gi", "--storage-class", "fast.disks"),
    "elsewhere": ("--cpu", "1", "--checkpoint-url", "s3://bucket/runs"),
    "on a server of ours": (
        *("--cpu", "1", "--checkpoint-url", "s3://bucket/runs"),
        *("--s3-endpoint", "http://minio:9000"),
    ),
    "watched": ("--gpu", "1", "--monitoring-namespace", "monitoring"),
    "a cloud": ("--gpu", "1", "--cloud", "aws", "--allow-https"),
    "told": ("--cpu", "1", "--annotate"),
    "a script": ("--cpu", "1", "--script", str(SCRIPT)),
}


def written(folder, *flags, command=("train.py",)):
    """The documents that the command writes, all files together."""
    assert main(["deploy", "kubernetes", str(folder), *IMAGE, *flags, "--", *command]) == 0
    files = sorted(folder.iterdir())
    assert files
    return list(itertools.chain(*(yaml.safe_load_all(file.read_text()) for file in files)))


def of_kind(documents, *kinds):
    """Those of some kinds."""
    return [document for document in documents if document["kind"] in kinds]


def templates(documents):
    """The pod templates."""
    sets = of_kind(documents, "Job", "Deployment", "StatefulSet", "DaemonSet")
    return [document["spec"]["template"] for document in sets]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_manifest_is_valid(tmp_path, monkeypatch, version):
    """By the schemas of Kubernetes, strictly; PodMonitor is not its own."""
    read_once = functools.cache(kubernetes_validate.utils.schema_contents)
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", read_once)
    documents = {
        json.dumps(document): document
        for name, flags in WAYS.items()
        for document in written(tmp_path / name, *flags)
        if document["kind"] != "PodMonitor"
    }
    for document in documents.values():  # each once: most are the same in all ways
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("flags", WAYS.values(), ids=WAYS.keys())
def test_whatever_is_named_is_there(tmp_path, flags):
    """Volumes, claims, ports, selectors and services point at something."""
    documents = written(tmp_path, *flags)
    claims = {one["metadata"]["name"] for one in of_kind(documents, "PersistentVolumeClaim")}
    (config,) = of_kind(documents, "ConfigMap")
    (service_of_driver,) = of_kind(documents, "Service")
    for template in templates(documents):
        spec, labels = template["spec"], template["metadata"]["labels"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for container in spec["initContainers"] + spec["containers"]:
            ports = {port["name"] for port in container.get("ports", ())}
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
            for mount in container["volumeMounts"]:
                assert mount.get("subPath", "nodes.yaml") in config["data"]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                for how in ("tcpSocket", "httpGet"):
                    assert container.get(probe, {}).get(how, {}).get("port") in {None, *ports}
        assert volumes["config"]["configMap"]["name"] == config["metadata"]["name"]
        if "persistentVolumeClaim" in volumes["runs"]:
            assert volumes["runs"]["persistentVolumeClaim"]["claimName"] in claims
        if labels["app.kubernetes.io/component"] == "driver":
            assert service_of_driver["spec"]["selector"].items() <= labels.items()
    for workload in of_kind(documents, "Deployment", "StatefulSet", "DaemonSet"):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("flags", WAYS.values(), ids=WAYS.keys())
def test_pods_keep_to_the_restricted_profile(tmp_path, flags):
    """Nobody is root, nothing is gained, no token of the cluster, no secret in any word."""
    for template in templates(written(tmp_path, *flags)):
        spec = template["spec"]
        is_driver = template["metadata"]["labels"]["app.kubernetes.io/component"] == "driver"
        has_token = is_driver and "--annotate" in flags
        assert spec["automountServiceAccountToken"] is has_token
        assert ("serviceAccountName" in spec) is has_token
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["initContainers"] + spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert set(container["resources"]) == {"requests", "limits"}
            for source in container.get("envFrom", ()):  # credentials of the user, if he has any
                assert source == {"secretRef": {"name": "train-env", "optional": True}}
            for variable in container.get("env", ()):
                assert "secretKeyRef" not in variable.get("valueFrom", {})


def test_pods_have_the_time_that_their_processes_take():
    """An agent's workers leave in it, and so do all of a driver."""
    takes_seconds = service.GOODBYE_SECONDS + service.LEAVE_SECONDS + 10
    assert takes_seconds < agents.GRACE_SECONDS
    assert driver.GRACE_SECONDS > 2 * (job_of_a_driver.LEAVE_SECONDS + job_of_a_driver.KILL_SECONDS)


POOLS = {
    ("deployment", "gpu"): ("Deployment", 2, {"nvidia.com/gpu": "4"}),
    ("deployment", "cpu"): ("Deployment", 3, {}),
    ("statefulset", "gpu"): ("StatefulSet", 2, {"nvidia.com/gpu": "4"}),
    ("statefulset", "cpu"): ("StatefulSet", 3, {}),
    ("daemonset", "gpu"): ("DaemonSet", None, {"nvidia.com/gpu": "4"}),
    ("daemonset", "cpu"): ("DaemonSet", None, {}),
}


@pytest.mark.parametrize(("kind", "pool"), POOLS)
def test_pools_are_what_was_asked_for(kind, pool):
    """Each set has its number, its GPUs, and no GPU where there should be none."""
    job = KubernetesJob(
        name="a",
        image="b",
        command=("c",),
        agents=kind,
        num_gpu_agents=2,
        num_cpu_agents=3,
        gpus_per_agent=4,
    )
    found = next(s for s in manifests(job)["agents.yaml"] if s["metadata"]["name"] == f"a-{pool}")
    expected_kind, number, gpus = POOLS[kind, pool]
    assert (found["kind"], found["spec"].get("replicas")) == (expected_kind, number)
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "8Gi"} | gpus
    hides = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    assert hides == (pool == "cpu")


THREADS = {
    ("4", 1): ("limits.cpu", "limits.cpu"),
    ("6.5", 1): ("6", "6"),
    ("8", 4): ("2", "limits.cpu"),
    ("7", 2): ("3", "limits.cpu"),
    ("2", 4): ("1", "limits.cpu"),
    ("500m", 2): ("1", "1"),
    ("6500m", 2): ("3", "6"),
    ("6.5", 3): ("2", "6"),
}
"""Cores and GPUs of an agent to the threads of each of its workers, and of one without GPUs: of
parts of a core Kubernetes would make a whole one."""


@pytest.mark.parametrize(("cores", "gpus"), THREADS)
def test_the_workers_of_a_pod_share_its_cores(cores, gpus):
    """One for each GPU; on a pod without any there is one, which has all."""
    job = KubernetesJob(
        name="a",
        image="b",
        command=("c",),
        num_gpu_agents=1,
        num_cpu_agents=1,
        gpus_per_agent=gpus,
        agent_cpu=cores,
    )
    found = []
    for template in templates(manifests(job)["agents.yaml"]):
        (container,) = template["spec"]["containers"]
        (one,) = [v for v in container["env"] if v["name"] == "OMP_NUM_THREADS"]
        found.append(one.get("value") or one["valueFrom"]["resourceFieldRef"]["resource"])
    assert found == [*THREADS[cores, gpus]]


def test_the_pod_monitor_says_what_the_operator_asks_for():
    """A CRD: its fields are those of monitoring.coreos.com/v1; see `test_schemas.py`."""
    job = KubernetesJob(name="a", image="b", command=("c",), num_cpu_agents=1)
    found = pod_monitor(job)
    assert (found["apiVersion"], found["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    assert found["spec"].keys() == {"selector", "podMetricsEndpoints"}
    ports = {
        port["name"]
        for template in templates(itertools.chain(*manifests(job).values()))
        for port in template["spec"]["containers"][0]["ports"]
    }
    for endpoint in found["spec"]["podMetricsEndpoints"]:
        assert endpoint["port"] in ports
        assert endpoint["path"] == "/metrics"
        assert endpoint["authorization"]["credentials"] == {"name": "a-keys", "key": "token"}


ENDS = {
    0: "Complete",
    exit_codes.EXIT_FAILED: "again",
    exit_codes.EXIT_USER_ERROR: "FailJob",
    exit_codes.EXIT_REFUSED: "FailJob",
    exit_codes.EXIT_TRY_AGAIN: "again",
    exit_codes.EXIT_HUNG: "again",
    exit_codes.EXIT_NOT_STARTED: "again",
    exit_codes.EXIT_KILLED: "again",
    exit_codes.EXIT_TERMINATED: "again",
    exit_codes.EXIT_NO_CONNECTION: "again",
}
"""What becomes of the Job when its driver ends with a code, in a pod that nobody took away."""


def becomes_of(job, code):
    """As the Job's controller decides: the first rule that fits; else it is a failure."""
    if code == 0:
        return "Complete"
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        wanted = rule.get("onExitCodes", {"operator": "In", "values": []})
        if (code in wanted["values"]) is (wanted["operator"] == "In"):
            return rule["action"]
    return "again" if job["spec"]["backoffLimit"] else "Failed"


def test_only_wrong_input_is_not_tried_again(tmp_path):
    """What another try may mend has another code than what it cannot."""
    (job,) = of_kind(written(tmp_path, "--cpu", "1"), "Job")
    assert {code: becomes_of(job, code) for code in ENDS} == ENDS


def test_rights_are_given_only_where_they_are_asked_for(tmp_path):
    """To patch the driver's own Job, and nothing else; the API server is reached then."""
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    assert of_kind(written(tmp_path / "none", "--cpu", "1"), *kinds) == []
    documents = written(tmp_path / "some", "--cpu", "1", "--annotate")
    account, role, binding = of_kind(documents, *kinds)
    (job,) = of_kind(documents, "Job")
    name = job["metadata"]["name"]
    assert role["rules"] == [
        {"apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": [name], "verbs": ["patch"]}
    ]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    spec = job["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    (container,) = spec["containers"]
    assert container["command"][-2:] == ["--export", f"kubernetes:job/{name}"]
    (policy,) = of_kind(documents, "NetworkPolicy")
    assert [port["port"] for port in policy["spec"]["egress"][-1]["ports"]] == [443, 6443]


WORDS = ("$(POD_IP)", "$$", "$", "a$$(b", "", "a b", "'\"", "ä\n", "$@")
WORDS += (
    "1000000",
    "1e3",
    "-1",
    "0777",
    "0x10",
    "1_000",
    "1.10",
    ".5",
    "1:30",
    "nan",
    "2026-01-01",
)
WORDS += ("yes", "on", "off", "true", "null", "~", "=", "<<")


@pytest.mark.parametrize("word", WORDS)
def test_whatever_stands_after_the_dashes_reaches_the_script(tmp_path, word):
    """Neither YAML nor Kubernetes takes a word for something else."""
    assert expanded(literal(word), {"POD_IP": "10.0.0.1"}) == word
    (job,) = of_kind(written(tmp_path, "--cpu", "1", command=("train.py", word)), "Job")
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [expanded(each, {"POD_IP": "10.0.0.1"}) for each in args] == ["--", "train.py", word]


@pytest.fixture
def start(tmp_path):
    """Starts the pods of the manifests: name of the set to its pod; ends what is left."""
    with ExitStack() as stack:

        def begin(documents, number=1, **changes):
            made = make_pods(tmp_path, documents, number, changes)
            for pod in made.values():
                stack.callback(pod.kill)
                pod.start()
            return made

        yield begin


def make_pods(folder, documents, number, changes):
    """A pod for each set, on ports that are free here; the script's folder is their own."""
    secret = folder / "secret"
    if not secret.exists():
        secret.mkdir()
        make_key(secret / "cluster.key")
        make_key(secret / "token")
    (config,) = of_kind(documents, "ConfigMap")
    nodes = yaml.safe_load(config["data"]["nodes.yaml"])
    nodes["job"] |= changes
    data = config["data"] | {"nodes.yaml": yaml.safe_dump(nodes)}
    data |= {name: base64.b64decode(text) for name, text in config.get("binaryData", {}).items()}
    return {
        workload["metadata"]["name"]: Pod(
            workload["spec"]["template"],
            f"{workload['metadata']['name']}-{number}",
            folder,
            secret=secret,
            config=data,
            claims=folder / "shared",
        )
        for workload in of_kind(documents, "Job", "Deployment", "StatefulSet", "DaemonSet")
    }


def on_free_ports(documents):
    """The same job on the loopback, where other tests have ports, too."""
    ports = dict(zip(("9388", "9389", "8080"), map(str, free_ports(3)), strict=True))
    names = {"train-driver:9389": f"{ADDRESS}:{ports['9389']}"}
    everywhere = {"0.0.0.0": ADDRESS}  # noqa: S104 - is not listened at
    return with_words(documents, ports | names | everywhere)


@pytest.mark.process
def test_the_commands_train_as_local_processes(tmp_path, start):
    """Driver and agent by their own words, probes answered; the job ends 0, the agent in order."""
    words = ("train.py", "12", "1e3", "$(POD_IP)", "a b")
    flags = ("--cpu", "1", "--script", str(SCRIPT))
    documents = on_free_ports(written(tmp_path / "files", *flags, command=words))
    pods = start(documents)
    driver_pod, agent_pod = pods["train-driver"], pods["train-cpu"]
    for pod in (driver_pod, agent_pod):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            pod.wait_for(lambda pod=pod, probe=probe: pod.answers(probe))
    assert driver_pod.process.wait(100) == 0, driver_pod.said() + agent_pod.said()
    assert "was told ['1e3', '$(POD_IP)', 'a b']" in driver_pod.said()
    assert "refused" not in agent_pod.said()
    assert agent_pod.stop() == 0


@pytest.fixture(params=["volume", pytest.param("store", marks=pytest.mark.matrix)])
def kept(request, tmp_path, monkeypatch):
    """Where checkpoints outlive pods: the flags for it, and a question for those that there are.

    The store is a real one of S3's kind, whose credentials all containers have, as by the Secret.
    """
    if request.param == "volume":
        runs = tmp_path / "shared" / "runs" / "train"
        yield ("--volume", "1Gi"), lambda: list(runs.glob("checkpoints/step-*"))
        return
    fsspec, _ = pytest.importorskip("fsspec"), pytest.importorskip("s3fs")
    with object_server("s3", tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        below = f"{BUCKET}/some/jobs"
        files = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)
        yield (
            ("--checkpoint-url", f"s3://{below}"),
            lambda: [path for path in files.find(below) if path.endswith("manifest.json")],
        )


@pytest.mark.process
@pytest.mark.timeout(400)
def test_a_driver_whose_node_fails_goes_on_by_itself(tmp_path, start, kept):
    """Its next pod finds the checkpoint; the agent stays, and takes the new job.

    A job of another name does not, though it keeps its checkpoints in the same place.
    """
    flags, checkpoints = kept
    flags = ("--cpu", "1", "--script", str(SCRIPT), *flags)
    documents = on_free_ports(written(tmp_path / "files", *flags, command=("train.py", "25")))
    pods = start(documents, checkpoint_seconds=0.5)
    lost = pods["train-driver"]
    lost.wait_for(checkpoints)
    lost.kill()
    jobs = of_kind(documents, "Job", "ConfigMap")
    found = start(jobs, number=2, checkpoint_seconds=0.5)["train-driver"]
    assert found.process.wait(120) == 0, found.said() + pods["train-cpu"].said()
    assert found.said().count("has found") == 1
    if "--volume" in flags:  # whose folders are apart
        return
    words = json.dumps(jobs)
    assert words.count('"/runs/train"') == 1
    other = json.loads(words.replace('"/runs/train"', '"/runs/other"').replace('"25"', '"1"'))
    fresh = start(other, number=3)["train-driver"]
    assert fresh.process.wait(120) == 0, fresh.said() + pods["train-cpu"].said()
    assert "has found" not in fresh.said()

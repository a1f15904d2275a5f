"""What no validator here knows, a PodMonitor and a Compose file: by schemas of what we write.

They say of each field that is written what the operator's CRD (monitoring.coreos.com/v1) and the
Compose specification say of it. A field that they lack is an error: one that is written anew has to
be looked up there first, and added here.
"""

import copy
import itertools

import jsonschema
import pytest
import yaml

from hetero_hvd.cli import main
from tests.deploy.test_kubernetes import SCRIPT, of_kind, written

TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1}
LABELS = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}}
NAME = {"type": "string", "pattern": r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "maxLength": 253}


def record(required, **optional):
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": required | optional,
        "required": sorted(required),
        "additionalProperties": False,
    }


CREDENTIALS = record({"name": NAME, "key": {"type": "string", "pattern": r"^[-._a-zA-Z0-9]+$"}})
LABEL_NAME = {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}
RELABELING = record(
    {
        "sourceLabels": {"type": "array", "items": LABEL_NAME},
        "regex": {"type": "string"},
        "targetLabel": LABEL_NAME,
    }
)
ENDPOINT = record(
    {
        "port": {"type": "string", "pattern": r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", "maxLength": 15},
        "path": {"type": "string", "pattern": "^/"},
        "interval": {
            "type": "string",
            "pattern": r"^(\d+h)?(\d+m)?(\d+s)?(\d+ms)?$",
            "minLength": 2,
        },
        "authorization": record({"type": {"const": "Bearer"}, "credentials": CREDENTIALS}),
        "metricRelabelings": {"type": "array", "items": RELABELING},
    }
)
POD_MONITOR = record(
    {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "kind": {"const": "PodMonitor"},
        "metadata": record({"name": NAME, "labels": LABELS}),
        "spec": record(
            {
                "selector": record({"matchLabels": LABELS | {"minProperties": 1}}),
                "podMetricsEndpoints": {"type": "array", "items": ENDPOINT, "minItems": 1},
            }
        ),
    }
)

DURATION = {"type": "string", "pattern": r"^(\d+h)?(\d+m)?(\d+s)?$", "minLength": 2}
ADDRESS = {"type": "string", "format": "ipv4"}
MOUNT = {"type": "string", "pattern": r"^\./[^:]+:/[^:]+(:ro)?$"}
PORT = {"type": "string", "pattern": r"^127\.0\.0\.1:\d{1,5}:\d{1,5}$"}
HEALTH = record(
    {
        "test": {
            "type": "array",
            "items": TEXT,
            "minItems": 2,
            "prefixItems": [{"enum": ["CMD", "CMD-SHELL"]}],
        }
    },
    interval=DURATION,
    timeout=DURATION,
    start_period=DURATION,
    retries={"type": "integer", "minimum": 1},
)
SERVICE = record(
    {"image": TEXT},
    user={"type": "string", "pattern": r"^\d+:\d+$"},
    init={"type": "boolean"},
    read_only={"type": "boolean"},
    cap_drop=TEXTS,
    security_opt=TEXTS,
    shm_size={"type": "string", "pattern": r"^\d+(b|k|kb|m|mb|g|gb)$"},
    tmpfs=TEXTS,
    environment={"type": "object", "additionalProperties": {"type": "string"}},
    networks={
        "type": "object",
        "additionalProperties": record({"ipv4_address": ADDRESS}),
        "minProperties": 1,
    },
    network_mode={"type": "string", "pattern": "^service:[a-z]+$"},
    volumes={"type": "array", "items": MOUNT, "minItems": 1},
    ports={"type": "array", "items": PORT, "minItems": 1},
    command=TEXTS,
    cpus={"type": "number", "exclusiveMinimum": 0},
    restart={"type": "string", "pattern": r"^(no|always|unless-stopped|on-failure(:\d+)?)$"},
    stop_grace_period=DURATION,
    healthcheck=HEALTH,
) | {"not": {"required": ["networks", "network_mode"]}}
SUBNET = record({"subnet": {"type": "string", "pattern": r"^(\d{1,3}\.){3}0/\d{2}$"}})
IPAM = record({"config": {"type": "array", "items": SUBNET, "minItems": 1}})
COMPOSE = record(
    {
        "name": {"type": "string", "pattern": r"^[a-z0-9][a-z0-9_-]*$"},
        "services": {"type": "object", "propertyNames": NAME, "additionalProperties": SERVICE},
        "networks": {"type": "object", "additionalProperties": record({"ipam": IPAM})},
    }
)


VALIDATOR = jsonschema.Draft202012Validator


@pytest.mark.parametrize("schema", [POD_MONITOR, COMPOSE], ids=["a PodMonitor", "Compose"])
def test_a_schema_is_one(schema):
    """A word that it does not know would be taken for a remark."""
    VALIDATOR.check_schema(schema)


def check(document, schema):
    """Refuse what is not as it must be.

    Raises:
        jsonschema.ValidationError: Says where.
    """
    VALIDATOR(schema, format_checker=VALIDATOR.FORMAT_CHECKER).validate(document)


WATCHED = ("--gpu", "1", "--cpu", "2", "--monitoring-namespace", "monitoring")


def by_a_chart(folder):
    """What Helm makes of it, for a release with a name of its own."""
    from tests.deploy.test_chart import chart, rendered  # noqa: PLC0415 - skips where Helm is not

    return rendered(chart(folder, *WATCHED), name="digits")


MONITORS = {"manifests": lambda folder: written(folder, *WATCHED), "a chart": by_a_chart}


@pytest.mark.parametrize("way", MONITORS)
def test_a_pod_monitor_is_one_that_the_operator_takes(tmp_path, way):
    """As it is written, and as Helm renders it."""
    (monitor,) = of_kind(MONITORS[way](tmp_path / "d"), "PodMonitor")
    check(monitor, POD_MONITOR)


def composed(folder, *flags):
    """The Compose file that the command writes."""
    assert main(["deploy", "compose", str(folder), "--image", "a:1", *flags]) == 0
    return yaml.safe_load((folder / "compose.yaml").read_text())


COMPOSED = {"the demo": (), "a script": ("--script", str(SCRIPT)), "words": ("--", "a", "$b", "1")}


@pytest.mark.parametrize("case", COMPOSED)
def test_a_compose_file_is_one_that_compose_takes(tmp_path, case):
    """Each service's network and each service that shares one is there."""
    found = composed(tmp_path / "c", *COMPOSED[case])
    check(found, COMPOSE)
    services = found["services"]
    assert {name for one in services.values() for name in one.get("networks", ())} == {
        *found["networks"]
    }
    modes = [one["network_mode"] for one in services.values() if "network_mode" in one]
    assert {mode.removeprefix("service:") for mode in modes} < services.keys()


MISSING = object()
MONITOR_FAULTS = {
    ("apiVersion",): ("v1", MISSING),
    ("kind",): ("ServiceMonitor", MISSING),
    ("metadata", "name"): ("A_b", MISSING),
    ("metadata", "more"): ("a",),
    ("spec", "selector"): ({}, {"matchLabels": {}}, {"app": "a"}, MISSING),
    ("spec", "endpoints"): ([],),
    ("spec", "podMetricsEndpoints"): ([], {}, MISSING),
    ("spec", "podMetricsEndpoints", 0, "port"): (8080, "a port", "", MISSING),
    ("spec", "podMetricsEndpoints", 0, "path"): ("metrics",),
    ("spec", "podMetricsEndpoints", 0, "interval"): (5, "5", "five", "s"),
    ("spec", "podMetricsEndpoints", 0, "bearerToken"): ("a",),
    ("spec", "podMetricsEndpoints", 0, "authorization", "type"): ("Basic", "token"),
    ("spec", "podMetricsEndpoints", 0, "authorization", "credentials", "key"): (1, MISSING),
}
COMPOSE_FAULTS = {
    ("version",): ("3",),
    ("services", "driver", "image"): ("", 1, MISSING),
    ("services", "driver", "comand"): (["a"],),
    ("services", "driver", "init"): ("yes",),
    ("services", "driver", "user"): (0, "root"),
    ("services", "driver", "volumes"): (["keys:/keys"], ["./keys"], [{}]),
    ("services", "driver", "ports"): ([8080], ["8080:8080"], ["0.0.0.0:8080:8080"]),
    ("services", "driver", "healthcheck", "test", 0): ("python",),
    ("services", "driver", "healthcheck", "interval"): (20, "20"),
    ("services", "driver", "healthcheck", "tries"): (3,),
    ("services", "driver", "network_mode"): ("service:prometheus",),
    ("services", "driver", "networks", "job", "ipv4_address"): ("172.30.77", "a"),
    ("services", "alpha", "cpus"): ("half", 0),
    ("services", "alpha", "restart"): ("never", False),
    ("services", "alpha", "environment"): (["A"], {"A": 1}),
    ("networks", "job", "ipam", "config", 0, "subnet"): ("172.30.77",),
}
FAULTS = [
    *itertools.product(["a PodMonitor"], [(k, v) for k, vs in MONITOR_FAULTS.items() for v in vs]),
    *itertools.product(["Compose"], [(k, v) for k, vs in COMPOSE_FAULTS.items() for v in vs]),
]


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Both as they are written, with their schemas."""
    folder = tmp_path_factory.mktemp("documents")
    (monitor,) = of_kind(written(folder / "k", *WATCHED), "PodMonitor")
    return {"a PodMonitor": (monitor, POD_MONITOR), "Compose": (composed(folder / "c"), COMPOSE)}


def test_what_is_not_as_it_must_be_is_found(documents):
    """Fields with a typo, of another kind, of another form, and those that are missing."""
    unseen = []
    for kind, (path, value) in FAULTS:
        document, schema = documents[kind]
        changed = copy.deepcopy(document)
        place = changed
        for part in path[:-1]:
            place = place[part]
        if value is MISSING:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        try:
            check(changed, schema)
        except jsonschema.ValidationError:
            continue
        unseen.append((kind, path, value))
    assert unseen == []

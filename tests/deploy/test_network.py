"""Who may talk with the pods of a job, and where they may go."""

import pytest

from tests.deploy.test_kubernetes import of_kind, templates, written

NETWORKS = {
    (): set(),
    ("--cloud", "aws"): {("169.254.169.254/32", 80)},
    ("--cloud", "gcp"): {("169.254.169.254/32", 80), ("169.254.169.252/32", 988)},
    ("--checkpoint-url", "gs://b/x"): {("169.254.169.254/32", 80), ("169.254.169.252/32", 988)},
    ("--checkpoint-url", "s3://b/x"): set(),
}


@pytest.mark.parametrize("flags", NETWORKS)
def test_pods_reach_the_metadata_service_that_they_need(tmp_path, flags):
    """And GKE's own, to which it leads them; nobody else does."""
    (policy,) = of_kind(written(tmp_path, "--cpu", "1", *flags), "NetworkPolicy")
    found = {
        (to["ipBlock"]["cidr"], port["port"])
        for rule in policy["spec"]["egress"]
        for to in rule.get("to", ())
        if "ipBlock" in to
        for port in rule["ports"]
    }
    assert found == NETWORKS[flags]


S3 = ("--checkpoint-url", "s3://b/x")
PORTS = {
    (): [],
    S3: [443],
    ("--checkpoint-url", "gs://b/x"): [443],
    (*S3, "--s3-endpoint", "http://minio:9000"): [9000],
    (*S3, "--s3-endpoint", "https://minio.here:9000/"): [9000],
    (*S3, "--s3-endpoint", "http://10.0.0.1"): [80],
    (*S3, "--s3-endpoint", "https://minio"): [443],
    ("--s3-endpoint", "http://minio:9000"): [9000],
    ("--s3-endpoint", "http://minio:9000", "--allow-https"): [443, 9000],
    ("--checkpoint-url", "gs://b/x", "--s3-endpoint", "http://minio:9000"): [443, 9000],
}


@pytest.mark.parametrize("flags", PORTS, ids=" ".join)
def test_pods_reach_the_servers_that_the_job_names(tmp_path, flags):
    """At their ports; all pods are told where s3:// is."""
    documents = written(tmp_path, "--cpu", "1", *flags)
    (policy,) = of_kind(documents, "NetworkPolicy")
    outside = [rule for rule in policy["spec"]["egress"][2:] if "to" not in rule]
    assert [port["port"] for rule in outside for port in rule["ports"]] == PORTS[flags]
    told = [flags[flags.index("--s3-endpoint") + 1]] if "--s3-endpoint" in flags else []
    for template in templates(documents):
        (container,) = template["spec"]["containers"]
        found = [one["value"] for one in container["env"] if one["name"] == "AWS_ENDPOINT_URL"]
        assert found == told


def test_only_the_jobs_own_pods_and_prometheus_come_in(tmp_path):
    """All ports among its own; names; the metadata service and HTTPS where they were asked for."""
    (policy,) = of_kind(written(tmp_path / "a", "--cpu", "1"), "NetworkPolicy")
    own = {"podSelector": policy["spec"]["podSelector"]}
    assert policy["spec"]["ingress"] == [{"from": [own]}]
    names, dns = policy["spec"]["egress"]
    assert names == {"to": [own]}
    named = {(port["protocol"], port["port"]) for port in dns["ports"]}
    assert named == {("UDP", 53), ("TCP", 53), ("UDP", 5353), ("TCP", 5353)}
    flags = ("--cpu", "1", "--cloud", "gcp", "--allow-https", "--monitoring-namespace", "watch")
    (policy,) = of_kind(written(tmp_path / "b", *flags), "NetworkPolicy")
    assert [rule["ports"][0]["port"] for rule in policy["spec"]["egress"][2:]] == [443, 80, 988]
    _, prometheus = policy["spec"]["ingress"]
    assert [port["port"] for port in prometheus["ports"]] == [8080, 9388]

"""The settings of the guard: what is taken, and the one line for what is not."""

import pytest

from hetero_hvd.config import GuardConfig, effective_settings
from hetero_hvd.config.resolve import parse_cluster
from hetero_hvd.core.guard.limits import GuardLimits
from hetero_hvd.errors import ConfigError

NODES = "nodes: [{name: alpha}]\n"
PRIVATE_URL = "https://hooks.example.org/services/T0/s3cret?key=s3cret"


def load(tmp_path, guard, job=""):
    """Settings with this guard."""
    content = f"{NODES}{job}{guard}\n".encode()
    return parse_cluster([(tmp_path / "nodes.yaml", content)], environment={}, flags={})


def test_without_the_key_there_is_none(tmp_path):
    """Nor with the key alone; an empty mapping has all defaults."""
    assert load(tmp_path, "").guard is load(tmp_path, "guard:").guard is None
    assert load(tmp_path, "guard: {}").guard == GuardConfig()
    assert GuardConfig().limits == GuardLimits()


def test_every_key(tmp_path):
    """`off` is a word here, whatever YAML takes it for."""
    guard = load(
        tmp_path,
        "guard: {temperature: 80.5, cpu_temperature: 0, for_seconds: 0, return_degrees: 5, "
        f"return_seconds: 3, throttled: off, xid: alert, ecc: drain, webhook: '{PRIVATE_URL}', "
        "command: [notify, --token, s3cret]}",
    ).guard
    assert guard.limits == GuardLimits(
        temperature=80.5,
        cpu_temperature=0,
        for_seconds=0,
        return_degrees=5,
        return_seconds=3,
        throttled="off",
        xid="alert",
        ecc="drain",
    )
    assert (guard.webhook, guard.command) == (PRIVATE_URL, ("notify", "--token", "s3cret"))


def test_no_listing_shows_a_secret(tmp_path):
    """`hetero-hvd config` says that there is a webhook, not which."""
    cluster = load(tmp_path, f"guard: {{webhook: '{PRIVATE_URL}', command: [n, --token, s3cret]}}")
    told = {name: value for name, value, _ in effective_settings(cluster)}
    assert told["guard.webhook"] == "(set)"
    assert told["guard.command"] == "[n, --token, (hidden)]"
    assert told["guard.temperature"] == "87.0"


NUMBER = "must be a number of at least 0 and at most 150"
REPLY = "must be 'drain' or 'alert' or 'off'"
URL = "must be a URL such as https://example.org/hook, of http or https, without blanks"
COMMAND = "must be a list of a program and its arguments, such as [notify, --loud]"
WRONG = {
    "{temperatur: 80}": "guard.temperatur: unknown key; nearest known key is 'temperature'",
    "{temperature: hot}": f"guard.temperature: found 'hot', {NUMBER}",
    "{temperature: -1}": f"guard.temperature: found '-1', {NUMBER}",
    "{temperature: 151}": f"guard.temperature: found '151', {NUMBER}",
    "{temperature: .nan}": f"guard.temperature: found '.nan', {NUMBER}",
    "{temperature: [87]}": f"guard.temperature: found a list, {NUMBER}",
    "{temperature: 10}": "guard.temperature: found 10, must be above return_degrees or 0",
    "{cpu_temperature: 9}": "guard.cpu_temperature: found 9, must be above return_degrees or 0",
    "{return_degrees: 0}": "guard.return_degrees: found '0', must be a number above 0 and at most "
    "150",
    "{for_seconds: 1e9}": "guard.for_seconds: found '1e9', must be a number of at least 0 and at "
    "most 3600",
    "{xid: maybe}": f"guard.xid: found 'maybe', {REPLY}",
    "{ecc: true}": f"guard.ecc: found 'true', {REPLY}",
    "{throttled: 1}": f"guard.throttled: found '1', {REPLY}",
    "{webhook: ftp://s3cret}": f"guard.webhook: {URL}",
    "{webhook: 'https://h:s3cret/'}": f"guard.webhook: {URL}",
    "{webhook: 'https://h:70000/s3cret'}": f"guard.webhook: {URL}",
    "{webhook: 'https:///s3cret'}": f"guard.webhook: {URL}",
    "{webhook: 'https://h/s3cret s3cret'}": f"guard.webhook: {URL}",
    "{webhook: 5}": f"guard.webhook: {URL}",
    "{command: notify --loud}": f"guard.command: found 'notify --loud', {COMMAND}",
    "{command: ['']}": "guard.command[0]: found '', must be a text without NUL, not empty",
    "on": "guard: found 'on', must be a mapping of keys to values",
}


@pytest.mark.parametrize(("guard", "complaint"), WRONG.items())
def test_what_is_wrong_is_one_line(tmp_path, guard, complaint):
    """File, line, key, what was found unless it may be secret, and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"guard: {guard}")
    assert caught.value.problems == (f"{tmp_path}/nodes.yaml:2: {complaint}",)
    assert "s3cret" not in str(caught.value)


def test_it_needs_samples(tmp_path):
    """A guard that is never told anything would guard nothing."""
    with pytest.raises(ConfigError, match=r"sample_seconds: found 0, must be at least 1 for guard"):
        load(tmp_path, "guard: {}", job="job: {sample_seconds: 0}\n")


def test_objects_are_checked_like_the_file():
    """And their secret is not shown either."""
    with pytest.raises(ConfigError, match="webhook: must be a URL") as caught:
        GuardConfig(webhook="gopher://s3cret")
    assert "s3cret" not in str(caught.value)

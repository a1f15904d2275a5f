"""The queue over HTTP and from Python: the same verbs, for who shows a user's token."""

from __future__ import annotations

import base64
import json
import os
import pwd
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import hetero_hvd
from hetero_hvd.discovery.submission.working_tree import packed_tree
from tests.hub.queue.queue_rig import QueueHub, until
from tests.hub.queue.test_queue_orders import SECRET, submission
from tests.hub.rig import free_port
from tests.kit.checkout import variables

OWN = pwd.getpwuid(os.geteuid()).pw_name
TOKENS = {OWN: "o" * 20, "nobody": "n" * 20}
QUICK = "print('done')"


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """One with a token for each of two users."""
    folder = tmp_path_factory.mktemp("hub")
    port = free_port()
    words = ["--http-port", str(port)]
    for name, token in TOKENS.items():
        (folder / name).write_text(token)
        (folder / name).chmod(0o600)
        words += ["--queue-token", f"{name}={name}"]
    found = QueueHub(folder, words=words)
    found.url = f"http://127.0.0.1:{port}/v1/queue"
    (folder / "tree" / "train.py").write_text(QUICK)
    found.start()
    yield found
    found.close()


def asked(hub, path="", body=None, *, user=OWN):
    """Status and content of an answer."""
    request = urllib.request.Request(hub.url + path)  # noqa: S310 - a hub's
    if user is not None:
        request.add_header("Authorization", f"Bearer {TOKENS.get(user, user)}")
    if body is not None:
        request.data = json.dumps(body).encode()
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - a hub's
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def posted(hub, **more):
    """What a job of the tree's script is."""
    tree = packed_tree(hub.folder / "tree")
    submitted = submission(tree, environment=variables() | {"API_TOKEN": SECRET}, **more).submitted
    facts = {name: getattr(submitted, name) for name in submitted.__struct_fields__}
    return facts | {"packed": base64.b64encode(tree).decode()}


def test_a_job_over_http(hub):
    """Submitted, explained, held, released, read and cancelled by its user alone."""
    status, taken = asked(hub, "/jobs", posted(hub, min_devices=3, max_devices=3))
    number = taken["job"]
    assert status == 200
    assert taken["why"] == f"{number} waits: default has 2 devices, and it needs 3"
    about = f"/jobs/{number}"
    assert asked(hub, f"{about}/why") == (200, {"why": taken["why"]})
    status, told = asked(hub, f"{about}/cancel", {}, user="nobody")
    assert (status, told["error"]) == (409, f"job {taken['job']}: is of {OWN}, not of nobody")
    assert asked(hub, f"{about}/hold", {})[1]["why"].startswith(f"{taken['job']} is held")
    assert asked(hub, f"{about}/release", {}) == (200, {"why": taken["why"]})
    assert asked(hub, f"{about}/move", {"priority": "low"}) == (200, {"why": taken["why"]})
    assert hub.job(number)["priority"] == "low"
    assert asked(hub, f"{about}/move", {"pool": "prod"})[0] == 409
    status, listing = asked(hub, user="nobody")
    assert status == 200
    assert SECRET not in json.dumps(listing)
    assert listing["jobs"][-1]["script"] == "train.py"
    assert asked(hub, f"{about}/logs") == (200, {"text": "", "next": 0, "is_over": False})
    assert asked(hub, f"{about}/cancel", {})[0] == 200
    assert asked(hub, f"{about}/logs")[1]["is_over"]


def test_prometheus_scrapes_it(hub):
    """Who may look may scrape."""
    url = hub.url.replace("/v1/queue", "/metrics")
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - a hub's
        lines = answer.read().decode().splitlines()
    assert 'hetero_hvd_queue_devices{pool="default",state="free"} 2.0' in lines
    assert 'hetero_hvd_queue_longest_wait_seconds{pool="default"} 0.0' in lines


def test_nobody_asks_without_a_token(hub):
    """Nor with another one, nor with that of another role."""
    for user in (None, "x" * 20):
        assert asked(hub, user=user)[0] == 401
        assert asked(hub, "/jobs", posted(hub), user=user)[0] == 401


def test_a_job_from_python_and_the_command_line(hub, monkeypatch, capfd):
    """Listed, followed to its end, and explained; what is wrong is one line."""
    monkeypatch.chdir(hub.folder / "tree")
    monkeypatch.setenv("HETERO_HVD_QUEUE", str(hub.socket))
    number = hetero_hvd.submit(["train.py"], settings={"progress_seconds": 1})

    def said(*words):
        done = subprocess.run(
            [sys.executable, "-m", "hetero_hvd", *words],
            env=variables(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    code, output, _ = said("queue", "logs", "-f", str(number))
    assert code == 0
    assert "[alpha:0] done\n" in output
    until(lambda: hub.job(number)["state"] == "ended", lambda: hub.log_of(number))
    ended = f"{number} has ended: it failed: script error; "
    ended += f"`hetero-hvd queue logs {number}` has it\n"
    assert said("queue", "why", str(number)) == (0, ended, "")
    assert "has ended" in " ".join(said("queue")[1].split())
    code, output, _ = said("submit", "--min", "3", "--after", str(number), "--", "train.py", "-x")
    assert (code, output) == (0, f"job {number + 1}\n")
    until(lambda: hub.job(number + 1)["state"] == "ended", lambda: "its end")
    wrong = {
        ("queue", "dance"): "queue: found 'dance', must be one of ",
        ("queue", "why"): "queue why: needs the number of a JOB",
        ("queue", "move", "1"): "queue move: needs --pool or --priority",
        ("queue", "hold", "1", "--pool", "x"): "queue hold: does not take --pool, which is of move",
        ("queue", "move", "1", "--priority", "x"): "--priority: found 'x', must be high or ",
        ("queue", "why", "999"): "job 999: there is none of that number; ",
        ("queue", "hold", str(number)): f"job {number} has ended already: ",
        ("submit", "--needs", "fast", "--", "train.py"): "needs: found 'fast', must be ",
        ("submit", "--max", "0", "--", "train.py"): "--max: found '0', must be ",
        ("submit", "--after", "999", "--", "train.py"): f"job '{number + 2}': it is to follow ",
        ("queue", "--socket", "no"): "no queue answers at no: ",
    }
    for words, line in wrong.items():
        code, output, errors = said(*words)
        assert (code, output) == (75 if "no" in words else 2, ""), words
        assert errors.startswith(f"hetero-hvd: {line}"), words
        assert errors.count("\n") == 1
    assert capfd.readouterr().out == ""

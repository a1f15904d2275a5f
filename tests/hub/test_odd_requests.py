"""Requests to the hub that no program of ours sends: each is told what is odd."""

from __future__ import annotations

import msgspec
import pytest

from hetero_hvd.core.recording.runs import MAX_TEXT, RunReport
from tests.hub.test_api import run
from tests.hub.test_store import batch

ODD_REQUESTS = {
    "a limit of leading digits": ("/v1/sessions?limit=000000001" + "9" * 5000, {}, 400),
    "a limit behind zeros": ("/v1/sessions?limit=0000000019999", {}, 400),
    "a limit with a point": ("/v1/sessions?limit=1.0", {}, 400),
    "a limit with an exponent": ("/v1/sessions?limit=1e2", {}, 400),
    "a limit twice": ("/v1/sessions?limit=1&limit=2", {}, 400),
    "a parameter that is none": ("/v1/sessions?limt=2", {}, 400),
    "a kind that is none": ("/v1/latest?kind=gpu", {}, 400),
    "a figure that is none": ("/v1/series?node=a&figure=x%27&from=0&to=1", {}, 400),
    "another sign for a digit": ("/v1/sessions?limit=%C2%B2", {}, 400),
    "half an address of a page": ("/v1/cuts", {"Origin": "http://["}, 403),
    "a page of nowhere": ("/v1/cuts", {"Origin": "null"}, 403),
}


@pytest.mark.parametrize(("path", "headers", "code"), ODD_REQUESTS.values(), ids=ODD_REQUESTS)
def test_an_odd_request_is_told(tmp_path, path, headers, code):
    """In words, whatever is odd."""

    async def act(client):
        body = {"name": "x"} if "Origin" in headers else None
        return await client.ask(path, body, **headers)

    status, told, _ = run(tmp_path, act)
    assert status == code
    assert told["error"]


def test_a_cut_from_the_first_second_has_all(tmp_path):
    """0 is 1970, and not now."""

    async def act(client):
        client.store.commit([batch(1, 1)])
        return await client.ask("/v1/cuts", {"name": "all", "from_unix_seconds": 0})

    status, told, _ = run(tmp_path, act)
    assert (status, told["frames"]) == (200, 1)


def test_a_list_of_the_longest_ids_comes_in_parts(tmp_path):
    """What is `next` may be given as `after`."""
    ids = [f"{number}{'r' * (MAX_TEXT - 1)}" for number in range(3)]

    async def act(client):
        for run_id in ids:
            report = RunReport(
                run_id=run_id, name="", host="h", folder="/runs", url=None, nodes=(),
                now_seconds=1.0, started_at_seconds=1.0, ended_at_seconds=None, exit_code=None,
                reason="", last_step=None, first_mark=0, marks=(),
            )  # fmt: skip
            await client.commands.act("report", msgspec.to_builtins(report))
        found, after = [], ""
        while after is not None:
            _, part, _ = await client.ask(f"/v1/runs?limit=1&after={after}", role="read")
            found += [each["id"] for each in part["items"]]
            after = part["next"]
        return found, (await client.ask(f"/v1/runs/{ids[0]}", role="read"))[0]

    assert run(tmp_path, act) == (ids, 200)

"""Who gets nothing over HTTP is told so in one line of the log, too."""

from __future__ import annotations

import asyncio

import pytest

from tests.hub.test_api import api

TURNED_AWAY = {
    "no token": ("/v1/sessions", {"name": "x"}, {"role": None}, "operate"),
    "the token of another role": ("/v1/sessions", {"name": "x"}, {"role": "read"}, "operate"),
    "nothing to look at without a token": ("/v1/status", None, {"role": None}, "read"),
    "a page elsewhere": (
        "/v1/sessions", {"name": "x"}, {"Origin": "http://evil"}, "a page elsewhere"),
    "another host": ("/v1/status", None, {"Host": "evil"}, "this server goes by localhost"),
    "no such path": ("/none", None, {"role": None}, "there is no such path"),
}  # fmt: skip


@pytest.mark.parametrize("case", TURNED_AWAY)
def test_the_log_tells_in_one_line_whom_it_has_refused_and_why(tmp_path, caplog, case):
    """In the words of the answer."""
    path, body, more, words = TURNED_AWAY[case]

    async def act():
        async with api(tmp_path) as client:
            _, answer, _ = await client.ask(path, body, **more)
            for _ in range(100):
                if caplog.records:
                    break
                await asyncio.sleep(0.02)
            return answer["error"]

    told = asyncio.run(act())
    assert words in told
    assert [record.getMessage() for record in caplog.records] == [
        f"http: 127.0.0.1 refused: {told}; 1 so far"
    ]

"""Who asks otherwise gets another content, also out of the cache; who asks the same, the same."""

import base64
import traceback

import pytest

from hetero_hvd.data import Source, TextTable
from hetero_hvd.data.identity import canonical, identity_of
from hetero_hvd.errors import UnreadableError, UserError
from tests.kit.data.versions_server import versions_server

SIGNATURE = "0123456789abcdef"
SIGNED = f"X-Amz-Algorithm=AWS4&X-Amz-Date=20260101T000000Z&X-Amz-Signature={SIGNATURE}"


@pytest.fixture
def server():
    """A server of versions."""
    pytest.importorskip("aiohttp")
    with versions_server() as found:
        yield found


def encoded(user):
    """With a password, as a header has them."""
    return base64.b64encode(f"{user}:secret".encode()).decode()


VERSIONS = {
    "the query": lambda url, version: (f"{url}?version={version}", {}),
    "the query of options": lambda url, version: (url, {"params": {"version": version}}),
    "the user": lambda url, version: (url.replace("://", f"://{version}:secret@"), {}),
    "the user of options": lambda url, version: (
        url,
        {"client_kwargs": {"headers": {"Authorization": f"Basic {encoded(version)}"}}},
    ),
    "a header": lambda url, version: (url, {"headers": {"X-Version": version}}),
    "a path that looks like a secret": lambda url, version: (f"{url}/token={version}", {}),
}


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("way", VERSIONS)
def test_two_versions_behind_one_address_are_told_apart(server, tmp_path, way, is_file):
    """Of the same name and size, without anything that the server says of the content."""
    contents = {"one": b"of one", "two": b"of two"}
    is_path = "path" in way
    for version, content in contents.items():
        folder = f"/f/token={version}" if is_path else "/f"
        server.files[f"{folder}/x.txt", "" if is_path else version] = content
    for expected in (1, 0):
        for version, content in contents.items():
            url, options = VERSIONS[way](f"{server.url}/f", version)
            if is_file:
                address, mark, query = url.partition("?")
                url = f"{address}/x.txt{mark}{query}"
            source = Source(url, storage_options=options, cache_folder=tmp_path, attempts=1)
            (file,) = source.find().files
            assert file.name == "x.txt"
            server.seen.clear()
            assert source.read(file) == content
            assert len(server.seen) == expected


@pytest.mark.parametrize("is_file", [False, True])
def test_a_new_link_to_the_same_content_finds_it_in_the_cache(server, tmp_path, is_file):
    """Each request has the query, whose signature is not that of another content."""
    server.files["/f/x.txt", ""] = b"content"
    url = f"{server.url}/f{'/x.txt' * is_file}"
    for signature, expected in (("aaaa", 1), ("bbbb", 0)):
        server.signature = signature
        source = Source(f"{url}?X-Amz-Signature={signature}&X-Amz-Date=1", cache_folder=tmp_path)
        (file,) = source.find().files
        server.seen.clear()
        assert source.read(file) == b"content"
        assert len(server.seen) == expected


def test_a_signed_link_is_shown_without_its_query(server):
    """In no line, and in no traceback."""
    server.signature = SIGNATURE
    server.files["/f/x.tsv", ""] = b"text\tlabel\na\t1\n"
    table = TextTable(f"{server.url}/f/x.tsv?{SIGNED}", {"text": "text"}, cache_bytes=0)
    assert table[0] == {"text": "a", "label": 1}
    assert table.source.shown == f"{server.url}/f/x.tsv"
    (file,) = table.source.find().files
    server.signature = "another"
    url = server.url.replace("://", "://me:pass-word@")
    for call in (
        lambda: table.source.read(file),
        Source(f"{url}/f?{SIGNED}", attempts=1).find,
        Source(f"{url}/f/x.tsv?{SIGNED}", attempts=1).find,
    ):
        with pytest.raises((UserError, UnreadableError)) as found:
            call()
        told = "".join(traceback.format_exception(found.value))
        assert f"{server.url}/f" in str(found.value)
        assert SIGNATURE not in told
        assert "AWS4" not in told
        assert "pass-word" not in told
        assert "\n" not in str(found.value)


def test_a_query_in_two_places_is_refused(server):
    """Nobody could tell which of them counts."""
    with pytest.raises(UserError, match="give all of it in one of them"):
        Source(f"{server.url}/f?a=1", storage_options={"params": {"b": 2}}).find()


SAME = {
    "order": ("https://h/x?a=1&b=2", "https://h/x?b=2&a=1"),
    "S3's signature": ("https://h/x?X-Amz-Signature=1&X-Amz-Date=1&v=1", "https://h/x?v=1"),
    "Google's": ("https://h/x?X-Goog-Signature=1&X-Goog-Credential=a", "https://h/x"),
    "one of old": ("https://h/x?Signature=1&Expires=5&AWSAccessKeyId=A", "https://h/x"),
    "Azure's": ("https://h/x?sv=2020&sp=r&sig=abc&snapshot=1", "https://h/x?snapshot=1"),
    "the password": ("https://me:one@h/x", "https://me:two@h/x"),
    "a slash": ("s3://bucket/x/", "s3://bucket/x"),
}
OTHER = {
    "value": ("https://h/x?a=1", "https://h/x?a=2"),
    "none": ("https://h/x?a=1", "https://h/x"),
    "a name of a signature alone": ("https://h/x?expires=1", "https://h/x?expires=2"),
    "user": ("https://me@h/x", "https://you@h/x"),
    "host": ("https://h/x", "https://i/x"),
    "scheme": ("s3://b/x", "gs://b/x"),
    "a key with a question mark": ("s3://b/x?1", "s3://b/x?2"),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME.keys())
def test_what_does_not_choose_the_content_does_not_count(one, other):
    """The order of a query, and who may read until when."""
    assert identity_of(one, {}) == identity_of(other, {})


@pytest.mark.parametrize(("one", "other"), OTHER.values(), ids=OTHER.keys())
def test_what_may_choose_it_does(one, other):
    """All else."""
    assert identity_of(one, {}) != identity_of(other, {})


def test_options_are_told_apart_by_what_they_hold():
    """Whatever the order of their names; an object that cannot be told is that of this process."""
    assert canonical({"a": [1, {2}], "b": None}) == canonical({"b": None, "a": (1, {2})})
    values = [{"a": 1}, {"a": "1"}, {"a": True}, {"a": None}, {"a": [1]}, {"a": {"b": 1}}, {}]
    assert len({canonical(value) for value in values}) == len(values)
    one = object()
    assert canonical(one) == canonical(one) != repr(one)

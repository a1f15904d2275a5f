"""What a node gets is what training here imports, and nothing that is true here only."""

import importlib.metadata
import io
import json
import tarfile
from dataclasses import replace

import pytest

from hetero_hvd.errors import MissingPackageError, UserError
from hetero_hvd.remote.bundle import PACKAGE, TRAINING, make_bundle
from hetero_hvd.remote.node_program import Input


@pytest.fixture(scope="module")
def training():
    """All that is needed to train."""
    return make_bundle([TRAINING])


def test_it_has_all_that_is_needed_in_the_versions_of_here(training):
    """Also what is needed by what is needed; nothing that only tests use."""
    needed = {"torch", "horovod", "hetero_hvd", "numpy", "sympy", "h11", "cloudpickle"}
    assert needed <= training.versions.keys()
    assert not {"pytest", "ruff", "scikit-learn"} & training.versions.keys()
    for name, version in training.versions.items():
        assert version == importlib.metadata.version(name)


def test_what_it_lacks_is_told_however_it_is_spelt(training):
    """Names with other capitals, dots, hyphens and underscores are the same (PEP 503)."""
    told = ["hetero-hvd", "Hetero.HVD", "hetero_hvd", "NumPy", "an-other"]
    assert training.lacks(told) == ["an-other"]


def test_an_editable_package_is_sent_as_it_is_now(training):
    """Its files and its entry points, not the way to this checkout."""
    own = {name for name in training.files if name.startswith("hetero_hvd")}
    assert training.files["hetero_hvd/cli/__init__.py"] == PACKAGE / "cli" / "__init__.py"
    assert {"hetero_hvd/run/web/page/live.js", "hetero_hvd/py.typed"} <= own
    assert any(name.endswith("entry_points.txt") for name in own)
    assert not [name for name in own if "direct_url" in name or "editable" in name]


def test_files_are_plain_ones_inside_of_site_packages(training):
    """No way out of the folder, nothing that Python compiles by itself."""
    assert not [name for name in training.files if name.startswith(("/", ".."))]
    assert not [name for name in training.files if name.endswith(".pyc")]


def test_the_stream_is_an_archive_of_the_files():
    """Which tells how far it is."""
    small = make_bundle(["msgspec"])
    stream, told = io.BytesIO(), []
    small.write(Input(stream, lambda: None), told.append)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        assert sorted(archive.getnames()) == list(small.files)
    assert told[-1] == small.num_bytes
    assert len(told) == len(small.files)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    """It is named; half of the archive is nothing that a node could wait for."""
    small = make_bundle(["msgspec"])
    broken = replace(small, files=small.files | {"gone.py": tmp_path / "gone.py"})
    with pytest.raises(UserError, match=r"/gone.py cannot be read here: No such file"):
        broken.write(Input(io.BytesIO(), lambda: None), lambda _: None)


def test_what_is_here_by_a_link_to_its_source_is_refused(tmp_path, monkeypatch):
    """The link would lead nowhere on a node."""
    metadata = tmp_path / "linked-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: linked\nVersion: 1.0\n")
    (metadata / "RECORD").write_text("linked-1.0.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert make_bundle(["linked"]).files
    origin = {"url": "file:///home/me/linked", "dir_info": {"editable": True}}
    (metadata / "direct_url.json").write_text(json.dumps(origin))
    with pytest.raises(UserError, match=r"linked is installed as editable, .*file:///home/me"):
        make_bundle(["linked"])


def test_the_fingerprint_is_that_of_the_software():
    """The same for the same; another one for more."""
    assert make_bundle(["msgspec"]).fingerprint == make_bundle(["msgspec"]).fingerprint
    assert make_bundle(["msgspec"]).fingerprint != make_bundle(["msgspec", "idna"]).fingerprint


def test_extras_bring_what_they_need():
    """And only where they are asked for."""
    assert "scikit-learn" in make_bundle(["hetero_hvd[demo]"]).versions
    assert "scikit-learn" not in make_bundle(["hetero_hvd"]).versions


WRONG = {
    "no-such-package": (MissingPackageError, "no-such-package is not installed in "),
    "two words": (UserError, "--with: "),
    "../path": (UserError, "--with: "),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_there_is_one_line(name):
    """With what to do."""
    kind, words = WRONG[name]
    with pytest.raises(kind) as caught:
        make_bundle([TRAINING, name])
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)

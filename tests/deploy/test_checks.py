"""Bad input of `hetero-hvd deploy`: one line, exit code 2, and nothing is written."""

import os
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.deploy.checks import num_bytes
from hetero_hvd.deploy.folder import FolderContents, write_folder
from hetero_hvd.errors import UserError

GOOD = {"--image": "hetero-hvd:0.1.0", "--cpu": "1"}
NAMES = ("", "Train", "1train", "-a", "a-", "a_b", "a.b", "a b", "ä", "a\n", 41 * "a")
IMAGES = ("", "A", "a b", "a:", "a:b:c", "a@sha256:1", "/a", "a/", "-a", "a\n", "a//b", "http://a")
AMOUNTS = ("", "0", "-1", "many", "1 Gi", "0Gi", "1e", "1Gi\n", "0.0")
HUGE = (400 * "9", 5000 * "9")
NUMBERS = ("", "-1", "1.5", "x", "99999", "9" * 5000, "²")
WRONG = {
    "--name": NAMES,
    "--monitoring-namespace": (*NAMES[:-1], 64 * "a"),
    "--image": IMAGES,
    "--agent-cpu": (*AMOUNTS, "1Gi", *HUGE, 10 * "9" + "m"),
    "--agent-memory": (*AMOUNTS, *HUGE, "1.5Gi", "1GB", "2Pi", "999999999999999Mi"),
    "--shm": (*AMOUNTS, "8Gi", "8192Mi", "9G", "1Ti"),
    "--volume": (*AMOUNTS, *HUGE, "2Pi"),
    "--storage-class": ("", "A", "a_b", "a..b", "-a", 254 * "a"),
    "--gpu": NUMBERS,
    "--cpu": NUMBERS,
    "--gpus-per-agent": (*NUMBERS, "0", "17"),
    "--checkpoint-url": ("", "/runs", "s3://", "http://a/b", "s3://a/b?c", "s3://user:pw@a/b"),
    "--s3-endpoint": (
        *("", "minio:9000", "http://", "http://a:b", "http://a:0", "http://a:65536"),
        *("http://a/b", "http://a?b", "http://me:word@a", "s3://a", "http://a\n"),
    ),
    "--agents": ("", "pods"),
    "--cloud": ("", "moon"),
    "--script": (
        "none.py",
        ".",
        "binary",
        "nodes.yaml",
        "a b.py",
        "large.py",
        "pipe.py",
        "/dev/zero",
        "/dev/null",
    ),
}
CASES = [(flag, value) for flag, values in WRONG.items() for value in values]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """With files that are no scripts for a ConfigMap."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "nodes.yaml").touch()
    (tmp_path / "a b.py").touch()
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "large.py").write_text("#" * 10**6)
    return tmp_path


def refused(words, capsys, folder):
    """What is said; exit code 2, and no file."""
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert not (folder / "k").exists()
    (line,) = printed.err.removesuffix("\n").split("\n")
    return line.removeprefix("hetero-hvd: ")


@pytest.mark.parametrize(("flag", "value"), CASES, ids=lambda value: value[:20])
def test_a_wrong_value_is_one_line_that_names_it(folder, capsys, flag, value):
    """Before anything is written."""
    more = {"--volume": "1Gi"} if flag == "--storage-class" else {}
    flags = [f"{name}={text}" for name, text in (GOOD | more | {flag: value}).items()]
    line = refused(["deploy", "kubernetes", "k", *flags, "--", "train.py"], capsys, folder)
    assert line.removeprefix("argument ").startswith(flag)


MISUSES = {
    "no target": (["deploy"], "WHERE is missing"),
    "no such target": (["deploy", "moon", "k"], "argument WHERE: found 'moon', must be one of"),
    "no folder": (["deploy", "kubernetes", "--image", "a"], "DIR is missing"),
    "no image": (
        ["deploy", "kubernetes", "k", "--cpu", "1"],
        "--image is missing",
    ),
    "no command": (["deploy", "kubernetes", "k", "--image", "a", "--cpu", "1"], "no command:"),
    "no agents": (["deploy", "kubernetes", "k", "--image", "a", "--", "b"], "no agents: say"),
    "two on each node": (
        ["deploy", "kubernetes", "k", "--image", "a", "--agents=daemonset", "--gpu=2", "--", "b"],
        "--gpu: found '2', must be an integer from 0 to 1",
    ),
    "no text": (
        ["deploy", "kubernetes", "k", "--image", "a", "--cpu=1", "--", "b\udcff.py"],
        "after --: 'b\\udcff.py' must be text",
    ),
    "a class of no volume": (
        ["deploy", "kubernetes", "k", "--image", "a", "--cpu=1", "--storage-class=a", "--", "b"],
        "--storage-class needs --volume",
    ),
    "a typo": (
        ["deploy", "kubernetes", "k", "--imge", "a", "--image", "a", "--", "b"],
        "unknown option --imge; did you mean --image?",
    ),
}


@pytest.mark.parametrize(("words", "expected"), MISUSES.values(), ids=MISUSES.keys())
def test_misuse_is_one_line(folder, capsys, words, expected):
    """With what is missing, or meant."""
    assert refused(words, capsys, folder).startswith(expected)


def test_nothing_is_lost_without_force(folder, capsys):
    """A folder that holds something stays as it is; with --force, files of other names do."""
    words = ["deploy", "kubernetes", "there", *(f"{n}={v}" for n, v in GOOD.items())]
    (folder / "there").mkdir()
    for name in ("agents.yaml", "mine"):
        (folder / "there" / name).write_text("mine")
    assert main([*words, "--", "train.py"]) == 2
    assert capsys.readouterr().err == (
        "hetero-hvd: there: is not empty, holds 'agents.yaml'; name another folder, or replace "
        "files of the same names with --force\n"
    )
    assert (folder / "there" / "agents.yaml").read_text() == "mine"
    assert main([*words, "--force", "--volume", "1Gi", "--", "train.py"]) == 0
    assert (folder / "there" / "agents.yaml").read_text() != "mine"
    assert (folder / "there" / "storage.yaml").exists()
    assert main([*words, "--force", "--", "train.py"]) == 0
    assert not (folder / "there" / "storage.yaml").exists()  # of the earlier job with a volume
    assert (folder / "there" / "mine").read_text() == "mine"


@pytest.mark.parametrize("place", ["file", "file/below", "\0"])
def test_a_place_that_is_no_folder_is_refused(folder, capsys, place):
    """One line."""
    (folder / "file").touch()
    words = ["deploy", "kubernetes", place, *(f"{n}={v}" for n, v in GOOD.items())]
    assert "cannot be" in refused([*words, "--", "train.py"], capsys, folder)


def test_a_file_is_whole_or_not_there(folder):
    """What could not be written leaves nothing beside it."""
    with pytest.raises(UserError, match="cannot be written"):
        write_folder(folder, FolderContents(files={f"{260 * 'a'}": "text"}), force=True)
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


KINDS = {"plain": [], "a chart": ["--helm"]}


@pytest.mark.parametrize("last", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_a_folder_holds_what_was_written_last(tmp_path, first, last):
    """A chart's files beside manifests are none of kubectl's, and would not be Helm's either."""

    def found(folder, *kinds):
        for kind, more in zip(kinds, ([], ["--force"]), strict=False):
            words = ["deploy", "kubernetes", str(folder), *(f"{n}={v}" for n, v in GOOD.items())]
            assert main([*words, *KINDS[kind], *more, "--", "train.py"]) == 0
        files = (path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)) for path in files}

    assert found(tmp_path / "a", first, last) == found(tmp_path / "b", last)


KUBERNETES = ["kubernetes", *(f"{name}={value}" for name, value in GOOD.items())]
TARGETS = {
    "manifests": (
        [*KUBERNETES, "--volume=1Gi"],
        KUBERNETES,
        ["storage.yaml", "values.yaml", "Chart.yaml", "values.schema.json", "templates/NOTES.txt"],
    ),
    "a chart": (
        [*KUBERNETES, "--helm", "--volume=1Gi"],
        [*KUBERNETES, "--helm"],
        ["templates/storage.yaml", "agents.yaml", "config.yaml", "driver.yaml"],
    ),
    "a chart where manifests were": (KUBERNETES, [*KUBERNETES, "--helm"], ["agents.yaml"]),
    "manifests where a chart was": (
        [*KUBERNETES, "--helm"],
        KUBERNETES,
        ["values.yaml", "templates/agents.yaml"],
    ),
    "slurm": (["slurm", "--pool=a:1"], ["slurm", "--pool=b:1"], ["agents-a.sh", "agents-c.sh"]),
    "compose": (["compose", "--image=a"], ["compose", "--image=b"], []),
}
"""A target: what is written first, what then, and what would not belong there then."""

OWN = {"text": b"mine: 1\n", "empty": b"", "no text": b"\xff\0", "a folder": None, "a link": b""}


def deployed(folder, words, *more):
    """The exit code of a call."""
    target, *flags = words
    return main(["deploy", target, str(folder), *flags, *more, "--", "train.py"])


def contents_of(folder):
    """All files."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("target", TARGETS)
def test_what_somebody_else_has_written_is_named_and_stays(tmp_path, capsys, target, kind):
    """Also with --force, where it has a name that ours would have: nothing is changed then."""
    first, then, names = TARGETS[target]
    folder = tmp_path / "f"
    for name in [*names, "notes.txt", "templates.yaml"]:
        assert deployed(folder, first, "--force") == 0
        path = folder / name
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        if kind == "a folder":
            path.mkdir()
        elif kind == "a link":
            path.symlink_to(next(found for found in contents_of(folder) if found != path))
        else:
            path.write_bytes(OWN[kind])
        before = contents_of(folder)
        capsys.readouterr()
        code = deployed(folder, then, "--force")
        if name in names:
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"hetero-hvd: {folder}: cannot hold beside")
            assert f": {name}, which" in line
            assert (code, contents_of(folder)) == (2, before)
        assert os.path.lexists(path)
        path.rmdir() if kind == "a folder" else path.unlink()
        assert deployed(folder, then, "--force") == 0  # ours went, if it had to


OBSTACLES = {
    "manifests": (KUBERNETES, ["agents.yaml"], [], []),
    "a chart": (
        [*KUBERNETES, "--helm"],
        ["values.yaml", "templates/agents.yaml"],
        ["templates"],
        [],
    ),
    "slurm": (
        ["slurm", "--pool=a:1"],
        ["driver.sh", "agents-a.sh", "README.md", "keys/cluster.key"],
        ["logs", "keys"],
        ["keys/cluster.key"],
    ),
    "compose": (
        ["compose", "--image=a"],
        ["compose.yaml", "monitoring/rules.yml", "keys/token"],
        ["runs", "keys", "monitoring", "monitoring/grafana"],
        ["keys/cluster.key", "keys/token"],
    ),
}
"""A target: words, some of its files, its folders, and what must be a key if it is there."""


def obstructed(folder, name, kind):
    """Put something else where `name` is to be."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "dead link":
        path.symlink_to("nowhere")
    else:
        path.write_text("mine")
        path.chmod(0o600)


BLOCKED = [
    *((target, name, "folder") for target, (_, files, _, _) in OBSTACLES.items() for name in files),
    *((target, name, "file") for target, (_, _, dirs, _) in OBSTACLES.items() for name in dirs),
    *(
        (target, name, "dead link")
        for target, (_, _, dirs, _) in OBSTACLES.items()
        for name in dirs
    ),
    *((target, name, "no key") for target, (_, _, _, keys) in OBSTACLES.items() for name in keys),
    *(
        (target, name, "dead link")
        for target, (_, _, _, keys) in OBSTACLES.items()
        for name in keys
    ),
]


@pytest.mark.parametrize(("target", "name", "kind"), BLOCKED, ids=map(" ".join, BLOCKED))
def test_what_is_in_the_way_is_found_before_anything_is_written(
    tmp_path, capsys, target, name, kind
):
    """Half a folder would be taken for a whole one."""
    folder = tmp_path / "f"
    obstructed(folder, name, kind)
    before = sorted(folder.rglob("*"))
    assert deployed(folder, OBSTACLES[target][0], "--force") == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert f"{folder / name}" in line
    assert printed.out == ""
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("target", OBSTACLES)
def test_keys_that_are_there_stay(tmp_path, target):
    """Agents that run hold them."""
    folder = tmp_path / "f"
    words, _, _, keys = OBSTACLES[target]
    assert deployed(folder, words) == 0
    before = {key: (folder / key).read_bytes() for key in keys}
    assert deployed(folder, words, "--force") == 0
    assert {key: (folder / key).read_bytes() for key in keys} == before


@pytest.mark.parametrize("target", sorted(OBSTACLES.keys() - {"slurm"}))
def test_a_folder_of_any_name_is_shown(tmp_path, capsys, target):
    """Bytes that are no text, and a line break; Slurm has no way to say such a path."""
    folder = tmp_path / "f\udcff\ng"
    assert deployed(folder, OBSTACLES[target][0]) == 0
    assert "f\\udcff\\ng/" in capsys.readouterr().out


def test_a_cancelled_write_leaves_no_part_of_a_file(folder, monkeypatch):
    """Helm would take it for a template."""

    def cancel(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", cancel)
    with pytest.raises(KeyboardInterrupt):
        write_folder(folder / "new", FolderContents(files={"a.yaml": "x"}))
    assert list((folder / "new").iterdir()) == []


BYTES = {"7": 7, "3k": 3000, "2M": 2 * 10**6, "1Ki": 1024, "8Gi": 8 * 2**30, "1Pi": 2**50}


@pytest.mark.parametrize("text", BYTES)
def test_amounts_are_as_kubernetes_reads_them(text):
    """With units of 1000 and of 1024."""
    assert num_bytes(text) == BYTES[text]

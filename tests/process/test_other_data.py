"""Without our driver nobody can be refused alone: all workers end with the line that names one."""

import pytest

pytestmark = pytest.mark.process


@pytest.mark.parametrize("differs", [False, True])
def test_workers_with_other_data_do_not_train(run_workers, tmp_path, differs):
    """The same folder in different places is no difference, one file is."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        (folder / "a.txt").write_text("a text of some length, " * 8)
    if differs:
        (folders[1] / "b.txt").write_text("more")
    results = run_workers("other_data", 2, folders=list(map(str, folders)))
    for result in results:
        if not differs:
            assert result["said"] == ""
            continue
        assert "its data differ from those of " in result["said"]
        assert f"text at {folders[1]}: b.txt is one too many (2 files, " in result["said"]
        assert "\n" not in result["said"]

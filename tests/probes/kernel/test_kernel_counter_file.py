"""A file of counters is opened once and read as it is now."""

from __future__ import annotations

from hetero_hvd.probes.kernel.kernel_counter_file import KernelFile


def test_it_is_read_as_it_is_now(tmp_path):
    """Also after it has grown, and while no name leads to it any more."""
    path = tmp_path / "cpu.stat"
    path.write_text("nr_periods 1\n")
    file = KernelFile(path)
    assert file.words() == [b"nr_periods", b"1"]
    path.write_text("nr_periods 22\nthrottled_usec 3\n")
    assert file.words() == [b"nr_periods", b"22", b"throttled_usec", b"3"]
    path.unlink()
    assert file.words()[-1] == b"3"


def test_what_cannot_be_read_has_no_words(tmp_path):
    """There is no such file, or nothing can be read from it."""
    assert KernelFile(tmp_path / "none").words() == []
    assert KernelFile(tmp_path).words() == []

"""What people see of the workers' output."""

import io
import subprocess
import sys
import threading

import pytest

from hetero_hvd.driver.output.console import Console, WorkerOutput


def test_lines_are_prefixed_and_kept(tmp_path):
    """Each line has the worker's name, also one that came in pieces; the file has the raw bytes."""
    stream = io.StringIO()
    console = Console(stream)
    output = WorkerOutput(console, tmp_path / "logs" / "a-0.log", "[a:0] ")
    for part in (b"one\ntw", b"o\r\n", b"\xffthree"):
        output.feed(part)
    output.close()
    console.close()
    assert stream.getvalue() == "[a:0] one\n[a:0] two\n[a:0] \ufffdthree\n"
    assert list(output.tail) == ["one", "two", "\ufffdthree"]
    assert (tmp_path / "logs" / "a-0.log").read_bytes() == b"one\ntwo\r\n\xffthree"


def test_that_a_process_dies_is_told_once_to_who_asked(tmp_path):
    """It is no look at a process that lives, and does not concern the next one."""
    console, told = Console(io.StringIO()), []
    output = WorkerOutput(console, tmp_path / "a-0.log", "")
    sign = b"\x01hetero-hvd:X 0.000 0.000\x01"
    output.feed(sign)
    output.tell_death(lambda: told.append("dies"))
    output.feed(b"last words" + sign[:9])
    assert not told
    output.feed(sign[9:])
    output.flush()
    output.feed(sign)
    output.close()
    console.close()
    assert told == ["dies"]
    assert not output.pulse.has_answered
    assert (tmp_path / "a-0.log").read_bytes() == b"last words"


class SlowStream(io.StringIO):
    """A terminal that stands still until it is let go."""

    def __init__(self):
        super().__init__()
        self.entered = threading.Event()
        self.gate = threading.Event()

    def write(self, text):
        """Block, then write."""
        self.entered.set()
        self.gate.wait(5)
        return super().write(text)


def test_a_slow_terminal_blocks_nobody():
    """What does not fit is dropped, and a notice says how much."""
    stream = SlowStream()
    console = Console(stream, max_lines=3)
    console.say("first")
    stream.entered.wait(5)
    for number in range(10):
        console.say(str(number))
    stream.gate.set()
    console.close()
    assert stream.getvalue().splitlines() == [
        "first",
        "[7 lines dropped here: the output is too slow]",
        "0",
        "1",
        "2",
    ]


class ClosedStream(io.StringIO):
    """A pipe whose reader has left."""

    def write(self, text):
        """Fail as such a pipe does."""
        raise BrokenPipeError(text)


def test_a_closed_output_does_not_stop_the_training():
    """As under `hetero-hvd run | head`."""
    console = Console(ClosedStream())
    for number in range(10):
        console.say(str(number))
    console.close()


STREAMS = {
    "is closed": "exec {python} -c '{script}' 1>&-",
    "is closed, as all are": "exec {python} -c '{script}' 0<&- 1>&- 2>&-",
    "is a pipe that nobody reads": "{python} -c '{script}' | true; exit ${{PIPESTATUS[0]}}",
    "is full": "exec {python} -c '{script}' > /dev/full",
}


@pytest.mark.parametrize("shell", STREAMS.values(), ids=STREAMS.keys())
def test_standard_output_may_be_nowhere(tmp_path, shell):
    """No thread dies of it, and the exit code is that of the training."""
    script = (
        "import sys, time; from hetero_hvd.driver.output.console import Console; "
        "console = Console(); [console.say(str(n)) or time.sleep(0.001) for n in range(200)]; "
        f'console.close(); open("{tmp_path}/done", "w").close(); sys.exit(3)'
    )
    line = shell.format(python=sys.executable, script=script)
    done = subprocess.run(["bash", "-c", line], stderr=subprocess.PIPE, check=False, text=True)
    assert (done.returncode, done.stderr) == (3, "")
    assert (tmp_path / "done").exists()

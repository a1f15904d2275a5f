"""What ssh says becomes a fact and what to do; what it never said before is passed on."""

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.exit_codes import EXIT_NO_CONNECTION, EXIT_NOT_STARTED
from hetero_hvd.remote.ssh_failures import NO_PYTHON, failure

NODE = NodeConfig(name="a", address="10.0.0.2", user="train", port=2222)
SAID = {
    "ssh: connect to host a port 22: No route to host": ("no answer from 10.0.0.2", "firewall"),
    "ssh: connect to host a port 22: Connection timed out": ("no answer from", "firewall"),
    "Connection timed out during banner exchange": ("no answer from", "firewall"),
    "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.": (
        "its host key is not the one that was known",
        "ssh-keygen -R 10.0.0.2, then ssh -p 2222 train@10.0.0.2 once by hand",
    ),
    "train@a: Permission denied (publickey).": (
        "it does not let train in with a key",
        "ssh-copy-id -p 2222 train@10.0.0.2",
    ),
    "Timeout, server a not responding.": ("the connection broke", "try again"),
    "client_loop: send disconnect: Broken pipe": ("the connection broke", "try again"),
    "Connection closed by 10.0.0.2 port 2222": ("the connection broke", "try again"),
    "a banner\nsomething new in ssh 11\n": ("something new in ssh 11", "ssh -p 2222"),
    "": ("exited with code 255", "ssh -p 2222"),
}


@pytest.mark.parametrize("text", SAID)
def test_what_ssh_says_is_put_in_words(text):
    """In one line each."""
    found = failure(NODE, EXIT_NO_CONNECTION, text)
    what, remedy = SAID[text]
    assert what in found.what
    assert remedy in found.remedy
    assert "\n" not in str(found)


def test_a_program_s_own_words_are_not_taken_for_those_of_ssh():
    """Only the exit code of ssh itself says that there was no way."""
    assert failure(NODE, 1, "open: Permission denied").what == "open: Permission denied"


def test_a_node_without_python_says_what_it_has():
    """Whatever its shell writes around that."""
    text = f"motd\n{NO_PYTHON}; found: Python 3.9.2\nlogout"
    assert failure(NODE, EXIT_NOT_STARTED, text).what == f"{NO_PYTHON}; found: Python 3.9.2"

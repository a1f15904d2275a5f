"""What runs are called in a list."""

from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.view.run_labels import run_labels

LISTS = {
    "none": ([], []),
    "a name, and none": ([("best", "a"), ("", "b")], ["best", "b"]),
    "a name that is a folder": ([("b", "a"), ("", "b")], ["b (a)", "b"]),
    "a name with a folder": (
        [("x (a)", "c"), ("x", "a"), ("x", "b")],
        ["x (a) (c)", "x (a)", "x (b)"],
    ),
    "one run twice": ([("x", "a"), ("x", "a")], ["x (a)", "x (a) #2"]),
    "a name of two": ([("x", "a"), ("y", "b"), ("x", "c")], ["x (a)", "y", "x (c)"]),
}


def test_a_run_is_called_by_its_name_where_that_is_enough():
    """No two labels are alike, as no two folders are."""
    for names, labels in LISTS.values():
        assert run_labels(names) == labels


WORDS = st.sampled_from(["", "a", "b", "a (a)", "a (b)", "b (a)", "a #2", "a (a) #2"]) | st.text(
    "ab ()#2", max_size=6
)


@given(st.lists(st.tuples(WORDS, WORDS)))
def test_no_two_labels_are_alike(names):
    """Whatever the runs and their folders are called."""
    labels = run_labels(names)
    assert len(set(labels)) == len(labels) == len(names)

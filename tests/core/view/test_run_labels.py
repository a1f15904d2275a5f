"""What runs are called in a list."""

from hetero_hvd.core.view.run_labels import run_labels

LISTS = {
    "none": ([], []),
    "a name, and none": ([("best", "a"), ("", "b")], ["best", "b"]),
    "a name of two": ([("x", "a"), ("y", "b"), ("x", "c")], ["x (a)", "y", "x (c)"]),
}


def test_a_run_is_called_by_its_name_where_that_is_enough():
    """No two labels are alike, as no two folders are."""
    for names, labels in LISTS.values():
        assert run_labels(names) == labels

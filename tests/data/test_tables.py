"""Tables: GLUE's as its makers give them out, others by their columns; mistakes are one line."""

import pickle

import pytest
from torch.utils.data import DataLoader

from hetero_hvd.data import TextTable, glue
from hetero_hvd.data.tables import GLUE
from hetero_hvd.errors import MalformedDataError, UserError

FILES = {
    "sst2": (
        'sentence\tlabel\na "fine film \t1\ndull \t0\n',
        {"sentence": 'a "fine film ', "label": 1},
    ),
    "mrpc": (
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tHe said.\tHe "said\r\n',
        {"sentence1": "He said.", "sentence2": 'He "said', "label": 1},
    ),
    "cola": (
        "gj04\t0\t*\tThey drank.\ngj04\t1\t\tThey sang.\n",
        {"sentence": "They drank.", "label": 0},
    ),
    "stsb": (
        "index\tsentence1\tsentence2\tscore\n0\tA plane.\tAn air plane.\t4.750\n",
        {"sentence1": "A plane.", "sentence2": "An air plane.", "label": 4.75},
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tWhy?\tHow?\t0\n",
        {"question1": "Why?", "question2": "How?", "label": 0},
    ),
    "mnli": (
        "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tOne.\tTwo.\tneutral\tcontradiction\n",
        {"premise": "One.", "hypothesis": "Two.", "label": 2},
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tentailment\n",
        {"question": "Who?", "sentence": "He.", "label": 0},
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n0\tIt is.\tIt is not.\tnot_entailment\n",
        {"sentence1": "It is.", "sentence2": "It is not.", "label": 1},
    ),
    "wnli": (
        "index\tsentence1\tsentence2\tlabel\n0\tIt rains.\tIt pours.\t1\n",
        {"sentence1": "It rains.", "sentence2": "It pours.", "label": 1},
    ),
}
"""Of each task: how its training file begins, and the first sample."""


@pytest.mark.parametrize("task", GLUE)
def test_each_task_of_glue_is_read_as_it_is_given_out(tmp_path, task):
    """Quotation marks are letters; byte order marks and Windows' line ends are none."""
    text, sample = FILES[task]
    (tmp_path / "train.tsv").write_bytes(text.encode())
    found = glue(tmp_path, task)
    assert found[0] == sample
    assert len(found) == len(text.strip().splitlines()) - ("train" not in GLUE[task].headless)
    assert pickle.loads(pickle.dumps(found))[0] == sample  # noqa: S301 - our own
    assert glue(tmp_path, task, transform=lambda row: row["label"])[0] == sample["label"]


@pytest.mark.parametrize("task", GLUE)
def test_rows_that_are_too_short_are_left_out_where_the_makers_have_them(tmp_path, caplog, task):
    """Only QQP's files do; their number is told once, and elsewhere the first one is refused."""
    text, sample = FILES[task]
    (tmp_path / "train.tsv").write_bytes(f"{text}7\n8\n".encode())
    if task != "qqp":
        with pytest.raises(MalformedDataError, match=r"has 1 columns, and column \d is used"):
            glue(tmp_path, task)
        return
    found = glue(tmp_path, task)
    assert [found[index] for index in range(len(found))] == [sample]
    (told,) = [record.getMessage() for record in caplog.records if "lack" in record.getMessage()]
    assert told.endswith(": 2 rows lack columns and are left out")


def test_a_test_file_has_no_labels(tmp_path):
    """Nor has CoLA's the columns of its training file."""
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tThey drank.\n")
    assert list(glue(tmp_path, "cola", "test")) == [{"sentence": "They drank."}]
    assert glue(tmp_path, "sst2", "test")[0] == {"sentence": "They drank."}


@pytest.mark.parametrize("name", ["file", "http"])
def test_it_gives_the_same_rows_from_any_place(rigs, name):
    """A file by its URL, and all files of a folder in the order of their names."""
    rig = rigs(name)
    rig.fill(
        {"tables/b.csv": b'text,label\n"two, three",1\n', "tables/a.csv": b"label,text\n0,one\n"}
    )
    arguments = rig.arguments()
    url = arguments.pop("url")
    both = TextTable(f"{url}/tables", {"text": "text"}, **arguments)
    rows = [{"text": "one", "label": 0}, {"text": "two, three", "label": 1}]
    assert [both[index] for index in range(len(both))] == rows
    one = TextTable(f"{url}/tables/b.csv", {"text": "text"}, **arguments)
    assert [one[index] for index in range(len(one))] == rows[1:]
    ((texts),) = DataLoader(both, batch_size=2, num_workers=1, multiprocessing_context="fork")
    assert texts["text"] == ["one", "two, three"]


def words(path, text, **more):
    """What is said of a file."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as found:
        TextTable(path, {"text": "text"}, **more)
    assert str(path) in str(found.value)
    assert "\n" not in str(found.value)
    return str(found.value).replace(str(path), "PATH")


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("txt\tlabel\na\t1\n", {}, "PATH: no column 'text'; it has txt, label"),
        ("text\tlabel\na\t1\nb\n", {}, "PATH, line 3: has 1 columns, and column 2 is used"),
        ("text\tlabel\na\tx\n", {}, "PATH, line 2: label 'x': must be a whole number"),
        ("text\tlabel\na\tx\n", {"is_score": True}, "PATH, line 2: label 'x': must be a number"),
        (
            "text\tlabel\na\tx\n",
            {"labels": ("no", "yes")},
            "PATH, line 2: label 'x': must be one of no, yes",
        ),
        ("text\tlabel\n", {}, "table at PATH: it has no rows"),
        ("", {}, "PATH: no column 'text'; it has none"),
        (b"text\tlabel\n\xff\t1\n", {}, "PATH: is no text in UTF-8: byte 11"),
        ("a\t1\n", {"has_header": False}, "PATH: column 'text': give its place"),
        *(
            ("text\tlabel\na\t" + word, {"is_score": True}, f"PATH, line 2: label {word!r}: must")
            for word in ("nan", "inf", "1e999")
        ),
        ("text\tlabel\na\t" + "9" * 30, {}, "PATH, line 2: label '999"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, text, more, said):
    """With the file, and where it has such, the line."""
    assert words(tmp_path / "x.tsv", text, **more).startswith(said)


NAMES = {
    "a list of columns": (
        ["text"],
        "label",
        "texts: ['text']: must be a dict of a name in a sample",
    ),
    "a column": ("text", "label", "texts: 'text': must be a dict of a name in a sample to its"),
    "none": ({}, "label", "texts: {}: must be a dict"),
    "no column": ({"text": None}, "label", "texts['text']: None: must be the name of a column, or"),
    "a place before the first": ({"text": -1}, "label", "texts['text']: -1: must be the name of a"),
    "that of the label": ({"label": "text"}, "label", "texts: 'label' is the name of the label"),
    "a label before the first": ({"text": 0}, -1, "label: -1: must be the name of a column, or"),
}


@pytest.mark.parametrize(("texts", "label", "said"), NAMES.values(), ids=NAMES.keys())
def test_the_names_of_a_sample_are_checked(tmp_path, texts, label, said):
    """No text takes the place of the label, nor the other way round."""
    (tmp_path / "x.tsv").write_text("text\tlabel\na\t1\n")
    with pytest.raises(UserError) as found:
        TextTable(tmp_path / "x.tsv", texts, label)
    assert str(found.value).startswith(f"table at {tmp_path / 'x.tsv'}: {said}")
    without = TextTable(tmp_path / "x.tsv", {"label": "text"}, None)
    assert without[0] == {"label": "a"}


def test_what_is_wrong_with_a_csv_or_a_place_is_one_line(tmp_path):
    """A quotation that does not end; a file of another kind; no such task."""
    assert words(tmp_path / "x.csv", 'text,label\n"a,1\n').startswith(
        "PATH, line 2: unexpected end"
    )
    assert "no .tsv, .csv file there" in words(tmp_path / "x.json", "{}")
    with pytest.raises(UserError, match="GLUE task 'sst': must be one of cola, sst2"):
        glue(tmp_path, "sst")
    with pytest.raises(UserError, match=r"train\.tsv: not found: "):
        glue(tmp_path, "sst2")
    assert isinstance(MalformedDataError("x"), UserError)

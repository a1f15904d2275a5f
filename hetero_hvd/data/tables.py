"""Tables of texts with labels: TSV and CSV files, and those of the tasks of GLUE."""

from __future__ import annotations

import csv
import io
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch.utils.data import Dataset

from hetero_hvd.core.data.file_sets import FileFacts
from hetero_hvd.data import arguments
from hetero_hvd.data.file_system import below, check_url, shown_url
from hetero_hvd.data.source import Source
from hetero_hvd.errors import MalformedDataError, UserError

logger = logging.getLogger(__name__)

SUFFIXES = (".tsv", ".csv")
COLUMN = "the name of a column, or its place, 0 or more"
LABEL_LIMIT = 2**63
Row = dict[str, Any]


class GlueTask(NamedTuple):
    """How the files of a task look, as its makers give them out.

    Attributes:
        texts: Name in a sample to column; a column is a name of the header, or a place in a file
            that has none.
        label: Its column.
        labels: Words of the classes in order; empty: they are numbers.
        is_score: Whether it is a number to be predicted, and no class.
        splits: What is called otherwise than `train`, `dev` and `test`.
        headless: Splits whose files have no header.
        has_short_rows: Whether its makers' files have rows that lack columns, which all readers of
            it leave out.
    """

    texts: Mapping[str, str | int]
    label: str | int
    labels: tuple[str, ...] = ()
    is_score: bool = False
    splits: Mapping[str, str] = {}
    headless: tuple[str, ...] = ()
    has_short_rows: bool = False


_ENTAILED = ("entailment", "not_entailment")
_SENTENCES = {"sentence1": "sentence1", "sentence2": "sentence2"}

GLUE: dict[str, GlueTask] = {
    "cola": GlueTask({"sentence": 3}, 1, headless=("train", "dev")),
    "sst2": GlueTask({"sentence": "sentence"}, "label"),
    "mrpc": GlueTask({"sentence1": "#1 String", "sentence2": "#2 String"}, "Quality"),
    "stsb": GlueTask(_SENTENCES, "score", is_score=True),
    "qqp": GlueTask(
        {"question1": "question1", "question2": "question2"}, "is_duplicate", has_short_rows=True
    ),
    "mnli": GlueTask(
        {"premise": "sentence1", "hypothesis": "sentence2"},
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        splits={"dev": "dev_matched", "test": "test_matched"},
    ),
    "qnli": GlueTask({"question": "question", "sentence": "sentence"}, "label", _ENTAILED),
    "rte": GlueTask(_SENTENCES, "label", _ENTAILED),
    "wnli": GlueTask(_SENTENCES, "label"),
}
"""By name."""


class TextTable(Dataset[Any]):
    """Rows of one or several TSV or CSV files, in the order of the files' names and of their rows.

    In a TSV file a quotation mark is a letter as any other, as in GLUE's; in a CSV file it quotes.

    Args:
        url: Of a file, or of a folder of files; see `Source`.
        texts: Name in a sample to column of a text, such as `{"text": "sentence"}`: a name of the
            header, or a place, 0-based. `label` is the label's name, where a sample has one.
        label: Column of the label; None: a sample has none.
        labels: Words of the classes in order, which become 0, 1, ...; empty: a label is a whole
            number.
        is_score: The label is a number, and no class.
        has_header: Whether the first row of each file names the columns.
        skip_short: Leave out rows that lack a column that is used, and tell how many they are; else
            they are refused.
        transform: Makes what is given of a sample, such as tokens; None: the sample itself, a dict
            of texts with the key `label`.
        source: Further arguments of `Source`.

    Raises:
        UserError: There is no such file, column or row; says which.
        MalformedDataError: A row or a label is none; names its file and line.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        texts: Mapping[str, str | int],
        label: str | int | None = "label",
        *,
        labels: Sequence[str] = (),
        is_score: bool = False,
        has_header: bool = True,
        skip_short: bool = False,
        transform: Callable[[Row], Any] | None = None,
        **source: Any,  # noqa: ANN401 - each has its type there
    ) -> None:
        self.source = Source(url, **source)
        where = f"table at {self.source.shown}"
        self._texts = _texts(texts, where)
        self._label = _column(label, where, "label")
        self._classes = _classes(labels, where)
        self._is_score = arguments.switch(is_score, where, "is_score")
        self._has_header = arguments.switch(has_header, where, "has_header")
        self._skips_short = arguments.switch(skip_short, where, "skip_short")
        self._num_short = 0
        self._transform = transform
        arguments.function(transform, where, "transform", "a function of a sample")
        if self._label is not None and "label" in self._texts:
            raise UserError(
                f"{where}: texts: 'label' is the name of the label in a sample: give the text "
                "another name, or label=None"
            )
        files = self.source.find(SUFFIXES).files
        self._rows = [row for file in files for row in self._read(file)]
        if not self._rows:
            raise UserError(f"{where}: it has no rows")
        if self._num_short:
            logger.warning("%s: %d rows lack columns and are left out", where, self._num_short)
        self.source.announce("table at", files)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - what the transform gives
        """A row; a dict unless there is a transform."""
        *texts, label = self._rows[index]
        row: Row = dict(zip(self._texts, texts, strict=True))
        if self._label is not None:
            row["label"] = label
        return row if self._transform is None else self._transform(row)

    def _read(self, file: FileFacts) -> list[tuple[Any, ...]]:
        place = self.source.place(file.name)
        try:
            text = self.source.read(file).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise MalformedDataError(f"{place}: is no text in UTF-8: byte {error.start}") from error
        is_tsv = file.name.lower().endswith(".tsv")
        rows = _rows(text, place, is_tsv=is_tsv)
        header = next(rows, (1, []))[1] if self._has_header else None
        wanted = [*self._texts.values(), *(() if self._label is None else (self._label,))]
        places = [_place(column, header, place) for column in wanted]
        found = []
        for line, row in rows:
            if self._skips_short and max(places) >= len(row):
                self._num_short += 1
            else:
                found.append(self._row(row, places, f"{place}, line {line}"))
        return found

    def _row(self, row: Sequence[str], places: Sequence[int], where: str) -> tuple[Any, ...]:
        if max(places) >= len(row):
            raise MalformedDataError(
                f"{where}: has {len(row)} columns, and column {max(places) + 1} is used"
            )
        found: list[Any] = [row[place] for place in places]
        if self._label is None:
            return (*found, None)
        found[-1] = self._target(found[-1], where)
        return tuple(found)

    def _target(self, word: str, where: str) -> int | float:
        if self._classes:
            if word in self._classes:
                return self._classes[word]
            raise MalformedDataError(
                f"{where}: label {word!r}: must be one of {', '.join(self._classes)}"
            )
        try:
            label = float(word) if self._is_score else int(word)
        except ValueError:
            label = math.nan
        if not abs(label) < LABEL_LIMIT:  # nor is NaN
            kind = "a number" if self._is_score else "a whole number; for words give labels="
            raise MalformedDataError(f"{where}: label {word!r}: must be {kind}")
        return label


def glue(
    url: str | os.PathLike[str],
    task: str,
    split: str = "train",
    *,
    transform: Callable[[Row], Any] | None = None,
    **source: Any,  # noqa: ANN401 - each has its type at `Source`
) -> TextTable:
    """A task of GLUE as its makers give it out: a folder with `train.tsv`, `dev.tsv`, `test.tsv`.

    Args:
        url: Of the task's folder.
        task: A name in `GLUE`.
        split: `train` or `dev`; `test` has no labels. That of MNLI is the matched one; also
            `dev_mismatched`.
        transform: See `TextTable`.
        source: Further arguments of `Source`.

    Raises:
        UserError: See `TextTable`; or there is no such task.
    """
    place = check_url(url)
    known = arguments.one_of(task, "GLUE task", GLUE)
    wanted = "'train', 'dev' or 'test'"
    arguments.text(split, f"GLUE at {shown_url(place)}", "split", wanted)
    name = known.splits.get(split, split)
    texts: Mapping[str, str | int] = known.texts
    is_test = split.startswith("test")
    if task == "cola" and is_test:
        texts = {"sentence": "sentence"}
    return TextTable(
        below(place, f"{name}.tsv"),
        texts,
        None if is_test else known.label,
        labels=known.labels,
        is_score=known.is_score,
        has_header=split not in known.headless,
        skip_short=known.has_short_rows,
        transform=transform,
        **source,
    )


def _texts(texts: Any, where: str) -> dict[str, str | int]:  # noqa: ANN401 - as given
    """Names in a sample, and their columns.

    Raises:
        UserError: They are something else.
    """
    if not isinstance(texts, Mapping) or not texts:
        wanted = "a dict of a name in a sample to its column, such as {'text': 'sentence'}"
        raise arguments.refused(where, "texts", texts, wanted)
    found = {}
    for name, column in texts.items():
        arguments.text(name, where, "a name in texts", "a text that is not empty")
        place = _column(column, where, f"texts[{name!r}]")
        if place is None:
            raise arguments.refused(where, f"texts[{name!r}]", column, COLUMN)
        found[name] = place
    return found


def _column(column: object, where: str, name: str) -> str | int | None:
    """A column's name or place, or None.

    Raises:
        UserError: It is something else.
    """
    if column is None or (isinstance(column, str) and column):
        return column
    try:
        return arguments.whole_number(column, where, name, least=0)
    except UserError:
        raise arguments.refused(where, name, column, COLUMN) from None


def _classes(labels: object, where: str) -> dict[str, int]:
    """Words of the classes, and their numbers.

    Raises:
        UserError: They are something else.
    """
    wanted = "a list of the classes' words, each once, such as ['no', 'yes']"
    words = arguments.texts(labels, where, "labels", wanted)
    return {word: number for number, word in enumerate(words)}


def _rows(text: str, place: str, *, is_tsv: bool) -> Iterator[tuple[int, Sequence[str]]]:
    """Numbers of lines, from 1, and what stands in each that is not empty.

    Raises:
        MalformedDataError: A quotation does not end, say.
    """
    if is_tsv:
        lines = enumerate(text.split("\n"), 1)
        yield from ((n, line.rstrip("\r").split("\t")) for n, line in lines if line.strip("\r"))
        return
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise MalformedDataError(f"{place}, line {reader.line_num}: {error}") from error


def _place(column: str | int, header: Sequence[str] | None, place: str) -> int:
    """Where a column is.

    Raises:
        UserError: The file does not have it.
    """
    if isinstance(column, int):
        return column
    if header is None:
        raise UserError(f"{place}: column {column!r}: give its place, as the file has no header")
    if column not in header:
        raise UserError(f"{place}: no column {column!r}; it has {', '.join(header) or 'none'}")
    return list(header).index(column)

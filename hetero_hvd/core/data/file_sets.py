"""Whether workers have the same files: a digest of their list, and a sketch of what differs.

The sketch is an invertible Bloom lookup table (Eppstein et al., "What's the difference?", 2011):
each file is added to one cell of each part of the table by exclusive or. What two tables have in
common vanishes from their difference, and a cell that one file is left in gives that file's name.
So a few kilobytes tell which of a million files is missing, as long as few are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b, sha256
from typing import NamedTuple

from hetero_hvd.messages import FileSet, WorkerId

NUM_PARTS, CELLS_PER_PART = 3, 8
NUM_CELLS = NUM_PARTS * CELLS_PER_PART
NAME_BYTES, SIZE_BYTES, TAG_BYTES, CODE_BYTES, COUNT_BYTES = 96, 8, 4, 4, 4
ENTRY_BYTES = NAME_BYTES + SIZE_BYTES + TAG_BYTES + CODE_BYTES
CELL_BYTES = ENTRY_BYTES + COUNT_BYTES
COUNT_RANGE = 2 ** (8 * COUNT_BYTES)

CUT = "…"
"""Begins a name of which only the end is known."""


class FileFacts(NamedTuple):
    """What is compared of a file.

    Attributes:
        name: Relative to the set's place.
        size: In bytes; -1 = not told.
        tag: What its store says of its content, such as `md5:…`; "" = nothing.
    """

    name: str
    size: int
    tag: str = ""


def file_set(what: str, files: Iterable[FileFacts], *, store: str = "") -> FileSet:
    """Describe some files so that others can tell whether theirs are the same.

    Args:
        what: What it is and where, for people.
        files: In an order that is the same on all workers.
        store: Their tags are compared with those of the same store only.
    """
    names, tags = sha256(), sha256()
    counts, sums = [0] * NUM_CELLS, [0] * NUM_CELLS
    num_files = num_bytes = num_tags = 0
    for file in files:
        line = f"{file.name}\0{file.size}\n".encode(errors="surrogateescape")
        tag = f"{file.tag}\n".encode(errors="surrogateescape")
        names.update(line)
        tags.update(tag)
        entry = _entry(file, tag)
        for cell in _cells(entry):
            counts[cell] += 1
            sums[cell] ^= entry
        num_files += 1
        num_tags += bool(file.tag)
        num_bytes += max(0, file.size)
    sketch = b"".join(
        count.to_bytes(COUNT_BYTES) + total.to_bytes(ENTRY_BYTES)
        for count, total in zip(counts, sums, strict=True)
    )
    return FileSet(
        what=what,
        num_files=num_files,
        num_bytes=num_bytes,
        digest=names.hexdigest(),
        contents=tags.hexdigest() if num_tags else "",
        store=store,
        sketch=sketch,
    )


def in_words(found: FileSet) -> str:
    """What it is, how much, and its digest."""
    return f"{found.what}: {_amount(found)}"


def _amount(found: FileSet) -> str:
    return f"{found.num_files} files, {found.num_bytes} bytes, digest {found.digest[:12]}"


def differing(
    facts: Mapping[WorkerId, Sequence[FileSet]],
    reference: Mapping[WorkerId, Sequence[FileSet]] | None = None,
) -> dict[WorkerId, str]:
    """Who has other files than most, and in what they differ, in words.

    Args:
        facts: Worker to its sets, in the order in which its script opens them.
        reference: Workers who decide what is normal; default: `facts`. Of equally frequent ones
            the earlier worker's count.
    """
    judges = reference or facts
    judge = _most(judges, _digests)
    found = {} if judge is None else _apart(facts, judges, judge, _digests)
    stores = dict.fromkeys(_stores(sets) for worker, sets in facts.items() if worker not in found)
    for store in stores:
        mine = {w: sets for w, sets in facts.items() if _stores(sets) == store and w not in found}
        theirs = {worker: sets for worker, sets in judges.items() if _stores(sets) == store}
        if (judge := _most(theirs, _contents)) is not None:
            found |= _apart(mine, theirs, judge, _contents)
    return found


Key = Callable[[Sequence[FileSet]], tuple[str, ...]]


def _digests(sets: Sequence[FileSet]) -> tuple[str, ...]:
    return tuple(each.digest for each in sets)


def _contents(sets: Sequence[FileSet]) -> tuple[str, ...]:
    return tuple(each.contents for each in sets)


def _stores(sets: Sequence[FileSet]) -> tuple[str, ...]:
    return tuple(each.store for each in sets)


def _most(judges: Mapping[WorkerId, Sequence[FileSet]], key: Key) -> WorkerId | None:
    """One who has what most have; of equals the first."""
    found = Counter(map(key, judges.values())).most_common(1)
    return next((worker for worker, sets in judges.items() if key(sets) == found[0][0]), None)


def _apart(
    facts: Mapping[WorkerId, Sequence[FileSet]],
    judges: Mapping[WorkerId, Sequence[FileSet]],
    judge: WorkerId,
    key: Key,
) -> dict[WorkerId, str]:
    normal = judges[judge]
    return {
        worker: f"its data differ from those of {judge}: {_difference(sets, normal, key)}"
        for worker, sets in facts.items()
        if key(sets) != key(normal)
    }


def _difference(own: Sequence[FileSet], others: Sequence[FileSet], key: Key) -> str:
    """What differs first."""
    for mine, theirs in zip(own, others, strict=False):
        if key([mine]) != key([theirs]):
            return _named(mine, theirs)
    return f"it opens {len(own)} sets of files, where the others open {len(others)}"


def _named(mine: FileSet, theirs: FileSet) -> str:
    amounts = f"{_amount(mine)}; there {_amount(theirs)}"
    found = _peeled(mine.sketch, theirs.sketch)
    names = {*found[0], *found[1]} if found is not None else set()
    if found is None or not names:
        return f"{mine.what}: {amounts}"
    more, less = found
    name = min(names)
    if name in more and name in less:
        sizes = _size(more[name]), _size(less[name])
        is_content = more[name] == less[name]
        how = "has other contents" if is_content else f"has {sizes[0]} instead of {sizes[1]}"
    else:
        how = "is missing" if name in less else "is one too many"
    tail = f", and {len(names) - 1} more differ" if len(names) > 1 else ""
    return f"{mine.what}: {name} {how}{tail} ({amounts})"


def _size(size: int) -> str:
    return "an unknown size" if size < 0 else f"{size} bytes"


def _entry(file: FileFacts, tag: bytes) -> int:
    """A file as a number: the end of its name, its size, a digest of its tag, and a code of these.

    By the code it is told from what several files that are added up look like.
    """
    name = file.name.encode(errors="surrogateescape")
    if len(name) > NAME_BYTES:
        mark = CUT.encode()
        tail = name[len(mark) - NAME_BYTES :].decode(errors="ignore")  # whole letters only
        name = mark + tail.encode()
    size = (file.size % 2 ** (8 * SIZE_BYTES)).to_bytes(SIZE_BYTES)
    facts = name.ljust(NAME_BYTES, b"\0") + size + blake2b(tag, digest_size=TAG_BYTES).digest()
    return int.from_bytes(facts + _code(facts))


def _code(facts: bytes) -> bytes:
    return blake2b(facts, digest_size=CODE_BYTES).digest()


def _is_of_one_file(entry: int) -> bool:
    content = entry.to_bytes(ENTRY_BYTES)
    return _code(content[:-CODE_BYTES]) == content[-CODE_BYTES:]


def _cells(entry: int) -> list[int]:
    code = entry % 2 ** (8 * CODE_BYTES)
    return [
        part * CELLS_PER_PART + (code >> (8 * part)) % CELLS_PER_PART for part in range(NUM_PARTS)
    ]


def _peeled(one: bytes, other: bytes) -> tuple[dict[str, int], dict[str, int]] | None:
    """Files, with sizes, that only one of two has, and that only the other has.

    None: more differ than the table can tell.
    """
    if not len(one) == len(other) == NUM_CELLS * CELL_BYTES:
        return None
    counts, sums = [], []
    for at in range(0, len(one), CELL_BYTES):
        mine, theirs = one[at : at + CELL_BYTES], other[at : at + CELL_BYTES]
        count = int.from_bytes(mine[:COUNT_BYTES]) - int.from_bytes(theirs[:COUNT_BYTES])
        counts.append(count)
        sums.append(int.from_bytes(mine[COUNT_BYTES:]) ^ int.from_bytes(theirs[COUNT_BYTES:]))
    only: dict[int, dict[str, int]] = {1: {}, -1: {}}
    pending, seen = list(range(NUM_CELLS)), set[int]()
    while pending:
        at = pending.pop()
        sign, entry = counts[at], sums[at]
        if sign not in only or not _is_of_one_file(entry):
            continue
        if entry in seen:  # no two tables of files look like this
            return None
        seen.add(entry)
        cells = _cells(entry)
        name, size = _told(entry)
        only[sign][name] = size
        for cell in cells:
            counts[cell] -= sign
            sums[cell] ^= entry
        pending += cells
    return None if any(counts) or any(sums) else (only[1], only[-1])


def _told(entry: int) -> tuple[str, int]:
    content = entry.to_bytes(ENTRY_BYTES)
    name = content[:NAME_BYTES].rstrip(b"\0").decode(errors="backslashreplace")
    size = int.from_bytes(content[NAME_BYTES : NAME_BYTES + SIZE_BYTES], signed=True)
    return name, size

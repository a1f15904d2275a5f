"""The script of a job and its environment as they can be pinned; what cannot be is refused."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from hetero_hvd.errors import UserError


def pinned_command(command: Sequence[str], folder: Path, packed: Collection[Path]) -> list[str]:
    """A command whose script is that of the working tree, whatever becomes of the file later.

    Args:
        command: A script or a program, with its arguments.
        folder: In which it was submitted.
        packed: Files of the working tree, relative to it.

    Raises:
        UserError: The script would not be a part of the job.
    """
    words = list(command)
    if not words or not words[0] or words[0].startswith("-"):
        raise UserError("submit: after -- comes a script or a program: train.py, say")
    is_python = Path(words[0]).name.startswith("python") and len(words) > 1
    place = 1 if is_python else 0
    if not words[place].endswith(".py") or words[place].startswith("-"):
        return words
    script, whole = words[place], folder.absolute()
    try:
        path = Path(script) if not Path(script).is_absolute() else Path(script).relative_to(whole)
    except ValueError:
        path = Path("..")
    if ".." in path.parts:
        raise UserError(
            f"{script}: lies outside of {whole}, whose files a job is made of: submit it there"
        )
    if path in packed:
        words[place] = str(path)
        return words
    if (folder / path).exists():
        raise UserError(f"{script}: git ignores it, so it would stay behind: add it to the files")
    names = [str(each) for each in packed if each.suffix == ".py"]
    nearest = difflib.get_close_matches(script, names, n=1)
    question = f"; did you mean {nearest[0]}?" if nearest else ""
    raise UserError(f"{script}: no such file in {whole}{question}")


def script_of(command: Sequence[str]) -> str:
    """The script of a training, or its module; of another program its name."""
    begin = 1 if Path(command[0]).name.startswith("python") else 0
    return next((word for word in command[begin:] if not word.startswith("-")), command[0])


def place_of_script(command: Sequence[str], folder: Path) -> str:
    """The script with its whole path, by which it is found again; of a module its name.

    Args:
        command: Of a training.
        folder: In which it is given.
    """
    script = script_of(command)
    path = folder / script
    return str(path.resolve()) if path.is_file() else script


def check_texts(arguments: Iterable[str], environment: Iterable[tuple[str, str]]) -> None:
    """Find what is no text.

    Raises:
        UserError: A job cannot have it.
    """
    for argument in arguments:
        if not _is_text(argument):
            raise UserError(f"submit: the argument {argument!r} is no UTF-8")
    for name, value in environment:
        if not _is_text(name + value):
            raise UserError(f"submit: the environment variable {name!r} is no UTF-8: unset it")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # of bytes that are none
        return False
    return True

"""From the words of a command line to what a command is told."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from hetero_hvd import __version__
from hetero_hvd.cli.commands import ALIASES, COMMANDS, GROUPS, module_of
from hetero_hvd.cli.mistakes import about_command, about_order, about_words, in_order, in_our_words
from hetero_hvd.errors import UserError

PROGRAM = "hetero-hvd"
ABOUT = "Train one PyTorch model on machines of unequal speed, with Elastic Horovod."
SHELLS = ("bash", "zsh", "fish")


_SIGNED = re.compile(r"-\.?[0-9]|-(inf|infinity|nan)\b", re.IGNORECASE)
"""How a value begins that is below 0: a number, as argparse knows it, with or without a unit."""


class _Parser(argparse.ArgumentParser):
    """Reports misuse as every other wrong input is reported.

    A value below 0 is one, whatever its unit (`-5%`, `-5m`), so that its option can say what is
    allowed: argparse alone takes it for an option.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - argparse's own
        super().__init__(*arguments, **named)
        self._negative_number_matcher = _SIGNED

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{in_our_words(message)} (see {self.prog} --help)")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """What a command is told; its `act` is to be called with it.

    What follows the first `--` is the user's, whatever it looks like; so is what follows the name
    of a script, for a command that takes no other word.

    Raises:
        UserError: It is not understood.
        SystemExit: All has been said, as by `--help`.
    """
    words = [*ALIASES.get(words[0], words[:1]), *words[1:]] if words else []
    name = next((name for name in map(" ".join, (words[:2], words[:1])) if name in COMMANDS), None)
    if name is None:
        return _without_command(words)
    words = words[1 + name.count(" ") :]
    split = words.index("--") if "--" in words else len(words)
    parser = parser_of(name)
    arguments, unknown = parser.parse_known_args(words[:split])
    if unknown:
        known = getattr(arguments, "known", options_of(parser))
        takes_script = takes_a_script(name)
        if takes_script and (meant := in_order(name, words, unknown)) is not None:
            raise UserError(about_order(unknown[0], meant, known=known))
        raise UserError(about_words(unknown, command=name, known=known, takes_script=takes_script))
    script = getattr(arguments, "words", [])
    own_mark = words[split : split + 1] if script else []  # then this one is the script's, too
    arguments.command = (*script, *own_mark, *words[split + 1 :])
    if arguments.command and not takes_a_script(name):
        able = [repr(name) for name in COMMANDS if takes_a_script(name)]
        raise UserError(f"only {', '.join(able[:-1])} and {able[-1]} take a command after --")
    arguments.act = module_of(name).act
    return arguments


def _without_command(words: Sequence[str]) -> argparse.Namespace:
    """What is asked of the program itself."""
    if words and not words[0].startswith("-"):
        raise UserError(about_command(words[0], tuple(COMMANDS)))
    arguments, unknown = _program().parse_known_args(words)
    if unknown:
        raise UserError(f"unknown option {unknown[0]} (see {PROGRAM} --help)")
    if arguments.completion is None:
        raise UserError(f"COMMAND is missing (see {PROGRAM} --help)")
    arguments.act = _complete
    return arguments


def _complete(arguments: argparse.Namespace) -> int:
    from hetero_hvd.cli.completion import script_for  # noqa: PLC0415 - imports all commands

    print(script_for(arguments.completion, whole_parser()))
    return 0


def _program() -> _Parser:
    """The parser of what stands before any command."""
    parser = _Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} COMMAND [options]",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"{ABOUT}\n\n{chr(10).join(_listed())}",
        epilog=f"{PROGRAM} COMMAND --help tells what a command takes, with an example.",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument(
        "--completion",
        choices=SHELLS,
        help="print what completes commands and options by tab, for that shell: eval "
        f'"$({PROGRAM} --completion bash)", or {PROGRAM} --completion fish | source',
    )
    return parser


def _listed() -> Iterator[str]:
    """All commands, by group; those of two words are indented below that of the first."""
    from textwrap import wrap  # noqa: PLC0415 - for help alone

    width = max(len(name) for name in COMMANDS if " " not in name) + 4
    for title, group in GROUPS.items():
        yield f"{title}:"
        for name, command in group.items():
            if " " in name:
                continue
            first, *more = wrap(command.summary, 78 - width)
            yield f"  {name:{width - 2}}{first}"
            yield from (f"{'':{width}}{line}" for line in more)
            yield from (f"{'':{width}}also: {other}" for other in _beside(name))
        yield ""


def _beside(name: str) -> list[str]:
    """The commands of two words of which the first is this one."""
    return [other for other in COMMANDS if other.startswith(f"{name} ")]


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of one command."""
    parser = _Parser(**_told(name))
    module_of(name).add_arguments(parser)
    _add_script(parser, name)
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """One parser with all commands, for what looks at all of them; it is not for parsing."""
    program = _program()
    commands = program.add_subparsers(metavar="COMMAND")
    for name in (name for name in COMMANDS if " " not in name):
        command = commands.add_parser(name, help=COMMANDS[name].summary, **_told(name))
        module_of(name).add_arguments(command)
        if beside := _beside(name):
            others = next(_subparsers(command), None) or command.add_subparsers()
            for other in beside:
                told = {"help": COMMANDS[other].summary, **_told(other)}
                second = others.add_parser(other.partition(" ")[2], **told)
                module_of(other).add_arguments(second)
        _add_script(command, name)
    return program


def takes_a_script(name: str) -> bool:
    """Whether a script may follow the options of a command."""
    return getattr(module_of(name), "TAKES_SCRIPT", False)


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """All option strings of a command."""
    return [word for action in parser._actions for word in action.option_strings]  # noqa: SLF001 - argparse does not tell otherwise


def _add_script(parser: argparse.ArgumentParser, name: str) -> None:
    """The script that may follow without `--`, if the command takes no other word."""
    if takes_a_script(name) and all(action.option_strings for action in parser._actions):  # noqa: SLF001 - as above
        parser.add_argument(
            "words",
            nargs=argparse.REMAINDER,
            metavar="SCRIPT",
            help="a script or another command, and its arguments; -- may stand before it",
        )


def _subparsers(parser: argparse.ArgumentParser) -> Iterator[argparse._SubParsersAction[Any]]:
    found = (action for action in parser._actions)  # noqa: SLF001 - as above
    return (action for action in found if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001 - as above


def _told(name: str) -> dict[str, Any]:
    """What argparse is told of a command."""
    module, command = module_of(name), COMMANDS[name]
    beside = (f"see also:\n  {PROGRAM} {other}" for other in _beside(name))
    return {
        "prog": f"{PROGRAM} {name}",
        "description": getattr(module, "HELP", f"{_sentence(command.summary)}."),
        "usage": getattr(module, "USAGE", None),
        "epilog": "\n".join((f"example:\n  {PROGRAM} {command.example}", *beside)),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }


def _sentence(words: str) -> str:
    """With a capital, whatever the other letters are."""
    return words[:1].upper() + words[1:]

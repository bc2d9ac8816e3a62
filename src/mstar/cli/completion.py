"""`mstar completion`: what a shell needs to complete the words of a command line, made from the commands themselves.

It prints a script and changes no file: who wants it loads it where their shell starts. Values of options are left to
the shell, which completes them as files.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any

from mstar.walk.load import ENTRY_POINT_GROUP

Tree = Mapping[str, argparse.ArgumentParser]
Words = dict[str, str]
"""Words with what they are for."""
USAGE = 'bash, in ~/.bashrc: eval "$(mstar completion bash)"; zsh the same; fish: mstar completion fish | source'


def add_completion(commands: Any) -> None:
    """Add the command to a parser. It completes whatever commands that parser has in the end."""
    text = "print a script that completes `mstar` in a shell"
    added = commands.add_parser("completion", help=text, description=text, epilog=USAGE)
    added.add_argument("shell", choices=SHELLS)
    added.set_defaults(run=lambda options: print(SHELLS[options.shell](_command_words(commands)), end=""))


# ---------------------------------------------------------------- what can be written
def _command_words(commands: Any, path: str = "mstar") -> Iterator[tuple[str, Words]]:
    """Every command by its path, with the words that may follow it."""
    yield path, {one.dest: one.help or "" for one in commands._choices_actions}
    for name, parser in commands.choices.items():
        inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if inner:
            yield from _command_words(inner[0], f"{path} {name}")
        else:
            yield f"{path} {name}", _option_words(parser)


def _option_words(parser: argparse.ArgumentParser) -> Words:
    """The options of a command, the values that are known, and installed models where one is wanted."""
    words: Words = {}
    for action in parser._actions:
        words |= dict.fromkeys(action.option_strings, action.help or "")
        words |= dict.fromkeys(map(str, action.choices or ()), action.dest)
        if "model" in (action.dest, str(action.metavar).lower()):
            words |= dict.fromkeys(sorted(metadata.entry_points(group=ENTRY_POINT_GROUP).names), "an installed model")
    return words


# ---------------------------------------------------------------- scripts
def _bash(nodes: Iterator[tuple[str, Words]]) -> str:
    """The path so far is found word by word; what is no command does not change it."""
    known = dict(nodes)
    paths = "|".join(f'"{path}"' for path in known if path != "mstar")
    cases = "\n".join(f'        "{path}") words="{" ".join(words)}" ;;' for path, words in known.items())
    return f"""_mstar() {{
    local path=mstar words='' word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$path $word" in
            {paths}) path="$path $word" ;;
        esac
    done
    case "$path" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _mstar mstar
"""


def _zsh(nodes: Iterator[tuple[str, Words]]) -> str:
    """zsh runs what is written for bash."""
    return f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{_bash(nodes)}"


def _fish(nodes: Iterator[tuple[str, Words]]) -> str:
    """A line for each word, with what it is for."""
    known = dict(nodes)
    lines = list[str]()
    for path, words in known.items():
        _, *commands = path.split()
        seen = [f"__fish_seen_subcommand_from {command}" for command in commands]
        inner = [one.split()[-1] for one in known if one.startswith(f"{path} ")]
        if inner:
            seen.append(f"not __fish_seen_subcommand_from {' '.join(inner)}")
        for word, help_ in words.items():
            kind = "-l" if word.startswith("--") else "-s" if word.startswith("-") else "-f -a" if inner else "-a"
            told = help_.replace("\\", "").replace("'", "")
            lines.append(f"complete -c mstar -n '{'; and '.join(seen)}' {kind} {word.lstrip('-')} -d '{told}'")
    return "\n".join(lines) + "\n"


SHELLS: dict[str, Callable[[Iterator[tuple[str, Words]]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}

"""`mstar completion`: print a shell completion script for bash, zsh or fish, generated from the argument parser.

It changes no file: load the script in the shell's startup file. Values of options are completed as file names.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any

from mstar.walk.load import ENTRY_POINT_GROUP

Tree = Mapping[str, argparse.ArgumentParser]
Words = dict[str, str]
"""Words that can be completed, with their help texts."""
USAGE = 'bash, in ~/.bashrc: eval "$(mstar completion bash)"; zsh the same; fish: mstar completion fish | source'


def add_completion(commands: Any) -> None:
    """Add the command to a parser. The script covers all commands of that parser, including those added later."""
    text = "Print a shell completion script."
    added = commands.add_parser("completion", help=text, description=text, epilog=USAGE)
    added.add_argument("shell", choices=SHELLS)
    added.set_defaults(run=lambda options: print(SHELLS[options.shell](_command_words(commands)), end=""))


# ---------------------------------------------------------------- words
def _command_words(commands: Any, path: str = "mstar") -> Iterator[tuple[str, Words]]:
    """Every command by its path, with the words that can follow it."""
    yield path, {choice.dest: choice.help or "" for choice in commands._choices_actions}
    for name, parser in commands.choices.items():
        inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if inner:
            yield from _command_words(inner[0], f"{path} {name}")
        else:
            yield f"{path} {name}", _option_words(parser)


def _option_words(parser: argparse.ArgumentParser) -> Words:
    """Options of a command, the choices of its arguments, and installed models where a model is expected."""
    words: Words = {}
    for action in parser._actions:
        words |= dict.fromkeys(action.option_strings, action.help or "")
        words |= dict.fromkeys(map(str, action.choices or ()), action.dest)
        if "model" in (action.dest, str(action.metavar).lower()):
            words |= dict.fromkeys(sorted(metadata.entry_points(group=ENTRY_POINT_GROUP).names), "Installed model.")
    return words


# ---------------------------------------------------------------- scripts
def _bash(nodes: Iterator[tuple[str, Words]]) -> str:
    """Walks the command path word by word. A word that is no command leaves the path unchanged."""
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
    """The bash script under zsh's bashcompinit."""
    return f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{_bash(nodes)}"


def _fish(nodes: Iterator[tuple[str, Words]]) -> str:
    """One `complete` line per word, with its help text."""
    known = dict(nodes)
    lines = list[str]()
    for path, words in known.items():
        _, *commands = path.split()
        seen = [f"__fish_seen_subcommand_from {command}" for command in commands]
        inner = [other.split()[-1] for other in known if other.startswith(f"{path} ")]
        if inner:
            seen.append(f"not __fish_seen_subcommand_from {' '.join(inner)}")
        for word, help_ in words.items():
            kind = "-l" if word.startswith("--") else "-s" if word.startswith("-") else "-f -a" if inner else "-a"
            text = help_.replace("\\", "").replace("'", "")
            lines.append(f"complete -c mstar -n '{'; and '.join(seen)}' {kind} {word.lstrip('-')} -d '{text}'")
    return "\n".join(lines) + "\n"


SHELLS: dict[str, Callable[[Iterator[tuple[str, Words]]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}

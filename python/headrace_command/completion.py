"""`headrace completion`: a script that completes verbs, options and their values."""

from __future__ import annotations

from argparse import Action
from collections.abc import Iterator

from headrace_command.exit_code import ExitCode
from headrace_command.parser import CommandParser
from headrace_command.run import Run
from headrace_command.verbs import VERBS, make_parser

__all__ = ["run"]

_BASH = """\
_headrace() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} verb= word
    for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}"; do
        case $word in -*) ;; *) verb=$word; break ;; esac
    done
    case $verb:$previous in
{values}    esac
    case $verb:$current in
{options}        :*) COMPREPLY=($(compgen -W "{verbs} --help --version" -- "$current")) ;;
    esac
}}
complete -o default -F _headrace headrace
"""
#: Without a match the shell completes files.
_BASH_WORDS = '        {verb}:{current}*) COMPREPLY=($(compgen -W "{words}" -- "$current")) ;;\n'
_BASH_VALUES = '        {verb}:{flag}) COMPREPLY=($(compgen -W "{words}" -- "$current")); return ;;\n'
#: The flag takes a value: a file, or anything else.
_FISH_VALUE = " -r"
#: `bashcompinit` calls `compdef`, which does not exist before `compinit`.
_ZSH_BEGIN = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -D }
autoload -U +X bashcompinit && bashcompinit
"""


def run(run: Run) -> ExitCode:
    """Print the script."""
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[run.arguments.shell](make_parser())
    run.output.payload(script.encode(), end=b"")
    return ExitCode.OK


def _options(parser: CommandParser) -> Iterator[tuple[str, Action]]:
    for action in parser._actions:
        for flag in action.option_strings:
            yield flag, action


def _values(parser: CommandParser) -> list[str]:
    """The values of positional arguments."""
    return [str(value) for action in parser._actions if not action.option_strings for value in action.choices or ()]


def _bash(parser: CommandParser) -> str:
    verbs = parser.verbs
    options = ""
    for name, own in verbs.items():
        options += _BASH_WORDS.format(verb=name, current="-", words=" ".join(flag for flag, _ in _options(own)))
        options += _BASH_WORDS.format(verb=name, current="", words=" ".join(_values(own)))
    values = "".join(
        _BASH_VALUES.format(verb=name, flag=flag, words=" ".join(map(str, action.choices)))
        for name, own in verbs.items()
        for flag, action in _options(own)
        if action.choices
    )
    return _BASH.format(verbs=" ".join(verbs), options=options, values=values)


def _zsh(parser: CommandParser) -> str:
    """Zsh understands the functions of bash. Its completion system may not be loaded yet."""
    return "#compdef headrace\n" + _ZSH_BEGIN + _bash(parser)


def _fish(parser: CommandParser) -> str:
    verbs = parser.verbs
    lines = [f"complete -c headrace -n __fish_use_subcommand -f -a {name} -d '{_text(name)}'" for name in verbs]
    for name, own in verbs.items():
        condition = f"complete -c headrace -n '__fish_seen_subcommand_from {name}'"
        if values := " ".join(_values(own)):
            is_first = f"__fish_seen_subcommand_from {name}; and not __fish_seen_subcommand_from {values}"
            lines.append(f"complete -c headrace -n '{is_first}' -f -a '{values}'")
        for flag, action in _options(own):
            kind = "-l" if flag.startswith("--") else "-s"
            values = f" -x -a '{' '.join(map(str, action.choices))}'" if action.choices else ""
            lines.append(f"{condition} {kind} {flag.lstrip('-')}{values or _FISH_VALUE * _takes_value(action)}")
    return "\n".join(lines) + "\n"


def _takes_value(action: Action) -> bool:
    return action.nargs != 0


def _text(name: str) -> str:
    """What a verb does, for a string in single quotes."""
    return next(verb.text for verb in VERBS if name in (verb.name, *verb.aliases)).replace("'", "\\'")

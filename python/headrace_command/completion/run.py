"""`headrace completion`: a script that completes verbs, options and their values."""

from __future__ import annotations

from argparse import Action, ArgumentParser, _SubParsersAction
from collections.abc import Iterator

from headrace_command.exit_code import ExitCode
from headrace_command.parser import make_parser
from headrace_command.run import Run

__all__ = ["run"]

_BASH = """\
_headrace() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} verb= word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in -*) ;; *) verb=$word; break ;; esac
    done
    case $verb:$previous in
{values}    esac
    case $verb in
{options}        *) COMPREPLY=($(compgen -W "{verbs} --help --version" -- "$current")) ;;
    esac
}}
complete -o default -F _headrace headrace
"""
_BASH_OPTIONS = '        {verb}) COMPREPLY=($(compgen -W "{words}" -- "$current")) ;;\n'
_BASH_VALUES = '        {verb}:{flag}) COMPREPLY=($(compgen -W "{words}" -- "$current")); return ;;\n'


def run(run: Run) -> ExitCode:
    """Print the script."""
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[run.arguments.shell](make_parser())
    run.output.payload(script.encode(), end=b"")
    return ExitCode.OK


def _verbs(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    """The parser of each verb, aliases included."""
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            return dict(action.choices)
    raise AssertionError("the parser has verbs")


def _options(parser: ArgumentParser) -> Iterator[tuple[str, Action]]:
    for action in parser._actions:
        for flag in action.option_strings:
            yield flag, action


def _choices(parser: ArgumentParser) -> list[str]:
    """The values of positional arguments, and all flags."""
    values = [str(value) for action in parser._actions if not action.option_strings for value in action.choices or ()]
    return values + [flag for flag, _ in _options(parser)]


def _bash(parser: ArgumentParser) -> str:
    verbs = _verbs(parser)
    options = "".join(_BASH_OPTIONS.format(verb=name, words=" ".join(_choices(own))) for name, own in verbs.items())
    values = "".join(
        _BASH_VALUES.format(verb=name, flag=flag, words=" ".join(map(str, action.choices)))
        for name, own in verbs.items()
        for flag, action in _options(own)
        if action.choices
    )
    return _BASH.format(verbs=" ".join(verbs), options=options, values=values)


def _zsh(parser: ArgumentParser) -> str:
    """Zsh understands the functions of bash."""
    return "#compdef headrace\nautoload -U +X bashcompinit && bashcompinit\n" + _bash(parser)


def _fish(parser: ArgumentParser) -> str:
    verbs = _verbs(parser)
    lines = [f"complete -c headrace -n __fish_use_subcommand -f -a {name}" for name in verbs]
    for name, own in verbs.items():
        condition = f"complete -c headrace -n '__fish_seen_subcommand_from {name}'"
        for flag, action in _options(own):
            kind = "-l" if flag.startswith("--") else "-s"
            values = f" -x -a '{' '.join(map(str, action.choices))}'" if action.choices else ""
            lines.append(f"{condition} {kind} {flag.lstrip('-')}{values}")
    return "\n".join(lines) + "\n"

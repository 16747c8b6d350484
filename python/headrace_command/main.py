"""The entry point of the command: parses the arguments, runs the verb, and turns its result into an exit code."""

from __future__ import annotations

import sys

from headrace_command.exit_code import ExitCode, UsageError
from headrace_command.verbs import VERBS, make_parser, spelled_out, verb_of

TYPE_CHECKING = False  # typing takes as long to import as all of this
if TYPE_CHECKING:
    from argparse import Namespace

    from headrace_command.run import Run

__all__ = ["main"]


def main() -> int:
    """Run the command with the arguments of the process."""
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    words = spelled_out(sys.argv[1:])
    parser = make_parser(verb_of(words) or "")
    arguments = parser.parsed(words)
    if arguments.version:
        from headrace import __version__

        sys.stdout.write(f"headrace {__version__}\n")
        return ExitCode.OK
    if arguments.verb is None:
        parser.print_help(sys.stderr)
        return ExitCode.USAGE
    # Not needed for --help.
    from headrace_command.output import Messages, Output
    from headrace_command.run import Run, Signals

    messages = Messages(quiet=arguments.quiet, color=arguments.color)
    run = Run(arguments, Output(arguments.output), messages, Signals())
    return _ended(run, arguments)


def _ended(run: Run, arguments: Namespace) -> int:
    run.signals.install()
    try:
        code = _code_of(run, arguments)
        run.output.flush()
    except BrokenPipeError:
        run.output.discard()
        return ExitCode.CLOSED_PIPE
    return code


def _code_of(run: Run, arguments: Namespace) -> ExitCode:
    """Run the verb. An exception becomes a message and an exit code, with its traceback only if requested."""
    from importlib import import_module

    verb = import_module(next(verb.module for verb in VERBS if verb.name == arguments.verb))
    try:
        code: ExitCode = verb.run(run)
        return code
    except KeyboardInterrupt:
        run.messages.error("interrupted")
        return run.signals.exit_code
    except BrokenPipeError:
        raise
    except UsageError as error:
        run.messages.error(str(error))
        return ExitCode.USAGE
    except Exception as error:
        code, text = _explained(error, vars(arguments))
        if arguments.debug:
            import traceback

            run.messages.trace(traceback.format_exc())
        run.messages.error(text)
        return code


def _explained(error: Exception, given: dict[str, object]) -> tuple[ExitCode, str]:
    import headrace
    from headrace_command.options import with_flags

    text = str(error)
    option = getattr(error, "option", None)
    if option in given:  # rather than in the URL or the environment
        text = text.replace(option, "--" + option.replace("_", "-"), 1)
    if isinstance(error, headrace.ConfigError | headrace.SchemaError | headrace.MessageError):
        return ExitCode.USAGE, text
    if isinstance(error, headrace.ConnectionFailedError | headrace.CommandError):
        what, end, advice = text.rpartition("; ")
        return ExitCode.NO_CONNECTION, what + end + with_flags(advice)
    if isinstance(error, headrace.HeadraceError):
        return ExitCode.FAILED, text
    if isinstance(error, OSError):
        return ExitCode.USAGE, text
    return ExitCode.FAILED, f"{type(error).__name__}: {text} (--debug shows where)"

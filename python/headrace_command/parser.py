"""A parser whose help shows the usual options first, and which says what an unknown word may mean."""

from __future__ import annotations

import sys
from argparse import Action, ArgumentError, ArgumentParser, Namespace, _ArgumentGroup, _SubParsersAction

TYPE_CHECKING = False  # typing takes as long to import as all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["CommandParser"]

#: How alike a word and another one must be, so that it is named: from 0 to 1, as `difflib` measures it.
_NEAR = 0.8
#: A shorter word is like too many others.
_SHORTEST = 3
_MOST_NAMED = 3
#: Options of redis-cli and kcat that have another name here.
_OTHERS = {
    "-a": "--password-env",
    "-b": "--url",
    "-n": "--db",
    "-p": "--port",
    "-s": "--unix-socket",
    "--cacert": "--tls-ca-cert",
    "--sni": "--tls-server-name",
    "--ssl": "--tls",
}


class CommandParser(ArgumentParser):
    """The parser of the command, or of a verb.

    Args:
        prog: The words that run it.
        options: Other arguments of `ArgumentParser`.
    """

    def __init__(self, prog: str = "headrace", **options: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **options)
        #: Command lines that the help shows.
        self.examples: tuple[str, ...] = ()
        #: The names of the verbs that have an option.
        self.verbs_with: Callable[[str], list[str]] = lambda _: []
        self._rare: list[_ArgumentGroup] = []

    def add_rare_group(self, title: str) -> _ArgumentGroup:
        """Add a group of options that only `--help-all` shows."""
        if not self._rare:
            self.add_argument("--help-all", action=_HelpAll, nargs=0, help="Show all options, and exit.")
        group = self.add_argument_group(title)
        self._rare.append(group)
        return group

    def parsed(self, words: list[str]) -> Namespace:
        """Parse the words of a command line. If one has no meaning, exit with 2."""
        arguments, rest = self.parse_known_args(words)
        if rest:
            own = self if arguments.verb is None else self.verbs[arguments.verb]
            own.error(own._unknown(rest))
        return arguments

    @property
    def verbs(self) -> dict[str, CommandParser]:
        """The parser of each verb, aliases included."""
        return dict(next(action.choices for action in self._actions if isinstance(action, _SubParsersAction)))

    def format_help(self) -> str:
        """Return the help, without the rare options."""
        shown, rare = self._action_groups, self._rare
        self._action_groups = [group for group in shown if group not in rare]
        try:
            text = super().format_help()
        finally:
            self._action_groups = shown
        if rare:
            text += f"\n--help-all also shows the options of {' and '.join(str(group.title) for group in rare)}.\n"
        return text + self._examples()

    def format_all(self) -> str:
        """Return the help with all options."""
        return super().format_help() + self._examples()

    def _examples(self) -> str:
        return "\n".join(["", "examples:", *(f"  {line}" for line in self.examples), ""]) if self.examples else ""

    def _check_value(self, action: Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except ArgumentError as error:
            if "://" in str(value) and action.dest == "verb":
                # A URL may contain a password.
                raise ArgumentError(action, "there is no verb before the URL: options come after the verb") from None
            if near := isinstance(value, str) and _near(value, [str(choice) for choice in action.choices or ()]):
                error.message += f"; did you mean {near[0]}?"
            raise

    def _unknown(self, words: list[str]) -> str:
        """Say what is unknown, without a value or a URL, which may hold a password."""
        option = next((word for word in words if word.startswith("-") and word.strip("-")), None)
        if option is None:
            shown = "a URL, which --url would take" if "://" in "".join(words) else " ".join(words)
            return f"unrecognized arguments: {shown}"
        flag = option.partition("=")[0] if option.startswith("--") else option[:2]
        text, own = f"unknown option {flag}", self.flags()
        if (others := _OTHERS.get(flag)) in own:
            return f"{text}; did you mean {others}?"
        if verbs := self.verbs_with(flag):
            return f"{text}: headrace {' and '.join(verbs)} {'has' if len(verbs) == 1 else 'have'} it"
        if near := _near(flag, own):
            return f"{text}; did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?"
        return text

    def flags(self) -> list[str]:
        """Return all options, each in all its forms."""
        return [flag for action in self._actions for flag in action.option_strings]


class _HelpAll(Action):
    """Shows all options."""

    def __call__(self, parser: ArgumentParser, *_: object) -> None:
        assert isinstance(parser, CommandParser)
        sys.stdout.write(parser.format_all())
        parser.exit()


def _near(word: str, words: list[str]) -> list[str]:
    """The words that have a part beginning with a word, or else the one that is most like it, if it is near."""
    from difflib import get_close_matches

    bare = {other.strip("-"): other for other in words if not other.startswith("--no-")}
    word = word.strip("-")
    if len(word) < _SHORTEST:
        return []
    if begun := [other for other in bare if any(part.startswith(word) for part in other.split("-"))]:
        return [bare[other] for other in sorted(begun, key=len)[:_MOST_NAMED]]
    swapped = [other for other in bare if sorted(other) == sorted(word)]
    return [bare[other] for other in swapped[:1] or get_close_matches(word, bare, 1, _NEAR)]

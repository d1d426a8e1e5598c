"""Declare options as fields of a class, and list what is declared.

Rule for editors: a default is written as a user would write it. An option that holds a secret has
`token`, `secret` or `password` in its name, because Spark hides such options in plans. It has
`repr=False` here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_DOTTED = ("oauth_", "auth_")


def option(
    parse: Callable[[str], Any],
    meaning: str,
    *,
    default: str | None = None,
    query: str = "both",
    repr: bool = True,
) -> Any:
    """Declare an option as a field of a class of options.

    `parse` returns the value of a text, or raises ValueError with a phrase like "must be …".
    `default` is as a user would write it; None if there is none. `meaning` is one phrase for the
    docs, in Markdown, with unit and limits, and begins with `**required**` if the option must be
    given. `query` is "streaming", "batch" or "both". `repr` is false for a secret.
    """
    about = {"parse": parse, "default": default, "meaning": meaning, "query": query}
    if meaning.startswith("**required**"):
        return field(metadata=about, repr=repr)
    value = None if default is None else parse(default)
    return field(default=value, metadata=about, repr=repr)


def prefixed(prefix: str, **meanings: str) -> Any:
    """Declare some of a class's own options a second time, with a prefix, for another feed.

    Their values are parsed as those of the options without the prefix. The field holds the options
    that were given, by the names of the fields that they stand for. It is never shown, because some
    of them are secrets. The prefix is the first word of the public names: `deadLetter` makes
    `deadLetterUrl` of `url`. `meanings` says what each option means there, by the name of its
    field.
    """
    about = {"prefix": prefix, "meanings": meanings}
    return field(default_factory=dict, metadata=about, repr=False)


@dataclass(frozen=True, slots=True)
class Declared:
    """An option as users know it.

    Args:
        group: the field that holds it with the other options of one prefix; None without a prefix.
    """

    name: str
    field: str
    parse: Callable[[str], Any]
    default: str | None
    meaning: str
    query: str
    secret: bool
    group: str | None = None


def option_name(field_name: str, prefix: str = "") -> str:
    """Return the public name: `max_bytes_per_trigger` → `maxBytesPerTrigger`.

    With the prefix `deadLetter`, `keep_first` becomes `deadLetterKeepFirst`. The options of a
    source of tokens have a dot, as elsewhere: `oauth_token_url` becomes `oauth.tokenUrl`.
    """
    if field_name.startswith(_DOTTED):
        source, _, name = field_name.partition("_")
        return f"{source}.{option_name(name)}"
    first, *rest = [prefix, *field_name.split("_")] if prefix else field_name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def declared(kind: type[Any]) -> dict[str, Declared]:
    fields = [each for each in dataclasses.fields(kind) if each.metadata]
    own = {
        each.name: Declared(
            option_name(each.name), each.name, **each.metadata, secret=not each.repr
        )
        for each in fields
        if "parse" in each.metadata
    }
    found = [
        option
        for each in fields
        for option in ([own[each.name]] if each.name in own else _prefixed(each, own))
    ]
    return {option.name: option for option in found}


def _prefixed(group: dataclasses.Field[Any], own: Mapping[str, Declared]) -> list[Declared]:
    prefix, meanings = group.metadata["prefix"], group.metadata["meanings"]
    return [
        dataclasses.replace(
            own[name],
            name=option_name(name, prefix),
            default=None,
            meaning=meaning,
            group=group.name,
        )
        for name, meaning in meanings.items()
    ]

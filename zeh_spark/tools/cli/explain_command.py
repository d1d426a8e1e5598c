"""The command `explain`: the section of the page of errors that describes an error, offline.

The wheel has the page beside this module, which in a checkout is a link to the page in `docs`.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import click

from zeh_spark import errors
from zeh_spark.tools.cli.output import FAILED, Failure, print_answer
from zeh_spark.wire import problems

_PAGE = Path(__file__).with_name("errors.md")
_ID = re.compile(r'<a id="(.+?)"></a>\n?')
_SECTION = re.compile(r"^(?=(?:<a id=.*\n+)?##+ )(?<!</a>\n)(?<!</a>\n\n)", re.MULTILINE)
_ROW = re.compile(r"^\| `(\w+)` \| `(ZEH_\w+)` \| (.+?) \|", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


@click.command()
@click.argument("name", metavar="CODE|HEADING")
def explain(name: str) -> None:
    """Print what an error means, and what to do about it.

    Give the code with which the error's message begins, or what its last line names.

    \b
    Examples:
      zeh-spark explain ZEH_BATCH_GAP
      zeh-spark explain the-store-is-damaged
    """
    sections, anchors = _sections(), _anchors_of_codes()
    anchor = anchors.get(name.strip("[]").upper(), slug(name))
    if anchor not in sections:
        close = difflib.get_close_matches(name.upper(), known := [*anchors, *sections])
        close += difflib.get_close_matches(name.lower(), known)
        meant = f"; did you mean {' or '.join(dict.fromkeys(close))}?" if close else "."
        raise Failure(f"no error is called {name!r}{meant}", FAILED)
    text = sections[anchor]
    print_answer(text, name=name, anchor=anchor, description=text)


def slug(heading: str) -> str:
    """Return a heading's anchor, as MkDocs and GitHub make it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _sections() -> dict[str, str]:
    """Return the sections of the page by their anchors, without links.

    One without text has the rows of its codes in the table of types, and its subheadings.
    """
    page = _PAGE.read_text(encoding="utf-8")
    codes, found, bare = _anchors_of_codes(), dict[str, str](), ""
    for section in _SECTION.split(page):
        text = _LINK.sub(r"\1", _ID.sub("", section)).strip()
        heading, _, body = text.partition("\n")
        title = heading.lstrip("# ")
        anchor = slug(title)
        if not heading.startswith("###"):
            bare = "" if body else anchor
            rows = [row for row in _ROW.findall(page) if bare and codes[row[1]] == bare]
            text += "".join(f"\n\n{code} ({kind}): {advice}" for kind, code, advice in rows)
            text += '\n\nPrint one of these with zeh-spark explain "HEADING":\n' if bare else ""
        elif bare:
            found[bare] += f"\n- {title}"
        found |= dict.fromkeys([anchor, *_ID.findall(section)], text)
    return found


def _anchors_of_codes() -> dict[str, str]:
    """Return where errors are described, by their codes: of classes, refusals and commands."""
    assert problems.PROBLEMS  # they add their codes
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    kinds = [each for each in classes if issubclass(each, errors.ZeroEventHubError)]
    of_classes = {each("").code: each.anchor for each in kinds}
    return of_classes | {code: anchor for anchor, code in errors.CODES.items()}

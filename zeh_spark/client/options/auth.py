"""Where tokens come from that no option and no file holds: factories, registered by name.

An option names a factory (`auth=azure`), so no plan, log or checkpoint has a secret. Names are
looked up where options are parsed. Spark does that in Python processes of its own, so
`zeh_spark.register` sends the registered factories along with the data source, and tasks get theirs
with their options; cloudpickle pickles both. Installed packages are found everywhere, by their
entry points. Rejected: an import path as an option, because then options choose the code that runs;
and entry points alone, because a notebook would need a package.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from zeh_spark.errors import OptionError

GROUP = "zeh_spark.auth"  # of entry points
REGISTERED: dict[str, Auth] = {}  # in this process, by name


@dataclass(frozen=True, slots=True)
class Auth:
    """A registered factory. Unpickling it registers it, too, unless a newer one has its name.

    Args:
        made: when it was registered, in ns since 1970, and what is different if that is the same.
    """

    name: str
    factory: Callable[[], Any] = field(repr=False, compare=False)
    made: tuple[int, str] = field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _keep_newest, (self.name, self.factory, self.made)


def _keep_newest(*given: Any) -> Auth:
    auth = Auth(*given)
    known = REGISTERED.setdefault(auth.name, auth)
    if known.made < auth.made:
        REGISTERED[auth.name] = auth
    return auth


def register_auth(name: str, factory: Callable[[], Any]) -> None:
    """Register a source of tokens, which the option `auth` names.

    Call it before `zeh_spark.register(spark)`, which sends the factory to Spark's processes.

    Args:
        name: what options call it.
        factory: called once in each Python process that needs a token. It returns an object whose
            `get_token(scope)` returns a text, or an object with `token` and `expires_on` (seconds
            since 1970). It must not hold a secret: it reads secrets where it is called.

    Raises:
        OptionError: the factory cannot be called.
    """
    if not callable(factory):
        raise OptionError(
            f"register_auth({name!r}, …): give a function instead of {type(factory).__name__}"
        )
    REGISTERED[name] = Auth(name, factory, (time.time_ns(), uuid.uuid4().hex))


def parse_auth(text: str) -> Auth:
    """Return the factory of this name, registered or installed. Raises ValueError without one."""
    if found := REGISTERED.get(text):
        return found
    from importlib.metadata import entry_points  # 20 ms, and few queries have this option

    installed = {each.name: each for each in entry_points(group=GROUP)}
    if point := installed.get(text):
        try:
            return Auth(text, point.load(), (0, point.value))
        except Exception as exc:  # of a user's module
            said = f"{type(exc).__name__}: {exc}"
            raise ValueError(f"cannot be loaded from {point.value} ({said})") from exc
    known = ", ".join(sorted({*REGISTERED, *installed})) or "none"
    raise ValueError(
        f"must be a registered name (registered: {known}). Call zeh_spark.register_auth and then "
        f"zeh_spark.register(spark). Or install a package with an entry point in {GROUP!r}, which "
        f"Spark 4.0 needs"
    )

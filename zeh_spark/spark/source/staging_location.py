"""Where batches are staged: a path, or a folder of an object store.

Spark shows options in plans, and errors show the location. So a location never holds a secret:
credentials come from the environment of each process, or from the machine it runs on. Runs on the
driver and on executors.
"""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import pyarrow as pa
from pyarrow import fs

_PARAMETERS = {
    "file": set(),
    "s3": {"region", "scheme", "endpoint_override", "force_virtual_addressing"},
    "gs": {"scheme", "endpoint_override", "retry_limit_seconds"},
    "abfs": {
        "blob_storage_authority",
        "client_id",
        "credential_kind",
        "dfs_storage_authority",
        "enable_tls",
        "tenant_id",
    },
}
"""The parameters that a URI may have, by its scheme. None of them is a secret."""

HAS_AZURE = hasattr(fs, "AzureFileSystem")
"""Whether this pyarrow knows Azure's storage."""

_AZURE_KEY = "AZURE_STORAGE_KEY"
_AZURE_HOST = re.compile(r"(?P<account>[^.]+)\.(?:blob|dfs)\.core\.windows\.net")
_LONGEST_RETRY = "30"
"""Seconds for which Google's client retries. Its own 15 minutes look like a query that hangs."""


def parse_staging(text: str) -> str:
    """Return an absolute path, or a URI that pyarrow.fs knows.

    It does not know `s3a:` and `dbfs:/Volumes/`: they become `s3:` and `/Volumes/`.

    Raises ValueError if it is neither, or if it holds what may be a secret.
    """
    location = re.sub(r"^dbfs:/+Volumes/", "/Volumes/", text)
    if location.startswith("/"):
        return location.rstrip("/") or "/"
    location = re.sub(r"^s3a:", "s3:", location)
    scheme = _family(location.partition(":")[0])
    if scheme not in _PARAMETERS:
        raise ValueError(
            "must be an absolute path that driver and executors share, or a URI with "
            "file, s3, s3a, gs, abfs or abfss"
        )
    parts = urlsplit(location)
    user, _, host = parts.netloc.rpartition("@")
    # A secret may have a slash: in s3://KEY:SEC/RET@bucket the host is KEY:SEC.
    named = ":" in user or (":" in host and not (scheme == "abfs" and user))
    told = any("@" in value for _, value in parse_qsl(parts.query))
    if named or told or (user and scheme != "abfs" and (scheme, user) != ("gs", "anonymous")):
        raise ValueError(
            "must not hold credentials, because Spark shows it in plans: give them to driver and "
            "executors by the environment or the machine's role"
        )
    names = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    if unknown := sorted(names - _PARAMETERS[scheme]):
        known = ", ".join(sorted(_PARAMETERS[scheme])) or "none"
        raise ValueError(
            f"must not have the parameter {unknown[0]!r}, because Spark shows it in plans: those "
            f"of {scheme} are {known}, and credentials come from the environment"
        )
    return parts._replace(path=parts.path.rstrip("/"), fragment="").geturl()


def _family(scheme: str) -> str:
    return "abfs" if scheme == "abfss" else scheme


def opened(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a location, and the path in it.

    Raises OSError, ValueError or ArrowException if there is none, or if it does not answer.
    """
    if location.startswith("/"):
        return fs.LocalFileSystem(), location
    parts = urlsplit(location)
    given = dict(parse_qsl(parts.query))
    if _family(parts.scheme) == "abfs":
        if not HAS_AZURE:
            raise ValueError(
                f"pyarrow {pa.__version__} has no file system for Azure. Install pyarrow 16 or "
                f"later on the driver and on the executors"
            )
        if key := os.environ.get(_AZURE_KEY):
            return _azure(parts.netloc, unquote(parts.path), given, key)
    if parts.scheme == "gs":
        given.setdefault("retry_limit_seconds", _LONGEST_RETRY)
        location = parts._replace(query=urlencode(given)).geturl()
    filesystem, path = fs.FileSystem.from_uri(location)
    return filesystem, path


def _azure(netloc: str, path: str, given: dict[str, str], key: str) -> tuple[fs.FileSystem, str]:
    """Return a storage account with its key, which pyarrow does not take from the environment.

    The forms of `netloc` are those of pyarrow: `CONTAINER@ACCOUNT.dfs.core.windows.net`, and
    `ACCOUNT@HOST:PORT` of an emulator, whose path begins with the container.
    """
    user, _, host = netloc.rpartition("@")
    authorities = {each: given[each] for each in given if each.endswith("_authority")}
    if found := _AZURE_HOST.fullmatch(host):
        account, path = found["account"], f"{user}{path}" if user else path
    else:
        account = user
        authorities = {"blob_storage_authority": host, "dfs_storage_authority": host, **authorities}
    scheme = "http" if given.get("enable_tls") == "false" else "https"
    filesystem = fs.AzureFileSystem(
        account,
        account_key=key,
        blob_storage_scheme=scheme,
        dfs_storage_scheme=scheme,
        **authorities,
    )
    return filesystem, path.lstrip("/")


def delete_folder(filesystem: fs.FileSystem, path: str) -> None:
    """Delete a folder with all that is in it. It is no error if it is not there."""
    if filesystem.get_file_info(path).type != fs.FileType.Directory:
        return
    if filesystem.type_name == "gcs":  # `delete_dir` fails if no object marks the folder
        filesystem.delete_dir_contents(path, missing_dir_ok=True)
    else:  # in S3 `delete_dir_contents` leaves such an object
        filesystem.delete_dir(path)


def told(error: Exception) -> str:
    """Return what an error of a file system says: its first line, without secrets and dots."""
    text = str(error).partition("\n")[0]
    text = re.sub(r"\s*error_info=\{.*", "", text)  # Google's repeats all that it said
    text = re.sub(r"(https?://[^\s'\"?]*)\?[^\s'\"]*", r"\1", text)  # a query may be signed
    if key := os.environ.get(_AZURE_KEY):
        text = text.replace(key, "(hidden)")
    return text.rstrip(". ")

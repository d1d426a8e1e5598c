"""The file systems of locations: of a path, and of object stores.

Batches are staged there, and old events of a store are moved there. Credentials come from the
environment of each process, or from the machine it runs on, never from a location (see
`option_values.parse_location`). Runs on the driver, on executors and in the publisher.
"""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import pyarrow as pa
from pyarrow import fs

HAS_AZURE = hasattr(fs, "AzureFileSystem")
"""Whether this pyarrow knows Azure's storage."""

_AZURE_KEY = "AZURE_STORAGE_KEY"
_AZURE_HOST = re.compile(r"(?P<account>[^.]+)\.(?:blob|dfs)\.core\.windows\.net")
_LONGEST_RETRY = "30"
"""Seconds for which Google's client retries. Its own 15 minutes look like a query that hangs."""


def opened(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a location, and the path in it.

    Raises OSError, ValueError or ArrowException if there is none, or if it does not answer.
    """
    if location.startswith("/"):
        return fs.LocalFileSystem(), location
    parts = urlsplit(location)
    given = dict(parse_qsl(parts.query))
    if parts.scheme in ("abfs", "abfss"):
        if not HAS_AZURE:
            raise ValueError(
                f"pyarrow {pa.__version__} has no file system for Azure. Install pyarrow 16 or "
                f"later wherever the location is used"
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

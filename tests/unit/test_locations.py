"""Where batches are staged, and what the option and its errors show of it."""

import pytest

from tests.cases import each_case
from zeh_spark._locations import HAS_AZURE, opened, told
from zeh_spark.client.options.given import parse
from zeh_spark.errors import OptionError
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.wire.option_values import parse_location


@each_case(
    ("text", "location"),
    [
        ("/mnt/stage/", "/mnt/stage"),
        ("/", "/"),
        ("/Volumes/main/feeds/stage", "/Volumes/main/feeds/stage"),
        ("dbfs:/Volumes/main/feeds/stage", "/Volumes/main/feeds/stage"),
        ("file:///mnt/stage/", "file:///mnt/stage"),
        ("s3a://bucket/stage/", "s3://bucket/stage"),
        ("s3://bucket/s?region=eu-north-1", "s3://bucket/s?region=eu-north-1"),
        ("gs://anonymous@bucket/s", "gs://anonymous@bucket/s"),
        ("abfss://c@a.dfs.core.windows.net/s", "abfss://c@a.dfs.core.windows.net/s"),
    ],
)
def test_a_location_is_a_path_or_the_address_of_a_folder(text, location):
    """Volumes of Unity Catalog are paths; the addresses are those that Spark takes."""
    assert location == parse_location(text)


@each_case(
    "location",
    [
        "s3://AKIAID:{}@bucket/stage",
        "s3://{}@bucket/stage",
        "s3a://bucket/stage?secret_key={}",
        "s3://bucket/stage?access_key={}&region=us-east-1",
        "abfs://container:{}@account.dfs.core.windows.net/stage",
        "abfss://c@account.dfs.core.windows.net/stage?sig={}",
        "abfss://c@account.dfs.core.windows.net/stage?client_secret={}",
        "gs://{}@bucket/stage",
        "gs://bucket/stage?access_token={}",
        "dbfs://token:{}@host/stage",
        "s3://AKIAID:{}/with/a/slash@bucket/stage",
        "abfss://c:{}/with/a/slash@account.dfs.core.windows.net/stage",
        "s3://bucket/stage?endpoint_override=http://user:{}@minio:9000",
    ],
)
def test_a_location_with_credentials_is_refused_and_hidden(location):
    """Spark would show them in plans. The error says where they belong."""
    with pytest.raises(OptionError) as refused:
        given = {"url": "http://h/f", "stagingLocation": location.format("canary")}
        parse(SourceOptions, given)

    said = str(refused.value)
    assert "option 'stagingLocation' must " in said
    assert "environment" in said or "absolute path" in said
    assert "canary" not in said


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("abfss://c@account.dfs.core.windows.net/a/b", "c/a/b"),
        ("abfs://account.blob.core.windows.net/c/a%20b", "c/a b"),
        ("abfs://account@127.0.0.1:10000/c/a?enable_tls=false", "c/a"),
    ],
)
def test_azures_account_key_comes_from_the_environment(location, path, monkeypatch):
    """As Azure's own command line has it. The path is the one that pyarrow finds without a key."""
    if not HAS_AZURE:  # the oldest pyarrow
        with pytest.raises(ValueError, match="no file system for Azure"):
            opened(parse_location(location))
        return
    without = opened(parse_location(location))
    monkeypatch.setenv("AZURE_STORAGE_KEY", "Y2FuYXJ5")
    with_key = opened(parse_location(location))

    assert (path, path) == (without[1], with_key[1])
    assert without[0] != with_key[0]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("No such bucket.", "No such bucket"),
        ("GET 'https://a.example/c?sv=1&sig=canary' failed", "GET 'https://a.example/c' failed"),
        ("key Y2FuYXJ5 is wrong. \nAt:\n  here", "key (hidden) is wrong"),
        ("Status(UNAVAILABLE: not there error_info={reason=…})", "Status(UNAVAILABLE: not there"),
    ],
)
def test_errors_of_clients_are_shown_without_secrets(said, shown, monkeypatch):
    """Signed addresses, and keys that a client repeats, stay out of logs."""
    monkeypatch.setenv("AZURE_STORAGE_KEY", "Y2FuYXJ5")

    assert shown == told(OSError(said))

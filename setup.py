"""What is installed, and what it needs. Settings of tools are in pyproject.toml."""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

# The address of the repository, which the release workflow tells. With it, the links of the
# description lead somewhere on PyPI.
REPOSITORY = os.environ.get("ZEH_REPOSITORY", "").rstrip("/")


def version() -> str:
    """Read, not imported: the package's own imports are not installed yet."""
    text = (ROOT / "zeh_spark" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)[1]


def readme() -> str:
    """The description: the README, whose links to files lead to those of this version."""
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if not REPOSITORY:
        return text

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[0].startswith("!") else "blob"
        return f"{link[0]}{REPOSITORY}/{kind}/v{version()}/"

    return re.sub(r"!?\[[^\]]*\]\((?!https?:|#)", absolute, text)


def addresses() -> dict[str, str]:
    """The links beside the description."""
    found = {"ZeroEventHub specification": "https://github.com/vippsas/zeroeventhub"}
    if REPOSITORY:
        found["Source"] = REPOSITORY
        found["Changelog"] = f"{REPOSITORY}/blob/v{version()}/CHANGELOG.md"
        found["Issues"] = f"{REPOSITORY}/issues"
    return found


# PySpark is deliberately not here: clusters and Databricks bring their own, and pip must never
# replace it. The lower bounds are what runs with Spark 4.0; pip leaves newer ones alone, also those
# that Databricks pins: tests/unit/test_databricks_pins.py. `make test-oldest` runs the tests with
# these versions, and those of PUBLISHER and SESSIONS.
REQUIRES = [
    "click>=8.1.7",  # the command line
    "msgspec>=0.21",  # the first whose errors are ValueErrors, and whose `replace` checks the copy
    "numpy>=1.26",
    "orjson>=3.10",
    "pyarrow>=15",
    "requests>=2.31",
    "urllib3>=2.0.2",  # 1.x took a body cut short for whole, and 2.0.0 cut compressed ones
    "xxhash>=3.2",
    "zstandard>=0.22",
]

PUBLISHER = [
    "httptools>=0.6",
    "isal>=1.6",  # packs gzip five times as fast as zlib; readers that have it unpack with it
    "jinja2>=3.1",  # the pages of the console
    "jsonschema-rs>=0.58.6,<0.62",  # 0.61 is the newest tried; each 0.x may change what it says
    "prometheus-client>=0.20",
    "psycopg[binary]>=3.2.10",  # earlier ones lose notifications between two waits
    "pyjwt[crypto]>=2.10.1",  # 2.10.0 took a part of the issuer's name for it (CVE-2024-53861)
    "pyyaml>=6",
    "sqlalchemy>=2.0.42",
    "starlette>=0.42",  # gives middleware the application as its first argument
    'tomli>=2.2.1; python_version < "3.11"',  # reads the file of settings; later Pythons have it
    "uvicorn>=0.31,<0.55",  # its class for connections is subclassed: 0.54 is the newest tried
]

# What Spark's state for Python needs, and so wide that pip leaves alone what Databricks has: it
# installs protobuf 5.29.4, which its own PySpark 4.0 and 4.1 need. Apache's PySpark 4.0 needs
# 5.28.3, and 4.1 to 4.3 need 6.33.5; `stateful.requirements` asks PySpark itself. PySpark 4.2 warns
# of pandas 3 whenever it starts.
SESSIONS = ["pandas>=2.2,<3", "protobuf>=5.28.3,<7"]

TEST = [
    *SESSIONS,
    "axe-playwright-python>=0.1.8",  # looks at the console in Chromium, with axe-core 4.12
    "chispa>=0.10",
    "cryptography>=42",  # reads the certificates that tests make
    "databricks-bundles>=1",  # knows what the bundle in conf/ may say
    "fastapi>=0.115",  # the example service is written with it
    "gcp-storage-emulator>=2024.8",  # stages batches in Google's protocol
    "greenlet>=3",  # runs the processes of a simulation in one thread
    "googleapis-common-protos>=1.65",  # with both grpcio: PySpark's extra `connect`
    "grpcio>=1.67",
    "grpcio-status>=1.67",
    "hypothesis>=6.100",
    "ipykernel>=6.29",  # the notebooks run in it
    "jsonschema>=4.20",
    "markdown-it-py>=3",  # finds the code blocks of the docs
    "matplotlib>=3.9",  # and draw with this
    "moto[server]>=5",  # stages batches in S3's protocol
    "nbclient>=0.10",
    "openapi-spec-validator>=0.7",
    "psutil>=6",
    "pytest>=8.2,<9.2",  # pytest-xdist 3.8 does not group tests with 9.2
    "pytest-cov>=5",
    "pytest-randomly>=3.15",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "schemathesis>=4.30",  # calls a publisher with whatever its OpenAPI document allows
    "setuptools>=77",  # the tests build the wheel and look into it
    "trustme>=1.1",
]

# The site, which `make docs` builds. The reference of the Python API is read from the sources. mike
# publishes a version of it beside the others.
DOCS = ["mike>=2.1", "mkdocs-material>=9.6", "mkdocstrings[python]>=0.27", "ruff"]  # for signatures

# Pinned: what decides whether `make lint` is green, and the Spark that is developed on. A Python
# data source needs pyarrow of PySpark's `sql` extra; pandas comes with it for what is grouped and
# stateful. What its `connect` extra needs is in TEST.
DEV = [
    *TEST,
    "delta-spark==4.4.0",  # 4.4.1 names jars that Maven Central does not have
    "deltalake>=1",  # the docs keep a feed in its tables, and in those of DuckDB
    "duckdb>=1.1",
    "mypy==2.4.1",
    "pandas-stubs<3",
    "pyspark[sql]==4.2.0",
    "ruff==0.17.5",
    "types-psutil",
    "types-PyYAML",
    "types-requests",
]

setup(
    name="zeh-spark",
    version=version(),
    description="ZeroEventHub feeds for Apache Spark, effectively once, both ways",
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls=addresses(),
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["zeroeventhub", "spark", "pyspark", "structured streaming", "events", "ndjson"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Software Development :: Libraries",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    # Spark finds data sources by listing the folders of sys.path. With this line an editable
    # install puts the checkout there; without it, it would be an import hook that Spark cannot see.
    package_dir={"": "."},
    packages=find_packages(include=["zeh_spark", "zeh_spark.*"]),
    py_modules=["pyspark_zeroeventhub"],
    package_data={
        "zeh_spark": [
            "py.typed",
            "spark/ivysettings.xml",
            "service/app/openapi.yaml",
            "service/console/templates/*",
            "tools/cli/errors.md",
        ]
    },
    install_requires=REQUIRES,
    extras_require={
        "publisher": PUBLISHER,
        "sessions": SESSIONS,
        "docs": DOCS,
        "test": TEST,
        "dev": DEV,
    },
    entry_points={"console_scripts": ["zeh-spark = zeh_spark.tools.cli.main:main"]},
)

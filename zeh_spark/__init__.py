"""ZeroEventHub feeds for Apache Spark."""

__version__ = "0.1.0"

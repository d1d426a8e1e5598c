"""Bytes of a feed to columns of Arrow: `lines` of NDJSON pages, `chunks` of direct reads.

`header_columns` makes the columns that describe an event (feed, partition, number, time). Runs on
executors and in programs that read without Spark: no module here keeps anything between calls.
"""

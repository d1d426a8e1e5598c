"""The bytes and values that both sides of the wire share.

`wire` reads and writes lines and cursors, `page_scanner` a whole answer, `upload_format` the chunks
of an upload, `events` and `dead_letters` what is in a line, `feed_identity` and `stamps` whose
numbers an event has. Pure: no socket, no file, no Spark.
"""

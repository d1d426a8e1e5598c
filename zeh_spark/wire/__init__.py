"""The bytes and values that readers, writers and the publisher share.

`wire` reads and writes lines and cursors, `page_scanner` a whole answer, and `upload_format` the
chunks of an upload. `dead_letters` holds the rows that cannot be published, `feed_identity` the
feed that an event's numbers belong to, and `problems` what a publisher refuses.

Rule for editors: everything here is pure: no socket, no file, no Spark.
"""

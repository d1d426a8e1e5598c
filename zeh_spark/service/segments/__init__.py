"""Segments: old packs of a feed's log, as objects in a folder or an object store.

`objects` reads and writes objects, `block_reader` bounds what slow storage may take,
`segment_format` says what is in an object, and `ownership` tells whose a location is.

Rule for editors: only the lines of events move. What chunks there are stays in the database, so
that plans, cursors and retention never wait for storage. Runs in the publisher and in commands.
"""

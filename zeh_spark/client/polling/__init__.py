"""Follow a feed's cursors page by page until its end, with any publisher.

`finite_read` reads one partition. `feed_end` decides when it has reached the end, `feed_end_probes`
asks publishers that do not say so, `cursor_loops` stops at cursors that come again. `track` is how
far one partition was read ahead, and `position_reporter` tells the publisher how far a reader has
come.
"""

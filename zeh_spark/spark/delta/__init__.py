"""Feeds and Delta tables: `to_delta` keeps a feed in a table, `from_delta` makes a table a feed.

A feed into a table:

    feed_table      starts the query, and tells where a table stands
    delta_writer    writes each batch once, with its cursors
    checkpoint      reads where a batch begins and ends
    commits         reads what the table's log says
    following       decides whether a batch is next, there already, or refused
    merging         builds the MERGE, and removes deleted keys
    precedence      decides which event of a key a merged table shows
    delta_table     reads and changes the table itself
    commit_settings gives a MERGE its settings, which no other statement sees
    claims          keeps each feed under one name
    content         compares a repeated batch with the one that was written
    app_versions    writes each version once for `merge` with a version

A table as a feed:

    delta_reader    makes the frame of a table's rows or changes
    delta_options   decides which of Delta's options are accepted
"""

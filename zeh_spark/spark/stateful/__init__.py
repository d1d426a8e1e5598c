"""What sessions and deduplication share: rows in Spark's state, and sets of numbers.

`requirements` refuses a Spark session in which state could not work. `state_buckets` and
`row_codec` bring rows into Spark's state and back, and `processors` keeps a bucket's value there.

`dedup` is what users call. It goes by numbers (`dedup_numbers` on the driver, `numbers_operator` in
tasks) or by ids (`dedup_ids`, `ids_operator`). `ranges` and `seen` are sets of sequence numbers,
`dedup_state` is what is kept of them, and `seen_ids` of ids; these have no side effects.
"""

"""Where a publisher keeps feeds: the interface of every store, and the rules that all of them keep.

`interface` is what a store offers, and `log` what it tells of a feed. The rules have no side
effects and are the same for every store: `commit_decision` (is a batch new, a repetition, or
refused?), `commit_plan` (which chunks it adds), `refusals`, `packs`, `clock`. The stores are in the
packages `sqlite` and `postgresql`; `reads` is how their feeds are read.

`tests.store_contract` holds the tests that each store has to pass.
"""

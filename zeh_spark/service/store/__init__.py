"""Where a publisher keeps feeds: the interface of every store, and the rules that all of them keep.

`interface` is what a store offers. The rules have no side effects and are the same for every store:
`commit_decision` (is a batch new, a repetition, or refused?), `commit_plan` (which chunks it adds),
`refusals`, `pages` (what a page holds, and where it ends), `packs`, `clock`. The stores are
in the packages `sqlite` and `postgresql`.

`tests.store_contract` holds the tests that each store has to pass.
"""

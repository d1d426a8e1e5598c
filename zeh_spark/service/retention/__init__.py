"""How long feeds keep their events and receipts.

`rules` says what may be removed, and removes it in small steps. `pruner` is the publisher's thread
that does so from time to time.
"""

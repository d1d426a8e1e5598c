"""The audit of a feed, over HTTP alone: is every published batch there once and unaltered?

`chain` checks a producer's receipts against each other. `judge`, with `claims`, checks the feed
against the receipts. `lines` and `pieces` take apart what is served. `findings` holds the result.
All these are pure. `ledger` keeps on disk what they must remember, `reading` reads the feed, and
`auditing` joins all of them.

Rule for editors: nothing here opens a store. The audit knows only what the publisher serves: its
feed and its receipts. Runs in the command `audit`, or in a program that calls `auditing.Audit`.
"""

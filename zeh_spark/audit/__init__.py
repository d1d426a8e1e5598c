"""Checks a feed from the outside, over HTTP alone: that every batch is there once, unaltered.

A family of its own. `chain` judges a producer's receipts, `judge` the feed against them; both are
pure. `ledger` keeps on disk what they must remember, `reading` brings the feed, `auditing` joins
these. Runs in the command `audit`; knows of the publisher what it says about itself, its receipts.
"""

"""How a feed that a store keeps is read: positions, pages, plans of direct reads, and their chunks.

`feed` is the feed as the publisher serves it. Reads use a store's snapshots (`store.log`), and
write nothing.
"""

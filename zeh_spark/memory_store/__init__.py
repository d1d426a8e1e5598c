"""Feeds in this process, for tests and examples: `store.MemoryStore`. They end with it."""

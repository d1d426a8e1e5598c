"""How long tests wait for what should happen."""

PATIENCE = 300
"""Seconds: for what hangs, not for what is slow, and below the limit for a whole test."""

"""Targets and drafting heads as pure functions, and the config they are built from."""

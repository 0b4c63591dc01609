"""Drafters: how tokens are proposed, one method per file."""

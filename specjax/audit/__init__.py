"""Audits: the exact distribution of a rule by enumeration, and tests of engines and servers."""

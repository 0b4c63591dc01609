"""Benchmarks, one per ``specjax bench`` command: what is measured, its peer and its goal."""

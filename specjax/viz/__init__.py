"""Figures with matplotlib, and the live text of a terminal."""

"""Test a drafter of your own: the laws that every drafter of specjax keeps, in one call."""

from specjax.testing.check import Report, check_drafter

__all__ = ["Report", "check_drafter"]

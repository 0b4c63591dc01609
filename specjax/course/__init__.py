"""Graded exercises to the notebooks: ``python -m specjax.course start 03``, then ``check 03``."""

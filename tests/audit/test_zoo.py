"""Every bug of the zoo is caught, and the sound rule in its place is not."""

import inspect

import pytest

from specjax.audit.zoo import ZOO, examine


@pytest.mark.parametrize("keeper", ZOO, ids=lambda keeper: keeper.__name__)
def test_the_audit_catches_every_bug_and_only_bugs(keeper):
    specimen = keeper()
    found, sound = examine(specimen), examine(specimen, sound=True)
    assert found.tv - found.doubt > 0.05 or found.stray > 0 or found.reused > 0.05, found
    assert max(sound.tv, sound.doubt) < 1e-6, sound
    assert sound.stray == sound.reused == 0, sound


def test_every_specimen_is_a_short_puzzle_with_a_hint():
    assert len(ZOO) >= 12
    for keeper in ZOO:
        puzzle, lines = inspect.getdoc(keeper) or "", inspect.getsource(keeper).splitlines()
        assert puzzle.startswith("Symptom: ")
        assert "\n\nHint: " in puzzle
        assert len(lines) - len(puzzle.splitlines()) <= 12, keeper.__name__

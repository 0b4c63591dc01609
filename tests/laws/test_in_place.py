"""The cache is updated in place: the compiled programs hold no second one."""

import jax.numpy as jnp
import pytest

from specjax.core.types import Drafter
from specjax.testing.in_place import LARGE, compiled, in_place
from specjax.testing.subject import Subject, of_drafter
from tests.laws import harness as h

DRAFTERS = {"none": h.PLAIN, "draft_model": h.CHAINS["draft_model greedy"]}
DRAFTERS |= {"eagle": h.CHAINS["eagle"], "listener": h.LISTENER._replace(taps=h.TAPS)}
DRAFTERS["dflash"] = h.CHAINS["dflash"]
DRAFTERS["suffix"] = h.CHAINS["suffix"]
DRAFTERS["tree"] = h.guided(h.TREES["bush"])
INDEX = f"s32[4,8,{LARGE + 1},11]"  # suffix decoding's own


def subject(name: str) -> Subject:
    drafter: Drafter = DRAFTERS[name]
    params = h.weights(drafter).draft
    if name == "dflash":
        drafter = drafter._replace(taps=h.TAPS)
    if name == "tree":
        params = h.Answers(jnp.zeros((4, LARGE), "int32"), jnp.float32(1))
    return of_drafter(drafter, lambda target: params)


@pytest.mark.parametrize("name", DRAFTERS)
def test_no_copy_of_the_cache(name):
    in_place(subject(name))


def test_suffix_decoding_s_index_is_looked_at():
    assert INDEX in compiled(subject("suffix"), LARGE).as_text()

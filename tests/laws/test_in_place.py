"""The cache is updated in place: the compiled programs hold no second one."""

import re

import jax
import pytest

from specjax import decode
from specjax.types import Engine
from specjax.verify.walk import walk
from tests.laws import harness as h

DRAFTERS = {"none": h.PLAIN, "draft_model": h.CHAINS["draft_model greedy"]}
DRAFTERS |= {"eagle": h.CHAINS["eagle"], "listener": h.LISTENER}
DRAFTERS["suffix"] = h.CHAINS["suffix"]
INDEX = "s32[4,8,4097,11]"  # suffix decoding's own, at the larger capacity
DRAFTERS["tree"] = h.guided(h.TREES["bush"])


def compiled(name: str, capacity: int):
    rows = h.random_rows(4, seed=1)
    params = h.weights(DRAFTERS[name])
    if name == "tree":
        answers = h.Answers(jax.numpy.zeros((4, capacity), "int32"), jax.numpy.float32(1))
        params = params._replace(draft=answers)
    engine = Engine(h.TARGET, DRAFTERS[name], walk, 64)
    state = h.init_state(engine, params, *h.pack(rows, capacity, lean=True))
    generate = jax.jit(decode.generate, static_argnums=(0, 5), donate_argnums=2)
    return generate.lower(engine, params, state, 8, 1, 8).compile()


@pytest.mark.parametrize("name", DRAFTERS)
def test_no_copy_of_the_cache(name):
    small, large = (compiled(name, capacity) for capacity in (512, 4096))
    leaf = "f32[4,2,4096,8]"
    assert leaf in large.as_text()
    assert (name == "suffix") == (INDEX in large.as_text())
    for one in (leaf, INDEX):
        assert not re.findall(
            rf"= {re.escape(one)}\S* (copy|select|concatenate)\(", large.as_text()
        )
    # Scratch memory that grew with the capacity could only be such a copy.
    grown = large.memory_analysis().temp_size_in_bytes - small.memory_analysis().temp_size_in_bytes
    assert grown < 4 * 4 * 2 * 4096 * 8  # bytes of one leaf

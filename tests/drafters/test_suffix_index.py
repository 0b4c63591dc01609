"""The index of what was said: counts are counts, whatever was appended and forgotten."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters import suffix_index as trie

DEPTH, CAPACITY, LONGEST = 4, 60, 12

append = jax.jit(trie.extend)
forget = jax.jit(functools.partial(trie.extend, one=trie.forget))


def sweep(one, index, sequence):
    """Append or forget a whole sequence."""
    padded = np.zeros((1, LONGEST), np.int32)
    padded[0, : len(sequence)] = sequence
    index = index._replace(active=jnp.zeros_like(index.active))
    return one(index, jnp.asarray(padded), jnp.asarray([len(sequence)], jnp.int32))


def counted(sequences) -> dict:
    """Count every string of up to DEPTH tokens."""
    found = collections.Counter()
    for one in sequences:
        for start in range(len(one)):
            found.update(tuple(one[start:end]) for end in range(start + 1, start + 1 + DEPTH)
                         if end <= len(one))  # fmt: skip
    return dict(found)


def held(index: trie.Index) -> dict:
    """Walk the trie: every string and its count; check the order and the groups of siblings."""
    tables, found = np.asarray(index.tables[0]), {}
    parents = {trie.NONE: ()}
    for table in tables:
        nodes = {}
        for parent, string in parents.items():
            siblings = ring(table, table[parent, trie.FIRST])
            counts = [int(table[node, trie.COUNT]) for node in siblings]
            assert counts == sorted(counts, reverse=True)
            for node, count in zip(siblings, counts, strict=True):
                nodes[node] = (*string, int(table[node, trie.TOKEN]))
                found[nodes[node]] = count
                mates = [mate for mate, c in zip(siblings, counts, strict=True) if c == count]
                group = table[node, trie.GROUP]
                ends = table[group, trie.HEAD], table[group, trie.TAIL]
                assert ends == (mates[0], mates[-1])
        groups = {int(table[node, trie.GROUP]) for node in nodes}
        assert free(table, trie.CHAIN).isdisjoint(nodes)
        assert len(free(table, trie.CHAIN)) + len(nodes) == CAPACITY
        assert free(table, trie.HEAD).isdisjoint(groups)
        assert len(free(table, trie.HEAD)) + len(groups) == CAPACITY
        parents = nodes
    return found


def ring(table, first) -> list[int]:
    """Return siblings from the first to the last."""
    found = [int(first)] if first != trie.NONE else []
    while found and table[found[-1], trie.NEXT] != first:
        found.append(int(table[found[-1], trie.NEXT]))
    return found


def free(table, field) -> set[int]:
    """Return the places that are free, of nodes or of groups."""
    found, place = set(), table[trie.NONE, field]
    while place != trie.NONE:
        assert place not in found
        found.add(int(place))
        place = table[place, field]
    return found


@pytest.mark.parametrize("alphabet", [2, 3, 40])
def test_what_is_left_is_counted_as_if_nothing_else_had_been_there(alphabet):
    rng, index, sequences = np.random.default_rng(alphabet), trie.empty(1, DEPTH, CAPACITY), []
    for _ in range(40):
        new = rng.integers(0, alphabet, rng.integers(1, LONGEST + 1)).tolist()
        while sum(map(len, [*sequences, new])) > CAPACITY or (sequences and rng.random() < 0.3):
            old = sequences.pop(rng.integers(len(sequences)))
            index = sweep(forget, index, old)
            assert held(index) == counted(sequences)
        index = sweep(append, index, new)
        sequences.append(new)
        assert held(index) == counted(sequences)
        assert int(index.size[0]) == sum(map(len, sequences))


def test_a_full_index_takes_no_more_and_stays_as_it_is():
    index = trie.empty(1, DEPTH, 5)
    index = sweep(append, index, [1, 2, 1, 2, 1])
    again = sweep(append, index, [7, 8])
    np.testing.assert_array_equal(again.tables, index.tables)
    assert int(again.size[0]) == 5

"""Any region of a tensor is read as numpy would cut it, and devices get theirs and no more."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from specjax.weights.load import find_tensors
from specjax.weights.reader import Part, read_tensor

STACK, MATRIX, VECTOR = (3, 10, 14), (26, 12), (30,)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Three tensors: their sources and their values."""
    folder, draw = tmp_path_factory.mktemp("stored"), np.random.default_rng(0)
    values = {
        name: draw.standard_normal(shape).astype(np.float32)
        for name, shape in (("stack", STACK), ("matrix", MATRIX), ("vector", VECTOR))
    }
    save_file(values, folder / "model.safetensors")
    return find_tensors(folder, lambda name: name), values


def read(stored, *parts, shape=None, where=None):
    sources, _ = stored
    found = [(part, sources[part.name]) for part in parts]
    shape = shape or found[0][0].shape(found[0][1].shape)
    return np.asarray(read_tensor(found, jax.ShapeDtypeStruct(shape, "float32"), where))


def cut(values, part):
    """Return what a part stands for, by numpy."""
    index = [slice(None)] * values.ndim
    index[part.axis] = slice(part.start, part.stop, part.step)
    found = values[tuple(index)]
    return found.swapaxes(-1, -2) if part.transpose else found


@pytest.mark.parametrize("piece", [7, 60, 1 << 20])
@pytest.mark.parametrize(
    "part",
    [
        Part("stack"),
        Part("stack", transpose=True),
        Part("stack", axis=2, start=7, transpose=True),  # the second half, input-first
        Part("stack", axis=2, start=1, step=2, transpose=True),  # the odd columns
        Part("stack", axis=1, start=1, step=2),
        Part("stack", axis=0, start=1, stop=3),
        Part("matrix"),
        Part("matrix", start=5, stop=22, step=3),
        Part("matrix", axis=1, stop=5, transpose=True),
        Part("vector"),
        Part("vector", start=3, stop=28, step=2),
    ],
    ids=str,
)
def test_a_part_is_what_numpy_cuts(part, piece, stored, monkeypatch):
    monkeypatch.setattr("specjax.weights.reader.PIECE", piece)
    np.testing.assert_array_equal(read(stored, part), cut(stored[1][part.name], part))


def test_parts_are_joined_or_stacked(stored):
    first, second = Part("matrix", stop=10), Part("matrix", start=16)
    matrix = stored[1]["matrix"]
    joined = read(stored, second, first, shape=(20, 12))
    np.testing.assert_array_equal(joined, np.concatenate([matrix[16:], matrix[:10]]))
    stacked = read(stored, first, second, shape=(2, 10, 12))
    np.testing.assert_array_equal(stacked, np.stack([matrix[:10], matrix[16:]]))


SPLIT = """
import json, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from specjax.weights import reader
from specjax.weights.load import find_tensors
from specjax.weights.reader import Part, read_tensor
sources = find_tensors(__import__("pathlib").Path(sys.argv[1]), lambda name: name)
plain, rows = reader._open_plain, []
def spy(name, entry):
    read = plain(name, entry)
    def count(start, stop):
        rows.append(stop - start)
        return read(start, stop)
    return count
reader._open_plain = spy
mesh, found = Mesh(np.array(jax.devices()), ("tensor",)), []
stack, matrix = Part("stack", axis=2, step=2, transpose=True), Part("matrix")
more = Part("matrix", start=2, stop=12), Part("matrix", start=12, stop=22)
for parts, shape, spec in (
    ((stack,), (3, 7, 10), (None, None, "tensor")), ((matrix,), (26, 12), ("tensor", None)),
    ((matrix,), (26, 12), (None, "tensor")), ((matrix,), (26, 12), ()),
    (more, (20, 12), ("tensor", None)), (more, (2, 10, 12), ("tensor", None, None)),
    (more, (2, 10, 12), (None, "tensor", None)),
):
    rows.clear()
    where = NamedSharding(mesh, PartitionSpec(*spec))
    leaf = jax.ShapeDtypeStruct(shape, "float32")
    split = read_tensor([(part, sources[part.name]) for part in parts], leaf, where)
    read = sum(rows)
    whole = read_tensor([(part, sources[part.name]) for part in parts], leaf, jax.devices()[0])
    found.append([bool((np.asarray(split) == np.asarray(whole)).all()), read,
                  [shard.data.shape for shard in split.addressable_shards]])
print(json.dumps(found))
"""


def test_each_device_reads_its_part_only(stored):
    """On two virtual devices; what both keep is read once."""
    folder = stored[0]["matrix"].file.parent
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", SPLIT, str(folder)]
    done = subprocess.run(command, env={**os.environ, **flags}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    equal, rows, shapes = zip(*json.loads(done.stdout), strict=True)
    assert all(equal)
    assert rows == (30, 26, 26, 26, 20, 20, 20)  # halves of all rows are read together
    assert shapes[0] == [[3, 7, 5]] * 2
    assert shapes[1:4] == ([[13, 12]] * 2, [[26, 6]] * 2, [[26, 12]] * 2)
    assert shapes[4:] == ([[10, 12]] * 2, [[1, 10, 12]] * 2, [[2, 5, 12]] * 2)

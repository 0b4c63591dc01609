"""Training data belongs to one target: to all of its files."""

import json

from specjax.train.features import SourceConfig, identity


def test_a_target_of_several_files_is_known_by_all_of_them(tmp_path):
    placed = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": placed}))
    found = set()
    for last in (b"two", b"2", b"two"):
        (tmp_path / placed["a"]).write_bytes(b"one")
        (tmp_path / placed["b"]).write_bytes(last)
        found.add(identity(SourceConfig(target=str(tmp_path)))["target_sha256"])
    assert len(found) == 2

"""Pictures are written whole, and one that cannot be is refused before the work."""

import pytest
from matplotlib.figure import Figure

from specjax.viz.figure import check_picture, save_figure


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing/demo.png", "missing is not a folder; create it first"),
        ("demo.txt2", "demo.txt2 must end in one of .*png"),
        ("", "cannot be written"),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused(name, said, tmp_path):
    for refuse in (check_picture, lambda file: save_figure(Figure().add_subplot(), file)):
        with pytest.raises(ValueError, match=f"picture {tmp_path}.*{said}"):
            refuse(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    check_picture(tmp_path / "demo.png")


@pytest.mark.parametrize(
    ("name", "start"), [("a.png", b"\x89PNG"), ("a", b"\x89PNG"), ("a.svg", b"<?xml")]
)
def test_the_suffix_says_how(name, start, tmp_path):
    save_figure(Figure().add_subplot(), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    assert [file.name for file in tmp_path.iterdir()] == [name]

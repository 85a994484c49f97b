"""A board's folder: one that others could list is refused, and one that holds other things is left
alone."""

import pytest
from classroom.seats import folder_in

from labkit.classroom import room_run
from labkit.classroom.room_run import Folder


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o700, 0o3777])
def test_a_folder_that_others_could_list_is_refused_and_says_the_way_out(tmp_path, mode):
    folder = folder_in(tmp_path)
    folder.chmod(mode)
    with pytest.raises(ValueError, match="--make"):
        Folder(folder)
    room_run.make(folder)
    assert Folder(folder).read().learners == ()


def test_a_folder_with_other_things_in_it_is_not_made_a_board(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ValueError, match=r"there are files in it. Name another"):
        room_run.make(tmp_path)
    assert tmp_path.stat().st_mode & 0o7777 == 0o755
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("link", "thesis.txt", "no/where"):
        with pytest.raises(ValueError, match="Name another"):
            room_run.make(tmp_path / name)

"""The rules that are broken on purpose: each stands in the package, and a broken one is noticed."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def mutate():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import mutate as found
    finally:
        sys.path.remove(str(BENCHMARKS))
    return found


def test_every_rule_stands_once_in_the_package_and_its_tests_exist(mutate):
    rules = mutate.rules()
    assert [fault for rule in rules for fault in mutate.faults(rule)] == []
    assert len(rules) >= 60 and {rule.kind for rule in rules} == set(mutate.KINDS)
    assert len({(rule.file, rule.was) for rule in rules}) == len(rules)


def test_a_line_that_is_gone_a_wrong_kind_and_a_missing_room_are_told(mutate):
    rule = mutate.Rule("units.py", "colour", "no such line", "", ("nowhere",))
    gone, kind, room = mutate.faults(rule)
    assert "0 times" in gone and "colour" in kind and "nowhere" in room


@pytest.mark.again
def test_a_broken_rule_is_noticed_and_an_unbroken_one_survives(mutate, tmp_path):
    (rule,) = [rule for rule in mutate.rules() if rule.file == "units.py"]
    copy = mutate.copied(tmp_path)
    whole = (copy / "labkit/units.py").read_text()
    assert "test_" in mutate.tried(rule, copy).by
    same = mutate.Rule(rule.file, rule.kind, rule.was, rule.was, rule.tests)
    assert mutate.tried(same, copy).by == ""
    assert (copy / "labkit/units.py").read_text() == whole


def test_each_room_has_its_row_under_that_of_all(mutate):
    found = [
        mutate.Broken("a/x.py", "sign", "1", "test_x", 2.0),
        mutate.Broken("a/y.py", "rank", "2", "", 3.0),
        mutate.Broken("units.py", "unit", "3", "test_u", 1.0),
    ]
    rows = mutate.by_room(found)
    assert [row["room"] for row in rows] == ["all", "a", "units.py"]
    assert [row["noticed"] for row in rows] == [2, 1, 1]
    assert rows[0]["survivors"] == rows[1]["survivors"] == "a/y.py: 2"
    assert rows[2]["survivors"] is None and rows[0]["took_s"] == 6

"""The house rules hold; and each rule, shown a thing that breaks it, says so."""

from pathlib import Path

import files
import house
import plain
import public
import pytest

ROOT = Path(__file__).resolve().parents[2]
TREE = house.sources(ROOT / "labkit")
RULES = (
    house.import_faults,
    house.cycle_faults,
    house.engine_faults,
    house.size_faults,
    house.folder_faults,
    house.name_faults,
    public.docstring_faults,
    public.type_faults,
)
LONG = "def long():\n" + "    pass\n" * 45
RUN = {"launching.run": "", "pictures.svg": "", "juggling.run": "", "juggling.board": ""}
BROKEN = (
    (
        house.import_faults,
        {"units": "from labkit.launching import run", **RUN},
        "units (noun) imports launching.run: a noun knows nouns",
    ),
    (
        house.import_faults,
        {"machine.ops": "def f():\n    from labkit.launching.run import Run", **RUN},
        "it stands to the right",
    ),
    (
        house.import_faults,
        {"check.kit": "from labkit.juggling import run", **RUN},
        "the stage knows no subject",
    ),
    (
        house.import_faults,
        {"pictures.mpl": "from labkit.launching import run", **RUN},
        "pictures know nouns and pictures",
    ),
    (
        house.import_faults,
        {"juggling.throws": "from labkit.launching import run", **RUN},
        "juggling.throws (theory) imports launching.run: theory knows theory",
    ),
    (
        house.import_faults,
        {"juggling.throws": "def f():\n    from . import run", **RUN},
        "theory starts nothing",
    ),
    (
        house.import_faults,
        {"juggling.throws": "from labkit.circus import picture", "circus.picture": ""},
        "juggling.throws (theory) imports circus.picture: theory knows theory",
    ),
    (
        house.cycle_faults,
        {
            "juggling.throws": "from labkit.juggling import picture",
            "juggling.picture": "from labkit.juggling import throws",
        },
        "modules import in a circle",
    ),
    (
        house.import_faults,
        {"juggling.picture": "from labkit.juggling.run import launch", **RUN},
        "juggling.picture (picture) imports juggling.run",
    ),
    (
        house.import_faults,
        {"juggling.clubs_run": "from labkit.pictures import svg", **RUN},
        "juggling.clubs_run (run) imports pictures.svg",
    ),
    (
        house.import_faults,
        {"circus.board": "from labkit.juggling import board", **RUN},
        "boards and checks are for readers alone",
    ),
    (
        house.import_faults,
        {"launching.job": "from labkit import launch", "__init__": "", **RUN},
        "name the module that has what you need",
    ),
    (
        house.cycle_faults,
        {"a.x": "from labkit.a import y", "a.y": "from labkit.a import x"},
        "modules import in a circle",
    ),
    (
        house.cycle_faults,
        {
            "a.x": "def f():\n    from labkit.b import x",
            "b.x": "def f():\n    from labkit.a import x",
        },
        "subjects import in a circle",
    ),
    (
        house.engine_faults,
        {"juggling.throws": "def f():\n    import torch.distributed"},
        "juggling.throws (theory) imports torch",
    ),
    (house.engine_faults, {"juggling.run": "import deepspeed"}, "at import time"),
    (house.size_faults, {"units": "x = 1\n" * 351}, "351 lines"),
    (house.size_faults, {"units": LONG}, "units.long has 46 lines"),
    (house.size_faults, {"units": LONG}, "the median function has 46 lines"),
    (house.folder_faults, {f"juggling.m{i}": "" for i in range(15)}, "juggling has 15 files"),
    (house.folder_faults, {f"m{i}": "" for i in range(14)}, "labkit has 14 files of 13"),
    (house.name_faults, {"units": "class RankManager: pass"}, "called manager"),
    (house.name_faults, {"common": "def http_utils(): pass"}, "called utils"),
    (house.name_faults, {"a.throw": "def throw(): pass"}, "called like the one thing in it"),
    (
        public.docstring_faults,
        {"units": "class Metre:\n    def f(self): pass"},
        "units.Metre.f has no docstring",
    ),
    (public.docstring_faults, {"units": "x = 1"}, "units has no docstring"),
    (
        public.docstring_faults,
        {"run": "@dataclass(frozen=True)\nclass R:\n    x: int"},
        "run.R.x has no line",
    ),
    (public.docstring_faults, {"run": "@dataclass\nclass R: pass"}, "frozen and keyword-only"),
    (public.type_faults, {"units": "def f(a, *, b: int) -> None: pass"}, "units.f: a has no type"),
    (
        public.type_faults,
        {"units": "class C:\n    def f(self): pass"},
        "units.C.f: no return type",
    ),
)
PLAIN = (
    ("f(), g()", "a tuple is no statement"),
    ("a, b = f(), 1", "a packed assignment"),
    ("x = [[j for j in i] for i in y]", "a comprehension inside a comprehension"),
    ("x = [j for i in y for j in i]", "a comprehension with two loops"),
    ("x = 1 if a else 2 if b else 3", "a choice inside a choice"),
    ("x = [y for i in z if (y := f(i))]", "a name given inside an expression"),
    ("x = rows[bool(heads) :]", "a truth value is no index"),
    ("x = size * (stage == 3)", "a truth value is no factor"),
    ("if a: b()", "a statement on its header's line"),
    ("a = 1; b = 2", "two statements on a line"),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_every_rule(rule):
    assert len(TREE) > 10
    assert rule(TREE) == []


@pytest.mark.parametrize(("rule", "tree", "words"), BROKEN, ids=[words for _, _, words in BROKEN])
def test_a_broken_rule_is_named(rule, tree, words):
    assert any(words in fault for fault in rule(tree)), rule(tree)


def test_every_rule_is_shown_something_broken():
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


def test_imports_that_the_plan_allows_are_no_fault():
    tree = {
        "__main__": "from labkit.juggling import board",
        "timeline": "from labkit import units\ndef f():\n    from labkit.pictures import svg",
        "juggling.throws": "from labkit import timeline\nfrom labkit.circus import tents",
        "juggling.two_board": "from labkit.juggling import run\nfrom labkit.pictures import svg",
        "juggling.check": "from labkit.juggling import throws, run\nfrom labkit.circus import run",
        "circus.run": "from labkit.launching import run",
        "circus.tents": "",
        "units": "",
        **RUN,
    }
    assert house.import_faults(tree) == house.cycle_faults(tree) == []


def python_files():
    """Every Python file of the project but the sources of notebooks."""
    found = [path for path in files.files(ROOT) if path.suffix == ".py"]
    return [path for path in found if path.parent != ROOT / "notebooks" / "src"]


def test_code_is_plain():
    faults = []
    for path in python_files():
        strict = path.is_relative_to(ROOT / "labkit")
        for line, what in plain.plain_faults(path.read_text(encoding="utf-8"), strict=strict):
            faults.append(f"{path.relative_to(ROOT)}:{line}: {what}")
    assert faults == []


def test_no_file_is_too_long_to_read():
    long = []
    for path in files.files(ROOT):
        lines = len(path.read_bytes().splitlines())
        if path.suffix in (".py", ".js", ".mjs") and lines > house.FILE_LINES:
            long.append(f"{path.relative_to(ROOT)} has {lines} lines of {house.FILE_LINES}")
    chapters = str(Path("notebooks", "src"))
    assert [each for each in long if not each.startswith(chapters)] == []


@pytest.mark.parametrize(("code", "words"), PLAIN, ids=[words for _, words in PLAIN])
def test_code_that_is_not_plain_is_found(code, words):
    assert any(words in what for _, what in plain.plain_faults(code)), plain.plain_faults(code)


def test_what_is_plain_is_no_fault():
    code = "a, b = b, a\nx = [f(y) for y in z if y]\nif (m := f(x)):\n    x = rows[1:] * 2\n"
    assert plain.plain_faults(code) == []


def test_tests_mirror_the_package():
    folders = {path.name for path in (ROOT / "labkit").iterdir() if (path / "__init__.py").exists()}
    tested = {path.name for path in (ROOT / "tests").iterdir() if list(path.glob("test_*.py"))}
    assert sorted(folders - tested) == []
    assert sorted(tested - folders) == ["benchmarks", "browser", "house", "notebooks", "nouns"]

"""What a release needs: one version, said alike in three files."""

import shutil
from pathlib import Path

import pytest
from release import disagreements

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = ("pyproject.toml", "CHANGELOG.md", "CITATION.cff")
DAY = "2026-11-30"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The three files, to be broken."""
    for each in FILES:
        shutil.copy(ROOT / each, tmp_path / each)
    return tmp_path


def change(path: Path, old: str, new: str) -> None:
    """Replaces what must be there once or more."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_the_version_is_the_same_everywhere():
    """In this tree."""
    assert disagreements(ROOT) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("pyproject.toml", '\nversion = "', '\nversion = "9.', "CHANGELOG.md begins with"),
        ("CITATION.cff", "\nversion: ", "\nversion: 9.", "CITATION.cff's version"),
        ("CITATION.cff", "license: Apache-2.0", "license: MIT", "CITATION.cff's license"),
        ("CHANGELOG.md", "\n## ", "\n## 9.9.9 (2026-01-01)\n\n## ", "begins with 9.9.9"),
        ("CHANGELOG.md", "\n## ", "\n## Some day\n\n## ", "headings are"),
        ("CHANGELOG.md", "\n## ", "\n### ", "headings are"),
    ],
)
def test_a_version_that_differs_is_told(tree: Path, file: str, old: str, new: str, told: str):
    """Each file, changed alone."""
    change(tree / file, old, new)
    assert any(told in each for each in disagreements(tree))


def test_a_date_stands_in_both_or_in_neither(tree: Path):
    """A release has one day."""
    changelog = tree / "CHANGELOG.md"
    before = changelog.read_text(encoding="utf-8")
    heading = before.split("\n## ")[1].splitlines()[0].split(" (")[0]
    text = f"# Changelog\n\n## {heading} ({DAY})\n"
    changelog.write_text(text, encoding="utf-8")
    citation = tree / "CITATION.cff"
    undated = citation.read_text(encoding="utf-8")
    citation.write_text(f"{undated}date-released: 2026-12-01\n", encoding="utf-8")
    assert len(disagreements(tree)) == 1
    citation.write_text(f"{undated}date-released: {DAY}\n", encoding="utf-8")
    assert disagreements(tree) == []


def test_only_the_newest_version_is_without_a_date(tree: Path):
    """What came before it was released."""
    changelog = tree / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    changelog.write_text(f"{text}\n## 0.0.1 (unreleased)\n", encoding="utf-8")
    assert any("only the newest" in each for each in disagreements(tree))

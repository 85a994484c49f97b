"""Whether pyproject.toml, CHANGELOG.md and CITATION.cff name the same version."""

import re
import tomllib
from pathlib import Path

import yaml

ENTRY = re.compile(r"^## (\S+) \((\d{4}-\d\d-\d\d|unreleased)\)$", re.MULTILINE)
SAME = {"title": "name", "license": "license", "abstract": "description", "version": "version"}


def disagreements(root: Path) -> list[str]:
    """What keeps this tree from being released, a sentence each; none where all agree."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = []
    for ours, theirs in SAME.items():
        if citation.get(ours) != project[theirs]:
            found.append(f"CITATION.cff's {ours} is not pyproject's {theirs}")
    headings = re.findall(r"^## .*$", changelog, re.MULTILINE)
    entries = ENTRY.findall(changelog)
    if not headings or len(entries) != len(headings):
        return [*found, "CHANGELOG.md's headings are '## VERSION (YYYY-MM-DD)' or '(unreleased)'"]
    version, date = entries[0]
    if version != project["version"]:
        found.append(f"CHANGELOG.md begins with {version}, pyproject with {project['version']}")
    released = str(citation.get("date-released", "unreleased"))
    if released != date:
        found.append(f"CHANGELOG.md says {date}, CITATION.cff {released}")
    if any(date == "unreleased" for _, date in entries[1:]):
        found.append("CHANGELOG.md: only the newest version may be unreleased")
    return found

"""One word for a thing: the glossary is whole, its page is written from it, and a source or a
picture that says a thing by another word is found."""

import build
import glossary
import pytest
from small import ROOT, edit

from labkit.words import WORDS

KNOWN = glossary.terms(ROOT)
TINY = """[[term]]
en = "rank"
zh = "rank"
symbol = "r"
means_en = "A process."
means_zh = "一个进程。"

[[term]]
en = "verdict"
zh = "判定"
means_en = "How a launch ended."
means_zh = "启动怎样结束。"
not_en = ["judgement"]
not_zh = ["判决"]

[[term]]
en = "paced"
zh = "固定时长"
badge = true
means_en = "Slept out."
means_zh = "睡眠补足。"
"""


@pytest.fixture
def worded(tiny):
    (tiny / "notebooks" / "glossary.toml").write_text(TINY, encoding="utf-8")
    return tiny


def test_the_page_has_symbols_badges_and_terms(worded):
    assert build.main([], worded) == 0
    lines = (worded / "notebooks" / "GLOSSARY.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|") and "---" not in line]
    assert rows == [
        "| symbol | English | 中文 | meaning | 含义 |",
        "| r | rank | rank | A process. | 一个进程。 |",
        "| English | 中文 | meaning | 含义 |",
        '| <a id="paced"></a>paced | 固定时长 | Slept out. | 睡眠补足。 |',
        "| English | 中文 | meaning | 含义 |",
        '| <a id="rank"></a>rank | rank | A process. | 一个进程。 |',
        '| <a id="verdict"></a>verdict | 判定 | How a launch ended. | 启动怎样结束。 |',
    ]
    assert build.main(["--check"], worded) == 0


@pytest.mark.parametrize(
    ("source", "old", "new", "words"),
    [
        ("src/zh/03_tiny.md", "字。", "判决。", "zh/03_tiny.md: cell a-tiny-chapter: '判决' in"),
        (
            "src/03_tiny.py",
            "Words.",
            "A Judgement.",
            "03_tiny.py: cell a-tiny-chapter: 'judgement'",
        ),
        (
            "src/03_tiny.py",
            'lab.begin("en")',
            'lab.begin("en")\nprint("判决")',
            "03_tiny.py: '判决' in",
        ),
    ],
)
def test_the_build_refuses_another_word_and_gives_the_one_to_use(
    worded, capsys, source, old, new, words
):
    file = worded / "notebooks" / source
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    build.main(["--stamp", "03", "--all"], worded)
    capsys.readouterr()
    assert build.main([], worded) == 1
    said = capsys.readouterr().err
    right = "verdict" if "udgement" in new else "判定"
    assert said.startswith(words) and f"say '{right}' (glossary.toml)" in said


def test_code_and_addresses_are_no_words(worded):
    edit(worded, "Words.", "`judgement`, prejudgement and [this](https://judgement.example).")
    assert build.main(["--stamp", "03", "--all"], worded) == 0
    assert build.main([], worded) == 0


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('en = "verdict"', 'en = "rank"', "glossary.toml: rank is there twice"),
        ("symbol = ", "sign = ", "glossary.toml: rank has sign; there are only en, zh, means_en"),
        ('means_zh = "一个进程。"', "", "glossary.toml: rank lacks means_zh"),
    ],
)
def test_a_fault_in_the_glossary_is_named(worded, capsys, old, new, words):
    (worded / "notebooks" / "glossary.toml").write_text(TINY.replace(old, new), encoding="utf-8")
    capsys.readouterr()
    assert build.main([], worded) == 1
    assert words in capsys.readouterr().err


def test_no_term_uses_a_word_that_it_or_another_refuses():
    for term in KNOWN:
        assert glossary.said_otherwise(KNOWN, f"{term.en}. {term.means_en}", "en") == []
        assert glossary.said_otherwise(KNOWN, f"{term.zh}。{term.means_zh}", "zh") == []


def test_a_link_to_a_term_that_is_not_there_is_a_fault(worded, capsys):
    edit(worded, "# Words.", "# A [rank](GLOSSARY.md#rank), a [bubble](GLOSSARY.md#bubble).")
    edit(worded, "字。", "[rank](GLOSSARY.md#rank)、[气泡](GLOSSARY.md#bubble)。", "zh/03_tiny.md")
    build.main(["--stamp", "03", "--all"], worded)
    capsys.readouterr()
    assert build.main([], worded) == 1
    told = capsys.readouterr().err
    assert "03_tiny: GLOSSARY.md has no term #bubble" in told and "#rank" not in told


def test_badges_are_called_what_pictures_call_them():
    badges = {term.en: term.zh for term in KNOWN if term.badge}
    assert set(badges) >= {"measured", "simulated", "predicted", "recorded", "computed"}
    assert set(badges) >= {"paced", "paced links", "overran", "pretend device", "shared GPU"}
    for english, chinese in badges.items():
        assert WORDS["zh"].get(english, chinese) == chinese


def test_pictures_boards_and_hints_say_it_by_the_same_words():
    found = []
    for path in sorted([*(ROOT / "labkit").rglob("*.po"), *(ROOT / "labkit").rglob("*.json")]):
        name = path.relative_to(ROOT / "labkit").as_posix()
        text = path.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if glossary.HAN.search(line)]
        faults = glossary.said_otherwise(KNOWN, "\n".join(lines), "zh")
        found += [f"{name}: {fault}" for fault in faults]
    assert found == []

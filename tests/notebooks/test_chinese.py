"""A chapter's Chinese: whatever is stale, missing, of no cell, or out of place fails the build,
which names the file, the cell and what to do; stamping is per cell."""

import build
import chinese
import pytest
from chapter import read
from chinese import fingerprint
from markdown_it import MarkdownIt
from small import CHAPTERS, NOTEBOOKS, edit

ENGLISH = ["# A chapter", "Run it:\n\nNow.", "Run it:\n\nAgain.", "$x$", "**One**, `two`: 3.5"]
FILE = "zh/03_tiny.md"


def built(tiny, capsys):
    """The build's complaints, a line each."""
    capsys.readouterr()
    assert build.main([], tiny) == build.main(["--check"], tiny) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
    return lines[: len(lines) // 2]


def test_keys_are_the_first_words_and_differ():
    assert chinese.keys(ENGLISH) == ["a-chapter", "run-it", "run-it-2", "x", "one-two-3-5"]
    assert chinese.keys(["# 8.10, S7: a b c d e f"]) == ["8-10-s7-a-b-c-d"]
    assert chinese.keys(["…", "…", "cell 2", "cell"]) == ["cell", "cell-2", "cell-2-2", "cell-3"]


def test_a_file_of_sections_is_read_and_stamped():
    text = "".join(f"<!-- cell: {key} -->\n{key}!\n\n" for key in chinese.keys(ENGLISH))
    stamped, changed = chinese.stamp(ENGLISH, text, None)
    assert changed == chinese.keys(ENGLISH)
    assert chinese.pair(ENGLISH, stamped, "03") == ([f"{key}!" for key in changed], [])
    assert chinese.stamp(ENGLISH, stamped, None) == (stamped, [])


def test_a_stale_translation_fails_the_build_and_says_how_to_go_on(tiny, capsys):
    old = fingerprint("# A tiny chapter\n\nWords.")
    new = fingerprint("# A tiny chapter\n\nOther words.")
    edit(tiny, "# Words.", "# Other words.")
    assert built(tiny, capsys) == [
        f"{FILE}: cell a-tiny-chapter is stale: it renders {old}, the English is {new}. Bring it "
        "up to date, then run: python notebooks/build.py --stamp 03 a-tiny-chapter"
    ]
    assert build.main(["--stamp", "03", "a-tiny-chapter"], tiny) == 0
    assert capsys.readouterr().out == "stamped:\n  a-tiny-chapter\n"
    assert build.main([], tiny) == build.main(["--check"], tiny) == 0


def test_a_stamp_is_of_the_cells_that_are_named(tiny, capsys):
    edit(tiny, "# Words.", "# Other words.")
    edit(tiny, "# ## Exercise", "# ## Exercise\n#\n# Do it.")
    assert build.main(["--stamp", "03", "exercise"], tiny) == 0
    assert [line.split()[2] for line in built(tiny, capsys)] == ["a-tiny-chapter"]
    assert build.main(["--stamp", "03", "exercises"], tiny) == 1
    told = capsys.readouterr().err
    assert told == "there is no cell exercises; there are: a-tiny-chapter, exercise\n"
    assert build.main(["--stamp", "03", "--all"], tiny) == 0
    assert capsys.readouterr().out == "stamped:\n  a-tiny-chapter\n"
    assert build.main([], tiny) == 0


def test_a_stamp_names_its_cells_or_says_all(tiny, capsys):
    for arguments in (["--stamp", "03"], ["exercise"], ["--all"]):
        with pytest.raises(SystemExit):
            build.main(arguments, tiny)
    assert "--stamp takes the cells that you have read (their keys), or --all" in (
        capsys.readouterr().err
    )


EXERCISE = chinese.marker("exercise", "## Exercise")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            f"{EXERCISE}\n## 练习\n",
            "",
            f"cell exercise has no Chinese. Write it after cell a-tiny-chapter, under: {EXERCISE}",
        ),
        ("## 练习\n", "", "cell exercise has no Chinese but its first line. Write it there"),
        (
            EXERCISE,
            f"<!-- cell: more -->\n更多\n{EXERCISE}",
            "cell more is of no English cell. Remove it, or, where the English began with other "
            "words, give it the new key",
        ),
        (
            "## 练习\n",
            f"## 练习\n\n{EXERCISE}\n## 练习\n",
            "cell exercise stands here twice. Remove one of them",
        ),
        (EXERCISE, "<!-- cell: exercise -->", "is stale: it renders nothing, the English is "),
        (
            EXERCISE,
            "<!-- cell exercise -->",
            "'<!-- cell exercise -->' should read <!-- cell: KEY · renders: HASH -->",
        ),
        (
            "<!-- cell: a-tiny",
            "字\n<!-- cell: a-tiny",
            "'字' stands before the first line <!-- cell: ... -->",
        ),
    ],
)
def test_a_fault_in_the_chinese_is_named(tiny, capsys, old, new, words):
    edit(tiny, old, new, "zh/03_tiny.md")
    message = built(tiny, capsys)[0]
    assert words in message and message.startswith(f"{FILE}: ")


def test_chinese_out_of_order_is_named(tiny, capsys):
    file = tiny / "notebooks" / "src" / "zh" / "03_tiny.md"
    title, exercise = file.read_text(encoding="utf-8").split("\n\n<!--")
    file.write_text(f"<!--{exercise}\n{title}\n", encoding="utf-8")
    assert built(tiny, capsys) == [
        f"{FILE}: cell exercise stands where cell a-tiny-chapter belongs. Keep the English order"
    ]


def test_a_title_is_one_in_both_languages(tiny, capsys):
    edit(tiny, "# 小小一章", "小小一章", "zh/03_tiny.md")
    assert built(tiny, capsys)[0].startswith("03_tiny.py: the first cell is the title")


def test_a_file_without_a_chapter_is_named(tiny, capsys):
    folder = tiny / "notebooks" / "src" / "zh"
    (folder / "04_gone.md").write_text("")
    assert built(tiny, capsys) == ["zh/04_gone.md: there is no 04_gone.py. Remove it or rename it"]
    (folder / "04_gone.md").unlink()
    (folder / "03_tiny.md").unlink()
    assert [line.split(" Write")[0] for line in built(tiny, capsys)][1:] == [
        f"{FILE}: cell a-tiny-chapter has no Chinese.",
        f"{FILE}: cell exercise has no Chinese.",
    ]
    assert build.main(["--stamp", "03", "--all"], tiny) == 1
    assert capsys.readouterr().err == "there is no src/zh/03_tiny.md yet\n"


def test_no_chinese_stands_among_the_code_of_a_chapter_but_in_its_words():
    for chapter in CHAPTERS:
        source = (NOTEBOOKS / "src" / f"{chapter}.py").read_text(encoding="utf-8")
        assert 'lang="zh"' not in source
        assert (NOTEBOOKS / "src" / "zh" / f"{chapter}.md").exists()


def stray_stars(markdown):
    """The texts in which a star is left: emphasis that Markdown did not see as such."""
    blocks = MarkdownIt().parse(markdown)
    texts = [text for block in blocks for text in block.children or [] if text.type == "text"]
    return [text.content for text in texts if "*" in text.content]


@pytest.mark.parametrize("name", CHAPTERS)
def test_no_star_of_emphasis_is_left_in_the_text(name):
    for cell in read(NOTEBOOKS / "src" / f"{name}.py").cells:
        if cell.kind == "markdown":
            assert stray_stars(cell.source) == stray_stars(cell.chinese) == []


def test_emphasis_between_a_letter_and_a_bracket_is_none():
    assert stray_stars("这叫**[桶](b.md)**（bucket）") == ["这叫**", "**（bucket）"]
    assert stray_stars("这叫[**桶**](b.md)（bucket），`2 * 3`，**好**。") == []

"""What a reader types beside a launch, in JupyterLab: a guess by the keyboard, a table and the
standing for everyone, a guess in a notebook that nobody runs."""

import pytest
from browser import gallery
from browser.test_access import violations

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]
CELLS = (
    'import labkit as lab\n\nlab.begin("{language}", chapter="08")',
    'number = lab.guess("idle share", between=(0, 1))',
    'choice = lab.guess("which one", choices=("ring", "tree"))',
    "number.score(0.273)",
    'choice.score("tree")',
    'lab.table([{{"rank": rank, "held_bytes": 1e9}} for rank in range(30)], title="T")',
    "lab.progress()",
)
SAID = {
    "en": ("Kept: 30.0 %.", "2.7 points too high", "you guessed tree, and so it is", "2 close"),
    "zh": ("已记下：30.0 %。", "高了 2.7 个百分点", "你猜 tree，正是如此", "2 很接近"),
}


def output(lab, number):
    """Where a cell's output stands."""
    return lab.page.locator(".jp-CodeCell").nth(number).locator(".jp-Cell-outputArea")


@pytest.mark.parametrize("language", ["en", pytest.param("zh", marks=pytest.mark.again)])
def test_a_guess_is_typed_kept_and_scored_by_keyboard_and_all_is_readable(
    opened, tmp_path, language
):
    cells = [cell.format(language=language) for cell in CELLS]
    kept, off, right, close = SAID[language]
    with opened(gallery.notebook(tmp_path, *cells)) as lab:
        lab.run_all()
        field = output(lab, 1).get_by_role("textbox")
        assert (
            field.get_attribute("placeholder") == ("0 % to 100 %", "0 % 到 100 %")[language == "zh"]
        )
        field.focus()
        lab.page.keyboard.type("30 %")
        lab.page.keyboard.press("Enter")
        output(lab, 1).get_by_text(kept).wait_for()
        output(lab, 2).get_by_role("radio").last.focus()
        lab.page.keyboard.press("Space")
        output(lab, 2).get_by_text("tree", exact=False).last.wait_for()
        lab.until(lambda: "tree" in output(lab, 2).locator("[role=status]").text_content())
        # the cells above keep their fields; these are run again
        lab.page.locator(".jp-CodeCell").nth(3).locator(".cm-content").click()
        lab.command("notebook:run-all-below")
        output(lab, 3).get_by_text(off).wait_for()
        output(lab, 4).get_by_text(right).wait_for()
        output(lab, 6).get_by_text(close).wait_for()
        heads = output(lab, 5).locator("th[scope=col]").count()
        assert heads == 4 and output(lab, 5).locator("th[scope=row]").count() == 30
        for dark in (False, True):
            with lab.theme(dark):
                assert violations(lab.page) == []

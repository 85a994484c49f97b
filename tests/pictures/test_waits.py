"""Laws of the report: every rank has its row, the odd one is marked, each arrow goes from who waits
to whom."""

import nbclient
import nbformat
import pytest

from labkit.launching.verdicts.outcome import Finding, Outcome
from labkit.pictures import waits as pictures_waits
from labkit.pictures.painters import mpl, svg, text
from labkit.pictures.sketch import Box, Line, Words

PLACE = {"file": "In[3]", "line": 5, "function": "f", "text": "dist.all_reduce(x)"}
WORK = {
    "group": "0",
    "seq": 1,
    "op": "all_reduce",
    "shapes": [[4]],
    "dtypes": ["Float"],
    "ranks": [0, 1, 2, 3],
    "last": {0: 1, 1: 0, 2: 1, 3: 0},
}
ENDINGS = (
    Outcome(rank=0, how="stuck", where=PLACE, pending=(WORK,)),
    Outcome(rank=1, how="returned"),
    Outcome(
        rank=2,
        how="failed",
        error={"type": "RuntimeError", "message": "Connection closed by peer", "where": PLACE},
    ),
    Outcome(rank=3, how="stuck", where={**PLACE, "line": 9, "text": "while True: pass"}),
)
FINDING = Finding(fault="missing_rank", ranks=(1,), text="rank 1 already returned")


def drawn(language="en"):
    return pictures_waits.diagnosis(ENDINGS, FINDING, language=language)


def row_at(boxes, y_px):
    """The number of the box at this height."""
    (row,) = (i for i, box in enumerate(boxes) if box.y_px <= y_px <= box.y_px + box.height_px)
    return row


def test_a_row_for_each_rank_with_its_state_and_its_line():
    boxes = [box for box in drawn().only(Box) if box.texts]
    assert [box.texts[1] for box in boxes] == ["waits", "returned", "lost its peer", "runs"]
    assert [box.texts[0][:7] for box in boxes] == [f"rank {rank}:" for rank in range(4)]
    assert [box.marked for box in boxes] == [False, True, False, False]
    said = [words.text for words in drawn().only(Words)]
    assert (
        "all_reduce [4]: waits for rank 1, 3" in said
        and "line 9 of In[3]: while True: pass" in said
    )
    assert len({(box.colour, box.hatch) for box in boxes}) == 4


def test_a_rank_that_returned_says_nothing_stale_and_a_barrier_has_no_shape():
    waits = Outcome(
        rank=0, how="stuck", where=PLACE, pending=({**WORK, "op": "barrier", "shapes": []},)
    )
    gone = Outcome(rank=1, how="returned", where={"call": "init_process_group"})
    said = [words.text for words in pictures_waits.diagnosis((waits, gone)).only(Words)]
    assert "barrier: waits for rank 1, 3" in said and "init_process_group" not in said


def test_a_rank_alone_is_not_odd_among_others():
    finding = Finding(fault="missing_rank", ranks=(0,), text="rank 0 ran out of memory")
    sketch = pictures_waits.diagnosis([Outcome(rank=0, how="died", status=-9)], finding)
    assert not any(box.marked for box in sketch.only(Box)) and sketch.numbers == ()
    assert "rank 0" in sketch.summary and "odd" not in text.render(sketch)


def test_of_ranks_that_all_failed_alike_none_is_odd():
    endings = [Outcome(rank=rank, how="died", status=-9) for rank in range(3)]
    finding = Finding(fault="out_of_memory", ranks=(0, 1, 2), text="no room")
    sketch = pictures_waits.diagnosis(endings, finding)
    assert not any(box.marked for box in sketch.only(Box)) and sketch.numbers == ()
    assert "ranks 0, 1, 2" in sketch.summary and "odd" not in text.render(sketch)


def test_where_shapes_differ_a_rank_that_lost_its_peer_says_what_it_brought():
    lost = {"type": "RuntimeError", "message": "Connection closed by peer", "where": PLACE}
    calls = ({**WORK, "seq": 1}, {**WORK, "seq": 2, "shapes": [[64]]})
    endings = (
        Outcome(rank=0, how="died", status=-6),
        Outcome(rank=1, how="failed", error=lost, calls=calls),
        Outcome(rank=2, how="failed", error=lost),
    )

    def said(fault):
        finding = Finding(fault=fault, ranks=(1,), text="")
        sketch = pictures_waits.diagnosis(endings, finding, language="en")
        return [row[2:4] for row in sketch.table[1:]]

    place = "line 5 of In[3]: dist.all_reduce(x)"
    shapes = [("SIGABRT", ""), ("all_reduce [64]", place), (place, "")]
    assert said("mismatched_shape") == shapes
    assert said("exception") == [("SIGABRT", ""), (place, ""), (place, "")]


def test_an_arrow_ends_at_the_rank_that_is_waited_for():
    arrows = [line for line in drawn().only(Line) if line.arrow and len(line.points_px) == 4]
    boxes = [box for box in drawn().only(Box) if box.texts]
    ends = {row_at(boxes, arrow.points_px[-1][1]) for arrow in arrows}
    starts = {row_at(boxes, arrow.points_px[0][1]) for arrow in arrows}
    assert ends == {1, 3} and starts == {0}


def test_ranks_that_wait_for_the_same_ones_share_a_bracket():
    work = {**WORK, "last": {0: 0, 1: 1, 2: 1, 3: 1}}
    stuck = [Outcome(rank=r, how="stuck", where=PLACE, pending=(work,)) for r in (1, 2, 3)]
    sketch = pictures_waits.diagnosis((Outcome(rank=0, how="returned"), *stuck))
    arrows = [line for line in sketch.only(Line) if line.arrow and len(line.points_px) == 4]
    assert len(arrows) == 3
    assert len({arrow.points_px[1][0] for arrow in arrows}) == 1
    assert len({arrow.points_px[2:] for arrow in arrows}) == 1


def test_without_arrows_the_boxes_stand_at_the_edge():
    dead = [Outcome(rank=r, how="died", status=-9) for r in range(2)]
    edge = [box.x_px for box in pictures_waits.diagnosis(dead).only(Box) if box.texts]
    assert edge == [0, 0] and all(box.x_px > 0 for box in drawn().only(Box) if box.texts)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 "
            "GiB of which 1.50 GiB is free. Of the allocated memory 76 GiB is allocated",
            "2.00 GiB wanted, 1.50 GiB free of 79.10 GiB",
        ),
        (
            "Detected mismatch between collectives on ranks. Rank 0 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=0, OpType=BROADCAST, TensorShape=[4], x), but "
            "Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=0, "
            "OpType=ALLREDUCE, TensorShape=[4], x)",
            "BROADCAST [4], but rank 1: ALLREDUCE [4]",
        ),
        ("sample 17 has no label", "sample 17 has no label"),
    ],
)
def test_a_long_message_comes_to_the_point(message, said):
    error = {"type": "Error", "message": message, "where": PLACE}
    ending = Outcome(rank=0, how="failed", error=error)
    texts = [words.text for words in pictures_waits.diagnosis([ending]).only(Words)]
    assert f"Error: {said}" in texts


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_painter_takes_it_and_the_table_says_it_all(language):
    sketch = drawn(language)
    assert "rank 1" in sketch.title and "rank 3" in text.render(sketch)
    assert svg.html(sketch).count("<svg") == 1 and mpl.png(sketch)[:4] == b"\x89PNG"
    assert len(sketch.table) == 5 and ("等 rank" in str(sketch.table)) == (language == "zh")


def test_a_run_without_a_finding_or_with_many_ranks_is_drawn_too():
    many = [Outcome(rank=r, how="died", status=-9) for r in range(40)]
    assert len([box for box in pictures_waits.diagnosis(many).only(Box) if box.texts]) == 16
    assert "did not end well" in pictures_waits.diagnosis(ENDINGS).title
    with pytest.raises(ValueError, match="got no endings"):
        pictures_waits.diagnosis([])
    with pytest.raises(ValueError, match="language is one of en, zh; got 'fr'"):
        pictures_waits.diagnosis(ENDINGS, language="fr")


@pytest.mark.again
@pytest.mark.real
def test_a_launch_that_fails_in_a_notebook_draws_its_report_once_above_its_text():
    cells = [
        "import labkit as lab\nfrom labkit import widgets\ndef work():\n    raise ValueError('no "
        "label')",
        "lab.launch(work, ranks=2, backend='gloo')",
        "try:\n    lab.launch(work, ranks=2, backend='gloo')\nexcept lab.RankFailed as error:\n"
        "    widgets.report(error, language='zh')",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, allow_errors=True, timeout=60).execute()
    uncaught = book.cells[1].outputs[-2:]
    # a launch that took longer than a second also leaves its line
    caught = [each for each in book.cells[2].outputs if "image/png" in each.get("data", {})]
    pictures = [each for each in book.cells[1].outputs if "image/png" in each.get("data", {})]
    assert pictures == uncaught[:1] and uncaught[1].output_type == "error"
    assert "line 4 of Cell In[1]" in uncaught[0].data["text/plain"] and "no label" in "".join(
        uncaught[1].traceback
    )
    assert len(caught) == 1 and "抛出异常" in caught[0].data["text/plain"]

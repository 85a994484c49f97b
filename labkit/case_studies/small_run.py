"""The steps of a small cluster on real ranks."""

from labkit.case_studies.small import COUNTS, toy
from labkit.units import check_whole


def ran(most: int = 4) -> list[dict[str, object]]:
    """A step of ``toy`` on 1, 2, 4 (and 8) real ranks: the states that rank 0 holds, predicted
    and counted, and what it hands in. Raises ValueError for more than 8."""
    check_whole(1, 8, most=most)
    found = []
    for count in [each for each in COUNTS if each <= most]:
        step = toy(count)
        run = step.run()
        states = step.measured(run).rank_bytes[0]
        predicted = step.predict().rank_bytes[0]
        handed_in = sum(run[0]["payload_bytes"].values())
        found.append({"ranks": count, "engine": step.engine, "predicted_bytes": int(predicted)})
        found[-1] |= {"measured_bytes": int(states), "handed_in_bytes": handed_in}
    return found

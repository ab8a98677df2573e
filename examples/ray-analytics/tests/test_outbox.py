# SPDX-License-Identifier: MIT OR Apache-2.0

"""The queue of results, without Ray."""

from threading import Thread

import pytest

from conftest import PATIENCE
from frameshare_ray.outbox import Outbox
from frameshare_ray.records import Result


def test_full_outbox_drops_the_oldest_and_counts_them() -> None:
    outbox = Outbox(2)
    for sequence in range(5):
        outbox.add(Result("cam0", "a", 1, sequence, None))
    assert [result.sequence for result in outbox.take(0, 0)] == [3, 4]
    assert outbox.dropped == 3
    assert outbox.take(0, 0) == []


def test_error_of_an_analysis_ends_the_wait_for_results() -> None:
    outbox = Outbox(2)
    failing = Thread(target=outbox.fail, args=[ArithmeticError("no")])
    failing.start()
    with pytest.raises(ArithmeticError):
        outbox.take(PATIENCE, PATIENCE)
    failing.join()

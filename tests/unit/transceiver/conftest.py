"""What the tests of the media engine share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.media_bench import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A running engine on a socket of its own."""
    made = Bench()
    yield made
    made.close()

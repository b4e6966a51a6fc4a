"""Who of a fleet is well, as a story of reads: dead, draining, back again, Redis gone, Redis emptied."""

from __future__ import annotations

from relay.wire.fleet import FIELDS_MAX, TTL_S, Announcement, FleetState
from transceiver.picture import FORGET_MS, Picture, unhealthy

STEP_S = 0.5
SERVING, FULL, DRAINING = FleetState.SERVING, FleetState.FULL, FleetState.DRAINING


class Fleet:
    """Announcers that live or not, a Redis that holds what they wrote, and one reader of it."""

    def __init__(self, **states: FleetState) -> None:
        self.now_s = 100.0
        self.alive = dict(states)
        self.hash: dict[str, Announcement] = {}
        self.redis_up = True
        self.picture = Picture()

    def pass_time(self, seconds: float) -> Fleet:
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            if not self.redis_up:
                self.picture.failed()
                continue
            for who, state in self.alive.items():
                name, _, number = who.partition("_")
                self.hash[who] = Announcement(
                    name, (number or "0") * 16, state, int(self.now_s * 1e3)
                )
            self.picture.read(self.hash.values(), self.now_s)
        return self

    @property
    def unhealthy(self) -> set[str]:
        return set(unhealthy([self.picture]))


def test_who_announces_nothing_is_well() -> None:
    assert unhealthy([Picture()]) == set()
    assert Fleet(fra=SERVING).pass_time(5).unhealthy == set()


def test_draining_and_full_are_known_at_once() -> None:
    fleet = Fleet(fra=SERVING, iad=SERVING, nrt=SERVING).pass_time(2)
    fleet.alive |= {"fra": DRAINING, "iad": FULL}
    assert fleet.pass_time(STEP_S).unhealthy == {"fra", "iad"}
    fleet.alive["iad"] = SERVING
    assert fleet.pass_time(STEP_S).unhealthy == {"fra"}


def test_death_is_known_within_five_seconds_and_not_too_soon() -> None:
    fleet = Fleet(fra=SERVING, iad=SERVING).pass_time(20)
    del fleet.alive["fra"]
    assert fleet.pass_time(TTL_S - STEP_S).unhealthy == set(), "a stalled announcer comes back"
    assert fleet.pass_time(5 - TTL_S).unhealthy == {"fra"}
    assert fleet.pass_time(3600).unhealthy == {"fra"}
    fleet.alive["fra"] = SERVING
    assert fleet.pass_time(STEP_S).unhealthy == set()


def test_one_of_two_hosts_is_enough() -> None:
    fleet = Fleet(fra_1=SERVING, fra_2=SERVING).pass_time(2)
    fleet.alive["fra_1"] = DRAINING
    assert fleet.pass_time(1).unhealthy == set()
    del fleet.alive["fra_1"]
    assert fleet.pass_time(10).unhealthy == set()
    del fleet.alive["fra_2"]
    assert fleet.pass_time(5).unhealthy == {"fra"}


def test_a_reader_that_starts_later_knows_who_died_before() -> None:
    fleet = Fleet(fra=SERVING, iad=SERVING).pass_time(2)
    del fleet.alive["fra"]
    fleet.pass_time(60)
    fleet.picture = Picture()
    assert fleet.pass_time(5).unhealthy == {"fra"}


def test_without_redis_the_last_picture_stands() -> None:
    fleet = Fleet(fra=SERVING, iad=DRAINING, nrt=SERVING).pass_time(2)
    del fleet.alive["nrt"]
    fleet.pass_time(5)
    fleet.redis_up = False
    fleet.pass_time(3600)
    assert fleet.unhealthy == {"iad", "nrt"}
    fleet.redis_up = True
    assert fleet.pass_time(STEP_S).unhealthy == {"iad", "nrt"}


def test_a_redis_that_comes_back_empty_empties_nothing() -> None:
    fleet = Fleet(fra=SERVING, iad=DRAINING, nrt=SERVING).pass_time(2)
    del fleet.alive["nrt"]
    fleet.pass_time(5)
    fleet.redis_up = False
    fleet.pass_time(60)
    fleet.hash.clear()
    fleet.redis_up = True
    later = dict(fleet.alive)
    fleet.alive.clear()  # their connections are not up again yet
    assert fleet.pass_time(TTL_S - STEP_S).unhealthy == {"iad", "nrt"}
    fleet.alive = later
    assert fleet.pass_time(20).unhealthy == {"iad", "nrt"}
    del fleet.alive["fra"]
    assert fleet.pass_time(5).unhealthy == {"fra", "iad", "nrt"}, "grace is given once"


def test_a_redis_that_is_emptied_under_way_empties_nothing() -> None:
    fleet = Fleet(fra=SERVING, iad=DRAINING).pass_time(2)
    fleet.hash.clear()
    assert fleet.pass_time(10).unhealthy == {"iad"}


def test_a_reader_that_stood_still_does_not_take_everybody_for_dead() -> None:
    fleet = Fleet(fra=SERVING).pass_time(2)
    fleet.now_s += 60
    fleet.picture.read(fleet.hash.values(), fleet.now_s)
    assert fleet.unhealthy == set()


def test_a_name_is_well_if_any_redis_says_so() -> None:
    west, east = Fleet(fra=SERVING).pass_time(2), Fleet(nrt=SERVING, fra=DRAINING).pass_time(2)
    assert unhealthy([west.picture, east.picture]) == set()
    del west.alive["fra"]
    west.pass_time(5)
    assert unhealthy([west.picture, east.picture]) == {"fra"}


def test_the_dead_are_forgotten_once_their_name_lives_on() -> None:
    fleet = Fleet(fra_1=SERVING, fra_2=SERVING, iad=SERVING).pass_time(2)
    del fleet.alive["fra_1"]
    del fleet.alive["iad"]
    fleet.pass_time(60)
    soon_ms, later_ms = int(fleet.now_s * 1e3), int(fleet.now_s * 1e3) + FORGET_MS
    assert fleet.picture.forget(soon_ms) == []
    assert fleet.picture.forget(later_ms) == [fleet.hash["fra_1"].field()]
    assert fleet.picture.forget(later_ms) == []
    assert fleet.picture.known() == {"fra", "iad"}
    assert fleet.unhealthy == {"iad"}


def test_a_flood_of_names_is_bounded() -> None:
    picture = Picture()
    for now_s in range(3):
        flood = [
            Announcement(f"x{now_s}-{number}", "0" * 16, SERVING, now_s)
            for number in range(FIELDS_MAX)
        ]
        picture.read(flood, now_s)
    assert len(picture.known()) == FIELDS_MAX

"""What becomes of the events of a session: one decision for each batch. It has no side effects.

A session expects a number, `next`. Events from there on are delivered as far as they follow each
other; later ones are held, as runs of numbers. Numbers before it were delivered, or given up.

    numbers   0 ……………… | next  …  first ━━━━ last   first ━━━━ last …     declared last
              delivered | missing  held             held
              or given up

Only numbers are known here. The caller keeps the events, and does what the outcomes say, in their
order.

Decisions
- A session's events of one batch are a set, because Spark gives them in any order. Control events
  act after the data of their batch.
- A gap is judged run by run: what follows the first gap is delivered or given up, and then the next
  gap has its own age. Rejected: to give up all that is held at once, because runs whose gaps are
  young would be lost.
- A number is the event's identity: the second event with a number is a duplicate, whatever it
  holds. What they hold is compared by the bucket, if it keeps hashes for that (`on_conflict`).
- A session that does not advance is reported once, with or without a gap. That changes nothing
  else: its gap is judged by its own age, and `idle_timeout` closes it as before.
- A hold's age counts from the event's own time, or from the time at which it was read if that is
  later. So a backlog from another partition has its full `gap_timeout`.
- An event above the cap is a dead letter, and its number stays expected: replayed, it is taken.
- A replay begins no session, because its own may be forgotten: if the name is not known, it is
  delivered at once. The session that begins later continues after replays of its first numbers.
- A replay never makes another event a duplicate: that becomes a dead letter, which somebody sees.

Rule for editors: the same state and input give the same outcomes, byte for byte. Use no clock, no
order of arrival and no randomness. Runs in tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zeh_spark.spark.sessions.held_runs import cut_run, find_gaps, is_held, join_runs
from zeh_spark.spark.sessions.model import (
    Arrival,
    Dead,
    Deliver,
    Duplicate,
    Held,
    Hold,
    Missing,
    OnGap,
    Outcome,
    Policy,
    Session,
    SessionRecord,
)
from zeh_spark.spark.stateful import ranges


class SessionLogic:
    """Decides by a policy. Its methods change the session that they are given, and return it.

    Args:
        policy: How sessions are judged; its times are in milliseconds.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._lowest = 0 if policy.first == "seen" else policy.first

    # Input

    def take(
        self,
        session: Session | None,
        arrivals: Sequence[Arrival],
        controls: Iterable[str] = (),
        now: int = 0,
    ) -> tuple[Session | None, list[Outcome]]:
        """Take a batch's events of one session, and its control events.

        Args:
            session: The session; None if there is none yet.
            arrivals: The events, ascending by number, and replays last among those of one number.
            controls: Words of control events.
            now: The time that the clock had reached when the events were read, in milliseconds
                since 1970.

        Returns:
            The session, None if there still is none; and what becomes of the events.
        """
        outcomes: list[Outcome] = []
        controls = set(controls)
        known = session is not None and session.begun is not None
        if session is None or session.begun is None:
            new = Session(self._lowest)
            others = (arrival for arrival in arrivals if not arrival.replay)
            if all(self._find_contradiction(new, arrival) for arrival in others):
                session = self._deliver_replays(session, arrivals, now, outcomes)
                if "close" not in controls:
                    return session, outcomes
                arrivals = ()
            session = self._begin_session(session, arrivals, now)
        before = session.next
        again: list[int] = []
        fresh = self._sift_arrivals(session, arrivals, again, outcomes)
        if fresh:
            self._receive_arrivals(session, fresh, now, outcomes)
        for number in again:
            waits = number >= session.next
            outcomes.append(_refuse_waiting(session, number) if waits else Deliver(number, number))
        session.seen = max([session.seen, now, *(arrival.clock for arrival in arrivals)])
        if "release" in controls:
            while session.held and not session.closed:
                self._pass_gap(session, "skip", outcomes)
        if session.next != before or not known:
            self._wait_anew(session, session.seen)
        if "close" in controls and not session.closed:
            self._close_session(session, outcomes)
        return session, outcomes

    def _wait_anew(self, session: Session, time: int) -> None:
        """Begin to wait for the session's next event, at a time in milliseconds since 1970."""
        session.advanced, session.reported = time, False

    def _deliver_replays(
        self,
        session: Session | None,
        replays: Sequence[Arrival],
        now: int,
        outcomes: list[Outcome],
    ) -> Session | None:
        """Deliver replays of a session that is not known, and note them until it begins."""
        session = session or Session(self._lowest, closed=True, begun=None)
        for arrival in replays:
            number = arrival.number
            if detail := self._find_contradiction(Session(self._lowest), arrival):
                outcomes.append(Dead(number, number, "invalid", session.next, detail=detail))
            elif not self._policy.processing and ranges.contains(session.replayed, number):
                outcomes.append(Duplicate(number, passed=True))
            else:
                session.replayed = ranges.united(session.replayed, [(number, number)])
                outcomes.append(Deliver(number, number, known=False))
        session.seen = max([session.seen, now, *(arrival.clock for arrival in replays)])
        return session if session.replayed else None

    def _begin_session(
        self, replayed: Session | None, arrivals: Sequence[Arrival], now: int
    ) -> Session:
        """Return a new session, which continues after replays of its first numbers.

        Unless one of its events has such a number: then they were those of an older session.
        """
        first = self._policy.first
        begun = max([now, *(arrival.clock for arrival in arrivals)])
        if first != "seen":
            session = Session(first, begun=begun)
            run = replayed.replayed[0] if replayed and replayed.replayed else None
            others = [arrival.number for arrival in arrivals if not arrival.replay]
            if run and run[0] == first and all(number > run[1] for number in others):
                session.next, session.replayed = run[1] + 1, [run]
            return session
        possible = (
            arrival.number
            for arrival in arrivals
            if arrival.last is None or arrival.last >= arrival.number
        )
        number = next(possible, 0)
        return Session(number, given_up=[(0, number - 1)] if number else [], begun=begun)

    def _sift_arrivals(
        self,
        session: Session,
        arrivals: Sequence[Arrival],
        again: list[int],
        outcomes: list[Outcome],
    ) -> list[Arrival]:
        """Return the events that may follow or have to wait; decide about all others.

        The numbers of replays of the former go to `again` if `process` follows.
        """
        fresh: list[Arrival] = []
        for arrival in arrivals:
            number = arrival.number
            if fresh and fresh[-1].number == number:
                if arrival.replay and self._policy.processing:
                    again.append(number)
                else:
                    outcomes.append(Duplicate(number))
            elif is_held(session, number):
                if arrival.replay and self._policy.processing:
                    outcomes.append(_refuse_waiting(session, number))
                elif not arrival.replay and ranges.contains(session.replayed, number):
                    outcomes.append(_refuse_replayed(session, number))
                else:
                    outcomes.append(Duplicate(number, passed=True))
            elif detail := self._find_contradiction(session, arrival):
                outcomes.append(Dead(number, number, "invalid", session.next, detail=detail))
            elif session.closed or number < session.next:
                self._judge_passed(session, arrival, outcomes)
            else:
                if arrival.last is not None:
                    session.last = arrival.last
                if arrival.replay:
                    session.replayed = ranges.united(session.replayed, [(number, number)])
                fresh.append(arrival)
        return fresh

    def _find_contradiction(self, session: Session, arrival: Arrival) -> str | None:
        if arrival.number < self._lowest:
            return f"number {arrival.number}: sessions begin with {self._lowest}"
        if arrival.last is None or session.closed or arrival.number < session.next:
            return None
        if arrival.last < arrival.number:
            return f"the last number is {arrival.last}, which is before its own"
        if session.last not in (None, arrival.last):
            return f"the last number is {arrival.last}, and was {session.last} before"
        return None

    def _judge_passed(self, session: Session, arrival: Arrival, outcomes: list[Outcome]) -> None:
        """Decide about an event whose place has passed, or whose session is closed."""
        number = arrival.number
        if number < session.next and not ranges.contains(session.given_up, number):
            alone = ranges.contains(session.replayed, number)
            if arrival.replay and self._policy.processing:
                outcomes.append(Deliver(number, number, known=not alone))
            elif alone and not arrival.replay:
                session.replayed = ranges.without(session.replayed, number)
                session.given_up = ranges.united(session.given_up, [(number, number)])
                outcomes.append(_refuse_replayed(session, number))
            else:
                outcomes.append(Duplicate(number, passed=True))
        elif not arrival.replay:
            reason = "closed" if session.closed else "late"
            outcomes.append(Dead(number, number, reason, session.next))
        else:
            if number >= session.next:
                session.given_up = ranges.united(session.given_up, [(session.next, number)])
                session.next = number + 1
            session.given_up = ranges.without(session.given_up, number)
            session.replayed = ranges.united(session.replayed, [(number, number)])
            outcomes.append(Deliver(number, number))

    # Holding and delivering

    def _receive_arrivals(
        self, session: Session, fresh: list[Arrival], now: int, outcomes: list[Outcome]
    ) -> None:
        """Deliver what follows, and hold the rest as far as the caps allow."""
        if self._all_follow(session, fresh):  # the usual case, kept short
            session.next = fresh[-1].number + 1
            outcomes.append(Deliver(fresh[0].number, fresh[-1].number))
            self._close_if_complete(session, outcomes)
            return
        runs = join_runs(session.held, _runs_of(fresh, now))
        reached = runs[0].last if runs[0].first == session.next else session.next - 1
        waiting = [arrival for arrival in fresh if arrival.number > reached]
        left = [run for run in session.held if run.first > reached]
        closing = session.last is not None and reached >= session.last
        refused = [] if closing else self._hold_arrivals(left, waiting, outcomes)
        if refused:
            runs = join_runs(session.held, _runs_of({*fresh} - {*refused}, now))
        session.held = runs
        if session.held and session.held[0].first == session.next:
            self._deliver_run(session, session.held.pop(0), outcomes)
        for arrival in refused:
            session.replayed = ranges.without(session.replayed, arrival.number)
            outcomes.append(self._refuse_arrival(session, arrival))
        self._close_if_complete(session, outcomes)

    def _all_follow(self, session: Session, fresh: list[Arrival]) -> bool:
        end = session.next + len(fresh) - 1  # numbers ascend, and none is repeated
        return (
            not session.held
            and fresh[-1].number == end
            and (session.last is None or end <= session.last)
        )

    def _hold_arrivals(
        self, held: Sequence[Held], waiting: list[Arrival], outcomes: list[Outcome]
    ) -> list[Arrival]:
        """Hold events as far as the caps allow, and return the others."""
        events, size = sum(run.count for run in held), sum(run.size for run in held)
        refused = []
        for arrival in waiting:
            if events == self._policy.max_events or size + arrival.size > self._policy.max_bytes:
                refused.append(arrival)
            else:
                events, size = events + 1, size + arrival.size
                outcomes.append(Hold(arrival.number))
        return refused

    def _refuse_arrival(self, session: Session, arrival: Arrival) -> Dead:
        detail = (
            f"the session holds {session.held_count} events, {session.held_size} bytes; the caps "
            f"are {self._policy.max_events} and {self._policy.max_bytes}"
        )
        number, expected = arrival.number, session.next
        missing = session.missing or Missing(expected, number - 1)
        return Dead(number, number, "overflow", expected, missing, None, detail)

    def _deliver_run(self, session: Session, run: Held, outcomes: list[Outcome]) -> None:
        inside, beyond = cut_run(run, session.last)
        if inside:
            outcomes.append(Deliver(inside.first, inside.last))
            session.next = inside.last + 1
            session.stale = False
        if beyond:
            session.held.insert(0, beyond)

    def _close_if_complete(self, session: Session, outcomes: list[Outcome]) -> None:
        if session.last is not None and session.next > session.last:
            self._close_session(session, outcomes)

    def _close_session(self, session: Session, outcomes: list[Outcome]) -> None:
        for run, missing in find_gaps(session):
            outcomes.append(Dead(run.first, run.last, "closed", session.next, missing, run.since))
        session.held = []
        session.closed = True
        session.stale = False

    # Time

    def due(self, session: Session) -> int | None:
        """Return when `judge` has something to do, in milliseconds since 1970; None for never."""
        if session.closed:
            return None
        found = []
        since = session.since
        if self._policy.gap_timeout is not None and since is not None and not session.stale:
            found.append(since + self._policy.gap_timeout)
        if self._policy.idle_timeout is not None:
            found.append(session.seen + self._policy.idle_timeout)
        if self._policy.stale_timeout is not None and not session.reported:
            found.append(session.advanced + self._policy.stale_timeout)
        return min(found, default=None)

    def judge(self, session: Session, now: int) -> tuple[Session, list[Outcome]]:
        """Decide about what has waited too long at the time `now`, in milliseconds since 1970."""
        outcomes: list[Outcome] = []
        timeout = self._policy.gap_timeout
        while timeout is not None and not session.closed and not session.stale:
            since = session.since
            if since is None or since + timeout > now:
                break
            before = session.next
            self._pass_gap(session, self._policy.on_gap, outcomes)
            if session.next != before:
                self._wait_anew(session, now)
        patience = self._policy.stale_timeout
        if patience is not None and not session.closed and not session.reported:
            if session.advanced + patience <= now:
                session.reported = True
                outcomes.append(
                    SessionRecord("stale", session.next, None, session.missing, session.since)
                )
        idle = self._policy.idle_timeout
        if idle is not None and not session.closed and session.seen + idle <= now:
            self._end_session(session, outcomes)
        return session, outcomes

    def _pass_gap(self, session: Session, on_gap: OnGap, outcomes: list[Outcome]) -> None:
        run, expected, since = session.held[0], session.next, session.since
        inside, beyond = cut_run(run, session.last)
        missing = Missing(expected, (inside.first - 1) if inside else session.last or 0)
        if on_gap == "hold":
            session.stale = True
            outcomes.append(SessionRecord("stale", expected, run.first, missing, since))
        elif inside is None:  # nothing that is held belongs to the session
            self._end_session(session, outcomes)
        elif on_gap == "skip":
            session.held.pop(0)
            session.given_up = ranges.united(session.given_up, [missing])
            outcomes.append(SessionRecord("skipped", expected, run.first, missing, since))
            session.next = run.first
            self._deliver_run(session, run, outcomes)
            self._close_if_complete(session, outcomes)
        else:
            session.held[0:1] = [beyond] if beyond else []
            session.given_up = ranges.united(session.given_up, [(expected, inside.last)])
            outcomes.append(Dead(run.first, inside.last, "gap", expected, missing, run.since))
            session.next = inside.last + 1
            self._close_if_complete(session, outcomes)

    def _end_session(self, session: Session, outcomes: list[Outcome]) -> None:
        """Close a session whose last number, if it is known, has not come."""
        if session.last is not None:
            gaps = [missing for _, missing in find_gaps(session) if missing]
            behind = max(session.next, session.held[-1].last + 1 if session.held else 0)
            if behind <= session.last:
                gaps.append(Missing(behind, session.last))
            for missing in gaps:
                outcomes.append(
                    SessionRecord("unfinished", session.next, None, missing, session.seen)
                )
        self._close_session(session, outcomes)


def _runs_of(arrivals: Iterable[Arrival], now: int) -> list[Held]:
    return [Held(each.number, each.number, max(each.clock, now), each.size) for each in arrivals]


def _refuse_conflict(session: Session, number: int, what: str) -> Dead:
    detail = f"number {number}: {what}"
    return Dead(number, number, "conflict", session.next, detail=detail)


def _refuse_waiting(session: Session, number: int) -> Dead:
    """Return what becomes of a replay of an event that is held."""
    return _refuse_conflict(session, number, "it waits for earlier events. Replay it after them")


def _refuse_replayed(session: Session, number: int) -> Dead:
    """Return what becomes of an event whose number came before as a replay."""
    return _refuse_conflict(session, number, "a replayed event with this number came before")

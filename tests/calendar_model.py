#!/usr/bin/env python3
"""Prints when calendar windows begin, by Python's zoneinfo: a model that shares no code.

Each line of standard input names a calendar: ZONE UNIT HH:MM WEEKDAY MONTH DAY. For each, prints
one line of Unix seconds: the starts of all windows from 2000 to 2040.
"""

import calendar
import sys
from datetime import date, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

FIRST, LAST = date(2000, 1, 1), date(2040, 1, 1)
DAY = timedelta(days=1)


def local(instant, zone):
    return datetime.fromtimestamp(instant, zone).replace(tzinfo=None)


def start(wall, zone):
    """The first instant at which a wall clock of the zone shows this time, or has passed it."""
    instant = int(wall.replace(tzinfo=zone, fold=0).timestamp())
    if local(instant, zone) == wall:
        return instant
    # The time is in a gap. Each side of the gap reads it as an instant beyond the other.
    below = int(wall.replace(tzinfo=zone, fold=1).timestamp())
    while instant - below > 1:
        middle = (below + instant) // 2
        if local(middle, zone) < wall:
            below = middle
        else:
            instant = middle
    return instant


def is_skipped(day, zone):
    after = start(datetime.combine(day, time()), zone)
    return local(after, zone).date() > day


def within(year, month, day):
    return date(year, month, min(day, calendar.monthrange(year, month)[1]))


def dates(unit, weekday, month, day):
    if unit == "day":
        return [FIRST + DAY * at for at in range((LAST - FIRST).days)]
    if unit == "week":
        first = FIRST + DAY * ((weekday - FIRST.weekday()) % 7)
        return [first + DAY * at for at in range(0, (LAST - first).days, 7)]
    years = range(FIRST.year, LAST.year)
    if unit == "month":
        return [within(year, each, day) for year in years for each in range(1, 13)]
    return [within(year, month, day) for year in years]


for line in sys.stdin:
    name, unit, at, weekday, month, day = line.split()
    zone = ZoneInfo(name)
    at = time.fromisoformat(at)
    starts = []
    for each in dates(unit, int(weekday), int(month), int(day)):
        if unit == "day" and is_skipped(each, zone):
            continue
        starts.append(start(datetime.combine(each, at), zone))
    print(*starts)

"""Follows a run until it ends, and shows its progress. Ends nothing, whatever happens to the one who looks."""

from __future__ import annotations

import time

from rollart_hpc.launch.launcher import Watch
from rollart_hpc.launch.screen import Screen
from rollart_hpc.launch.status import RunStatus

LOOK_EVERY_S = 1.0


def follow(watch: Watch, screen: Screen) -> RunStatus:
    """Returns the last status, which is that of a run that is over."""
    said = ""
    while True:
        status = watch.look()
        if status.updated:  # a controller has written one
            screen.show(status)
        text = f"{status.state}{': ' if status.reason else ''}{status.reason}"
        if text != said:
            said = text
            screen.say(f"{watch.title}: {text}")
        if watch.is_over(status):
            return status
        time.sleep(LOOK_EVERY_S)

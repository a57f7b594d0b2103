"""The format of a log line, which roles write and commands read."""

from __future__ import annotations

import re

LOG_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s {name}: %(message)s"
LOG_TIME_FORMAT = "%m-%d %H:%M:%S"
LOG_LINE = re.compile(r"(?P<time>\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (?P<level>[A-Z]+) (?P<name>[^ ]+): (?P<text>.*)")

"""What a test has the preloaded process run: tells about itself, then ends with a code or not at all."""

from __future__ import annotations

import os
import sys
import threading
import time

deed = sys.argv[1]
print("said", deed, os.environ["COLOUR"], os.getsid(0) == os.getpid(), "torch" in sys.modules, threading.active_count())
print("complained", file=sys.stderr)
if deed == "wait":
    time.sleep(3600)
sys.exit(int(deed))

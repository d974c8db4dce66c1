"""Memory of this process."""

import gc
import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def megabytes() -> float:
    """What the process has of its own by now; where the system does not tell, the most that it has had."""
    gc.collect()
    if STATUS.is_file():
        fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        return int(fields["RssAnon"].split()[0]) / 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)

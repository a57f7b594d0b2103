"""Long trainings whose figures go into docs/results. Run by `make acceptance`; each part can be run alone:

python tests/acceptance/run.py quickstart [--seeds 0 1 2 3 4]
python tests/acceptance/run.py modes
python tests/acceptance/run.py slurm        # needs root on Debian or Ubuntu: it starts a development cluster
python tests/acceptance/run.py jobs         # likewise
python tests/acceptance/run.py before       # likewise; needs the history of the repository
python tests/acceptance/run.py newest       # needs root on Debian: it installs another Debian into a directory
python tests/acceptance/run.py backends     # a development cluster
python tests/acceptance/run.py scale        # likewise, with 25, 100 and 200 nodes; 200 need 20 GB of memory
python tests/acceptance/run.py smollm2
python tests/acceptance/run.py benches
python tests/acceptance/run.py hub
python tests/acceptance/run.py gpu-readiness
python tests/acceptance/run.py paper        # simulated: every row of the paper's tables
python tests/acceptance/run.py simulated-scale
python tests/acceptance/run.py predicts     # the simulator against real runs; needs a quiet machine
python tests/acceptance/run.py streamed-scale  # the real controller under the events of simulated clusters
python tests/acceptance/run.py ray          # installs Ray into an environment of its own
python tests/acceptance/run.py trl          # installs TRL into an environment of its own; 2 minutes
python tests/acceptance/run.py sick         # this and the next ones write parts of reliability.md; 15 minutes
python tests/acceptance/run.py strangers    # 5 minutes
python tests/acceptance/run.py chaos        # 12 minutes; needs root: it starts a development cluster
python tests/acceptance/run.py faults       # an hour
python tests/acceptance/run.py mutants      # 15 minutes
python tests/acceptance/run.py fuzz         # less than an hour
python tests/acceptance/run.py trust        # 5 minutes
python tests/acceptance/run.py soak         # an hour
python tests/acceptance/run.py offpolicy    # 2 hours; goes on where it was stopped
python tests/acceptance/run.py recipes      # 5 hours; likewise
python tests/acceptance/run.py reliability  # renders reliability.md from what its parts have stored

`make acceptance-PART` does the same.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.acceptance.against_ray import against_ray
from tests.acceptance.against_trl import against_trl
from tests.acceptance.backends import backends
from tests.acceptance.before import before
from tests.acceptance.benches import benches
from tests.acceptance.chaos import chaos
from tests.acceptance.faults import faults
from tests.acceptance.fuzz import fuzz
from tests.acceptance.gpu_readiness import gpu_readiness
from tests.acceptance.hub import hub
from tests.acceptance.jobs import jobs
from tests.acceptance.modes import modes
from tests.acceptance.mutants import mutants
from tests.acceptance.newest import newest
from tests.acceptance.offpolicy import offpolicy
from tests.acceptance.paper import paper
from tests.acceptance.predicts import predicts
from tests.acceptance.quickstart import quickstart
from tests.acceptance.recipes import recipes
from tests.acceptance.reliability import render
from tests.acceptance.scale import SIZES, scale
from tests.acceptance.sick import sick
from tests.acceptance.simulated_scale import simulated_scale
from tests.acceptance.slurm import slurm
from tests.acceptance.smollm2 import smollm2
from tests.acceptance.soak import soak
from tests.acceptance.strangers import strangers
from tests.acceptance.streamed_scale import streamed_scale
from tests.acceptance.trust import trust


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", help="all if none is named")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--keep", type=Path, help="keep the run directories here")
    parser.add_argument(
        "--window-s",
        type=float,
        default=120.0,
        help="sick, strangers: length of a window of turns/s; the latter uses half of it",
    )
    parser.add_argument("--pairs", type=int, default=4, help="before: how often each is run")
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SIZES), help="scale: how many")
    parser.add_argument("--tests", nargs="+", default=[], help="newest: those of tests/slurm to run")
    parser.add_argument("--chaos-for", default="10m", help="chaos: how long")
    parser.add_argument("--soak-s", type=float, default=3600.0, help="soak: how long")
    parser.add_argument("--faults-s", type=float, default=3600.0, help="faults: how long")
    parser.add_argument("--cores", type=int, default=1, help="faults, mutants, fuzz: processes")
    parser.add_argument("--messages", type=int, default=10_000_000, help="fuzz: how many")
    parser.add_argument("--study-s", type=float, default=86400.0, help="offpolicy, recipes: begin no training later")
    parser.add_argument("--resume", action="store_true", help="paper: keep the cases that paper.json has")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that clusters and runs end too
    with tempfile.TemporaryDirectory() as scratch:
        keep = args.keep or Path(scratch)
        parts: dict[str, Callable[[], bool]] = {
            "quickstart": lambda: quickstart(args.seeds, keep),
            "modes": modes,
            "slurm": lambda: slurm(keep),
            "jobs": lambda: jobs(keep),
            "before": lambda: before(keep, args.pairs),
            "newest": lambda: newest(keep, args.tests),
            "backends": lambda: backends(keep),
            "scale": lambda: scale(keep, args.nodes),
            "smollm2": lambda: smollm2(keep),
            "benches": lambda: benches(keep),
            "hub": hub,
            "gpu-readiness": lambda: gpu_readiness(keep),
            "paper": lambda: paper(args.resume),
            "simulated-scale": simulated_scale,
            "predicts": lambda: predicts(keep),
            "streamed-scale": streamed_scale,
            "ray": lambda: against_ray(keep),
            "trl": lambda: against_trl(keep),
            "faults": lambda: faults(args.faults_s, args.cores),
            "mutants": lambda: mutants(args.cores),
            "fuzz": lambda: fuzz(args.messages, args.cores),
            "sick": lambda: sick(keep, args.window_s),
            "trust": trust,
            "strangers": lambda: strangers(keep, args.window_s / 2),
            "chaos": lambda: chaos(keep, args.chaos_for),
            "soak": lambda: soak(keep, args.soak_s),
            "offpolicy": lambda: offpolicy(args.seeds[:3], keep, args.study_s),
            "recipes": lambda: recipes(args.seeds[:3], keep, args.study_s),
            "reliability": lambda: render() is None,
        }
        unknown = set(args.parts) - set(parts)
        if unknown:
            parser.error(f"no such part: {', '.join(sorted(unknown))} (there are {', '.join(parts)})")
        failed = [name for name in args.parts or parts if not parts[name]()]
    print(f"failed: {', '.join(failed)}" if failed else "all parts passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

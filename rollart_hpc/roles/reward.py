"""A reward worker process: joins the run, scores, and leaves when it is stopped, idle or at its time limit."""

from __future__ import annotations

from rollart_hpc.roles.start import Start, connect, open_trace, run_role


def main(start: Start) -> None:
    from rollart_hpc.rewards.service import Scorer, serve

    config = start.config
    link = connect(start, capacity=config.reward.slots)
    with open_trace(start) as tracer:
        is_leaving = False
        try:
            is_leaving = serve(link, Scorer(config.tasks, config.reward.timeout_s), tracer, start.idle_s, start.live_s)
        finally:
            link.close(is_leaving=is_leaving)


if __name__ == "__main__":
    run_role("reward", main)

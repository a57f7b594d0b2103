"""A reward worker process: joins the run, scores, and leaves when it is stopped, idle or at its time limit."""

from __future__ import annotations

from rollart_hpc.roles.start import Start, connect, open_trace, run_role


def main(start: Start) -> None:
    from rollart_hpc.rewards.recording import Recorder
    from rollart_hpc.rewards.service import Scorer, serve

    config = start.config
    link = connect(start, capacity=config.reward.slots)
    recorder = Recorder(start.run, config.observe, f"{start.name}-{start.incarnation[:8]}", start.attempt)
    with open_trace(start) as tracer:
        is_leaving = False
        try:
            scorer = Scorer(config.tasks, config.reward.timeout_s)
            is_leaving = serve(link, scorer, tracer, recorder, idle_s=start.idle_s, live_s=start.live_s)
        finally:
            recorder.close()
            link.close(is_leaving=is_leaving)


if __name__ == "__main__":
    run_role("reward", main)

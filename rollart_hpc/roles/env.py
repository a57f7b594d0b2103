"""An env worker process: loads the tokenizer, imports the environments, joins the run, and plays."""

from __future__ import annotations

import selectors

from rollart_hpc.roles.start import Start, connect, open_trace, run_role


def main(start: Start) -> None:
    from rollart_hpc.envs.host import Host
    from rollart_hpc.envs.render import Renderer
    from rollart_hpc.envs.service import Service

    config = start.config
    renderer = Renderer(start.run.model)
    selector = selectors.DefaultSelector()
    host = Host(selector, config.tasks, config.env.slots, config.env.variables)
    with open_trace(start) as tracer:
        try:
            host.start()
            link = connect(start, capacity=config.env.slots)
            try:
                service = Service(
                    config.tasks,
                    renderer=renderer,
                    host=host,
                    link=link,
                    tracer=tracer,
                    selector=selector,
                    observe=config.observe,
                )
                service.run()
            finally:
                link.close()
        finally:
            host.close()


if __name__ == "__main__":
    run_role("env", main)

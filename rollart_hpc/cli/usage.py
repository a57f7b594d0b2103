"""What a run that is over has used, as lines of text."""

from __future__ import annotations

from rollart_hpc.launch.status import RunStatus, Used

HOUR_S = 3600.0


def usage_lines(status: RunStatus) -> list[str]:
    """Nothing for a run on one machine."""
    lines = []
    for name, hours in status.gpu_hours.items():
        share = f" ({hours.idle / hours.given:.0%})" if hours.given else ""
        lines.append(f"GPU-hours on {name}: {hours.given:.3f}, {hours.idle:.3f} of them idle{share}")
    if status.cost:
        lines.append(f"cost: {status.cost:.4g}")
    lines += [f"{name}: {_used(used)}" for name, used in status.used.items()]
    return [*lines, status.accounting] if status.accounting else lines


def _used(used: Used) -> str:
    """CPU time 0.120 of 0.500 h (24%), largest process 1.4 GB of 4 GB"""
    share = f" ({used.cpu_s / used.allocated_cpu_s:.0%})" if used.allocated_cpu_s else ""
    text = f"CPU time {used.cpu_s / HOUR_S:.3f} of {used.allocated_cpu_s / HOUR_S:.3f} h{share}"
    if used.max_rss_gb:
        of = f" of {used.memory_gb:.3g} GB per node" if used.memory_gb else ""
        text += f", largest step {used.max_rss_gb:.2g} GB{of}"
    return text

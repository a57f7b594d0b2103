"""FrozenLake, except that no environment can be reset in the worker called env-bad."""

from pathlib import Path

from rollart_hpc.envs.frozenlake import FrozenLake

BAD = b"env-bad"


def ancestors() -> list[bytes]:
    """The words of the command lines of this process and of those above it."""
    words, pid = [], "self"
    while pid != "0":
        words += Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        pid = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
    return words


class SickLake(FrozenLake):
    def reset(self, seed: int) -> str:
        if BAD in ancestors():
            raise OSError("this node can't start environments")
        return super().reset(seed)

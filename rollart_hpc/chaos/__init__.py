"""`rollart-hpc chaos`: faults at random in a live run, within limits, and the proof that it survived them.

    cli.chaos -> session (the loop) -> choose (which act; pure)
                                    -> hands -> hand (a process on each node: signals, sockets, shared memory)
                                    -> crew (what the run looks like), damage (checkpoints), verdict (the ledger)

The run does not know about it. Everything is done from outside, with the rights of the run's owner.
"""

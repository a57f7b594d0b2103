"""Would a run work on this cluster? Checks from here (`quick`), and from one short job with a node of every class.

here              submit: the job, and what came back
component 0       job: listens as a controller would, starts one step on every component
every component   probe: looks at its node, and dials the others
"""

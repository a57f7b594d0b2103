"""Would a run work on this cluster? Checks from the login node (`quick`), and in one short job with a node per class.

login node        submit: submits the job and collects its results
component 0       job: listens like a controller, starts one step on every component
every component   probe: checks its node, and connects to the others
"""

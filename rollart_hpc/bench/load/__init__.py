"""Load for a controller: workers that exchange messages and do no work, all in one thread of one process.

`driver` creates the workers and measures. `environments` and `workers` answer messages, `payloads` fills them and
`sockets` sends them. `counts` makes the report.
"""

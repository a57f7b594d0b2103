"""Load for a controller: workers that talk and do nothing else, all served by one thread of one process.

`driver` says who they are and what is measured, `environments` and `workers` what they answer, `payloads` what that
carries, `sockets` how it is sent, `counts` what is reported.
"""

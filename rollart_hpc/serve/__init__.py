"""The live page of runs: a read-only server on loopback. Imports nothing heavy.

library    which runs there are, and what is known of each, cached until its files change
index      the plays of a run, in memory, as summaries
pages      HTML of every page, from the sections of the report; plays the pages of transcripts
server     HTTP: the token, routes, events, refusals
"""

"""Benchmarks: real runs side by side on this machine, reported as ratios."""

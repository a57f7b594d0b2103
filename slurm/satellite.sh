#!/bin/bash -l
# $title
# Written by the run's supervisor. The agents below start and end processes on its word.
$directives

unset CUDA_VISIBLE_DEVICES  # this script's own GPUs: steps get theirs from Slurm
$setup
$command

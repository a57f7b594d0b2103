#!/bin/bash -l
# $title
# Written by rollart-hpc submit. The supervisor below starts and watches every process of the run.
$directives

unset CUDA_VISIBLE_DEVICES  # this script's own GPUs, if any, must not leak into steps without GPUs
$setup
exec $command

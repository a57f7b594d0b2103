#!/bin/bash -l
# quickstart on site single: GPU-hours at most 3, cost at most 8.55; time limit 01:00:00
# Written by rollart-hpc submit. The supervisor below starts and watches every process of the run.
#SBATCH --job-name=rollart-quickstart-d8cc1dab
#SBATCH --partition=h800
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=11G
#SBATCH --gres=gpu:h800:3
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE
#SBATCH --signal=B:USR1@120
#SBATCH --chdir='/shared/runs/quick start 100%'
#SBATCH --output='/shared/runs/quick start 100%%/slurm/%x-%j.log'
#SBATCH --open-mode=append

unset CUDA_VISIBLE_DEVICES  # this script's own GPUs, if any, must not leak into steps without GPUs

exec /opt/rollart/bin/python -P -m rollart_hpc.launch.slurm.job --run-dir '/shared/runs/quick start 100%'

#!/bin/bash -l
# quickstart on site dev: GPU-hours at most 3 (h800 2, h20 1), cost at most 6.7; time limit 01:00:00
# Written by rollart-hpc submit. The supervisor below starts and watches every process of the run.
#SBATCH --job-name=rollart-quickstart-d8cc1dab
#SBATCH --partition=cpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=4G
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE
#SBATCH --signal=B:USR1@120
#SBATCH --chdir='/shared/runs/quick start 100%'
#SBATCH --output='/shared/runs/quick start 100%%/slurm/%x-%j.log'
#SBATCH --open-mode=append
#SBATCH hetjob
#SBATCH --job-name=rollart-quickstart-d8cc1dab
#SBATCH --partition=h800
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=3
#SBATCH --mem=5G
#SBATCH --gres=gpu:h800:2
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE
#SBATCH hetjob
#SBATCH --job-name=rollart-quickstart-d8cc1dab
#SBATCH --partition=h20
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --mem=3G
#SBATCH --gres=gpu:h20:1
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE

unset CUDA_VISIBLE_DEVICES  # this script's own GPUs, if any, must not leak into steps without GPUs

exec /opt/rollart/bin/python -P -m rollart_hpc.launch.slurm.job --run-dir '/shared/runs/quick start 100%'

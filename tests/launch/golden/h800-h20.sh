#!/bin/bash -l
# quickstart on site h800-h20: GPU-hours at most 1280 (h800 960, h20 320), cost at most 3056; time limit 10:00:00
# Written by rollart-hpc submit. The supervisor below starts and watches every process of the run.
#SBATCH --job-name=rollart-quickstart-d8cc1dab
#SBATCH --partition=cpu
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=88
#SBATCH --mem=354G
#SBATCH --time=10:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE
#SBATCH --account=rl
#SBATCH --signal=B:USR1@120
#SBATCH --chdir='/shared/runs/quick start 100%'
#SBATCH --output='/shared/runs/quick start 100%%/slurm/%x-%j.log'
#SBATCH --open-mode=append
#SBATCH hetjob
#SBATCH --job-name=rollart-quickstart-d8cc1dab
#SBATCH --partition=h800
#SBATCH --nodes=12
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=68
#SBATCH --mem=1800G
#SBATCH --gres=gpu:h800:8
#SBATCH --time=10:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE
#SBATCH --account=rl
#SBATCH hetjob
#SBATCH --job-name=rollart-quickstart-d8cc1dab
#SBATCH --partition=h20
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=20
#SBATCH --mem=328G
#SBATCH --gres=gpu:h20:8
#SBATCH --time=10:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE
#SBATCH --account=rl

unset CUDA_VISIBLE_DEVICES  # this script's own GPUs, if any, must not leak into steps without GPUs

exec /opt/rollart/bin/python -P -m rollart_hpc.launch.slurm.job --run-dir '/shared/runs/quick start 100%'

#!/bin/bash -l
# qwen3-32b-h800-h20 on site h800-h20: GPU-hours at most 3072 (h800 2304, h20 768), cost at most 7334; time limit 1-00:00:00
# Written by rollart-hpc submit. The supervisor below starts and watches every process of the run.
#SBATCH --job-name=rollart-qwen3-32b-h800-h20-258618b3
#SBATCH --partition=cpu
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=89
#SBATCH --mem=369G
#SBATCH --time=1-00:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE
#SBATCH --signal=B:USR1@120
#SBATCH --chdir=/shared/runs/qwen3-32b-h800-h20
#SBATCH --output=/shared/runs/qwen3-32b-h800-h20/slurm/%x-%j.log
#SBATCH --open-mode=append
#SBATCH hetjob
#SBATCH --job-name=rollart-qwen3-32b-h800-h20-258618b3
#SBATCH --partition=h800
#SBATCH --nodes=12
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=68
#SBATCH --mem=1800G
#SBATCH --gres=gpu:h800:8
#SBATCH --time=1-00:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE
#SBATCH hetjob
#SBATCH --job-name=rollart-qwen3-32b-h800-h20-258618b3
#SBATCH --partition=h20
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=20
#SBATCH --mem=328G
#SBATCH --gres=gpu:h20:8
#SBATCH --time=1-00:00:00
#SBATCH --requeue
#SBATCH --propagate=NONE

unset CUDA_VISIBLE_DEVICES  # this script's own GPUs, if any, must not leak into steps without GPUs

exec /opt/rollart/bin/python -P -m rollart_hpc.launch.slurm.job --run-dir /shared/runs/qwen3-32b-h800-h20

#!/usr/bin/env bash
# One run of the re-tokenisation experiment with slime: Qwen3-8B, one node of 8 GPUs.
#   bash research/retokenization/slime_recipe/run.sh render-engine 0          # arm, seed
# README.md lists the arms and the requirements. NOT RUN by the authors: the flags were checked, the training was not.
set -euo pipefail

ARM=${1:?usage: run.sh ARM [SEED]}
SEED=${2:-0}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SLIME=${SLIME:-/root/slime}
MEGATRON=${MEGATRON:-/root/Megatron-LM}
MODELS=${MODELS:-/root/models}
export DATA=${DATA:-/root/data}
GPUS=${GPUS:-8}
ROLLOUTS=${ROLLOUTS:-200}
RUN="Qwen3-8B_retokenization_${ARM}_s${SEED}"

# Fail now if the arm is unknown or there is no sandbox, not after the model is loaded.
mapfile -t ARMFLAGS < <(python3 "$HERE/flags.py" "$ARM" || kill $$)
RETOKENIZATION_ARM="$ARM" PYTHONPATH="$HERE" python3 -c "import arm_agent, math_agent; arm_agent.arm(); math_agent.python_tool()"

# Sets MODEL_ARGS: the shape of the model, which Megatron does not read from a checkpoint.
source "$SLIME/scripts/models/qwen3-8B.sh"

AGENT=(
    --custom-generate-function-path arm_agent.generate
    --eval-config "$HERE/../../../examples/slime_math/aime.yaml"
    --eval-interval 20
)
CHECKPOINTS=(
    --hf-checkpoint "$MODELS/Qwen3-8B"
    --ref-load "$MODELS/Qwen3-8B_torch_dist"
    --load "$MODELS/$RUN" # continues from here if there is a checkpoint
    --save "$MODELS/$RUN"
    --save-interval 50
)
ROLLOUT=(
    --prompt-data "$DATA/dapo-math-17k/dapo-math-17k.jsonl"
    --input-key prompt
    --label-key label
    --rollout-shuffle
    --rollout-seed "$SEED"
    --seed "$SEED"
    --num-rollout "$ROLLOUTS"
    --rollout-batch-size 32
    --n-samples-per-prompt 8
    --global-batch-size 256 # one update per rollout, as in the small experiment
    --rollout-max-response-len 16384
    --rollout-temperature 1
    --balance-data
)
ALGORITHM=(
    --advantage-estimator grpo
    --eps-clip 0.2
    --eps-clip-high 0.28
    --entropy-coef 0.0
)
OPTIMIZER=(
    --optimizer adam
    --lr 1e-6
    --lr-decay-style constant
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.98
)
PARALLEL=(
    --tensor-model-parallel-size 2
    --sequence-parallel
    --pipeline-model-parallel-size 1
    --context-parallel-size 1
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    --use-dynamic-batch-size
    --max-tokens-per-gpu 18432
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --accumulate-allreduce-grads-in-fp32
    --attention-softmax-in-fp32
    --attention-backend flash
)
ENGINE=(
    --actor-num-nodes 1
    --actor-num-gpus-per-node "$GPUS"
    --colocate
    --rollout-num-gpus-per-engine 2
    --sglang-mem-fraction-static 0.6
)
TRACKING=()
if [ -n "${WANDB_KEY:-}" ]; then
    TRACKING=(--use-wandb --wandb-project strands-sglang-retokenization --wandb-group "$RUN" --wandb-key "$WANDB_KEY")
fi

nvlink=$(nvidia-smi topo -m 2>/dev/null | grep -q 'NV[0-9]' && echo 1 || echo 0)
environment=$(
    printf '{"env_vars": {"PYTHONPATH": "%s:%s:%s:%s", "DATA": "%s", "RETOKENIZATION_ARM": "%s", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_NVLS_ENABLE": "%s"}}' \
        "$MEGATRON" "$SLIME" "$HERE" "$HERE/../../../examples/slime_math" "$DATA" "$ARM" "$nvlink"
)

ray status >/dev/null 2>&1 || ray start --head --num-gpus "$GPUS" --disable-usage-stats
cd "$SLIME"
ray job submit --runtime-env-json "$environment" -- python3 train.py \
    "${MODEL_ARGS[@]}" "${AGENT[@]}" "${CHECKPOINTS[@]}" "${ROLLOUT[@]}" "${ALGORITHM[@]}" "${ARMFLAGS[@]}" \
    "${OPTIMIZER[@]}" "${PARALLEL[@]}" "${ENGINE[@]}" "${TRACKING[@]}"

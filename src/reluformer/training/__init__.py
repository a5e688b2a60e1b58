"""Training: a recipe in, a model out, interruptible at any moment.

launch        train(): the whole of it
start         with a checkpoint, given weights or random ones; what is deleted for it, and what never is
loop          Trainer: update, log, validate, checkpoint
objective     cross entropy that never holds all logits, and the regulariser
feed          which batches in which update
schedule      the learning rate
averaging     moving averages, means of checkpoints
checkpoint    to go on from, atomically
run           the directory of a run
divergence    where a loss stopped being a number
progress      what a person sees
processes     what several processes tell each other
resume_check  proof that a killed training goes on bit for bit
"""

from reluformer.training.divergence import DivergedError
from reluformer.training.launch import TrainingResult, train

__all__ = ["DivergedError", "TrainingResult", "train"]

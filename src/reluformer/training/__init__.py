"""Training: one trainer for all models, which can be interrupted at any moment and resumes bit for bit.

task         what the trainer has to know about a task: model, data, loss
corpus_task  what tasks share that are given by a recipe or have a prepared corpus, and training by a recipe
fit          fit(): a task and a directory in, a trained model out; starts or resumes a run
loop         the training loop: update, log, validate, save a checkpoint
objective    cross entropy that never holds all logits, the regulariser, and the error for a loss that is not finite
optimizer    AdamW, learning rate, rule warm-up and averages of weights
checkpoint   the counters of training, and checkpoints, written whole or not at all
run          the run directory: recipe, log, status, checkpoints and models
progress     what a person sees, and TensorBoard
processes    communication between the processes of one training
config       the section `training` of a recipe
"""

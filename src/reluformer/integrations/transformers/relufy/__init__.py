"""Converts a pretrained softmax model into a ReLU one: swap the rule, calibrate each head, distil.

calibration        fits scales, offsets and centres of heads to the reads of the teacher
family             what the conversion needs to know of a kind of models; examples; the encoder-decoder of this package
pretrained_family  models of transformers
distillation       trains the student on its teacher
conversion         `relufy()`, its report, and the storage of students

`reluformer.hub` has the public names; docs/relufy.md describes the method.
"""

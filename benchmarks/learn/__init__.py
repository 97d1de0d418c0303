"""Learning on the device: gradients, time and memory of a step, and three stories with data.

cases      the models, the tasks that are prepared of them, and their batches
eager      the same step by PyTorch
gradients  how far the graphs' gradients are from PyTorch's
steps      time of a step, in turn with PyTorch's
memory     peak of a process that trains, against one of PyTorch and one that only infers
spoken     words in another accent, from 48 utterances of one voice
camera     Fashion-MNIST through a worse camera
texts      which part of the standard library a docstring is of
commands   the README's commands, timed
private    differential privacy beside training without it
"""

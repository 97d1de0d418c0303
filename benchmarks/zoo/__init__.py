"""Small reference networks for the benchmarks, the tests and the examples.

mobilenet_v2   MobileNetV2 for ImageNet-1k, and where its trained weights are found
mobilenet_v3   MobileNetV3-Large with seeded random weights
resnet18       ResNet-18 with seeded random weights and settled BatchNorm statistics
yolov5s        a detector shaped like YOLOv5s, with seeded random weights
minilm         MiniLM-L6 sentence embeddings, and where their trained weights are found
random_weights what makes random weights behave: picture-like noise, settled BatchNorm statistics
fashion        two networks for 1x28x28 Fashion-MNIST: plain and depthwise
fashion_data   reads Debian's dataset-fashion-mnist; label names, normalisation
train_fashion  trains both Fashion-MNIST networks: ``python -m benchmarks.zoo.train_fashion``
weights/       what train_fashion wrote: one safetensors file a network, and training.json

Every factory takes no required argument and returns a module in eval mode, so that
``benchmarks.zoo.fashion:fashion_cnn --weights FILE.safetensors`` is enough to load one.
"""

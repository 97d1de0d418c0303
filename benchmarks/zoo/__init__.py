"""Small reference networks for the benchmarks, the tests and the examples.

mobilenet_v2          MobileNetV2 for ImageNet-1k, and where its trained weights are found
mobilenet_v3          MobileNetV3-Large with seeded random weights
resnet18              ResNet-18 with seeded random weights and settled BatchNorm statistics
yolov5s               a detector shaped like YOLOv5s, with seeded random weights
minilm                MiniLM-L6 sentence embeddings, and where their trained weights are found
random_weights        what makes random weights behave: picture-like noise, settled BatchNorm statistics
fashion               two networks for 1x28x28 Fashion-MNIST: plain and depthwise
fashion_data          reads Debian's dataset-fashion-mnist; label names, normalisation
fashion_scenes        composes Fashion-MNIST items to pictures with known boxes
scene_detector        a small anchor-free detector for these scenes
scene_heads           the same with the outputs of other families
scene_video           a video of such scenes in motion, with known boxes
easy_vqa_data         reads PyPI's easy-vqa; the words of its questions, normalisation
vqa                   a small network in three branches that answers its questions
composed_search       MobileNetV2 and MiniLM composed to a picture search
dialect               twelve spoken commands from a waveform, the mel spectrogram inside the network
dialect_data          synthesises them in several accents and voices by Debian's espeak-ng
train_fashion         trains both Fashion-MNIST networks: ``python -m benchmarks.zoo.train_fashion``
train_scene_detector  trains the detector: ``python -m benchmarks.zoo.train_scene_detector``
train_vqa             trains that network: ``python -m benchmarks.zoo.train_vqa``
train_dialect         trains the network on American English: ``python -m benchmarks.zoo.train_dialect``
weights/              what these wrote: one safetensors file a network (the detector's in float16), training.json

Every factory takes no required argument and returns a module in eval mode, so that
``benchmarks.zoo.fashion:fashion_cnn --weights FILE.safetensors`` is enough to load one.
"""

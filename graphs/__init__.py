"""The model zoo: networks written from their papers, with seeded weights, exported as ONNX with a dynamic batch.

Run from the checkout: `python -m graphs export --model resnet50 -o DIR`. Building needs torch (the `torch` extra);
serving what was exported does not. Most weights are random: latencies are real, predictions mean nothing. Those of
`minilm`, `silero-vad` and `g2p` are trained ones out of installed packages.

Owns: the networks, and their files. Must not know: how they are served.
"""

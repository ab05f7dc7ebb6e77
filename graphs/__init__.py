"""The model zoo: networks written from their papers, with seeded weights, exported as ONNX with a dynamic batch.

Run from the checkout: `python -m graphs export --model resnet50 -o DIR`. Building needs torch (the `torch` extra);
serving what was exported does not. The weights are random: latencies are real, predictions mean nothing.
"""

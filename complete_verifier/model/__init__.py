"""From an ONNX file to a graph that can be bounded, checked against onnxruntime."""

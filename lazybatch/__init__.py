"""lazybatch: node-level preemptive batching for DNN inference."""

//! A simulated CUDA driver, for tests on machines without a GPU.

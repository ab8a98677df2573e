//! CUDA as frameshare uses it: memory that other processes can import, and fences between processes.

"""Property-based differential testing of Kimi Delta Attention kernels."""

//! side by side with PyTorch's distributed checkpoint

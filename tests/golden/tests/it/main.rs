//! Checkpoints that PyTorch and Megatron Core wrote.

mod sound;

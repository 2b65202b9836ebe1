//! checkpoints that other programs wrote, read bit for bit, whole and damaged

/// Name of the backend.
pub const NAME: &str = "torch_dist";

/// The pickle that says what is stored and where; its presence makes a DCP checkpoint.
pub const METADATA: &str = ".metadata";

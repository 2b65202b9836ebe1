//! Keys of optimizer state.

/// What the key of an item of optimizer state says. The texts are parts of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum OptimizerKey<'a> {
    /// State by parameter: `optimizer.state.{rest}`.
    State {
        /// `chained_{i}.`, or empty.
        prefix: &'a str,
        /// Name of the state and key of the parameter, in the order that the form has.
        rest: &'a str,
    },
    /// A tensor with the state of all parameters of a bucket of gradients.
    Bucket {
        /// `chained_{i}.`, or empty.
        prefix: &'a str,
        /// The bucket.
        bucket: BucketId,
        /// Types of parameters and gradients.
        dtype: &'a str,
        /// Name of the state.
        name: &'a str,
    },
    /// Something else of a data-parallel group: `optimizer.distributed.dp_group_idx_{i}.{name}`.
    Group {
        /// `chained_{i}.`, or empty.
        prefix: &'a str,
        /// The data-parallel group.
        dp_group: u64,
        /// Its name, without the cell of an array of objects.
        name: &'a str,
    },
    /// Settings of a parameter, as Megatron-FSDP stores them: `optimizer.param_to_group_meta.{rest}`.
    GroupMeta {
        /// The rest of the key.
        rest: &'a str,
    },
}

/// A bucket of gradients: within its data-parallel group and buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketId {
    /// Index of the data-parallel group: its rank within the model-parallel group.
    pub dp_group: u64,
    /// Index of the buffer of gradients.
    pub gbuf: u64,
    /// Index of the bucket in the buffer.
    pub bucket: u64,
}

/// The number at the start of a text, and what follows it.
fn number(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at_checked(digits)?;
    Some((number.parse().ok()?, rest))
}

impl<'a> OptimizerKey<'a> {
    /// What a key says; `None` if it is not one of Megatron Core's optimizer state.
    ///
    /// ```
    /// use reshard_optim::{BucketId, OptimizerKey};
    /// let key = "optimizer.distributed.dp_group_idx_1.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_2.exp_avg";
    /// let bucket = BucketId { dp_group: 1, gbuf: 0, bucket: 2 };
    /// assert_eq!(
    ///     OptimizerKey::parse(key),
    ///     Some(OptimizerKey::Bucket { prefix: "", bucket, dtype: "(torch.bfloat16, torch.float32)", name: "exp_avg" })
    /// );
    /// assert_eq!(OptimizerKey::parse("decoder.weight"), None);
    /// ```
    pub fn parse(key: &'a str) -> Option<Self> {
        let (prefix, rest) = split_chained(key);
        let rest = rest.strip_prefix("optimizer.")?;
        if let Some(rest) = rest.strip_prefix("state.") {
            return Some(Self::State { prefix, rest });
        }
        if let Some(rest) = rest.strip_prefix("param_to_group_meta.") {
            return Some(Self::GroupMeta { rest });
        }
        let (dp_group, rest) = number(rest.strip_prefix("distributed.dp_group_idx_")?)?;
        let rest = rest.strip_prefix('.')?;
        if let Some((gbuf, dtype, bucket, name)) = bucket(rest) {
            let bucket = BucketId {
                dp_group,
                gbuf,
                bucket,
            };
            return Some(Self::Bucket {
                prefix,
                bucket,
                dtype,
                name,
            });
        }
        // An object's key ends with its cell.
        let name = rest.split_once('/').map_or(rest, |(name, _)| name);
        Some(Self::Group {
            prefix,
            dp_group,
            name,
        })
    }

    /// `chained_{i}.`, or empty.
    pub fn prefix(&self) -> &'a str {
        match self {
            Self::State { prefix, .. }
            | Self::Bucket { prefix, .. }
            | Self::Group { prefix, .. } => prefix,
            Self::GroupMeta { .. } => "",
        }
    }
}

/// A key without the prefix of a chained optimizer.
fn split_chained(key: &str) -> (&str, &str) {
    let rest = key
        .strip_prefix("chained_")
        .and_then(number)
        .and_then(|(_, rest)| rest.strip_prefix('.'));
    match rest {
        Some(rest) => (&key[..key.len() - rest.len()], rest),
        None => ("", key),
    }
}

/// Buffer, types, bucket and name of `gbuf_idx_{g}.dtype_{types}.bucket_idx_{b}.{name}`.
fn bucket(rest: &str) -> Option<(u64, &str, u64, &str)> {
    let (gbuf, rest) = number(rest.strip_prefix("gbuf_idx_")?)?;
    let (dtype, rest) = rest.strip_prefix(".dtype_")?.split_once(".bucket_idx_")?;
    let (bucket, rest) = number(rest)?;
    Some((gbuf, dtype, bucket, rest.strip_prefix('.')?))
}

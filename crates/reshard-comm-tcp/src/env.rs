//! The variables that torchrun sets, and that scripts for srun or a shell set in the same way.

use crate::{Result, TcpError};
use std::{ffi::OsString, net::IpAddr, str::FromStr};

/// What the environment says about this process and its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variables {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) master_addr: String,
    pub(crate) master_port: u16,
    /// Tells this run and this attempt from others that use the same store.
    pub(crate) attempt: String,
    /// Whether torchrun serves the store itself. `None` if torchrun did not start this process.
    pub(crate) agent_store: Option<bool>,
    pub(crate) bind: Option<IpAddr>,
}

impl Variables {
    /// Reads the variables through `look_up`.
    pub(crate) fn read(look_up: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let rank = required(&look_up, "RANK", "the number of this process, from 0")?;
        let size = required(&look_up, "WORLD_SIZE", "the number of processes")?;
        let master_addr: String = required(&look_up, "MASTER_ADDR", "the host of rank 0")?;
        let master_port = required(&look_up, "MASTER_PORT", "a port on the host of rank 0")?;
        if size == 0 {
            return Err(wrong("WORLD_SIZE", "is 0; a job has at least 1 process"));
        }
        if rank >= size {
            let why = format!("is {rank}; it must be less than WORLD_SIZE, which is {size}");
            return Err(wrong("RANK", why));
        }
        if master_addr.is_empty() {
            return Err(wrong(
                "MASTER_ADDR",
                "is empty; it must be the host of rank 0",
            ));
        }
        let run: Option<String> = optional(&look_up, "TORCHELASTIC_RUN_ID", "text")?;
        let restart: Option<u32> = optional(
            &look_up,
            "TORCHELASTIC_RESTART_COUNT",
            "the number of restarts",
        )?;
        let agent: Option<String> =
            optional(&look_up, "TORCHELASTIC_USE_AGENT_STORE", "True or False")?;
        let agent_store = match agent.as_deref() {
            None => None,
            Some("True") => Some(true),
            Some("False") => Some(false),
            Some(other) => {
                let why = format!("is `{other}`; it must be True or False");
                return Err(wrong("TORCHELASTIC_USE_AGENT_STORE", why));
            }
        };
        Ok(Self {
            rank,
            size,
            master_addr,
            master_port,
            attempt: format!(
                "{}/{}",
                run.as_deref().unwrap_or("none"),
                restart.unwrap_or(0)
            ),
            agent_store,
            bind: optional(&look_up, "RESHARD_TCP_BIND", "an IP address of this host")?,
        })
    }
}

/// The id of the job to which this process belongs: `RESHARD_JOB_ID`, else the run id of torchrun unless it is `none`, else the job id of SLURM.
pub(crate) fn job_id(look_up: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    ["RESHARD_JOB_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"]
        .into_iter()
        .filter_map(|name| {
            let value = look_up(name)?;
            let value = value.to_string_lossy().trim().to_owned();
            // torchrun's run id is `none` unless `--rdzv-id` sets it.
            let is_none = name == "TORCHELASTIC_RUN_ID" && value == "none";
            (!is_none && !value.is_empty()).then_some(value)
        })
        .next()
}

fn required<T: FromStr>(
    look_up: impl Fn(&str) -> Option<OsString>,
    name: &'static str,
    what: &str,
) -> Result<T> {
    optional(look_up, name, what)?.ok_or_else(|| {
        let hint = match name {
            "RANK" => " (under srun: RANK=$SLURM_PROCID)",
            "WORLD_SIZE" => " (under srun: WORLD_SIZE=$SLURM_NTASKS)",
            _ => "",
        };
        wrong(
            name,
            format!("is not set; torchrun sets it to {what}{hint}"),
        )
    })
}

fn optional<T: FromStr>(
    look_up: impl Fn(&str) -> Option<OsString>,
    name: &'static str,
    what: &str,
) -> Result<Option<T>> {
    let Some(value) = look_up(name) else {
        return Ok(None);
    };
    let parsed = value.to_str().and_then(|text| text.trim().parse().ok());
    parsed.map(Some).ok_or_else(|| {
        wrong(
            name,
            format!("is `{}`; it must be {what}", value.to_string_lossy()),
        )
    })
}

fn wrong(name: &'static str, why: impl Into<String>) -> TcpError {
    TcpError::Variable {
        name,
        why: why.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 4] = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", "29500"),
    ];

    /// `GOOD` with `name` changed, or removed.
    fn read(name: &str, value: Option<&str>) -> Result<Variables> {
        Variables::read(|asked| {
            let good = GOOD.iter().find(|(n, _)| *n == asked).map(|(_, v)| *v);
            if asked == name { value } else { good }.map(OsString::from)
        })
    }

    #[test]
    fn torchrun_s_variables_are_read() {
        let read = read("TORCHELASTIC_RESTART_COUNT", Some("3")).unwrap();
        assert_eq!((read.rank, read.size, read.master_port), (1, 2, 29500));
        assert_eq!(read.attempt, "none/3", "a restart has keys of its own");
        assert_eq!(read.agent_store, None);
    }

    #[test]
    fn the_first_job_id_counts() {
        let id = |variables: &[(&str, &str)]| {
            job_id(|asked| {
                let found = variables.iter().find(|(name, _)| *name == asked);
                found.map(|(_, value)| OsString::from(value))
            })
        };
        let all = [
            ("SLURM_JOB_ID", "7"),
            ("TORCHELASTIC_RUN_ID", "run"),
            ("RESHARD_JOB_ID", "mine"),
        ];
        assert_eq!(id(&all).as_deref(), Some("mine"));
        assert_eq!(id(&all[..2]).as_deref(), Some("run"));
        assert_eq!(id(&all[..1]).as_deref(), Some("7"));
        let none = ("TORCHELASTIC_RUN_ID", "none");
        assert_eq!(id(&[none, all[0]]).as_deref(), Some("7"));
        assert_eq!(id(&[none, ("RESHARD_JOB_ID", " ")]), None);
    }

    #[test]
    fn a_missing_variable_is_named() {
        for (name, _) in GOOD {
            let error = read(name, None).unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains(&format!("variable {name} is not set")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_wrong_variable_is_named_with_its_value() {
        for (name, value) in [
            ("RANK", "-1"),
            ("RANK", "2"),
            ("RANK", "two"),
            ("WORLD_SIZE", "0"),
            ("WORLD_SIZE", ""),
            ("MASTER_ADDR", ""),
            ("MASTER_PORT", "70000"),
            ("TORCHELASTIC_USE_AGENT_STORE", "maybe"),
            ("RESHARD_TCP_BIND", "eth0"),
        ] {
            let error = read(name, Some(value)).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(name) && text.contains(value), "{text}");
            assert_eq!(error.kind(), reshard_model::ErrorKind::Invalid);
        }
    }
}

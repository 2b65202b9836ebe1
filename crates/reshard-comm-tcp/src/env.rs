//! The variables that torchrun sets, and that scripts for srun or a shell set in the same way.

use crate::{Builder, Result, Serve, TcpError, TcpGroup};
use std::{ffi::OsString, str::FromStr};

impl TcpGroup {
    /// Makes the group that the environment describes, as torchrun sets it: `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and
    /// `MASTER_PORT`. It blocks until all ranks have called it.
    ///
    /// If `TORCHELASTIC_USE_AGENT_STORE` is `True`, torchrun serves the store; if it is `False`, rank 0 does. Without
    /// it the rule is [`Serve::Auto`]. `TORCHELASTIC_RUN_ID` and `TORCHELASTIC_RESTART_COUNT` keep attempts apart that
    /// use one store. `RESHARD_JOB_ID` keeps jobs apart that are given the same store by accident ([`Builder::job_id`]).
    /// `RESHARD_TCP_BIND` is the IP address at which this rank listens.
    ///
    /// A process may call it again. The n-th groups of all processes meet.
    ///
    /// # Errors
    /// [`TcpError::Variable`] names the variable that is missing or wrong; else those of [`Builder::connect`].
    pub fn from_env() -> Result<Self> {
        Self::builder_from(|name| std::env::var_os(name))?.connect()
    }

    /// Settings from the environment, to change some by hand.
    ///
    /// # Errors
    /// [`TcpError::Variable`] names the variable that is missing or wrong.
    pub fn builder_from_env() -> Result<Builder> {
        Self::builder_from(|name| std::env::var_os(name))
    }

    fn builder_from(look_up: impl Fn(&str) -> Option<OsString>) -> Result<Builder> {
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
        let serve = match agent.as_deref() {
            None => Serve::Auto,
            Some("True") => Serve::Nobody,
            Some("False") => Serve::Rank0,
            Some(other) => {
                let why = format!("is `{other}`; it must be True or False");
                return Err(wrong("TORCHELASTIC_USE_AGENT_STORE", why));
            }
        };
        let (run, restart) = (run.as_deref().unwrap_or("none"), restart.unwrap_or(0));
        let builder = Self::builder()
            .rank(rank, size)
            .master(master_addr, master_port)
            .attempt(format!("{run}/{restart}"))
            .serve(serve);
        let bind = optional(&look_up, "RESHARD_TCP_BIND", "an IP address of this host")?;
        Ok(bind.into_iter().fold(builder, Builder::bind))
    }
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
    fn read(name: &str, value: Option<&str>) -> Result<Builder> {
        TcpGroup::builder_from(|asked| {
            let good = GOOD.iter().find(|(n, _)| *n == asked).map(|(_, v)| *v);
            if asked == name { value } else { good }.map(OsString::from)
        })
    }

    #[test]
    fn torchrun_s_variables_are_read() {
        let read = read("TORCHELASTIC_RESTART_COUNT", Some("3")).unwrap();
        assert_eq!((read.rank, read.size), (Some(1), Some(2)));
        assert_eq!(read.master, Some(("localhost".to_owned(), 29500)));
        assert_eq!(read.attempt, "none/3", "a restart has keys of its own");
        assert_eq!(read.serve, Serve::Auto);
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

//! `reshard verify`.

use crate::{
    args::Verify,
    error::{CliError, DAMAGED, FAILED, NO_CHECKPOINT, OK, RAISE, Result, TRY_AGAIN},
    findings::{check, line, more_findings},
    io::Io,
    json,
    program::Program,
    table::{BAD, GOOD, styled},
    units,
};
use reshard::{
    ErrorKind,
    strategy::{Damage, Unlisted, VerifyReport},
};
use serde::Serialize;

#[derive(Serialize)]
struct Report {
    schema: u32,
    status: &'static str,
    quick: bool,
    damage: Vec<Damage>,
    unchecked: Vec<Damage>,
    items: u64,
    bytes: u64,
    not_understood: Vec<Damage>,
    not_read: Vec<Damage>,
    not_listed: NotListed,
    without_checksum: u64,
    /// Files that Megatron Core's `integrity.json` does not list. They are no damage.
    beside_integrity: Vec<String>,
}

/// How many findings are not in the lists.
#[derive(Serialize)]
struct NotListed {
    damage: u64,
    unchecked: u64,
    not_understood: u64,
    not_read: u64,
}

impl NotListed {
    fn of(rest: &Unlisted) -> Self {
        Self {
            damage: rest.damage.findings,
            unchecked: rest.unchecked.findings,
            not_understood: rest.not_understood.findings,
            not_read: rest.not_read.findings,
        }
    }
}

impl Report {
    fn of(quick: bool, v: VerifyReport) -> Self {
        let all = [
            ("damaged", &v.damage),
            ("unchecked", &v.unchecked),
            ("not understood", &v.not_understood),
            ("not read", &v.not_read),
        ];
        let status = all
            .iter()
            .find(|(_, found)| !found.is_empty())
            .map_or("sound", |(status, _)| status);
        Self {
            schema: 1,
            status,
            quick,
            damage: v.damage,
            unchecked: v.unchecked,
            items: v.items,
            bytes: v.bytes,
            not_understood: v.not_understood,
            not_read: v.not_read,
            not_listed: NotListed::of(&v.unlisted),
            without_checksum: v.without_checksum,
            beside_integrity: Vec::new(),
        }
    }

    /// Of a checkpoint that could not be opened.
    fn failed(quick: bool, e: &CliError) -> Self {
        let what = Damage {
            key: None,
            file: None,
            offset: None,
            what: e.text(),
        };
        let mut v = VerifyReport::default();
        match (e.exit_code(), e.kind()) {
            (_, Some(ErrorKind::Limit)) => v.not_read.push(what),
            (_, Some(ErrorKind::Unsupported)) => v.not_understood.push(what),
            (FAILED, _) => v.unchecked.push(what),
            _ => v.damage.push(what),
        }
        let status = if e.exit_code() == NO_CHECKPOINT {
            Some("not a checkpoint")
        } else {
            None
        };
        let report = Self::of(quick, v);
        Self {
            status: status.unwrap_or(report.status),
            ..report
        }
    }

    fn exit_code(&self) -> u8 {
        match self.status {
            "sound" => OK,
            "damaged" => DAMAGED,
            "not a checkpoint" => NO_CHECKPOINT,
            _ => FAILED,
        }
    }
}

pub(crate) fn run(program: &Program, args: &Verify, io: &mut Io<'_>) -> Result<u8> {
    let opened = program.open(&args.dir, args.reading.options());
    let checked = opened.and_then(|c| Ok((check(&c, !args.quick, io)?, c.beside_integrity()?)));
    let report = match checked {
        Ok((v, beside)) => Report {
            beside_integrity: beside.into_iter().map(String::from).collect(),
            ..Report::of(args.quick, v)
        },
        // JSON tells it itself; people get the error as of any command.
        Err(e) if args.json => Report::failed(args.quick, &e),
        Err(e) => return Err(e),
    };
    let code = report.exit_code();
    match print(&report, args, io) {
        // Whoever closed the pipe still gets the right exit code.
        Err(e) if e.is_closed_pipe() => Ok(code),
        printed => printed.map(|()| code),
    }
}

fn print(report: &Report, args: &Verify, io: &mut Io<'_>) -> Result<()> {
    if args.json {
        return json::write(io.out, report);
    }
    let rest = &report.not_listed;
    for (word, found, rest) in [
        ("damaged", &report.damage, rest.damage),
        ("unchecked", &report.unchecked, rest.unchecked),
        (
            "not understood",
            &report.not_understood,
            rest.not_understood,
        ),
        ("not read", &report.not_read, rest.not_read),
    ] {
        for d in found {
            writeln!(io.out, "{}  {}", styled(BAD, word), line(d))?;
        }
        if rest > 0 {
            let more = format!("and {}", more_findings(rest));
            writeln!(io.out, "{}  {more}", styled(BAD, word))?;
        }
    }

    note_beside(&report.beside_integrity, io)?;
    let looked = match args.quick {
        true => format!(
            "{}; checked structure, coverage and sizes",
            units::some(report.items, "item")
        ),
        false => {
            let read = units::bytes(report.bytes);
            let checked = checksums(report.items, report.without_checksum);
            format!("{}, {read}; {checked}", units::some(report.items, "item"))
        }
    };

    // Findings go to `out`, and what follows from them to `err`. A flush in between keeps them in order on a terminal.
    match report.status {
        "sound" => writeln!(io.out, "{}  {looked}", styled(GOOD, "sound"))?,
        "damaged" => {
            let n = units::some(report.damage.len() as u64 + rest.damage, "problem");
            io.out.flush()?;
            writeln!(io.err, "{n} in {looked}")?;
            let hint = "what is not listed can still be loaded; restore the rest from a copy, or save again";
            writeln!(io.err, "hint: {hint}")?;
        }
        status => {
            io.out.flush()?;
            let hint = match status {
                "not understood" => {
                    "everything else was checked; a later version of reshard, or the program that wrote it, may be able to read it"
                }
                "not read" => RAISE,
                _ => TRY_AGAIN,
            };
            writeln!(io.err, "hint: {hint}")?;
        }
    }
    io.out.flush()?;
    Ok(())
}

/// What was checked of the bytes that were read.
fn checksums(items: u64, without: u64) -> String {
    match without {
        0 => "checked every checksum".into(),
        n if n == items => {
            "checked structure, coverage and sizes, because no item has a checksum".into()
        }
        n => format!(
            "checked every checksum; {} without one",
            units::some(n, "item")
        ),
    }
}

/// So many files that `integrity.json` does not list are named; the rest is counted.
const FEW: usize = 5;

fn note_beside(files: &[String], io: &mut Io<'_>) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    io.out.flush()?;
    let named = files[..files.len().min(FEW)].join(", ");
    let more = match files.len().saturating_sub(FEW) {
        0 => String::new(),
        more => format!(" and {} more", units::count(more as u64)),
    };
    io.note(format!("integrity.json does not list {named}{more}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_checksum_is_not_said_to_be_checked() {
        assert_eq!(checksums(3, 0), "checked every checksum");
        assert_eq!(
            checksums(3, 1),
            "checked every checksum; 1 item without one"
        );
        assert!(checksums(3, 3).ends_with("because no item has a checksum"));
    }

    #[test]
    fn the_worst_of_all_findings_gives_the_status_and_damage_alone_exits_with_1() {
        let words = ["damaged", "unchecked", "not understood", "not read"];
        for found in 0u32..16 {
            let finding = |i: usize| {
                let one = Damage {
                    key: None,
                    file: None,
                    offset: None,
                    what: words[i].into(),
                };
                if found & (1 << i) == 0 {
                    Vec::new()
                } else {
                    vec![one]
                }
            };
            let mut v = VerifyReport::default();
            (v.damage, v.unchecked) = (finding(0), finding(1));
            (v.not_understood, v.not_read) = (finding(2), finding(3));
            let report = Report::of(false, v);
            let worst = words
                .get(found.trailing_zeros() as usize)
                .copied()
                .unwrap_or("sound");
            let code = match worst {
                "sound" => 0,
                "damaged" => 1,
                _ => 2,
            };
            assert_eq!(
                (report.status, report.exit_code()),
                (worst, code),
                "{found:04b}"
            );
        }
    }
}

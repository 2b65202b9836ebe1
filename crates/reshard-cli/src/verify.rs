//! `reshard verify`.

use crate::{
    args::Verify,
    cost::{self, Reads},
    error::{CliError, DAMAGED, FAILED, NO_CHECKPOINT, OK, RAISE, Result, printed},
    findings::{check, lines, more_findings, stored_bytes},
    io::Io,
    json, not_covered,
    pickles::{self, Global, Pickles},
    program::Program,
    table::{BAD, GOOD, beginning, few, shown, styled},
    units,
};
use reshard::{
    ErrorKind, SIDECAR,
    blocking::Checkpoint,
    strategy::{CheckedItems, Damage, NotCovered, Rest, Unlisted, VerifyReport},
};
use reshard_torch_format::pickle::Verdict;
use serde::{Serialize, Serializer};
use serde_json::json;
use std::{
    collections::BTreeSet,
    io::Write,
    time::{SystemTime, UNIX_EPOCH},
};

/// The JSON, schema 1.
#[derive(Serialize)]
struct Report {
    schema: u32,
    status: &'static str,
    quick: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<Sampled>,
    damage: Vec<Damage>,
    unchecked: Vec<Damage>,
    /// What is not there, such as the files of some ranks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    incomplete: Vec<Damage>,
    /// Files of metadata that another program has saved since.
    changed: Vec<Damage>,
    items: u64,
    bytes: u64,
    not_understood: Vec<Damage>,
    not_read: Vec<Damage>,
    #[serde(rename = "not_listed", serialize_with = "counts")]
    unlisted: Unlisted,
    without_checksum: u64,
    /// Files that Megatron Core's `integrity.json` does not list. They are no damage.
    beside_integrity: Vec<String>,
    /// Bytes that nobody can confirm.
    not_covered: NotCovered,
    /// Classes and functions that pickles name and that run code when Python loads them.
    #[serde(rename = "unsafe", skip_serializing_if = "Vec::is_empty")]
    unsafe_globals: Vec<Global>,
    /// Those of which reshard does not know what they do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown_globals: Vec<Global>,
    /// Files whose pickles could not be followed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_scanned: Vec<String>,
    /// Warnings about the checkpoint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// What was chosen of all items.
#[derive(Serialize)]
struct Sampled {
    seed: u64,
    items: u64,
    of_items: u64,
    bytes: u64,
    of_bytes: u64,
}

/// How many findings are not in the lists.
fn counts<S: Serializer>(rest: &Unlisted, to: S) -> Result<S::Ok, S::Error> {
    let counts = json!({
        "damage": rest.damage.findings,
        "unchecked": rest.unchecked.findings,
        "not_understood": rest.not_understood.findings,
        "not_read": rest.not_read.findings,
    });
    counts.serialize(to)
}

impl Report {
    fn of(quick: bool, v: VerifyReport) -> Self {
        let lists = v.lists().map(|(status, found, _)| (status, found));
        let status = lists
            .iter()
            .chain(&[("incomplete", &v.incomplete), ("changed", &v.changed)])
            .find(|(_, found)| !found.is_empty())
            .map_or("sound", |(status, _)| status);
        Self {
            schema: 1,
            status,
            quick,
            sample: None,
            damage: v.damage,
            unchecked: v.unchecked,
            incomplete: v.incomplete,
            changed: v.changed,
            items: v.items,
            bytes: v.bytes,
            not_understood: v.not_understood,
            not_read: v.not_read,
            unlisted: v.unlisted,
            without_checksum: v.without_checksum,
            beside_integrity: Vec::new(),
            not_covered: v.not_covered,
            unsafe_globals: Vec::new(),
            unknown_globals: Vec::new(),
            not_scanned: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Of a checkpoint that could not be opened.
    fn failed(quick: bool, e: &CliError) -> Self {
        let what = Damage::new(e.text());
        let mut v = VerifyReport::default();
        match (e.exit_code(), e.kind()) {
            (_, Some(ErrorKind::Limit)) => v.not_read.push(what),
            (_, Some(ErrorKind::Unsupported)) => v.not_understood.push(what),
            (FAILED, _) => v.unchecked.push(what),
            _ => v.damage.push(what),
        }
        let mut report = Self::of(quick, v);
        if e.exit_code() == NO_CHECKPOINT {
            report.status = "not a checkpoint";
        }
        report
    }

    /// With what the pickles name. A file that runs code is not safe, whatever else was found.
    fn with_pickles(mut self, found: Pickles) -> Self {
        self.unsafe_globals = found.of(Verdict::RunsCode);
        self.unknown_globals = found.of(Verdict::Unknown);
        self.not_scanned = found.not_scanned;
        if !self.unsafe_globals.is_empty() {
            self.status = "unsafe";
        }
        self
    }

    /// `strict` accepts neither what another program has saved nor pickles of which not everything is known.
    fn exit_code(&self, strict: bool) -> u8 {
        let is_unknown = !self.unknown_globals.is_empty() || !self.not_scanned.is_empty();
        match self.status {
            "unsafe" => DAMAGED,
            "changed" if strict => DAMAGED,
            "sound" if strict && is_unknown => DAMAGED,
            "sound" | "changed" => OK,
            "damaged" | "incomplete" => DAMAGED,
            "not a checkpoint" => NO_CHECKPOINT,
            _ => FAILED,
        }
    }
}

pub(crate) fn run(program: &Program, args: &Verify, io: &mut Io<'_>) -> Result<u8> {
    let from = (&*args.dir, &args.reading);
    let looked = look(program, args, io);
    let report = match looked {
        Ok(Some(report)) => report,
        Ok(None) => return Ok(OK),
        // What does not open may still be loaded by another program.
        Err(e) => {
            let found = pickles::scan_place(program, from, None).unwrap_or_default();
            let report = Report::failed(args.quick, &e).with_pickles(found);
            // JSON tells it itself; people get the error as of any command.
            match report.status {
                "unsafe" => {
                    if !args.reading.json {
                        io.note(e.text());
                    }
                    report
                }
                _ if args.reading.json => report,
                _ => return Err(e),
            }
        }
    };
    let code = report.exit_code(args.strict);
    printed(print(&report, args, io), code)
}

/// Checks the place. `None` after a dry run.
fn look(program: &Program, args: &Verify, io: &mut Io<'_>) -> Result<Option<Report>> {
    let checkpoint = program.open(&args.dir, args.reading.options(), io)?;
    let (items, bytes, sample) = chosen(&checkpoint, args);
    let cost = |reads: &Reads<'_>| reads.check(&items).and(reads.pickles());
    if cost::tell(&[(&checkpoint, &cost)], (args.dry_run, &args.reading), io)?.is_some() {
        return Ok(None);
    }
    let found = check(&checkpoint, &items, bytes, io)?;
    let beside = checkpoint.beside_integrity()?.into_iter();
    let from = (&*args.dir, &args.reading);
    let pickles = pickles::scan_place(program, from, Some(&checkpoint))?;
    let report = Report {
        sample,
        beside_integrity: beside.map(String::from).collect(),
        notes: json::warnings(&checkpoint),
        ..Report::of(args.quick, found)
    };
    Ok(Some(report.with_pickles(pickles)))
}

/// What is read, how many bytes it has, and how it was chosen.
fn chosen(checkpoint: &Checkpoint, args: &Verify) -> (CheckedItems, u64, Option<Sampled>) {
    match args.sample {
        None if args.quick => (CheckedItems::None, 0, None),
        None => (CheckedItems::All, stored_bytes(checkpoint), None),
        Some(share) => {
            let seed = args.seed.unwrap_or_else(any_seed);
            let sample = checkpoint.sample(share, seed);
            let told = Sampled {
                seed,
                items: sample.count,
                of_items: sample.of_count,
                bytes: sample.bytes,
                of_bytes: sample.of_bytes,
            };
            (sample.items, told.bytes, Some(told))
        }
    }
}

/// A short number, so that people can type it again. It need not be hard to guess.
fn any_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::from(now.subsec_nanos()) / 1_000)
}

fn print(report: &Report, args: &Verify, io: &mut Io<'_>) -> Result<()> {
    if args.reading.json {
        return json::write(io.out, report);
    }
    print_findings(report, io.out)?;
    note_unknown(report, io)?;
    note_beside(&report.beside_integrity, io)?;
    let looked = match (&report.sample, args.quick) {
        (Some(sample), _) => sampled(sample, report),
        (None, true) => format!(
            "{}; checked structure, coverage and sizes",
            units::some(report.items, "item")
        ),
        (None, false) => {
            let read = match report.bytes {
                0 if !matches!(report.status, "sound" | "changed") => {
                    "of which nothing could be read".into()
                }
                bytes => units::bytes(bytes),
            };
            let checked = checksums(report.items, report.without_checksum);
            format!("{}, {read}; {checked}", units::some(report.items, "item"))
        }
    };

    // Findings go to `out`, and what follows from them to `err`. A flush in between keeps them in order on a terminal.
    match report.status {
        "sound" => writeln!(io.out, "{}  {looked}", styled(GOOD, "sound"))?,
        "changed" => {
            writeln!(io.out, "{}  {looked}", styled(GOOD, "sound but changed"))?;
            io.out.flush()?;
            io.note(format!(
                "another program has saved over this checkpoint, so nothing confirms its metadata; `verify --strict` exits with 1, and without {SIDECAR} it counts as that program's"
            ));
        }
        "damaged" => {
            let n = units::some(
                report.damage.len() as u64 + report.unlisted.damage.findings,
                "problem",
            );
            io.out.flush()?;
            writeln!(io.err, "{n} in {looked}")?;
            let all = match report.damage.len() {
                0 | 1 => "",
                _ => "`--json` lists every key; ",
            };
            let hint = format!(
                "{all}items that are not listed can still be read one by one; restore the rest from a copy, or save again"
            );
            writeln!(io.err, "hint: {hint}")?;
        }
        "unsafe" => advise_unsafe(report, &looked, io)?,
        "incomplete" => {
            io.out.flush()?;
            writeln!(io.err, "{looked}; what is there is sound")?;
        }
        status => {
            io.out.flush()?;
            let hint = match status {
                "not understood" => {
                    "everything else was checked; a later version of reshard, or the program that wrote it, may be able to read it"
                }
                "not read" => RAISE,
                // The lines above say why.
                _ => "",
            };
            if !hint.is_empty() {
                writeln!(io.err, "hint: {hint}")?;
            }
        }
    }
    if let Some(line) = not_covered::line(&report.not_covered) {
        io.err.flush()?;
        writeln!(io.out, "not covered  {line}")?;
    }
    io.out.flush()?;
    Ok(())
}

/// Prints all findings.
fn print_findings(report: &Report, out: &mut dyn Write) -> Result<()> {
    let rest = &report.unlisted;
    for line in lines(&report.changed) {
        writeln!(out, "{}  {line}", styled(BAD, "changed"))?;
    }
    for (word, found, rest) in [
        ("damaged", &report.damage, &rest.damage),
        ("unchecked", &report.unchecked, &rest.unchecked),
        (
            "not understood",
            &report.not_understood,
            &rest.not_understood,
        ),
        ("not read", &report.not_read, &rest.not_read),
        ("incomplete", &report.incomplete, &Rest::default()),
    ] {
        for line in lines(found) {
            writeln!(out, "{}  {line}", styled(BAD, word))?;
        }
        if rest.findings > 0 {
            let more = format!("and {}", more_findings(rest.findings));
            writeln!(out, "{}  {more}", styled(BAD, word))?;
        }
    }

    for global in &report.unsafe_globals {
        writeln!(out, "{}  {}", styled(BAD, "unsafe"), global.line())?;
    }
    Ok(())
}

/// Says what to do with a file that would run code.
fn advise_unsafe(report: &Report, looked: &str, io: &mut Io<'_>) -> Result<()> {
    let n = units::some(report.unsafe_globals.len() as u64, "global");
    io.out.flush()?;
    writeln!(
        io.err,
        "{n} would run code if Python loaded them, and reshard did not; {looked}"
    )?;
    let hint = "don't load it with pickle, or with torch.load without weights_only; `convert` to safetensors leaves everything but the tensors behind";
    writeln!(io.err, "hint: {hint}")?;
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

/// What was read of all items.
fn sampled(sample: &Sampled, report: &Report) -> String {
    format!(
        "{} of {}, {} of {} ({}), chosen by --seed {}; {}",
        units::count(sample.items),
        units::some(sample.of_items, "item"),
        units::bytes(sample.bytes),
        units::bytes(sample.of_bytes),
        units::share(sample.bytes, sample.of_bytes),
        sample.seed,
        match report.without_checksum {
            n if n > 0 && n == sample.items => checksums(n, n),
            n => format!(
                "{} of these, and structure, coverage and sizes of all",
                checksums(sample.items, n)
            ),
        }
    )
}

/// So many files that `integrity.json` does not list are named; the rest is counted.
const FEW: usize = 5;

/// Names the globals that the table does not have, and the files that were not scanned.
fn note_unknown(report: &Report, io: &mut Io<'_>) -> Result<()> {
    let names: BTreeSet<&str> = report.unknown_globals.iter().map(|g| &*g.global).collect();
    let names: Vec<&str> = names.into_iter().collect();
    if !names.is_empty() {
        io.out.flush()?;
        let (named, more) = few(&names, FEW);
        let more = more.map_or_else(String::new, |more| format!(" and {more} more"));
        let named: Vec<String> = named.iter().map(|name| brief(name)).collect();
        let named = named.join(", ");
        io.note(format!(
            "pickles name globals that reshard neither knows nor imports: {named}{more}; `inspect --pickles` lists them, and `verify --strict` exits with 1"
        ));
    }
    // What could not be read is listed already.
    if report.status == "unchecked" {
        return Ok(());
    }
    let lines = report.not_scanned.iter();
    let lines = lines.map(|line| format!("pickles not scanned: {}", brief(line)));
    io.notes(FEW, lines, |more| {
        format!("pickles not scanned: {more} more; --json names all")
    });
    Ok(())
}

/// The beginning of a text of a file, which may be very long.
fn brief(text: &str) -> String {
    const MOST: usize = 300;
    shown(&beginning(text, MOST)).into_owned()
}

fn note_beside(files: &[String], io: &mut Io<'_>) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    io.out.flush()?;
    let (named, more) = few(files, FEW);
    let more = more.map_or_else(String::new, |more| format!(" and {more} more"));
    let named = named.join(", ");
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
                if found & (1 << i) == 0 {
                    Vec::new()
                } else {
                    vec![Damage::new(words[i])]
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
                (report.status, report.exit_code(false)),
                (worst, code),
                "{found:04b}"
            );
        }
    }
}

//! `--trace FILE`: the phases of saves, loads and conversions as a trace that the viewer of a browser opens.

use crate::error::{CliError, Result};
use reshard::PHASE_EVENTS;
use serde_json::{Value as Json, json};
use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, Write as _},
    os::unix::fs::FileTypeExt as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};
use tracing::{
    Dispatch, Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// The fields of the events so far.
type Events = Arc<Mutex<Vec<Json>>>;

/// Hears the events of phases, and nothing else.
struct Listener(Events);

impl Subscriber for Listener {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        of.is_event() && of.target() == PHASE_EVENTS
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        if !self.enabled(event.metadata()) {
            return;
        }
        let mut fields = Fields(json!({}));
        event.record(&mut fields);
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.push(fields.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Fields(Json);

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0[field.name()] = value.into();
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0[field.name()] = value.into();
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0[field.name()] = value.into();
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0[field.name()] = format!("{value:?}").into();
    }
}

/// Does `f`, and writes what its phases were to a file, if one is given. A failure is traced, too.
pub(crate) fn traced<T>(file: Option<&Path>, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(file) = file else { return f() };
    let told = |e: io::Error| {
        let what = format!("{} can't be written: {e}", file.display());
        CliError::told(what, "give another --trace")
    };
    // Made first, so that nothing is done if it can't be written.
    let mut out = create(file).map_err(told)?;
    let events = Events::default();
    let listener = Dispatch::new(Listener(Arc::clone(&events)));
    let done = tracing::dispatcher::with_default(&listener, f);
    let events = std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner));
    let json = serde_json::to_vec(&chrome(&events))?;
    let written = out.write_all(&json);
    let done = done?;
    written.map_err(|e| {
        let file = file.display();
        CliError::told(
            format!("the command is done, but {file}, its trace, can't be written: {e}"),
            "the result is there; run it again with another --trace only if you need the trace",
        )
    })?;
    Ok(done)
}

/// Creates a file. One that exists is never written over: it may be anything, such as the source. A device is no such file.
fn create(path: &Path) -> io::Result<File> {
    match File::create_new(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && is_device(path) => {
            File::options().write(true).open(path)
        }
        other => other,
    }
}

fn is_device(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|found| found.file_type().is_char_device())
}

/// Does `f` on another thread as on the one that has made this.
pub(crate) fn on_threads<T, R>(f: impl Fn(T) -> R + Sync) -> impl Fn(T) -> R + Sync {
    let listener = tracing::dispatcher::get_default(Dispatch::clone);
    move |of| tracing::dispatcher::with_default(&listener, || f(of))
}

/// The trace: a process for each checkpoint and act, a thread for each rank, in the order of time.
fn chrome(events: &[Json]) -> Json {
    let number = |event: &Json, key: &str| event[key].as_u64().unwrap_or(0);
    let text = |event: &Json, key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let mut acts: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut sorted: Vec<&Json> = events.iter().collect();
    sorted.sort_by_key(|e| ["start_us", "end_us", "rank"].map(|key| number(e, key)));
    let zero = sorted.first().map_or(0, |e| number(e, "start_us"));
    let mut out = Vec::new();
    for event in sorted {
        let act = (text(event, "act"), text(event, "checkpoint"));
        let next = acts.len() as u64 + 1;
        let process = *acts.entry(act.clone()).or_insert_with(|| {
            let name = format!("{} {}", act.0, act.1);
            out.push(
                json!({ "name": "process_name", "ph": "M", "pid": next, "args": { "name": name } }),
            );
            next
        });
        let rank = number(event, "rank");
        let (start, end) = (number(event, "start_us"), number(event, "end_us"));
        let mut args = json!({
            "checkpoint": act.1,
            "rank": rank,
            "items": number(event, "items"),
            "bytes": number(event, "bytes"),
            "files": number(event, "files"),
        });
        for known in ["imbalance", "error"] {
            if let Some(value) = event.get(known) {
                args[known] = value.clone();
            }
        }
        out.push(json!({
            "name": text(event, "phase"),
            "cat": act.0,
            "ph": "X",
            "ts": start - zero,
            "dur": end.saturating_sub(start),
            "pid": process,
            "tid": rank,
            "args": args,
        }));
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": out })
}

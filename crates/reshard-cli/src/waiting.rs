//! Shows for which ranks a step waits, when it waits for long.

use crate::table::{BOLD, shown};
use indicatif::ProgressBar;
use reshard::comm::WAITING_EVENTS;
use std::{
    fmt,
    io::{self, Write},
};
use tracing::{
    Dispatch, Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Does `f`, and shows above the bar what steps of it, on this thread and on those that hear it, wait for. Without a bar it goes to stderr.
pub(crate) fn told<T>(bar: &ProgressBar, f: impl FnOnce() -> T) -> T {
    let listener = Listener {
        bar: bar.clone(),
        others: tracing::dispatcher::get_default(Dispatch::clone),
    };
    tracing::dispatcher::with_default(&Dispatch::new(listener), f)
}

struct Listener {
    bar: ProgressBar,
    /// Hears what it has heard before, such as a trace.
    others: Dispatch,
}

fn is_waiting(of: &Metadata<'_>) -> bool {
    of.is_event() && of.target() == WAITING_EVENTS
}

impl Subscriber for Listener {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        is_waiting(of) || self.others.enabled(of)
    }

    fn new_span(&self, of: &span::Attributes<'_>) -> span::Id {
        self.others.new_span(of)
    }

    fn record(&self, of: &span::Id, values: &span::Record<'_>) {
        self.others.record(of, values);
    }

    fn record_follows_from(&self, of: &span::Id, follows: &span::Id) {
        self.others.record_follows_from(of, follows);
    }

    fn event(&self, event: &Event<'_>) {
        if is_waiting(event.metadata()) {
            let mut said = Message::default();
            event.record(&mut said);
            show(&self.bar, &said.0);
        }
        if self.others.enabled(event.metadata()) {
            self.others.event(event);
        }
    }

    fn enter(&self, of: &span::Id) {
        self.others.enter(of);
    }

    fn exit(&self, of: &span::Id) {
        self.others.exit(of);
    }
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// Shows a note above a bar, or on stderr if the bar is not drawn.
fn show(bar: &ProgressBar, text: &str) {
    let line = format!("note: {}", shown(text));
    match bar.is_hidden() {
        false => bar.println(line),
        true => writeln!(
            anstream::AutoStream::auto(io::stderr()),
            "{BOLD}{line}{BOLD:#}"
        )
        .unwrap_or(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::Screen;
    use reshard::{LocalGroup, comm::Comm};
    use std::{thread, time::Duration};

    #[test]
    fn the_awaited_ranks_are_shown_above_the_bar() {
        let screen = Screen::default();
        let bar = ProgressBar::with_draw_target(Some(1), screen.target());
        let is_told = || {
            let text = screen.text();
            let mut notes = text.split("note: step `begin` has waited").skip(1);
            notes.any(|rest| rest.contains("rank 1"))
        };
        let groups = LocalGroup::new(2);
        let agree = |group: &LocalGroup| {
            let comm = Comm::new(group).with_quiet(Duration::from_millis(2));
            futures::executor::block_on(comm.agree("begin", Ok(()))).unwrap();
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                // It comes only when the other one was seen to wait for it.
                while !is_told() {
                    thread::sleep(Duration::from_millis(1));
                }
                agree(&groups[1]);
            });
            told(&bar, || agree(&groups[0]));
        });
    }
}

//! After some time without an answer a step names the ranks for which it waits.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use reshard_comm::{
    Comm, CommError, DEFAULT_QUIET, LocalGroup, ProcessGroup, WAITING_EVENTS, testkit::on_ranks,
};
use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};
use tracing::{Event, Level, Metadata, Subscriber, field, span};

/// Keeps the text of each warning, and the ranks that it names.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<(String, String)>>>);

impl Subscriber for Heard {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        of.is_event() && of.target() == WAITING_EVENTS
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        assert_eq!(*event.metadata().level(), Level::WARN);
        let mut said = Said::default();
        event.record(&mut said);
        self.0.lock().unwrap().push((said.text, said.awaited));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Said {
    text: String,
    awaited: String,
}

impl field::Visit for Said {
    fn record_str(&mut self, field: &field::Field, value: &str) {
        if field.name() == "awaited" {
            self.awaited = value.into();
        }
    }

    fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.text = format!("{value:?}");
        }
    }
}

/// One test, because it listens for the whole process.
#[test]
fn a_step_that_waits_names_the_awaited_ranks_and_goes_on() {
    assert_eq!(DEFAULT_QUIET, Duration::from_secs(30));
    let heard = Heard::default();
    tracing::subscriber::set_global_default(heard.clone()).unwrap();
    let warned = || std::mem::take(&mut *heard.0.lock().unwrap());

    // Nobody waits for long: nothing is said.
    on_ranks(LocalGroup::new(3), |group| async move {
        Comm::new(&group).agree("begin", Ok(())).await.unwrap();
    });
    assert_eq!(warned(), []);

    // Rank 2 comes only when a warning about it was heard. The step succeeds all the same. On a busy machine other ranks may be late, too.
    let names_it = |(_, awaited): &(String, String)| awaited.contains('2');
    let listener = heard.clone();
    on_ranks(LocalGroup::new(3), move |group| {
        let listener = listener.clone();
        async move {
            while group.rank().0 == 2 && !listener.0.lock().unwrap().iter().any(names_it) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let comm = Comm::new(&group).with_quiet(Duration::from_millis(5));
            comm.agree("begin", Ok(())).await.unwrap();
        }
    });
    let said = warned();
    let (text, awaited) = said.iter().find(|said| names_it(said)).unwrap();
    let start = format!("step `begin` has waited 0.005 s for {awaited}, and fails after 1800 s");
    assert!(text.starts_with(&start), "{text}");
    assert!(text.contains("`.group(…)`"), "{text}");

    // A deadline that comes first is an error, and no warning.
    let outcomes = on_ranks(LocalGroup::new(2), |group| async move {
        if group.rank().0 == 1 {
            return None;
        }
        let comm = Comm::new(&group).with_deadline(Duration::from_millis(5));
        comm.agree("begin", Ok(())).await.err()
    });
    assert!(
        matches!(
            outcomes[0],
            Some(CommError::Deadline { .. } | CommError::Broken(_))
        ),
        "{outcomes:?}"
    );
    assert_eq!(warned(), []);
}

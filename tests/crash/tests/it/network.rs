//! A network that fails between the client of an object store and the service, at each request of a save, an overwrite and a load, and at
//! random. A reader then sees the old version or the new one, and a save says which.
#![cfg(feature = "clouds")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail and speak as tests do"
)]

use reshard::{Dialect, storage::Store, strategy::with_sources};
use reshard_crash::{
    FAULTS, Fault, Proxy, load_from, look_at, remove_all, save_to, saved_to, scattered, small_parts,
};
use reshard_object_store::ObjectStores;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

/// How many runs are at work at once. Most of their time they wait.
const WORKERS: u64 = 4;
/// After so long a silence a client gives up.
const SILENCE: Duration = Duration::from_millis(800);
/// The longest time of a request that gets an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a save says if nobody can know whether it has committed.
const IN_DOUBT: &str = "learn whether the version is committed";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    Save,
    Overwrite,
    Load,
}

const ACTS: [Act; 3] = [Act::Save, Act::Overwrite, Act::Load];

/// Each act in each dialect.
fn kinds() -> impl Iterator<Item = (Act, Dialect)> + Clone {
    let dialects = [Dialect::Dcp, Dialect::Megatron];
    ACTS.into_iter()
        .flat_map(move |act| dialects.map(|dialect| (act, dialect)))
}

/// What happens in one run.
#[derive(Clone, Copy, Debug)]
enum Harm {
    /// One fault, at the request of this number.
    At(usize, Fault),
    /// Any fault that does not last, at about every eighth request.
    Random(u64),
}

#[derive(Clone, Copy, Debug)]
struct Run {
    act: Act,
    dialect: Dialect,
    harm: Harm,
    retries: usize,
}

fn stores(endpoint: &str, retries: usize, silence: Duration) -> ObjectStores {
    ObjectStores::new()
        .with_option("aws_endpoint", endpoint)
        .with_option("aws_allow_http", "true")
        .with_option("aws_region", "us-east-1")
        .with_option("aws_access_key_id", "reshard")
        .with_option("aws_secret_access_key", "not-secret")
        .with_option("read_timeout", format!("{} ms", silence.as_millis()))
        .with_hints(small_parts())
        .with_retries(retries, PATIENCE)
}

/// One who does runs, with clients of its own.
struct Worker {
    proxy: Proxy,
    /// Clients that go through the proxy, by how often they try again.
    through: BTreeMap<usize, ObjectStores>,
    direct: ObjectStores,
}

impl Worker {
    fn new(server: &str) -> Self {
        let proxy = Proxy::start(server).unwrap();
        let through = [0, 2].map(|retries| (retries, stores(proxy.url(), retries, SILENCE)));
        Self {
            through: through.into(),
            direct: stores(server, 2, PATIENCE),
            proxy,
        }
    }

    /// The same place as it is, and through the proxy.
    fn place(&self, through: &ObjectStores) -> [Arc<dyn Store>; 2] {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let url = format!("s3://reshard/faults {}/{number}", std::process::id());
        let open = |stores: &ObjectStores| Arc::new(stores.open_place(&url).unwrap());
        [open(&self.direct), open(through)]
    }

    /// How many requests an act takes if nothing goes wrong.
    fn clean(&self, (act, dialect): (Act, Dialect)) -> usize {
        // Nothing is silent here. On a busy machine an answer may take long.
        let patient = stores(self.proxy.url(), 0, PATIENCE);
        let [direct, through] = self.place(&patient);
        if act != Act::Save {
            saved_to(&direct, 1, false, dialect).unwrap();
        }
        self.proxy.begin(|_| None);
        match act {
            Act::Load => assert_eq!(load_from(&through).unwrap(), 1),
            _ => saved_to(&through, 2, act == Act::Overwrite, dialect).unwrap(),
        }
        self.proxy.end().requests.len()
    }

    /// One run. What came of it in a word; the error says how the law is broken.
    fn run(&self, run: Run, clean: usize) -> Result<&'static str, String> {
        let [direct, through] = self.place(&self.through[&run.retries]);
        let old = (run.act != Act::Save).then_some(1);
        if old.is_some() {
            saved_to(&direct, 1, false, run.dialect).unwrap();
        }
        self.proxy.begin(move |number| match run.harm {
            Harm::At(at, fault) => (number == at).then_some(fault),
            Harm::Random(seed) => random(seed, number),
        });
        let (outcome, said) = match run.act {
            Act::Load => said([load_from(&through).map(|step| assert_eq!(step, 1))]),
            _ => said(save_to(&through, 2, old.is_some(), run.dialect).unwrap()),
        };
        let seen = self.proxy.end();
        let law = |holds: bool, what: &str| match holds {
            true => Ok(()),
            false => Err(format!(
                "{run:?}: {what}; it says {said:?}\n{:#?}",
                seen.requests
            )),
        };
        if seen.faults == 0 {
            return Ok("not met");
        }
        // A request is tried so often, the commit record three times and read back as often, and what was written is removed.
        let most = (run.retries + 1) * (2 * clean + 10);
        law(seen.requests.len() <= most, "too many requests")?;
        let now = look_at(&direct)
            .map_err(|e| format!("{run:?}: a third thing lies there: {e:#}; it says {said:?}"))?;
        match outcome {
            _ if run.act == Act::Load => law(now == old, "a load has changed the place")?,
            Outcome::Done => law(now == Some(2), "it is not there")?,
            Outcome::Failed => law(now == old, &format!("it is not as it was, but {now:?}"))?,
            Outcome::InDoubt => law(now == old || now == Some(2), "a third version")?,
        }
        // On a busy machine other requests may have stalled, too.
        let is_alone = run.retries > 0 && seen.slowest < SILENCE / 4;
        if let (Harm::At(_, fault), true) = (run.harm, is_alone) {
            law(
                !fault.passes || outcome == Outcome::Done,
                "one such fault should pass",
            )?;
        }
        // The next save finds its way.
        if run.act != Act::Load && now.is_some() {
            saved_to(&direct, 3, true, run.dialect).unwrap();
            law(
                look_at(&direct).is_ok_and(|now| now == Some(3)),
                "the next save is not there",
            )?;
        }
        remove_all(&direct).map_err(|e| format!("{run:?}: what it left stays: {e:#}"))?;
        Ok(match outcome {
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::InDoubt => "in doubt",
        })
    }
}

fn random(seed: u64, number: usize) -> Option<Fault> {
    let dice = |n: u64| scattered(seed * 1_000_003 + number as u64 * 2 + n);
    let once: Vec<_> = FAULTS.iter().filter(|fault| !fault.lasts()).collect();
    let which = (dice(1) * once.len() as f64) as usize;
    (dice(0) < 0.125).then(|| *once[which])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Failed,
    InDoubt,
}

/// What an act says; a save is done if any rank says so.
fn said<const N: usize>(ranks: [anyhow::Result<()>; N]) -> (Outcome, Vec<String>) {
    let done = ranks.iter().any(Result::is_ok);
    let said = ranks.into_iter().filter_map(Result::err);
    let said: Vec<String> = said.map(|e| with_sources(e.to_string(), &*e)).collect();
    let outcome = match done {
        true => Outcome::Done,
        false if said.iter().any(|e| e.contains(IN_DOUBT)) => Outcome::InDoubt,
        false => Outcome::Failed,
    };
    (outcome, said)
}

/// All runs: each fault at each request, and further ones at random. Without `RESHARD_THOROUGH` a share of them.
fn runs(clean: &BTreeMap<(Act, Dialect), usize>) -> Vec<Run> {
    let thorough = reshard_model::testkit::is_thorough();
    let (share, all) = if thorough { (1, 2_000u64) } else { (25, 100) };
    let mut runs = Vec::new();
    for (act, dialect) in kinds() {
        for (i, fault) in FAULTS.iter().enumerate() {
            let each = (0..clean[&(act, dialect)]).filter(|at| (at + i) % share == 0);
            runs.extend(each.map(|at| Run {
                act,
                dialect,
                harm: Harm::At(at, *fault),
                retries: if (at / share + i) % 2 == 0 { 0 } else { 2 },
            }));
        }
    }
    // At least a fifth of all is at random.
    let at_random = all.saturating_sub(runs.len() as u64).max(all / 5);
    for (seed, (act, dialect)) in (0..at_random).zip(kinds().cycle()) {
        runs.push(Run {
            act,
            dialect,
            harm: Harm::Random(seed),
            retries: if seed % 4 < 2 { 0 } else { 2 },
        });
    }
    runs
}

#[test]
#[ignore = "needs RESHARD_MOTO; cargo xtask clouds runs it"]
fn needs_clouds_whatever_the_network_does_the_old_version_or_the_new_one_is_there_and_a_save_says_which()
 {
    // Others want parts of 5 MiB.
    let server = std::env::var("RESHARD_MOTO").unwrap();
    let first = Worker::new(&server);
    let clean: BTreeMap<(Act, Dialect), usize> =
        kinds().map(|kind| (kind, first.clean(kind))).collect();
    let runs = runs(&clean);
    let next = AtomicU64::new(0);
    let work = || {
        let worker = Worker::new(&server);
        let (mut came, mut wrong) = (BTreeMap::new(), Vec::new());
        while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            match worker.run(*run, clean[&(run.act, run.dialect)]) {
                Ok(what) => *came.entry((run.act, what)).or_insert(0) += 1,
                Err(e) => {
                    // At once, so that nobody has to wait for the end.
                    println!("{e}");
                    wrong.push(e);
                }
            }
        }
        (came, wrong)
    };
    let mut came: BTreeMap<(Act, &str), u32> = BTreeMap::new();
    let mut wrong: Vec<String> = Vec::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            let (some, more) = worker.join().unwrap();
            some.into_iter()
                .for_each(|(what, n)| *came.entry(what).or_default() += n);
            wrong.extend(more);
        }
    });
    println!(
        "{} runs, requests without faults {clean:?}: {came:?}",
        runs.len()
    );
    assert!(
        wrong.is_empty(),
        "{} of {} runs:\n{}",
        wrong.len(),
        runs.len(),
        wrong.join("\n")
    );
    for act in ACTS {
        assert!(
            came.contains_key(&(act, "done")) && came.contains_key(&(act, "failed")),
            "{came:?}"
        );
    }
}

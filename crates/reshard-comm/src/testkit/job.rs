use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

/// Processes that a test has started, each of which is a rank. Those that run when it is dropped are killed.
///
/// ```
/// use reshard_comm::testkit::Job;
/// use std::{process::Command, time::Duration};
///
/// let mut job = Job::start(0..2, |rank| {
///     let mut command = Command::new("sh");
///     command.args(["-c", "echo I am $RANK"]).env("RANK", rank.to_string());
///     command
/// })?;
/// job.until_all_say("I am", Duration::from_secs(60));
/// let ended = job.wait(Duration::from_secs(60));
/// assert!(ended.iter().all(|rank| rank.succeeded()) && ended[1].said == "I am 1\n");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Job {
    ranks: Vec<Rank>,
}

#[derive(Debug)]
struct Rank {
    number: u32,
    child: Child,
    lines: Receiver<String>,
    said: String,
}

/// How a process of a [`Job`] ended.
#[derive(Debug)]
pub struct Ended {
    /// Its rank.
    pub rank: u32,
    /// `None` if it ran for too long and was killed for that.
    pub status: Option<ExitStatus>,
    /// What it printed, on both streams, by lines.
    pub said: String,
    /// How long after the beginning of the wait it ended.
    pub after: Duration,
}

impl Ended {
    /// Whether it ended with exit code 0.
    pub fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

impl Job {
    /// Starts a process for each of these ranks. Their environments and arguments are those of `command`; what they print
    /// is kept.
    ///
    /// # Errors
    /// Those of starting a process.
    pub fn start(
        ranks: impl IntoIterator<Item = u32>,
        command: impl Fn(u32) -> Command,
    ) -> std::io::Result<Self> {
        let mut job = Self { ranks: Vec::new() };
        for number in ranks {
            let mut command = command(number);
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            let mut child = command.stderr(Stdio::piped()).spawn()?;
            let (said, lines) = mpsc::channel();
            if let Some(stdout) = child.stdout.take() {
                listen(stdout, said.clone());
            }
            if let Some(stderr) = child.stderr.take() {
                listen(stderr, said);
            }
            job.ranks.push(Rank {
                number,
                child,
                lines,
                said: String::new(),
            });
        }
        Ok(job)
    }

    /// The process of a rank, to kill it or to look at it.
    ///
    /// # Panics
    /// If no process of that rank was started.
    pub fn process(&mut self, rank: u32) -> &mut Child {
        match self.ranks.iter_mut().find(|other| other.number == rank) {
            Some(rank) => &mut rank.child,
            None => panic!("rank {rank} was not started"),
        }
    }

    /// Waits until each process has printed a line that begins so.
    ///
    /// # Panics
    /// If one ends before, or doesn't within `limit`.
    pub fn until_all_say(&mut self, begin: &str, limit: Duration) {
        self.until_said(|_| true, begin, limit);
    }

    /// Waits until the process of a rank has printed a line that begins so.
    ///
    /// # Panics
    /// If it ends before, or doesn't within `limit`.
    pub fn until_says(&mut self, rank: u32, begin: &str, limit: Duration) {
        self.until_said(|other| other == rank, begin, limit);
    }

    fn until_said(&mut self, who: impl Fn(u32) -> bool, begin: &str, limit: Duration) {
        let until = Instant::now() + limit;
        for rank in self.ranks.iter_mut().filter(|rank| who(rank.number)) {
            loop {
                let left = until.saturating_duration_since(Instant::now());
                match rank.lines.recv_timeout(left) {
                    Ok(line) => {
                        rank.said.push_str(&line);
                        if line.starts_with(begin) {
                            break;
                        }
                    }
                    Err(why) => panic!(
                        "rank {} does not say {begin:?} ({why}): {}",
                        rank.number, rank.said
                    ),
                }
            }
        }
    }

    /// Waits until all processes have ended; those that run longer than `limit` are killed. In the order of their start.
    pub fn wait(self, limit: Duration) -> Vec<Ended> {
        self.wait_but_for(None, limit)
    }

    /// The same, but does not wait for rank `victim`, which may have been stopped: it is killed when the others have ended.
    pub fn wait_but_for(mut self, victim: Option<u32>, limit: Duration) -> Vec<Ended> {
        /// Another process may have inherited the streams.
        const REST: Duration = Duration::from_secs(5);
        let begun = Instant::now();
        let mut ends = vec![None; self.ranks.len()];
        loop {
            let mut waits = false;
            for (rank, end) in self.ranks.iter_mut().zip(&mut ends) {
                match rank.child.try_wait() {
                    Ok(Some(status)) => *end = end.or(Some((status, begun.elapsed()))),
                    _ => waits |= Some(rank.number) != victim,
                }
            }
            if !waits || begun.elapsed() > limit {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let ended = self.ranks.iter_mut().zip(ends).map(|(rank, end)| {
            if end.is_none() {
                rank.end();
            }
            let until = Instant::now() + REST;
            while let Ok(line) = rank
                .lines
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                rank.said.push_str(&line);
            }
            Ended {
                rank: rank.number,
                status: end.map(|(status, _)| status),
                said: std::mem::take(&mut rank.said),
                after: end.map_or(limit, |(_, after)| after),
            }
        });
        ended.collect()
    }
}

impl Rank {
    fn end(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.ranks.iter_mut().for_each(Rank::end);
    }
}

/// Hands on each line of a stream until its end.
fn listen(stream: impl std::io::Read + Send + 'static, said: mpsc::Sender<String>) {
    thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            match stream.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => drop(said.send(String::from_utf8_lossy(&line).into_owned())),
            }
        }
    });
}

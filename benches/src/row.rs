//! A comparison: some peers that take turns, and what is to be reached.

use crate::{
    peer::{Peer, Pythons},
    served::Served,
};
use anyhow::Result;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// What is to be reached.
pub(crate) enum Target {
    /// Seconds of this peer over seconds of ours, at least.
    Ratio(&'static str, f64),
    /// One of two such: of the first peer, or of the second.
    Either((&'static str, f64), (&'static str, f64)),
    /// Our seconds, at most.
    Seconds(f64),
    /// Our memory beyond the state in bytes, at most.
    Memory(u64),
    /// Our requests of a run, at most.
    Requests(u64),
}

/// Peers that do the same.
pub(crate) struct Row {
    pub(crate) title: String,
    pub(crate) peers: Vec<Peer>,
    pub(crate) targets: Vec<Target>,
    /// Files that have to be there, and who makes them.
    pub(crate) needs: Vec<(PathBuf, Peer)>,
    /// Tells how many bytes were read for one that was needed; at most so many are aimed at.
    pub(crate) amplification: Option<f64>,
    /// Fewer turns than the others have, of a thing that takes long.
    pub(crate) turns: Option<usize>,
    /// Files that nobody needs any more.
    pub(crate) leaves: Option<PathBuf>,
    /// The server that the places lie on.
    served: Option<Arc<Served>>,
    /// Places on it that the peers save to.
    makes: Vec<PathBuf>,
}

impl Row {
    pub(crate) fn new(title: impl Into<String>, peers: Vec<Peer>, targets: Vec<Target>) -> Self {
        let title = title.into();
        Self {
            title,
            peers,
            targets,
            needs: Vec::new(),
            amplification: None,
            turns: None,
            leaves: None,
            served: None,
            makes: Vec::new(),
        }
    }

    pub(crate) fn needs(mut self, file: &str, by: Peer) -> Self {
        self.needs.push((file.into(), by));
        self
    }

    pub(crate) fn served(self, by: &Arc<Served>) -> Self {
        Self {
            served: Some(Arc::clone(by)),
            ..self
        }
    }

    pub(crate) fn is_in_bucket(&self) -> bool {
        self.served.is_some()
    }

    pub(crate) fn makes(mut self, place: &str) -> Self {
        self.makes.push(place.into());
        self
    }

    pub(crate) fn turns(self, turns: usize) -> Self {
        Self {
            turns: Some(turns),
            ..self
        }
    }

    pub(crate) fn removes(self, file: &str) -> Self {
        Self {
            leaves: Some(file.into()),
            ..self
        }
    }

    pub(crate) fn amplification(self, most: f64) -> Self {
        Self {
            amplification: Some(most),
            ..self
        }
    }

    /// Seconds that it takes, roughly.
    pub(crate) fn estimate(&self, runs: Runs, pythons: &Pythons) -> f64 {
        let turns = self.turns.unwrap_or(runs.turns).min(runs.turns);
        let peers = self.peers.iter().filter(|p| p.is_there(pythons));
        peers.map(|p| p.estimate(turns, runs.each)).sum()
    }

    /// Runs the peers in turns, and gives the lines of the table.
    pub(crate) fn run(mut self, runs: Runs, pythons: &Pythons) -> Result<Vec<String>> {
        self.peers.retain(|p| p.is_there(pythons));
        let served = self.served.clone();
        let is_there = |file: &Path| match &served {
            Some(served) => served.has(file),
            None => file.exists(),
        };
        let saved = |file: &Path| {
            if let Some(served) = &served {
                served.saved(file);
            }
        };
        for (file, by) in &mut self.needs {
            if !is_there(file) && by.is_there(pythons) {
                by.run(pythons, 1)?;
                saved(file);
            }
        }
        for p in &mut self.peers {
            p.choose(pythons)?;
        }
        for _ in 0..self.turns.unwrap_or(runs.turns).min(runs.turns) {
            for p in &mut self.peers {
                p.run(pythons, runs.each)?;
            }
        }
        self.makes.iter().for_each(|place| saved(place));
        if let Some(dir) = &self.leaves {
            std::fs::remove_dir_all(dir)?;
        }
        let mut lines: Vec<String> = self.peers.iter().filter_map(|p| self.line(p)).collect();
        lines.extend(self.read_per_needed());
        lines.extend(self.peers.iter().filter_map(|p| self.passed(p)));
        Ok(lines)
    }

    fn ours(&self) -> Option<&Peer> {
        self.peers.iter().find(|p| p.is_ours())
    }

    /// Seconds of a peer over ours.
    fn ratio(&self, name: &str) -> Option<f64> {
        let peer = self.peers.iter().find(|p| p.name() == name)?;
        Some(peer.seconds()? / self.ours()?.seconds()?)
    }

    fn line(&self, p: &Peer) -> Option<String> {
        let (seconds, last) = (p.seconds()?, p.last()?);
        let gb = last.bytes as f64 / 1e9;
        let speed = if gb > 0.0 {
            format!("{:.2} GB/s", gb / seconds)
        } else {
            String::new()
        };
        let cpu = p.cpu().map_or(String::new(), |cpu| format!("{cpu:.2} s"));
        let mut memory = if p.grown() > 0 {
            format!("{} MiB", p.grown() >> 20)
        } else {
            String::new()
        };

        let mut ratio = self
            .ratio(p.name())
            .filter(|_| !p.is_ours())
            .map_or(String::new(), |r| format!("{r:.2}x"));

        // A target stands behind the number that it is about, and says whether it is reached.
        for target in &self.targets {
            match target {
                Target::Ratio(peer, least) if *peer == p.name() => {
                    let reached = self.ratio(peer).is_some_and(|r| r >= *least);
                    ratio += &format!(" (target {least:.2}x, {})", verdict(reached));
                }
                Target::Either(a, b) if a.0 == p.name() => {
                    let reached = [a, b]
                        .iter()
                        .any(|(peer, least)| self.ratio(peer).is_some_and(|r| r >= *least));
                    let (least, peer, or) = (a.1, b.0, b.1);
                    ratio += &format!(
                        " (target {least:.2}x, or {or:.2}x of {peer}, {})",
                        verdict(reached)
                    );
                }
                Target::Seconds(most) if p.is_ours() => {
                    ratio = format!("(target {most} s, {})", verdict(seconds <= *most));
                }
                Target::Memory(most) if p.is_ours() => {
                    memory += &format!(
                        " (target {} MiB, {})",
                        most >> 20,
                        verdict(p.grown() <= *most)
                    );
                }
                _ => {}
            }
        }
        let (title, who, checks, runs) = (&self.title, p.title(), p.what_it_checks(), p.runs());
        Some(format!(
            "| {title} | {who} | {checks} | {runs} | {seconds:.4} s | {speed} | {ratio} | {cpu} | {memory} |"
        ))
    }

    /// What a run has sent and received.
    fn passed(&self, p: &Peer) -> Option<String> {
        let (passed, last) = (p.passed()?, p.last()?);
        let ratio = passed.bytes as f64 / last.bytes as f64;
        let (title, who) = (&self.title, p.name());
        let mut requests = passed.requests.to_string();
        for target in self.targets.iter().filter(|_| p.is_ours()) {
            if let Target::Requests(most) = target {
                let reached = verdict(passed.requests <= *most);
                requests += &format!(" (target {most}, {reached})");
            }
        }
        Some(format!(
            "| {title} | {who}: bytes on the wire per byte needed | | | {ratio:.3} | | | | requests: {requests} |"
        ))
    }

    fn read_per_needed(&self) -> Option<String> {
        let (most, m) = (self.amplification?, self.ours()?.last()?);
        let ratio = m.read as f64 / m.needed as f64;
        let verdict = match most.is_finite() {
            true => format!("(target {most:.2}, {})", verdict(ratio <= most)),
            false => String::new(),
        };
        let (title, headers) = (&self.title, m.headers >> 10);
        Some(format!(
            "| {title} | bytes read per byte needed | | | {ratio:.3} {verdict} | | | | headers {headers} KiB |"
        ))
    }
}

/// How often all is done.
#[derive(Clone, Copy)]
pub(crate) struct Runs {
    /// Processes of each peer, in turn.
    pub(crate) turns: usize,
    /// Counted runs of each process.
    pub(crate) each: usize,
}

fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "MISSED" }
}
